"""Two published ways to localise, written anew from their papers, on the same paths and counts.

007 (Arzani et al., NSDI 2018): each flow that lost a packet gives 1/h of a vote to each of the h directions on its
path; the direction with most votes is bad, as long as it has one in a hundred of all; the flows that it explains do
not vote again. NetBouncer (Tan et al., NSDI 2019): a device all of whose paths are bad is bad; then success ratios of
directions by coordinate descent on the squared error of the paths' products, with a penalty that drives them to 0 or 1;
below a threshold a direction is bad. Both name directions; `lifted` gives them the words for links and nodes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from linkpass.core.diagnosis.paths import Paths

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]
VOTES_RATIO = 0.01
MOST_NAMED = 2000
PENALTY = 0.1
BAD_RATIO = 2e-3
"""Loss above which NetBouncer's directions and paths are bad."""
DEVICE_RATIO = 0.95
"""Of a device's paths that have to be bad: all, but for the wrongly cabled."""
ITERATIONS = 30
LIFT_RATIO = 0.6


def voting(paths: Paths, directions: Ints, sent: Floats, lost: Floats) -> Ints:
    """007: the bad directions. `directions`: one row a path as believed, -1 behind its end. Paths that lose less than
    BAD_RATIO do not vote: noise would drown the rest."""
    known = directions[(lost > BAD_RATIO * sent) & ~paths.holes]
    alive = np.ones(len(known), dtype=bool)
    share = 1.0 / np.maximum((known >= 0).sum(axis=1), 1)
    named: list[int] = []
    count = paths.elements.directions + 1
    votes = np.zeros(count)
    for column in known.T:
        votes += _bincount(column, share, count)
    least = VOTES_RATIO * float(votes.sum()) + 1e-9
    while len(named) < MOST_NAMED:
        best = int(np.argmax(votes))
        if votes[best] < least:
            break
        named.append(best)
        out = alive & (known == best).any(axis=1)
        alive &= ~out
        for column in known[out].T:
            votes -= _bincount(column, share[out], count)
    return np.array(named, dtype=np.intp)


def _bincount(column: Ints, share: Floats, count: int) -> Floats:
    there = column >= 0
    return np.bincount(column[there], share[there], count).astype(np.float64)


def bouncing(paths: Paths, blocks: Ints, sent: Floats, lost: Floats) -> Ints:
    """NetBouncer: the bad elements (directions and nodes). `blocks`: a number for each direction; directions with the
    same are never on one path, so that their steps of the descent do not depend on one another."""
    use = (sent > 0) & ~paths.holes
    success = np.where(use, 1 - lost / np.maximum(sent, 1.0), 1.0)
    number = paths.elements.directions
    total, bad = paths.sums(use.astype(float)), paths.sums((use & (success < 1 - BAD_RATIO)).astype(float))
    devices = number + np.flatnonzero((total[number:] > 0) & (bad[number:] >= DEVICE_RATIO * total[number:]))
    if devices.size:
        use[paths.crossing(devices)[0]] = False
        total = paths.sums(use.astype(float))
    mean = paths.sums(np.where(use, 1 - success, 0.0))[:number] / np.maximum(total[:number], 1.0)
    open_ = np.flatnonzero(mean > BAD_RATIO / 2)
    x = np.ones(number)
    x[open_] = np.maximum(1 - mean[open_], 1e-6)
    product = np.ones(len(use))
    for direction_rows, value in _rows(paths, open_, x):
        np.multiply.at(product, direction_rows, value)
    groups = [open_[blocks[open_] == block] for block in np.unique(blocks[open_])]
    for _ in range(ITERATIONS):
        moved = 0.0
        for group in groups:
            rows, begin = paths.crossing(group)
            spread = np.repeat(x[group], np.diff(begin))
            rest = np.where(use[rows], product[rows] / np.maximum(spread, 1e-6), 0.0)
            top = 2 * np.add.reduceat(rest * success[rows], begin[:-1]) - PENALTY
            bottom = 2 * (np.add.reduceat(rest * rest, begin[:-1]) - PENALTY)
            new = np.clip(np.where(bottom > 1e-9, top / np.maximum(bottom, 1e-9), 1.0), 1e-6, 1.0)
            product[rows] = product[rows] / np.maximum(spread, 1e-6) * np.repeat(new, np.diff(begin))
            moved = max(moved, float(np.abs(new - x[group]).max()))
            x[group] = new
        if moved < 1e-4:
            break
    return np.concatenate((np.flatnonzero(x < 1 - BAD_RATIO), devices))


def _rows(paths: Paths, directions: Ints, x: Floats) -> list[tuple[Ints, Floats]]:
    rows, begin = paths.crossing(directions)
    return [(rows, np.repeat(x[directions], np.diff(begin)))] if len(rows) else []


def lifted(paths: Paths, named: Ints) -> list[int]:
    """Directions as the elements that a person would see in them: a node most of whose directions are named, a link
    both of whose are, else the direction. Nodes that are named stay."""
    elements, number = paths.elements, paths.elements.directions
    bad = np.zeros(number, dtype=bool)
    bad[named[named < number]] = True
    nodes = len(elements.nodes)
    ends = np.concatenate((elements.source, elements.target))
    total = np.bincount(ends, minlength=nodes)
    share = np.bincount(ends, np.tile(bad, 2).astype(float), nodes) / np.maximum(total, 1)
    whole = set((named[named >= number] - number).tolist())
    for node in np.argsort(-total, kind="stable").tolist():  # a switch before the hosts behind it
        if share[node] >= LIFT_RATIO and total[node] > 2:
            whole.add(node)
            bad[(elements.source == node) | (elements.target == node)] = False
            share = np.bincount(ends, np.tile(bad, 2).astype(float), nodes) / np.maximum(total, 1)
    inside = np.isin(elements.source, list(whole)) | np.isin(elements.target, list(whole))
    left = bad & ~inside
    both = left[0::2] & left[1::2]
    single = np.flatnonzero(left & ~np.repeat(both, 2))
    return (
        [number + node for node in sorted(whole)]
        + [elements.keys + int(x) for x in np.flatnonzero(both)]
        + single.tolist()
    )
