"""rtnetlink as values: framing, links, neighbours, next hops, routes, and the bodies of requests that change them.

Fixed headers (native order) come before the attributes:

    ifinfomsg  family u8, pad, type u16, index i32, flags u32, change u32                                       16
    ndmsg      family u8, pad 3, index i32, state u16, flags u8, type u8                                        12
    rtmsg      family u8, dst bits u8, src bits u8, tos u8, table u8, protocol u8, scope u8, type u8, flags u32  12
    nhmsg      family u8, scope u8, protocol u8, reserved u8, flags u32                                          8

Sources: netlink(7), rtnetlink(7), include/uapi/linux/{netlink,if_link,neighbour,rtnetlink,nexthop}.h. Addresses are
text as `inet_ntop` prints it; a destination is `address/bits`.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

AF_INET: Final = int(socket.AF_INET)
AF_INET6: Final = int(socket.AF_INET6)

F_REQUEST, F_ACK, F_DUMP = 0x001, 0x004, 0x300
F_REPLACE, F_EXCL, F_CREATE, F_APPEND = 0x100, 0x200, 0x400, 0x800
NLMSG_ERROR, NLMSG_DONE = 2, 3
NESTED: Final = 0x8000
_TYPE_MASK: Final = 0x3FFF

RTM_NEWLINK, RTM_DELLINK, RTM_GETLINK = 16, 17, 18
RTM_NEWADDR, RTM_DELADDR, RTM_GETADDR = 20, 21, 22
RTM_NEWROUTE, RTM_DELROUTE, RTM_GETROUTE = 24, 25, 26
RTM_NEWNEIGH, RTM_DELNEIGH, RTM_GETNEIGH = 28, 29, 30
RTM_NEWNEXTHOP, RTM_DELNEXTHOP, RTM_GETNEXTHOP = 104, 105, 106

GROUP_LINK, GROUP_NEIGH, GROUP_IPV4_ROUTE, GROUP_IPV6_ROUTE, GROUP_NEXTHOP = 1, 3, 7, 11, 32

TABLE_MAIN: Final = 254
TYPE_UNICAST, TYPE_BLACKHOLE = 1, 6
DISCARDED: Final = "100::4c50"
"""Of the discard-only prefix (RFC 6666)."""

_IFF_UP, _IFF_LOOPBACK, _IFF_RUNNING, _IFF_LOWER_UP = 0x1, 0x8, 0x40, 0x10000
_NUD_USABLE: Final = 0x02 | 0x04 | 0x08 | 0x10 | 0x40 | 0x80
"""Reachable, stale, delay, probe, noarp, permanent: states in which the link-layer address is worth using."""
_NUD_CONFIRMED: Final = 0x01 | 0x02 | 0x08 | 0x10 | 0x40 | 0x80
"""Incomplete (being asked for), reachable, delay, probe, noarp, permanent; neither stale nor failed."""
_NTF_USE: Final = 0x01

_IFLA_ADDRESS, _IFLA_IFNAME, _IFLA_MTU, _IFLA_LINKINFO = 1, 3, 4, 18
_IFLA_INFO_KIND, _IFLA_INFO_DATA, _IFLA_VRF_TABLE = 1, 2, 1
_NDA_DST, _NDA_LLADDR = 1, 2
_RTA_DST, _RTA_SRC, _RTA_OIF, _RTA_GATEWAY, _RTA_PRIORITY = 1, 2, 4, 5, 6
_RTA_PREFSRC, _RTA_METRICS, _RTA_MULTIPATH, _RTA_CACHEINFO, _RTA_TABLE, _RTA_VIA = 7, 8, 9, 12, 15, 18
_RTA_EXPIRES, _RTA_IP_PROTO, _RTA_NH_ID = 23, 27, 30
_RTA_FLOWLABEL: Final = 31
"""Linux 6.14: the flow label of an IPv6 lookup, big-endian."""
_RTAX_LOCK, _RTAX_MTU, _RTAX_RTO_MIN = 1, 2, 13
_NHA_ID, _NHA_GROUP, _NHA_OIF, _NHA_GATEWAY = 1, 2, 5, 6

_HEADER: Final = struct.Struct("=IHHII")
_ATTRIBUTE: Final = struct.Struct("=HH")
_IFINFO: Final = struct.Struct("=BxHiII")
_NDMSG: Final = struct.Struct("=BxxxiHBB")
_RTMSG: Final = struct.Struct("=BBBBBBBBI")
_NHMSG: Final = struct.Struct("=BBBxI")
_RTNEXTHOP: Final = struct.Struct("=HBBi")
_MEMBER: Final = struct.Struct("=IBBH")
_U32: Final = struct.Struct("=I")

RTM_GETRULE: Final = 34
RTM_GETQDISC: Final = 38
_DUMP_HEADER: Final = {
    RTM_GETLINK: 16, RTM_GETADDR: 8, RTM_GETROUTE: 12, RTM_GETNEIGH: 12, RTM_GETNEXTHOP: 8, RTM_GETRULE: 12,
    RTM_GETQDISC: 20,
}  # fmt: skip


class Message(NamedTuple):
    """A netlink message; `body` begins after the netlink header. `port_id` 0: the kernel's own doing."""

    kind: int
    flags: int
    seq: int
    port_id: int
    body: bytes

    @property
    def error(self) -> int:
        """errno of an NLMSG_ERROR or NLMSG_DONE; 0: an acknowledgement."""
        return -int(struct.unpack_from("=i", self.body)[0]) if len(self.body) >= 4 else 0


@dataclass(frozen=True, slots=True)
class Link:
    """A device. `carrier`: the driver has carrier and the device is operationally up."""

    index: int
    name: str
    up: bool
    carrier: bool
    mac: bytes = b""
    mtu: int = 0
    loopback: bool = False
    family: int = 0
    """0 for the device itself. A bridge tells of its ports in messages of family AF_BRIDGE: leaving a bridge reads like
    the end of the device there."""
    vrf_table: int = 0
    """The routing table of a VRF device; 0 for any other."""


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A neighbour entry. `address` is empty for a bridge's forwarding entry, `mac` while it is not resolved.

    `confirmed`: the kernel vouches for the link-layer address or is asking now; otherwise it waits for a reason."""

    family: int
    index: int
    address: str
    mac: bytes = b""
    usable: bool = False
    confirmed: bool = False


@dataclass(frozen=True, slots=True)
class NextHop:
    """A next-hop object: a single one (`index`, maybe `gateway`) or a group (ids of its members)."""

    id: int
    family: int
    protocol: int
    index: int = 0
    gateway: str = ""
    group: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Hop:
    """One way of a route; no gateway on a connected network."""

    index: int
    gateway: str = ""


@dataclass(frozen=True, slots=True)
class Route:
    """A route. `hops` as the kernel spells them out; behind a next-hop object only with `nexthop_compat_mode=1`."""

    destination: str
    family: int
    metric: int = 0
    protocol: int = 0
    table: int = TABLE_MAIN
    kind: int = TYPE_UNICAST
    source: str = ""
    next_hop_id: int = 0
    hops: tuple[Hop, ...] = ()
    expires_s: float | None = None
    rto_min_ms: int | None = None
    mtu: int = 0
    """Largest packet that it lets through; 0: what its device does."""


# framing
def nla(kind: int, data: bytes) -> bytes:
    """One attribute with its padding."""
    return _ATTRIBUTE.pack(4 + len(data), kind) + data + b"\0" * (-len(data) % 4)


def attributes(body: bytes, start: int = 0) -> Iterator[tuple[int, bytes]]:
    """(type without its flags, data) of each attribute from an offset on; stops at a malformed one."""
    end = len(body)
    while start + 4 <= end:
        length, kind = _ATTRIBUTE.unpack_from(body, start)
        if length < 4 or start + length > end:
            return
        yield kind & _TYPE_MASK, body[start + 4 : start + length]
        start += (length + 3) & ~3


def message(kind: int, flags: int, seq: int, body: bytes) -> bytes:
    """A message, padded so that another may follow in the same datagram."""
    size = _HEADER.size + len(body)
    return _HEADER.pack(size, kind, flags, seq, 0) + body + b"\0" * (-size % 4)


def messages(datagram: bytes) -> Iterator[Message]:
    """The messages of a datagram; stops at a malformed one."""
    start, end = 0, len(datagram)
    while start + _HEADER.size <= end:
        length, kind, flags, seq, port_id = _HEADER.unpack_from(datagram, start)
        if length < _HEADER.size or start + length > end:
            return
        yield Message(kind, flags, seq, port_id, datagram[start + _HEADER.size : start + length])
        start += (length + 3) & ~3


def dump(kind: int, seq: int, family: int = 0, *, table: int = 0, protocol: int = 0) -> bytes:
    """A request for all objects of a kind (RTM_GET…).

    `table` and `protocol` narrow a dump of routes down on a socket with NETLINK_GET_STRICT_CHK; the answers have to be
    looked at all the same, because an older kernel overlooks both."""
    body = bytes((family,)) + b"\0" * (_DUMP_HEADER[kind] - 1)
    if table or protocol:
        body = _RTMSG.pack(family, 0, 0, 0, table if table < 256 else 0, protocol, 0, 0, 0)
        if table >= 256:
            body += _u32(_RTA_TABLE, table)
    return message(kind, F_REQUEST | F_DUMP, seq, body)


# addresses
def _text(data: bytes) -> str:
    return socket.inet_ntop(AF_INET6 if len(data) == 16 else AF_INET, data)


def _packed(address: str) -> bytes:
    return socket.inet_pton(family_of(address), address)


def family_of(address: str) -> int:
    """AF_INET or AF_INET6 of an address or a destination."""
    return AF_INET6 if ":" in address else AF_INET


def _number(data: bytes | None) -> int:
    return int(_U32.unpack_from(data)[0]) if data else 0


# what the kernel says
def parse_link(body: bytes) -> Link:
    family, _, index, flags, _ = _IFINFO.unpack_from(body)
    found = dict(attributes(body, _IFINFO.size))
    running = _IFF_RUNNING | _IFF_LOWER_UP
    return Link(
        index=index,
        name=found.get(_IFLA_IFNAME, b"").rstrip(b"\0").decode(errors="replace"),
        up=bool(flags & _IFF_UP),
        carrier=flags & running == running,
        mac=found.get(_IFLA_ADDRESS, b""),
        mtu=_number(found.get(_IFLA_MTU)),
        loopback=bool(flags & _IFF_LOOPBACK),
        family=family,
        vrf_table=_vrf_table(found.get(_IFLA_LINKINFO, b"")),
    )


def _vrf_table(info: bytes) -> int:
    """Of IFLA_LINKINFO (Documentation/networking/vrf.rst)."""
    told = dict(attributes(info, 0))
    if told.get(_IFLA_INFO_KIND, b"").rstrip(b"\0") != b"vrf":
        return 0
    return _number(dict(attributes(told.get(_IFLA_INFO_DATA, b""), 0)).get(_IFLA_VRF_TABLE))


def parse_neighbour(body: bytes) -> Neighbour:
    family, index, state, _, _ = _NDMSG.unpack_from(body)
    found = dict(attributes(body, _NDMSG.size))
    address, mac = found.get(_NDA_DST, b""), found.get(_NDA_LLADDR, b"")
    text = _text(address) if family in (AF_INET, AF_INET6) and address else ""
    usable = bool(state & _NUD_USABLE) and bool(mac)
    return Neighbour(family, index, text, mac, usable, bool(state & _NUD_CONFIRMED))


def route_protocol(body: bytes) -> int:
    """The protocol of a route message by its header alone, for floods in which hardly any route concerns us."""
    return body[5] if len(body) >= _RTMSG.size else 0


def parse_next_hop(body: bytes) -> NextHop:
    family, _, protocol, _ = _NHMSG.unpack_from(body)
    found = dict(attributes(body, _NHMSG.size))
    gateway = found.get(_NHA_GATEWAY)
    return NextHop(
        id=_number(found.get(_NHA_ID)),
        family=family,
        protocol=protocol,
        index=_number(found.get(_NHA_OIF)),
        gateway=_text(gateway) if gateway else "",
        group=tuple(member[0] for member in _MEMBER.iter_unpack(found.get(_NHA_GROUP, b""))),
    )


def parse_route(body: bytes) -> Route:
    family, bits, _, _, table, protocol, _, kind, _ = _RTMSG.unpack_from(body)
    found = dict(attributes(body, _RTMSG.size))
    anything = b"\0" * (16 if family == AF_INET6 else 4)
    metrics = dict(attributes(found.get(_RTA_METRICS, b"")))
    source = found.get(_RTA_PREFSRC)
    # rta_cacheinfo: clntref u32, lastuse u32, expires s32 in hundredths of a second (USER_HZ), ...
    cache = found.get(_RTA_CACHEINFO, b"")
    expires = struct.unpack_from("=i", cache, 8)[0] if len(cache) >= 12 else 0
    return Route(
        destination=f"{_text(found.get(_RTA_DST, anything))}/{bits}",
        family=family,
        metric=_number(found.get(_RTA_PRIORITY)),
        protocol=protocol,
        table=_number(found.get(_RTA_TABLE)) or table,
        kind=kind,
        source=_text(source) if source else "",
        next_hop_id=_number(found.get(_RTA_NH_ID)),
        hops=_hops(found),
        expires_s=expires / 100 if expires else None,
        rto_min_ms=_number(metrics[_RTAX_RTO_MIN]) if _RTAX_RTO_MIN in metrics else None,
        mtu=_number(metrics.get(_RTAX_MTU)),
    )


def _hops(found: dict[int, bytes]) -> tuple[Hop, ...]:
    multipath = found.get(_RTA_MULTIPATH)
    if multipath is None:
        index = found.get(_RTA_OIF)
        return (Hop(_number(index), _gateway(found)),) if index else ()
    hops, start = [], 0
    while start + _RTNEXTHOP.size <= len(multipath):
        size, _, _, index = _RTNEXTHOP.unpack_from(multipath, start)
        if size < _RTNEXTHOP.size:
            break
        hops.append(Hop(index, _gateway(dict(attributes(multipath[start : start + size], _RTNEXTHOP.size)))))
        start += (size + 3) & ~3
    return tuple(hops)


def _gateway(found: dict[int, bytes]) -> str:
    if gateway := found.get(_RTA_GATEWAY):
        return _text(gateway)
    via = found.get(_RTA_VIA, b"")  # an IPv4 route by an IPv6 gateway: family u16, address
    return _text(via[2:]) if len(via) in (6, 18) else ""


# bodies of requests
def next_hop(ident: int, index: int, gateway: str, protocol: int) -> bytes:
    """RTM_NEWNEXTHOP: a single next hop by a gateway on a device."""
    body = _NHMSG.pack(family_of(gateway), 0, protocol, 0)
    return body + _u32(_NHA_ID, ident) + _u32(_NHA_OIF, index) + nla(_NHA_GATEWAY, _packed(gateway))


def next_hop_group(ident: int, members: Sequence[int], protocol: int) -> bytes:
    """RTM_NEWNEXTHOP: a group of next hops with equal weights."""
    packed = b"".join(_MEMBER.pack(member, 0, 0, 0) for member in members)
    return _NHMSG.pack(0, 0, protocol, 0) + _u32(_NHA_ID, ident) + nla(_NHA_GROUP, packed)


def next_hop_id(ident: int) -> bytes:
    """RTM_DELNEXTHOP: a next hop or a group; the kernel deletes the routes on it too."""
    return _NHMSG.pack(0, 0, 0, 0) + _u32(_NHA_ID, ident)


def route(
    destination: str,
    *,
    protocol: int,
    metric: int,
    table: int = TABLE_MAIN,
    next_hop_id: int | None = None,
    source: str = "",
    expires_s: int | None = None,
    rto_min_ms: int | None = None,
    mtu: int = 0,
) -> bytes:
    """RTM_NEWROUTE, or without a next hop RTM_DELROUTE (which matches destination, table, protocol and metric).

    `expires_s` holds for IPv6 alone: IPv4 routes have no expiry, so it is left out there. `rto_min_ms` is locked, or
    TCP would take it for a hint."""
    address, _, bits = destination.partition("/")
    body = _RTMSG.pack(family_of(address), int(bits), 0, 0, table if table < 256 else 0, protocol, 0, TYPE_UNICAST, 0)
    body += nla(_RTA_DST, _packed(address)) + _u32(_RTA_TABLE, table)
    if next_hop_id is not None:
        body += _u32(_RTA_NH_ID, next_hop_id)
    if metric:
        body += _u32(_RTA_PRIORITY, metric)
    if source:
        body += nla(_RTA_PREFSRC, _packed(source))
    if expires_s is not None and family_of(address) == AF_INET6:
        body += _u32(_RTA_EXPIRES, expires_s)
    metrics = _u32(_RTAX_MTU, mtu) if mtu else b""
    if rto_min_ms is not None:
        metrics += _u32(_RTAX_RTO_MIN, rto_min_ms) + _u32(_RTAX_LOCK, 1 << _RTAX_RTO_MIN)
    if metrics:
        body += nla(_RTA_METRICS | NESTED, metrics)
    return body


def discard_route(*, protocol: int, metric: int, table: int = TABLE_MAIN) -> bytes:
    """A route of ours to one address of the discard-only prefix (RFC 6666): nobody's packets go there."""
    body = _RTMSG.pack(AF_INET6, 128, 0, 0, table if table < 256 else 0, protocol, 0, TYPE_BLACKHOLE, 0)
    body += nla(_RTA_DST, _packed(DISCARDED)) + _u32(_RTA_TABLE, table) + _u32(_RTA_PRIORITY, metric)
    return body + _u32(_RTA_EXPIRES, 1)


def route_lookup(
    destination: str, *, source: str = "", label: int | None = None, protocol: int = 0, device: int = 0
) -> bytes:
    """RTM_GETROUTE: which way a packet would take. `device`: index of the VRF in which to look; 0: by the rules.

    Without a protocol the answer holds for packets that a netfilter output hook sends through routing again: that
    lookup knows addresses, label and mark only (ip6_route_me_harder). A kernel before 6.14 does not know the label: it
    refuses the request on a socket with NETLINK_GET_STRICT_CHK and overlooks the label on any other."""
    bits = 128 if family_of(destination) == AF_INET6 else 32
    body = _RTMSG.pack(family_of(destination), bits, bits if source else 0, 0, 0, 0, 0, 0, 0)
    body += nla(_RTA_DST, _packed(destination))
    if source:
        body += nla(_RTA_SRC, _packed(source))
    if device:
        body += nla(_RTA_OIF, _U32.pack(device))
    if protocol:
        body += nla(_RTA_IP_PROTO, bytes((protocol,)))
    if label is not None:
        body += nla(_RTA_FLOWLABEL, struct.pack("!I", label))
    return body


def use_neighbour(index: int, address: str) -> bytes:
    """RTM_NEWNEIGH: resolve a neighbour, or confirm a stale one, as if a packet were waiting (NTF_USE)."""
    return _NDMSG.pack(family_of(address), index, 0, _NTF_USE, 0) + nla(_NDA_DST, _packed(address))


def _u32(kind: int, value: int) -> bytes:
    return nla(kind, _U32.pack(value))
