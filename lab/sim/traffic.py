"""What is sent: probes with many labels to some peers of the same rail, and a job's flows; known by their traces."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lab.sim.routes import Routes
from linkpass.core.diagnosis.elements import Elements
from linkpass.core.diagnosis.paths import Paths

Ints = NDArray[np.intp]
PROBES_PER_HOST = 2000.0
"""A second: the daemon's budget (`max_packets_per_s`)."""
LABELS = 8
FLOWS = 4
FLOW_PACKETS = 10_000.0
"""A second and flow, of which the retransmissions are counted."""
LARGE_RATIO = 0.25
LOST_TRACES = 0.01


@dataclass(frozen=True, slots=True)
class Traffic:
    """One row a path. `directions`: as packets go; `paths`: as the hosts believe, a trace in a hundred lost.

    `rate`: packets a second; `flow`: a job's flow (else probes); `entropy`: what the switches hash on."""

    routes: Routes
    paths: Paths
    directions: Ints
    rate: NDArray[np.float64]
    flow: NDArray[np.bool_]
    entropy: NDArray[np.uint64]


def plan(routes: Routes, elements: Elements, *, peers: int, seed: int = 0) -> Traffic:
    """`peers`: how many other NICs each NIC probes with LABELS labels each; FLOWS more paths carry flows."""
    chance = np.random.default_rng((seed, 12))
    nics = np.arange(len(routes.nics))
    source = np.repeat(nics, peers + FLOWS)
    target = np.stack([_others(routes, chance) for _ in range(peers + FLOWS)], axis=1).ravel()
    flow = np.tile(np.arange(peers + FLOWS) >= peers, len(nics))
    each = np.where(flow, 1, LABELS)
    source, target, flow = np.repeat(source, each), np.repeat(target, each), np.repeat(flow, each)
    entropy = chance.integers(0, 2**40, len(source), dtype=np.uint64)
    large = ~flow & (chance.random(len(source)) < LARGE_RATIO) | flow
    directions = routes.walk(source, target, entropy)
    known, holes = directions.copy(), chance.random(len(source)) < LOST_TRACES
    known[np.ix_(holes, np.arange(1, known.shape[1]))] = -1  # its uplink a host knows without a trace
    uplinks = np.bincount(routes.host_of)[routes.host_of[0]]
    rate = np.where(flow, FLOW_PACKETS, PROBES_PER_HOST / (uplinks * peers * LABELS))
    return Traffic(routes, Paths(elements, known, holes=holes, large=large), directions, rate, flow, entropy)


def _others(routes: Routes, chance: np.random.Generator) -> Ints:
    """A NIC of the same rail in another host for each, and each for one: a random round."""
    target = np.empty(len(routes.nics), dtype=np.intp)
    for rail in np.unique(routes.rail_of).tolist():
        members = np.flatnonzero(routes.rail_of == rail)
        while True:
            order = chance.permutation(members)
            after = np.roll(order, -1)
            if (routes.host_of[order] != routes.host_of[after]).all():
                break
        target[order] = after
    return target
