"""The rtnetlink requests that a lab is made of: devices, addresses, neighbours, next hops, routes, shapers.

Bytes only. Sources: include/uapi/linux/{if_link,if_addr,neighbour,nexthop,rtnetlink,pkt_sched,veth}.h.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Sequence

from lab.netns.session import Request
from linkpass.wire import rtnl
from linkpass.wire.rtnl import nla

PROTOCOL = 186
"""Route protocol of the lab's own routes and next hops (RTPROT_BGP: who would have put them in a real fabric)."""

METRIC = 1024
"""Metric of the lab's routes in both families (IPv6's default): whoever wants to lie over them takes a lower one."""

_IFF_UP = 1
_NUD_PERMANENT = 0x80
_RTM_NEWQDISC, _RTM_DELQDISC = 36, 37
_TC_H_ROOT = 0xFFFFFFFF
_TBF_HANDLE = 0x7B0000

FAMILY = {6: rtnl.AF_INET6, 4: rtnl.AF_INET}


def nest(kind: int, *attributes: bytes) -> bytes:
    return nla(kind | rtnl.NESTED, b"".join(attributes))


def u32(kind: int, value: int) -> bytes:
    return nla(kind, struct.pack("=I", value))


def text(kind: int, value: str) -> bytes:
    return nla(kind, value.encode() + b"\0")


def address(value: str, family: int) -> bytes:
    return socket.inet_pton(FAMILY[family], value)


# devices
def _ifinfo(index: int = 0, *, up: bool | None = None) -> bytes:
    return struct.pack("=BxHiII", 0, 0, index, _IFF_UP if up else 0, 0 if up is None else _IFF_UP)


def link_up(index: int, *, up: bool, what: str = "") -> Request:
    return Request(rtnl.RTM_NEWLINK, 0, _ifinfo(index, up=up), what or f"device {index} {'up' if up else 'down'}")


def add_device(name: str, kind: str) -> Request:
    """A software device that is up at once (_IFF_UP in the message that creates it)."""
    body = _ifinfo(up=True) + text(3, name) + nest(18, text(1, kind))
    return Request(rtnl.RTM_NEWLINK, rtnl.F_CREATE | rtnl.F_EXCL, body, f"device {name} of kind {kind}")


def add_veth(name: str, peer: str, peer_netns: int, peer_mac: str, mtu: int) -> Request:
    """A veth pair, up at this end; its peer, with that MAC address, lies in the namespace of a descriptor."""
    size = u32(4, mtu)
    mac = nla(1, bytes.fromhex(peer_mac.replace(":", "")))
    far = _ifinfo() + text(3, peer) + mac + size + u32(28, peer_netns)
    body = _ifinfo(up=True) + text(3, name) + size + nest(18, text(1, "veth"), nest(2, nla(1, far)))
    return Request(rtnl.RTM_NEWLINK, rtnl.F_CREATE | rtnl.F_EXCL, body, f"veth {name} - {peer}")


# addresses and neighbours
def add_address(index: int, value: str, prefix_length: int, family: int) -> Request:
    header = struct.pack("=BBBBI", FAMILY[family], prefix_length, 0x02, 0, index)  # IFA_F_NODAD
    where = address(value, family)
    body = header + (nla(1, where) if family == 6 else nla(2, where) + nla(1, where))
    return Request(rtnl.RTM_NEWADDR, rtnl.F_CREATE | rtnl.F_REPLACE, body, f"address {value}/{prefix_length}")


def add_neighbour(index: int, value: str, mac: str, family: int) -> Request:
    header = struct.pack("=BxxxiHBB", FAMILY[family], index, _NUD_PERMANENT, 0, 0)
    body = header + nla(1, address(value, family)) + nla(2, bytes.fromhex(mac.replace(":", "")))
    return Request(rtnl.RTM_NEWNEIGH, rtnl.F_CREATE | rtnl.F_REPLACE, body, f"neighbour {value}")


# next hops and routes
def add_nexthop(nhid: int, index: int, gateway: str) -> Request:
    body = rtnl.next_hop(nhid, index, gateway, PROTOCOL)
    return Request(rtnl.RTM_NEWNEXTHOP, rtnl.F_CREATE | rtnl.F_REPLACE, body, f"next hop {nhid} via {gateway}")


def add_group(nhid: int, members: Sequence[int], buckets: int = 0) -> Request:
    """A group of equal weights: hash-threshold, or resilient with that many buckets (they move without idle time)."""
    body = rtnl.next_hop_group(nhid, members, PROTOCOL)
    if buckets:
        body += nla(3, struct.pack("=H", 1))
        body += nest(12, nla(1, struct.pack("=H", buckets)), u32(2, 0), u32(3, 0))
    return Request(rtnl.RTM_NEWNEXTHOP, rtnl.F_CREATE | rtnl.F_REPLACE, body, f"next-hop group {nhid}")


def add_route(prefix: str, nhid: int, source: str) -> Request:
    body = rtnl.route(prefix, next_hop_id=nhid, protocol=PROTOCOL, metric=METRIC, source=source)
    return Request(rtnl.RTM_NEWROUTE, rtnl.F_CREATE | rtnl.F_REPLACE, body, f"route {prefix}")


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
    return Request(_RTM_NEWQDISC, rtnl.F_CREATE | rtnl.F_REPLACE, body, f"shaper of {bps} bit/s on device {index}")


def delete_shaper(index: int) -> Request:
    body = struct.pack("=BxxxiIII", 0, index, 0, _TC_H_ROOT, 0)
    return Request(_RTM_DELQDISC, 0, body, f"shaper off device {index}", frozenset({errno.ENOENT, errno.EINVAL}))
