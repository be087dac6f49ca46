"""An InfiniBand subnet: nodes with GUIDs, ports with LIDs, links with widths; and the Fabric that it makes.

What the tools of infiniband-diags print ends up here, whichever of them it was. Names are the nodes' descriptions.
Channel adapters that a host describes as `NAME mlx5_0`, `NAME HCA-1` are ports of one host; a description that several
nodes share says nothing, and their GUIDs are their names then.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from topology.model import Fabric, FabricError, Link, Node, Port
from topology.sources.roles import Clues, place
from topology.sources.yamltext import TopologyError

LANE_BPS: Final = {
    "SDR": 2.5e9, "DDR": 5e9, "QDR": 10e9, "FDR10": 10e9, "FDR": 14e9, "EDR": 25e9, "HDR": 50e9, "NDR": 100e9,
    "XDR": 200e9,
}  # fmt: skip
"""Of one lane, as /sys/class/infiniband/*/ports/*/rate counts it."""

Letter = Literal["S", "H", "R", "?"]
"""Switch, channel adapter of a host, router; `?`: the text does not say."""

_ADAPTER: Final = re.compile(r"(?P<host>\S+) (?P<device>HCA-\d+|mlx[45]_\d+|hfi1_\d+|ibp\S+|\S+_\d+)")
_CHATTER: Final = re.compile(r"ibwarn: \[\d+\].*|WARN: .*")
_FAILURE: Final = re.compile(r"\S+: iberror: .*failed: .*")


@dataclass(slots=True)
class IbPort:
    """A port and what it tells of its link. None: the text does not say.

    `lid` and `lmc`: the port answers to 2^lmc LIDs from `lid` on; a switch's are its node's. `state` and `physical`:
    as PortInfo has them (Active, LinkUp). `could_width`, `could_speed`: what both ends support, where it is more than
    what the link runs at. `mute`: the link is up, and what is at its other end did not answer."""

    line: int
    number: int
    guid: str | None = None
    lid: int | None = None
    lmc: int = 0
    peer: tuple[str, int] | None = None
    width: int | None = None
    speed: str | None = None
    state: str | None = None
    physical: str | None = None
    could_width: int | None = None
    could_speed: str | None = None
    mute: bool = False

    @property
    def speed_bps(self) -> int | None:
        lane = LANE_BPS.get(self.speed or "")
        return None if lane is None or self.width is None else round(self.width * lane)

    @property
    def rate(self) -> str:
        """Width and speed as the tools write them: `4xHDR`."""
        return f"{'?' if self.width is None else self.width}x{self.speed or '?'}"


@dataclass(slots=True)
class IbNode:
    """A switch, an adapter or a router. `guid`: the node's; `lid`: a switch's. `ports`: by number, those told of."""

    line: int
    letter: Letter
    guid: str | None
    said: str
    lid: int | None = None
    lmc: int = 0
    port_guid: str | None = None
    ports: dict[int, IbPort] = field(default_factory=dict)
    name: str = ""
    device: str = ""

    def port_name(self, number: int) -> str:
        return f"{self.device}/{number}" if self.letter == "H" else str(number)

    def port_id(self, number: int) -> str:
        """As the Fabric calls it."""
        return f"{self.name}:{self.port_name(number)}"


class Subnet:
    """The nodes by their keys (what `IbPort.peer` names), and the Fabric that they make."""

    def __init__(self, nodes: Mapping[str, IbNode], fabric: Fabric) -> None:
        self.nodes = nodes
        self.fabric = fabric
        self._links = {port.id: link for link in fabric.links for port in (link.a, link.b)}
        self._by_guid: dict[str, list[IbNode]] = {}
        self._by_lid: dict[int, tuple[IbNode, int | None]] = {}
        for node in nodes.values():
            guids = (node.guid, node.port_guid, *(port.guid for port in node.ports.values()))
            for guid in dict.fromkeys(guids):
                if guid:
                    self._by_guid.setdefault(guid, []).append(node)
            lids = [(None, node.lid, node.lmc)]
            if node.letter != "S":
                lids += [(port.number, port.lid, port.lmc) for port in node.ports.values()]  # type: ignore[misc]
            for number, first, lmc in lids:
                for lid in range(first, first + (1 << lmc)) if first else ():
                    self._by_lid[lid] = (node, number)

    @property
    def lids(self) -> Mapping[int, tuple[IbNode, int | None]]:
        """LID -> the node that owns it, and its port; None: the switch itself."""
        return self._by_lid

    def with_guid(self, guid: str) -> IbNode | None:
        """The node with this node or port GUID (16 hexadecimal digits); None when there is none or no only one."""
        found = self._by_guid.get(guid, ())
        return found[0] if len(found) == 1 else None

    def with_name(self, said: str) -> IbNode | None:
        """The only node that is described so."""
        found = [node for node in self.nodes.values() if node.said == said]
        return found[0] if len(found) == 1 else None

    def link_at(self, node: IbNode, number: int) -> Link | None:
        return self._links.get(node.port_id(number))

    def port(self, port_id: str) -> tuple[IbNode, IbPort] | None:
        """The port that the Fabric calls so."""
        for node in self.nodes.values():
            for number, port in node.ports.items():
                if node.port_id(number) == port_id:
                    return node, port
        return None


def chatter(line: str, where: str, number: int) -> bool:
    """Whether a line is a warning that got into the text (`2>&1`). TopologyError for the program's last words."""
    if _FAILURE.fullmatch(line):
        raise TopologyError(where, number, "", f"the program failed, it says: {line[:160]}")
    return _CHATTER.fullmatch(line) is not None


def build(nodes: Mapping[str, IbNode], where: str, notes: list[str]) -> Subnet:
    """Name the nodes, hold both ends of each link against one another, make the Fabric. Raises TopologyError."""
    _name(nodes, notes)
    links = list(_links(nodes, where, notes))
    names = dict.fromkeys(node.name for node in nodes.values())
    around: dict[str, list[str]] = {name: [] for name in names}
    for link in links:
        around[link.a.node].append(link.b.node)
        around[link.b.node].append(link.a.node)
    letters = {node.name: node.letter for node in nodes.values()}
    clues = [_clues(name, letters[name]) for name in names]
    placed, said = place(clues, around)
    made = [Node(name, placed[name].role, placed[name].tier, kind="infiniband") for name in names]
    try:
        return Subnet(nodes, Fabric("infiniband", made, links, (*notes, *said)))
    except FabricError as error:
        raise TopologyError(where, 1, "", str(error)) from None


def renamed(subnet: Subnet, known: Subnet, where: str) -> Subnet:
    """The subnet with the names that its nodes have in `known`, wherever a GUID or a description tells them."""
    for node in subnet.nodes.values():
        guids = (node.guid, node.port_guid, *(port.guid for port in node.ports.values()))
        found = next((one for guid in guids if guid and (one := known.with_guid(guid))), known.with_name(node.said))
        if found is None:
            continue
        node.said, node.guid, node.letter, node.lmc = found.said, found.guid or node.guid, found.letter, found.lmc
        for number, port in node.ports.items():
            told = found.ports.get(number)
            if told:
                port.guid, port.lmc = port.guid or told.guid, told.lmc
        if node.letter == "S":
            node.lid = node.lid or next((port.lid for port in node.ports.values() if port.lid), None)
    return build(subnet.nodes, where, list(subnet.fabric.notes))


def _clues(name: str, letter: Letter) -> Clues:
    if letter == "?":
        return Clues(name, "linux", "", "")  # anything: its name and its neighbours tell
    return Clues(name, "", "", "", "host" if letter == "H" else "switch")


def _name(nodes: Mapping[str, IbNode], notes: list[str]) -> None:
    """Give every node its name; adapters of one host share it."""
    count = Counter(node.said for node in nodes.values())
    shared = sorted(said for said, times in count.items() if times > 1)
    if shared:
        notes.append(f"called by their GUIDs, since several are described alike: {', '.join(shared)}")
    for key, node in nodes.items():
        text = node.said if count[node.said] == 1 and node.said else f"{node.letter}-{_guid(node) or key}"
        adapter = _ADAPTER.fullmatch(text) if node.letter in "H?" else None
        if adapter:
            node.letter = "H"
        node.name, node.device = (adapter["host"], adapter["device"]) if adapter else (text, "hca")
        node.name = re.sub(r"[>:]", "_", node.name)
    switches = {node.name for node in nodes.values() if node.letter != "H"}
    for key, node in nodes.items():
        if node.letter == "H" and node.name in switches:  # a host that is called like a switch
            node.name = f"H-{_guid(node) or key}"


def _guid(node: IbNode) -> str | None:
    """The node's own, else the first that one of its ports has."""
    return node.guid or node.port_guid or next((port.guid for port in node.ports.values() if port.guid), None)


def _links(nodes: Mapping[str, IbNode], where: str, notes: list[str]) -> Iterator[Link]:
    done: set[tuple[str, int]] = set()
    for key, node in nodes.items():
        for number, end in node.ports.items():
            if (key, number) in done or end.peer is None:
                continue
            peer, peer_number = end.peer
            other = nodes.get(peer)
            if other is None:
                raise TopologyError(where, end.line, "", f"its other end, node {peer}, is nowhere in the file")
            back = other.ports.get(peer_number)
            if back is None or back.peer != (key, number):
                told = "nothing" if back is None or back.peer is None else f"port {back.peer[1]} of node {back.peer[0]}"
                what = f"port {peer_number} of {other.said!r} tells of {told}, expected port {number} of {node.said!r}"
                raise TopologyError(where, end.line, "", what)
            done |= {(key, number), end.peer}
            a = Port(node.name, node.port_name(number), end.speed_bps)
            b = Port(other.name, other.port_name(peer_number), back.speed_bps)
            if end.rate != back.rate:
                notes.append(f"{a.id} runs at {end.rate}, its other end {b.id} at {back.rate}")
            if a.node != b.node:
                yield Link(a, b)
            else:
                notes.append(f"{a.id} and {b.id} are ports of one host: not modelled")
