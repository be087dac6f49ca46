"""The output of `iblinkinfo`: every port of a subnet, those that are down too, with what each link could run at.

Format: infiniband-diags/iblinkinfo.c, print_node_header and print_port; widths, speeds and states in the words of
libibmad/dump.c, `Could be` in get_max_msg of infiniband-diags/ibdiag_common.c. Nodes with their ports below, or one
line a link (`--line`); with `--additional` and node name maps. A part of a subnet (`--switches-only`, `-G`, `--down`)
is read too: what is at the other end of a cable and not listed itself is known by that cable only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from topology.model import Fabric
from topology.sources.infiniband import IbNode, IbPort, Letter, Subnet, build, chatter
from topology.sources.yamltext import TopologyError

SPEEDS: Final = {
    "2.5 Gbps": "SDR", "5.0 Gbps": "DDR", "10.0 Gbps": "QDR", "10.0 Gbps (FDR10)": "FDR10", "FDR10": "FDR10",
    "14.0625 Gbps": "FDR", "25.78125 Gbps": "EDR", "53.125 Gbps": "HDR", "106.25 Gbps": "NDR", "212.5 Gbps": "XDR",
    "FDR10 (Found link at QDR but expected speed is FDR10)": "FDR10",
}  # fmt: skip
"""A lane's speed in the program's words -> its name. Other words (`undefined (16)`, `Extended speed`) name no speed."""

_WORD: Final = r"undefined \(\d+\)|\d{1,2}X"
_STATE: Final = r"NoChange|Down|Initialize|Armed|Active|\?\(\d+\)"
_PHYSICAL: Final = (
    r"NoChange|Sleep|Polling|Disabled|PortConfigurationTraining|LinkUp|LinkErrorRecovery|PhyTest|\?\(\d+\)"
)
_HEADER: Final = re.compile(
    r"(?P<kind>Switch|CA|Router|\?\?): (?:(?<=Switch: )0x(?P<guid>[0-9a-f]{16}) )?(?P<said>.*):"
)
LINK: Final = (
    r"(?P<lid>\d{1,5}) +(?P<port>\d{1,3})\[(?P<ext>[ \d]+)\] ==\("
    rf" *(?:(?P<width>{_WORD}) +(?P<speed>\S.*?) +)?(?P<state>{_STATE})/ *(?P<physical>{_PHYSICAL})\)"
    r"(?: \(HOQ:\d+ VL_Stall:\d+\))?==> +"
    r'(?:(?P<none>\[  \] "" \( \))|(?P<mute>"Port not available")'
    r"|(?:0x(?P<peer_guid>[0-9a-f]{16}) +)?(?P<peer_lid>\d{1,5}) +(?P<peer_port>\d{1,3})\[[ \d]+\]"
    rf' "(?P<peer>.*)" \((?:Could be (?P<could_width>{_WORD}))? ?(?:Could be (?P<could_speed>.*))?\))'
)
"""One port and its link: what all forms of the output have in common, those of ibqueryerrors --report-port too."""

_PORT: Final = re.compile(rf"(?:0x(?P<guid>[0-9a-f]{{16}}) +)?{LINK}")
_LINE: Final = re.compile(rf'0x(?P<guid>[0-9a-f]{{16}}) "(?P<said>.*?)" +{LINK}')
_KINDS: Final[dict[str, Letter]] = {"Switch": "S", "CA": "H", "Router": "R", "??": "?"}


@dataclass(frozen=True, slots=True)
class _Far:
    """What a line says of the other end."""

    guid: str | None
    lid: int
    port: int
    said: str


@dataclass(slots=True)
class _Found:
    nodes: dict[str, IbNode] = field(default_factory=dict)
    far: dict[tuple[str, int], _Far] = field(default_factory=dict)


def is_output(text: str) -> bool:
    """Whether a text looks like the program's output."""
    return any(re.search(r"\] ==\(.*\)==> ", line) and "Link info:" not in line for line in text[:8000].splitlines())


def parse(text: str, where: str = "<text>") -> Fabric:
    """The links that are up. Raises TopologyError, naming file, line and what was expected."""
    return read(text, where).fabric


def read(text: str, where: str = "<text>") -> Subnet:
    """With GUIDs, LIDs, and the ports that are down. Raises TopologyError, naming file and line."""
    found = _found(text, where)
    if not found.nodes:
        raise TopologyError(where, 1, "", "no node: expected the output of iblinkinfo")
    notes: list[str] = []
    _join(found, where, notes)
    return build(found.nodes, where, notes)


def port_of(found: re.Match[str], number: int) -> IbPort:
    """The port that a match of LINK tells of; `number`: its line."""
    groups = found.groupdict()
    guid, lid = groups.get("guid"), int(groups["lid"])
    return IbPort(
        number, int(groups["port"]), guid, lid or None,
        width=_width(groups["width"]), speed=SPEEDS.get(groups["speed"] or "", groups["speed"]),
        state=groups["state"], physical=groups["physical"],
        could_width=_width(groups["could_width"]),
        could_speed=groups["could_speed"] and SPEEDS.get(groups["could_speed"], groups["could_speed"]),
        mute=groups["mute"] is not None,
    )  # fmt: skip


def _width(word: str | None) -> int | None:
    return int(word[:-1]) if word and word.endswith("X") else None


def _found(text: str, where: str) -> _Found:
    found = _Found()
    now: IbNode | None = None
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.strip()
        if not bare or chatter(bare, where, number):
            continue
        if line.startswith(("< ", "> ")):
            raise TopologyError(where, number, "", "a comparison, not a subnet: run iblinkinfo without --diff")
        if head := _HEADER.fullmatch(bare):
            letter = _KINDS[head["kind"]]
            now = IbNode(number, letter, None, head["said"].strip(), port_guid=head["guid"])
            if head["guid"] in found.nodes:
                raise TopologyError(where, number, "", f"switch {head['guid']} appears twice")
            found.nodes[head["guid"] or f"line {number}"] = now
        elif port := _LINE.fullmatch(bare):
            now = _continued(found, now, port, number)
            _add(found, now, port, number, where)
        elif port := _PORT.fullmatch(bare):
            if now is None:
                raise TopologyError(where, number, "", "a port before any node: expected Switch:, CA: or Router:")
            _add(found, now, port, number, where)
        else:
            raise TopologyError(where, number, "", f"expected a line of iblinkinfo's output, got {bare[:60]!r}")
    return found


def _continued(found: _Found, now: IbNode | None, port: re.Match[str], number: int) -> IbNode:
    """The node of a line of `--line`, which has no headers: a node's ports follow one another, their numbers rise."""
    said, guid = port["said"].strip(), port["guid"]
    if now is not None and now.said == said and int(port["port"]) > max(now.ports, default=0):
        if guid == now.port_guid and len(now.ports) == 1:
            now.letter = "S"  # its ports share a GUID
        if guid == now.port_guid or now.letter != "S":
            return now
    made = IbNode(number, "?", None, said, port_guid=guid)
    found.nodes[f"line {number}"] = made
    return made


def _add(found: _Found, node: IbNode, match: re.Match[str], number: int, where: str) -> None:
    port = port_of(match, number)
    if port.number in node.ports:
        raise TopologyError(where, number, "", f"port {port.number} of {node.said!r} appears twice")
    node.ports[port.number] = port
    if node.letter == "S":
        node.lid, port.guid = port.lid or node.lid, None
    key = next(key for key in reversed(found.nodes) if found.nodes[key] is node)
    if match["peer"] is not None:
        far = _Far(match["peer_guid"], int(match["peer_lid"]), int(match["peer_port"]), match["peer"].strip())
        found.far[key, port.number] = far


def _join(found: _Found, where: str, notes: list[str]) -> None:
    """Find the other end of each link among the nodes; make a node of what is only known as an other end."""
    by_name: dict[str, list[str]] = {}
    by_guid: dict[str, list[str]] = {}
    for key, node in found.nodes.items():
        by_name.setdefault(node.said, []).append(key)
        for guid in {node.port_guid, *(port.guid for port in node.ports.values())} - {None}:
            by_guid.setdefault(str(guid), []).append(key)
    strangers = []
    for (key, number), far in list(found.far.items()):
        node = found.nodes[key]
        port = node.ports[number]
        if far.guid:
            fits = by_guid.get(far.guid, [])
        else:
            fits = [one for one in by_name.get(far.said, ()) if _lid_fits(found.nodes[one], far)]
        if len(fits) > 1:
            fits = [one for one in fits if _points_back(found, one, far, node, port)] or fits
        if len(fits) > 1:
            raise TopologyError(
                where, port.line, "", f"its other end may be any of {len(fits)} nodes called {far.said!r}: run "
                "iblinkinfo --line, which tells them apart by GUID",
            )  # fmt: skip
        if not fits:
            fits = [f"{far.guid or far.said} lid {far.lid}"]
            found.nodes[fits[0]] = IbNode(port.line, "?", None, far.said, far.lid or None, port_guid=far.guid)
            by_name.setdefault(far.said, []).append(fits[0])
            if far.guid:
                by_guid.setdefault(far.guid, []).append(fits[0])
            strangers.append(far.said)
        port.peer = (fits[0], far.port)
        other = found.nodes[fits[0]]
        if far.port not in other.ports:  # not listed itself: a link is alike at both its ends
            if other.letter == "?" and other.ports and other.lid == far.lid:
                other.letter = "S"  # its ports share a LID
            other.ports[far.port] = IbPort(
                port.line, far.port, far.guid, far.lid or None, 0, (key, number), port.width, port.speed
            )
    if strangers:
        notes.append(f"not listed, known as an other end only: {', '.join(sorted(set(strangers)))}")


def _lid_fits(node: IbNode, far: _Far) -> bool:
    """0: nobody has given any LID yet."""
    own = node.lid if node.letter == "S" else getattr(node.ports.get(far.port), "lid", None)
    return not far.lid or own is None or own == far.lid


def _points_back(found: _Found, key: str, far: _Far, node: IbNode, port: IbPort) -> bool:
    back = found.far.get((key, far.port))
    return back is not None and (back.port, back.said) == (port.number, node.said) and back.lid in (0, port.lid)
