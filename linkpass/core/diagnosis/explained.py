"""What is explained so far: the loss ratio of each path by the blame that stands, and what each element could gain
beyond that at most.

All of it is kept by difference: blame changes some paths, these some keys, and these some elements. What has been
fitted to paths that have not changed since is not fitted again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from linkpass.core.diagnosis import model
from linkpass.core.diagnosis.elements import Ints
from linkpass.core.diagnosis.paths import Floats, Paths

SLACK = 1.5
"""Pooled, losses of paths with different ratios are worth a little less than one by one."""
MOST_RATIO = 1 - 1e-9
"""However many elements are blamed, a path may still carry something."""
LEAST_SURPRISE = 1e-6
"""Less comes of rounding."""


@dataclass(frozen=True, slots=True)
class _Change:
    rows: Ints
    of_rows: Floats
    keys: Ints
    of_keys: Floats
    elements: Ints
    of_elements: Floats
    fits: Floats
    nats: float


class Explained:
    """`n` sent, `k` lost, `healthy`: loss ratio of each path if nothing fails; `cost` in nats of each element;
    `expected`: losses of the paths of each key then, if known.

    `r`: loss ratio of each path as explained; `nats`: by which the losses are likelier so; `bounds`: of each element,
    what it can gain over its cost, at most. It is no more than the surprises of its paths that show losses of their own
    accord or are blamed on something, and what the losses of the others pooled are worth: noise, path by path, would
    look like much, and paths with different ratios, pooled, like little."""

    def __init__(
        self, paths: Paths, n: Floats, k: Floats, healthy: Floats, cost: Floats, expected: Floats | None = None
    ) -> None:
        self.paths, self.n, self.k, self.healthy, self.cost = paths, n, k, healthy, cost
        self.nats = 0.0
        self._rows = np.stack((healthy, np.zeros(len(n)), np.zeros(len(n))))
        self.r, self._surprise, self._own = self._rows
        lossy = np.flatnonzero(k > 0)
        surprise = model.surprise(n[lossy], k[lossy], healthy[lossy])
        shows = surprise >= model.SHOWS_NATS
        own, rest = lossy[shows], lossy[~shows]
        self._surprise[own], self._own[own] = surprise[shows], 1.0
        if expected is None:
            expected = paths.sums(n * healthy)
        self._keys = np.zeros((3, paths.elements.keys + 1))  # the last for elements that have one key only
        self._keys[0, :-1] = paths.sums(surprise[shows], own)
        self._keys[1, :-1] = paths.sums(k[rest], rest)
        self._keys[2, :-1] = expected - paths.sums((n * healthy)[own], own)
        elements = np.arange(len(paths.elements), dtype=np.intp)
        self.bounds = self._bound(elements)
        self._fits = np.zeros((len(elements), 5))
        self._changes: list[_Change] = []

    def set(self, rows: Ints, r: Floats) -> None:
        """Explain paths in another way: their loss ratio is `r`."""
        keys = self.paths.keys_of(rows)
        elements = self.paths.elements.of_keys(keys)
        self._changes.append(
            _Change(
                rows, self._rows[:, rows], keys, self._keys[:, keys],
                elements, self.bounds[elements], self._fits[elements], self.nats,
            )
        )  # fmt: skip
        n, k, before, r = self.n[rows], self.k[rows], self.r[rows], np.minimum(r, MOST_RATIO)
        self.nats += float((k * np.log(r / before) + (n - k) * (np.log1p(-r) - np.log1p(-before))).sum())
        surprise = model.surprise(n, k, r)
        own = (surprise >= model.SHOWS_NATS) | (r > self.healthy[rows])
        surprise[~own] = 0.0
        rest, rested = 1.0 - own, 1.0 - self._own[rows]
        self._keys[0, :-1] += self.paths.sums(surprise - self._surprise[rows], rows)
        self._keys[1, :-1] += self.paths.sums(k * (rest - rested), rows)
        self._keys[2, :-1] += self.paths.sums(n * (r * rest - before * rested), rows)
        self.r[rows], self._surprise[rows], self._own[rows] = r, surprise, own
        self.bounds[elements] = self._bound(elements)
        self._fits[elements, 0] = 0.0

    def mark(self) -> int:
        """The present state, for `back_to`."""
        return len(self._changes)

    def back_to(self, mark: int) -> None:
        while len(self._changes) > mark:
            was = self._changes.pop()
            self._rows[:, was.rows] = was.of_rows
            self._keys[:, was.keys] = was.of_keys
            self.bounds[was.elements] = was.of_elements
            self._fits[was.elements] = was.fits
            self.nats = was.nats

    def fit(self, elements: Ints) -> model.Fits:
        stale = elements[self._fits[elements, 0] == 0.0]
        if stale.size:
            rows, begin = self.paths.crossing(stale)
            directions = stale < self.paths.elements.directions
            fits = model.fit(self.n[rows], self.k[rows], self.r[rows], self.paths.large[rows], begin, directions)
            self._fits[stale] = np.stack((np.ones(len(stale)), fits.nats, fits.ratio, fits.share, fits.scope), axis=1)
        _, nats, ratio, share, scope = self._fits[elements].T
        return model.Fits(nats, ratio, share, scope.astype(np.intp))

    def _bound(self, elements: Ints) -> Floats:
        surprise, lost, expected = (self._of(sums, elements) for sums in self._keys)
        nats = surprise + SLACK * pool(lost, expected)
        return np.where(nats > LEAST_SURPRISE, nats - self.cost[elements], -np.inf)

    def _of(self, sums: Floats, elements: Ints) -> Floats:
        result: Floats = sums[self.paths.elements.first[elements]] + sums[self.paths.elements.second[elements]]
        return result


def pool(lost: Floats, expected: Floats) -> Floats:
    """Nats by which that many losses are likelier than expected, all paths of an element taken as one (Poisson)."""
    nats = np.zeros(len(lost))
    more = np.flatnonzero(lost > np.maximum(expected, 1e-9))
    lost, expected = lost[more], np.maximum(expected[more], 1e-9)
    nats[more] = lost * np.log(lost / expected) - (lost - expected)
    return nats
