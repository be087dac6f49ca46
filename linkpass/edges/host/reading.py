"""What a source gives when it is read, and when a trouble that it shows is evidence: hysteresis in time.

A trouble has to stand for `stands_s` before it is told, and to be away for `rests_s`, in readings that could have shown
it, before it is said to be over. What only counts upwards (an error that happened) is told at once and for good.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

import msgspec

from linkpass.core.events import HostEvidence, Severity

Place = tuple[str, str]
"""(accelerator or empty, what)."""


class Trouble(msgspec.Struct, frozen=True):
    severity: Severity
    why: str
    happened: bool = False
    """It is an event: told at once, and not over because it does not happen again."""
    lasts_s: float | None = None
    """Of an event: after which it is forgotten."""


class Reading(msgspec.Struct, frozen=True):
    """`unknown`: what could not be read, in words: neither good nor bad. `covers` False: none of it could."""

    troubles: Mapping[Place, Trouble]
    unknown: tuple[str, ...] = ()
    blind: frozenset[Place] = frozenset()
    """Troubles that this reading could not have shown."""
    figures: Mapping[Place, float] = {}
    """Numbers for metrics: (accelerator or part, name with unit)."""


class AbsentError(Exception):
    """The source is not there: the text says what is missing, and what would bring it."""


class Source(Protocol):
    """Read in a thread of its own; may take its time."""

    name: str

    def read(self) -> Reading:
        """Raises AbsentError when there is nothing to read here, OSError when it failed this time."""

    def interrupt(self) -> None:
        """Called from another thread: what is under way ends soon, where it can."""

    def close(self) -> None: ...


class Standing:
    """Which troubles of one source stand."""

    def __init__(self, source: str, stands_s: float, rests_s: float) -> None:
        self._source, self._stands_s, self._rests_s = source, stands_s, rests_s
        self._since: dict[Place, float] = {}
        """When a trouble that is not told yet was first seen."""
        self._told: dict[Place, Severity] = {}
        self._away: dict[Place, float] = {}
        """Since when one that was told is not seen any more."""

    def take(self, reading: Reading, now_s: float) -> Iterator[HostEvidence]:
        for place, trouble in reading.troubles.items():
            if trouble.happened:
                yield self._evidence(place, trouble.severity, trouble.why, trouble.lasts_s)
                continue
            self._away.pop(place, None)
            since_s = self._since.setdefault(place, now_s)
            if now_s - since_s >= self._stands_s and self._told.get(place) != trouble.severity:
                self._told[place] = trouble.severity
                yield self._evidence(place, trouble.severity, trouble.why, None)
        for place in [place for place in self._since if place not in reading.troubles and place not in reading.blind]:
            if place not in self._told:
                del self._since[place]
                continue
            if now_s - self._away.setdefault(place, now_s) >= self._rests_s:
                del self._since[place], self._told[place], self._away[place]
                yield self._evidence(place, "well", f"for {self._rests_s:g} s" if self._rests_s else "", None)

    def _evidence(self, place: Place, severity: Severity, why: str, lasts_s: float | None) -> HostEvidence:
        accelerator, what = place
        return HostEvidence(
            source=self._source, what=what, severity=severity, why=why, accelerator=accelerator, lasts_s=lasts_s
        )
