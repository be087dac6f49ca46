"""nfnetlink batches that change the elements of one nftables map in a single transaction.

Layouts: include/uapi/linux/netfilter/{nfnetlink,nf_tables}.h. A batch is applied as a whole or not at all, and
packets see either the old elements or the new ones. Keys are what nft's `typeof ip6 daddr . numgen inc mod N`
makes: the address and a bucket in host order; data is the low 16 bits of a flow label in network order.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from linkpass.wire.rtnl import F_ACK, F_CREATE, F_REQUEST, NESTED, message, nla

BATCH_BEGIN: Final = 16
BATCH_END: Final = 17
SUBSYSTEM: Final = 10 << 8
NEW_SET_ELEMENT: Final = SUBSYSTEM | 12
DELETE_SET_ELEMENT: Final = SUBSYSTEM | 14
DELETE_TABLE: Final = SUBSYSTEM | 2
GROUP_NFTABLES: Final = 7
FAMILY_IPV6: Final = 10


@dataclass(frozen=True, slots=True)
class Entry:
    """A map element: flows to `peer` in `bucket` get `label` (16 bits)."""

    peer: str
    bucket: int
    label: int

    @property
    def key(self) -> bytes:
        return ipaddress.IPv6Address(self.peer).packed + struct.pack("=I", self.bucket)


def _head(family: int, resource: int) -> bytes:
    return struct.pack("!BBH", family, 0, resource)


def _name(kind: int, name: str) -> bytes:
    return nla(kind, name.encode() + b"\0")


def _elements(table: str, name: str, items: Iterable[bytes]) -> bytes:
    listed = b"".join(nla(1 | NESTED, item) for item in items)
    return _name(1, table) + _name(2, name) + (nla(3 | NESTED, listed) if listed else b"")


def _key(entry: Entry) -> bytes:
    return nla(1 | NESTED, nla(1, entry.key))


def _whole(entry: Entry, timeout_ms: int) -> bytes:
    data = nla(2 | NESTED, nla(1, struct.pack("!H", entry.label)))
    return _key(entry) + data + (nla(4, struct.pack("!Q", timeout_ms)) if timeout_ms else b"")


@dataclass(frozen=True, slots=True)
class Batch:
    """A transaction's bytes and the sequence numbers whose acknowledgements it waits for."""

    data: bytes
    waits_for: frozenset[int]


def replace_elements(
    table: str,
    name: str,
    remove: Sequence[Entry],
    add: Sequence[Entry],
    *,
    timeout_ms: int,
    seq: int,
    flush: bool = False,
) -> Batch:
    """Remove some elements (all, with `flush`) and add others in one transaction. Sequence numbers start at `seq`."""
    bodies: list[tuple[int, int, bytes]] = []
    if flush:
        bodies.append((DELETE_SET_ELEMENT, F_REQUEST | F_ACK, _elements(table, name, [])))
    elif remove:
        bodies.append((DELETE_SET_ELEMENT, F_REQUEST | F_ACK, _elements(table, name, map(_key, remove))))
    if add:
        whole = [_whole(entry, timeout_ms) for entry in add]
        bodies.append((NEW_SET_ELEMENT, F_REQUEST | F_ACK | F_CREATE, _elements(table, name, whole)))
    return batch(bodies, seq)


def batch(bodies: Sequence[tuple[int, int, bytes]], seq: int) -> Batch:
    """(kind, flags, body) of each message, framed by begin and end."""
    data = message(BATCH_BEGIN, F_REQUEST, seq, _head(0, 10))
    waits_for = []
    for step, (kind, flags, body) in enumerate(bodies, start=1):
        data += message(kind, flags, seq + step, _head(FAMILY_IPV6, 0) + body)
        waits_for.append(seq + step)
    data += message(BATCH_END, F_REQUEST, seq + len(bodies) + 1, _head(0, 10))
    return Batch(data, frozenset(waits_for))


def delete_table(table: str, seq: int) -> Batch:
    """Remove a whole table of family ip6."""
    return batch([(DELETE_TABLE, F_REQUEST | F_ACK, _name(1, table))], seq)
