"""Where a key stands in a TOML text. The standard library's parser keeps no positions, so this is a best effort.

Plain keys, dotted keys, sections and arrays of tables are found; keys in inline tables answer with
their parent's line."""

from __future__ import annotations

import re

_HEADER = re.compile(r"\s*(\[\[?)\s*([^\]]+?)\s*\]\]?\s*(?:#.*)?$")
_KEY = re.compile(r"\s*((?:[\w-]+|\"[^\"]*\"|'[^']*')(?:\s*\.\s*(?:[\w-]+|\"[^\"]*\"|'[^']*'))*)\s*=")


class Lines(dict[str, int]):
    """`section.key` -> line number from 1. A key that is not there answers with its nearest parent's line."""

    def get(self, key: str, default: int | None = None) -> int | None:  # type: ignore[override]
        while key:
            if key in self:
                return self[key]
            key = key[: max(key.rfind("."), key.rfind("["), 0)]
        return default


def lines_of(text: str) -> Lines:
    """The line of every key that can be found without parsing values."""
    lines = Lines()
    section, counts, fence = "", dict[str, int](), ""
    for number, line in enumerate(text.splitlines(), 1):
        if fence:
            fence = "" if fence in line else fence
            continue
        if header := _HEADER.match(line):
            section = _plain(header[2])
            if header[1] == "[[":
                index = counts[section] = counts.get(section, -1) + 1
                lines.setdefault(section, number)
                section = f"{section}[{index}]"
            lines.setdefault(section, number)
        elif key := _KEY.match(line):
            lines.setdefault(f"{section}.{_plain(key[1])}".lstrip("."), number)
            rest = line[key.end() :]
            fence = next((mark for mark in ('"""', "'''") if rest.count(mark) == 1), "")
    return lines


def _plain(key: str) -> str:
    return ".".join(part.strip().strip("\"'") for part in key.split("."))
