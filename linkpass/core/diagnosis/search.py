"""The search for the best explanation: add the best element until none pays for itself; then exchange what greed has
done wrong.

Elements are tried in the order of what they can gain at most (`explained`), until that falls below the best gain found.
What is quiet is never looked at. Greed and exchanges are near-exact: the tests compare them with all pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from linkpass.core.diagnosis import model
from linkpass.core.diagnosis.elements import Ints
from linkpass.core.diagnosis.explained import Explained
from linkpass.core.diagnosis.paths import Floats, Paths

CHUNKS = (8, 32, 128, 512)
MOST_BLAMED = 32
PASSES, TRIES = 4, 48
"""How often all exchanges are tried, and how many without success, at most in one window."""
DOUBT_NATS, DOUBT_PATHS = 100.0, 2
MOST_PARTS = 4
LEAST_NATS = 0.5
"""An exchange is worth that much."""
WITHIN_RATIO = 0.9
"""What is blamed for losses of which so many are on the paths of another was added to it, and is taken away with it."""
RIVAL_NATS = 7.0
"""A rival that explains the same paths this much worse is 1,000 times less likely, and not counted."""
RIVALS = 256


@dataclass(frozen=True, slots=True, eq=False)
class Blamed:
    """An element of the explanation. `nats`: gained over its cost; `hit`: the paths that it is held to affect."""

    element: int
    nats: float
    ratio: float
    share: float
    scope: model.Scope
    hit: Ints
    prior: float = 0.0
    """Nats of the element's cost and of its share being what it is."""
    spared: int = 0
    """Paths over it that it is not held to affect, though it is held to be whole."""


class Search:
    """One problem: `n` sent, `k` lost, `r` the healthy loss ratio of each path; `cost` in nats of each element;
    `expected`: losses of the paths of each key, where they are known already."""

    def __init__(
        self, paths: Paths, n: Floats, k: Floats, r: Floats, cost: Floats, expected: Floats | None = None
    ) -> None:
        self.paths, self.n, self.k, self.cost = paths, n, k, cost
        self.explained = Explained(paths, n, k, r, cost, expected)
        self.blamed: list[Blamed] = []
        self._place = np.full(len(n), -1, dtype=np.intp)

    def run(self) -> list[Blamed]:
        """The explanation, most certain first."""
        while len(self.blamed) < MOST_BLAMED:
            found = self.best()
            if found is None:
                break
            self._add(found)
        self._settle()
        return sorted(self.blamed, key=lambda one: -one.nats)

    def best(self, rows: Ints | None = None, without: Sequence[Blamed] = ()) -> Blamed | None:
        """The element that gains most over what is explained already, if more than its cost; of those that any of
        `rows` crosses, if given."""
        tried = self._promising(0.0, rows, without)
        best, above, place, chunk = -1, 0.0, 0, iter(CHUNKS)
        size = next(chunk)
        bounds = self.explained.bounds[tried]
        while place < len(tried) and bounds[place] > above:
            some = tried[place : place + size][bounds[place : place + size] > above]
            net = self.explained.fit(some).nats - self.cost[some]
            top = int(np.argmax(net))
            if net[top] > above:
                best, above = int(some[top]), float(net[top])
            place += size
            size = next(chunk, size)
        return None if best < 0 else self._blame(best)

    def _promising(self, above: float, rows: Ints | None = None, without: Sequence[Blamed] = ()) -> Ints:
        """Elements that may gain more than that, most promising first."""
        bounds = self.explained.bounds
        likely = np.flatnonzero(bounds > above)
        if rows is not None:
            likely = likely[self.paths.any_over(likely, rows)]
        for one in (*self.blamed, *without):
            likely = likely[likely != one.element]
        return likely[np.argsort(-bounds[likely], kind="stable")]

    def rivals(self, one: Blamed) -> tuple[Blamed, ...]:
        """`one` as it is with all other blame standing, and what else would explain its paths about as well."""
        mark, blamed = self.explained.mark(), list(self.blamed)
        self._remove(one)
        mine = self._blame(one.element)
        least = mine.nats - RIVAL_NATS
        tried = self._promising(max(least, 0.0), one.hit[self.k[one.hit] > 0], [one])[:RIVALS]
        net = self.explained.fit(tried).nats - self.cost[tried]
        found = [self._blame(int(tried[place])) for place in np.argsort(-net, kind="stable") if net[place] >= least]
        self.explained.back_to(mark)
        self.blamed = blamed
        return (mine, *found)

    def _blame(self, element: int) -> Blamed:
        only = np.array([element], dtype=np.intp)
        fits, (rows, _) = self.explained.fit(only), self.paths.crossing(only)
        hit = model.hits(self.n[rows], self.k[rows], self.explained.r[rows], self.paths.large[rows], fits)
        scope, share = model.SCOPES[int(fits.scope[0])], float(fits.share[0])
        extra = {"whole": 0.0, "partial": model.PARTIAL_NATS, "large": model.LARGE_NATS}[scope]
        spared = (self.paths.large[rows] if scope == "large" else np.ones(len(rows), dtype=bool)) & ~hit
        prior = hit.sum() * np.log(share) + spared.sum() * np.log1p(-share) - self.cost[element] - extra
        nats = float(fits.nats[0] - self.cost[element])
        return Blamed(element, nats, float(fits.ratio[0]), share, scope, rows[hit], float(prior), int(spared.sum()))

    def _add(self, one: Blamed) -> None:
        self.blamed.append(one)
        self.explained.set(one.hit, 1 - (1 - self.explained.r[one.hit]) * (1 - one.ratio))

    def _remove(self, one: Blamed) -> None:
        self.blamed.remove(one)
        r = self.explained.healthy[one.hit]
        self._place[one.hit] = np.arange(len(one.hit))
        for other in self.blamed:
            common = self._place[other.hit]
            common = common[common >= 0]
            r[common] = 1 - (1 - r[common]) * (1 - other.ratio)
        self._place[one.hit] = -1
        self.explained.set(one.hit, r)

    def _settle(self) -> None:
        """Exchange: take an element away, fit anew what overlaps with it, add what is best instead and then; keep
        the change if the whole is better. It undoes what greed does worst: one that covers parts of two faults."""
        failed: set[frozenset[Blamed]] = set()
        for _ in range(PASSES):
            single = [{one.element} for one in sorted(self.blamed, key=lambda one: -one.nats)]
            better = False
            for elements in (*single, *self._neighbours(), *self._parts()):
                ones = [one for one in self.blamed if one.element in elements]
                better |= len(ones) == len(elements) and self._exchange(ones, failed)
            if not better:
                return

    def _neighbours(self) -> list[set[int]]:
        """Elements at the same node, if they are several: the node may be what fails."""
        at: dict[int, set[int]] = {}
        elements = self.paths.elements
        for one in self.blamed:
            if elements.first[one.element] < elements.directions:
                direction = int(elements.first[one.element])
                for node in (int(elements.source[direction]), int(elements.target[direction])):
                    at.setdefault(node, set()).add(one.element)
        return [ones for _, ones in sorted(at.items()) if len(ones) > 1]

    def _parts(self) -> list[set[int]]:
        """Partial faults, if they are several and few: two faults look like parts of what lies before them both."""
        parts = {one.element for one in self.blamed if one.scope == "partial"}
        return [parts] if 1 < len(parts) <= MOST_PARTS else []

    def _overlapping(self, ones: list[Blamed]) -> tuple[list[Blamed], list[Blamed]]:
        """What else of the blamed may explain losses that `ones` do: hardly any others, and others too."""
        within: list[Blamed] = []
        near: list[Blamed] = []
        rows = np.concatenate([one.hit for one in ones])
        lossy = rows[self.k[rows] > 0]
        others = [other for other in self.blamed if other not in ones]
        over = self.paths.any_over(np.array([other.element for other in others], dtype=np.intp), lossy)
        self._place[lossy] = 0
        for other in (other for other, crosses in zip(others, over, strict=True) if crosses):
            mine = other.hit[self.k[other.hit] > 0]
            common = np.count_nonzero(self._place[mine] == 0)
            (within if common >= WITHIN_RATIO * len(mine) else near).append(other)
        self._place[lossy] = -1
        return within, near

    def _exchange(self, ones: list[Blamed], failed: set[frozenset[Blamed]]) -> bool:
        """Whether it was worth it. `failed`: what has not been, of elements that have not changed since."""
        within, near = self._overlapping(ones)
        tried = frozenset((*ones, *within, *near))
        if tried in failed or len(failed) >= TRIES or not any(self._doubtful(one) for one in tried):
            return False
        before, blamed, mark = self._objective(), list(self.blamed), self.explained.mark()
        away = [*ones, *within]
        for one in away:
            self._remove(one)
        self._fit_again(near)
        hit = np.unique(np.concatenate([one.hit for one in away]))
        shown = hit[self.k[hit] > 0]
        for number in range(1 + len(away)):
            found = self.best(shown, without=() if number or near or within else ones) if len(shown) else None
            if found is None:
                break
            self._add(found)
            self._fit_again([*near, *(one for some in self._overlapping([found]) for one in some)])
        if self._objective() > before + LEAST_NATS:
            return True
        self.blamed = blamed
        self.explained.back_to(mark)
        failed.add(tried)
        return False

    def _fit_again(self, ones: list[Blamed]) -> None:
        elements = {one.element for one in ones}
        for one in [one for one in self.blamed if one.element in elements]:
            self._remove(one)
            again = self._blame(one.element)
            if again.nats > 0:
                self._add(again)

    def _doubtful(self, one: Blamed) -> bool:
        """It spares paths that cross it, or is worth little: greed goes wrong with such."""
        return one.nats < DOUBT_NATS or one.spared >= DOUBT_PATHS

    def _objective(self) -> float:
        """Nats by which the whole explanation is better than none: likelihood of all paths, shares and costs."""
        return self.explained.nats + sum(one.prior for one in self.blamed)


def costs(paths: Paths, by_kind: Sequence[float]) -> Floats:
    return np.array(by_kind, dtype=np.float64)[paths.elements.kind]
