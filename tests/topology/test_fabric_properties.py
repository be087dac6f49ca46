"""Paths and views against networkx's own searches, over generated and over arbitrary fabrics."""

from itertools import pairwise

import networkx as nx
from fabrics import arbitrary, plain_graph, views
from hypothesis import given, settings
from hypothesis import strategies as st

from topology.model import Fabric, Path

unhurried = settings(deadline=None)


@st.composite
def questions(draw: st.DrawFn) -> tuple[Fabric, str, str]:
    fabric = draw(views().filter(lambda view: len(view.nodes) >= 2))
    names = [node.name for node in fabric.nodes]
    a, b = draw(st.lists(st.sampled_from(names), min_size=2, max_size=2, unique=True))
    return fabric, a, b


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
