"""Regular fabrics made from a few numbers, named and ordered like the files in `lab/`."""

from __future__ import annotations

from collections import defaultdict

from topology.model import Fabric, Link, Node, Port


class _Cabling:
    """Hands out eth1, eth2, ... per node in the order of the cables."""

    def __init__(self) -> None:
        self._used: defaultdict[str, int] = defaultdict(int)
        self.links: list[Link] = []

    def join(
        self, a: str, b: str, rail: int | None = None, speed_bps: int | None = None, plane: int | None = None
    ) -> None:
        self.links.append(Link(self._port(a, speed_bps, rail, plane), self._port(b, speed_bps, rail, plane)))

    def _port(self, node: str, speed_bps: int | None, rail: int | None, plane: int | None) -> Port:
        self._used[node] += 1
        return Port(node, f"eth{self._used[node]}", speed_bps, rail, plane)


def _at_least_one(**numbers: int) -> None:
    for name, number in numbers.items():
        if number < 1:
            raise ValueError(f"{name}: expected at least 1, got {number}")


def leaf_spine(
    hosts: int = 4,
    *,
    uplinks: int = 2,
    racks: int = 2,
    spines: int = 2,
    parallel: int = 1,
    speed_bps: int | None = None,
    name: str = "leaf-spine",
) -> Fabric:
    """Racks of `uplinks` leaves each; a host has one uplink to each leaf of its rack; every leaf joins every spine.

    Hosts fill the racks in order, as evenly as they go. `parallel` links join each leaf with each spine."""
    _at_least_one(hosts=hosts, uplinks=uplinks, racks=racks, spines=spines, parallel=parallel)
    rack_of = {f"host{k + 1}": k * racks // hosts if hosts >= racks else k for k in range(hosts)}
    leaves = {f"leaf{k + 1}": k // uplinks for k in range(racks * uplinks)}
    spine_names = [f"spine{k + 1}" for k in range(spines)]
    nodes = [Node(host, "host", 0, f"rack{rack + 1}") for host, rack in rack_of.items()]
    nodes += [Node(leaf, "switch", 1, f"rack{rack + 1}") for leaf, rack in leaves.items()]
    nodes += [Node(spine, "switch", 2) for spine in spine_names]
    cables = _Cabling()
    for host, rack in rack_of.items():
        for leaf in [leaf for leaf, at in leaves.items() if at == rack]:
            cables.join(host, leaf, speed_bps=speed_bps)
    for leaf in leaves:
        for spine in spine_names:
            for _ in range(parallel):
                cables.join(leaf, spine, speed_bps=speed_bps)
    return Fabric(name, nodes, cables.links)


def rail(
    hosts: int = 4,
    *,
    rails: int = 4,
    spines: int = 2,
    units: int = 1,
    planes: int = 1,
    speed_bps: int | None = None,
    name: str = "rail",
) -> Fabric:
    """A rail-optimised fabric: port k of every host (one per GPU) goes to leaf k, which is rail k, counted from 1.

    `units` are groups of hosts, filled in order and as evenly as they go, each with a leaf of its own for every rail;
    they are the racks. `planes` are fabrics apart from one another: a host has a port for each rail in each of them,
    in this order, and each has `spines` spines, which join all leaves of their plane. Numbers of planes count from 1,
    and are None where there is one only."""
    _at_least_one(hosts=hosts, rails=rails, spines=spines, units=units, planes=planes)
    unit_of = {f"host{k + 1}": k * units // hosts if hosts >= units else k for k in range(hosts)}
    leaves = [(unit, at, plane) for unit in range(units) for at in range(rails) for plane in range(planes)]
    leaf_at = {where: f"leaf{k + 1}" for k, where in enumerate(leaves)}
    spines_of = [[f"spine{plane * spines + k + 1}" for k in range(spines)] for plane in range(planes)]

    def rack(unit: int) -> str | None:
        return f"unit{unit + 1}" if units > 1 else None

    nodes = [Node(host, "host", 0, rack(unit)) for host, unit in unit_of.items()]
    nodes += [Node(leaf, "switch", 1, rack(unit)) for (unit, _, _), leaf in leaf_at.items()]
    nodes += [Node(spine, "switch", 2) for spine_names in spines_of for spine in spine_names]
    cables = _Cabling()
    for host, unit in unit_of.items():
        for at in range(rails):
            for plane in range(planes):
                number = plane + 1 if planes > 1 else None
                cables.join(host, leaf_at[unit, at, plane], at + 1, speed_bps, number)
    for (_, at, plane), leaf in leaf_at.items():
        for spine in spines_of[plane]:
            cables.join(leaf, spine, at + 1, speed_bps, plane + 1 if planes > 1 else None)
    return Fabric(name, nodes, cables.links)


def dual_plane(
    hosts: int = 4,
    *,
    rails: int = 1,
    spines: int = 2,
    units: int = 2,
    speed_bps: int | None = None,
    name: str = "dual-plane",
) -> Fabric:
    """Two planes that meet in the hosts only: every adapter has a port in each (Qian et al., Alibaba HPN, SIGCOMM
    2024). `rails` adapters a host, `spines` in each plane; the rest is as in `rail`."""
    return rail(hosts, rails=rails, spines=spines, units=units, planes=2, speed_bps=speed_bps, name=name)


def fat_tree(k: int = 4, *, speed_bps: int | None = None, name: str = "fat-tree") -> Fabric:
    """The three tiers of Al-Fares et al. (A scalable, commodity data center network architecture, SIGCOMM 2008).

    `k`, even: ports of a switch. k pods of k/2 leaves and k/2 spines (there: edge and aggregation switches), k/2 hosts
    a leaf, (k/2)^2 cores; the k/2 cores of group i join spine i of every pod. A leaf and its hosts are a rack; the
    label `pod` of a node, counted from 1, says where it is."""
    _at_least_one(k=k)
    if k % 2:
        raise ValueError(f"k: expected an even number, got {k}")
    half = k // 2
    hosts, nodes, cores = [], [], [f"core{c + 1}" for c in range(half * half)]
    cables = _Cabling()
    for pod in range(k):
        labels = {"pod": str(pod + 1)}
        for number in range(pod * half + 1, pod * half + half + 1):
            nodes.append(Node(f"leaf{number}", "switch", 1, f"rack{number}", labels=labels))
            for host in range((number - 1) * half + 1, number * half + 1):
                hosts.append(Node(f"host{host}", "host", 0, f"rack{number}", labels=labels))
                cables.join(f"host{host}", f"leaf{number}", speed_bps=speed_bps)
    for pod in range(k):
        for leaf in range(half):
            for spine in range(half):
                cables.join(f"leaf{pod * half + leaf + 1}", f"spine{pod * half + spine + 1}", speed_bps=speed_bps)
    for pod in range(k):
        for spine in range(half):
            nodes.append(Node(f"spine{pod * half + spine + 1}", "switch", 2, labels={"pod": str(pod + 1)}))
            for core in cores[spine * half : spine * half + half]:
                cables.join(f"spine{pod * half + spine + 1}", core, speed_bps=speed_bps)
    return Fabric(name, [*hosts, *nodes, *(Node(core, "switch", 3) for core in cores)], cables.links)
