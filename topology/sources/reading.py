"""Typed access to a Table; every refusal is a TopologyError that names file, line and key."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from topology.sources.yamltext import Row, Table, TopologyError, say, unset


def near(word: str, known: Iterable[str]) -> str | None:
    """The known word that this one most likely is a slip of."""
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.8)
    return found[0] if found else None


def domainless(names: Iterable[str], known: Iterable[str]) -> dict[str, str]:
    """Names that are not known, but are with or without a domain: what is known of each, where that is only one."""
    here, there = set(names), set(known)
    short: dict[str, list[str]] = {}
    for name in there - here:
        short.setdefault(name.split(".")[0], []).append(name)
    found: dict[str, str] = {}
    for name in sorted(here - there):
        bare = name.split(".")[0]
        meant = short.get(bare, [])
        if len(meant) == 1 and bare in (name, meant[0]) and not bare.isdecimal() and meant[0] not in found.values():
            found[name] = meant[0]
    return found


_SPEED = re.compile(r"([0-9]{1,15})([kKMGT]?)")
_FACTOR = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def speed_bps(text: str) -> int | None:
    """Bits per second of `400G`, `1000000`; None for what is no speed, or 0."""
    found = _SPEED.fullmatch(text)
    return int(found[1]) * _FACTOR[found[2]] or None if found else None


class Reader:
    """Reads the values of one file, called `where` in errors. Keys are given as the path of the table they are in."""

    def __init__(self, where: str) -> None:
        self._where = where

    def error(self, line: int, key: str, message: str) -> TopologyError:
        return TopologyError(self._where, line, key, message)

    def wrong(self, table: Table, word: str, key: str, expected: str) -> TopologyError:
        """The error for the value of `word` in `table`."""
        line = table.lines.get(word, table.line)
        return self.error(line, _join(key, word), f"expected {expected}, got {say(table.items.get(word))}")

    def table(self, parent: Table, word: str, key: str) -> Table:
        """The mapping under `word`; an empty one where there is nothing."""
        value = parent.items.get(word)
        if value is None:
            return Table(parent.lines.get(word, parent.line), {}, {})
        if not isinstance(value, Table):
            raise self.wrong(parent, word, key, "a mapping")
        return value

    def tables(self, parent: Table, word: str, key: str) -> dict[str, Table]:
        """A mapping of names to mappings."""
        named = self.table(parent, word, key)
        return {name: self.table(named, name, _join(key, word)) for name in named.items}

    def row(self, parent: Table, word: str, key: str, expected: str) -> Row:
        """The sequence under `word`; an empty one where there is nothing."""
        value = parent.items.get(word)
        if value is None:
            return Row(parent.lines.get(word, parent.line), (), ())
        if not isinstance(value, Row):
            raise self.wrong(parent, word, key, expected)
        return value

    def text(self, table: Table, word: str, key: str) -> str | None:
        value = table.items.get(word)
        if value is None:
            return None
        if not isinstance(value, str):
            raise self.wrong(table, word, key, "text")
        self.is_set(value, table.lines[word], _join(key, word))
        return value

    def number(self, table: Table, word: str, key: str, low: int, high: int) -> int | None:
        text = self.text(table, word, key)
        if text is None:
            return None
        if not (text.isascii() and text.isdecimal() and len(text) < 10 and low <= int(text) <= high):
            raise self.wrong(table, word, key, f"a number from {low} to {high}")
        return int(text)

    def is_set(self, text: str, line: int, key: str) -> None:
        """Refuses a text in which a variable is left."""
        variable = unset(text)
        if variable:
            raise self.error(line, key, f"expected a value, got the variable {variable}, which is not set")

    def no_slips(self, table: Table, known: Iterable[str], key: str) -> tuple[str, ...]:
        """The keys that are not known. Raises for one that is nearly a known one: it would be silently ignored."""
        strange = tuple(word for word in table.items if word not in set(known))
        for word in strange:
            meant = near(word, known)
            if meant:
                raise self.error(table.lines[word], _join(key, word), f"expected the key {meant}, got {say(word)}")
        return strange


def _join(key: str, word: str) -> str:
    return f"{key}.{word}" if key else word
