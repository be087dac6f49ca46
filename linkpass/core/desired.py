"""Desired against programmed state, an object at a time (a next-hop group, a peer's labels).

A command is out for at most one value of an object; a new wish waits for its outcome. A failure is tried again with a
growing pause. When somebody else removes what we programmed we put it back a few times, then stand down on that object:
two masters fighting over a route are worse than either (rule 7).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

RETRY_FIRST_S = 0.05
RETRY_MOST_S = 30.0


@dataclass(slots=True)
class Wish:
    """One object. `value` is what we want, `programmed` what the kernel has taken (None: nothing of ours)."""

    name: str
    value: tuple[Any, ...] | None = None
    programmed: tuple[Any, ...] | None = None
    cause: str = ""
    in_flight: int | None = None
    sent: tuple[Any, ...] | None = None
    failures: int = 0
    retry_at_s: float | None = None
    lost: int = 0
    stood_down: str = ""
    why: str = ""

    @property
    def pending(self) -> bool:
        """A command should go out now (retry time aside)."""
        return (
            self.value is not None and self.value != self.programmed and self.in_flight is None and not self.stood_down
        )

    def want(self, value: tuple[Any, ...], cause: str, why: str) -> bool:
        """Wish for a value; True when it is news."""
        if value == self.value:
            return False
        self.value, self.cause, self.why = value, cause, why
        self.retry_at_s, self.failures = None, 0
        return True

    def send(self, cmd_id: int) -> None:
        self.in_flight, self.sent, self.retry_at_s = cmd_id, self.value, None

    def done(self, cmd_id: int) -> bool:
        """The command was carried out; False when it was not ours or is outdated."""
        if cmd_id != self.in_flight:
            return False
        self.in_flight, self.programmed, self.failures = None, self.sent, 0
        return True

    def failed(self, cmd_id: int, now_s: float) -> bool:
        if cmd_id != self.in_flight:
            return False
        self.in_flight = None
        self.failures += 1
        self.retry_at_s = now_s + min(RETRY_FIRST_S * 2.0 ** min(self.failures - 1, 20), RETRY_MOST_S)
        return True

    def removed(self, by: str, tries: int) -> bool:
        """Somebody removed it; True when we now stand down."""
        self.programmed, self.in_flight = None, None
        self.lost += 1
        if self.lost > tries and not self.stood_down:
            self.stood_down = f"{by} removed it {self.lost} times"
            return True
        return False
