"""Regular fabrics made from a few numbers, named and ordered like the files in `lab/`."""

from __future__ import annotations

from collections import defaultdict

from topology.model import Fabric, Link, Node, Port


class _Cabling:
    """Hands out eth1, eth2, ... per node in the order of the cables."""

    def __init__(self) -> None:
        self._used: defaultdict[str, int] = defaultdict(int)
        self.links: list[Link] = []

    def join(self, a: str, b: str, rail: int | None = None, speed_bps: int | None = None) -> None:
        self.links.append(Link(self._port(a, rail, speed_bps), self._port(b, rail, speed_bps)))

    def _port(self, node: str, rail: int | None, speed_bps: int | None) -> Port:
        self._used[node] += 1
        return Port(node, f"eth{self._used[node]}", speed_bps, rail)


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
    hosts: int = 4, *, rails: int = 4, spines: int = 2, speed_bps: int | None = None, name: str = "rail"
) -> Fabric:
    """A rail-optimised fabric: port k of every host (one per GPU) goes to leaf k, which is rail k, counted from 1."""
    _at_least_one(hosts=hosts, rails=rails, spines=spines)
    host_names = [f"host{k + 1}" for k in range(hosts)]
    spine_names = [f"spine{k + 1}" for k in range(spines)]
    nodes = [Node(host, "host", 0) for host in host_names]
    nodes += [Node(f"leaf{k + 1}", "switch", 1) for k in range(rails)]
    nodes += [Node(spine, "switch", 2) for spine in spine_names]
    cables = _Cabling()
    for host in host_names:
        for k in range(1, rails + 1):
            cables.join(host, f"leaf{k}", k, speed_bps)
    for k in range(1, rails + 1):
        for spine in spine_names:
            cables.join(f"leaf{k}", spine, k, speed_bps)
    return Fabric(name, nodes, cables.links)
