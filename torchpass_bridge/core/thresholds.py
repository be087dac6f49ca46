"""When a measured value becomes a reason to move, and when it is none any more. Pure: `now_s` is an argument.

A value counts when it has stood at its limit for a time without a break, and is over when it has rested below a lower
limit for a longer one (a Schmitt trigger with times): a sensor that swings around one number moves nobody twice. What
could not be read is neither: it ends no time that runs, and begins none.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Change = Literal["", "raised", "cleared"]


class Limit(msgspec.Struct, frozen=True):
    """`raise_at`, `clear_at`: at or above, below. `stands_s`, `rests_s`: for how long."""

    what: str
    raise_at: float
    clear_at: float
    stands_s: float = 10.0
    rests_s: float = 60.0


class Threshold:
    """One value of one thing."""

    def __init__(self, limit: Limit) -> None:
        self.limit = limit
        self.raised = False
        self.value: float | None = None
        self._since_s: float | None = None

    def see(self, value: float | None, now_s: float) -> Change:
        """A reading; None: it could not be read."""
        if value is None:
            return ""
        self.value = value
        limit = self.limit
        turns = value < limit.clear_at if self.raised else value >= limit.raise_at
        if not turns:
            self._since_s = None
            return ""
        if self._since_s is None:
            self._since_s = now_s
        if now_s - self._since_s < (limit.rests_s if self.raised else limit.stands_s):
            return ""
        self.raised, self._since_s = not self.raised, None
        return "raised" if self.raised else "cleared"

    def words(self) -> str:
        limit = self.limit
        shown = "not read" if self.value is None else f"{self.value:g}"
        return f"{limit.what} {shown}, limit {limit.raise_at:g} for {limit.stands_s:g} s"
