"""From windows of observations to verdicts: a memory of what each path carried and lost, and one search a window."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from linkpass.core.diagnosis.ages import Ages
from linkpass.core.diagnosis.elements import Ints
from linkpass.core.diagnosis.memory import RESET_SENT, Memory
from linkpass.core.diagnosis.paths import Flags, Floats, Paths
from linkpass.core.diagnosis.search import Blamed, Search, costs
from linkpass.core.diagnosis.verdict import Hint, Rival, Verdict
from linkpass.core.diagnosis.words import evidence_of, ruled_out


@dataclass(frozen=True, slots=True)
class Settings:
    """`cost_nats`: in the order of KINDS; a NIC, a switch or a host fails no more often than a link, and is found by
    explaining more. `name_nats`: what an explanation must gain over its cost to be certain."""

    noise_ratio: float = 2e-5
    half_life_s: float = 10.0
    cost_nats: tuple[float, ...] = (14.0, 14.5, 14.5, 15.0, 15.0)
    name_nats: float = 10.0
    sure_nats: float = 60.0
    """What gains less has to stand for `patience_s`: a host that begins to fail shows on one link first."""
    confidence: float = 0.99
    patience_s: float = 1.0
    """After that a tie that does not resolve is told as one, too."""
    tie_nats: float = 5.0
    hint_s: float = 10.0
    most_ratio_congested: float = 0.2
    """Losses of congestion are below that; a path that loses more fails, whatever queues on it."""


@dataclass(frozen=True, slots=True)
class Window:
    """What was seen in `span_s` seconds. `sent`, `lost`: one number a path. `queued`: 1 where a queue stood on the path
    (round trip above its floor, ECN marks), 0 where none did; None when nobody looked. `mute`: paths that cannot speak
    of this moment; `anew`: paths whose past is void, because they are known to be whole again."""

    span_s: float
    sent: Floats
    lost: Floats
    queued: Floats | None = None
    hints: tuple[Hint, ...] = ()
    mute: Flags | None = None
    anew: Flags | None = None


NEVER_NATS = 1e9
"""The cost of what is not to be blamed."""
FLAGGED_RATIO = 0.01
"""Paths that seem to queue though nothing on them is congested."""


@dataclass(slots=True)
class _Known:
    hint: Hint
    until_s: float


class Localiser:
    """Keeps what the paths have shown, halving it every `half_life_s`; gives verdicts for the present."""

    def __init__(self, paths: Paths, settings: Settings | None = None) -> None:
        self.paths, self.settings, self.now_s = paths, settings or Settings(), 0.0
        self._memory = Memory(len(paths), self.settings.half_life_s)
        self._healthy = -np.expm1(np.maximum(paths.lengths, 1) * math.log1p(-self.settings.noise_ratio))
        self._crossing = paths.sums(np.ones(len(paths)))
        self._cost = costs(paths, self.settings.cost_nats)
        self._hints: dict[int, _Known] = {}
        self._ages, self._congested_ages = Ages(), Ages()

    def window(self, seen: Window) -> tuple[Verdict, ...]:
        """Take a window in; verdicts and suspicions, most certain first. Congestion comes last."""
        self.now_s += seen.span_s
        if seen.anew is not None:
            self._memory.void(seen.anew)
        self._memory.take(seen.span_s, seen.sent, seen.lost, seen.queued)
        self._hear(seen.hints)
        congestion, crowded = self._congestion()
        sent, lost = self._evidence(crowded)
        if seen.mute is not None:
            sent[seen.mute] = lost[seen.mute] = 0.0
        search = Search(self.paths, sent, lost, self._healthy, self._costs(lost))
        blamed = search.run()
        since_s = self._ages.since_s(blamed, lost, self.now_s)
        told = [self._verdict(search, one, began_s) for one, began_s in zip(blamed, since_s, strict=True)]
        return (*told, *congestion)

    def with_paths(self, paths: Paths, was: Ints) -> Localiser:
        """One that goes on with other paths, as when traces have changed. `was`: for each of them its row among the
        present ones, -1 if it is new.

        What a path has carried and lost goes with it as long as it goes the same way (as far as both traces know):
        what it lost elsewhere is no evidence here. Hints and the ages of suspicions go by the names of elements.
        What is not there any more is forgotten."""
        other = Localiser(paths, self.settings)
        other.now_s = self.now_s
        rows = np.flatnonzero(was >= 0)
        rows = rows[paths.go_as(rows, self.paths, was[rows])]
        other._memory = self._memory.moved(len(paths), rows, was[rows])
        element, row = paths.elements.numbers_of(self.paths.elements), np.full(len(self.paths), -1, dtype=np.intp)
        row[was[rows]] = rows
        other._hints = {int(element[old]): known for old, known in self._hints.items() if element[old] >= 0}
        other._ages, other._congested_ages = self._ages.moved(element, row), self._congested_ages.moved(element, row)
        return other

    def _hear(self, hints: Sequence[Hint]) -> None:
        for hint in hints:
            self._hints[self.paths.elements.index[hint.element]] = _Known(hint, self.now_s + self.settings.hint_s)
        self._hints = {element: known for element, known in self._hints.items() if known.until_s >= self.now_s}

    def _evidence(self, crowded: Ints) -> tuple[Floats, Floats]:
        """What is sent and lost as far as it tells of failures."""
        memory = self._memory
        ratio = memory.lost[crowded] / np.maximum(memory.sent[crowded], 1.0)
        crowded = crowded[(ratio > 0) & (ratio < self.settings.most_ratio_congested)]
        memory.sent[crowded] = memory.lost[crowded] = 0.0  # for good: the losses would outlast the queue
        sent, lost = memory.sent.copy(), memory.lost.copy()
        unsaid = (self.paths.holes & (lost > 0)) | ((memory.run > 0) & (memory.run < RESET_SENT))
        sent[unsaid] = lost[unsaid] = 0.0  # of the latter the next packet tells whether they have fallen silent
        return sent, lost

    def _costs(self, lost: Floats) -> Floats:
        weak = self.paths.weak.any()
        if not self._hints and not weak:
            return self._cost
        cost = self._cost.copy()
        if weak:
            shown, every = np.flatnonzero((lost > 0) & ~self.paths.weak), np.arange(len(cost))
            cost[~self.paths.any_over(every, shown)] = NEVER_NATS
        for element, known in self._hints.items():
            cost[element] -= known.hint.nats
        return cost

    def _congestion(self) -> tuple[tuple[Verdict, ...], Ints]:
        """Directions on which a queue stands, and the paths over them: the same search, queues in place of losses."""
        none, queued, looked = np.zeros(0, dtype=np.intp), self._memory.queued, self._memory.looked
        looked = np.where(self.paths.weak, 0.0, looked)  # of a flow it is not known whether it waits
        if not (queued > 0.5).any():
            return (), none
        cost = np.where(self.paths.elements.kind == 0, self.settings.cost_nats[0], NEVER_NATS)
        falsely = np.full(len(self.paths), FLAGGED_RATIO)
        alike = looked[0] == looked.min() == looked.max()  # a path that is new was looked at less
        expected = self._crossing * (looked[0] * FLAGGED_RATIO) if alike else None
        search = Search(self.paths, looked, np.minimum(queued, looked), falsely, cost, expected)
        blamed = [one for one in search.run() if one.scope == "whole"]
        since_s = self._congested_ages.since_s(blamed, queued, self.now_s)
        rows = [self.paths.crossing(np.array([one.element], dtype=np.intp))[0] for one in blamed]
        told = tuple(
            Verdict(
                "congestion", self.paths.elements.names[one.element], 1 - math.exp(-one.nats), "whole",
                0.0, one.share, one.nats, self.now_s - began_s, one.nats >= self.settings.name_nats,
                evidence=(f"a queue stands on {len(one.hit)} of the {len(over)} paths over it",),
            )
            for one, over, began_s in zip(blamed, rows, since_s, strict=True)
        )  # fmt: skip
        return told, np.unique(np.concatenate(rows)) if rows else none

    def _verdict(self, search: Search, one: Blamed, since_s: float) -> Verdict:
        elements, marks = self.paths.elements, self.paths.marks
        one, *rivals = search.rivals(one)
        near = [rival for rival in rivals if rival.nats >= one.nats - self.settings.tie_nats]
        same = [rival for rival in near if marks[rival.element] == marks[one.element]]
        age_s = self.now_s - since_s
        if age_s >= self.settings.patience_s:
            same = near
        among = {one.element, *(rival.element for rival in same)}
        others = sum(math.exp(min(rival.nats - one.nats, 30.0)) for rival in rivals if rival.element not in among)
        mine = 1.0 + sum(math.exp(min(rival.nats - one.nats, 30.0)) for rival in same)
        confidence = mine / (mine + others) * -math.expm1(-max(one.nats, 0.0))
        stands = one.nats >= self.settings.sure_nats or age_s >= self.settings.patience_s
        certain = one.nats >= self.settings.name_nats and confidence >= self.settings.confidence and stands
        hints = [known.hint.words for element, known in self._hints.items() if element == one.element]
        return Verdict(
            elements.kind_of(one.element), elements.names[one.element], confidence, one.scope, one.ratio, one.share,
            one.nats, age_s, certain, tuple(elements.names[rival.element] for rival in same),
            (*evidence_of(search, one), *hints), ruled_out(search, one, among) if certain else (),
            tuple(Rival(elements.names[rival.element], rival.nats, rival.share) for rival in (one, *rivals)),
        )  # fmt: skip


def certain(verdicts: Sequence[Verdict]) -> tuple[Verdict, ...]:
    """The verdicts that name a failing element, without suspicions and congestion."""
    return tuple(one for one in verdicts if one.certain and one.kind != "congestion")
