"""The pace of a job, seen from outside by one host: who opens a step, and who lets others wait. Pure: looks in,
claims out.

In a collective nobody gets on without the others, so all ranks of a job are equally slow and only one is to blame. What
tells it apart is how a silence ends. After computing, a rank opens the next step by writing to its neighbours. A rank
that computes longer hears its neighbours open and is silent itself: it is *late*, by the time from their opening to its
own first write. Its neighbours see the same from the other side: they have opened towards it and hear nothing: they
*await* it. Ranks further on exchange what they can and fall silent together, so neither owes the other anything. Both
sides measure with one clock, their own. (Comparing who waits is the idea of MegaScale, NSDI 2024, and of Lin et al.,
Understanding Stragglers in Large Model Training Using What-if Analysis, OSDI 2025, there from traces inside the job.)

A pair of hosts is `idle` after `quiet` without a byte either way; then the first to write has opened (`awaited`) or is
owed an answer (`owed`); after the answer the pair is `moving` until it falls silent:

    idle   --this host writes-->  awaited  --the peer writes-->  moving     a unit of `awaits`, late by the silence
    idle   --the peer writes-->   owed     --this host writes--> moving     part of a unit of `late`
    moving --silence-->           idle

This host's own write counts wherever it goes: who has opened towards anybody has come. A write while another pair moves
opens nothing (it hands on what has just come). A step (unit) of this host ends with its first write after a silence of
its own. All times are at least what is claimed: what happened between two looks is taken to have favoured the accused,
so a daemon that looks late sees less and never more.

*Slow* is another thing: data towards a peer stands in this host's send queue (two segments or more; where one of two
looks sees it, for half of the time between them). *Unread* if meanwhile the peer's window was closed
(`tcpi_rwnd_limited`): its program does not read. A pair whose segments were sent again says nothing of its peer's
arrival.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable
from typing import Final, Literal, Protocol

from linkpass.core.events import PaceClaim, PaceKind
from linkpass.core.settings import Stragglers

QUIET_LOOKS: Final = 2
"""A silence is one of so many intervals between looks, at least."""
PERIODS: Final = 9
"""Steps whose median is the period; before half of them are known nothing counts against anybody."""
LOST_PERIODS: Final = 6
BLIND_S: Final = 1.0
"""Looks further apart than this see nothing of what was between."""
OWN_RATIO: Final = 0.5
"""Of the limit for others: a host admits sooner than others accuse, since its word about itself harms nobody, and it
knows its own first write to one look only."""
MOST_CLAIMS: Final = 6
FADE: Final = 0.25
"""Weight of the newest hit in `lag_s`."""

PairState = Literal["idle", "awaited", "owed", "moving"]


class SocketSample(Protocol):
    """A connection at one look. Bytes are of its whole life; `since_*`: age of the newest segment with data."""

    @property
    def cookie(self) -> int: ...
    @property
    def peer(self) -> str: ...
    @property
    def written_bytes(self) -> int: ...
    @property
    def received_bytes(self) -> int: ...
    @property
    def queued_bytes(self) -> int: ...
    @property
    def segment_bytes(self) -> int: ...
    @property
    def since_sent_s(self) -> float: ...
    @property
    def since_received_s(self) -> float: ...
    @property
    def retransmitted(self) -> int: ...
    @property
    def blocked_s(self) -> float: ...


class Tally:
    """Steps, and those that count against somebody."""

    __slots__ = ("hits", "lag_s", "units")

    def __init__(self) -> None:
        self.units = self.hits = 0
        self.lag_s = 0.0

    def add(self, lag_s: float, limit_s: float) -> None:
        self.units += 1
        if lag_s >= limit_s:
            self.hits += 1
            self.lag_s = lag_s if self.hits == 1 else self.lag_s + FADE * (lag_s - self.lag_s)


class Pair:
    """This host and one peer: all their connections together."""

    __slots__ = (
        "again", "again_at", "blocked_s", "ever_got", "ever_wrote", "got_s", "last_s", "opened_s", "queued",
        "queued_s", "silent_s", "state", "tallies", "wrote_s",
    )  # fmt: skip

    def __init__(self, now_s: float) -> None:
        self.state: PairState = "moving"
        self.last_s = now_s
        self.opened_s = now_s
        self.got_s: float | None = None
        """Of this look: when at the latest something came; None: nothing did."""
        self.wrote_s: float | None = None
        self.ever_got = self.ever_wrote = False
        self.silent_s = 0.0
        """How long it had been silent when it was last idle."""
        self.queued = False
        self.queued_s = self.blocked_s = 0.0
        self.again = self.again_at = 0
        """Segments sent again, now and when this host opened."""
        self.tallies: dict[PaceKind, Tally] = {"awaits": Tally(), "slow": Tally(), "unread": Tally()}

    @property
    def moves(self) -> bool:
        return self.got_s is not None or self.wrote_s is not None

    def answered(self, lag_s: float, limit_s: float, step_s: float) -> None:
        """The pair moves again, and the peer came so much later than this host; 0: no later. `step_s`: after a shorter
        silence that was a pause, and no step."""
        if self.ever_got and (lag_s >= limit_s or self.silent_s >= step_s):
            self.tallies["awaits"].add(lag_s, limit_s)


class PaceMeter:
    """The pairs of one host. `look` takes all connections of the job at one moment."""

    def __init__(self, settings: Stragglers) -> None:
        self._settings = settings
        self._pairs: dict[str, Pair] = {}
        self._before: dict[int, SocketSample] = {}
        self._look_s: float | None = None
        self._wrote_s = float("-inf")
        self._unit_s: float | None = None
        self._periods: deque[float] = deque(maxlen=PERIODS)
        self._late = Tally()

    @property
    def units(self) -> int:
        """Steps of this host so far."""
        return self._late.units

    @property
    def hits(self) -> int:
        """Everything that counts against anybody so far."""
        return self._late.hits + sum(t.hits for pair in self._pairs.values() for t in pair.tallies.values())

    @property
    def period_s(self) -> float | None:
        """From one step to the next; None: too few were seen."""
        return statistics.median(self._periods) if len(self._periods) > PERIODS // 2 else None

    def look(self, now_s: float, samples: Iterable[SocketSample], interval_s: float) -> None:
        """`interval_s`: between looks as planned, which bounds what silence can be seen."""
        since_s, self._look_s = self._look_s, now_s
        fresh = since_s is None or now_s - since_s > BLIND_S
        gathered = self._gather(samples, now_s if since_s is None else since_s, now_s)
        if fresh or since_s is None:
            self._begin_anew(now_s)
            return
        quiet_s = QUIET_LOOKS * max(interval_s, self._settings.interval_s)
        for pair in self._pairs.values():
            if pair.state == "moving" and since_s - pair.last_s >= quiet_s:
                pair.state = "idle"
            if pair.state == "idle":
                pair.silent_s = since_s - pair.last_s
        states = {pair.state for pair in self._pairs.values()}
        owed = [pair.opened_s for pair in self._pairs.values() if pair.state == "owed"]
        # Who opens within the look of this host's own first write may be what it has waited for (a parent in a tree).
        waited = "awaited" in states or any(p.state == "idle" and p.got_s is not None for p in gathered)
        for pair in gathered:
            if pair.got_s is not None:
                self._hear(pair, pair.got_s, since_s)
        if any(pair.wrote_s is not None for pair in gathered):
            if since_s - self._wrote_s >= max(quiet_s, self._step_s()):
                self._end_unit(max(0.0, since_s - max(owed)) if owed and not waited else 0.0, now_s)
            elif self._unit_s is not None and now_s - self._unit_s > LOST_PERIODS * (self.period_s or float("inf")):
                self._periods.clear()  # it writes on and no step ends: how long one takes is learnt anew
                self._unit_s = None
            self._wrote_s = now_s
            self._write(gathered, now_s, opening=states <= {"idle", "owed"})
        for pair in gathered:
            if pair.moves:
                pair.last_s = now_s
                if pair.state == "idle":  # both within one look
                    pair.state = "moving"
                    pair.answered(0.0, self._limit_s(), self._step_s())

    def claims(self) -> tuple[PaceClaim, ...]:
        """What there is to say, the most striking first."""
        period_s = self.period_s
        if period_s is None:
            return ()
        found = [PaceClaim("late", "", self._late.units, self._late.hits, self._late.lag_s, period_s)]
        for peer, pair in self._pairs.items():
            found += [
                PaceClaim(kind, peer, tally.units, tally.hits, tally.lag_s, period_s)
                for kind, tally in pair.tallies.items()
                if tally.hits
            ]
        return (found[0], *sorted(found[1:], key=lambda claim: -claim.hits)[: MOST_CLAIMS - 1])

    def forget(self, peers: Iterable[str]) -> None:
        """Peers with which nothing is exchanged any more."""
        for peer in peers:
            self._pairs.pop(peer, None)

    @property
    def peers(self) -> tuple[str, ...]:
        return tuple(self._pairs)

    # one look
    def _gather(self, samples: Iterable[SocketSample], since_s: float, now_s: float) -> list[Pair]:
        """What has moved since the last look, per pair. A connection that is seen for the first time has not."""
        before, self._before = self._before, {}
        pairs: dict[str, Pair] = {}
        for sample in samples:
            self._before[sample.cookie] = sample
            pair = pairs.get(sample.peer)
            if pair is None:
                pair = self._pairs.get(sample.peer)
                if pair is None:
                    pair = self._pairs[sample.peer] = Pair(now_s)
                pairs[sample.peer] = pair
                pair.got_s = pair.wrote_s = None
            known = before.get(sample.cookie)
            if known is None:
                continue
            if sample.received_bytes > known.received_bytes:
                at_s = min(now_s, max(since_s, now_s - sample.since_received_s))
                pair.got_s = at_s if pair.got_s is None else max(pair.got_s, at_s)
                pair.ever_got = True
            if sample.written_bytes > known.written_bytes:
                at_s = min(now_s, max(since_s, now_s - sample.since_sent_s))
                pair.wrote_s = at_s if pair.wrote_s is None else max(pair.wrote_s, at_s)
                pair.ever_wrote = True
            pair.again += max(0, sample.retransmitted - known.retransmitted)
            pair.blocked_s += max(0.0, sample.blocked_s - known.blocked_s)
        self._weigh_queues(pairs, now_s - since_s)
        return list(pairs.values())

    def _weigh_queues(self, pairs: dict[str, Pair], span_s: float) -> None:
        stands = {s.peer for s in self._before.values() if s.queued_bytes >= 2 * max(1, s.segment_bytes)}
        for peer, pair in pairs.items():
            pair.queued_s += span_s * (pair.queued + (peer in stands)) / 2
            pair.queued = peer in stands

    def _begin_anew(self, now_s: float) -> None:
        for pair in self._pairs.values():
            pair.state, pair.last_s = "moving", now_s
            pair.queued_s = pair.blocked_s = 0.0
            pair.queued = False
        self._wrote_s = now_s
        self._unit_s = None

    def _hear(self, pair: Pair, got_s: float, since_s: float) -> None:
        if pair.state == "awaited":
            if pair.again == pair.again_at:
                pair.answered(max(0.0, since_s - pair.opened_s), self._limit_s(), self._step_s())
            pair.state = "moving"
        elif pair.state == "owed":
            pair.opened_s = got_s
        elif pair.state == "idle" and pair.wrote_s is None:
            pair.state, pair.opened_s = "owed", got_s
            pair.answered(0.0, self._limit_s(), self._step_s())

    def _write(self, gathered: list[Pair], now_s: float, *, opening: bool) -> None:
        for pair in self._pairs.values():
            if pair.state == "owed":
                pair.state, pair.last_s = "moving", now_s
        for pair in gathered:
            # Where nothing was ever written to a peer, data flows one way: what is written elsewhere opens for it, too.
            wrote_s = pair.wrote_s if pair.ever_wrote else now_s
            if pair.state == "idle" and wrote_s is not None and pair.got_s is None:
                answers = opening and pair.ever_got
                pair.state, pair.opened_s, pair.again_at = "awaited" if answers else "moving", wrote_s, pair.again

    def _end_unit(self, late_s: float, now_s: float) -> None:
        if self._unit_s is not None:
            self._periods.append(now_s - self._unit_s)
        self._unit_s = now_s
        limit_s = self._limit_s()
        self._late.add(late_s, OWN_RATIO * limit_s)
        for pair in self._pairs.values():
            unread = 2 * pair.blocked_s >= pair.queued_s
            pair.tallies["slow"].add(0.0 if unread else pair.queued_s, limit_s)
            pair.tallies["unread"].add(pair.queued_s if unread else 0.0, limit_s)
            pair.queued_s = pair.blocked_s = 0.0

    def _step_s(self) -> float:
        """A silence shorter than this ends no step, or full cores would break steps up. It is a share of the shorter
        ones: who waits for a straggler has two silences in a step of the job, after computing and in between."""
        if self.period_s is None:
            return 0.0
        return self._settings.late_ratio * sorted(self._periods)[len(self._periods) // 4]

    def _limit_s(self) -> float:
        period_s = self.period_s
        if period_s is None:
            return float("inf")
        return max(self._settings.least_s, self._settings.late_ratio * period_s)
