"""Fabrics for property tests, generated and arbitrary ones, and their plain graphs for networkx."""

import networkx as nx
from hypothesis import strategies as st

from topology import generate
from topology.model import Fabric, Link, Node, Port


@st.composite
def leaf_spines(draw: st.DrawFn) -> Fabric:
    return generate.leaf_spine(
        draw(st.integers(2, 5)),
        uplinks=draw(st.integers(1, 3)),
        racks=draw(st.integers(1, 3)),
        spines=draw(st.integers(1, 3)),
        parallel=draw(st.integers(1, 2)),
    )


rails = st.builds(
    generate.rail, st.integers(2, 4), rails=st.integers(1, 3), spines=st.integers(1, 2), units=st.integers(1, 2),
    planes=st.integers(1, 2),
)  # fmt: skip


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


def plain_graph(fabric: Fabric, *ends: str, rooms: dict[str, int | None] | None = None) -> nx.DiGraph:
    """Visible directions between switches and the given ends; `capacity` counts parallel ones, or adds their rooms."""
    graph = nx.DiGraph()
    graph.add_nodes_from(node.name for node in fabric.nodes if node.role == "switch" or node.name in ends)
    for link in fabric.links:
        for direction in fabric.expand(link.id):
            source, target = (port.node for port in fabric.direction(direction))
            if source in graph and target in graph:
                held = graph.get_edge_data(source, target, {"capacity": 0})["capacity"]
                room = 1 if rooms is None else rooms[direction] or 0
                graph.add_edge(source, target, capacity=held + room)
    return graph
