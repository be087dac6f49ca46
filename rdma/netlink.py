"""Attributes of netlink messages: bytes to values and back, as include/uapi/linux/netlink.h lays them out. Pure."""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from typing import Final

HEADER: Final = struct.Struct("=IHHII")
"""Length with the header, kind, flags, sequence, port."""
ERROR, DONE = 2, 3
REQUEST, DUMP = 0x1, 0x300
NESTED: Final = 0x8000
_ATTRIBUTE: Final = struct.Struct("=HH")
_TYPE_MASK: Final = 0x3FFF


def errno_of(body: bytes) -> int:
    """How an ERROR, or the DONE at the end of a dump (netlink_dump_done() in net/netlink/af_netlink.c), says that it
    ended; 0: well."""
    return -int.from_bytes(body[:4], sys.byteorder, signed=True)


def encode(kind: int, value: bytes) -> bytes:
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(value), kind) + value + bytes(-len(value) % 4)


def places(data: bytes, begin: int = 0, end: int | None = None) -> Iterator[tuple[int, int, int]]:
    """(kind, where its value begins, where that ends) of each attribute. What is cut is left out, not guessed at."""
    at, end = begin, len(data) if end is None else end
    while at + _ATTRIBUTE.size <= end:
        size, kind = _ATTRIBUTE.unpack_from(data, at)
        if size < _ATTRIBUTE.size or at + size > end:
            return
        yield kind & _TYPE_MASK, at + _ATTRIBUTE.size, at + size
        at += (size + 3) & ~3


def attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Each attribute's kind and value."""
    for kind, begin, end in places(data):
        yield kind, data[begin:end]
