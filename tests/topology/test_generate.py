"""Generated fabrics have the shape that their numbers promise."""

import pytest
from fabrics import leaf_spines, rails
from hypothesis import given, settings

from topology import generate
from topology.model import Cut, Fabric, speeds_bps

unhurried = settings(deadline=None)


@pytest.mark.parametrize("parallel", [1, 2])
def test_leaf_spine_has_the_paths_that_its_numbers_promise(parallel: int) -> None:
    fabric = generate.leaf_spine(6, uplinks=3, racks=2, spines=2, parallel=parallel)
    assert len(fabric.equal_cost_paths("host1", "host6")) == 3 * 2 * 3 * parallel**2
    assert len(fabric.equal_cost_paths("host1", "host2")) == 3
    assert len(fabric.links) == 6 * 3 + 6 * 2 * parallel


@unhurried
@given(leaf_spines())
def test_generated_racks_are_even(fabric: Fabric) -> None:
    racks = [node.rack for node in fabric.hosts]
    assert max(map(racks.count, racks)) - min(map(racks.count, racks)) <= 1
    for host in fabric.hosts:
        assert {fabric.node(leaf).rack for leaf in fabric.neighbours(host.name)} == {host.rack}


@unhurried
@given(rails)
def test_a_rail_of_a_unit_is_one_leaf_in_each_plane(fabric: Fabric) -> None:
    for host in fabric.hosts:
        uplinks = fabric.uplinks(host.name)
        planes = sorted({port.plane or 0 for port in uplinks})
        assert [(port.rail, port.plane or 0) for port in uplinks] == [
            (at + 1, plane) for at in range(len(uplinks) // len(planes)) for plane in planes
        ]
        assert {fabric.node(leaf).rack for leaf in fabric.neighbours(host.name)} == {host.rack}
        assert len(fabric.neighbours(host.name)) == len(uplinks)
    for link in fabric.links:
        assert (link.a.rail, link.a.plane) == (link.b.rail, link.b.plane)
    for leaf in fabric.switches:
        if leaf.tier == 1:
            assert len({(port.rail, port.plane) for port in fabric.ports(leaf.name)}) == 1


def test_planes_meet_in_hosts_only() -> None:
    fabric = generate.dual_plane(6, rails=2, spines=3, units=2)
    sides = {1: set[str](), 2: set[str]()}
    for link in fabric.links:
        assert link.b.plane is not None
        sides[link.b.plane] |= {end.node for end in (link.a, link.b) if fabric.node(end.node).role == "switch"}
    assert not sides[1] & sides[2]
    assert sides[1] | sides[2] == {node.name for node in fabric.switches}
    one_plane = fabric.without(sides[2])
    assert Cut(one_plane, ["host1"], ["host6"]).room == 2 == Cut(fabric, ["host1"], ["host6"]).room // 2


@pytest.mark.parametrize("k", [2, 4, 8])
def test_a_fat_tree_has_what_the_paper_says(k: int) -> None:
    fabric = generate.fat_tree(k, speed_bps=10)
    half = k // 2
    assert len(fabric.hosts) == k**3 // 4
    assert [sum(node.tier == tier for node in fabric.nodes) for tier in (1, 2, 3)] == [k * half, k * half, half**2]
    assert {len(fabric.ports(switch.name)) for switch in fabric.switches} == {k}
    first, last = fabric.hosts[0].name, fabric.hosts[-1].name
    assert len(fabric.equal_cost_paths(first, last)) == half**2
    assert fabric.distance(first, last) == 6
    names = [host.name for host in fabric.hosts]
    assert Cut(fabric, names[: len(names) // 2], names[len(names) // 2 :], speeds_bps(fabric)).room == 10 * k**3 // 8
    for core in fabric.switches:
        if core.tier == 3:
            assert [fabric.node(name).labels["pod"] for name in fabric.neighbours(core.name)] == [
                str(pod + 1) for pod in range(k)
            ]


def test_sixteen_thousand_adapters() -> None:
    fabric = generate.rail(2048, rails=8, units=64, spines=32, speed_bps=400 * 10**9)
    assert sum(len(fabric.ports(host.name)) for host in fabric.hosts) == 16384
    assert {len(fabric.ports(node.name)) for node in fabric.nodes if node.tier == 1} == {64}
    halves = [host.name for host in fabric.hosts[:1024]], [host.name for host in fabric.hosts[1024:]]
    cut = Cut(fabric, *halves)
    assert (cut.room, cut.without(["leaf1-spine1", "spine2"]).room) == (8192, 8192 - 1 - 256)
    view = fabric.without(["leaf1-spine1"])
    assert len(view.equal_cost_paths("host1", "host2048")) == 2048 - 8


@pytest.mark.parametrize("numbers", [{"hosts": 0}, {"uplinks": 0}, {"racks": -1}, {"spines": 0}, {"parallel": 0}])
def test_a_generator_refuses_less_than_one(numbers: dict[str, int]) -> None:
    (name, number), *_ = numbers.items()
    with pytest.raises(ValueError, match=f"^{name}: expected at least 1, got {number}$"):
        generate.leaf_spine(**numbers)


def test_a_fat_tree_refuses_odd_numbers() -> None:
    with pytest.raises(ValueError, match=r"^k: expected an even number, got 3$"):
        generate.fat_tree(3)
