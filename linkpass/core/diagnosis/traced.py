"""The part of the fabric that one host sees: nodes and links from the hops of its paths.

Nothing is known of ports but the host's own: a port of another node is called by the neighbour it leads to, and
parallel links between other nodes are one link here. Names of links are sorted, so that hosts agree on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from linkpass.core.diagnosis.elements import Elements, Ints
from linkpass.core.diagnosis.paths import Paths
from topology.model import Link, Node, Port

Step = tuple[str, str, str]
"""Two nodes and, of a link of the host itself, its uplink."""


@dataclass(frozen=True, slots=True)
class Row:
    """A path. `nodes`: from the host to the peer, None where a hop is mute."""

    uplink: str
    nodes: tuple[str | None, ...]

    @property
    def hole(self) -> bool:
        return None in self.nodes

    def steps(self) -> list[Step]:
        """The known steps in order; a mute hop breaks the chain."""
        near = enumerate(pairwise(self.nodes))
        return [(a, b, "" if n else self.uplink) for n, (a, b) in near if a is not None and b is not None]


def traced(rows: Sequence[Row], hosts: Iterable[str], probed: int | None = None) -> Paths:
    """The rows as paths, in their order, over the elements that they show. `hosts`: names of nodes that are hosts; all
    others are switches. `probed`: of how many rows paths are probed; those after them are of flows."""
    known = set(hosts)
    names = dict.fromkeys(name for row in rows for name in row.nodes if name is not None)
    nodes = tuple(Node(name, "host" if name in known else "switch") for name in names)
    links = _links(rows)
    elements = Elements(_Layout(nodes, tuple(links.values())))
    longest = max((len(row.nodes) for row in rows), default=1)
    directions: Ints = np.full((len(rows), longest), -1, dtype=np.intp)
    for place, row in enumerate(rows):
        numbers = [elements.index[links[_key(*step)].direction(step[0])] for step in row.steps()]
        directions[place, : len(numbers)] = numbers
    holes = np.array([row.hole for row in rows], dtype=bool)
    weak = np.arange(len(rows)) >= (len(rows) if probed is None else probed)
    return Paths(elements, directions, holes=holes, weak=weak)


def numbered(rows: Sequence[Row], elements: Elements) -> dict[Step, int]:
    """The steps of the rows that `elements` were made of -> the number of the direction."""
    links = _links(rows)
    steps = dict.fromkeys(step for row in rows for step in row.steps())
    return {step: elements.index[links[_key(*step)].direction(step[0])] for step in steps}


@dataclass(frozen=True, slots=True)
class _Layout:
    nodes: tuple[Node, ...]
    links: tuple[Link, ...]


def _key(a: str, b: str, uplink: str) -> Step:
    return (a, b, uplink) if a < b else (b, a, uplink)


def _links(rows: Sequence[Row]) -> dict[Step, Link]:
    ends = dict.fromkeys(_key(*step) for row in rows for step in row.steps())
    parallel: dict[tuple[str, str], int] = {}
    for a, b, _ in ends:
        parallel[a, b] = parallel.get((a, b), 0) + 1
    host = next((row.nodes[0] for row in rows), None)
    found: dict[Step, Link] = {}
    for place, (a, b, uplink) in enumerate(ends):
        ports = [Port(node, _port(node, far, uplink, host)) for node, far in ((a, b), (b, a))]
        found[a, b, uplink] = Link(ports[0], ports[1], place, by_port=parallel[a, b] > 1)
    return found


def _port(node: str, far: str, uplink: str, host: str | None) -> str:
    if not uplink:
        return far
    return uplink if node == host else f"{far}.{uplink}"
