"""Stragglers: which rank all others wait for, and whether it computes or sends slowly. Pure: claims in, a name out.

Every host claims what it sees of itself and of its neighbours (`linkpass.core.pace`), as counts of steps. Each claim of
each host has its own test (`linkpass.core.lagging`). Published work counts a job as slowed from a tenth on (Lin et al.,
What-if Analysis, OSDI 2025; Wu et al., Falcon, 2024); `late_ratio` is above that, since here nobody looks inside.

From claims to a name:

- compute: its own host says *late* and another says *awaits* it; or, while its own daemon is not heard, two others do;
  and more than half of those who ever awaited it come close to saying so.
  Word against word names nobody: a daemon that lies can accuse itself alone.
- network: *slow* pairs are told by two hosts at least, and all of them have one host in common, and only one.
  As long as data stands in any queue nobody is called slow to compute: who waits for bytes comes late, too.
- reading: its data is unread, say two others, or one and it is late itself.
- the trainer's word, where ranks tell their arrival at each step: the last one, by its own word, of three at least.

Of several, those that are late by less than half of the latest are not what the others wait for. When more than half of
the hosts would be named, nobody is: ranks that wait for one another in turn are a pipeline.

A name is said in the journal, in `status` and as a metric. It moves nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from linkpass.core.arrivals import Arrivals
from linkpass.core.events import PaceClaim, PaceKind, PaceTold, StepArrived
from linkpass.core.lagging import HIT, WORDS, Straggler, advance
from linkpass.core.world import GATHER_S, Tray, World

STALE_S: Final = 10.0
"""A claim that was not repeated for so long counts no more; hosts repeat theirs every second."""
UNSEEN_HITS: Final = 2
"""Of a claim that was not made before: hits since the last word at most."""
MOST_CLAIMS: Final = 64
"""That one host may make, of different things."""
SAME_RATIO: Final = 0.5
SUSPECT_RATIO: Final = 0.5
"""Of the threshold: from there on a claim counts for the question whether only one is late."""

Least = Callable[[str], float]
"""The score that is needed against a host."""


class Line:
    """One claim of one host, as it develops."""

    __slots__ = ("heard_s", "hits", "lag_s", "period_s", "score", "units")

    def __init__(self, claim: PaceClaim, now_s: float, *, known: bool) -> None:
        """`known`: the host has spoken before, and not of this."""
        self.units, self.hits = claim.units, claim.hits
        self.score = min(claim.hits, UNSEEN_HITS) * HIT if known else 0.0
        self.lag_s, self.period_s, self.heard_s = claim.lag_s, claim.period_s, now_s

    def follow(self, claim: PaceClaim, now_s: float, threshold: float) -> None:
        units, hits = claim.units - self.units, claim.hits - self.hits
        if 0 <= hits <= units:  # else its daemon is new, and counts from the beginning
            self.score = advance(self.score, hits, units - hits, threshold)
        self.units, self.hits = claim.units, claim.hits
        self.lag_s, self.period_s, self.heard_s = claim.lag_s, claim.period_s, now_s


class StragglerDesk:
    """Keeps everybody's claims and says who is named."""

    def __init__(self, world: World, tray: Tray) -> None:
        self._world, self._tray = world, tray
        self._lines: dict[str, dict[tuple[PaceKind, str], Line]] = {}
        """Who claims -> what, of whom."""
        self._heard_s: dict[str, float] = {}
        self._arrivals = Arrivals(world.settings.stragglers, world.settings.address)
        self._decide_at_s: float | None = None

    def told(self, event: PaceTold, now_s: float) -> None:
        own = self._world.settings.address
        origin = event.peer or own
        lines = self._lines.setdefault(origin, {})
        threshold = self._world.settings.stragglers.threshold
        known = now_s < self._heard_s.get(origin, -math.inf) + STALE_S
        self._heard_s[origin] = now_s
        for key in [key for key, line in lines.items() if now_s >= line.heard_s + STALE_S]:
            del lines[key]
        for claim in event.claims:
            about = claim.about or origin
            if (claim.kind == "late") != (about == origin):
                continue  # of itself a host can only say that it is late, of others never
            line = lines.get((claim.kind, about))
            if line is not None:
                line.follow(claim, now_s, threshold)
            elif len(lines) < MOST_CLAIMS:
                lines[claim.kind, about] = Line(claim, now_s, known=known)
        if self._world.stragglers or any(line.score >= SUSPECT_RATIO * threshold for line in lines.values()):
            self._decide_soon(now_s)

    def arrived(self, event: StepArrived, now_s: float) -> None:
        host = event.peer or self._world.settings.address
        if self._arrivals.take(host, event.rank, event.step, event.at_s, now_s):
            self._decide_soon(now_s)
        self._world.arrivals_refused = self._arrivals.refused

    def deadlines(self) -> Iterator[float]:
        """A name does not outlast the words that it rests on."""
        if self._decide_at_s is not None:
            yield self._decide_at_s
        if self._world.stragglers:
            yield max((*self._heard_s.values(), self._arrivals.heard_s)) + STALE_S

    def tick(self, now_s: float) -> None:
        self._decide_at_s = None
        for origin in [one for one, at_s in self._heard_s.items() if now_s >= at_s + STALE_S]:
            del self._heard_s[origin], self._lines[origin]
        self._decide(now_s)

    # inside
    def _decide_soon(self, now_s: float) -> None:
        """Words of many hosts are one decision; a healthy job takes none."""
        if self._decide_at_s is None:
            self._decide_at_s = now_s + GATHER_S

    def _strong(self, kind: PaceKind, now_s: float, least: float) -> Iterator[tuple[str, str, Line]]:
        """(who says it, of whom, the claim) of those that have crossed `least`."""
        for origin, lines in self._lines.items():
            for (what, about), line in lines.items():
                if what == kind and line.score >= least and now_s < line.heard_s + STALE_S:
                    yield origin, about, line

    def _decide(self, now_s: float) -> None:
        found = {one.host: one for one in self._found(now_s)}
        world = self._world
        for host in [host for host in world.stragglers if host not in found]:
            gone = world.stragglers.pop(host)
            what = f"{self._world.title(host)} holds the others up no more"
            why = f"it kept up again, or nothing more is heard; named for {now_s - gone.since_s:.1f} s"
            self._tray.record(gone.story, what, why, element=self._world.title(host))
        for host, one in found.items():
            before = world.stragglers.get(host)
            story = before.story if before else world.new_cause()
            since_s = before.since_s if before else now_s
            world.stragglers[host] = msgspec.structs.replace(one, story=story, since_s=since_s)
            if before is None or before.cause != one.cause:
                rank = f" (rank {one.rank})" if one.rank >= 0 else ""
                what = f"straggler {self._world.title(host)}{rank}: {WORDS[one.cause]}"
                self._tray.record(
                    story, what, "; ".join(one.evidence), element=self._world.title(host), level="warning"
                )

    def _found(self, now_s: float) -> list[Straggler]:
        """Who is to be named. Who is named already stays so until the score that named it is spent."""
        standing = self._standing(now_s)
        if standing:
            return self._network(standing)
        suspects = self._suspects(now_s, SUSPECT_RATIO)
        most_s = max((one.lag_s for one in suspects), default=0.0)
        ranks = max(len(self._heard_s), self._arrivals.ranks)
        if 2 * len({one.host for one in suspects if one.lag_s >= SAME_RATIO * most_s}) > ranks:
            return []
        return [one for one in self._suspects(now_s, 1.0) if one.lag_s >= SAME_RATIO * most_s]

    def _suspects(self, now_s: float, ratio: float) -> list[Straggler]:
        """Those whose claims have crossed such a part of the threshold. Of a host, one cause."""

        def least(host: str) -> float:
            return ratio * self._least(host)

        found = {one.host: one for one in self._by_trainer(now_s, least)}
        found |= {one.host: one for one in self._reading(now_s, least)}
        found |= {one.host: one for one in self._compute(now_s, least)}
        return list(found.values())

    def _least(self, about: str) -> float:
        """The score that a claim needs: of one that is named, any."""
        threshold = self._world.settings.stragglers.threshold
        return threshold * 0.01 if about in self._world.stragglers else threshold

    def _standing(self, now_s: float) -> list[tuple[str, str, Line]]:
        """Pairs whose data stands in a queue, or soon will be known to."""
        return list(self._strong("slow", now_s, SUSPECT_RATIO * self._world.settings.stragglers.threshold))

    def _network(self, standing: list[tuple[str, str, Line]]) -> list[Straggler]:
        threshold = self._world.settings.stragglers.threshold
        pairs = [(a, b, line) for a, b, line in standing
                 if line.score >= min(threshold, self._least(a), self._least(b))]  # fmt: skip
        ends = Counter(end for a, b, _ in pairs for end in {a, b})
        common = [host for host, count in ends.items() if count == len(standing)]
        if len({origin for origin, _, _ in pairs}) < 2 or len(common) != 1:
            return []
        title = self._world.title
        says = tuple(f"{title(a)}: data to {title(b)} stands in its queue for {_ms(line)} a step"
                     for a, b, line in pairs)  # fmt: skip
        most = max((line for _, _, line in pairs), key=lambda line: line.lag_s)
        return [Straggler(common[0], "network", says, most.lag_s, most.period_s)]

    def _said(self, kind: PaceKind, now_s: float, least: Least) -> dict[str, list[tuple[str, Line]]]:
        """Of whom it is said -> by whom."""
        found: dict[str, list[tuple[str, Line]]] = {}
        for origin, about, line in self._strong(kind, now_s, 0.0):
            if line.score >= least(about):
                found.setdefault(about, []).append((origin, line))
        return found

    def _compute(self, now_s: float, least: Least) -> list[Straggler]:
        late = {about: says[0][1] for about, says in self._said("late", now_s, least).items()}
        ever = self._said("awaits", now_s, lambda host: 0.0)
        near = self._said("awaits", now_s, lambda host: min(least(host), SUSPECT_RATIO * self._least(host)))
        found = []
        for about, witnesses in self._said("awaits", now_s, least).items():
            own = late.get(about)
            if own is None and (about in self._heard_s or len(witnesses) < 2):
                continue
            if 2 * len(near.get(about, ())) <= len(ever.get(about, ())):
                continue
            says = [f"{self._world.title(who)} waits {line.lag_s * 1e3:.0f} ms for it" for who, line in witnesses]
            if own is not None:
                says.insert(0, f"its own host sees others open {_ms(own)} before it in each step")
            says.append("no data stands in a queue meanwhile")
            lag_s = (own or witnesses[0][1]).lag_s
            found.append(Straggler(about, "compute", tuple(says), lag_s, self._period_s(now_s)))
        return found

    def _period_s(self, now_s: float) -> float:
        """Of the job: the longest that anybody sees. Who waits for a straggler falls silent twice in a step, and takes
        it for two."""
        return max((line.period_s for _, _, line in self._strong("late", now_s, 0.0)), default=0.0)

    def _reading(self, now_s: float, least: Least) -> list[Straggler]:
        late = self._said("late", now_s, least)
        return [
            Straggler(
                about, "reading",
                tuple(f"{self._world.title(who)}: its window was closed for {_ms(line)} a step" for who, line in says),
                says[0][1].lag_s, self._period_s(now_s),
            )
            for about, says in self._said("unread", now_s, least).items()
            if len(says) + (about in late) >= 2
        ]  # fmt: skip

    def _by_trainer(self, now_s: float, least: Least) -> list[Straggler]:
        last = self._arrivals.last(now_s, STALE_S, least)
        if last is None:
            return []
        lag = f"{last.lag_s * 1e3:.0f} of {last.period_s * 1e3:.0f} ms after the one before"
        says = f"it came last to each step, {lag}, of {self._arrivals.ranks} ranks"
        return [Straggler(last.host, "compute", (says,), last.lag_s, last.period_s, last.rank)]


def _ms(line: Line) -> str:
    return f"{line.lag_s * 1e3:.0f} of {line.period_s * 1e3:.0f} ms"
