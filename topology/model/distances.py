"""How far every switch is from a node, and what a failure changes of it.

Repair is the part of Ramalingam and Reps (An incremental algorithm for a generalization of the shortest-path problem,
1996) that edges without weights need when some are taken away: only nodes whose every shortest way is gone are looked
at again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from heapq import heapify, heappop, heappush

Around = Mapping[str, Collection[str]]
"""Node -> its neighbours in one direction."""


def distances_to(dst: str, into: Around, transit: Set[str]) -> dict[str, int]:
    """Edges from each node of `transit` that reaches `dst` by such nodes, and 0 for `dst`; breadth first."""
    hops, ring, far = {dst: 0}, [dst], 0
    while ring:
        far += 1
        outer = {peer for name in ring for peer in into[name]}
        ring = [peer for peer in outer if peer in transit and peer not in hops]
        hops.update(dict.fromkeys(ring, far))
    return hops


def repaired(
    hops: Mapping[str, int], gone: Set[tuple[str, str]], out: Around, into: Around, transit: Set[str]
) -> Mapping[str, int]:
    """The same distances without the edges `gone`; the very same mapping where they change none."""
    lost = _without_way(hops, gone, out, into, transit)
    if not lost:
        return hops
    left = dict(hops)
    for name in lost:
        del left[name]
    waiting = [
        (1 + min(near), name)
        for name in lost
        if (near := [left[peer] for peer in out[name] if peer in left and (name, peer) not in gone])
    ]
    heapify(waiting)
    while waiting:
        far, name = heappop(waiting)
        if name in left:
            continue
        left[name] = far
        for peer in into[name]:
            if peer in lost and peer not in left and (peer, name) not in gone:
                heappush(waiting, (far + 1, peer))
    return left


def _without_way(
    hops: Mapping[str, int], gone: Set[tuple[str, str]], out: Around, into: Around, transit: Set[str]
) -> set[str]:
    """Nodes that have no neighbour left which is one nearer, those first that are near."""
    waiting = [(hops[a], a) for a, b in gone if a in hops and hops.get(b) == hops[a] - 1]
    heapify(waiting)
    lost: set[str] = set()
    while waiting:
        far, name = heappop(waiting)
        if name in lost:
            continue
        ways = (peer for peer in out[name] if hops.get(peer) == far - 1 and peer not in lost)
        if any((name, peer) not in gone for peer in ways):
            continue
        lost.add(name)
        for peer in into[name]:
            if peer in transit and hops.get(peer) == far + 1:
                heappush(waiting, (far + 1, peer))
    return lost
