"""containerlab topology files (`*.clab.yml`, https://containerlab.dev/manual/topo-def-file/) into a Fabric.

Inheritance is containerlab's own (types/topology.go): what a node does not say itself comes from its group, then from
its kind, then from the defaults; labels are merged in the opposite order. The group is the node's, else its kind's,
else the defaults'; the kind is the node's, else its group's, else that of the defaults' group, else the defaults'.

Labels that this project reads, on nodes (or groups, kinds, defaults); all values are text:

    linkpass.role    host | leaf | spine | switch   (leaf is a switch of tier 1, spine one of tier 2)
    linkpass.tier    a number: 0 host, 1 leaf, 2 spine, 3 super-spine, ...
    linkpass.rack    text
    linkpass.rail    a number: every link of this switch belongs to that rail
    linkpass.plane   a number: every link of this switch belongs to that plane
    linkpass.speed   bits per second of every port of this node: 25G, 400G, 100M, 1000000

On a link `linkpass.rail`, `linkpass.plane` and `linkpass.speed` stand under `vars`, because containerlab's schema has
no labels for the short form; an endpoint's own `vars` win over the link's, and those over the nodes' labels.

Roles that no label states are inferred, see `topology.sources.roles`, and `Fabric.notes` says so. Links of type veth
(and the short form) and veth-stitch are modelled, bridges are switches; other link types, links from a node to itself
and the addresses of links are named in the notes as not modelled. `$NAME`, `${NAME}` and `${NAME:-default}` are filled
in from `variables`; a Go template has to be rendered before.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from topology.model import Fabric, FabricError, Link, Node, Port, Role
from topology.sources.reading import Reader, near, speed_bps
from topology.sources.roles import BRIDGE_KINDS, GENERAL_KINDS, HOST_KINDS, Clues, place
from topology.sources.yamltext import Table, TopologyError, load, say

__all__ = ["TopologyError", "parse"]

_TOP = ("name", "prefix", "mgmt", "topology", "settings", "debug")
_TOPOLOGY = ("defaults", "kinds", "groups", "nodes", "links")
_NODE_READ = ("kind", "group", "image", "labels")
_LINK_ONE_END = ("endpoint", "host-interface", "mode", "remote", "vni", "dst-port", "src-port")
_LINK = ("type", "endpoints", "mtu", "ipv4", "ipv6", "vars", "labels", *_LINK_ONE_END)
_ENDPOINT = ("node", "interface", "mac", "ipv4", "ipv6", "vars")
_JOINED = ("veth", "veth-stitch")
_ONE_ENDED = ("host", "mgmt-net", "macvlan", "dummy", "vxlan", "vxlan-stitch")
_SHORT_OUTSIDE = ("host", "mgmt-net", "macvlan")
"""Words that containerlab reads as a link type where the short form has a node (links/link_brief.go)."""

_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]*")
_NODE_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._|-]*")
_MAC = re.compile(r"(?:[0-9A-Fa-f]{2}[:-]){5}[0-9A-Fa-f]{2}")
_ROLES: Mapping[str, tuple[Role, int | None]] = {
    "host": ("host", 0),
    "leaf": ("switch", 1),
    "spine": ("switch", 2),
    "switch": ("switch", None),
}
_NODE_LABELS = tuple(f"linkpass.{word}" for word in ("role", "tier", "rack", "rail", "plane", "speed"))
_PORT_VARS = ("linkpass.rail", "linkpass.plane", "linkpass.speed")


def parse(text: str, where: str = "<text>", variables: Mapping[str, str] | None = None) -> Fabric:
    """The fabric that a topology file describes. `where` names the file in errors.

    Raises TopologyError, one line long: file, line, key, what was expected and what was found."""
    return _File(where, load(text, where, variables or {})).fabric()


@dataclass(frozen=True, slots=True)
class _Marks:
    """What labels or vars say of ports."""

    rail: int | None = None
    plane: int | None = None
    speed_bps: int | None = None

    def over(self, weaker: _Marks) -> _Marks:
        return _Marks(
            weaker.rail if self.rail is None else self.rail,
            weaker.plane if self.plane is None else self.plane,
            weaker.speed_bps if self.speed_bps is None else self.speed_bps,
        )


@dataclass(frozen=True, slots=True)
class _NodeEntry:
    clues: Clues
    labels: Mapping[str, str]
    marks: _Marks


@dataclass(frozen=True, slots=True)
class _End:
    node: str
    interface: str
    mac: str | None = None
    marks: _Marks = _Marks()

    @property
    def id(self) -> str:
        return f"{self.node}:{self.interface}"


@dataclass(frozen=True, slots=True)
class _LinkEntry:
    a: _End
    b: _End
    mtu: int | None
    marks: _Marks


class _File:
    """One file being read."""

    def __init__(self, where: str, root: Table) -> None:
        self._root = root
        self._read = Reader(where)
        self._notes: list[str] = []
        self._used: dict[tuple[str, str], int] = {}
        self._addressed: list[str] = []

    def fabric(self) -> Fabric:
        self._keys(self._root, _TOP, "")
        name = self._read.text(self._root, "name", "")
        if name is None or not _NAME.fullmatch(name):
            raise self._read.wrong(self._root, "name", "", "a lab name of letters, digits and -._")
        if "topology" not in self._root.items:
            raise self._read.wrong(self._root, "topology", "", "a mapping with nodes and links")
        topology = self._read.table(self._root, "topology", "")
        self._keys(topology, _TOPOLOGY, "topology")
        entries = self._nodes(topology)
        links = self._links(topology, entries)
        neighbours: dict[str, list[str]] = {}
        for link in links:
            neighbours.setdefault(link.a.node, []).append(link.b.node)
            neighbours.setdefault(link.b.node, []).append(link.a.node)
        placed, role_notes = place([entry.clues for entry in entries.values()], neighbours)
        bridges = [name for name, entry in entries.items() if entry.clues.kind in BRIDGE_KINDS]
        if bridges:
            self._notes.append(
                f"bridges modelled as switches, though they learn and do not route: {', '.join(bridges)}"
            )
        if self._addressed:
            self._notes.append(f"addresses not modelled: {', '.join(self._addressed)}")
        nodes = []
        for at, entry in entries.items():
            rack = entry.labels.get("linkpass.rack")
            nodes.append(Node(at, placed[at].role, placed[at].tier, rack, entry.clues.kind, entry.labels))
        joined = [Link(_port(link, entries, link.a), _port(link, entries, link.b), mtu=link.mtu) for link in links]
        try:
            return Fabric(name, nodes, joined, (*role_notes, *self._notes))
        except FabricError as error:
            raise self._read.error(topology.line, "topology", f"expected a fabric, got: {error}") from None

    def _keys(self, table: Table, known: Sequence[str], key: str) -> None:
        strange = self._read.no_slips(table, known, key)
        if strange:
            self._notes.append(f"keys not known and ignored{f' in {key}' if key else ''}: {', '.join(strange)}")

    # nodes
    def _nodes(self, topology: Table) -> dict[str, _NodeEntry]:
        defaults = self._read.table(topology, "defaults", "topology")
        kinds = self._read.tables(topology, "kinds", "topology")
        groups = self._read.tables(topology, "groups", "topology")
        nodes = self._read.tables(topology, "nodes", "topology")
        if not nodes:
            raise self._read.wrong(topology, "nodes", "topology", "a mapping of at least one node")
        lines = self._read.table(topology, "nodes", "topology").lines
        self._read.no_slips(defaults, _NODE_READ, "topology.defaults")
        for section, tables in (("kinds", kinds), ("groups", groups), ("nodes", nodes)):
            for name, table in tables.items():
                self._read.no_slips(table, _NODE_READ, f"topology.{section}.{name}")
        for name in nodes:
            key = f"topology.nodes.{name}"
            self._read.is_set(name, lines[name], key)
            if not _NODE_NAME.fullmatch(name):
                raise self._read.error(
                    lines[name], key, f"expected a name of letters, digits and -._|, got {say(name)}"
                )
        return {name: self._node(name, lines[name], table, defaults, kinds, groups) for name, table in nodes.items()}

    def _node(
        self,
        name: str,
        line: int,
        table: Table,
        defaults: Table,
        kinds: Mapping[str, Table],
        groups: Mapping[str, Table],
    ) -> _NodeEntry:
        key = f"topology.nodes.{name}"
        nothing = Table(line, {}, {})

        def said(level: Table, word: str) -> str:
            return self._read.text(level, word, key) or ""

        own_group = groups.get(said(table, "group"), nothing)
        default_group = groups.get(said(defaults, "group"), nothing)
        kind = next((k for k in (said(at, "kind") for at in (table, own_group, default_group, defaults)) if k), "")
        if not kind:
            raise self._read.error(
                line, f"{key}.kind", "expected a kind here, in its group or the defaults, got nothing"
            )
        slip = near(kind, GENERAL_KINDS | HOST_KINDS | BRIDGE_KINDS)
        if slip and slip != kind:
            raise self._read.error(table.lines.get("kind", line), f"{key}.kind", f"expected {slip}, got {say(kind)}")
        of_kind = kinds.get(kind, nothing)
        group = said(table, "group") or said(of_kind, "group") or said(defaults, "group")
        levels = (table, groups.get(group, nothing), of_kind, defaults)
        image = next((str(level.items["image"]) for level in levels if level.items.get("image")), "")
        labels = Table(line, {}, {})
        for level in reversed(levels):
            own = self._read.table(level, "labels", key)
            labels.items.update(own.items)
            labels.lines.update(own.lines)
        key = f"{key}.labels"
        self._ours(labels, _NODE_LABELS, key)
        role, tier = self._role(labels, key)
        texts = {label: self._read.text(labels, label, key) or "" for label in labels.items}
        return _NodeEntry(
            Clues(name, kind, image, group, role, tier), MappingProxyType(texts), self._marks(labels, key)
        )

    def _role(self, labels: Table, key: str) -> tuple[Role | None, int | None]:
        word = self._read.text(labels, "linkpass.role", key)
        if word is not None and word not in _ROLES:
            raise self._read.wrong(labels, "linkpass.role", key, f"one of {', '.join(_ROLES)}")
        role, implied = _ROLES[word] if word is not None else (None, None)
        tier = self._read.number(labels, "linkpass.tier", key, 0, 9)
        if tier is None:
            return role, implied
        if role is None:
            return ("host" if tier == 0 else "switch"), tier
        if (role == "host") != (tier == 0) or (implied is not None and implied != tier):
            raise self._read.wrong(labels, "linkpass.tier", key, f"a tier that fits the role {word}")
        return role, tier

    def _ours(self, table: Table, known: Sequence[str], key: str) -> None:
        for word in table.items:
            if word.startswith("linkpass.") and word not in known:
                expected = f"expected one of {', '.join(known)}, got {say(word)}"
                raise self._read.error(table.lines[word], f"{key}.{word}", expected)

    def _marks(self, table: Table, key: str) -> _Marks:
        speed = self._read.text(table, "linkpass.speed", key)
        bps = speed_bps(speed) if speed is not None else None
        if speed is not None and bps is None:
            raise self._read.wrong(table, "linkpass.speed", key, "bits per second like 400G or 1000000")
        return _Marks(
            self._read.number(table, "linkpass.rail", key, 0, 4095),
            self._read.number(table, "linkpass.plane", key, 0, 4095),
            bps,
        )

    def _port_marks(self, table: Table, key: str) -> _Marks:
        """Of a link or an endpoint: its vars, then its labels."""
        marks = _Marks()
        for word in ("labels", "vars"):
            own = self._read.table(table, word, key)
            self._ours(own, _PORT_VARS, f"{key}.{word}")
            marks = self._marks(own, f"{key}.{word}").over(marks)
        return marks

    # links
    def _links(self, topology: Table, nodes: Mapping[str, _NodeEntry]) -> list[_LinkEntry]:
        rows = self._read.row(topology, "links", "topology", "a list of links")
        found: list[_LinkEntry] = []
        for number, (line, item) in enumerate(zip(rows.lines, rows.items, strict=True)):
            key = f"topology.links[{number}]"
            if not isinstance(item, Table):
                raise self._read.error(line, key, f"expected a mapping with endpoints, got {say(item)}")
            link = self._link(item, key, nodes)
            if link is not None:
                found.append(link)
        return found

    def _link(self, table: Table, key: str, nodes: Mapping[str, _NodeEntry]) -> _LinkEntry | None:
        self._keys(table, _LINK, key)
        kind = self._read.text(table, "type", key)
        if kind is not None and kind not in (*_JOINED, *_ONE_ENDED):
            raise self._read.wrong(table, "type", key, f"one of {', '.join((*_JOINED, *_ONE_ENDED))}")
        mtu = self._read.number(table, "mtu", key, 1, 65535)
        marks = self._port_marks(table, key)
        if kind in _ONE_ENDED:
            if "endpoint" not in table.items:
                raise self._read.wrong(table, "endpoint", key, "a mapping with node and interface")
            end = self._long_end(self._read.table(table, "endpoint", key), f"{key}.endpoint", nodes)
            self._notes.append(f"link not modelled: {end.id}, type {kind}")
            return None
        row = self._read.row(table, "endpoints", key, "a list of two endpoints")
        if len(row.items) != 2:
            raise self._read.wrong(table, "endpoints", key, "a list of two endpoints")
        ends: list[_End] = []
        outside = ""
        for number, (line, item) in enumerate(zip(row.lines, row.items, strict=True)):
            at = f"{key}.endpoints[{number}]"
            end_ = self._short_end(item, line, at, nodes) if kind is None else self._mapped_end(item, line, at, nodes)
            if end_ is None:
                outside = str(item)
            else:
                ends.append(end_)
        if len(ends) < 2:
            self._notes.append(f"link not modelled: {', '.join(end.id for end in ends)} to {outside}")
            return None
        a, b = ends
        if a.node == b.node:
            self._notes.append(f"link not modelled: {a.id} to {b.id}, the same node")
            return None
        if table.items.get("ipv4") or table.items.get("ipv6"):
            self._addressed.append(f"{a.id} to {b.id}")
        return _LinkEntry(a, b, mtu, marks)

    def _short_end(self, item: object, line: int, key: str, nodes: Mapping[str, _NodeEntry]) -> _End | None:
        if isinstance(item, Table):
            raise self._read.error(line, key, 'expected "node:interface", got a mapping; that form needs type: veth')
        text = item if isinstance(item, str) else ""
        node, _, interface = text.partition(":")
        if not (node and interface) or any(letter.isspace() for letter in text):
            raise self._read.error(line, key, f'expected "node:interface", got {say(item)}')
        self._read.is_set(text, line, key)
        if node.lower() in _SHORT_OUTSIDE:
            return None
        return self._end(_End(node, interface), line, key, nodes)

    def _mapped_end(self, item: object, line: int, key: str, nodes: Mapping[str, _NodeEntry]) -> _End:
        if not isinstance(item, Table):
            raise self._read.error(line, key, f"expected a mapping with node and interface, got {say(item)}")
        return self._long_end(item, key, nodes)

    def _long_end(self, table: Table, key: str, nodes: Mapping[str, _NodeEntry]) -> _End:
        self._keys(table, _ENDPOINT, key)
        node, interface = self._read.text(table, "node", key), self._read.text(table, "interface", key)
        if not node or not interface:
            raise self._read.wrong(table, "interface" if node else "node", key, "a name")
        mac = self._read.text(table, "mac", key)
        if mac and not _MAC.fullmatch(mac):
            raise self._read.wrong(table, "mac", key, "six bytes in hexadecimal like 02:00:00:00:00:01")
        end = _End(node, interface, mac.lower().replace("-", ":") if mac else None, self._port_marks(table, key))
        if table.items.get("ipv4") or table.items.get("ipv6"):
            self._addressed.append(end.id)
        return self._end(end, table.lines["node"], key, nodes)

    def _end(self, end: _End, line: int, key: str, nodes: Mapping[str, _NodeEntry]) -> _End:
        if end.node not in nodes:
            slip = near(end.node, nodes)
            hint = f"; did you mean {slip}?" if slip else ""
            raise self._read.error(line, key, f"expected a node of topology.nodes, got {say(end.node)}{hint}")
        before = self._used.get((end.node, end.interface))
        if before is not None:
            raise self._read.error(line, key, f"expected a free interface, got {end.id}, used in line {before}")
        self._used[end.node, end.interface] = line
        return end


def _port(link: _LinkEntry, nodes: Mapping[str, _NodeEntry], end: _End) -> Port:
    """The endpoint's own marks, then the link's, then those of this node, then (rail and plane) of the other."""
    other = nodes[(link.b if end is link.a else link.a).node].marks
    far = _Marks(other.rail, other.plane)
    marks = end.marks.over(link.marks).over(nodes[end.node].marks).over(far)
    return Port(end.node, end.interface, marks.speed_bps, marks.rail, marks.plane, end.mac)
