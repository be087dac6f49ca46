"""All moves of one daemon: how two daemons agree on a new pair of addresses, prove it, and then move. Pure.

Nothing is stopped before the new path has answered. The asker names its other addresses over the present path; the
asked picks a pair and offers it; the asker checks that pair with a few words over the new path, there and back; only
then does the move itself begin (`rdma.moving`).

    asker   PREPARE ->          <- OFFER or REFUSE        over the present pair of addresses
            CHECK (3) ->        <- CHECKED (3)            over the new pair
            ASK ... GO                                    over both: whichever works
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, Protocol

import msgspec

from rdma.moving import Do as MoveDo
from rdma.moving import Move, Outcome, Patience, Say, Work, answer_unknown
from rdma.words import MOST_GIDS, Kind, Word

CHECKS: Final = 3
OFFER_S: Final = 2.0
"""An offer that nobody takes up is forgotten."""
REMEMBER_S: Final = 60.0
"""How a move ended is told for so long to a peer that still asks."""
REST_S: Final = 5.0
"""A queue pair that was stopped for a peer, and went back, is not stopped for one again sooner."""
MOST_MOVES: Final = 64
_MOVING: Final = frozenset({"ask", "drained", "address", "addressed", "go", "back"})


class Ends(msgspec.Struct, frozen=True):
    """A flow as one of its hosts sees it: RDMA device, queue pair numbers, addresses in use. `name`: for people."""

    name: str
    device: str
    qpn: int
    peer_qpn: int
    own: str
    peer: str


class Pair(msgspec.Struct, frozen=True):
    """Addresses of both hosts."""

    own: str
    peer: str


class Send(msgspec.Struct, frozen=True):
    """A word from an own address to one of the peer's daemon."""

    own: str
    peer: str
    word: Word


class Do(msgspec.Struct, frozen=True):
    """A step on the queue pair; `done` is to be called with its end."""

    move: int
    nonce: int
    work: Work
    ends: Ends
    to: Pair


class Told(msgspec.Struct, frozen=True):
    """A move is over. `began`: it had come so far that the queue pair was touched. `took_s`: since that moment."""

    move: int
    ends: Ends
    outcome: Outcome
    why: str
    to: Pair | None
    asked: bool
    began: bool
    took_s: float


Out = Send | Do | Told


class Ground(Protocol):
    """What the host knows. Answers at once."""

    def find(self, own: str, peer: str, qpn: int, peer_qpn: int) -> Ends | str:
        """The flow, or why it cannot be moved."""

    def pair(self, ends: Ends, offered: tuple[str, ...]) -> Pair | str:
        """A new pair for it, of an own address and one of those offered, or why there is none."""

    def refused(self, to: Pair) -> str:
        """Empty when packets between these may be sent over a path that this host trusts, else why not."""


@dataclass(slots=True)
class _One:
    ends: Ends
    asked: bool
    until_s: float
    again_s: float = float("inf")
    last: list[Send] = field(default_factory=list)
    """Unanswered words, said again until they are."""
    nonce: int = 0
    offered: tuple[str, ...] = ()
    to: Pair | None = None
    checked: set[int] = field(default_factory=set)
    """Steps of the peer's checks that were heard."""
    machine: Move | None = None
    began_s: float = 0.0
    over: bool = False

    @property
    def present(self) -> Pair:
        return Pair(self.ends.own, self.ends.peer)


class Desk:
    """`new_number`: draws 63 bits at random. All times monotonic seconds."""

    def __init__(self, ground: Ground, new_number: Callable[[], int], patience: Patience | None = None) -> None:
        self._ground = ground
        self._new_number = new_number
        self._patience = patience or Patience()
        self._moves: dict[int, _One] = {}
        self._rest: dict[tuple[str, int], float] = {}
        """Device and number of queue pairs that went back after a peer had asked -> until when they are left alone."""

    @property
    def busy(self) -> bool:
        return any(not one.over for one in self._moves.values())

    @property
    def in_doubt(self) -> bool:
        return any(one.machine is not None and one.machine.in_doubt for one in self._moves.values() if not one.over)

    def recall(self, number: int, nonce: int, ends: Ends, to: Pair, now_s: float) -> None:
        """A move that an earlier run decided upon: a peer that still asks is told."""
        one = _One(ends, False, now_s + REMEMBER_S, nonce=nonce, to=to, machine=Move.moved("asker"), over=True)
        self._moves[number] = one

    def move(self, ends: Ends, own: Iterable[str], now_s: float) -> tuple[int, list[Out]]:
        """Begin as the asker. `own`: this host's other addresses that would do. Its number, and what is to be done."""
        number = self._new_number()
        if why := self._busy_with(ends, now_s):
            return number, [Told(number, ends, "kept", why, None, False, False, 0.0)]
        gids = tuple(own)[:MOST_GIDS]
        one = self._moves[number] = _One(ends, False, now_s + self._patience.whole_s, offered=gids)
        word = Word("prepare", number, asker_qpn=ends.qpn, asked_qpn=ends.peer_qpn, gids=gids)
        return number, self._say(one, [Send(ends.own, ends.peer, word)], now_s)

    def heard(self, own: str, peer: str, word: Word, now_s: float) -> list[Out]:
        """A word that came from `peer` to `own`, its signature being good. What fits nothing is no harm."""
        one = self._moves.get(word.move)
        if word.kind == "prepare":
            return self._prepare(own, peer, word, one, now_s)
        if one is None:
            return [Send(own, peer, Word(say.kind, word.move, word.nonce)) for say in self._unknown(word.kind)]
        if not one.asked and one.machine is None and word.kind in ("offer", "refuse", "checked") and not one.over:
            return self._answered(number=word.move, one=one, own=own, peer=peer, word=word, now_s=now_s)
        if one.to is None or Pair(own, peer) not in (one.to, one.present) or word.nonce != one.nonce:
            return []
        if one.asked and word.kind == "check" and not one.over:
            one.checked.add(word.step)
            return [Send(own, peer, Word("checked", word.move, word.nonce, step=word.step))]
        if word.kind in _MOVING:
            return self._moving(word.move, one, word.kind, now_s)
        return []

    def done(self, number: int, work: Work, now_s: float, *, ok: bool, why: str = "") -> list[Out]:
        """A step that `Do` asked for has ended."""
        one = self._moves.get(number)
        if one is None or one.machine is None:
            return []
        return self._carry(number, one, one.machine.done(work, now_s, ok=ok, why=why), now_s)

    def time_is(self, now_s: float) -> list[Out]:
        """To be called at `next_deadline_s()`."""
        outs: list[Out] = []
        for number, one in list(self._moves.items()):
            if one.machine is not None and not one.over:
                outs += self._carry(number, one, one.machine.time_is(now_s), now_s)
            elif one.until_s <= now_s:
                if one.over or one.asked:
                    del self._moves[number]
                else:
                    outs += self._end(number, one, "kept", self._why_late(one), now_s)
            elif one.again_s <= now_s:
                one.again_s = now_s + self._patience.again_s
                outs += one.last
        return outs

    def give_up(self, now_s: float) -> list[Send]:
        """This daemon ends: what is to be said to peers that would wait for it. The queue pairs are the caller's."""
        outs = [
            out
            for number, one in self._moves.items()
            if one.machine is not None and not one.over
            for out in self._carry(number, one, one.machine.give_up(now_s), now_s)
        ]
        return [out for out in outs if isinstance(out, Send)]

    def next_deadline_s(self) -> float | None:
        times = [
            one.machine.next_deadline_s() if one.machine is not None and not one.over else min(one.until_s, one.again_s)
            for one in self._moves.values()
        ]
        return min((at_s for at_s in times if at_s is not None), default=None)

    # the asked
    def _prepare(self, own: str, peer: str, word: Word, one: _One | None, now_s: float) -> list[Out]:
        if one is not None:  # asked again: the same answer
            return list(one.last) if one.asked and one.machine is None else []
        found = self._ground.find(own, peer, word.asked_qpn, word.asker_qpn)
        if isinstance(found, str) or (why := self._busy_with(found, now_s)):
            return [_refusal(own, peer, word, found if isinstance(found, str) else why)]
        to = self._ground.pair(found, word.gids)
        if isinstance(to, str):
            return [_refusal(own, peer, word, to)]
        nonce = self._new_number()
        offer = Send(own, peer, Word("offer", word.move, nonce, gids=(to.own, to.peer)))
        self._moves[word.move] = _One(found, True, now_s + OFFER_S, last=[offer], nonce=nonce, to=to)
        return [offer]

    def _busy_with(self, ends: Ends, now_s: float) -> str:
        """Why no move of it can begin now. An offer that was not taken up is no obstacle: it is withdrawn."""
        which = ends.device, ends.qpn
        for number, one in list(self._moves.items()):
            if (one.ends.device, one.ends.qpn) == which and not one.over:
                if not one.asked or one.machine is not None:
                    return "it is being moved already"
                del self._moves[number]
        if self._rest.get(which, now_s) > now_s:
            return "it was stopped for nothing a moment ago"
        if sum(not one.over for one in self._moves.values()) >= MOST_MOVES:
            return f"{MOST_MOVES} moves are under way already"
        return ""

    # the asker
    def _answered(self, *, number: int, one: _One, own: str, peer: str, word: Word, now_s: float) -> list[Out]:
        if one.to is None and Pair(own, peer) == one.present:
            if word.kind == "refuse":
                return self._end(number, one, "kept", f"the peer refuses: {word.why}", now_s)
            if word.kind == "offer" and len(word.gids) == 2 and word.gids[1] in one.offered:
                to = Pair(own=word.gids[1], peer=word.gids[0])
                if why := self._ground.refused(to):
                    return self._end(number, one, "kept", why, now_s)
                one.to, one.nonce, one.until_s = to, word.nonce, now_s + self._patience.whole_s
                checks = [Send(to.own, to.peer, Word("check", number, one.nonce, step=n)) for n in range(CHECKS)]
                return self._say(one, checks, now_s)
        elif word.kind == "checked" and one.to is not None and Pair(own, peer) == one.to:
            one.last = [send for send in one.last if send.word.step != word.step]
            if word.nonce == one.nonce and not one.last:
                one.machine, one.began_s = Move("asker", now_s, self._patience), now_s
                return self._carry(number, one, one.machine.begin(now_s), now_s)
        return []

    def _why_late(self, one: _One) -> str:
        if one.to is None:
            return "the peer's daemon does not answer"
        return f"the new path, {one.to.own} to {one.to.peer}, does not answer"

    # both
    def _moving(self, number: int, one: _One, kind: Kind, now_s: float) -> list[Out]:
        if one.machine is None:
            if not one.asked or kind != "ask" or one.over or len(one.checked) < CHECKS:
                return []
            one.machine, one.began_s, one.last = Move("asked", now_s, self._patience), now_s, []
        assert kind in _MOVING
        return self._carry(number, one, one.machine.heard(kind, now_s), now_s)  # type: ignore[arg-type]

    def _carry(self, number: int, one: _One, commands: Iterable[object], now_s: float) -> list[Out]:
        assert one.to is not None
        outs: list[Out] = []
        for command in commands:
            if isinstance(command, Say):
                word = Word(command.kind, number, one.nonce)
                outs += [Send(pair.own, pair.peer, word) for pair in (one.to, one.present)]
            elif isinstance(command, MoveDo):
                outs.append(Do(number, one.nonce, command.work, one.ends, one.to))
            else:
                assert one.machine is not None
                assert one.machine.ended is not None
                outs += self._end(number, one, one.machine.ended.outcome, one.machine.ended.why, now_s)
        return outs

    def _end(self, number: int, one: _One, outcome: Outcome, why: str, now_s: float) -> list[Out]:
        one.over, one.last, one.again_s, one.until_s = True, [], float("inf"), now_s + REMEMBER_S
        began = one.machine is not None
        if began and one.asked and outcome == "kept":
            self._rest = {which: until_s for which, until_s in self._rest.items() if until_s > now_s}
            self._rest[one.ends.device, one.ends.qpn] = now_s + REST_S
        took_s = now_s - one.began_s if began else 0.0
        return [Told(number, one.ends, outcome, why, one.to, one.asked, began, took_s)]

    def _say(self, one: _One, sends: list[Send], now_s: float) -> list[Out]:
        one.last, one.again_s = sends, now_s + self._patience.again_s
        return list(sends)

    def _unknown(self, kind: Kind) -> list[Say]:
        if kind not in _MOVING:
            return []
        return [one for one in answer_unknown(kind) if isinstance(one, Say)]  # type: ignore[arg-type]


def _refusal(own: str, peer: str, word: Word, why: str) -> Send:
    return Send(own, peer, Word("refuse", word.move, why=why[:200]))
