"""nfnetlink batches that change the elements of one nftables map in a single transaction.

Layouts: include/uapi/linux/netfilter/{nfnetlink,nf_tables}.h. A batch is applied as a whole or not at all, and
packets see either the old elements or the new ones. Keys are what nft's `typeof ip6 daddr . numgen inc mod N` (or
`ip daddr`) makes: the address and a bucket in host order. Data is, of family ip6, the low 16 bits of a flow label in
network order; of family ip, a packet mark in host order, the label in its low half and ours in its high one.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, NamedTuple

from linkpass.wire.rtnl import F_ACK, F_CREATE, F_REQUEST, NESTED, Message, attributes, message, nla

BATCH_BEGIN: Final = 16
BATCH_END: Final = 17
SUBSYSTEM: Final = 10 << 8
NEW_SET_ELEMENT: Final = SUBSYSTEM | 12
DELETE_SET_ELEMENT: Final = SUBSYSTEM | 14
DELETE_TABLE: Final = SUBSYSTEM | 2
NEW_GENERATION: Final = SUBSYSTEM | 15
ELEMENTS_AT_ONCE: Final = 256
"""In one message: the list of them is an attribute, and its length has 16 bits."""
_REMOVALS: Final[dict[int, Literal["table", "chain", "rule", "map", "element"]]] = {
    DELETE_TABLE: "table",
    SUBSYSTEM | 5: "chain",
    SUBSYSTEM | 8: "rule",
    SUBSYSTEM | 11: "map",
    DELETE_SET_ELEMENT: "element",
}
GROUP_NFTABLES: Final = 7
FAMILY_IPV4: Final = 2
FAMILY_IPV6: Final = 10
MARK: Final = 0x4C500000
"""High half of the packet marks that are ours."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A map element: flows to `peer` in `bucket` get `label` (16 bits): of IPv4, as a mark."""

    peer: str
    bucket: int
    label: int

    @property
    def key(self) -> bytes:
        return _packed(self.peer) + _BUCKET.pack(self.bucket)

    @property
    def data(self) -> bytes:
        return _LABEL.pack(self.label) if ":" in self.peer else _MARK.pack(MARK | self.label)


_BUCKET, _MARK, _LABEL = struct.Struct("=I"), struct.Struct("=I"), struct.Struct("!H")


@lru_cache(maxsize=4096)
def _packed(address: str) -> bytes:
    return ipaddress.ip_address(address).packed


def _head(family: int, resource: int) -> bytes:
    return struct.pack("!BBH", family, 0, resource)


def _name(kind: int, name: str) -> bytes:
    return nla(kind, name.encode() + b"\0")


def _list(table: str, name: str, items: Iterable[bytes]) -> bytes:
    listed = b"".join(items)
    return _name(1, table) + _name(2, name) + (nla(3 | NESTED, listed) if listed else b"")


@lru_cache(maxsize=16)
def _frame(family: int, timeout_ms: int | None) -> tuple[bytes, bytes, bytes]:
    """What stands before the key of an element, between key and data, and behind; `timeout_ms` None: the key alone.

    All elements of a map are of one size, so the frame is built once: traffic waits for the transaction."""
    key, data = (b"k" * 20, b"d" * 2) if family == FAMILY_IPV6 else (b"k" * 8, b"d" * 4)
    body = nla(1 | NESTED, nla(1, key))
    if timeout_ms is not None:
        body += nla(2 | NESTED, nla(1, data)) + (nla(4, struct.pack("!Q", timeout_ms)) if timeout_ms else b"")
    before, behind = nla(1 | NESTED, body).split(key)
    if timeout_ms is None:
        return before, behind, b""
    between, behind = behind.split(data)
    return before, between, behind


def _keys(entries: Sequence[Entry], family: int) -> Iterable[bytes]:
    before, behind, _ = _frame(family, None)
    return (before + entry.key + behind for entry in entries)


def _whole(entries: Sequence[Entry], family: int, timeout_ms: int) -> Iterable[bytes]:
    before, between, behind = _frame(family, timeout_ms)
    return (before + entry.key + between + entry.data + behind for entry in entries)


@dataclass(frozen=True, slots=True)
class Batch:
    """A transaction's bytes and the sequence numbers whose acknowledgements it waits for."""

    data: bytes
    waits_for: frozenset[int]
    last: int


def replace_elements(
    table: str,
    name: str,
    remove: Sequence[Entry],
    add: Sequence[Entry],
    *,
    timeout_ms: int,
    seq: int,
    flush: bool = False,
    family: int = FAMILY_IPV6,
) -> Batch:
    """Remove some elements (all, with `flush`) and add others in one transaction. Sequence numbers run from `seq`, that
    of the transaction's beginning, to `last`, that of its end."""
    bodies: list[tuple[int, int, bytes]] = []
    if flush:
        bodies.append((DELETE_SET_ELEMENT, F_REQUEST | F_ACK, _list(table, name, ())))
    else:
        for some in _slices(remove):
            bodies.append((DELETE_SET_ELEMENT, F_REQUEST | F_ACK, _list(table, name, _keys(some, family))))
    for some in _slices(add):
        whole = _whole(some, family, timeout_ms)
        bodies.append((NEW_SET_ELEMENT, F_REQUEST | F_ACK | F_CREATE, _list(table, name, whole)))
    return batch(bodies, seq, family)


def batch(bodies: Sequence[tuple[int, int, bytes]], seq: int, family: int = FAMILY_IPV6) -> Batch:
    """(kind, flags, body) of each message, framed by begin and end."""
    data = message(BATCH_BEGIN, F_REQUEST, seq, _head(0, 10))
    waits_for = []
    for step, (kind, flags, body) in enumerate(bodies, start=1):
        data += message(kind, flags, seq + step, _head(family, 0) + body)
        waits_for.append(seq + step)
    data += message(BATCH_END, F_REQUEST, seq + len(bodies) + 1, _head(0, 10))
    return Batch(data, frozenset(waits_for), seq + len(bodies) + 1)


def _slices(entries: Sequence[Entry]) -> Iterable[Sequence[Entry]]:
    return (entries[at : at + ELEMENTS_AT_ONCE] for at in range(0, len(entries), ELEMENTS_AT_ONCE))


def delete_table(table: str, seq: int, family: int = FAMILY_IPV6) -> Batch:
    """Remove a whole table."""
    return batch([(DELETE_TABLE, F_REQUEST | F_ACK, _name(1, table))], seq, family)


# what the kernel tells
class Removal(NamedTuple):
    """Something of a table is gone. `peer`: the address in an element's key."""

    what: Literal["table", "chain", "rule", "map", "element"]
    table: str
    peer: str = ""


class Author(NamedTuple):
    """Who made the transaction whose changes have just been told (process id in the kernel's own counting)."""

    pid: int
    name: str


def parse_removal(told: Message, family: int = FAMILY_IPV6) -> Removal | None:
    """None: nothing was removed, or not from a table of that family."""
    what = _REMOVALS.get(told.kind)
    if what is None or len(told.body) < 4 or told.body[0] != family:
        return None
    found = dict(attributes(told.body, 4))
    table = found.get(1, b"").rstrip(b"\0").decode(errors="replace")
    if what != "element":
        return Removal(what, table)
    key = found.get(3, b"")
    for _ in range(3):  # the list's element, its key, the key's value
        key = next((data for kind, data in attributes(key) if kind == 1), b"")
    size = 16 if family == FAMILY_IPV6 else 4
    return Removal(what, table, str(ipaddress.ip_address(key[:size])) if len(key) >= size else "")


def parse_author(told: Message) -> Author | None:
    """None: not the end of a transaction."""
    if told.kind != NEW_GENERATION:
        return None
    found = dict(attributes(told.body, 4))
    return Author(int.from_bytes(found.get(2, b""), "big"), found.get(3, b"").rstrip(b"\0").decode(errors="replace"))
