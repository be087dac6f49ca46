"""What the ledger says of a time: how much was resolved without lost progress, what it cost, and where. Pure.

An incident is *resolved* when its ranks moved and no applied step was done again. A planned move that was cancelled
moved nobody and cost nothing: it is counted, and stands for neither side of the share. What a pause costs is the time
of every accelerator of the job: all of them wait.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence

import msgspec

from torchpass_bridge.wire import Entry

PROMISE = 0.9
"""Of the commercial offers: the share resolved without lost progress."""

_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(s|min|h|d|w)")
_UNITS_S = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
_RANK = re.compile(r"^rank \d+ on \S+: ")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


class Line(msgspec.Struct, frozen=True):
    """Of some incidents. `resolved_ratio` and the pauses are None when none of them counts.

    `pause_s`: of those that moved, {"p50", "p95", "max"}; `accelerator_s`: lost by their pauses."""

    incidents: int
    moved: int
    cancelled: int
    stopped: int
    lost: int
    steps_lost: int
    resolved_ratio: float | None
    pause_s: dict[str, float] | None
    accelerator_s: float
    detection_s: dict[str, float] | None = None
    """The same of crashes: from the last word of who was gone to the incident's begin."""


class Ledger(msgspec.Struct, frozen=True):
    """`by_cause`: with what differs between two of a kind (hosts, numbers) left out, the most frequent first."""

    all: Line
    by_kind: dict[str, Line]
    by_trigger: dict[str, Line]
    by_cause: dict[str, Line]


def summarise(entries: Iterable[Entry]) -> Ledger:
    listed = list(entries)
    return Ledger(
        all=line(listed),
        by_kind=_by(listed, lambda entry: entry.kind),
        by_trigger=_by(listed, lambda entry: entry.trigger),
        by_cause=_by(listed, cause_of),
    )


def line(entries: Sequence[Entry]) -> Line:
    def count(outcome: str) -> int:
        return sum(entry.outcome == outcome for entry in entries)

    judged = [entry for entry in entries if entry.outcome != "cancelled"]
    return Line(
        incidents=len(entries),
        moved=count("moved"),
        cancelled=count("cancelled"),
        stopped=count("stopped"),
        lost=count("lost"),
        steps_lost=sum(entry.steps_lost for entry in entries),
        resolved_ratio=sum(resolved(entry) for entry in judged) / len(judged) if judged else None,
        pause_s=_spread([entry.pause_s for entry in entries if entry.outcome == "moved"]),
        accelerator_s=sum(entry.pause_s * entry.world for entry in entries),
        detection_s=_spread([entry.detection_s for entry in entries if entry.detection_s > 0]),
    )


def resolved(entry: Entry) -> bool:
    return entry.outcome == "moved" and entry.steps_lost == 0


def cause_of(entry: Entry) -> str:
    """The cause in words that are the same for all of its kind."""
    words = _RANK.sub("", entry.cause)
    for host in sorted(entry.hosts, key=len, reverse=True):
        words = words.replace(host, "HOST")
    return _NUMBER.sub("N", words) or "not said"


def span_s(text: str) -> float:
    """ "30d", "12 h", "90min": in seconds; ValueError otherwise."""
    found = _SPAN.fullmatch(text.strip())
    if not found:
        raise ValueError(f"{text!r} is no span of time: give a number with s, min, h, d or w, such as 30d")
    return float(found[1]) * _UNITS_S[found[2]]


def _by(entries: Sequence[Entry], what: Callable[[Entry], str]) -> dict[str, Line]:
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(what(entry), []).append(entry)
    return {name: line(some) for name, some in sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))}


def _spread(values: Sequence[float]) -> dict[str, float] | None:
    ordered = sorted(values)
    return {"p50": _at(ordered, 0.5), "p95": _at(ordered, 0.95), "max": ordered[-1]} if ordered else None


def _at(ordered: Sequence[float], share: float) -> float:
    """The smallest value that so many are not above (nearest rank)."""
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)]
