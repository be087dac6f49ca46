"""Moving a running program's queue pair to another address: what two daemons say to one another, and do. Pure.

Both ends stop their send queues and wait until these are empty; both take the new address; both go on. One end alone
kills the connection: packets from an address that the other end does not know are dropped, and what waits for their
answers gives up (tried on soft-RoCE). So this is a commit in two phases (Gray, Notes on Data Base Operating Systems,
1978) with presumed abort: the end that asked decides, once, when both ends have the new address; whoever does not know
a move answers that it goes back.

    asker                                asked
      stop, ASK ------------------------>  stop
      drained   <----------------- DRAINED   drained
      address, ADDRESS ----------------->  address
      addressed <--------------- ADDRESSED   in doubt: it may neither go on nor back by itself
      decide (written down), GO -------->  resume
      resume

Until the asker has decided, anything that fails or takes too long means back, on both ends, and nothing is lost: the
queue pair goes on with its old address. An end in doubt asks again and again; when nobody answers for `doubt_s`, it
goes back, and says so: a program that stands for ever is worse. Words may be lost, repeated, or overtake one another.
"""

from __future__ import annotations

import math
from typing import Final, Literal

import msgspec

Role = Literal["asker", "asked"]
Kind = Literal["ask", "drained", "address", "addressed", "go", "back"]
Work = Literal["stop", "address", "decide", "resume", "back"]
State = Literal["new", "stopping", "drained", "addressing", "addressed", "deciding", "resuming", "returning", "ended"]
Outcome = Literal["moved", "kept"]

TABLE: Final[dict[tuple[Role, State], str]] = {
    ("asker", "new"): "begin: stop",
    ("asker", "stopping"): "own stop done: drained",
    ("asker", "drained"): "DRAINED heard: address",
    ("asker", "addressing"): "own address done: addressed",
    ("asker", "addressed"): "ADDRESSED heard: decide",
    ("asker", "deciding"): "own decision written down: GO, resume",
    ("asker", "resuming"): "own resume done: moved",
    ("asked", "new"): "ASK heard: stop",
    ("asked", "stopping"): "own stop done: drained",
    ("asked", "drained"): "ADDRESS heard: address",
    ("asked", "addressing"): "own address done: addressed, in doubt",
    ("asked", "addressed"): "GO heard: resume; BACK heard: back",
    ("asked", "resuming"): "own resume done: moved",
}
"""What leads on from each state. Until the decision a failure, BACK or the end of patience leads back instead."""


class Do(msgspec.Struct, frozen=True):
    """Carry this out on the queue pair. `stop` is done when nothing is outstanding; `back` takes the old address again,
    if it was changed, and goes on; `decide` writes down, where it outlives the daemon, that there is no way back."""

    work: Work


class Say(msgspec.Struct, frozen=True):
    """A word to the peer's daemon."""

    kind: Kind


class Ended(msgspec.Struct, frozen=True):
    """It is over; `why` in words."""

    outcome: Outcome
    why: str


Command = Do | Say | Ended


class Patience(msgspec.Struct, frozen=True):
    """`whole_s`: until the decision; must be well below the time after which the program's own timeouts strike.
    `again_s`: after which an unanswered word is said again. `doubt_s`: how long to wait for the other's decision."""

    whole_s: float = 1.0
    again_s: float = 0.05
    doubt_s: float = 30.0


class Move:
    """One end. The commands of each call are to be carried out in their order; `Do` is answered by `done`."""

    def __init__(self, role: Role, now_s: float, patience: Patience | None = None) -> None:
        self.role = role
        self.state: State = "new"
        self.ended: Ended | None = None
        self._patience = patience or Patience()
        self._until_s = now_s + self._patience.whole_s
        self._again_s = math.inf
        self._last: Say | None = None
        self._peer: set[Kind] = set()
        """What the peer has said."""
        self._why = ""

    @classmethod
    def moved(cls, role: Role) -> Move:
        """One that is over, recalled by a daemon that was started anew: it answers a peer that still asks."""
        made = cls(role, 0.0)
        made.state, made.ended = "ended", Ended("moved", "both ends have the new address")
        return made

    @property
    def in_doubt(self) -> bool:
        """It has the new address and waits for the other's decision."""
        return self.role == "asked" and self.state == "addressed"

    def begin(self, now_s: float) -> list[Command]:
        """The asker begins."""
        if self.role != "asker" or self.state != "new":
            raise RuntimeError(f"{self.role} in state {self.state} does not begin")
        self.state = "stopping"
        return [self._say("ask", now_s), Do("stop")]

    def heard(self, kind: Kind, now_s: float) -> list[Command]:
        """A word of the peer's, maybe not the first time."""
        if self.ended is not None:
            return self._answer_late(kind)
        if (self.role == "asker" and kind in ("drained", "addressed")) or (
            self.role == "asked" and kind in ("ask", "address", "go")
        ):
            self._peer.add(kind)
        elif kind == "back":
            return self._back("the peer goes back", now_s) if self._may_go_back(told=True) else []
        return self._on(now_s)

    def done(self, work: Work, now_s: float, *, ok: bool, why: str = "") -> list[Command]:
        """What a `Do` asked for has ended."""
        expected: dict[State, Work] = {
            "stopping": "stop", "addressing": "address", "deciding": "decide", "resuming": "resume",
            "returning": "back",
        }  # fmt: skip
        if self.ended is not None or expected.get(self.state) != work:
            return []
        if work == "back":
            return self._end("kept", self._why if ok else f"{self._why}; and going back failed: {why}")
        if work == "resume":
            # The address is the new one on both ends whether or not this worked: there is no way back any more.
            return self._end("moved", "both ends have the new address" if ok else f"going on failed: {why}")
        if not ok:
            return self._back(f"{work} failed: {why}", now_s)
        if work == "decide":
            self.state = "resuming"
            return [self._say("go", now_s), Do("resume")]
        self.state = "drained" if work == "stop" else "addressed"
        told: list[Command] = []
        if self.role == "asked":
            told = [self._say("drained" if work == "stop" else "addressed", now_s)]
            if work == "address":
                self._until_s = now_s + self._patience.doubt_s
        return told + self._on(now_s)

    def time_is(self, now_s: float) -> list[Command]:
        """To be called at `next_deadline_s()`."""
        if self.ended is not None:
            return []
        if now_s >= self._until_s and self._may_go_back(told=False, late=True):
            return self._back("nobody said what was decided" if self.in_doubt else f"{self.state} for too long", now_s)
        if now_s >= self._again_s and self._last is not None:
            return [self._say(self._last.kind, now_s)]
        return []

    def give_up(self, now_s: float) -> list[Command]:
        """This daemon ends: the asker goes back while it may. The asked in doubt cannot know; nothing is said."""
        return self._back("the daemon ends", now_s) if self.role == "asker" and self._may_go_back(told=False) else []

    def next_deadline_s(self) -> float | None:
        if self.ended is not None:
            return None
        until_s = self._until_s if self._may_go_back(told=False, late=True) else math.inf
        found = min(until_s, self._again_s)
        return None if found == math.inf else found

    # inside

    def _on(self, now_s: float) -> list[Command]:
        """Whatever the present state and what was heard allow."""
        if self.role == "asker":
            if self.state == "drained" and "drained" in self._peer:
                self.state = "addressing"
                return [self._say("address", now_s), Do("address")]
            if self.state == "addressed" and "addressed" in self._peer:
                self.state, self._last, self._again_s = "deciding", None, math.inf
                return [Do("decide")]
            return []
        if self.state == "new" and "ask" in self._peer:
            self.state = "stopping"
            return [Do("stop")]
        if self.state == "drained" and "address" in self._peer:
            self.state, self._last, self._again_s = "addressing", None, math.inf
            return [Do("address")]
        if self.state == "addressed" and "go" in self._peer:
            self.state, self._last, self._again_s = "resuming", None, math.inf
            return [Do("resume")]
        return []

    def _may_go_back(self, *, told: bool, late: bool = False) -> bool:
        """Nobody goes back after the decision. In doubt only the asker's word, or the end of patience, leads back."""
        if self.state in ("deciding", "resuming", "returning"):
            return False
        if self.in_doubt:
            return told or late
        return True

    def _back(self, why: str, now_s: float) -> list[Command]:
        fresh = self.state == "new"
        self.state, self._why = "returning", why
        word = self._say("back", now_s)
        self._last, self._again_s = None, math.inf
        if fresh:
            return [word, *self._end("kept", why)]
        return [word, Do("back")]

    def _say(self, kind: Kind, now_s: float) -> Say:
        self._last, self._again_s = Say(kind), now_s + self._patience.again_s
        return self._last

    def _answer_late(self, kind: Kind) -> list[Command]:
        """A peer that still asks is told how it ended."""
        assert self.ended is not None
        if self.role == "asker" and kind in ("drained", "addressed"):
            return [Say("go" if self.ended.outcome == "moved" else "back")]
        if self.role == "asked" and kind in ("ask", "address") and self.ended.outcome == "kept":
            return [Say("back")]
        return []

    def _end(self, outcome: Outcome, why: str) -> list[Command]:
        self.state, self.ended = "ended", Ended(outcome, why)
        return [self.ended]


def answer_unknown(kind: Kind) -> list[Command]:
    """What a daemon says that knows nothing of a move, having been started anew: it did not decide to go on."""
    return [Say("back")] if kind in ("drained", "addressed", "address") else []
