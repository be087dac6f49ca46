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
ANSWER_S = 5.0
"""A command without an outcome for this long is taken for failed: what its edge lost must not be lost for ever."""
FORGET_S = 600.0
"""Removals further apart than this are not a fight."""


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
    answer_by_s: float = 0.0
    unverified: bool = False
    """No look has been taken yet at what the present value has done."""
    lost: int = 0
    lost_at_s: float = 0.0
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
        self.value, self.cause, self.why, self.unverified = value, cause, why, True
        self.retry_at_s, self.failures = None, 0
        return True

    @property
    def due_at_s(self) -> float | None:
        """When this object wants attention: to be sent again, or to be given up waiting for. None: it does not."""
        if self.in_flight is not None:
            return self.answer_by_s
        return self.retry_at_s if self.pending else None

    def send(self, cmd_id: int, now_s: float) -> None:
        self.in_flight, self.sent, self.retry_at_s, self.answer_by_s = cmd_id, self.value, None, now_s + ANSWER_S

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

    def removed(self, by: str, tries: int, now_s: float) -> bool:
        """Somebody removed it; True when we now stand down."""
        self.programmed, self.in_flight, self.retry_at_s = None, None, None
        if now_s - self.lost_at_s > FORGET_S:
            self.lost = 0
        self.lost += 1
        self.lost_at_s = now_s
        if self.lost > tries and not self.stood_down:
            self.stood_down = f"{by} removed it {self.lost} times"
            return True
        return False

    def stand_up(self) -> None:
        """The operator has settled it with the other master: try again."""
        self.stood_down, self.lost, self.failures, self.retry_at_s = "", 0, 0, None
