"""Paths and views against networkx's own searches, over generated and over arbitrary fabrics."""

from itertools import pairwise

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topology import generate
from topology.model import Fabric, Link, Node, Path, Port

unhurried = settings(deadline=None)


@st.composite
def leaf_spines(draw: st.DrawFn) -> Fabric:
    return generate.leaf_spine(
        draw(st.integers(2, 5)),
        uplinks=draw(st.integers(1, 3)),
        racks=draw(st.integers(1, 3)),
        spines=draw(st.integers(1, 3)),
        parallel=draw(st.integers(1, 2)),
    )


rails = st.builds(generate.rail, st.integers(2, 4), rails=st.integers(1, 4), spines=st.integers(1, 3))


@st.composite
def arbitrary(draw: st.DrawFn) -> Fabric:
    """Any graph: parallel links, hosts joined to hosts, islands."""
    count = draw(st.integers(2, 7))
    roles = draw(st.lists(st.sampled_from(("host", "switch", "switch")), min_size=count, max_size=count))
    ends = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)).filter(lambda pair: pair[0] != pair[1])
    pairs = draw(st.lists(ends, max_size=12))
    links = [Link(Port(f"n-{a}", f"p{k}"), Port(f"n-{b}", f"p{k}")) for k, (a, b) in enumerate(pairs)]
    return Fabric("any", [Node(f"n-{k}", role) for k, role in enumerate(roles)], links)


@st.composite
def views(draw: st.DrawFn) -> Fabric:
    """A fabric, some of whose elements may be hidden."""
    fabric = draw(st.one_of(leaf_spines(), rails, arbitrary()))
    elements = sorted({name for link in fabric.links for name in (link.id, *link.directions())})
    elements += [node.name for node in fabric.switches]
    return fabric.without(draw(st.sets(st.sampled_from(elements), max_size=4))) if elements else fabric


@st.composite
def questions(draw: st.DrawFn) -> tuple[Fabric, str, str]:
    fabric = draw(views().filter(lambda view: len(view.nodes) >= 2))
    names = [node.name for node in fabric.nodes]
    a, b = draw(st.lists(st.sampled_from(names), min_size=2, max_size=2, unique=True))
    return fabric, a, b


def plain_graph(fabric: Fabric, *ends: str) -> nx.DiGraph:
    """Visible directions between switches and the given ends; `capacity` counts parallel ones."""
    graph = nx.DiGraph()
    graph.add_nodes_from(node.name for node in fabric.nodes if node.role == "switch" or node.name in ends)
    for link in fabric.links:
        for direction in fabric.expand(link.id):
            source, target = (port.node for port in fabric.direction(direction))
            if source in graph and target in graph:
                held = graph.get_edge_data(source, target, {"capacity": 0})["capacity"]
                graph.add_edge(source, target, capacity=held + 1)
    return graph


def check_path(fabric: Fabric, path: Path, a: str, b: str) -> None:
    assert path.nodes[0] == a and path.nodes[-1] == b
    assert len(set(path.nodes)) == len(path.nodes), "no loops"
    assert all(fabric.node(name).role == "switch" for name in path.nodes[1:-1]), "hosts never transit"
    for hop, link, direction in zip(path.hops, path.links, path.directions, strict=True):
        assert {hop.port, hop.peer} == {link.a, link.b}
        assert fabric.direction(direction) == hop, "only what is visible is used"
    assert set(path.directions) <= set(fabric.directions_of(path.nodes))
    assert fabric.directions_of(path) == path.directions


@unhurried
@given(questions())
def test_equal_cost_paths_are_all_shortest_ones_and_no_others(question: tuple[Fabric, str, str]) -> None:
    fabric, a, b = question
    paths = fabric.equal_cost_paths(a, b)
    graph = plain_graph(fabric, a, b)
    expected = 0
    if nx.has_path(graph, a, b):
        for names in nx.all_shortest_paths(graph, a, b):
            choices = 1
            for here, there in pairwise(names):
                choices *= graph[here][there]["capacity"]
            expected += choices
        assert fabric.distance(a, b) == nx.shortest_path_length(graph, a, b)
    else:
        assert fabric.distance(a, b) is None
    assert len(paths) == expected
    assert len({path.directions for path in paths}) == len(paths)
    for path in paths:
        check_path(fabric, path, a, b)
        assert len(path) == fabric.distance(a, b)


@unhurried
@given(questions())
def test_next_hops_are_the_first_steps_and_come_nearer(question: tuple[Fabric, str, str]) -> None:
    fabric, a, b = question
    hops = fabric.next_hops(a, b)
    assert set(hops) == {path.hops[0] for path in fabric.equal_cost_paths(a, b)}
    assert len(set(hops)) == len(hops)
    left = fabric.distance(a, b)
    for _, peer in hops:
        assert left is not None and fabric.distance(peer.node, b) == left - 1


@unhurried
@given(questions())
def test_disjoint_paths_share_nothing_and_are_as_many_as_a_cut_allows(question: tuple[Fabric, str, str]) -> None:
    fabric, a, b = question
    graph = plain_graph(fabric, a, b)
    by_link = fabric.disjoint_paths(a, b, by="link")
    by_node = fabric.disjoint_paths(a, b)
    for paths in (by_link, by_node):
        for path in paths:
            check_path(fabric, path, a, b)
        links = [link.id for path in paths for link in path.links]
        assert len(set(links)) == len(links)
    between = [name for path in by_node for name in path.nodes[1:-1]]
    assert len(set(between)) == len(between)
    assert len(by_link) == nx.maximum_flow_value(graph, a, b)
    direct = graph.get_edge_data(a, b, {"capacity": 0})["capacity"]
    if direct:
        graph.remove_edge(a, b)
    assert len(by_node) == direct + nx.node_connectivity(graph, a, b)
    if by_node:
        assert len(by_node[0]) >= (fabric.distance(a, b) or 0)


@unhurried
@given(views(), st.data())
def test_views_compose_in_any_order_and_leave_the_whole_alone(fabric: Fabric, data: st.DataObject) -> None:
    elements = [node.name for node in fabric.nodes] + [link.id for link in fabric.links]
    hidden = data.draw(st.lists(st.sampled_from(elements), unique=True, max_size=4)) if elements else []
    before = (fabric.nodes, fabric.links, [fabric.links_of(node.name) for node in fabric.nodes])
    at_once, one_by_one = fabric.without(hidden), fabric
    for element in reversed(hidden):
        one_by_one = one_by_one.without([element])
    for view in (at_once, one_by_one):
        assert not {node.name for node in view.nodes} & set(hidden)
        assert not {link.id for link in view.links} & set(hidden)
    assert at_once.nodes == one_by_one.nodes and at_once.links == one_by_one.links
    for node in at_once.nodes:
        assert at_once.links_of(node.name) == one_by_one.links_of(node.name)
        assert at_once.ports(node.name) == tuple(link.port(node.name) for link in at_once.links_of(node.name))
    assert (fabric.nodes, fabric.links, [fabric.links_of(node.name) for node in fabric.nodes]) == before


@unhurried
@given(arbitrary())
def test_every_name_leads_back(fabric: Fabric) -> None:
    names = [node.name for node in fabric.nodes]
    for link in fabric.links:
        names += [link.id, *link.directions()]
        assert fabric.link(link.id) is link
        assert fabric.split_link(link.id) == (link.a.node, link.b.node)
        assert {fabric.link_of(direction) for direction in link.directions()} == {link}
        assert fabric.expand(link.id) == set(link.directions())
    assert len(set(names)) == len(names)


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
def test_a_rail_is_one_leaf(fabric: Fabric) -> None:
    for host in fabric.hosts:
        assert [port.rail for port in fabric.uplinks(host.name)] == list(range(1, len(fabric.ports(host.name)) + 1))
    for link in fabric.links:
        assert link.a.rail == link.b.rail


@pytest.mark.parametrize("numbers", [{"hosts": 0}, {"uplinks": 0}, {"racks": -1}, {"spines": 0}, {"parallel": 0}])
def test_a_generator_refuses_less_than_one(numbers: dict[str, int]) -> None:
    (name, number), *_ = numbers.items()
    with pytest.raises(ValueError, match=f"^{name}: expected at least 1, got {number}$"):
        generate.leaf_spine(**numbers)
