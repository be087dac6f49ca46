"""Ethernet frames with one TCP segment or UDP datagram over IPv6 or IPv4: built from a template, and parsed back.

A template holds everything that does not change between two sends of a path; a send adds the payload, the sequence
number and the checksum. Sources: RFC 8200 (IPv6, flow label), RFC 791 (IPv4), RFC 9293 (TCP), RFC 768 (UDP),
RFC 1071 (the Internet checksum).

The checksum of RFC 1071 is a sum of 16-bit words modulo 65535, and 2**16 is 1 modulo 65535: so the whole buffer read
as one big number and reduced modulo 65535 is that sum. CPython does it in C, without a loop over the words.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

ETH_P_IP: Final = 0x0800
ETH_P_IPV6: Final = 0x86DD
TCP: Final = 6
UDP: Final = 17
ROCE_PORT: Final = 4791
"""UDP port that RoCEv2 is sent to."""

FIN: Final = 0x01
SYN: Final = 0x02
RST: Final = 0x04
ACK: Final = 0x10

ETHERNET_BYTES: Final = 14
_IP_BYTES: Final = {16: 40, 4: 20}
_TRANSPORT_BYTES: Final = {TCP: 20, UDP: 8}

_TCP: Final = struct.Struct("!HHIIBBHHH")
_UDP: Final = struct.Struct("!HHHH")
_V6: Final = struct.Struct("!IHBB16s16s")
_V4: Final = struct.Struct("!BBHHHBBH4s4s")


def sum16(data: bytes | bytearray | memoryview) -> int:
    """The one's complement sum of big-endian 16-bit words, in 0..65534; an odd tail is padded with a zero byte."""
    total = int.from_bytes(data, "big")
    return (total << 8 if len(data) & 1 else total) % 0xFFFF


def payload_offset(address_bytes: int, protocol: int) -> int:
    """Where the payload begins in a frame without IP options; `address_bytes` is 16 (IPv6) or 4 (IPv4)."""
    return ETHERNET_BYTES + _IP_BYTES[address_bytes] + _TRANSPORT_BYTES[protocol]


class Headers(msgspec.Struct, frozen=True):
    """What is constant on a path. MACs are 6 bytes, addresses 16 (IPv6) or 4 (IPv4), both of one family."""

    src_mac: bytes
    dst_mac: bytes
    src: bytes
    dst: bytes
    protocol: int
    sport: int
    dport: int
    label: int = 0
    """20 bits. IPv4 has no flow label: its low 16 bits become the identification there, for traces to be told apart."""
    hop_limit: int = 64
    dscp: int = 0
    flags: int = RST
    """TCP only."""
    spoil: bool = False
    """Send a wrong transport checksum on purpose, so that no stack can take the packet for data."""


class Template:
    """Headers made into bytes once; `frame()` adds what changes.

    The parts that depend on the payload's length are kept per length, of which a path sees only a few."""

    __slots__ = ("_by_length", "_headers")

    def __init__(self, headers: Headers) -> None:
        self._headers = headers
        self._by_length: dict[int, tuple[bytes, int]] = {}

    @property
    def headers(self) -> Headers:
        return self._headers

    def frame(self, payload: bytes, sequence: int = 0) -> bytes:
        """The whole frame. `sequence` is the TCP sequence number; UDP ignores it."""
        h = self._headers
        length = len(payload)
        known = self._by_length.get(length)
        if known is None:
            known = self._by_length[length] = self._prepare(length)
        network, base = known
        if h.protocol == TCP:
            total = (base + (sequence >> 16) + (sequence & 0xFFFF) + sum16(payload)) % 0xFFFF
            check = (0xFFFF - total) if total else 0
            check = check ^ 0x5555 if h.spoil else check
            return network + _TCP.pack(h.sport, h.dport, sequence, 0, 0x50, h.flags, 0, check, 0) + payload
        check = 0xFFFF - (base + sum16(payload)) % 0xFFFF
        check = check ^ 0x5555 if h.spoil else check
        return network + _UDP.pack(h.sport, h.dport, length + 8, check) + payload

    def _prepare(self, length: int) -> tuple[bytes, int]:
        """Link and network header for a payload of this length, and the checksum's constant part."""
        h = self._headers
        segment = length + _TRANSPORT_BYTES[h.protocol]
        pseudo = sum16(h.src) + sum16(h.dst) + h.protocol + segment + h.sport + h.dport
        pseudo += (0x5000 | h.flags) if h.protocol == TCP else segment
        if len(h.src) == 16:
            first = 6 << 28 | h.dscp << 22 | (h.label & 0xFFFFF)
            network = _V6.pack(first, segment, h.protocol, h.hop_limit, h.src, h.dst)
            kind = ETH_P_IPV6
        else:
            parts = (0x45, h.dscp << 2, segment + 20, h.label & 0xFFFF, 0x4000, h.hop_limit, h.protocol)
            check = 0xFFFF - sum16(_V4.pack(*parts, 0, h.src, h.dst))
            network = _V4.pack(*parts, check, h.src, h.dst)
            kind = ETH_P_IP
        return h.dst_mac + h.src_mac + kind.to_bytes(2, "big") + network, pseudo


class Packet(msgspec.Struct, frozen=True):
    """A parsed frame. `checksum_ok` is that of the transport header."""

    src_mac: bytes
    dst_mac: bytes
    src: bytes
    dst: bytes
    protocol: int
    sport: int
    dport: int
    label: int
    hop_limit: int
    dscp: int
    flags: int
    sequence: int
    payload: bytes
    checksum_ok: bool


def parse(frame: bytes) -> Packet | None:
    """The frame as a value; None when it is cut off or not plain TCP or UDP over IPv6 or IPv4 without options."""
    if len(frame) < ETHERNET_BYTES:
        return None
    kind = int.from_bytes(frame[12:14], "big")
    if kind == ETH_P_IPV6 and len(frame) >= ETHERNET_BYTES + 40:
        first, segment_bytes, protocol, hop_limit, src, dst = _V6.unpack_from(frame, ETHERNET_BYTES)
        version, dscp, label = first >> 28, first >> 22 & 0x3F, first & 0xFFFFF
        start = ETHERNET_BYTES + 40
    elif kind == ETH_P_IP and len(frame) >= ETHERNET_BYTES + 20:
        (first, tos, total, label, fragment, hop_limit, protocol, _, src, dst) = _V4.unpack_from(frame, ETHERNET_BYTES)
        if first != 0x45 or fragment & 0x3FFF:
            return None
        version, dscp, segment_bytes = 4, tos >> 2, total - 20
        start = ETHERNET_BYTES + 20
    else:
        return None
    if protocol not in _TRANSPORT_BYTES or version not in (4, 6):
        return None
    segment = frame[start : start + segment_bytes]
    if segment_bytes < _TRANSPORT_BYTES[protocol] or len(segment) < segment_bytes:
        return None
    flags = sequence = 0
    if protocol == TCP:
        sport, dport, sequence, _, offset, flags, _, _, _ = _TCP.unpack_from(segment)
        head = (offset >> 4) * 4
        if head < 20 or head > segment_bytes:
            return None
    else:
        sport, dport, _, _ = _UDP.unpack_from(segment)
        head = 8
    ok = (sum16(src) + sum16(dst) + protocol + segment_bytes + sum16(segment)) % 0xFFFF == 0
    return Packet(
        frame[6:12], frame[0:6], src, dst, protocol, sport, dport, label, hop_limit, dscp, flags, sequence,
        bytes(segment[head:]), ok,
    )  # fmt: skip
