"""The clock: monotonic seconds for decisions, wall time for people, and how late this daemon is."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta


class Clock:
    """Monotonic time and the lateness of our own timers.

    A daemon that was starved of the processor must not take its own silence for the fabric's: every timer tells how
    late it fired, and what exceeds `tolerated_s` is counted."""

    def __init__(self, tolerated_s: float = 0.020) -> None:
        self.tolerated_s = tolerated_s
        self.late_count = 0
        self.worst_late_s = 0.0

    def now_s(self) -> float:
        """CLOCK_MONOTONIC in seconds: the same clock in all processes and namespaces of a machine."""
        return time.monotonic()

    def now_ns(self) -> int:
        return time.monotonic_ns()

    def wall(self, at_s: float | None = None) -> str:
        """Wall time in UTC for people, ISO 8601 with milliseconds; `at_s`: of a moment of this clock a while ago."""
        ago_s = 0.0 if at_s is None else max(0.0, self.now_s() - at_s)
        at = datetime.now(UTC) - timedelta(seconds=ago_s)
        return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def note_fired(self, due_s: float) -> float:
        """A timer due at `due_s` fires now: returns how late it is, or 0 when that is tolerated."""
        late_s = self.now_s() - due_s
        if late_s <= self.tolerated_s:
            return 0.0
        self.late_count += 1
        self.worst_late_s = max(self.worst_late_s, late_s)
        return late_s
