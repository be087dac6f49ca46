"""The output of `ibnetdiscover`, as a Fabric: an InfiniBand subnet as its own management sees it.

Format: ibnetdiscover(8), TOPOLOGY FILE FORMAT; what the program prints beyond the page (chassis, external ports) is in
infiniband-diags/ibnetdiscover.c. A link is told from both its ends; each is held against the other.

Names are the nodes' descriptions. Channel adapters that a host describes as `NAME mlx5_0`, `NAME HCA-1` are ports of
one host; a description that several nodes share says nothing, and their GUIDs are their names then.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from topology.model import Fabric, FabricError, Link, Node, Port
from topology.sources.roles import Clues, place
from topology.sources.yamltext import TopologyError

LANE_BPS: Final = {
    "SDR": 2.5e9, "DDR": 5e9, "QDR": 10e9, "FDR10": 10e9, "FDR": 14e9, "EDR": 25e9, "HDR": 50e9, "NDR": 100e9,
    "XDR": 200e9,
}  # fmt: skip
"""Of one lane, as /sys/class/infiniband/*/ports/*/rate counts it."""

_NODE: Final = re.compile(
    r'(?P<kind>Switch|Ca|Rt)\s+(?P<ports>\d+)\s+"(?P<letter>[SHR])-(?P<guid>[0-9a-f]{16})"\s*#\s*"(?P<said>.*)"'
    r"(?:\s+(?:(?:base|enhanced) port 0\s+)?lid \d+ lmc \d+)?\s*"
)
_PORT: Final = re.compile(
    r"\[(?P<port>\d+)\](?:\s*\[ext \S+\])?(?:\((?P<guid>[0-9a-f]+)\))?\s+"
    r'"(?P<letter>[SHR])-(?P<peer>[0-9a-f]{16})"\[(?P<peer_port>\d+)\](?:\s*\[ext \S+\])?(?:\([0-9a-f]+\))?\s*'
    r'#\s*(?:lid \d+ lmc \d+ )?"(?P<said>.*)" lid \d+\s*(?P<width>\d+)x(?P<speed>\S+)\s*'
)
_GUID: Final = re.compile(
    r"(?:vendid|devid|sysimgguid|switchguid|caguid|rtguid)=0x[0-9a-f]+(?:\([0-9a-f]+\))?(\s*#.*)?"
)
_GROUP: Final = re.compile(r"Non-Chassis Nodes|Chassis \d+.*|(?:Spine|Line) \d+.*")
_ADAPTER: Final = re.compile(r"(?P<host>\S+) (?P<device>HCA-\d+|mlx[45]_\d+|hfi1_\d+|ibp\S+|\S+_\d+)")
_KINDS: Final = {"Switch": "S", "Ca": "H", "Rt": "R"}


@dataclass(slots=True)
class _Node:
    line: int
    letter: str
    guid: str
    said: str
    ports: dict[int, _End] = field(default_factory=dict)
    name: str = ""
    device: str = ""

    def port_name(self, number: int) -> str:
        return f"{self.device}/{number}" if self.letter == "H" else str(number)


@dataclass(frozen=True, slots=True)
class _End:
    """What one end tells of its link."""

    line: int
    peer: str
    peer_port: int
    width: int
    speed: str

    @property
    def speed_bps(self) -> int | None:
        lane = LANE_BPS.get(self.speed)
        return None if lane is None else round(self.width * lane)


def is_output(text: str) -> bool:
    """Whether a text looks like the program's output."""
    return "# Topology file: generated on" in text[:200] or _NODE.search(text[:4000]) is not None


def parse(text: str, where: str = "<text>") -> Fabric:
    """Raises TopologyError, naming file, line and what was expected."""
    nodes = _nodes(text, where)
    notes: list[str] = []
    _name(nodes, notes)
    links = list(_links(nodes, where, notes))
    names = dict.fromkeys(node.name for node in nodes.values())
    around: dict[str, list[str]] = {name: [] for name in names}
    for link in links:
        around[link.a.node].append(link.b.node)
        around[link.b.node].append(link.a.node)
    letters = {node.name: node.letter for node in nodes.values()}
    clues = [Clues(name, "", "", "", "host" if letters[name] == "H" else "switch") for name in names]
    placed, said = place(clues, around)
    made = [Node(name, placed[name].role, placed[name].tier, kind="infiniband") for name in names]
    try:
        return Fabric("infiniband", made, links, (*notes, *said))
    except FabricError as error:
        raise TopologyError(where, 1, "", str(error)) from None


def _nodes(text: str, where: str) -> dict[str, _Node]:
    """By GUID, in the order of the file."""
    nodes: dict[str, _Node] = {}
    now: _Node | None = None
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.strip()
        if not bare or bare.startswith("#") or _GUID.fullmatch(bare) or _GROUP.fullmatch(bare):
            continue
        if found := _NODE.fullmatch(bare):
            if _KINDS[found["kind"]] != found["letter"]:
                raise TopologyError(where, number, "", f"{found['kind']} with the letter {found['letter']}")
            if found["guid"] in nodes:
                raise TopologyError(where, number, "", f"node {found['guid']} appears twice")
            now = nodes[found["guid"]] = _Node(number, found["letter"], found["guid"], found["said"].strip())
        elif found := _PORT.fullmatch(bare):
            if now is None:
                raise TopologyError(where, number, "", "a port before any node: expected a line Switch, Ca or Rt first")
            port = int(found["port"])
            if port in now.ports:
                raise TopologyError(where, number, "", f"port {port} of {now.said!r} appears twice")
            now.ports[port] = _End(
                number, found["peer"], int(found["peer_port"]), int(found["width"]), found["speed"]
            )  # fmt: skip
        else:
            raise TopologyError(where, number, "", f"expected a line of ibnetdiscover's output, got {bare[:60]!r}")
    if not nodes:
        raise TopologyError(where, 1, "", "no node: expected the output of ibnetdiscover")
    return nodes


def _name(nodes: dict[str, _Node], notes: list[str]) -> None:
    """Give every node its name; adapters of one host share it."""
    count = Counter(node.said for node in nodes.values())
    shared = sorted(said for said, times in count.items() if times > 1)
    if shared:
        notes.append(f"called by their GUIDs, since several are described alike: {', '.join(shared)}")
    for node in nodes.values():
        text = node.said if count[node.said] == 1 and node.said else f"{node.letter}-{node.guid}"
        adapter = _ADAPTER.fullmatch(text) if node.letter == "H" else None
        node.name, node.device = (adapter["host"], adapter["device"]) if adapter else (text, "hca")
        node.name = re.sub(r"[>:]", "_", node.name)
    switches = {node.name for node in nodes.values() if node.letter != "H"}
    for node in nodes.values():
        if node.letter == "H" and node.name in switches:  # a host that is called like a switch
            node.name = f"H-{node.guid}"


def _links(nodes: dict[str, _Node], where: str, notes: list[str]) -> Iterator[Link]:
    done: set[tuple[str, int]] = set()
    for guid, node in nodes.items():
        for number, end in node.ports.items():
            if (guid, number) in done:
                continue
            other = nodes.get(end.peer)
            if other is None:
                raise TopologyError(where, end.line, "", f"its other end, node {end.peer}, is nowhere in the file")
            back = other.ports.get(end.peer_port)
            if back is None or (back.peer, back.peer_port) != (guid, number):
                told = "nothing" if back is None else f"port {back.peer_port} of node {back.peer}"
                what = (
                    f"port {end.peer_port} of {other.said!r} tells of {told}, expected port {number} of {node.said!r}"
                )
                raise TopologyError(where, end.line, "", what)
            done |= {(guid, number), (end.peer, end.peer_port)}
            a, b = _port(node, number, end), _port(other, end.peer_port, back)
            if (end.width, end.speed) != (back.width, back.speed):
                notes.append(
                    f"{a.id} runs at {end.width}x{end.speed}, its other end {b.id} at {back.width}x{back.speed}"
                )
            if a.node != b.node:
                yield Link(a, b)
            else:
                notes.append(f"{a.id} and {b.id} are ports of one host: not modelled")


def _port(node: _Node, number: int, end: _End) -> Port:
    return Port(node.name, node.port_name(number), end.speed_bps)
