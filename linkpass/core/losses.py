"""Which directions lose packets: those without which what was lost is explained much worse.

An explanation is a set of culprits: directions, and single paths (one hash bucket may fail where its links do not).
Each loses at the ratio that fits its paths best; its weight is the log-likelihood of that against the tolerated ratio,
its price is PRICE, so that the smallest explanation wins. A direction is named when the best explanation with it is
RIVAL ahead of the best without it, however that is made up: compared with each other direction alone, one that crosses
half of the paths of two real faults looks better than either. Sets are completed greedily (the largest gain first), as
NetBouncer and Flock begin (NSDI 2019; CoNEXT 2023); the full solver is `core.diagnosis`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

RIVAL = 4.6
"""A hundred to one: by how much the losses must be likelier with a direction than without it."""
PRICE = 6.0
"""Log-likelihood that one more culprit must earn."""
FITTED = 2.0
"""A ratio that was fitted to the losses flatters them by about as much (half a chi-square and the choice of it)."""
TRIED = 4
"""So many directions are weighed at a time, the strongest first."""
CULPRITS = 6
"""An explanation has no more."""
MOST = 64
"""Of all directions and paths over which something was lost so many are looked at, the strongest."""


@dataclass(frozen=True, slots=True)
class Count:
    """Probes sent and lost over a path, with the directions it crosses."""

    links: tuple[str, ...]
    sent: float
    lost: float


@dataclass(frozen=True, slots=True)
class _Culprit:
    """Directions that the same paths cross (none: a path by itself), those paths, and the weight of their losses."""

    links: tuple[str, ...]
    paths: frozenset[int]
    weight: float


def lossy_links(counts: Sequence[Count], ok_ratio: float, bad_ratio: float, threshold: float) -> list[str]:
    """Directions whose paths lose more than chance allows and which nothing else explains, the most likely first.

    `threshold`: log-likelihood of `bad_ratio` against `ok_ratio` from which on losses count (Wald 1945). Directions
    that all the same paths cross cannot be told apart, and are named together."""
    return _Losses(counts, ok_ratio).named(bad_ratio, threshold)


def _likelihood(sent: float, lost: float, ratio: float, ok_ratio: float) -> float:
    """Log-likelihood of a ratio against the tolerated one."""
    return lost * math.log(ratio / ok_ratio) + (sent - lost) * math.log((1 - ratio) / (1 - ok_ratio))


class _Losses:
    def __init__(self, counts: Sequence[Count], ok_ratio: float) -> None:
        self._counts, self._ok = counts, ok_ratio
        lossy = frozenset(n for n, count in enumerate(counts) if count.lost)
        crossing: dict[str, list[int]] = {}
        for n, count in enumerate(counts):
            for link in count.links:
                crossing.setdefault(link, []).append(n)
        alike: dict[frozenset[int], list[str]] = {frozenset((n,)): [] for n in sorted(lossy)}
        for link, paths in crossing.items():
            if not lossy.isdisjoint(paths):
                alike.setdefault(frozenset(paths), []).append(link)
        found = [_Culprit(tuple(sorted(links)), paths, self._weight(paths)) for paths, links in alike.items()]
        found.sort(key=lambda one: (-one.weight, one.links, min(one.paths)))
        self._culprits = [one for one in found if one.weight > (0.0 if one.links else PRICE)][:MOST]

    def _sums(self, paths: frozenset[int]) -> tuple[float, float]:
        """Probes sent and lost over these paths."""
        return sum(self._counts[n].sent for n in paths), sum(self._counts[n].lost for n in paths)

    def _weight(self, paths: frozenset[int]) -> float:
        """Of a culprit that has these paths, at the ratio that fits them best."""
        sent, lost = self._sums(paths)
        if lost <= self._ok * sent:
            return 0.0
        return _likelihood(sent, lost, min(lost / sent, 0.999), self._ok)

    def named(self, bad_ratio: float, threshold: float) -> list[str]:
        named: list[str] = []
        for one in [culprit for culprit in self._culprits if culprit.links][:TRIED]:
            if one.weight < threshold + FITTED and _likelihood(*self._sums(one.paths), bad_ratio, self._ok) < threshold:
                continue
            if self._explained(one, None) - self._explained(None, one) >= RIVAL:
                named += one.links
        return named

    def _explained(self, first: _Culprit | None, without: _Culprit | None) -> float:
        """Weight of the explanation that begins with one culprit, or does without another, less its price."""
        gained = 0.0 if first is None else first.weight - PRICE
        taken: frozenset[int] = frozenset() if first is None else first.paths
        for _ in range(CULPRITS):
            best, most = None, PRICE
            for one in self._culprits:
                if one is without:
                    continue
                weight = one.weight if taken.isdisjoint(one.paths) else self._weight(one.paths - taken)
                if weight > most:
                    best, most = one, weight
            if best is None:
                break
            gained += most - PRICE
            taken |= best.paths
        return gained
