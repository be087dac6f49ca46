"""Classic BPF programs for packet sockets, as bytes.

They run in the receive path of everything the host gets, so the test that turns away the job's packets comes first:
one load and one compare of both ports. Source: Documentation/networking/filter.rst, linux/filter.h.
"""

from __future__ import annotations

import ctypes
import struct
from typing import Final

from linkpass.wire.frame import ETH_P_IP, ETH_P_IPV6, ETHERNET_BYTES, ROCE_PORT, TCP, UDP, payload_offset

SO_ATTACH_FILTER: Final = 26

_LOAD_WORD: Final = 0x20
_LOAD_HALF: Final = 0x28
_LOAD_BYTE: Final = 0x30
_JUMP_EQUAL: Final = 0x15
_JUMP_SET: Final = 0x45
_AND: Final = 0x54
_RETURN: Final = 0x06

_ACCEPT_BYTES: Final = 0xFFFF

Instruction = tuple[int, int, int, int]


def assemble(program: list[Instruction]) -> bytes:
    """struct sock_filter[]: (code, jump if true, jump if false, operand) each."""
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


def nothing() -> bytes:
    """Accept no packet: for a socket that only sends or only holds a port."""
    return assemble([(_RETURN, 0, 0, 0)])


def probes(address_bytes: int, protocol: int, port: int) -> bytes:
    """Probes to `port` from `port`, in frames with an Ethernet header. `address_bytes`: 16 (IPv6) or 4 (IPv4).

    Packets with IP options, IPv6 extension headers or fragments are not probes."""
    transport = payload_offset(address_bytes, protocol) - (20 if protocol == 6 else 8)
    checks = [(_LOAD_WORD, transport, port << 16 | port)]
    if address_bytes == 16:
        checks.append((_LOAD_BYTE, ETHERNET_BYTES + 6, protocol))
    else:
        checks.append((_LOAD_BYTE, ETHERNET_BYTES, 0x45))
        checks.append((_LOAD_BYTE, ETHERNET_BYTES + 9, protocol))
        checks.append((_LOAD_HALF, ETHERNET_BYTES + 6, 0x3FFF))
    program: list[Instruction] = []
    left = 2 * len(checks)
    for load, offset, value in checks:
        left -= 2  # instructions between this jump and the two returns
        program.append((load, 0, 0, offset))
        if load == _LOAD_HALF:  # any bit of the fragment field: drop
            program.append((_JUMP_SET, left + 1, left, value))
        else:
            program.append((_JUMP_EQUAL, 0, left + 1, value))
    return assemble([*program, (_RETURN, 0, 0, _ACCEPT_BYTES), (_RETURN, 0, 0, 0)])


def leaving(keep_bytes: int, one_of: int) -> bytes:
    """The first bytes of TCP and RoCE packets that this host sends, of one in `one_of` (a power of two), by chance.

    Frames with an Ethernet header. SKF_AD_PKTTYPE and SKF_AD_RANDOM: include/uapi/linux/filter.h."""
    packet_type, random, outgoing = 0xFFFFF004, 0xFFFFF038, 4
    to_port = 2  # of a UDP header
    return assemble([
        (_LOAD_BYTE, 0, 0, packet_type), (_JUMP_EQUAL, 0, 17, outgoing),
        (_LOAD_HALF, 0, 0, ETHERNET_BYTES - 2), (_JUMP_EQUAL, 0, 5, ETH_P_IPV6),
        (_LOAD_BYTE, 0, 0, ETHERNET_BYTES + 6), (_JUMP_EQUAL, 9, 0, TCP), (_JUMP_EQUAL, 0, 12, UDP),
        (_LOAD_HALF, 0, 0, ETHERNET_BYTES + 40 + to_port), (_JUMP_EQUAL, 6, 10, ROCE_PORT),
        (_JUMP_EQUAL, 0, 9, ETH_P_IP),
        (_LOAD_BYTE, 0, 0, ETHERNET_BYTES + 9), (_JUMP_EQUAL, 3, 0, TCP), (_JUMP_EQUAL, 0, 6, UDP),
        (_LOAD_HALF, 0, 0, ETHERNET_BYTES + 20 + to_port), (_JUMP_EQUAL, 0, 4, ROCE_PORT),
        (_LOAD_WORD, 0, 0, random), (_AND, 0, 0, one_of - 1), (_JUMP_EQUAL, 0, 1, 0),
        (_RETURN, 0, 0, keep_bytes), (_RETURN, 0, 0, 0),
    ])  # fmt: skip


class Filter:
    """struct sock_fprog for setsockopt(SO_ATTACH_FILTER); keep it alive until the call has returned."""

    __slots__ = ("_buffer", "fprog")

    def __init__(self, program: bytes) -> None:
        self._buffer = ctypes.create_string_buffer(program, len(program))
        self.fprog = struct.pack("@HxxxxxxQ", len(program) // 8, ctypes.addressof(self._buffer))
