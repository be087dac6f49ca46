"""What each queue pair has sent from one look to the next, and how often it went back to send again. Pure.

A requester that misses an answer, or is told of a gap, goes back and repeats everything from there on (InfiniBand
Architecture Specification, volume 1, 9.7.5). That is one loss seen, however much is repeated; it may have been the
answer that was lost, and the path to the peer was well. A receiver that was not ready makes it go back as well, which
says nothing of any path: what was counted meanwhile is unknown. So is everything that does not add up: a counter that
has gone back, a number that may have gone round, a queue pair that is connected anew.

Who tells of it, best first:

1. a counter that somebody has bound to this queue pair alone (`rdma.nldev.Bound`): mlx5. Not run on hardware yet;
2. soft-RoCE's counter of its device, where only this queue pair can have made it count;
3. soft-RoCE's packet number, where a look meets it while it is back. Other looks miss it: there may have been more.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Mapping
from typing import Final, Literal

import msgspec

from rdma.nldev import Bound, QueuePair
from rdma.roce.psn import JUMP, ROUND
from rdma.sysfs import Unknown, Value

MOST_PER_S: Final[Mapping[str, float]] = {"rxe": 4e6}
"""Packets that one queue pair sends at most, by the family of its driver: software does not come near this."""
OF_HARDWARE_PER_S: Final = 6.4e7
"""800 Gbit/s of packets of 1.5 kB."""
RETRIES: Final[Mapping[str, tuple[str, ...]]] = {"mlx5": ("packet_seq_err", "local_ack_timeout_err")}
"""Family -> bound counters of negative answers that name a gap, and of answers that did not come in time. Of these
a lost response to a READ (implied_nak_seq_err) is none: that is the peer's direction."""
NOT_READY: Final = "rnr_nak_retry_err"
ASKED_S: Final = 1.0
"""Bound counters are asked for no more often."""
LATELY_S: Final = 10.0
REQUESTERS: Final = frozenset({"RC", "XRC_INI"})

By = Literal["counter", "device", "number", ""]


class Went(msgspec.Struct, frozen=True):
    """Of one queue pair from `since_s` on. `sent`: packets by which its number has advanced; `again`: how often it went
    back to send again, None: not known; `least`: there may have been more; `by`: who told."""

    since_s: float
    sent: int | None
    again: int | None = None
    least: bool = False
    by: By = ""


class Totals(msgspec.Struct, frozen=True):
    """What a soft-RoCE device has counted: how often its queue pairs went back, and were told that their peer was not
    ready (`completer_retry_err` and `rcvd_rnr_err`, drivers/infiniband/sw/rxe/rxe_comp.c)."""

    retries: Value
    not_ready: Value


class Sends(msgspec.Struct, frozen=True):
    """What an RDMA flow has sent from `since_s` on, some of it again: for whoever knows its way. `own`, `peer`:
    addresses; `to`: the number of the peer's queue pair."""

    name: str
    own: str
    peer: str
    to: int
    since_s: float
    sent: int
    again: int
    least: bool


def advance(before: int | None, after: int | None, seconds: float, most_per_s: float) -> int | None:
    """By how much a packet number (24 bits) has moved on in so long, below 0 when it went back. None: not known, or too
    far for this queue pair: it may have gone round, or begun anew."""
    most = seconds * most_per_s
    if before is None or after is None or most >= ROUND - JUMP:
        return None
    step = (after - before) % ROUND
    if step <= most:
        return step
    return step - ROUND if step >= ROUND - JUMP else None


class Sum:
    """Of one queue pair, over several looks. What is known exactly stays so, whatever is not known beside it."""

    __slots__ = ("again", "least", "least_sent", "sent", "since_s")

    def __init__(self) -> None:
        self.since_s = math.inf
        self.sent = self.again = self.least_sent = self.least = 0

    def add(self, went: Went) -> None:
        if went.sent is None:
            return
        self.since_s = min(self.since_s, went.since_s)
        if went.again is not None and not went.least:
            self.sent, self.again = self.sent + went.sent, self.again + went.again
        else:
            self.least_sent, self.least = self.least_sent + went.sent, self.least + (went.again or 0)

    def told(self) -> tuple[int, int, bool] | None:
        """(sent, sent again, whether the latter may be more). None: nothing is known of what was sent again. Where only
        some was seen, by chance, what was sent meanwhile counts, too; of a time in which none was seen it does not:
        that would be a word for a path of which nothing is known."""
        sent, again = self.sent, self.again
        if self.least:
            sent, again = sent + self.least_sent, again + self.least
        return (max(sent, again), again, self.least > 0) if sent or again else None


class Lately:
    """How often one queue pair was seen to go back in the last LATELY_S, for people."""

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: deque[tuple[float, Went]] = deque()

    def add(self, went: Went | None, now_s: float) -> None:
        """After each look; None: it told nothing."""
        if went is not None and went.again is not None:
            self._seen.append((now_s, went))
        while self._seen and self._seen[0][0] <= now_s - LATELY_S:
            self._seen.popleft()

    def told(self) -> tuple[int | None, bool, By]:
        """How often, whether that is the least, who told last. None: not known."""
        if not self._seen:
            return None, False, ""
        every = [went for _, went in self._seen]
        return sum(went.again or 0 for went in every), any(went.least for went in every), every[-1].by


class _Counter(msgspec.Struct):
    """One that is bound to a queue pair, as it was at `at_s`; `sent` since then."""

    number: int
    counted: Mapping[str, int]
    at_s: float
    sent: int | None = 0


class _Before(msgspec.Struct):
    qp: QueuePair
    at_s: float
    counter: _Counter | None = None


Number = tuple[str, int]
"""Device and number of a queue pair."""


class Resent:
    """Used by one thread. `look` after each look at the kernel's list."""

    def __init__(self) -> None:
        self._before: dict[Number, _Before] = {}
        self._only: dict[str, Number] = {}
        self._totals: dict[str, Totals] = {}

    def look(
        self,
        now_s: float,
        queue_pairs: Mapping[Number, QueuePair],
        family: Mapping[str, str],
        totals: Mapping[str, Totals],
        only: Mapping[str, Number],
        bound: Mapping[str, Collection[Bound]],
    ) -> dict[Number, Went]:
        """`queue_pairs`: those of programs, with `pid`; `family`, `totals`: of their devices, the latter of soft-RoCE;
        `only`: device -> the one that can have sent anything again (`only_one`); `bound`: of the devices that were
        asked just now."""
        found: dict[Number, Went] = {}
        before, self._before = self._before, {}
        counters = {device: _by_pair(some) for device, some in bound.items()}
        grown = {device: _grown(self._totals.get(device), now) for device, now in totals.items()}
        for at, qp in queue_pairs.items():
            was, of = before.get(at), family.get(qp.device, "")
            one = self._before[at] = _Before(qp, now_s)
            if was is None or not _same(was.qp, qp):
                was = None
            elif of in RETRIES:
                one.counter = was.counter
            step = None
            if was is not None:
                most = MOST_PER_S.get(of, OF_HARDWARE_PER_S)
                step = advance(was.qp.sq_psn, qp.sq_psn, now_s - was.at_s, most)
            if of in RETRIES:
                went = _counted(one, step, counters.get(qp.device), RETRIES[of], now_s)
            elif was is None:
                went = None
            elif of == "rxe":
                alone = only.get(qp.device) == self._only.get(qp.device) == at
                went = _of_soft(was.at_s, step, grown.get(qp.device), alone=alone)
            else:
                went = Went(was.at_s, step) if step is not None and step >= 0 else None
            if went is not None:
                found[at] = went
        self._only, self._totals = dict(only), dict(totals)
        return found


def only_one(listed: Collection[QueuePair], idle: Collection[Number]) -> dict[str, Number]:
    """Device -> its only queue pair that can have sent again: all others merely answer, or have nothing posted
    (`idle`). `listed`: all of these devices, the kernel's own included."""
    may: dict[str, list[Number]] = {}
    for qp in listed:
        at = qp.device, qp.lqpn
        if qp.type in REQUESTERS and qp.state in ("RTS", "SQD") and at not in idle:
            may.setdefault(qp.device, []).append(at)
    return {device: some[0] for device, some in may.items() if len(some) == 1}


def _same(before: QueuePair, now: QueuePair) -> bool:
    """The same connection of the same program, and running all the while."""
    return (before.pid, before.rqpn, before.state) == (now.pid, now.rqpn, "RTS") == (before.pid, before.rqpn, now.state)


def _grown(before: Totals | None, now: Totals) -> int | None:
    """How often a device's queue pairs went back meanwhile; None: not known, or for another reason than a loss."""
    if before is None:
        return None
    values = before.retries, now.retries, before.not_ready, now.not_ready
    if any(isinstance(value, Unknown) for value in values):
        return None
    was, counted, not_ready, also = values
    return counted - was if also == not_ready and counted >= was else None  # type: ignore[operator]


def _of_soft(since_s: float, step: int | None, grown: int | None, *, alone: bool) -> Went | None:
    """`grown`: of the whole device."""
    if step is None:
        return None
    sent = max(0, step)
    if grown is None:
        return Went(since_s, sent)
    if alone:
        return Went(since_s, sent, grown, by="device")
    if not grown:  # nobody did
        return Went(since_s, sent, 0, by="device")
    return Went(since_s, sent, 1, least=True, by="number") if step < 0 else Went(since_s, sent)


def _by_pair(bound: Collection[Bound]) -> dict[int, list[Bound]]:
    """The counters of each queue pair."""
    found: dict[int, list[Bound]] = {}
    for counter in bound:
        for lqpn in counter.queue_pairs:
            found.setdefault(lqpn, []).append(counter)
    return found


def _counted(
    one: _Before, step: int | None, bound: Mapping[int, list[Bound]] | None, names: tuple[str, ...], now_s: float
) -> Went | None:
    """By the counter that is bound to it alone. What several share, as those of one program do in automatic mode, may
    be any of them's."""
    known = one.counter
    if known is not None:
        known.sent = None if known.sent is None or step is None else known.sent + max(0, step)
    if bound is None:
        return None
    mine = bound.get(one.qp.lqpn, [])
    counter = mine[0] if len(mine) == 1 and len(mine[0].queue_pairs) == 1 else None
    one.counter = _Counter(counter.number, counter.counted, now_s) if counter is not None else None
    if counter is None or known is None or known.number != counter.number:
        return None
    was, now = known.counted, counter.counted
    needed = (*names, NOT_READY)
    if not all(name in was and name in now for name in needed) or any(now.get(name, 0) < was[name] for name in was):
        return None  # a number that is used again begins at 0
    again = sum(now[name] - was[name] for name in names)
    if now[NOT_READY] != was[NOT_READY]:
        return Went(known.at_s, known.sent)
    return Went(known.at_s, known.sent, again, by="counter")
