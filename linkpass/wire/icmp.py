"""ICMP errors with the packet that they quote: the answers to hop-limited traces.

RFC 4443 (ICMPv6: types 1 and 3; quotes up to 1280 bytes), RFC 792 and 1812 (ICMP: types 3 and 11; quotes the header
and at least 8 bytes). A quoted packet may be cut anywhere; fields that are not there are 0 or empty.
"""

from __future__ import annotations

import struct
from typing import Final, Literal

import msgspec

ICMP6_UNREACHABLE: Final = 1
ICMP6_TIME_EXCEEDED: Final = 3
ICMP4_UNREACHABLE: Final = 3
ICMP4_TIME_EXCEEDED: Final = 11

ErrorKind = Literal["time_exceeded", "unreachable"]


class Quoted(msgspec.Struct, frozen=True):
    """The packet an error is about, as far as it was quoted."""

    src: bytes
    dst: bytes
    protocol: int
    label: int
    """IPv6: the flow label. IPv4: the identification."""
    sport: int
    dport: int
    sequence: int
    """TCP sequence number; 0 for UDP."""
    payload: bytes
    """What is left of the transport's payload."""


class IcmpError(msgspec.Struct, frozen=True):
    kind: ErrorKind
    code: int
    quoted: Quoted


def parse6(message: bytes) -> IcmpError | None:
    """An ICMPv6 message as a raw socket gives it, without the IPv6 header. None: not such an error, or cut off."""
    kinds: dict[int, ErrorKind] = {ICMP6_UNREACHABLE: "unreachable", ICMP6_TIME_EXCEEDED: "time_exceeded"}
    if len(message) < 8 + 40 or message[0] not in kinds:
        return None
    first, _, protocol, _, src, dst = struct.unpack_from("!IHBB16s16s", message, 8)
    if first >> 28 != 6:
        return None
    return IcmpError(kinds[message[0]], message[1], _transport(src, dst, protocol, first & 0xFFFFF, message[48:]))


def parse4(packet: bytes) -> IcmpError | None:
    """A packet as a raw ICMP socket gives it, with its IPv4 header. None: not such an error."""
    kinds: dict[int, ErrorKind] = {ICMP4_UNREACHABLE: "unreachable", ICMP4_TIME_EXCEEDED: "time_exceeded"}
    head = (packet[0] & 15) * 4 if packet else 0
    if head < 20 or len(packet) < head + 8 + 20 or packet[head] not in kinds:
        return None
    inner = head + 8
    inner_head = (packet[inner] & 15) * 4
    if packet[inner] >> 4 != 4 or inner_head < 20:
        return None
    identification = int.from_bytes(packet[inner + 4 : inner + 6], "big")
    src, dst = packet[inner + 12 : inner + 16], packet[inner + 16 : inner + 20]
    quoted = _transport(src, dst, packet[inner + 9], identification, packet[inner + inner_head :])
    return IcmpError(kinds[packet[head]], packet[head + 1], quoted)


def _transport(src: bytes, dst: bytes, protocol: int, label: int, segment: bytes) -> Quoted:
    sport = dport = sequence = 0
    payload = b""
    if protocol in (6, 17) and len(segment) >= 4:
        sport, dport = struct.unpack_from("!HH", segment)
        if protocol == 6:
            sequence = int.from_bytes(segment[4:8], "big") if len(segment) >= 8 else 0
            payload = segment[20:]
        else:
            payload = segment[8:]
    return Quoted(src, dst, protocol, label, sport, dport, sequence, payload)


ECHO6: Final = 128
ECHO4: Final = 8
_REPLY: Final = {128: 129, 8: 0}


def echo_request(kind: int, ident: int, seq: int, payload: bytes) -> bytes:
    """An echo request: `kind` ECHO6 (RFC 4443, section 4.1) or ECHO4 (RFC 792). The checksum of ICMPv6 covers
    addresses, and is left to the kernel, which fills it in on raw sockets (RFC 3542, section 3.1)."""
    body = struct.pack("!BBHHH", kind, 0, 0, ident, seq) + payload
    if kind == ECHO6:
        return body
    return body[:2] + struct.pack("!H", _checksum(body)) + body[4:]


def echo_reply(kind: int, message: bytes) -> tuple[int, int, bytes] | None:
    """(identifier, sequence, payload) of a reply to a request of `kind`, as a raw socket gives it (IPv4: with its IP
    header); None: something else."""
    head = (message[0] & 15) * 4 if kind == ECHO4 and message else 0
    if len(message) < head + 8 or message[head] != _REPLY[kind]:
        return None
    ident, seq = struct.unpack_from("!HH", message, head + 4)
    return ident, seq, message[head + 8 :]


def _checksum(data: bytes) -> int:
    """RFC 1071."""
    if len(data) % 2:
        data += b"\0"
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
