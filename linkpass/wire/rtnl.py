"""rtnetlink: links, addresses, neighbours, next hops, routes as values, and the requests that change them.

Fixed headers (bytes, native order) are parsed by offset, so that a listener can drop what it does not need cheaply:

    ifinfomsg  family u8, pad, type u16, index i32, flags u32, change u32                                  16
    ifaddrmsg  family u8, prefix u8, flags u8, scope u8, index u32                                          8
    ndmsg      family u8, pad 3, index i32, state u16, flags u8, type u8                                   12
    rtmsg      family u8, dst len u8, src len u8, tos u8, table u8, protocol u8, scope u8, type u8, flags  12
    nhmsg      family u8, scope u8, protocol u8, reserved u8, flags u32                                     8

Sources: rtnetlink(7), include/uapi/linux/{if_link,if_addr,neighbour,rtnetlink,nexthop}.h. Addresses are text as
`inet_ntop` prints it; a destination is `address/length`.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from typing import Final

import msgspec

from linkpass.wire.nlmsg import (
    NLM_F_ACK,
    NLM_F_CREATE,
    NLM_F_DUMP,
    NLM_F_EXCL,
    NLM_F_REPLACE,
    Message,
    Request,
    attributes,
    nested,
    nla,
    u32,
)

RTM_NEWLINK, RTM_DELLINK, RTM_GETLINK = 16, 17, 18
RTM_NEWADDR, RTM_DELADDR, RTM_GETADDR = 20, 21, 22
RTM_NEWROUTE, RTM_DELROUTE, RTM_GETROUTE = 24, 25, 26
RTM_NEWNEIGH, RTM_DELNEIGH, RTM_GETNEIGH = 28, 29, 30
RTM_NEWNEXTHOP, RTM_DELNEXTHOP, RTM_GETNEXTHOP = 104, 105, 106

GROUP_LINK, GROUP_NEIGH, GROUP_IPV4_ADDR, GROUP_IPV4_ROUTE = 1, 3, 5, 7
GROUP_IPV6_ADDR, GROUP_IPV6_ROUTE, GROUP_NEXTHOP = 9, 11, 32

IFF_UP, IFF_RUNNING, IFF_LOWER_UP = 0x1, 0x40, 0x10000
NUD_REACHABLE, NUD_STALE, NUD_DELAY, NUD_PROBE, NUD_NOARP, NUD_PERMANENT = 0x02, 0x04, 0x08, 0x10, 0x40, 0x80
NUD_USABLE: Final = NUD_REACHABLE | NUD_STALE | NUD_DELAY | NUD_PROBE | NUD_NOARP | NUD_PERMANENT
RTPROT_KERNEL, RTPROT_STATIC = 2, 4
RTN_UNICAST: Final = 1
RT_TABLE_MAIN: Final = 254
RTM_F_CLONED: Final = 0x200

_NTF_USE: Final = 0x01
_IFLA_ADDRESS, _IFLA_IFNAME, _IFLA_MTU = 1, 3, 4
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_NDA_DST, _NDA_LLADDR = 1, 2
_RTA_DST, _RTA_SRC, _RTA_OIF, _RTA_GATEWAY, _RTA_PRIORITY = 1, 2, 4, 5, 6
_RTA_PREFSRC, _RTA_METRICS, _RTA_MULTIPATH, _RTA_CACHEINFO, _RTA_TABLE, _RTA_VIA = 7, 8, 9, 12, 15, 18
_RTA_EXPIRES, _RTA_IP_PROTO, _RTA_SPORT, _RTA_DPORT, _RTA_NH_ID = 23, 27, 28, 29, 30
_RTA_FLOWLABEL: Final = 31
"""Linux 6.14 (include/uapi/linux/rtnetlink.h): the flow label of an IPv6 route request, big-endian."""
_RTAX_LOCK, _RTAX_RTO_MIN = 1, 13
_NHA_ID, _NHA_GROUP, _NHA_BLACKHOLE, _NHA_OIF, _NHA_GATEWAY = 1, 2, 4, 5, 6

_IFINFO: Final = struct.Struct("=BxHiII")
_IFADDR: Final = struct.Struct("=BBBBI")
_NDMSG: Final = struct.Struct("=BxxxiHBB")
_RTMSG: Final = struct.Struct("=BBBBBBBBI")
_NHMSG: Final = struct.Struct("=BBBxI")
_RTNEXTHOP: Final = struct.Struct("=HBBi")
_MEMBER: Final = struct.Struct("=IBBH")


class Link(msgspec.Struct, frozen=True):
    """A device. `carrier` is true only when the driver has carrier and the device is operationally up."""

    index: int
    name: str
    flags: int
    mac: bytes = b""
    mtu: int = 0

    @property
    def up(self) -> bool:
        return bool(self.flags & IFF_UP)

    @property
    def carrier(self) -> bool:
        both = IFF_RUNNING | IFF_LOWER_UP
        return self.flags & both == both


class Address(msgspec.Struct, frozen=True):
    family: int
    index: int
    address: str
    prefix_bits: int


class Neighbour(msgspec.Struct, frozen=True):
    """A neighbour entry; `mac` is empty while it is not resolved."""

    family: int
    index: int
    address: str
    mac: bytes
    state: int

    @property
    def usable(self) -> bool:
        return bool(self.state & NUD_USABLE) and bool(self.mac)


class Member(msgspec.Struct, frozen=True):
    """A member of a next-hop group; `weight` from 1."""

    id: int
    weight: int = 1


class Nexthop(msgspec.Struct, frozen=True):
    """A next-hop object: a single one (`index`, maybe `gateway`), or a group (`members`)."""

    id: int
    family: int
    protocol: int
    index: int = 0
    gateway: str = ""
    members: tuple[Member, ...] = ()


class Hop(msgspec.Struct, frozen=True):
    """One way of a route. `gateway` is empty on a connected network."""

    index: int
    gateway: str = ""


class Route(msgspec.Struct, frozen=True):
    """A route. `hops` as the kernel spells them out; with `nhid` they may be missing (`nexthop_compat_mode=0`)."""

    family: int
    dst: str
    table: int
    protocol: int
    type: int
    priority: int = 0
    prefsrc: str = ""
    nhid: int = 0
    hops: tuple[Hop, ...] = ()
    expires_s: float | None = None
    rto_min_ms: int | None = None


def _ntop(data: bytes) -> str:
    return socket.inet_ntop(socket.AF_INET6 if len(data) == 16 else socket.AF_INET, data)


def _pton(address: str) -> bytes:
    return socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)


def family_of(address: str) -> int:
    """AF_INET or AF_INET6 of an address or a prefix."""
    return int(socket.AF_INET6 if ":" in address else socket.AF_INET)


def _number(data: bytes | None) -> int:
    return int.from_bytes(data, "little") if data and struct.pack("=H", 1)[0] else int.from_bytes(data or b"", "big")


# parsers: of a message's body
def link_index(body: bytes) -> int:
    """The device of an ifinfomsg or ndmsg, without parsing the rest."""
    return int(struct.unpack_from("=i", body, 4)[0])


def parse_link(body: bytes) -> Link:
    _, _, index, flags, _ = _IFINFO.unpack_from(body)
    found = attributes(body, _IFINFO.size)
    name = found.get(_IFLA_IFNAME, b"").rstrip(b"\0").decode(errors="replace")
    return Link(index, name, flags, found.get(_IFLA_ADDRESS, b""), _number(found.get(_IFLA_MTU)))


def parse_address(body: bytes) -> Address:
    family, bits, _, _, index = _IFADDR.unpack_from(body)
    found = attributes(body, _IFADDR.size)
    return Address(family, index, _ntop(found.get(_IFA_LOCAL) or found[_IFA_ADDRESS]), bits)


def parse_neighbour(body: bytes) -> Neighbour:
    """Raises KeyError for an entry without an address (a bridge's forwarding table)."""
    family, index, state, _, _ = _NDMSG.unpack_from(body)
    found = attributes(body, _NDMSG.size)
    return Neighbour(family, index, _ntop(found[_NDA_DST]), found.get(_NDA_LLADDR, b""), state)


def parse_nexthop(body: bytes) -> Nexthop:
    family, _, protocol, _ = _NHMSG.unpack_from(body)
    found = attributes(body, _NHMSG.size)
    group = found.get(_NHA_GROUP, b"")
    members = tuple(Member(ident, weight + 1) for ident, weight, _, _ in _MEMBER.iter_unpack(group))
    gateway = found.get(_NHA_GATEWAY)
    return Nexthop(
        id=_number(found.get(_NHA_ID)),
        family=family,
        protocol=protocol,
        index=_number(found.get(_NHA_OIF)),
        gateway=_ntop(gateway) if gateway else "",
        members=members,
    )


def route_protocol(body: bytes) -> int:
    """The protocol of an rtmsg, without parsing the rest."""
    return body[5]


def _via(found: dict[int, bytes]) -> str:
    if gateway := found.get(_RTA_GATEWAY):
        return _ntop(gateway)
    # RTA_VIA: an IPv4 route with an IPv6 gateway; family u16, then the address
    via = found.get(_RTA_VIA)
    return _ntop(via[2:]) if via and len(via) in (6, 18) else ""


def _hops(found: dict[int, bytes]) -> tuple[Hop, ...]:
    if multipath := found.get(_RTA_MULTIPATH):
        hops: list[Hop] = []
        start = 0
        while start + _RTNEXTHOP.size <= len(multipath):
            size, _, _, index = _RTNEXTHOP.unpack_from(multipath, start)
            if size < _RTNEXTHOP.size:
                break
            hops.append(Hop(index, _via(attributes(multipath[start : start + size], _RTNEXTHOP.size))))
            start += (size + 3) & ~3
        return tuple(hops)
    if oif := found.get(_RTA_OIF):
        return (Hop(_number(oif), _via(found)),)
    return ()


def parse_route(body: bytes) -> Route:
    family, bits, _, _, table, protocol, _, kind, _ = _RTMSG.unpack_from(body)
    found = attributes(body, _RTMSG.size)
    anything = b"\0" * (16 if family == socket.AF_INET6 else 4)
    metrics = attributes(found.get(_RTA_METRICS, b""))
    prefsrc = found.get(_RTA_PREFSRC)
    cache = found.get(_RTA_CACHEINFO, b"")
    # rta_cacheinfo: clntref u32, lastuse u32, expires s32 in hundredths of a second (USER_HZ), ...
    expires = struct.unpack_from("=i", cache, 8)[0] if len(cache) >= 12 else 0
    return Route(
        family=family,
        dst=f"{_ntop(found.get(_RTA_DST, anything))}/{bits}",
        table=_number(found[_RTA_TABLE]) if _RTA_TABLE in found else table,
        protocol=protocol,
        type=kind,
        priority=_number(found.get(_RTA_PRIORITY)),
        prefsrc=_ntop(prefsrc) if prefsrc else "",
        nhid=_number(found.get(_RTA_NH_ID)),
        hops=_hops(found),
        expires_s=expires / 100 if expires else None,
        rto_min_ms=_number(metrics[_RTAX_RTO_MIN]) if _RTAX_RTO_MIN in metrics else None,
    )


# requests
_SET: Final = NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE


def nexthop(ident: int, family: int, index: int, gateway: str, protocol: int) -> Request:
    """Create or replace a single next hop. An empty gateway: on a connected network."""
    body = _NHMSG.pack(family, 0, protocol, 0) + u32(_NHA_ID, ident) + u32(_NHA_OIF, index)
    if gateway:
        body += nla(_NHA_GATEWAY, _pton(gateway))
    return Request(RTM_NEWNEXTHOP, _SET, body, f"next hop {ident:#x} via {gateway or 'the link'} on device {index}")


def group(ident: int, members: Sequence[Member], protocol: int) -> Request:
    """Create or replace a group of equal-cost next hops; all routes on it move with this one message."""
    packed = b"".join(_MEMBER.pack(member.id, member.weight - 1, 0, 0) for member in members)
    body = _NHMSG.pack(socket.AF_UNSPEC, 0, protocol, 0) + u32(_NHA_ID, ident) + nla(_NHA_GROUP, packed)
    return Request(RTM_NEWNEXTHOP, _SET, body, f"next-hop group {ident:#x}")


def delete_nexthop(ident: int) -> Request:
    """Delete a next hop or a group; the kernel deletes the routes on it too."""
    body = _NHMSG.pack(0, 0, 0, 0) + u32(_NHA_ID, ident)
    return Request(RTM_DELNEXTHOP, NLM_F_ACK, body, f"delete next hop {ident:#x}")


def _rtmsg(dst: str, table: int, protocol: int, flags: int = 0) -> bytes:
    address, _, bits = dst.partition("/")
    short = table if table < 256 else 0
    header = _RTMSG.pack(family_of(address), int(bits), 0, 0, short, protocol, 0, RTN_UNICAST, flags)
    return header + nla(_RTA_DST, _pton(address)) + u32(_RTA_TABLE, table)


def route(
    dst: str,
    nhid: int,
    *,
    priority: int,
    protocol: int,
    prefsrc: str = "",
    expires_s: int | None = None,
    rto_min_ms: int | None = None,
    table: int = RT_TABLE_MAIN,
    flags: int = NLM_F_CREATE | NLM_F_EXCL,
) -> Request:
    """A route on a next-hop object. `expires_s` is for IPv6 alone (the kernel ignores it for IPv4).

    `flags`: CREATE|EXCL adds; CREATE alone puts an IPv4 route before others of the same priority, and re-arms the
    expiry of an identical IPv6 one (EEXIST); CREATE|REPLACE replaces the first route of the same priority, whoever
    owns it. `rto_min_ms` is locked, so that it also binds TCP's own estimate."""
    body = _rtmsg(dst, table, protocol) + u32(_RTA_NH_ID, nhid)
    if priority:
        body += u32(_RTA_PRIORITY, priority)
    if prefsrc:
        body += nla(_RTA_PREFSRC, _pton(prefsrc))
    if expires_s is not None:
        body += u32(_RTA_EXPIRES, expires_s)
    if rto_min_ms is not None:
        body += nested(_RTA_METRICS, u32(_RTAX_RTO_MIN, rto_min_ms), u32(_RTAX_LOCK, 1 << _RTAX_RTO_MIN))
    return Request(RTM_NEWROUTE, NLM_F_ACK | flags, body, f"route {dst} metric {priority}")


def delete_route(dst: str, *, priority: int, protocol: int, nhid: int = 0, table: int = RT_TABLE_MAIN) -> Request:
    """Delete a route of that protocol and priority (and next hop, where given): never somebody else's."""
    body = _rtmsg(dst, table, protocol)
    if priority:
        body += u32(_RTA_PRIORITY, priority)
    if nhid:
        body += u32(_RTA_NH_ID, nhid)
    return Request(RTM_DELROUTE, NLM_F_ACK, body, f"delete route {dst} metric {priority}")


def get_route(
    dst: str, *, src: str = "", flow_label: int | None = None, protocol: int = 0, sport: int = 0, dport: int = 0
) -> Request:
    """Which way would a packet go? Ask with NETLINK_GET_STRICT_CHK: a kernel that does not know the flow label then
    answers EINVAL instead of ignoring it. `protocol` is the IP protocol; the kernel wants 0, TCP, UDP or ICMP."""
    family = family_of(dst)
    bits = 128 if family == socket.AF_INET6 else 32
    body = _RTMSG.pack(family, bits, bits if src else 0, 0, 0, 0, 0, 0, 0) + nla(_RTA_DST, _pton(dst))
    if src:
        body += nla(_RTA_SRC, _pton(src))
    if protocol:
        body += nla(_RTA_IP_PROTO, bytes((protocol,)))
    if sport:
        body += nla(_RTA_SPORT, struct.pack("!H", sport))
    if dport:
        body += nla(_RTA_DPORT, struct.pack("!H", dport))
    if flow_label is not None:
        body += nla(_RTA_FLOWLABEL, struct.pack("!I", flow_label))
    return Request(RTM_GETROUTE, 0, body, f"which way to {dst}")


def use_neighbour(index: int, address: str) -> Request:
    """Make the kernel resolve a neighbour, or confirm a stale one, as if a packet were waiting (NTF_USE)."""
    body = _NDMSG.pack(family_of(address), index, 0, _NTF_USE, 0) + nla(_NDA_DST, _pton(address))
    return Request(RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_ACK, body, f"resolve {address} on device {index}")


def dump_links() -> Request:
    return Request(RTM_GETLINK, NLM_F_DUMP, _IFINFO.pack(0, 0, 0, 0, 0), "dump of links")


def dump_addresses(family: int = 0) -> Request:
    return Request(RTM_GETADDR, NLM_F_DUMP, _IFADDR.pack(family, 0, 0, 0, 0), "dump of addresses")


def dump_neighbours(family: int = 0) -> Request:
    return Request(RTM_GETNEIGH, NLM_F_DUMP, _NDMSG.pack(family, 0, 0, 0, 0), "dump of neighbours")


def dump_nexthops() -> Request:
    return Request(RTM_GETNEXTHOP, NLM_F_DUMP, _NHMSG.pack(0, 0, 0, 0), "dump of next hops")


def dump_routes(family: int, *, table: int = 0, protocol: int = 0) -> Request:
    """Routes of a family. With NETLINK_GET_STRICT_CHK the kernel itself filters by table and protocol (0: any)."""
    body = _RTMSG.pack(family, 0, 0, 0, table if table < 256 else 0, protocol, 0, 0, 0)
    if table >= 256:
        body += u32(_RTA_TABLE, table)
    return Request(RTM_GETROUTE, NLM_F_DUMP, body, "dump of routes")


def is_clone(message: Message) -> bool:
    """A cached copy of a route, not a route of the table (RTM_F_CLONED)."""
    return bool(struct.unpack_from("=I", message.body, 8)[0] & RTM_F_CLONED)
