"""Shortest paths with ECMP through a fabric as it is really cabled, many at once.

Cables keep the name of the plan, which a host knows by the port at the lower end; where two cables were swapped, their
upper ends are at each other's switch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from topology.model import Fabric

Ints = NDArray[np.intp]
FAR = 99
"""More hops than any fabric has."""


class Routes:
    """`nics`: the cables of hosts, in the order of the fabric; direction `2 * cable + way` as in core.diagnosis.

    `swapped_ratio`: how many cables have their upper ends exchanged with another's of the same tier."""

    def __init__(self, fabric: Fabric, swapped_ratio: float = 0.0, seed: int = 0) -> None:
        self.fabric, self.links, self.nodes = fabric, fabric.links, fabric.nodes
        place = {node.name: number for number, node in enumerate(self.nodes)}
        tiers = np.array([node.tier or 0 for node in self.nodes], dtype=np.intp)
        ends = np.array([[place[link.a.node], place[link.b.node]] for link in self.links], dtype=np.intp)
        self.flipped = tiers[ends[:, 0]] > tiers[ends[:, 1]]  # a link written from above
        self.lower = np.where(self.flipped, ends[:, 1], ends[:, 0])
        self.planned = np.where(self.flipped, ends[:, 0], ends[:, 1])
        self.upper = self.planned.copy()
        self._swap(tiers, swapped_ratio, np.random.default_rng((seed, 11)))
        self.nics = np.flatnonzero(tiers[self.lower] == 0)
        self.host_of = self.lower[self.nics]
        self.rail_of = np.array([self.links[cable].a.rail or 0 for cable in self.nics.tolist()], dtype=np.intp)
        self._table(len(place), tiers)

    def _swap(self, tiers: Ints, ratio: float, chance: np.random.Generator) -> None:
        for tier in np.unique(tiers[self.lower]).tolist():
            cables = np.flatnonzero(tiers[self.lower] == tier)
            count = round(len(cables) * ratio / 2) * 2
            chosen = chance.choice(cables, count, replace=False)
            one, other = chosen[: count // 2], chosen[count // 2 :]
            self.upper[one], self.upper[other] = self.upper[other].copy(), self.upper[one].copy()

    def _table(self, count: int, tiers: Ints) -> None:
        """For each switch and each leaf (switch with hosts): the cables of shortest ways, and how many."""
        inner = np.flatnonzero(tiers[self.lower] > 0)
        leaves = np.unique(self.upper[self.nics])
        self.leaf_number = np.full(count, -1, dtype=np.intp)
        self.leaf_number[leaves] = np.arange(len(leaves))
        cables_of: list[list[int]] = [[] for _ in range(count)]
        for cable in inner.tolist():
            cables_of[self.lower[cable]].append(cable)
            cables_of[self.upper[cable]].append(cable)
        rows = {node: np.array(cables, dtype=np.intp) for node, cables in enumerate(cables_of) if cables}
        there = {
            node: np.where(self.lower[row] == node, self.upper[row], self.lower[row]) for node, row in rows.items()
        }
        far = np.full((count, len(leaves)), FAR, dtype=np.int16)
        far[leaves, np.arange(len(leaves))] = 0
        before = far + 1
        while (far != before).any():
            before = far.copy()
            for node, others in there.items():
                far[node] = np.minimum(far[node], before[others].min(axis=0) + 1)
        width = max(map(len, cables_of))
        self.ways = np.full((count, len(leaves), width), -1, dtype=np.int32)
        self.fan = np.zeros((count, len(leaves)), dtype=np.intp)
        for node, row in rows.items():
            good = far[there[node]] == far[node] - 1
            order = np.argsort(~good, axis=0, kind="stable")
            self.ways[node, :, : len(row)] = np.where(np.take_along_axis(good, order, 0), row[order], -1).T
            self.fan[node] = good.sum(axis=0)

    def walk(self, source: Ints, target: Ints, entropy: NDArray[np.uint64]) -> Ints:
        """Directions from NIC to NIC (places in `nics`), one row a path, -1 behind the end."""
        here, goal = self.upper[self.nics[source]], self.leaf_number[self.upper[self.nics[target]]]
        columns = [self._way(self.nics[source], up=np.ones(len(source), dtype=bool))]
        on_way = self.leaf_number[here] != goal
        while on_way.any():
            pick = mixed(entropy ^ (here.astype(np.uint64) << np.uint64(40)))
            fan = np.maximum(self.fan[here, goal], 1)
            cable = self.ways[here, goal, (pick % fan.astype(np.uint64)).astype(np.intp)].astype(np.intp)
            if (cable[on_way] < 0).any():
                raise ValueError("no way between two leaves")
            up = self.lower[cable] == here
            columns.append(np.where(on_way, self._way(cable, up), -1))
            here = np.where(on_way, np.where(up, self.upper[cable], self.lower[cable]), here)
            on_way = on_way & (self.leaf_number[here] != goal)
        columns.append(self._way(self.nics[target], up=np.zeros(len(target), dtype=bool)))
        rows = np.stack(columns, axis=1)
        return np.take_along_axis(rows, np.argsort(rows < 0, axis=1, kind="stable"), axis=1)

    def _way(self, cable: Ints, up: NDArray[np.bool_]) -> Ints:
        way: Ints = 2 * cable + (up == self.flipped[cable])
        return way

    def true_node_directions(self, node: str) -> Ints:
        """The directions into and out of a node as it is cabled."""
        place = [other.name for other in self.nodes].index(node)
        cables = np.flatnonzero((self.lower == place) | (self.upper == place))
        return np.concatenate((2 * cables, 2 * cables + 1))


def mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A hash as a switch's: the finaliser of SplitMix64."""
    out = values + np.uint64(0x9E3779B97F4A7C15)
    out = (out ^ (out >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    out = (out ^ (out >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return out ^ (out >> np.uint64(31))
