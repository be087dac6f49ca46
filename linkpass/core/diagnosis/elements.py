"""What can be at fault in a fabric, numbered: directions, nodes, links, NICs.

Directions and nodes are *keys*: paths are indexed by the keys that they cross. A link is its two directions, and so is
a NIC (a host's port): no path tells a NIC from its link, only evidence about either does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from topology.model import Link, Node

Kind = Literal["direction", "link", "nic", "switch", "host"]
KINDS: tuple[Kind, ...] = ("direction", "link", "nic", "switch", "host")
Ints = NDArray[np.intp]


class Layout(Protocol):
    """What a fabric consists of; `topology.model.Fabric` is one."""

    @property
    def nodes(self) -> tuple[Node, ...]: ...
    @property
    def links(self) -> tuple[Link, ...]: ...


class Elements:
    """The elements of a fabric. Direction `2 * link + way` is the number of its key; nodes follow, then links, NICs.

    `source`, `target`, `at_host`: of directions, the nodes at their ends and whether they come out of a host.
    `first`, `second`: the keys whose paths are an element's paths (-1: none); `kind`: places in KINDS."""

    def __init__(self, fabric: Layout) -> None:
        links, nodes = fabric.links, fabric.nodes
        self.nodes = {node.name: place for place, node in enumerate(nodes)}
        hosts = np.array([node.role == "host" for node in nodes], dtype=bool)
        names: list[str] = []
        ends: list[tuple[int, int]] = []
        nics: list[tuple[str, int]] = []
        for place, link in enumerate(links):
            a, b = self.nodes[link.a.node], self.nodes[link.b.node]
            for port, there in ((link.a, b), (link.b, a)):
                names.append(link.direction(port.node))
                ends.append((self.nodes[port.node], there))
                if hosts[self.nodes[port.node]]:
                    nics.append((port.id, place))
        self.directions, self.keys = len(names), len(names) + len(nodes)
        self.source, self.target = (np.array(side, dtype=np.intp) for side in zip(*ends, strict=True))
        self.at_host = hosts[self.source]
        self.names: tuple[str, ...] = (
            *names, *(node.name for node in nodes), *(link.id for link in links), *(name for name, _ in nics),
        )  # fmt: skip
        both = np.array([*range(len(links)), *(place for _, place in nics)], dtype=np.intp) * 2
        self.first = np.concatenate((np.arange(self.keys, dtype=np.intp), both))
        self.second = np.concatenate((np.full(self.keys, -1, dtype=np.intp), both + 1))
        self.kind = np.concatenate(
            (
                np.zeros(self.directions, dtype=np.int8),
                np.where(hosts, KINDS.index("host"), KINDS.index("switch")).astype(np.int8),
                np.full(len(links), KINDS.index("link"), dtype=np.int8),
                np.full(len(nics), KINDS.index("nic"), dtype=np.int8),
            )
        )
        self.index = {name: place for place, name in reversed(list(enumerate(self.names)))}
        """Element by name. A link's id, a direction's and a port's never are one another's (`topology.model`)."""
        self._links, self._nics = len(links), np.array([place for _, place in nics], dtype=np.intp)

    def __len__(self) -> int:
        return len(self.names)

    def kind_of(self, element: int) -> Kind:
        return KINDS[int(self.kind[element])]

    def link_of(self, direction: int) -> int:
        """The element that is the link of a direction."""
        return self.keys + (direction >> 1)

    def parts(self, element: int) -> set[int]:
        """The keys that an element consists of."""
        return {int(key) for key in (self.first[element], self.second[element]) if key >= 0}

    def of_keys(self, keys: Ints) -> Ints:
        """All elements that any of the keys belongs to, in order."""
        touched = np.zeros(self._links, dtype=bool)
        touched[keys[keys < self.directions] >> 1] = True
        links = np.flatnonzero(touched)
        nics = np.flatnonzero(touched[self._nics]) if len(self._nics) else self._nics
        return np.concatenate((keys, links + self.keys, nics + self.keys + self._links))

    def numbers_of(self, other: Elements) -> Ints:
        """The number here of each element of `other` by its name, -1 where there is none."""
        if other.names == self.names:
            return np.arange(len(self), dtype=np.intp)
        return np.array([self.index.get(name, -1) for name in other.names], dtype=np.intp)

    def numbers(self, paths: Sequence[Sequence[str]]) -> Ints:
        """Paths of direction names as rows of numbers, -1 behind the end of the shorter ones. Raises KeyError."""
        longest = max(map(len, paths), default=1)
        rows = np.full((len(paths), max(longest, 1)), -1, dtype=np.intp)
        for place, path in enumerate(paths):
            rows[place, : len(path)] = [self.index[name] for name in path]
        return rows
