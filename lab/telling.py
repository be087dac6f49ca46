"""What a person is told while the fabric breaks: from the daemons' journals to few lines, pure.

Four daemons write dozens of entries about one fault. A watcher wants to know who noticed first, what is held to be
broken, who moved traffic and when, and that it came back.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from lab.daemons import Entry

Kind = Literal["noticed", "heard", "verdict", "moved", "back"]

_KINDS: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    ("verdict", re.compile(r"^verdict (direction|link|nic|switch|host): (?!.*holds no longer$)| loses packets$")),
    ("moved", re.compile(r"^moved .* away: ")),
    ("back", re.compile(r"^moved .* back: ")),
    ("heard", re.compile(r" says that .* is (down|drained)$")),
    ("noticed", re.compile(r"^(blackhole|lossy) on | is down$| is drained$")),
)
ALSO: dict[Kind, str] = {"moved": "acted", "back": "returned"}


@dataclass(frozen=True, slots=True)
class Line:
    """`after_s`: seconds since the fault, None for a summary."""

    kind: Kind
    after_s: float | None
    host: str
    text: str


def kind_of(entry: Entry) -> Kind | None:
    """What an entry means to a watcher; None: nothing new."""
    return next((kind for kind, pattern in _KINDS if pattern.search(entry.what)), None)


@dataclass(slots=True)
class Teller:
    """Tells of one fault: the first of each kind and each verdict at once, the other hosts' moves in one line later.

    `origin_s`: monotonic moment of the fault."""

    origin_s: float
    _seen: set[tuple[str, int, int]] = field(default_factory=set)
    _verdicts: set[str] = field(default_factory=set)
    _first: dict[Kind, dict[str, float]] = field(default_factory=dict)

    def take(self, entries: Iterable[Entry]) -> list[Line]:
        """Lines for what is new among the entries (of all hosts, in the order of time)."""
        lines = []
        for entry in entries:
            key = entry.host, entry.run, entry.seq
            kind = kind_of(entry)
            if kind is None or key in self._seen:
                continue
            self._seen.add(key)
            after_s = entry.now_s - self.origin_s
            hosts = self._first.setdefault(kind, {})
            news = not hosts
            hosts.setdefault(entry.host, after_s)
            if kind == "verdict":
                news = entry.what not in self._verdicts
                self._verdicts.add(entry.what)
            if news:
                lines.append(Line(kind, after_s, entry.host, _text(entry, kind, first=len(self._verdicts) < 2)))
        return lines

    def others(self, kind: Kind) -> Line | None:
        """The hosts that did the same after the first one, with their times; None when there are none."""
        first, *rest = self._first.get(kind, {}).items() or [("", 0.0)]
        if not rest:
            return None
        text = ", ".join(f"{host} {after(at_s)}" for host, at_s in rest)
        return Line(kind, None, first[0], f"{ALSO.get(kind, kind)} as well: {text}")

    def hosts(self, kind: Kind) -> tuple[str, ...]:
        """Who has done it so far, in the order of time."""
        return tuple(self._first.get(kind, ()))


def after(seconds: float) -> str:
    """`+21 ms`, `+4.3 s`."""
    return f"+{seconds * 1e3:.0f} ms" if seconds < 1 else f"+{seconds:.1f} s"


def _text(entry: Entry, kind: Kind, *, first: bool) -> str:
    """The entry in few words. The reason is told of the first verdict: after that it is known how they are found."""
    if kind != "verdict":
        return entry.what
    text = entry.what.removeprefix("verdict ")
    return f"{text}: {entry.why.replace('(s)', 's')}" if first else text
