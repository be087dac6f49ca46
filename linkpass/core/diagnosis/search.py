"""The search for the best explanation: add the best element, exactly found by bounds, until none pays for itself; then
drop and exchange what the others have made worse.

No element can gain more than its paths' own surprises, or what all its losses pooled are worth: elements are tried in
the order of that bound until it falls below the best gain found. What is quiet is never looked at. The greedy sum is
near-exact: it is checked against all pairs of elements in the tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from linkpass.core.diagnosis import model
from linkpass.core.diagnosis.elements import Ints
from linkpass.core.diagnosis.paths import Floats, Paths

CHUNKS = (8, 32, 128, 512)
MOST_BLAMED = 48
EXCHANGES = 8
RIVAL_NATS = 7.0
"""A rival that explains the same paths this much worse is 1,000 times less likely, and not counted."""
RIVALS = 256


@dataclass(frozen=True, slots=True)
class Blamed:
    """An element of the explanation. `nats`: gained over its cost; `hit`: the paths that it is held to affect."""

    element: int
    nats: float
    ratio: float
    share: float
    scope: model.Scope
    hit: Ints


@dataclass(frozen=True, slots=True)
class Bound:
    elements: Ints
    nats: Floats
    """At most what each can gain, less its cost; greatest first."""


class Search:
    """One problem: `n` sent, `k` lost, `r` the healthy loss ratio of each path; `cost` in nats of each element."""

    def __init__(self, paths: Paths, n: Floats, k: Floats, r: Floats, cost: Floats) -> None:
        self.paths, self.n, self.k, self.cost = paths, n, k, cost
        self.healthy, self.r = r, r.copy()
        self.lossy = np.flatnonzero(k > 0)
        self.lost = paths.sums(k[self.lossy], self.lossy)
        self.expected = paths.sums(n * r)
        self.blamed: list[Blamed] = []

    def run(self) -> list[Blamed]:
        """The explanation, most certain first."""
        while len(self.blamed) < MOST_BLAMED:
            found = self.best()
            if found is None:
                break
            self._add(found)
        self._settle()
        return sorted(self.blamed, key=lambda one: -one.nats)

    def best(self, above: float = 0.0) -> Blamed | None:
        """The element that gains most over what is explained already, if more than `above` over its cost."""
        bound = self.bound(self.lossy)
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

    def bound(self, rows: Ints) -> Bound:
        """Of the elements that any of the lossy paths `rows` crosses."""
        surprise = model.surprise(self.n[self.lossy], self.k[self.lossy], self.r[self.lossy])
        own = self.paths.sums(np.where(surprise >= model.SHOWS_NATS, surprise, 0.0), self.lossy)
        elements = self.paths.elements.of_keys(self.paths.keys_of(rows))
        pooled = pool(self._of(self.lost, elements), self._of(self.expected, elements))
        nats = np.maximum(self._of(own, elements), pooled) - self.cost[elements]
        likely = np.flatnonzero(nats > 0)
        order = likely[np.argsort(-nats[likely], kind="stable")]
        return Bound(elements[order], nats[order])

    def fit(self, elements: Ints) -> model.Fits:
        rows, begin = self.paths.crossing(elements)
        return model.fit(self.n[rows], self.k[rows], self.r[rows], self.paths.large[rows], begin)

    def rivals(self, one: Blamed) -> tuple[Blamed, ...]:
        """What else would explain the paths of `one` about as well, all other blame standing; best first."""
        with _Without(self, one):
            shown = one.hit[self.k[one.hit] > 0]
            bound = self.bound(shown)
            tried = bound.elements[bound.nats >= one.nats - RIVAL_NATS][:RIVALS]
            if not len(tried):
                return ()
            fits = self.fit(tried)
            net = fits.nats - self.cost[tried]
            near = [place for place in np.argsort(-net, kind="stable") if net[place] >= one.nats - RIVAL_NATS]
            return tuple(
                self._blame(int(tried[place]), float(net[place]), fits, int(place))
                for place in near
                if tried[place] != one.element
            )

    def _of(self, sums: Floats, elements: Ints) -> Floats:
        first, second = self.paths.elements.first[elements], self.paths.elements.second[elements]
        return sums[first] + np.where(second >= 0, sums[second], 0.0)

    def _blame(self, element: int, nats: float, fits: model.Fits, place: int) -> Blamed:
        rows, _ = self.paths.crossing(np.array([element], dtype=np.intp))
        hit = model.hits(self.n[rows], self.k[rows], self.r[rows], self.paths.large[rows], fits, place)
        scope = model.SCOPES[int(fits.scope[place])]
        return Blamed(element, nats, float(fits.ratio[place]), float(fits.share[place]), scope, rows[hit])

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
        """Drop what the others have made needless, and exchange what explains the rest worse than another does."""
        for _ in range(EXCHANGES if len(self.blamed) > 1 else 0):
            if not any(self._improve(one) for one in sorted(self.blamed, key=lambda one: one.nats)):
                return

    def _improve(self, one: Blamed) -> bool:
        self._remove(one)
        found = self._again(one)
        better = [rival for rival in self.rivals(found) if rival.nats > found.nats + 0.5] if found.nats > 0 else []
        if better:
            self._add(better[0])
        elif found.nats > 0:
            self._add(found)
        return bool(better) or found.nats <= 0

    def _again(self, one: Blamed) -> Blamed:
        only = np.array([one.element], dtype=np.intp)
        fits = self.fit(only)
        return self._blame(one.element, float(fits.nats[0] - self.cost[one.element]), fits, 0)


class _Without:
    """The search as if one element were not blamed."""

    def __init__(self, search: Search, one: Blamed) -> None:
        self._search, self._one = search, one
        self._blamed = one in search.blamed

    def __enter__(self) -> None:
        if self._blamed:
            self._search._remove(self._one)

    def __exit__(self, *what: object) -> None:
        if self._blamed:
            self._search._add(self._one)


def pool(lost: Floats, expected: Floats) -> Floats:
    """Nats by which that many losses are likelier than expected, all paths of an element taken as one (Poisson)."""
    more = lost > expected
    with np.errstate(divide="ignore", invalid="ignore"):
        nats = lost * np.log(lost / expected) - (lost - expected)
    return np.where(more, nats, 0.0)


def costs(paths: Paths, by_kind: Sequence[float]) -> Floats:
    return np.array(by_kind, dtype=np.float64)[paths.elements.kind]
