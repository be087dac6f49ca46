"""The plan of a lab: addresses, names and routes follow from the fabric alone."""

from __future__ import annotations

import ipaddress

import pytest

from lab.addressing import forwarding, plan
from lab.errors import LabError
from topology.generate import leaf_spine as generate
from topology.model import Fabric, Link, Node, Port


def test_hosts_and_switches_are_numbered_in_the_order_of_the_file(leaf_spine: Fabric) -> None:
    made = plan(leaf_spine)
    assert made.nodes["host1"].v6 == "fd00:ff::1" and made.nodes["host4"].v4 == "10.255.0.4"
    assert made.nodes["leaf1"].v6 == "fd00:ff:1::1" and made.names["fd00:ff:1::1"] == "leaf1"
    assert made.names["10.255.1.6"] in {"spine1", "spine2", "leaf4"}
    assert len(made.names) == 2 * len(leaf_spine.nodes)


def test_every_address_device_and_mac_is_used_once(rail: Fabric) -> None:
    made = plan(rail)
    ends = [end for wire in made.wires for end in (wire.a, wire.b)]
    for values in (
        [node.v6 for node in made.nodes.values()] + [end.v6 for end in ends],
        [node.v4 for node in made.nodes.values()] + [end.v4 for end in ends],
        [end.mac for end in ends],
        [end.wire_device for end in ends],
        [(end.node, end.device) for end in ends],
    ):
        assert len(set(values)) == len(values)


def test_both_ends_of_a_link_share_its_networks(leaf_spine: Fabric) -> None:
    for wire in plan(leaf_spine).wires:
        assert ipaddress.ip_interface(f"{wire.a.v6}/64").network == ipaddress.ip_interface(f"{wire.b.v6}/64").network
        assert ipaddress.ip_interface(f"{wire.a.v4}/31").network == ipaddress.ip_interface(f"{wire.b.v4}/31").network


def test_a_host_has_one_route_per_prefix_over_all_uplinks(leaf_spine: Fabric) -> None:
    hops = forwarding(leaf_spine, plan(leaf_spine), "host1")
    assert [route.prefix for route in hops.routes] == [
        "fd00:ff::/64", "fd00:ff:1::/64", "10.255.0.0/24", "10.255.1.0/24",
    ]  # fmt: skip
    assert [len(group.members) for group in hops.groups] == [2, 2]
    assert {hop.device for hop in hops.hops} == {"eth1", "eth2"}


def test_a_host_has_routes_of_their_own_to_nodes_that_some_uplinks_do_not_reach() -> None:
    """Two planes that do not meet; `c` is in the first one only, and `a` and `b` have a cable between them."""
    nodes = [*(Node(name, "host", 0) for name in "abc"), *(Node(name, "switch", 1) for name in ("p1", "p2"))]
    ends = [("a", "p1"), ("a", "p2"), ("b", "p1"), ("b", "p2"), ("c", "p1"), ("a", "b")]
    made = [Link(Port(one, f"eth{n}"), Port(two, f"eth{n}"), n) for n, (one, two) in enumerate(ends)]
    fabric = Fabric("planes", nodes, made)
    numbers = plan(fabric)
    hops = forwarding(fabric, numbers, "a")
    devices = {hop.id: hop.device for hop in hops.hops}
    members = {group.id: {devices[member] for member in group.members} for group in hops.groups}
    found = {numbers.names.get(r.prefix.partition("/")[0], r.prefix): members[r.group] for r in hops.routes}
    assert found["fd00:ff::/64"] == {"eth0", "eth1", "eth5"}
    assert (found["c"], found["p2"]) == ({"eth0"}, {"eth1"}) and "b" not in found, "all three lead to b"
    assert len(forwarding(fabric, numbers, "c").routes) == 4


def test_a_switch_routes_every_node_over_equal_cost_next_hops(leaf_spine: Fabric) -> None:
    made = plan(leaf_spine)
    hops = forwarding(leaf_spine, made, "leaf1")
    members = {group.id: group.members for group in hops.groups}
    assert len(hops.routes) == 2 * (len(made.nodes) - 1)
    for route in hops.routes:
        node = made.names[route.prefix.partition("/")[0]]
        assert len(members[route.group]) == len(leaf_spine.next_hops("leaf1", node))
        assert route.source in (made.nodes["leaf1"].v6, made.nodes["leaf1"].v4)
    assert all(number < 100_000 for number in (*members, *(hop.id for hop in hops.hops)))
    assert len(set(members.values())) == len(members), "destinations with the same next hops share a group"


def test_port_names_that_linux_does_not_allow_are_made_to_fit_and_said() -> None:
    nodes = [Node("a", "host", 0), Node("s", "switch", 1), Node("b", "host", 0)]
    links = [
        Link(Port("a", "eth1"), Port("s", "ethernet-1/1"), 0),
        Link(Port("b", "eth1"), Port("s", "ethernet-1/1/1/1/1/1/1"), 1),
    ]
    made = plan(Fabric("odd", nodes, links))
    devices = [made.wires[0].b.device, made.wires[1].b.device]
    assert devices[0] == "ethernet-1.1" and len(devices[1]) <= 15 and devices[1] != devices[0]
    assert len(made.notes) == 2 and "ethernet-1/1" in made.notes[0]


def test_a_fabric_beyond_the_address_plan_is_refused() -> None:
    with pytest.raises(LabError, match="250 hosts"):
        plan(generate(hosts=252, racks=4, spines=2))
