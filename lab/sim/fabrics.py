"""The fabrics of the simulator, of the sizes that the bench names."""

from __future__ import annotations

from collections.abc import Callable

from topology.generate import leaf_spine
from topology.model import Fabric, Link, Node, Port


def two_tier() -> Fabric:
    """64 hosts with two uplinks each, 16 leaves, 8 spines."""
    return leaf_spine(64, uplinks=2, racks=8, spines=8, name="2-tier-64")


def fat_tree(k: int = 8) -> Fabric:
    """The three-tier fat-tree of k-port switches (Al-Fares et al., SIGCOMM 2008): k**3/4 hosts with one uplink each."""
    half = k // 2
    nodes: list[Node] = []
    links: list[Link] = []
    for pod in range(k):
        nodes += [Node(f"agg{pod}-{a}", "switch", 2) for a in range(half)]
        for e in range(half):
            edge = f"edge{pod}-{e}"
            nodes.append(Node(edge, "switch", 1))
            for h in range(half):
                nodes.append(Node(f"host{pod}-{e}-{h}", "host", 0))
                links.append(Link(Port(f"host{pod}-{e}-{h}", "eth1"), Port(edge, f"down{h}")))
            links += [Link(Port(edge, f"up{a}"), Port(f"agg{pod}-{a}", f"down{e}")) for a in range(half)]
        for a in range(half):
            for c in range(half):
                links.append(Link(Port(f"agg{pod}-{a}", f"up{c}"), Port(f"core{a}-{c}", f"pod{pod}")))
    nodes += [Node(f"core{a}-{c}", "switch", 3) for a in range(half) for c in range(half)]
    return Fabric(f"fat-tree-{k}", nodes, links)


def rails(hosts: int, *, rails: int = 8, group: int = 64, spines: int) -> Fabric:
    """Rail-optimised: port k of each of `group` hosts goes to the group's leaf k; every leaf joins every spine."""
    nodes = [Node(f"host{h}", "host", 0) for h in range(hosts)]
    links: list[Link] = []
    for g in range(-(-hosts // group)):
        for rail in range(rails):
            leaf = f"leaf{g}-{rail}"
            nodes.append(Node(leaf, "switch", 1))
            for h in range(g * group, min(hosts, (g + 1) * group)):
                links.append(Link(Port(f"host{h}", f"eth{rail}", rail=rail), Port(leaf, f"down{h}", rail=rail)))
            links += [Link(Port(leaf, f"up{s}"), Port(f"spine{s}", f"down{g}-{rail}")) for s in range(spines)]
    nodes += [Node(f"spine{s}", "switch", 2) for s in range(spines)]
    return Fabric(f"rail-{hosts}x{rails}", nodes, links)


FABRICS: dict[str, Callable[[], Fabric]] = {
    "2-tier-64": two_tier,
    "fat-tree-8": fat_tree,
    "rail-256x8": lambda: rails(256, spines=32),
    "rail-2048x8": lambda: rails(2048, spines=64),
}


def healthy() -> Fabric:
    """512 hosts with two uplinks each."""
    return rails(512, rails=2, group=32, spines=16)
