"""What directions have left, and cuts, against networkx's maximum flows."""

from __future__ import annotations

from itertools import combinations

import networkx as nx
import pytest
from fabrics import arbitrary, plain_graph, views
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from topology import generate
from topology.model import (
    Cut,
    Fabric,
    Link,
    Node,
    Port,
    UnknownElementError,
    one_each,
    residual_bps,
    speeds_bps,
)

unhurried = settings(deadline=None)
Sides = tuple[Fabric, list[str], list[str]]


@st.composite
def sides(draw: st.DrawFn) -> Sides:
    fabric = draw(st.one_of(views(), arbitrary()).filter(lambda view: len(view.nodes) >= 2))
    names = draw(st.permutations([node.name for node in fabric.nodes]))
    first = draw(st.integers(1, min(3, len(names) - 1)))
    second = draw(st.integers(1, min(3, len(names) - first)))
    return fabric, names[:first], names[first : first + second]


def flow(fabric: Fabric, sources: list[str], targets: list[str], rooms: dict[str, int | None]) -> int:
    """What networkx finds, unknown rooms being none."""
    graph = plain_graph(fabric, *sources, *targets, rooms=rooms)
    graph.add_nodes_from(("<", ">"))
    graph.add_edges_from(("<", name) for name in sources)
    graph.add_edges_from((name, ">") for name in targets)
    for name in (*sources, *targets):  # a host of a side is no way for others of it
        if fabric.node(name).role == "host":
            wrong = graph.out_edges(name) if name in targets else graph.in_edges(name)
            graph.remove_edges_from([(a, b) for a, b in wrong if not {"<", ">"} & {a, b}])
    return int(nx.maximum_flow_value(graph, "<", ">"))


@st.composite
def rooms_of(draw: st.DrawFn, fabric: Fabric) -> dict[str, int | None]:
    room = st.one_of(st.integers(0, 9), st.none())
    return {direction: draw(room) for direction in one_each(fabric)}


@unhurried
@given(sides(), st.data())
def test_a_cut_is_the_maximum_flow_and_its_directions_are_what_limits_it(given_: Sides, data: st.DataObject) -> None:
    fabric, sources, targets = given_
    assert Cut(fabric, sources, targets).room == flow(fabric, sources, targets, one_each(fabric))
    rooms = data.draw(rooms_of(fabric))
    cut = Cut(fabric, sources, targets, rooms)
    assert cut.room == flow(fabric, sources, targets, rooms)
    large = {direction: 1000 if room is None else room for direction, room in rooms.items()}
    assert cut.known == (flow(fabric, sources, targets, large) == cut.room)
    assert sum(rooms[direction] or 0 for direction in cut.directions) == cut.room
    rest = fabric.without(cut.directions)
    closed = large if cut.known else {direction: room or 0 for direction, room in rooms.items()}
    assert flow(rest, sources, targets, closed) == 0


@unhurried
@given(sides(), st.data())
def test_a_cut_after_failures_is_that_of_the_rest(given_: Sides, data: st.DataObject) -> None:
    fabric, sources, targets = given_
    rooms = data.draw(rooms_of(fabric))
    elements = [*one_each(fabric), *(link.id for link in fabric.links)]
    elements += [node.name for node in fabric.nodes if node.name not in (*sources, *targets)]
    assume(elements)
    before = now = Cut(fabric, sources, targets, rooms)
    room = before.room
    for failed in data.draw(st.lists(st.lists(st.sampled_from(elements), max_size=3), min_size=1, max_size=3)):
        now = now.without(failed)
        fresh = Cut(now.fabric, sources, targets, rooms)
        assert (now.room, now.known) == (fresh.room, fresh.known)
        assert now.room == flow(now.fabric, sources, targets, rooms)
        assert sum(rooms[direction] or 0 for direction in now.directions) == now.room
    assert before.room == room, "what is kept is not changed"


def test_every_switch_and_every_two_links_of_a_fat_tree_may_fail() -> None:
    fabric = generate.fat_tree(4)
    names = [host.name for host in fabric.hosts]
    cut = Cut(fabric, names[:8], names[8:])
    links = [link.id for link in fabric.links if link.index % 5 == 0]
    for failed in [*([node.name] for node in fabric.switches), *combinations(links, 2)]:
        assert cut.without(failed).room == Cut(fabric.without(failed), names[:8], names[8:]).room, failed


def test_a_side_that_fails_takes_no_part() -> None:
    fabric = generate.leaf_spine(4, uplinks=2, racks=2, spines=2, speed_bps=100)
    cut = Cut(fabric, ["host1", "host2"], ["host3", "host4"], speeds_bps(fabric))
    assert cut.room == 400
    assert cut.without(["host1"]).room == 200
    assert cut.without(["host1", "host2"]).room == 0
    with pytest.raises(UnknownElementError):
        cut.without(["host9"])


def test_the_directions_that_limit_are_named() -> None:
    fabric = generate.leaf_spine(8, uplinks=1, racks=2, spines=2, speed_bps=100)
    cut = Cut(fabric, ["host1", "host2", "host3"], ["host5", "host6", "host7"], speeds_bps(fabric))
    assert (cut.room, set(cut.directions)) == (200, {"leaf1>spine1", "leaf1>spine2"})
    after = cut.without(["spine2>leaf2"])
    assert (after.room, set(after.directions)) == (100, {"leaf1>spine1"}), "of two that limit, the nearer one"
    assert Cut(fabric, ["host1"], ["host2"]).room == 1


def test_residual_is_of_what_is_known() -> None:
    nodes = [Node("a", "switch"), Node("b", "switch"), Node("c", "switch")]
    fabric = Fabric(
        "three", nodes, [Link(Port("a", "1", 100), Port("b", "1", 40)), Link(Port("b", "2"), Port("c", "1"))]
    )
    assert speeds_bps(fabric) == {"a>b": 40, "b>a": 40, "b>c": None, "c>b": None}
    assert residual_bps(fabric, {"a>b": 10.5, "b>a": 99, "b>c": 1}) == {"a>b": 29, "b>a": 0, "b>c": None, "c>b": None}
    assert residual_bps(fabric, {}) == dict.fromkeys(("a>b", "b>a", "b>c", "c>b"))
    assert residual_bps(fabric.without(["a>b"]), {"a>b": 10, "b>a": 0}) == {"b>a": 40, "b>c": None, "c>b": None}
    with pytest.raises(UnknownElementError, match="no element 'a>c'"):
        residual_bps(fabric, {"a>c": 1})
    for load in (-1, float("nan")):
        with pytest.raises(ValueError, match="load of a>b: expected 0 or more"):
            residual_bps(fabric, {"a>b": load})


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        (([], ["host1"]), "sources: expected at least one node"),
        ((["host1"], []), "targets: expected at least one node"),
        ((["host1", "host2"], ["host2"]), "without a common node, got host2 in both"),
    ],
)
def test_sides_that_make_no_cut(ends: tuple[list[str], list[str]], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Cut(generate.leaf_spine(), *ends)
