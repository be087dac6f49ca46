"""Classic BPF programs for packet sockets, as bytes.

They run in the receive path of everything the host gets, so the test that turns away the job's packets comes first:
one load and one compare of both ports. Source: Documentation/networking/filter.rst, linux/filter.h.
"""

from __future__ import annotations

import ctypes
import struct
from typing import Final

from linkpass.wire.frame import ETHERNET_BYTES, payload_offset

SO_ATTACH_FILTER: Final = 26

_LOAD_WORD: Final = 0x20
_LOAD_HALF: Final = 0x28
_LOAD_BYTE: Final = 0x30
_LOAD_LENGTH: Final = 0x80
_JUMP_EQUAL: Final = 0x15
_JUMP_GREATER_EQUAL: Final = 0x35
_JUMP_SET: Final = 0x45
_RETURN: Final = 0x06

_ACCEPT_BYTES: Final = 0xFFFF

Instruction = tuple[int, int, int, int]


def assemble(program: list[Instruction]) -> bytes:
    """struct sock_filter[]: (code, jump if true, jump if false, operand) each."""
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


def nothing() -> bytes:
    """Accept no packet: for a socket that only sends or only holds a port."""
    return assemble([(_RETURN, 0, 0, 0)])


def probes(address_bytes: int, protocol: int, port: int, *, urgent: bool | None = None) -> bytes:
    """Probes to `port` from `port`, in frames with an Ethernet header.

    `urgent` True takes those with the urgent bit (bit 0 of the payload's second byte), False the others and also those
    too short to have one, so that they can be counted; None takes all. Packets with IP options, IPv6 extension headers
    or fragments are not probes."""
    transport = payload_offset(address_bytes, protocol) - (20 if protocol == 6 else 8)
    flags = payload_offset(address_bytes, protocol) + 1
    checks: list[tuple[int, int, int]] = [(_LOAD_WORD, transport, port << 16 | port)]
    if address_bytes == 16:
        checks.append((_LOAD_BYTE, ETHERNET_BYTES + 6, protocol))
    else:
        checks.append((_LOAD_BYTE, ETHERNET_BYTES, 0x45))
        checks.append((_LOAD_BYTE, ETHERNET_BYTES + 9, protocol))
    body: list[Instruction] = []
    tail: list[Instruction] = []
    if address_bytes == 4:
        tail += [(_LOAD_HALF, 0, 0, ETHERNET_BYTES + 6), (_JUMP_SET, -1, 0, 0x3FFF)]
    if urgent is not None:
        short = -1 if urgent else -2
        tail += [(_LOAD_LENGTH, 0, 0, 0), (_JUMP_GREATER_EQUAL, 0, short, flags + 1)]
        tail += [(_LOAD_BYTE, 0, 0, flags), (_JUMP_SET, -2 if urgent else -1, -1 if urgent else -2, 1)]
    for load, offset, value in checks:
        body += [(load, 0, 0, offset), (_JUMP_EQUAL, 0, -1, value)]
    body += tail
    accept, drop = len(body), len(body) + 1
    resolved: list[Instruction] = []
    for here, (code, true, false, operand) in enumerate(body):
        places = {-1: drop - here - 1, -2: accept - here - 1}
        resolved.append((code, places.get(true, true), places.get(false, false), operand))
    return assemble([*resolved, (_RETURN, 0, 0, _ACCEPT_BYTES), (_RETURN, 0, 0, 0)])


class Filter:
    """struct sock_fprog for setsockopt(SO_ATTACH_FILTER); keep it alive until the call has returned."""

    __slots__ = ("_buffer", "fprog")

    def __init__(self, program: bytes) -> None:
        self._buffer = ctypes.create_string_buffer(program, len(program))
        self.fprog = struct.pack("@HxxxxxxQ", len(program) // 8, ctypes.addressof(self._buffer))
