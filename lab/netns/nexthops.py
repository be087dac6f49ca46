"""What pyroute2 0.9 has no messages for: next-hop objects, groups of them, and routes that lead to one.

Raw requests (`lab.netns.session`) around the bodies of `linkpass.wire.rtnl`. Sources: include/uapi/linux/nexthop.h,
net/ipv4/nexthop.c.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from lab.addressing import Forwarding
from lab.netns.session import Request
from linkpass.wire import rtnl
from linkpass.wire.rtnl import nla

PROTOCOL = 186
"""Route protocol of the lab's own routes and next hops (RTPROT_BGP: who would have put them in a real fabric)."""

METRIC = 1024
"""Metric of the lab's routes in both families (IPv6's default): whoever wants to lie over them takes a lower one."""

_PUT = rtnl.F_CREATE | rtnl.F_REPLACE
_NHA_GROUP_TYPE, _NHA_RES_GROUP = 3, 12
_RESILIENT = 1
_BUCKETS, _IDLE_TIMER, _UNBALANCED_TIMER = 1, 2, 3


def add_nexthop(nhid: int, index: int, gateway: str) -> Request:
    body = rtnl.next_hop(nhid, index, gateway, PROTOCOL)
    return Request(rtnl.RTM_NEWNEXTHOP, _PUT, body, f"next hop {nhid} via {gateway}")


def add_group(nhid: int, members: Sequence[int], buckets: int = 0) -> Request:
    """A group of equal weights: hash-threshold, or resilient with that many buckets (they move without idle time)."""
    body = rtnl.next_hop_group(nhid, members, PROTOCOL)
    if buckets:
        never = bytes(4)
        table = nla(_BUCKETS, struct.pack("=H", buckets)) + nla(_IDLE_TIMER, never) + nla(_UNBALANCED_TIMER, never)
        body += nla(_NHA_GROUP_TYPE, struct.pack("=H", _RESILIENT)) + nla(_NHA_RES_GROUP | rtnl.NESTED, table)
    return Request(rtnl.RTM_NEWNEXTHOP, _PUT, body, f"next-hop group {nhid}")


def add_route(prefix: str, nhid: int, source: str) -> Request:
    body = rtnl.route(prefix, next_hop_id=nhid, protocol=PROTOCOL, metric=METRIC, source=source)
    return Request(rtnl.RTM_NEWROUTE, _PUT, body, f"route {prefix}")


def everything(hops: Forwarding, index: Mapping[str, int], resilient: int) -> list[Request]:
    """A node's whole forwarding: next hops, then groups, then routes."""
    return [
        *(add_nexthop(hop.id, index[hop.device], hop.gateway) for hop in hops.hops),
        *(add_group(group.id, group.members, resilient) for group in hops.groups),
        *(add_route(route.prefix, route.group, route.source) for route in hops.routes),
    ]
