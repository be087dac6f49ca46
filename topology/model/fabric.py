"""The Fabric. Inside, a link is two directed edges of one MultiDiGraph: it can be good one way and bad the other."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Literal

import networkx as nx

from topology.model.distances import distances_to, repaired
from topology.model.elements import FabricError, Hop, Link, Node, Path, Port, UnknownElementError


class Fabric:
    """What is connected to what. Immutable; `without` gives a view of it that hides elements.

    `nodes` and `links` keep the order of the file. Raises FabricError when links and nodes do not fit together.
    """

    __slots__ = (
        "_directions",
        "_gone",
        "_hidden",
        "_hops_to",
        "_into",
        "_link_by_id",
        "_name",
        "_node_by_name",
        "_notes",
        "_out",
        "_switches",
        "_whole",
    )

    def __init__(self, name: str, nodes: Iterable[Node], links: Iterable[Link], notes: Iterable[str] = ()) -> None:
        self._name = name
        self._notes = tuple(notes)
        self._node_by_name: dict[str, Node] = {}
        for node in nodes:
            if node.name in self._node_by_name:
                raise FabricError(f"node {node.name!r} appears twice")
            if not node.name or ">" in node.name or ":" in node.name:
                raise FabricError(f"node name {node.name!r}: expected text without '>' and ':'")
            self._node_by_name[node.name] = node
        self._link_by_id = {link.id: link for link in _named(tuple(links), self._node_by_name)}
        self._directions: dict[str, tuple[Link, Hop]] = {}
        graph = nx.MultiDiGraph(name=name)
        graph.add_nodes_from(self._node_by_name)
        for link in self._link_by_id.values():
            for source in (link.a, link.b):
                self._directions[link.direction(source.node)] = (link, Hop(source, link.peer(source.node)))
        switches = {name for name, node in self._node_by_name.items() if node.role == "switch"}
        ends = {key: (hop.port.node, hop.peer.node) for key, (_, hop) in self._directions.items()}
        for key in sorted(ends, key=lambda key: not switches.issuperset(ends[key])):  # ways on are found before hosts
            graph.add_edge(*ends[key], key=key)
        nx.freeze(graph)
        # node -> neighbour -> directions: the graph's own dictionaries, its views cost more than the work over them
        self._out: Mapping[str, Mapping[str, Mapping[str, object]]] = dict(graph.adjacency())
        self._into: Mapping[str, Mapping[str, Mapping[str, object]]] = dict(graph.reverse(copy=False).adjacency())
        self._switches = switches
        self._whole = self
        self._hidden: tuple[frozenset[str], frozenset[str]] = (frozenset(), frozenset())
        self._gone: frozenset[tuple[str, str]] = frozenset()
        self._hops_to: dict[str, Mapping[str, int]] = {}

    def __repr__(self) -> str:
        return f"Fabric({self.name!r}, {len(self.nodes)} nodes, {len(self.links)} links)"

    # elements
    @property
    def name(self) -> str:
        return self._name

    @property
    def notes(self) -> tuple[str, ...]:
        """What was inferred, and what the source says that the model does not have. One sentence each, for people."""
        return self._notes

    @property
    def nodes(self) -> tuple[Node, ...]:
        return tuple(node for node in self._node_by_name.values() if node.name not in self._hidden[0])

    @property
    def hosts(self) -> tuple[Node, ...]:
        return tuple(node for node in self.nodes if node.role == "host")

    @property
    def switches(self) -> tuple[Node, ...]:
        return tuple(node for node in self.nodes if node.role == "switch")

    @property
    def links(self) -> tuple[Link, ...]:
        """Links of which at least one direction is visible."""
        return tuple(link for link in self._link_by_id.values() if any(map(self._visible, link.directions())))

    def node(self, name: str) -> Node:
        if not self._has(name):
            raise self._unknown("node", name, [node.name for node in self.nodes])
        return self._node_by_name[name]

    def link(self, text: str) -> Link:
        """The link of that id, or the only one between two nodes given as `a b`, in any order.

        Raises UnknownElementError, naming near matches, or the parallel links to choose from."""
        found = self._link_by_id.get(text)
        if found is not None and any(map(self._visible, found.directions())):
            return found
        links = self.links
        ends = frozenset(text.split())
        between = [link for link in links if ends == {link.a.node, link.b.node}]
        between = between or [link for link in links if text in (_backwards(link), f"{link.a.node}-{link.b.node}")]
        if len(between) == 1:
            return between[0]
        if between:
            raise UnknownElementError(f"{text!r} are {len(between)} links: {', '.join(link.id for link in between)}")
        raise self._unknown("link", "-".join(text.split()), [name for x in links for name in (x.id, _backwards(x))])

    def direction(self, direction: str) -> Hop:
        """The two ports of a direction, source first. Raises UnknownElementError."""
        if not self._visible(direction):
            raise self._unknown("direction", direction, [name for name in self._directions if self._visible(name)])
        return self._directions[direction][1]

    def link_of(self, direction: str) -> Link:
        """The link of which this is one direction. Raises UnknownElementError."""
        self.direction(direction)
        return self._directions[direction][0]

    def split_link(self, link_id: str) -> tuple[str, str]:
        """The names of the two nodes of a link, in the order of its id. Raises UnknownElementError."""
        link = self._link_by_id.get(link_id)
        if link is None:
            link = self.link(link_id)
        return link.a.node, link.b.node

    def expand(self, element: str) -> frozenset[str]:
        """The directions that an element (node name, link id, direction id) consists of. Raises UnknownElementError."""
        if self._has(element):
            return frozenset(key for link in self.links_of(element) for key in link.directions() if self._visible(key))
        if element in self._link_by_id:
            return frozenset(key for key in self._link_by_id[element].directions() if self._visible(key))
        if self._visible(element):
            return frozenset((element,))
        known = (*self._node_by_name, *self._link_by_id, *self._directions)
        raise self._unknown("element", element, known)

    def shows(self, element: str) -> bool:
        """Whether an element (node name, link id, direction id) is there and not hidden, of a link a direction."""
        if element in self._link_by_id:
            return any(map(self._visible, self._link_by_id[element].directions()))
        return self._has(element) or self._visible(element)

    # neighbourhood
    def links_of(self, node: str) -> tuple[Link, ...]:
        """Links with an end in `node`, in the order of the file."""
        self.node(node)
        keys = [key for around in (self._out, self._into) for between in around[node].values() for key in between]
        found = {self._directions[key][0] for key in keys if self._visible(key)}
        return tuple(sorted(found, key=lambda link: link.index))

    def ports(self, node: str) -> tuple[Port, ...]:
        return tuple(link.port(node) for link in self.links_of(node))

    def neighbours(self, node: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(link.peer(node).node for link in self.links_of(node)))

    def uplinks(self, host: str) -> tuple[Port, ...]:
        """The ports by which a host reaches the fabric. Raises UnknownElementError when `host` is none."""
        if self.node(host).role != "host":
            raise UnknownElementError(f"{host!r} is a switch, expected a host of fabric {self.name!r}")
        return self.ports(host)

    # paths
    def next_hops(self, node: str, dst: str) -> tuple[Hop, ...]:
        """First steps of all shortest paths from `node` to `dst`; hosts never transit. Empty: no path, or at `dst`."""
        return tuple(hop for _, hop in self._steps(node, dst))

    def distance(self, src: str, dst: str) -> int | None:
        """Links on a shortest path; None when there is no path."""
        self.node(src)
        return self._hops_left(src, dst)

    def equal_cost_paths(self, src: str, dst: str) -> tuple[Path, ...]:
        """All shortest paths, hosts never transiting, in the order of the file. Empty when there is none.

        Their number is the product of the choices at each step: ask for `next_hops` in a large fabric."""
        self.node(src)
        return self._walk(src, dst, {}) if src != dst else ()

    def disjoint_paths(self, a: str, b: str, by: Literal["node", "link"] = "node") -> tuple[Path, ...]:
        """As many paths as can be had that share no link (`link`), nor any node between (`node`); shortest in total.

        A minimum-cost maximum flow with unit capacities (Suurballe 1974 for two paths)."""
        self.node(a), self.node(b)
        return tuple(sorted(self._disjoint(a, b, by), key=len)) if a != b else ()

    def directions_of(self, path: Path | Sequence[str | None], uplink: str | None = None) -> tuple[str, ...]:
        """The directions that a path goes over. A trace may be given as node names, None where a hop was mute.

        Steps beside a mute hop are left out. A step between nodes with parallel links may be any of them and yields
        all, unless it is the first and `uplink` names its port. Raises UnknownElementError where nothing joins two."""
        if isinstance(path, Path):
            return path.directions
        found: list[str] = []
        for place, (here, there) in enumerate(pairwise(path)):
            if here is None or there is None:
                continue
            links = [link for link in self.links_of(here) if link.peer(here).node == self.node(there).name]
            if place == 0 and uplink is not None:
                links = [link for link in links if link.port(here).name == uplink]
            if not links:
                port = f" by port {uplink!r}" if uplink and not place else ""
                raise UnknownElementError(f"no link from {here!r} to {there!r}{port} in fabric {self.name!r}")
            found += [link.direction(here) for link in links]
        return tuple(found)

    # views
    def without(self, elements: Iterable[str]) -> Fabric:
        """The same fabric with elements (node names, link ids, direction ids) hidden. Copies and changes nothing.

        Raises UnknownElementError for a name that the whole fabric does not have; hiding twice is no error."""
        nodes, directions = set(self._hidden[0]), set(self._hidden[1])
        for element in elements:
            if element in self._node_by_name:
                nodes.add(element)
            elif element in self._link_by_id:
                directions.update(self._link_by_id[element].directions())
            elif element in self._directions:
                directions.add(element)
            else:
                known = (*self._node_by_name, *self._link_by_id, *self._directions)
                raise self._unknown("element", element, known)
        view = object.__new__(Fabric)
        view._name, view._notes = self._name, self._notes
        view._node_by_name, view._link_by_id, view._directions = self._node_by_name, self._link_by_id, self._directions
        view._out, view._into, view._switches, view._whole = self._out, self._into, self._switches, self._whole
        view._hidden, view._hops_to = (frozenset(nodes), frozenset(directions)), {}
        ends = {(hop.port.node, hop.peer.node) for hop in (self._directions[key][1] for key in directions)}
        gone = {(a, b) for a, b in ends if directions.issuperset(self._out[a][b])}
        gone.update((name, peer) for name in nodes for peer in self._out[name])
        gone.update((peer, name) for name in nodes for peer in self._into[name])
        view._gone = frozenset(gone)
        return view

    # inside
    def _has(self, name: str) -> bool:
        return name in self._node_by_name and name not in self._hidden[0]

    def _visible(self, direction: str) -> bool:
        if direction not in self._directions or direction in self._hidden[1]:
            return False
        hop = self._directions[direction][1]
        return not self._hidden[0].intersection((hop.port.node, hop.peer.node))

    def _unknown(self, what: str, name: str, known: Iterable[str]) -> UnknownElementError:
        near = difflib.get_close_matches(name, list(known), n=3, cutoff=0.5)
        hidden = name in self._node_by_name or name in self._link_by_id or name in self._directions
        tail = "; it is hidden in this view" if hidden else f"; near: {', '.join(near)}" if near else ""
        return UnknownElementError(f"no {what} {name!r} in fabric {self.name!r}{tail}")

    def _transit_hops(self, dst: str) -> Mapping[str, int]:
        """Links from every switch (and `dst` itself) to `dst`. Kept: routers ask again and again.

        A view repairs what the whole fabric knows: after a failure that is much less than a search, and mostly none."""
        hops = self._hops_to.get(dst)
        if hops is None:
            self.node(dst)
            if self._whole is self:
                hops = distances_to(dst, self._into, self._switches)
            else:
                hops = repaired(self._whole._transit_hops(dst), self._gone, self._out, self._into, self._switches)
            self._hops_to[dst] = hops
        return hops

    def _hops_left(self, node: str, dst: str) -> int | None:
        before = self._transit_hops(dst)
        if node in before:
            return before[node]
        nearest = [before[peer] for peer in self._out[node] if peer in before and (node, peer) not in self._gone]
        return 1 + min(nearest) if nearest else None

    def _steps(self, node: str, dst: str) -> list[tuple[Link, Hop]]:
        self.node(node)
        before, out, gone, hidden = self._transit_hops(dst), self._out[node], self._gone, self._hidden[1]
        near = [peer for peer in out if peer in before and (node, peer) not in gone]
        if node == dst or not near:
            return []
        least = min(before[peer] for peer in near)
        keys = [key for peer in near if before[peer] == least for key in out[peer] if key not in hidden]
        return sorted(map(self._directions.__getitem__, keys), key=lambda step: step[0].index)

    def _walk(self, node: str, dst: str, known: dict[str, tuple[Path, ...]]) -> tuple[Path, ...]:
        """`known`: the ways on from nodes that were walked before; most are ends of many paths."""
        found = known.get(node)
        if found is None:
            paths: list[Path] = []
            for link, hop in self._steps(node, dst):
                if hop.peer.node == dst:
                    paths.append(Path((hop,), (link,)))
                else:
                    rest = self._walk(hop.peer.node, dst, known)
                    paths += [Path((hop, *path.hops), (link, *path.links)) for path in rest]
            found = known[node] = tuple(paths)
        return found

    def _disjoint(self, a: str, b: str, by: Literal["node", "link"]) -> Iterator[Path]:
        flow_graph = self._flow_graph(a, b, by)
        flow: dict[Any, dict[Any, int]] = nx.max_flow_min_cost(flow_graph, ("in", a), ("out", b))
        while True:
            keys: list[str] = []
            here: tuple[str, str] = ("in", a)
            while here != ("out", b):
                step = next((there for there, units in flow[here].items() if units), None)
                if step is None:
                    return
                flow[here][step] -= 1
                here = step
                if here[0] == "over":
                    keys.append(here[1])
            steps = [self._directions[key] for key in keys]
            yield Path(tuple(hop for _, hop in steps), tuple(link for link, _ in steps))

    def _flow_graph(self, a: str, b: str, by: Literal["node", "link"]) -> Any:
        """Every direction holds one path, and by `node` every switch too (an edge in>out); other hosts are left out.

        Least cost never uses both directions of a link: the two paths could swap tails and save it."""
        graph = nx.DiGraph()
        for name in self._node_by_name:
            if self._has(name) and (name in (a, b) or name in self._switches):
                room = {"capacity": 1} if by == "node" and name not in (a, b) else {}
                graph.add_edge(("in", name), ("out", name), weight=0, **room)
        for key, (_, hop) in self._directions.items():
            source, target = hop.port.node, hop.peer.node
            if ("in", source) in graph and ("in", target) in graph and self._visible(key):
                graph.add_edge(("out", source), ("over", key), weight=1, capacity=1)
                graph.add_edge(("over", key), ("in", target), weight=0, capacity=1)
        return graph


def _backwards(link: Link) -> str:
    return replace(link, a=link.b, b=link.a).id


def _named(links: tuple[Link, ...], nodes: Mapping[str, Node]) -> Iterator[Link]:
    """The links with `by_port` set where node names alone would not name exactly one thing, after all checks."""
    used: set[str] = set()
    for link in links:
        for port in (link.a, link.b):
            if port.node not in nodes:
                raise FabricError(f"port {port.id!r}: no node {port.node!r}")
            if not port.name or ">" in port.name:
                raise FabricError(f"port {port.id!r}: expected a name without '>'")
            if port.id in used:
                raise FabricError(f"port {port.id!r} is used by two links")
            used.add(port.id)
        if link.a.node == link.b.node:
            raise FabricError(f"link {link.a.id} to {link.b.id} joins a node with itself")
    plain = [replace(link, index=place, by_port=False) for place, link in enumerate(links)]
    pairs = Counter(frozenset((link.a.node, link.b.node)) for link in plain)
    ids = Counter(link.id for link in plain)
    seen: set[str] = set()
    for link in plain:
        ambiguous = pairs[frozenset((link.a.node, link.b.node))] > 1 or ids[link.id] > 1 or link.id in nodes
        final = replace(link, by_port=True) if ambiguous else link
        if final.id in seen:
            raise FabricError(f"two links would both be called {final.id!r}; rename a node")
        seen.add(final.id)
        yield final
