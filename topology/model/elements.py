"""Nodes, ports, links and paths, and how they are named.

A link is `leaf1-spine1`, its ends in the order of the topology file; a direction of it is `leaf1>spine1`.
Where that would name two things (parallel links, or a node that is itself called `leaf1-spine1`) the ports are part
of the name: `leaf1:eth1-spine1:eth2`, `leaf1:eth1>spine1:eth2`. Node names may contain `-`, so an id is looked up in
the Fabric and never split.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, NamedTuple

Role = Literal["host", "switch"]

_NO_LABELS: Mapping[str, str] = MappingProxyType({})


class FabricError(ValueError):
    """Nodes and links that do not make a fabric."""


class UnknownElementError(LookupError):
    """A name that is no element of the fabric; the message names near matches."""


@dataclass(frozen=True, slots=True)
class Node:
    """A host or a switch. `tier` is the distance from the hosts: 0 host, 1 leaf, 2 spine; None when nobody knows."""

    name: str
    role: Role
    tier: int | None = None
    rack: str | None = None
    kind: str = ""
    labels: Mapping[str, str] = field(default_factory=lambda: _NO_LABELS, hash=False)


@dataclass(frozen=True, slots=True)
class Port:
    """One end of a link: a device `name` in a node. `rail` and `plane` number the parallel fabrics it belongs to."""

    node: str
    name: str
    speed_bps: int | None = None
    rail: int | None = None
    plane: int | None = None
    mac: str | None = None

    @property
    def id(self) -> str:
        return f"{self.node}:{self.name}"


def direction_id(a: str, b: str) -> str:
    """The direction from one end to the other: node names, or port ids where links are parallel."""
    return f"{a}>{b}"


@dataclass(frozen=True, slots=True)
class Link:
    """A cable between two ports. The Fabric sets `index`, the place among its links, and `by_port`, see above."""

    a: Port
    b: Port
    index: int = 0
    by_port: bool = False
    mtu: int | None = None

    @property
    def id(self) -> str:
        return f"{self._end(self.a)}-{self._end(self.b)}"

    def directions(self) -> tuple[str, str]:
        """Ids of both directions, a to b first."""
        return self.direction(self.a.node), self.direction(self.b.node)

    def direction(self, source: str) -> str:
        """Id of the direction that leaves the node `source`."""
        return direction_id(self._end(self.port(source)), self._end(self.peer(source)))

    def port(self, node: str) -> Port:
        """This link's port in `node`."""
        if node == self.a.node:
            return self.a
        if node == self.b.node:
            return self.b
        raise UnknownElementError(
            f"link {self.id} does not end in {node!r}, but in {self.a.node!r} and {self.b.node!r}"
        )

    def peer(self, node: str) -> Port:
        """The port at the other end than `node`'s."""
        return self.b if self.port(node) is self.a else self.a

    def _end(self, port: Port) -> str:
        return port.id if self.by_port else port.node


class Hop(NamedTuple):
    """A step over one link: out of `port`, into `peer`."""

    port: Port
    peer: Port


@dataclass(frozen=True, slots=True)
class Path:
    """A sequence of links walked in one direction. `hops[i]` is the step over `links[i]`."""

    hops: tuple[Hop, ...]
    links: tuple[Link, ...]

    @property
    def nodes(self) -> tuple[str, ...]:
        return (self.hops[0].port.node, *(hop.peer.node for hop in self.hops))

    @property
    def directions(self) -> tuple[str, ...]:
        return tuple(link.direction(hop.port.node) for hop, link in zip(self.hops, self.links, strict=True))

    @property
    def uplink(self) -> str:
        """Device by which the path leaves its first node."""
        return self.hops[0].port.name

    def __len__(self) -> int:
        return len(self.links)
