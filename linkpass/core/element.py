"""The health of one element (a link's direction, a path, an uplink): bad news at once, good news late.

    unknown  nothing is known yet; not the same as down
    up       usable
    down     evidence says that it fails
    watch    evidence is good again; the observation floor has to pass without a relapse
    held     the floor has passed, the penalty of earlier failures has not decayed yet (RFC 2439: suppressed)

Each failure adds a penalty that decays exponentially (RFC 2439, 4.8.1); above `suppress` an element is held until
it has decayed to `reuse`. The ceiling bounds that time: half_life * log2(ceiling / reuse). A return that fails soon
doubles the observation floor, without an end: an optic may take days, and must still come back by itself. Evidence
is `bad`, `good`, or `quiet` (nothing can be said: it never brings an element up, and never down).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final, Literal

from linkpass.core.settings import Damping

State = Literal["unknown", "up", "down", "watch", "held"]
Input = Literal["bad", "good", "quiet", "floor_passed", "decayed", "clear"]

TRANSITIONS: Final[dict[tuple[State, Input], State]] = {
    ("unknown", "bad"): "down",
    ("unknown", "good"): "up",
    ("unknown", "quiet"): "unknown",
    ("unknown", "clear"): "unknown",
    ("up", "bad"): "down",
    ("up", "good"): "up",
    ("up", "quiet"): "up",
    ("up", "clear"): "up",
    ("down", "bad"): "down",
    ("down", "good"): "watch",
    ("down", "quiet"): "down",
    ("down", "clear"): "down",
    ("watch", "bad"): "down",
    ("watch", "good"): "watch",
    ("watch", "quiet"): "down",
    ("watch", "floor_passed"): "held",
    ("watch", "clear"): "up",
    ("held", "bad"): "down",
    ("held", "good"): "held",
    ("held", "quiet"): "down",
    ("held", "decayed"): "up",
    ("held", "clear"): "up",
}
"""(state, input) -> state. An undeclared pair is a fault of the caller and raises with the element's story."""


class ImpossibleInputError(RuntimeError):
    """An input that this state cannot have; carries what happened to the element so far."""


@dataclass(slots=True)
class Element:
    """One element's machine. `now_s` is always an argument; `deadline_s` is the moment it wants to be asked again."""

    name: str
    damping: Damping
    state: State = "unknown"
    since_s: float = 0.0
    why: str = ""
    cause: str = ""
    penalty: float = 0.0
    penalty_at_s: float = 0.0
    suppressed: bool = False
    relapses: int = 0
    deadline_s: float | None = None
    story: list[str] = field(default_factory=list)
    _before: tuple[State, float, float, bool, int] | None = None
    """State, penalty, since when, suppressed and relapses before the latest failure, while it is down for it."""

    @property
    def usable(self) -> bool:
        """Up, or not known to be anything else."""
        return self.state in ("up", "unknown")

    def penalty_now(self, now_s: float) -> float:
        """The penalty, decayed to `now_s`."""
        return float(self.penalty * 0.5 ** (max(0.0, now_s - self.penalty_at_s) / self.damping.half_life_s))

    def observe_s(self) -> float:
        """The observation floor that the next return has to pass."""
        return min(self.damping.observe_s * 2.0 ** min(self.relapses, 30), self.damping.observe_max_s)

    def feed(self, what: Input, now_s: float, *, why: str = "", cause: str = "") -> bool:
        """Feed one input; True when the state has changed. Raises ImpossibleInputError for an undeclared pair."""
        after = TRANSITIONS.get((self.state, what))
        if after is None:
            raise ImpossibleInputError(f"{self.name}: {what!r} in state {self.state!r}; story: {'; '.join(self.story)}")
        if what == "clear":
            self.penalty, self.suppressed, self.relapses, self._before = 0.0, False, 0, None
        if after == self.state:
            if what == "bad" and why:
                self.why = why
            return False
        before, self.state = self.state, after
        if after == "down" and what == "bad":
            self._fail(before, now_s)
            self.cause = cause or self.cause
        self.since_s, self.why = now_s, why or self.why
        self.deadline_s = self._next_deadline(now_s)
        self.story = [*self.story[-11:], f"{now_s:.3f} {before}->{after} ({what}{': ' + why if why else ''})"]
        return True

    def absolve(self, now_s: float, why: str) -> bool:
        """The latest failure was none: state and penalty are what they were before it; those of earlier failures stay.

        True when the state has changed: only an element that is down for a failure can be absolved of it."""
        if self.state != "down" or self._before is None:
            return False
        state, self.penalty, self.penalty_at_s, self.suppressed, self.relapses = self._before
        self.state = "up" if state == "unknown" else state
        self.since_s, self.why, self._before = now_s, why, None
        self.deadline_s = self._next_deadline(now_s)
        self.story = [*self.story[-11:], f"{now_s:.3f} down->{self.state} (absolved: {why})"]
        return True

    def tick(self, now_s: float) -> bool:
        """Let time act: the floor passes, the penalty decays. True when the state has changed."""
        changed = False
        while self.deadline_s is not None and now_s >= self.deadline_s:
            self.deadline_s = None
            if self.state == "watch":
                changed |= self.feed("floor_passed", now_s, why="observed without a relapse")
            elif self.state == "held":
                changed |= self.feed("decayed", now_s, why="healthy again")
        return changed

    def reuse_at_s(self, now_s: float) -> float:
        """When the penalty will have decayed to `reuse`; `now_s` when it has, or when it never suppressed."""
        penalty = self.penalty_now(now_s)
        if not self.suppressed or penalty <= self.damping.reuse:
            return now_s
        return now_s + self.damping.half_life_s * math.log2(penalty / self.damping.reuse)

    def _fail(self, before: State, now_s: float) -> None:
        self._before = before, self.penalty, self.penalty_at_s, self.suppressed, self.relapses
        if before == "unknown":  # it was never seen up: nothing has failed under us
            return
        if before == "up":
            soon = now_s - self.since_s < self.damping.forget_s
            self.relapses = self.relapses + 1 if soon and self.penalty > 0 else 0
        damping = self.damping
        self.penalty = min(self.penalty_now(now_s) + damping.penalty, damping.ceiling)
        self.penalty_at_s = now_s
        self.suppressed |= self.penalty >= damping.suppress

    def _next_deadline(self, now_s: float) -> float | None:
        if self.state == "watch":
            return now_s + self.observe_s()
        if self.state == "held":
            return self.reuse_at_s(now_s)
        if self.state == "up":
            self.suppressed = False
        return None
