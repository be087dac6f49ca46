"""The search for the best explanation: add the best element until none pays for itself; then exchange what greed has
done wrong.

Hardly any element can gain more than the surprises of its paths that show losses of their own accord, and what the
losses of the others pooled are worth: elements are tried in the order of that bound until it falls below the best gain
found. What is quiet is never looked at. Greed and exchanges are near-exact: the tests compare them with all pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from linkpass.core.diagnosis import model
from linkpass.core.diagnosis.elements import Ints
from linkpass.core.diagnosis.paths import Floats, Paths

CHUNKS = (8, 32, 128, 512)
MOST_BLAMED = 32
EXCHANGES, TRIES = 12, 48
"""Exchanges that are made, and tried, at most in one window."""
DOUBT_NATS, DOUBT_PATHS = 100.0, 2
LEAST_NATS = 0.5
"""An exchange is worth that much."""
RIVAL_NATS = 7.0
"""A rival that explains the same paths this much worse is 1,000 times less likely, and not counted."""
RIVALS = 256
SLACK = 1.5
"""Pooled, losses of paths with different ratios are worth a little less than one by one."""


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


@dataclass(frozen=True, slots=True)
class Bound:
    elements: Ints
    nats: Floats
    """At most what each can gain, less its cost; greatest first."""


class Search:
    """One problem: `n` sent, `k` lost, `r` the healthy loss ratio of each path; `cost` in nats of each element;
    `expected`: losses of the paths of each key, where they are known already."""

    def __init__(
        self, paths: Paths, n: Floats, k: Floats, r: Floats, cost: Floats, expected: Floats | None = None
    ) -> None:
        self.paths, self.n, self.k, self.cost = paths, n, k, cost
        self.healthy, self.r = r, r.copy()
        self.lossy = np.flatnonzero(k > 0)
        self.lost = paths.sums(k[self.lossy], self.lossy)
        self.expected = paths.sums(n * r) if expected is None else expected
        self.blamed: list[Blamed] = []

    def run(self) -> list[Blamed]:
        """The explanation, most certain first."""
        while len(self.blamed) < MOST_BLAMED:
            found = self.best(self.lossy)
            if found is None:
                break
            self._add(found)
        self._settle()
        return sorted(self.blamed, key=lambda one: -one.nats)

    def best(self, rows: Ints, above: float = 0.0, without: Sequence[Blamed] = ()) -> Blamed | None:
        """The element that gains most over what is explained already, if more than `above` over its cost, of those that
        any of the lossy paths `rows` crosses."""
        bound = self.bound(rows, without)
        best: Blamed | None = None
        place, chunk = 0, iter(CHUNKS)
        size = next(chunk)
        while place < len(bound.elements) and bound.nats[place] > above:
            tried = bound.elements[place : place + size][bound.nats[place : place + size] > above]
            fits = self.fit(tried)
            net = fits.nats - self.cost[tried]
            top = int(np.argmax(net))
            if net[top] > above:
                above = float(net[top])
                best = self._blame(int(tried[top]), above, fits, top)
            place += size
            size = next(chunk, size)
        return best

    def bound(self, rows: Ints, without: Sequence[Blamed] = ()) -> Bound:
        """Of the elements that any of the lossy paths `rows` crosses."""
        n, k, r = self.n[self.lossy], self.k[self.lossy], self.r[self.lossy]
        surprise = model.surprise(n, k, r)
        shows = surprise >= model.SHOWS_NATS
        own = self.lossy[shows]
        elements = self.paths.elements.of_keys(self.paths.keys_of(rows))
        single = self._of(self.paths.sums(surprise[shows], own), elements)
        expected = self.expected - self.paths.sums((n * r)[shows], own)
        lost = self.lost - self.paths.sums(k[shows], own)
        pooled = pool(np.maximum(self._of(lost, elements), 0.0), self._of(expected, elements))
        nats = single + SLACK * pooled - self.cost[elements]
        nats[np.isin(elements, [one.element for one in (*self.blamed, *without)])] = 0.0
        likely = np.flatnonzero(nats > 0)
        order = likely[np.argsort(-nats[likely], kind="stable")]
        return Bound(elements[order], nats[order])

    def fit(self, elements: Ints) -> model.Fits:
        rows, begin = self.paths.crossing(elements)
        directions = elements < self.paths.elements.directions
        return model.fit(self.n[rows], self.k[rows], self.r[rows], self.paths.large[rows], begin, directions)

    def rivals(self, one: Blamed) -> tuple[Blamed, ...]:
        """`one` as it is with all other blame standing, and what else would explain its paths about as well."""
        self._remove(one)
        mine = self._again(one)
        bound = self.bound(one.hit[self.k[one.hit] > 0])
        tried = bound.elements[(bound.nats >= mine.nats - RIVAL_NATS) & (bound.elements != one.element)][:RIVALS]
        found: list[Blamed] = []
        if len(tried):
            fits = self.fit(tried)
            net = fits.nats - self.cost[tried]
            near = [int(place) for place in np.argsort(-net, kind="stable") if net[place] >= mine.nats - RIVAL_NATS]
            found = [self._blame(int(tried[place]), float(net[place]), fits, place) for place in near]
        self._add(one)
        return (mine, *found)

    def _of(self, sums: Floats, elements: Ints) -> Floats:
        first, second = self.paths.elements.first[elements], self.paths.elements.second[elements]
        return sums[first] + np.where(second >= 0, sums[second], 0.0)

    def _blame(self, element: int, nats: float, fits: model.Fits, place: int) -> Blamed:
        rows, _ = self.paths.crossing(np.array([element], dtype=np.intp))
        hit = model.hits(self.n[rows], self.k[rows], self.r[rows], self.paths.large[rows], fits, place)
        scope, share = model.SCOPES[int(fits.scope[place])], float(fits.share[place])
        extra = {"whole": 0.0, "partial": model.PARTIAL_NATS, "large": model.LARGE_NATS}[scope]
        spared = (self.paths.large[rows] if scope == "large" else np.ones(len(rows), dtype=bool)) & ~hit
        prior = hit.sum() * np.log(share) + spared.sum() * np.log1p(-share) - self.cost[element] - extra
        return Blamed(element, nats, float(fits.ratio[place]), share, scope, rows[hit], float(prior), int(spared.sum()))

    def _add(self, one: Blamed) -> None:
        self.blamed.append(one)
        self._set(one.hit, 1 - (1 - self.r[one.hit]) * (1 - one.ratio))

    def _remove(self, one: Blamed) -> None:
        self.blamed.remove(one)
        r = self.healthy[one.hit]
        place = {row: number for number, row in enumerate(one.hit.tolist())} if self.blamed else {}
        for other in self.blamed:
            common = [place[row] for row in other.hit.tolist() if row in place]
            r[common] = 1 - (1 - r[common]) * (1 - other.ratio)
        self._set(one.hit, r)

    def _set(self, rows: Ints, r: Floats) -> None:
        self.expected += self.paths.sums(self.n[rows] * (r - self.r[rows]), rows)
        self.r[rows] = r

    def _settle(self) -> None:
        """Exchange: take an element away, fit anew what overlaps with it, add what is best instead and then; keep
        the change if the whole is better. It undoes what greed does worst: one that covers parts of two faults."""
        failed: set[frozenset[Blamed]] = set()
        for _ in range(EXCHANGES):
            single = [[one] for one in sorted(self.blamed, key=lambda one: one.nats)]
            if not any(self._exchange(ones, failed) for ones in (*self._neighbours(), *single)):
                return

    def _neighbours(self) -> list[list[Blamed]]:
        """Elements at the same node, if they are several: the node may be what fails."""
        at: dict[int, list[Blamed]] = {}
        elements = self.paths.elements
        for one in self.blamed:
            if elements.first[one.element] < elements.directions:
                direction = int(elements.first[one.element])
                for node in (int(elements.source[direction]), int(elements.target[direction])):
                    at.setdefault(node, []).append(one)
        return [ones for _, ones in sorted(at.items()) if len(ones) > 1]

    def _overlapping(self, ones: list[Blamed]) -> list[Blamed]:
        mine = np.zeros(len(self.n), dtype=bool)
        for one in ones:
            mine[one.hit] = True
        mine &= self.k > 0
        return [other for other in self.blamed if other not in ones and mine[other.hit].any()]

    def _exchange(self, ones: list[Blamed], failed: set[frozenset[Blamed]]) -> bool:
        """Whether it was worth it. `failed`: what has not been, of elements that have not changed since."""
        near = self._overlapping(ones)
        tried = frozenset((*ones, *near))
        if tried in failed or len(failed) >= TRIES or not any(self._doubtful(one) for one in tried):
            return False
        before, blamed, r, expected = self._objective(), list(self.blamed), self.r.copy(), self.expected.copy()
        for one in ones:
            self._remove(one)
        for other in near:
            self._remove(other)
            again = self._again(other)
            if again.nats > 0:
                self._add(again)
        hit = np.unique(np.concatenate([one.hit for one in ones]))
        shown = hit[self.k[hit] > 0]
        for number in range(1 + len(ones)):
            found = self.best(shown, without=() if number or near else ones) if len(shown) else None
            if found is None:
                break
            self._add(found)
        if self._objective() > before + LEAST_NATS:
            return True
        self.blamed, self.r, self.expected = blamed, r, expected
        failed.add(tried)
        return False

    def _doubtful(self, one: Blamed) -> bool:
        """It spares paths that cross it, or is worth little: greed goes wrong with such."""
        return one.nats < DOUBT_NATS or one.spared >= DOUBT_PATHS

    def _objective(self) -> float:
        """Nats by which the whole explanation is better than none: likelihood of all paths, shares and costs."""
        rows = np.flatnonzero(self.r != self.healthy)
        n, k, r, before = self.n[rows], self.k[rows], self.r[rows], self.healthy[rows]
        gained = k * np.log(r / before) + (n - k) * (np.log1p(-r) - np.log1p(-before))
        return float(gained.sum()) + sum(one.prior for one in self.blamed)

    def _again(self, one: Blamed) -> Blamed:
        only = np.array([one.element], dtype=np.intp)
        fits = self.fit(only)
        return self._blame(one.element, float(fits.nats[0] - self.cost[one.element]), fits, 0)


def pool(lost: Floats, expected: Floats) -> Floats:
    """Nats by which that many losses are likelier than expected, all paths of an element taken as one (Poisson)."""
    least = np.maximum(expected, 1e-9)
    nats = lost * np.log(np.maximum(lost, 1e-9) / least) - (lost - least)
    return np.where(lost > least, nats, 0.0)


def costs(paths: Paths, by_kind: Sequence[float]) -> Floats:
    return np.array(by_kind, dtype=np.float64)[paths.elements.kind]
