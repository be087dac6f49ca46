"""Captured LLDP frames as neighbours: who is at the two ends of each wire. Only commands import this: it loads scapy.

On a wire both ends announce themselves, so a capture of both directions (what tcpdump writes where an lldpd runs) names
a whole link: if its own end is known (by the direction of a cooked capture, or by a file that is called after the node)
or both ends speak in turn; else a cable that was moved in between would look like a link. A capture of what arrives
names one end; the other is the interface that the file names (pcapng), of the node after which the file is called. What
was captured for a moment is not all that there is: such a node is never taken to tell of all its links. IEEE
802.1AB-2016, section 8; scapy.contrib.lldp decodes.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from scapy.contrib import lldp as decoded
from scapy.error import Scapy_Exception
from scapy.layers.l2 import Ether

from linkpass.pcap import frames
from topology.sources.lldp import Answers, Told, clean, port_names
from topology.sources.yamltext import TopologyError

ETHERTYPE: Final = 0x88CC
COOKED, COOKED_2 = 113, 276
"""Link types of Linux cooked captures (tcpdump.org/linktypes): the second has the interface's number."""
OUTGOING: Final = 4
PORT_KINDS: Final = {3: "mac", 5: "ifname"}
ADDRESS_BYTES: Final = {1: 4, 2: 16}


@dataclass(slots=True)
class _Wire:
    """What was heard at one interface. `name`: the interface's, where the file tells; `own`: sent by the capturer."""

    name: str
    ends: dict[tuple[str, str], tuple[Told, int]] = field(default_factory=dict)
    """End -> what it told last, and in which frame."""
    first: dict[tuple[str, str], int] = field(default_factory=dict)
    own: tuple[str, str] | None = None

    @property
    def in_turn(self) -> bool:
        """Two ends, and the first was heard again after the other."""
        return len(self.ends) == 2 and self.ends[min(self.first, key=self.first.__getitem__)][1] > max(
            self.first.values()
        )


def answers(path: Path) -> list[Answers]:
    """What the LLDP frames of a capture tell of neighbours. Raises TopologyError, NoCaptureError, OSError."""
    where, node = str(path), path.name.split(".pcap")[0]
    wires: dict[object, _Wire] = {}
    for number, (at, name, outgoing, data) in enumerate(_announcements(path), 1):
        told = _told(data, where, number)
        wire = wires.setdefault(at, _Wire(name))
        end = told.node, told.names[0]
        wire.ends[end] = told, number
        wire.first.setdefault(end, number)
        if outgoing or (wire.own is None and re.match(rf"{re.escape(told.node)}([.:_-]|$)", node)):
            wire.own = end
    if not wires:
        raise TopologyError(
            where, 1, "", "no LLDP frame in it; they come every 30 s: tcpdump -w FILE ether proto 0x88cc"
        )
    found: dict[str, Answers] = {}
    for wire in wires.values():
        own, port = _own_end(wire, where, node)
        one = found.setdefault(own, Answers(own, where, named=True, whole=False))
        for end, (told, number) in wire.ends.items():
            if end == (own, port):
                one.own[port], one.forwards = told, told.forwards
            else:
                one.heard.append((port, told, number))
    return list(found.values())


def _own_end(wire: _Wire, where: str, node: str) -> tuple[str, str]:
    """The end from which a wire is told: the capturer's if that is known, else any whose other end is there, too."""
    if wire.own is not None:
        return wire.own
    if wire.in_turn:
        return next(iter(wire.ends))
    told, number = next(iter(wire.ends.values()))
    if wire.name in ("", "any"):
        raise TopologyError(
            where, number, "",
            f"at which port {told.node} was heard is not said: call the file after its node and capture both "
            "directions beside an lldpd, or capture into a pcapng file (dumpcap), which names interfaces",
        )  # fmt: skip
    return clean(node), wire.name


def _announcements(path: Path) -> Iterator[tuple[object, str, bool, bytes]]:
    """Of each LLDP frame: what it was heard at, that interface's name, whether the capturer sent it, the LLDPDU."""
    for frame in frames(path):
        data = frame.data
        if frame.link == COOKED and data[14:16] == ETHERTYPE.to_bytes(2, "big"):
            yield frame.where, frame.where, data[:2] == OUTGOING.to_bytes(2, "big"), data[16:]
        elif frame.link == COOKED_2 and data[:2] == ETHERTYPE.to_bytes(2, "big"):
            yield (frame.where, data[4:8]), "", data[10] == OUTGOING, data[20:]
        elif frame.link == 1 and len(data) > 14:
            start = 12
            while data[start : start + 2] in (b"\x81\x00", b"\x88\xa8"):
                start += 4
            if data[start : start + 2] == ETHERTYPE.to_bytes(2, "big"):
                yield frame.where, frame.where, False, data[start + 2 :]


def _told(data: bytes, where: str, number: int) -> Told:
    """A port as its announcement tells of it; `number`: of the LLDP frame in the file."""
    try:
        unit = Ether(bytes(12) + ETHERTYPE.to_bytes(2, "big") + data)
        chassis, port = unit[decoded.LLDPDUChassisID], unit[decoded.LLDPDUPortID]
        capable = unit.getlayer(decoded.LLDPDUSystemCapabilities)
        name = _text(_value(unit, decoded.LLDPDUSystemName, "system_name")) or _text(chassis.id)
        described = _text(_value(unit, decoded.LLDPDUPortDescription, "description"))
        kind, value = PORT_KINDS.get(port.subtype, ""), _text(port.id)
    except (Scapy_Exception, IndexError, ValueError) as error:
        raise TopologyError(
            where, number, "", f"LLDP frame {number} is broken: {error or type(error).__name__}"
        ) from None
    names = port_names(kind, value, described)
    if not name or not names:
        raise TopologyError(where, number, "", f"LLDP frame {number} names no {'port' if name else 'node'}")
    forwards = bool(capable.router_enabled or capable.mac_bridge_enabled) if capable is not None else None
    return Told(clean(name), names, None, value if kind == "mac" else None, forwards, tuple(_addresses(unit)))


def _value(unit: Any, layer: Any, name: str) -> Any:
    found = unit.getlayer(layer)
    return b"" if found is None else getattr(found, name)


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace").strip("\0") if isinstance(value, bytes) else str(value or "")


def _addresses(unit: Any) -> Iterator[str]:
    """Management addresses; those that do not fit their family are left out."""
    number = 1
    while (found := unit.getlayer(decoded.LLDPDUManagementAddress, number)) is not None:
        raw = found.management_address
        if ADDRESS_BYTES.get(found.management_address_subtype) == len(raw):
            yield str(ipaddress.ip_address(raw))
        number += 1
