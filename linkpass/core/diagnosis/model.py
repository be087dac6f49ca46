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
LEAST_RATIO, MOST_RATIO = 5e-5, 0.999
LEAST_SHARE, MOST_SHARE = 1 / 256, 0.6
SHOWS_NATS = 4.0
"""A path shows losses of its own accord when they are e**4 times likelier at their own ratio than by what is known."""
PARTIAL_NATS, LARGE_NATS = 3.0, 2.0
"""What it costs to suppose that a fault is not of all paths. Buckets and sizes are a direction's: links and nodes do
not fail in part, or a switch would do for any two faults beneath it."""
ROUNDS = 4


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
    starts, sizes = begin[:-1], np.diff(begin)
    shows = surprise(n, k, r) >= SHOWS_NATS
    best = _whole(n, k, r, starts, sizes, np.ones(len(n), dtype=bool))
    if shows.any():
        part = _partial(n, k, r, starts, sizes, shows)
        best = _better(best, part, np.where(directions, PARTIAL_NATS, np.inf))
    if large.any():
        only = _whole(n, k, r, starts, sizes, large)
        only = Fits(only.nats, only.ratio, only.share, np.full(len(starts), SCOPES.index("large")))
        best = _better(best, only, np.where(directions, LARGE_NATS, np.inf))
    return best


def _better(one: Fits, other: Fits, cost: Floats) -> Fits:
    wins = other.nats - cost > one.nats
    return Fits(
        np.where(wins, other.nats - cost, one.nats),
        np.where(wins, other.ratio, one.ratio),
        np.where(wins, other.share, one.share),
        np.where(wins, other.scope, one.scope),
    )


def _ratio(n: Floats, k: Floats, r: Floats, weight: Floats, starts: Ints) -> Floats:
    """The excess loss over what is explained, as a ratio of what gets past that."""
    sent = np.add.reduceat(weight * n * (1 - r), starts)
    lost = np.add.reduceat(weight * (k - n * r), starts)
    return np.clip(lost / np.maximum(sent, 1e-9), LEAST_RATIO, MOST_RATIO)


def _whole(n: Floats, k: Floats, r: Floats, starts: Ints, sizes: Ints, of: Flags) -> Fits:
    odds = np.log((1 - WRONG_RATIO) / WRONG_RATIO)
    mine = of.astype(np.float64)
    ratio = _ratio(n, k, r, mine, starts)
    for _ in range(ROUNDS):
        hit = _sigmoid(gains(n, k, r, np.repeat(ratio, sizes)) + odds) * mine
        ratio = _ratio(n, k, r, hit, starts)
    gain = gains(n, k, r, np.repeat(ratio, sizes))
    tells = (n * (1 - r) * -np.log1p(-np.repeat(ratio, sizes)) > TELLING) & of
    spared = np.add.reduceat((tells & (gain < 0)).astype(np.float64), starts)
    contradicted = spared > MOST_WRONG_RATIO * np.add.reduceat(tells.astype(np.float64), starts)
    nats = np.add.reduceat(np.logaddexp(gain + np.log(1 - WRONG_RATIO), np.log(WRONG_RATIO)) * mine, starts)
    nats[contradicted] = -np.inf
    return Fits(nats, ratio, np.full(len(starts), 1 - WRONG_RATIO), np.zeros(len(starts), dtype=np.intp))


def _partial(n: Floats, k: Floats, r: Floats, starts: Ints, sizes: Ints, shows: Flags) -> Fits:
    mine = shows.astype(np.float64)
    hit = mine
    for _ in range(ROUNDS):
        ratio = _ratio(n, k, r, hit, starts)
        share = np.clip(np.add.reduceat(hit, starts) / sizes, LEAST_SHARE, MOST_SHARE)
        odds = np.repeat(np.log(share / (1 - share)), sizes)
        gain = gains(n, k, r, np.repeat(ratio, sizes))
        hit = _sigmoid(gain + odds) * mine
    spread = np.repeat(share, sizes)
    each = np.where(shows, np.logaddexp(gain + np.log(spread), np.log1p(-spread)), np.log1p(-spread))
    none = np.add.reduceat(mine, starts) == 0
    nats = np.where(none, -np.inf, np.add.reduceat(each, starts))
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
    return 0.5 * (1 + np.tanh(0.5 * x))
