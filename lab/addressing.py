"""Addresses, device names and routes of a lab, derived from the fabric alone: the same file gives the same lab.

    host k (order of the file, from 1)   fd00:ff::k    10.255.0.k     on the device lo0 (IPv4: label lo0:4)
    switch n                             fd00:ff:1::n  10.255.1.n
    link i (from 0)                      fd00:1:i::a and ::b /64,  10.128.0.0 + 2i and + 2i + 1 /31

Numbers in IPv6 addresses are hexadecimal. Hosts have one route for each of the two loopback prefixes, over all their
uplinks, and one more for each node to which only some of the uplinks lead (planes that do not meet, a host that is in
one of them only); switches one route per node, over the equal-cost next hops.
"""

from __future__ import annotations

import ipaddress
import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lab.errors import LabError
from topology.model import Fabric, Port

HOSTS6, SWITCHES6 = "fd00:ff::/64", "fd00:ff:1::/64"
HOSTS4, SWITCHES4 = "10.255.0.0/24", "10.255.1.0/24"
LOOPBACK_DEVICE = "lo0"
LOOPBACK_LABEL4 = f"{LOOPBACK_DEVICE}:4"
"""Name under which programs find the loopback's IPv4 address (IFA_LABEL, as `ip addr add … label`)."""
MOST_NODES, MOST_LINKS = 250, 4096

NEXTHOP6, NEXTHOP4, GROUP6, GROUP4 = 10_000, 20_000, 30_000, 40_000
"""First ids of the lab's next-hop objects (an own number space in every namespace). All stay below 100000."""


@dataclass(frozen=True, slots=True)
class End:
    """One end of a link: a port (`node:name` in the fabric), its device, and the device that it ends in on the wire."""

    port: str
    node: str
    device: str
    mac: str
    v6: str
    v4: str
    wire_device: str


@dataclass(frozen=True, slots=True)
class Wire:
    """A link as the lab builds it: port a - wire device a = wire device b - port b."""

    index: int
    link: str
    forward: str
    backward: str
    a: End
    b: End

    def both_ways(self) -> tuple[tuple[End, End], tuple[End, End]]:
        return (self.a, self.b), (self.b, self.a)

    def end(self, node: str) -> End:
        """The end at a node."""
        return self.a if self.a.node == node else self.b


@dataclass(frozen=True, slots=True)
class NodePlan:
    """A node's own addresses. `hash_seed`: its `fib_multipath_hash_seed`; `tier`: 0 for hosts, from 1 for switches."""

    name: str
    tier: int
    v6: str
    v4: str
    hash_seed: int

    @property
    def host(self) -> bool:
        return self.tier == 0


@dataclass(frozen=True, slots=True)
class Hop:
    """A next-hop object: out of `device` to `gateway`."""

    id: int
    family: int
    device: str
    gateway: str


@dataclass(frozen=True, slots=True)
class Group:
    """A next-hop group of equal weights."""

    id: int
    family: int
    members: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Route:
    """A route through a group, with the node's own loopback as preferred source (ICMP answers carry it too)."""

    prefix: str
    family: int
    group: int
    source: str


@dataclass(frozen=True, slots=True)
class Forwarding:
    """Everything that a node's kernel needs to forward: next hops, then groups, then routes."""

    hops: tuple[Hop, ...]
    groups: tuple[Group, ...]
    routes: tuple[Route, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """The whole lab on paper."""

    nodes: Mapping[str, NodePlan]
    wires: tuple[Wire, ...]
    notes: tuple[str, ...]

    @property
    def names(self) -> dict[str, str]:
        """Loopback address (text, both families) -> node name."""
        return {address: node.name for node in self.nodes.values() for address in (node.v6, node.v4)}

    def direction(self, direction: str) -> tuple[Wire, End, End]:
        """A direction's wire, its sending end and its receiving end."""
        for wire in self.wires:
            if direction in (wire.forward, wire.backward):
                return (wire, *wire.both_ways()[direction == wire.backward])
        raise LabError(f"unknown direction {direction!r}")

    def wires_of(self, node: str) -> tuple[Wire, ...]:
        return tuple(wire for wire in self.wires if node in (wire.a.node, wire.b.node))


def plan(fabric: Fabric) -> Plan:
    """Number everything. Raises LabError when the fabric is larger than the address plan."""
    if len(fabric.hosts) > MOST_NODES or len(fabric.switches) > MOST_NODES or len(fabric.links) > MOST_LINKS:
        raise LabError(f"the lab has addresses for {MOST_NODES} hosts, {MOST_NODES} switches and {MOST_LINKS} links")
    nodes: dict[str, NodePlan] = {}
    for number, host in enumerate(fabric.hosts, 1):
        nodes[host.name] = NodePlan(host.name, 0, f"fd00:ff::{number:x}", f"10.255.0.{number}", _seed(host.name))
    for number, switch in enumerate(fabric.switches, 1):
        tier = switch.tier or 1
        nodes[switch.name] = NodePlan(
            switch.name, tier, f"fd00:ff:1::{number:x}", f"10.255.1.{number}", _seed(switch.name)
        )
    notes: list[str] = []
    device_of = _devices(fabric, notes)
    wires: list[Wire] = []
    for link in fabric.links:
        ends = [_end(len(wires), side, port, device_of[port.id]) for side, port in (("a", link.a), ("b", link.b))]
        wires.append(Wire(len(wires), link.id, *link.directions(), *ends))
    return Plan(nodes, tuple(wires), tuple(notes))


def forwarding(fabric: Fabric, lab: Plan, name: str) -> Forwarding:
    """Next hops, groups and routes of one node, IPv6 and IPv4. Destinations with the same next hops share a group."""
    node = lab.nodes[name]
    far_end = {near.port: (wire, near, far) for wire in lab.wires for near, far in wire.both_ways()}
    hops: dict[int, Hop] = {}
    groups: dict[tuple[int, ...], Group] = {}
    routes: list[Route] = []

    def route(family: int, prefix: str, ports: Iterable[Port]) -> None:
        members = []
        for port in ports:
            wire, near, far = far_end[port.id]
            first, gateway = (NEXTHOP6, far.v6) if family == 6 else (NEXTHOP4, far.v4)
            members.append(first + wire.index)
            hops[members[-1]] = Hop(members[-1], family, near.device, gateway)
        if members:
            key = tuple(sorted(members))
            first = (GROUP6 if family == 6 else GROUP4) + sum(group.family == family for group in groups.values())
            group = groups.setdefault(key, Group(first, family, key))
            routes.append(Route(prefix, family, group.id, node.v6 if family == 6 else node.v4))

    for family in (6, 4):
        if node.host:
            for prefix in (HOSTS6, SWITCHES6) if family == 6 else (HOSTS4, SWITCHES4):
                route(family, prefix, fabric.uplinks(name))
            for other in lab.nodes.values():
                if other.name != name and (some := _only_some(fabric, name, other.name)):
                    route(family, f"{other.v6}/128" if family == 6 else f"{other.v4}/32", some)
            continue
        for other in lab.nodes.values():
            prefix = f"{other.v6}/128" if family == 6 else f"{other.v4}/32"
            route(family, prefix, (step.port for step in fabric.next_hops(name, other.name)))
    return Forwarding(tuple(hops.values()), tuple(groups.values()), tuple(routes))


def _only_some(fabric: Fabric, host: str, target: str) -> list[Port]:
    """The uplinks of a host that lead to a node, when others do not; empty when all do, or none."""
    every = fabric.links_of(host)
    leading = []
    for link in every:
        peer = link.peer(host).node
        through = fabric.node(peer).role == "switch" and fabric.distance(peer, target) is not None
        if peer == target or through:
            leading.append(link.port(host))
    return leading if len(leading) < len(every) else []


def _end(index: int, side: str, port: Port, device: str) -> End:
    v4 = ipaddress.IPv4Address("10.128.0.0") + 2 * index + (side == "b")
    mac = port.mac or f"02:4c:50:{index >> 8:02x}:{index & 255:02x}:0{side}"
    return End(port.id, port.node, device, mac, f"fd00:1:{index:x}::{side}", str(v4), f"w{index}{side}")


def _seed(name: str) -> int:
    """A hash seed of the node's own (never 0: that is the kernel's common one)."""
    return zlib.crc32(name.encode()) | 1


def _devices(fabric: Fabric, notes: list[str]) -> dict[str, str]:
    """Port id -> device name. Linux allows 15 characters without `/`; other names of a file are made to fit."""
    found: dict[str, str] = {}
    for node in fabric.nodes:
        taken = {"lo", LOOPBACK_DEVICE}
        for port in fabric.ports(node.name):
            device = re.sub(r"[^A-Za-z0-9._-]", ".", port.name)
            if len(device) > 15 or device in taken or device in (".", ".."):
                device = f"{device[:8]}.{zlib.crc32(port.name.encode()) & 0xFFFFFF:06x}"
            if device != port.name:
                notes.append(
                    f"port {port.id} is called {device} in the lab: {port.name!r} is no name of a Linux device"
                )
            taken.add(device)
            found[port.id] = device
    return found
