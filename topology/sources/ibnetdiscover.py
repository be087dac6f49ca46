"""The output of `ibnetdiscover`, as a Fabric: an InfiniBand subnet as its own management sees it.

Format: ibnetdiscover(8), TOPOLOGY FILE FORMAT; what the program prints beyond the page (chassis, external ports) is in
infiniband-diags/ibnetdiscover.c. A link is told from both its ends; each is held against the other.
"""

from __future__ import annotations

import re
from typing import Final

from topology.model import Fabric
from topology.sources.infiniband import IbNode, IbPort, Letter, Subnet, build, chatter
from topology.sources.yamltext import TopologyError

_NODE: Final = re.compile(
    r'(?P<kind>Switch|Ca|Rt)\s+(?P<ports>\d+)\s+"(?P<letter>[SHR])-(?P<guid>[0-9a-f]{16})"\s*#\s*"(?P<said>.*)"'
    r"(?:\s+(?:(?:base|enhanced) port 0\s+)?lid (?P<lid>\d{1,5}) lmc (?P<lmc>[0-7]))?\s*"
)
_PORT: Final = re.compile(
    r"\[(?P<port>\d{1,3})\](?:\s*\[ext \S+\])?(?:\((?P<guid>[0-9a-f]{1,16})\))?\s+"
    r'"(?P<letter>[SHR])-(?P<peer>[0-9a-f]{16})"\[(?P<peer_port>\d{1,3})\](?:\s*\[ext \S+\])?(?:\([0-9a-f]+\))?\s*'
    r'#\s*(?:lid (?P<lid>\d{1,5}) lmc (?P<lmc>[0-7]) )?"(?P<said>.*)" lid \d+\s*(?P<width>\d{1,3})x(?P<speed>\S+)\s*'
)
_GUID: Final = re.compile(
    r"(?:vendid|devid|sysimgguid|switchguid|caguid|rtguid)=0x[0-9a-f]+(?:\((?P<port>[0-9a-f]{1,16})\))?(\s*#.*)?"
)
_GROUP: Final = re.compile(r"Non-Chassis Nodes|Chassis \d+.*|(?:Spine|Line) \d+.*")
_KINDS: Final[dict[str, Letter]] = {"Switch": "S", "Ca": "H", "Rt": "R"}


def is_output(text: str) -> bool:
    """Whether a text looks like the program's output."""
    return "# Topology file: generated on" in text[:200] or _NODE.search(text[:4000]) is not None


def parse(text: str, where: str = "<text>") -> Fabric:
    """Raises TopologyError, naming file, line and what was expected."""
    return read(text, where).fabric


def read(text: str, where: str = "<text>") -> Subnet:
    """With GUIDs and LIDs. Raises TopologyError, naming file, line and what was expected."""
    return build(_nodes(text, where), where, [])


def _nodes(text: str, where: str) -> dict[str, IbNode]:
    """By GUID, in the order of the file."""
    nodes: dict[str, IbNode] = {}
    now: IbNode | None = None
    port_guid: str | None = None
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.strip()
        if not bare or bare.startswith("#") or _GROUP.fullmatch(bare) or chatter(bare, where, number):
            continue
        if found := _GUID.fullmatch(bare):
            port_guid = found["port"] and found["port"].zfill(16)
        elif found := _NODE.fullmatch(bare):
            letter = _KINDS[found["kind"]]
            if letter != found["letter"]:
                raise TopologyError(where, number, "", f"{found['kind']} with the letter {found['letter']}")
            if found["guid"] in nodes:
                raise TopologyError(where, number, "", f"node {found['guid']} appears twice")
            now = IbNode(number, letter, found["guid"], found["said"].strip(), port_guid=port_guid)
            now.lid, now.lmc = (int(found["lid"]), int(found["lmc"])) if found["lid"] else (None, 0)
            nodes[found["guid"]] = now
            port_guid = None
        elif found := _PORT.fullmatch(bare):
            if now is None:
                raise TopologyError(where, number, "", "a port before any node: expected a line Switch, Ca or Rt first")
            port = int(found["port"])
            if port in now.ports:
                raise TopologyError(where, number, "", f"port {port} of {now.said!r} appears twice")
            now.ports[port] = IbPort(
                number, port, found["guid"] and found["guid"].zfill(16), int(found["lid"]) if found["lid"] else None,
                int(found["lmc"] or 0), (found["peer"], int(found["peer_port"])), int(found["width"]), found["speed"],
            )  # fmt: skip
        else:
            raise TopologyError(where, number, "", f"expected a line of ibnetdiscover's output, got {bare[:60]!r}")
    if not nodes:
        raise TopologyError(where, 1, "", "no node: expected the output of ibnetdiscover")
    return nodes
