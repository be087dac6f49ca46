"""The rtnetlink requests that a lab is made of: devices, addresses, neighbours, next hops, routes, shapers.

Bytes only. Sources: include/uapi/linux/{if_link,if_addr,neighbour,nexthop,rtnetlink,pkt_sched,veth}.h.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Sequence

from lab.netns.session import NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, Request

RTM_NEWLINK, RTM_DELLINK, RTM_GETLINK = 16, 17, 18
RTM_NEWADDR, RTM_NEWROUTE, RTM_GETROUTE = 20, 24, 26
RTM_NEWNEIGH, RTM_NEWQDISC, RTM_DELQDISC = 28, 36, 37
RTM_NEWNEXTHOP, RTM_GETNEXTHOP = 104, 106

PROTOCOL = 186
"""Route protocol of the lab's own routes and next hops (RTPROT_BGP: who would have put them in a real fabric)."""

METRIC = 1024
"""Metric of the lab's routes in both families (IPv6's default): whoever wants to lie over them takes a lower one."""

IFF_UP = 1
_NUD_PERMANENT = 0x80
_NLA_F_NESTED = 0x8000
_RT_SCOPE_UNIVERSE, _RTN_UNICAST, _RT_TABLE_MAIN = 0, 1, 254
_TC_H_ROOT = 0xFFFFFFFF
_TBF_HANDLE = 0x7B0000

FAMILY = {6: int(socket.AF_INET6), 4: int(socket.AF_INET)}


def nla(kind: int, data: bytes) -> bytes:
    """One attribute, padded."""
    return struct.pack("=HH", 4 + len(data), kind) + data + b"\0" * (-len(data) % 4)


def nest(kind: int, *attributes: bytes) -> bytes:
    return nla(kind | _NLA_F_NESTED, b"".join(attributes))


def u32(kind: int, value: int) -> bytes:
    return nla(kind, struct.pack("=I", value))


def text(kind: int, value: str) -> bytes:
    return nla(kind, value.encode() + b"\0")


def attributes(body: bytes, start: int) -> dict[int, bytes]:
    """Attributes of a message from an offset on: type (without flags) -> data. The last of a type counts."""
    found: dict[int, bytes] = {}
    while start + 4 <= len(body):
        length, kind = struct.unpack_from("=HH", body, start)
        if length < 4:
            break
        found[kind & 0x3FFF] = body[start + 4 : start + length]
        start += (length + 3) & ~3
    return found


def address(value: str, family: int) -> bytes:
    return socket.inet_pton(FAMILY[family], value)


def address_text(value: bytes, family: int) -> str:
    return socket.inet_ntop(FAMILY[family], value)


# devices
def _ifinfo(index: int = 0, *, up: bool | None = None) -> bytes:
    return struct.pack("=BxHiII", 0, 0, index, IFF_UP if up else 0, 0 if up is None else IFF_UP)


def link_up(index: int, *, up: bool, what: str = "") -> Request:
    return Request(RTM_NEWLINK, 0, _ifinfo(index, up=up), what or f"device {index} {'up' if up else 'down'}")


def add_device(name: str, kind: str) -> Request:
    """A software device that is up at once (IFF_UP in the message that creates it)."""
    body = _ifinfo(up=True) + text(3, name) + nest(18, text(1, kind))
    return Request(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, body, f"device {name} of kind {kind}")


def add_veth(name: str, peer: str, peer_netns: int, peer_mac: str, mtu: int) -> Request:
    """A veth pair, up at this end; its peer, with that MAC address, lies in the namespace of a descriptor."""
    size = u32(4, mtu)
    mac = nla(1, bytes.fromhex(peer_mac.replace(":", "")))
    far = _ifinfo() + text(3, peer) + mac + size + u32(28, peer_netns)
    body = _ifinfo(up=True) + text(3, name) + size + nest(18, text(1, "veth"), nest(2, nla(1, far)))
    return Request(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, body, f"veth {name} - {peer}")


# addresses and neighbours
def add_address(index: int, value: str, prefix_length: int, family: int) -> Request:
    header = struct.pack("=BBBBI", FAMILY[family], prefix_length, 0x02, _RT_SCOPE_UNIVERSE, index)  # IFA_F_NODAD
    where = address(value, family)
    body = header + (nla(1, where) if family == 6 else nla(2, where) + nla(1, where))
    return Request(RTM_NEWADDR, NLM_F_CREATE | NLM_F_REPLACE, body, f"address {value}/{prefix_length}")


def add_neighbour(index: int, value: str, mac: str, family: int) -> Request:
    header = struct.pack("=BxxxiHBB", FAMILY[family], index, _NUD_PERMANENT, 0, 0)
    body = header + nla(1, address(value, family)) + nla(2, bytes.fromhex(mac.replace(":", "")))
    return Request(RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_REPLACE, body, f"neighbour {value}")


# next hops and routes
def add_nexthop(nhid: int, family: int, index: int, gateway: str) -> Request:
    header = struct.pack("=BBBBI", FAMILY[family], 0, PROTOCOL, 0, 0)
    body = header + u32(1, nhid) + u32(5, index) + nla(6, address(gateway, family))
    return Request(
        RTM_NEWNEXTHOP,
        NLM_F_CREATE | NLM_F_REPLACE,
        body,
        f"next hop {nhid} via {gateway}",
        frozenset({errno.ENETDOWN}),
    )


def add_group(nhid: int, members: Sequence[int], buckets: int = 0) -> Request:
    """A group of equal weights: hash-threshold, or resilient with that many buckets (they move without idle time)."""
    packed = b"".join(struct.pack("=IBBH", member, 0, 0, 0) for member in members)
    body = struct.pack("=BBBBI", 0, 0, PROTOCOL, 0, 0) + u32(1, nhid) + nla(2, packed)
    if buckets:
        body += nla(3, struct.pack("=H", 1))
        body += nest(12, nla(1, struct.pack("=H", buckets)), u32(2, 0), u32(3, 0))
    return Request(RTM_NEWNEXTHOP, NLM_F_CREATE | NLM_F_REPLACE, body, f"next-hop group {nhid}")


def add_route(prefix: str, family: int, nhid: int, source: str) -> Request:
    where, _, length = prefix.partition("/")
    header = struct.pack(
        "=BBBBBBBBI", FAMILY[family], int(length), 0, 0, _RT_TABLE_MAIN, PROTOCOL, _RT_SCOPE_UNIVERSE, _RTN_UNICAST, 0
    )
    body = header + nla(1, address(where, family)) + u32(6, METRIC) + nla(7, address(source, family)) + u32(30, nhid)
    return Request(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_REPLACE, body, f"route {prefix}")


# shapers
def add_shaper(index: int, bps: int, burst_bytes: int, limit_bytes: int) -> Request:
    """A token bucket filter as the device's root queue (net/sched/sch_tbf.c). A link layer is named (1, Ethernet), so
    the kernel computes with the rate itself and wants no rate table."""
    rate = bps // 8
    parameters = struct.pack("=BBHhHI", 0, 1, 0, 0, 0, min(rate, 0xFFFFFFFF)) + bytes(12)
    parameters += struct.pack("=III", limit_bytes, 0, 0)
    options = [nla(1, parameters), u32(6, burst_bytes)]
    if rate > 0xFFFFFFFF:
        options.append(nla(4, struct.pack("=Q", rate)))
    body = struct.pack("=BxxxiIII", 0, index, _TBF_HANDLE, _TC_H_ROOT, 0) + text(1, "tbf") + nest(2, *options)
    return Request(RTM_NEWQDISC, NLM_F_CREATE | NLM_F_REPLACE, body, f"shaper of {bps} bit/s on device {index}")


def delete_shaper(index: int) -> Request:
    body = struct.pack("=BxxxiIII", 0, index, 0, _TC_H_ROOT, 0)
    return Request(RTM_DELQDISC, 0, body, f"shaper off device {index}", frozenset({errno.ENOENT, errno.EINVAL}))
