"""From windows of observations to verdicts: a memory of what each path carried and lost, and one search a window."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from linkpass.core.diagnosis.elements import Ints
from linkpass.core.diagnosis.paths import Floats, Paths
from linkpass.core.diagnosis.search import Blamed, Search, costs
from linkpass.core.diagnosis.verdict import Hint, Verdict
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
    (round trip above its floor, ECN marks), 0 where none did; None when nobody looked."""

    span_s: float
    sent: Floats
    lost: Floats
    queued: Floats | None = None
    hints: tuple[Hint, ...] = ()


FLAGGED_RATIO = 0.01
"""Paths that seem to queue though nothing on them is congested."""
RESET_SENT = 2.0
"""Packets in a row that must be lost for the past of a path to be void."""


@dataclass(slots=True)
class _Known:
    hint: Hint
    until_s: float


class Localiser:
    """Keeps what the paths have shown, halving it every `half_life_s`; gives verdicts for the present.

    A path that has fallen silent is judged by its silence alone, whatever it carried before: bad news needs no more
    than a few packets. A fault that is over fades with the memory."""

    def __init__(self, paths: Paths, settings: Settings | None = None) -> None:
        self.paths, self.settings, self.now_s = paths, settings or Settings(), 0.0
        count = len(paths)
        self._sent, self._lost = np.zeros(count), np.zeros(count)
        self._run = np.zeros(count)
        self._queued, self._looked = np.zeros(count), 0.0
        self._healthy = -np.expm1(np.maximum(paths.lengths, 1) * math.log1p(-self.settings.noise_ratio))
        self._crossing = paths.sums(np.ones(count))
        self._cost = costs(paths, self.settings.cost_nats)
        self._hints: dict[int, _Known] = {}
        self._since_s: dict[int, float] = {}
        self._congested_since_s: dict[int, float] = {}

    def window(self, seen: Window) -> tuple[Verdict, ...]:
        """Take a window in; verdicts and suspicions, most certain first. Congestion comes last."""
        self._remember(seen)
        congestion, crowded = self._congestion()
        ratio = self._lost[crowded] / np.maximum(self._sent[crowded], 1.0)
        crowded = crowded[(ratio > 0) & (ratio < self.settings.most_ratio_congested)]
        self._sent[crowded] = self._lost[crowded] = 0.0  # for good: the losses would outlast the queue
        sent, lost = self._sent.copy(), self._lost.copy()
        unsaid = (self.paths.holes & (lost > 0)) | ((self._run > 0) & (self._run < RESET_SENT))
        sent[unsaid] = lost[unsaid] = 0.0  # of the latter the next packet tells whether they have fallen silent
        search = Search(self.paths, sent, lost, self._healthy, self._costs())
        blamed = search.run()
        since = {_mark(one, lost): self._since_s.get(_mark(one, lost), self.now_s) for one in blamed}
        self._since_s = since
        return (*(self._verdict(search, one, since[_mark(one, lost)]) for one in blamed), *congestion)

    def _remember(self, seen: Window) -> None:
        self.now_s += seen.span_s
        fade = 0.5 ** (seen.span_s / self.settings.half_life_s)
        self._sent *= fade
        self._lost *= fade
        self._sent += seen.sent
        self._lost += seen.lost
        self._lost[self._lost < 0.05] = 0.0
        self._begin_anew(seen)
        if seen.queued is not None:
            self._queued *= fade
            self._queued += seen.queued
            self._looked = self._looked * fade + 1.0
        for hint in seen.hints:
            element = self.paths.elements.index[hint.element]
            self._hints[element] = _Known(hint, self.now_s + self.settings.hint_s)
        self._hints = {element: known for element, known in self._hints.items() if known.until_s > self.now_s}

    def _begin_anew(self, seen: Window) -> None:
        """Void the past of paths that have fallen silent: as many packets in a row lost, over windows, as it takes."""
        running = np.flatnonzero(self._run)
        self._run[running[seen.lost[running] < seen.sent[running]]] = 0.0
        rows = np.flatnonzero((seen.lost > 0) & (seen.lost >= seen.sent))
        before = self._run[rows]
        self._run[rows] += seen.sent[rows]
        silent = rows[(before < RESET_SENT) & (self._run[rows] >= RESET_SENT)]
        self._sent[silent] = self._lost[silent] = self._run[silent]

    def _costs(self) -> Floats:
        if not self._hints:
            return self._cost
        cost = self._cost.copy()
        for element, known in self._hints.items():
            cost[element] -= known.hint.nats
        return cost

    def _congestion(self) -> tuple[tuple[Verdict, ...], Ints]:
        """Directions on which a queue stands, and the paths over them: the same search, queues in place of losses."""
        none = np.zeros(0, dtype=np.intp)
        if not self._looked or not (self._queued > 0.5).any():
            return (), none
        cost = np.where(self.paths.elements.kind == 0, self.settings.cost_nats[0], 1e9)
        sent = np.full(len(self.paths), self._looked)
        falsely, expected = np.full(len(sent), FLAGGED_RATIO), self._crossing * (self._looked * FLAGGED_RATIO)
        search = Search(self.paths, sent, np.minimum(self._queued, sent), falsely, cost, expected)
        blamed = [one for one in search.run() if one.scope == "whole"]
        since = {one.element: self._congested_since_s.get(one.element, self.now_s) for one in blamed}
        self._congested_since_s = since
        rows = [self.paths.crossing(np.array([one.element], dtype=np.intp))[0] for one in blamed]
        told = tuple(
            Verdict(
                "congestion", self.paths.elements.names[one.element], 1 - math.exp(-one.nats), "whole",
                0.0, one.share, one.nats, self.now_s - since[one.element], one.nats >= self.settings.name_nats,
                evidence=(f"a queue stands on {len(one.hit)} of the {len(over)} paths over it",),
            )
            for one, over in zip(blamed, rows, strict=True)
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
        )  # fmt: skip


def _mark(one: Blamed, lost: Floats) -> int:
    """A path by which a suspicion is known again, though another element may lead it a window later."""
    return int(one.hit[np.argmax(lost[one.hit])]) if len(one.hit) else -1 - one.element


def certain(verdicts: Sequence[Verdict]) -> tuple[Verdict, ...]:
    """The verdicts that name a failing element, without suspicions and congestion."""
    return tuple(one for one in verdicts if one.certain and one.kind != "congestion")
