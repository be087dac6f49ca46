"""UDP datagrams in captured frames of any usual link type: Ethernet with VLAN tags, Linux cooked (v1, v2), raw IP.

Byte offsets and nothing more: whoever checks a sum over the headers (RoCE's ICRC) needs them as they were on the wire.
It reads frames that are cut short (a capture's snap length) as far as they go.

Sources: IEEE 802.1Q; tcpdump.org/linktypes (1 Ethernet, 113 and 276 Linux cooked, 12/14/101 raw IP, 228 IPv4, 229
IPv6); RFC 791, RFC 8200 (extension headers: section 4), RFC 768.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

ETHERNET: Final = 1
LINKS: Final = {
    ETHERNET: "Ethernet", 12: "raw IP", 14: "raw IP", 101: "raw IP", 113: "Linux cooked", 228: "IPv4", 229: "IPv6",
    276: "Linux cooked v2",
}  # fmt: skip
"""Link types that are understood, with their names."""

_IPV4, _IPV6 = 0x0800, 0x86DD
_TAGS: Final = frozenset({0x8100, 0x88A8, 0x9100})
_EXTENSIONS: Final = frozenset({0, 43, 60})
"""Hop-by-hop, routing and destination options: a length in units of 8 bytes follows the next header."""
_FRAGMENT: Final = 44
_UDP: Final = 17
_V4: Final = struct.Struct("!BBHHHBBH4s4s")
_V6: Final = struct.Struct("!IHBB16s16s")
_PORTS: Final = struct.Struct("!HHH")


class Datagram(msgspec.Struct, frozen=True):
    """`packet`: from the IP header to the end of the IP packet, or to where the capture cut it. `network_bytes`: the
    UDP header begins there in it. `udp_bytes`: as its header says. `where`: the interface's number, where the link
    tells it."""

    source: bytes
    target: bytes
    source_port: int
    target_port: int
    label: int | None
    hop_limit: int
    ecn: int
    packet: bytes
    network_bytes: int
    udp_bytes: int
    where: int | None = None

    @property
    def whole(self) -> bool:
        """Nothing was cut off."""
        return len(self.packet) >= self.network_bytes + self.udp_bytes


def datagram(data: bytes, link: int) -> Datagram | str:
    """The UDP datagram of a frame, or a word for what it is instead (`TCP`, `0x8915`, `fragment`, `cut`)."""
    where: int | None = None
    start = 0
    if link == ETHERNET:
        start, kind = 14, int.from_bytes(data[12:14], "big")
    elif link == 113:
        start, kind = 16, int.from_bytes(data[14:16], "big")
    elif link == 276:
        start, kind, where = 20, int.from_bytes(data[:2], "big"), int.from_bytes(data[4:8], "big")
    elif link in LINKS:
        kind = {4: _IPV4, 6: _IPV6}.get(data[0] >> 4 if data else 0, 0)
    else:
        return f"link type {link}"
    while kind in _TAGS:
        kind = int.from_bytes(data[start + 2 : start + 4], "big")
        start += 4
    if len(data) < start:
        return "cut"
    if kind == _IPV4:
        return _v4(data, start, where)
    return _v6(data, start, where) if kind == _IPV6 else {0x0806: "ARP", 0x88CC: "LLDP"}.get(kind, f"{kind:#06x}")


def _v4(data: bytes, start: int, where: int | None) -> Datagram | str:
    if len(data) < start + 20:
        return "cut"
    first, tos, total, _, fragment, hops, protocol, _, source, target = _V4.unpack_from(data, start)
    if protocol != _UDP:
        return _name(protocol)
    if fragment & 0x3FFF:
        return "fragment"
    head = (first & 0xF) * 4
    if first >> 4 != 4 or head < 20:
        return "broken IPv4"
    return _udp(data[start : start + (total or len(data))], head, (source, target), None, hops, tos & 3, where)


def _v6(data: bytes, start: int, where: int | None) -> Datagram | str:
    if len(data) < start + 40:
        return "cut"
    first, length, protocol, hops, source, target = _V6.unpack_from(data, start)
    if first >> 28 != 6:
        return "broken IPv6"
    head = 40
    while protocol in _EXTENSIONS:
        if len(data) < start + head + 2:
            return "cut"
        protocol, head = data[start + head], head + 8 * (data[start + head + 1] + 1)
    if protocol == _FRAGMENT:
        return "fragment"
    if protocol != _UDP:
        return _name(protocol)
    ends = (source, target)
    return _udp(data[start : start + 40 + length], head, ends, first & 0xFFFFF, hops, first >> 20 & 3, where)


def _udp(
    packet: bytes, head: int, ends: tuple[bytes, bytes], label: int | None, hops: int, ecn: int, where: int | None
) -> Datagram | str:
    if len(packet) < head + 8:
        return "cut"
    source_port, target_port, size = _PORTS.unpack_from(packet, head)
    if size < 8:
        return "broken UDP"
    return Datagram(*ends, source_port, target_port, label, hops, ecn, packet, head, size, where)


def _name(protocol: int) -> str:
    return {1: "ICMP", 2: "IGMP", 6: "TCP", 47: "GRE", 58: "ICMPv6", 89: "OSPF", 132: "SCTP"}.get(
        protocol, f"IP protocol {protocol}"
    )
