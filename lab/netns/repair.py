"""Put back what the kernel itself deletes when a port loses carrier: next hops, and with them groups and routes.

A real switch has a routing daemon for that; the lab does it when a fault is undone. Only the lab's own objects (its
route protocol, its ids) are looked at, so that nothing that linkpass has made is touched or hidden.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping

from pyroute2 import IPRoute

from lab.addressing import Forwarding
from lab.netns import nexthops
from lab.netns.connections import asking
from lab.netns.session import Request, Session
from linkpass.wire import rtnl

_IFF_LOWER_UP = 1 << 16


def ports(route: IPRoute) -> dict[str, tuple[int, bool]]:
    """Devices of a namespace: name -> (index, has carrier)."""
    # By the flag: the operational state follows the carrier a moment later, and repair cannot wait.
    with asking("list of devices"):
        return {link.get("ifname"): (link["index"], bool(link["flags"] & _IFF_LOWER_UP)) for link in route.link("dump")}


def missing(
    session: Session, port: Mapping[str, tuple[int, bool]], wanted: Forwarding, resilient: int
) -> list[Request]:
    """The requests that bring a node's forwarding back to what it should be with the carriers that there are now."""
    usable = {hop.id for hop in wanted.hops if port[hop.device][1]}
    singles, groups = objects(session)
    requests = [
        nexthops.add_nexthop(hop.id, port[hop.device][0], hop.gateway)
        for hop in wanted.hops
        if hop.id in usable and hop.id not in singles
    ]
    alive: set[int] = set()
    for group in wanted.groups:
        members = tuple(member for member in group.members if member in usable)
        if members:
            alive.add(group.id)
            if groups.get(group.id) != frozenset(members):
                requests.append(nexthops.add_group(group.id, members, resilient))
    there = routes(session)
    requests += [
        nexthops.add_route(route.prefix, route.group, route.source)
        for route in wanted.routes
        if route.group in alive and (route.prefix, route.group) not in there
    ]
    return requests


def objects(session: Session) -> tuple[set[int], Mapping[int, frozenset[int]]]:
    """The lab's next-hop objects in the kernel: ids of the single ones, and members of the groups by id."""
    found = [
        hop
        for body in session.dump(rtnl.RTM_GETNEXTHOP, bytes(8))
        if (hop := rtnl.parse_next_hop(body)).protocol == nexthops.PROTOCOL
    ]
    return {hop.id for hop in found if not hop.group}, {hop.id: frozenset(hop.group) for hop in found if hop.group}


def routes(session: Session) -> set[tuple[str, int]]:
    """The lab's routes in the kernel, both families: (prefix, next-hop group)."""
    found = [
        rtnl.parse_route(body)
        for family in (socket.AF_INET6, socket.AF_INET)
        for body in session.dump(rtnl.RTM_GETROUTE, bytes([family]) + bytes(11))
    ]
    return {(route.destination, route.next_hop_id) for route in found if route.protocol == nexthops.PROTOCOL}
