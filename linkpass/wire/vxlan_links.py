"""rtnetlink bodies for tunnels: VXLAN devices, where they lead (forwarding entries, neighbours), rules by mark.

Sources: include/uapi/linux/{if_link,neighbour,fib_rules,rtnetlink}.h, drivers/net/vxlan/vxlan_core.c. The kernel draws
a source port from `min` to `max` - 1 (udp_flow_src_port), so one port is asked for as (port, port + 1).
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass
from typing import Final

from linkpass.wire import rtnl
from linkpass.wire.rtnl import NESTED, attributes, nla

RTM_NEWRULE, RTM_DELRULE, RTM_GETRULE = 32, 33, rtnl.RTM_GETRULE
GROUP_IPV4_RULE: Final = 8

_IFF_UP: Final = 1
_IFLA_ADDRESS, _IFLA_IFNAME, _IFLA_MTU, _IFLA_LINKINFO = 1, 3, 4, 18
_KIND, _DATA = 1, 2
_ID, _LOCAL, _TTL, _TOS, _LEARNING, _PORT_RANGE, _PORT, _UDP_CSUM, _DF = 1, 4, 5, 6, 7, 10, 15, 18, 29
_TOS_INHERIT, _DF_SET = 1, 1
_NDA_DST, _NDA_LLADDR, _NDA_PORT, _NDA_VNI, _NDA_IFINDEX = 1, 2, 6, 7, 8
_AF_BRIDGE: Final = 7
_NTF_SELF: Final = 0x02
_NUD_PERMANENT, _NUD_NOARP = 0x80, 0x40
_FRA_PRIORITY, _FRA_FWMARK, _FRA_TABLE, _FRA_FWMASK, _FRA_PROTOCOL = 6, 10, 15, 16, 21
_TO_TABLE: Final = 1
_RTA_OIF, _RTA_GATEWAY, _RTA_PRIORITY, _RTA_TABLE = 4, 5, 6, 15
_SCOPE_LINK, _SCOPE_HOST = 253, 254

_IFINFO: Final = struct.Struct("=BxHiII")
_NDMSG: Final = struct.Struct("=BxxxiHBB")
_RULE: Final = struct.Struct("=BBBBBBBBI")
_RTMSG: Final = struct.Struct("=BBBBBBBBI")


@dataclass(frozen=True, slots=True)
class Vxlan:
    """A VXLAN device. `source_ports`: first and last + 1, (0, 0): the kernel's usual range."""

    name: str
    vni: int
    port: int
    source_ports: tuple[int, int] = (0, 0)
    local: str = ""
    mac: bytes = b""
    mtu: int = 0
    index: int = 0
    up: bool = False


def new_vxlan(one: Vxlan) -> bytes:
    """RTM_NEWLINK: a device that is still down. Nothing is learnt and nothing flooded; the outer packet is never
    fragmented, has no checksum of its own (RFC 7348) and the inner one's class of service."""
    data = nla(_ID, struct.pack("=I", one.vni)) + nla(_LOCAL, socket.inet_aton(one.local))
    data += nla(_TTL, b"\x40") + nla(_TOS, bytes((_TOS_INHERIT,))) + nla(_LEARNING, b"\0")
    data += nla(_PORT, struct.pack("!H", one.port)) + nla(_UDP_CSUM, b"\0") + nla(_DF, bytes((_DF_SET,)))
    if one.source_ports[1]:
        data += nla(_PORT_RANGE, struct.pack("!HH", *one.source_ports))
    body = _IFINFO.pack(0, 0, 0, 0, 0) + nla(_IFLA_IFNAME, one.name.encode() + b"\0") + nla(_IFLA_ADDRESS, one.mac)
    body += nla(_IFLA_MTU, struct.pack("=I", one.mtu)) if one.mtu else b""
    return body + nla(_IFLA_LINKINFO | NESTED, nla(_KIND, b"vxlan\0") + nla(_DATA | NESTED, data))


def set_up(index: int) -> bytes:
    """RTM_NEWLINK: set a device up."""
    return _IFINFO.pack(0, 0, index, _IFF_UP, _IFF_UP)


def placeholder(index: int) -> bytes:
    """RTM_NEWADDR: an address that is nobody's (192.0.0.8, RFC 7600) and that no packet is sent from."""
    nobody = socket.inet_aton("192.0.0.8")
    return struct.pack("=BBBBI", rtnl.AF_INET, 32, 0, _SCOPE_HOST, index) + nla(1, nobody) + nla(2, nobody)


def delete_link(index: int) -> bytes:
    """RTM_DELLINK."""
    return _IFINFO.pack(0, 0, index, 0, 0)


def parse_vxlan(body: bytes) -> Vxlan | None:
    """None: the device is of another kind."""
    _, _, index, flags, _ = _IFINFO.unpack_from(body)
    found = dict(attributes(body, _IFINFO.size))
    info = dict(attributes(found.get(_IFLA_LINKINFO, b"")))
    if info.get(_KIND, b"").rstrip(b"\0") != b"vxlan":
        return None
    data = dict(attributes(info.get(_DATA, b"")))
    low, high = struct.unpack("!HH", data.get(_PORT_RANGE, bytes(4)))
    return Vxlan(
        name=found.get(_IFLA_IFNAME, b"").rstrip(b"\0").decode(errors="replace"),
        vni=int(struct.unpack("=I", data.get(_ID, bytes(4)))[0]),
        port=int.from_bytes(data.get(_PORT, b""), "big"),
        source_ports=(low, high),
        local=socket.inet_ntoa(data[_LOCAL]) if _LOCAL in data else "",
        mac=found.get(_IFLA_ADDRESS, b""),
        mtu=int(struct.unpack("=I", found.get(_IFLA_MTU, bytes(4)))[0]),
        index=index,
        up=bool(flags & _IFF_UP),
    )


def neighbour(index: int, address: str, mac: bytes) -> bytes:
    """RTM_NEWNEIGH, RTM_DELNEIGH: a host's link address on a device, for good."""
    body = _NDMSG.pack(rtnl.AF_INET, index, _NUD_PERMANENT, 0, 0)
    return body + nla(_NDA_DST, socket.inet_aton(address)) + nla(_NDA_LLADDR, mac)


def forwarding(index: int, mac: bytes, address: str, *, port: int, vni: int, over: int) -> bytes:
    """RTM_NEWNEIGH, RTM_DELNEIGH: frames to a link address leave by the device with index `over`, for the tunnel's end
    (`port`, `vni`) of a host."""
    body = _NDMSG.pack(_AF_BRIDGE, index, _NUD_PERMANENT | _NUD_NOARP, _NTF_SELF, 0)
    body += nla(_NDA_LLADDR, mac) + nla(_NDA_DST, socket.inet_aton(address)) + nla(_NDA_PORT, struct.pack("!H", port))
    return body + nla(_NDA_VNI, struct.pack("=I", vni)) + nla(_NDA_IFINDEX, struct.pack("=I", over))


def rule(mark: int, table: int, preference: int, protocol: int) -> bytes:
    """RTM_NEWRULE, RTM_DELRULE: packets with exactly this mark go by a table of their own."""
    body = _RULE.pack(rtnl.AF_INET, 0, 0, 0, 0, 0, 0, _TO_TABLE, 0)
    numbers = ((_FRA_PRIORITY, preference), (_FRA_FWMARK, mark), (_FRA_FWMASK, 0xFFFFFFFF), (_FRA_TABLE, table))
    for kind, value in numbers:
        body += nla(kind, struct.pack("=I", value))
    return body + nla(_FRA_PROTOCOL, bytes((protocol,)))


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule by mark."""

    mark: int
    table: int
    preference: int
    protocol: int


def parse_rule(body: bytes) -> Rule | None:
    """None: not a rule of IPv4 by a mark."""
    if body[0] != rtnl.AF_INET:
        return None
    found = dict(attributes(body, _RULE.size))
    if _FRA_FWMARK not in found:
        return None
    mark, table, preference = (
        int(struct.unpack("=I", found.get(kind, bytes(4)))[0]) for kind in (_FRA_FWMARK, _FRA_TABLE, _FRA_PRIORITY)
    )
    return Rule(mark, table, preference, found.get(_FRA_PROTOCOL, b"\0")[0])


def everything(table: int, *, over: int, protocol: int, gateway: str = "", metric: int = 0) -> bytes:
    """RTM_NEWROUTE: all that goes by a table leaves by a device, with a gateway or as if all were neighbours there."""
    scope = 0 if gateway else _SCOPE_LINK
    body = _RTMSG.pack(rtnl.AF_INET, 0, 0, 0, 0, protocol, scope, rtnl.TYPE_UNICAST, 0)
    body += nla(_RTA_TABLE, struct.pack("=I", table)) + nla(_RTA_OIF, struct.pack("=I", over))
    if metric:
        body += nla(_RTA_PRIORITY, struct.pack("=I", metric))
    return body + (nla(_RTA_GATEWAY, socket.inet_aton(gateway)) if gateway else b"")
