"""The model: how likely are the losses of all paths if these elements fail.

Every direction loses a packet with probability `noise_ratio`, each on its own. An element that fails loses packets of
the paths that cross it with a ratio `q` of its own, unknown; not all of them: with probability `share` a path is hit.
`share` just below 1 is a whole fault, and forgives that a few paths lie elsewhere than we believe (a stale trace, a
wrong cable), but not many; a small share is a partial fault (one hash bucket), which has to show on each path that it
hits; `large` is a fault of paths with large packets only. Of a path's `n` packets `k` are lost, binomially. Failures
are a priori independent and rare, each kind with its cost (minus the logarithm of its probability), to which evidence
about one element adds. The best explanation has the greatest likelihood times prior: more elements explain more and
cost more, so that a leaf costs less than the five links that would explain as much.

Sources. 007 (Arzani et al., NSDI 2018): flows tell by their own retransmissions, and few elements explain most of
them. NetBouncer (Tan et al., NSDI 2019): success of a path is the product over its links, and devices are candidates
beside links; its quadratic error is replaced by the likelihood, which knows how much a path with few packets says.
Flock (Harsh et al., PACMNET 2023): a discrete graphical model with a prior per element, greedy search, and gains for
many candidates at once; its fixed loss ratios are replaced by estimated ones, its exploration of all candidates by an
upper bound that leaves few to look at.

Assumed: losses of different packets are independent given the elements; paths are known but for the few that `share`
forgives; a path crosses an element once; ratios are steady within the memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from linkpass.core.diagnosis.elements import Ints
from linkpass.core.diagnosis.paths import Flags, Floats

Scope = Literal["whole", "partial", "large"]
SCOPES: tuple[Scope, ...] = ("whole", "partial", "large")
WRONG_RATIO, MOST_WRONG_RATIO = 0.01, 0.3
"""Paths that are believed to cross an element and do not: as a rule, and at most."""
TELLING = 2.3
"""A path on which so many losses are expected has one with 90 %: of such paths it can be said whether they are hit."""
LEAST_RATIO, MOST_RATIO = 5e-5, 0.99999
"""At the most, nothing is left that a second element would explain."""
LEAST_SHARE, MOST_SHARE = 1 / 256, 0.6
SHOWS_NATS = 4.0
"""A path shows losses of its own accord when they are e**4 times likelier at their own ratio than by what is known."""
PARTIAL_NATS, LARGE_NATS = 3.0, 2.0
"""What it costs to suppose that a fault is not of all paths. Buckets and sizes are a direction's: links and nodes do
not fail in part, or a switch would do for any two faults beneath it."""
ROUNDS = 4
TWICE = 2.0
"""By so much must ratios differ for a fit to begin with each."""


def surprise(n: Floats, k: Floats, r: Floats) -> Floats:
    """Nats by which `k` losses of `n` are likelier at the ratio k/n than at `r`; 0 where fewer are lost than expected.

    The binomial's Kullback-Leibler divergence: no element's failure can explain a path better than that."""
    ratio = np.minimum(k / np.maximum(n, 1e-9), 1.0)
    kept = np.where(ratio < 1, (n - k) * np.log(np.maximum(1 - ratio, 1e-300) / (1 - r)), 0.0)
    lost = k * np.log(np.maximum(ratio, 1e-300) / r)
    return np.where(ratio > r, np.maximum(lost + kept, 0.0), 0.0)


@dataclass(frozen=True, slots=True)
class Fits:
    """How well each of some elements explains its paths: nats gained, loss ratio, share, place in SCOPES."""

    nats: Floats
    ratio: Floats
    share: Floats
    scope: Ints


def gains(n: Floats, k: Floats, r: Floats, q: Floats) -> Floats:
    """Nats by which `k` losses of `n` are likelier if an element with loss ratio `q` joins what makes `r`."""
    return k * np.log((r + q - r * q) / r) + (n - k) * np.log1p(-q)


def fit(n: Floats, k: Floats, r: Floats, large: Flags, begin: Ints, directions: Flags) -> Fits:
    """Fit each element's ratio, share and scope to its paths (expectation maximisation, a few rounds).

    `n`, `k`, `r`, `large`: sent, lost, loss ratio as explained so far, size; one element's paths after the other's,
    `begin` their first places and the end; `directions`: which elements are directions. None may be without paths."""
    best = _whole(n, k, r, begin)
    sizes = np.diff(begin)
    of_directions = np.repeat(directions, sizes)
    lossy = np.flatnonzero(of_directions & (k > 0))
    shows = lossy[surprise(n[lossy], k[lossy], r[lossy]) >= SHOWS_NATS]
    if shows.size:
        some, starts = _among(shows, begin)
        _better(best, some, _partial(n[shows], k[shows], r[shows], starts, sizes[some]), PARTIAL_NATS)
    only = np.flatnonzero(of_directions & large)
    if only.size:
        some, starts = _among(only, begin)
        found = _whole(n[only], k[only], r[only], starts)
        found.scope[:] = SCOPES.index("large")
        _better(best, some, found, LARGE_NATS)
    return best


def _among(rows: Ints, begin: Ints) -> tuple[Ints, Ints]:
    """The elements that have any of these places in a row of paths, and where theirs begin among these."""
    starts = np.searchsorted(rows, begin)
    some = np.flatnonzero(np.diff(starts))
    return some, np.append(starts[some], len(rows))


def _better(best: Fits, some: Ints, other: Fits, cost: float) -> None:
    """Put what fits some of the elements better where it does."""
    wins = other.nats - cost > best.nats[some]
    best.nats[some[wins]] = other.nats[wins] - cost
    best.ratio[some[wins]], best.share[some[wins]] = other.ratio[wins], other.share[wins]
    best.scope[some[wins]] = other.scope[wins]


def _whole(n: Floats, k: Floats, r: Floats, begin: Ints) -> Fits:
    starts, sizes = begin[:-1], np.diff(begin)
    owner = np.repeat(np.arange(len(starts)), sizes)
    lossy = np.flatnonzero(k)
    n1, k1, r1, owner1 = n[lossy], k[lossy], r[lossy], owner[lossy]
    passed, excess = n * (1 - r), k - n * r
    odds = np.log((1 - WRONG_RATIO) / WRONG_RATIO)
    ratio = _ratio(excess, passed, starts)
    for round_ in range(ROUNDS + 1):
        gain = n * np.log1p(-ratio)[owner]  # most paths lose nothing
        gain[lossy] = gains(n1, k1, r1, ratio[owner1])
        if round_ < ROUNDS:
            hit = _sigmoid(gain + odds)
            ratio = _ratio(hit * excess, hit * passed, starts)
    tells = passed * -np.log1p(-ratio)[owner] > TELLING
    spared = np.add.reduceat((tells & (gain < 0)).astype(np.float64), starts)
    contradicted = spared > MOST_WRONG_RATIO * np.add.reduceat(tells.astype(np.float64), starts)
    each = np.log((1 - WRONG_RATIO) * np.exp(np.minimum(gain, 0.0)) + WRONG_RATIO)
    each[lossy] = np.logaddexp(gain[lossy] + np.log(1 - WRONG_RATIO), np.log(WRONG_RATIO))
    nats = np.add.reduceat(each, starts)
    nats[contradicted] = -np.inf
    return Fits(nats, ratio, np.full(len(starts), 1 - WRONG_RATIO), np.zeros(len(starts), dtype=np.intp))


def _ratio(excess: Floats, passed: Floats, starts: Ints) -> Floats:
    """The excess loss over what is explained, as a ratio of what gets past that."""
    ratio = np.add.reduceat(excess, starts) / np.maximum(np.add.reduceat(passed, starts), 1e-9)
    return np.clip(ratio, LEAST_RATIO, MOST_RATIO)


def _partial(n: Floats, k: Floats, r: Floats, begin: Ints, sizes: Ints) -> Fits:
    """`n`, `k`, `r` of the paths that show losses of their own accord, out of `sizes` of each element: no other is hit.

    Begun twice, as packets tell and as paths do: one flow must not outweigh all the paths that lose everything."""
    starts, count = begin[:-1], np.diff(begin)
    passed, excess = n * (1 - r), k - n * r
    by_packets = _ratio(excess, passed, starts)
    by_paths = np.clip(np.add.reduceat(excess / passed, starts) / count, LEAST_RATIO, MOST_RATIO)
    best = _part(n, k, r, begin, sizes, by_packets)
    differs = np.flatnonzero(by_paths > TWICE * by_packets)
    if differs.size:
        rows, some = np.repeat(by_paths > TWICE * by_packets, count), np.append(0, np.cumsum(count[differs]))
        _better(best, differs, _part(n[rows], k[rows], r[rows], some, sizes[differs], by_paths[differs]), 0.0)
    return best


def _part(n: Floats, k: Floats, r: Floats, begin: Ints, sizes: Ints, ratio: Floats) -> Fits:
    starts, count = begin[:-1], np.diff(begin)
    owner = np.repeat(np.arange(len(starts)), count)
    passed, excess = n * (1 - r), k - n * r
    share: Floats = np.clip(count / sizes, LEAST_SHARE, MOST_SHARE)
    for round_ in range(ROUNDS):
        gain = gains(n, k, r, ratio[owner])
        if round_ < ROUNDS - 1:
            hit = _sigmoid(gain + np.log(share / (1 - share))[owner])
            ratio = _ratio(hit * excess, hit * passed, starts)
            share = np.clip(np.add.reduceat(hit, starts) / sizes, LEAST_SHARE, MOST_SHARE)
    each = np.logaddexp(gain + np.log(share)[owner], np.log1p(-share)[owner])
    hits_nats: Floats = np.add.reduceat(each, starts)
    nats: Floats = hits_nats + (sizes - count).astype(np.float64) * np.log1p(-share)
    return Fits(nats, ratio, share, np.ones(len(starts), dtype=np.intp))


def hits(n: Floats, k: Floats, r: Floats, large: Flags, found: Fits, place: int = 0) -> Flags:
    """Which of the paths of an element, fitted at `place`, its fault hits."""
    ratio, share, scope = float(found.ratio[place]), float(found.share[place]), SCOPES[int(found.scope[place])]
    likely: Flags = gains(n, k, r, np.full(len(n), ratio)) + np.log(share / (1 - share)) > 0
    if scope == "partial":
        likely &= surprise(n, k, r) >= SHOWS_NATS
    if scope == "large":
        likely &= large
    return likely


def _sigmoid(x: Floats) -> Floats:
    return 1 / (1 + np.exp(np.minimum(-x, 700.0)))
