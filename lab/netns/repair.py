"""Put back what the kernel itself deletes when a port loses carrier: next hops, and with them groups and routes.

A real switch has a routing daemon for that; the lab does it when a fault is undone. Only the lab's own objects (its
route protocol, its ids) are looked at, so that nothing that linkpass has made is touched or hidden.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from lab.addressing import Forwarding
from lab.netns import messages
from lab.netns.session import Request, Session
from linkpass.wire import rtnl

_IFF_LOWER_UP = 1 << 16


def ports(session: Session) -> dict[str, tuple[int, bool]]:
    """Devices of a namespace: name -> (index, has carrier)."""
    found = {}
    for body in session.dump(rtnl.RTM_GETLINK, bytes(16)):
        # Not rtnl.Link.carrier: the operational state follows the carrier a moment later, and repair cannot wait.
        (flags,) = struct.unpack_from("=I", body, 8)
        link = rtnl.parse_link(body)
        found[link.name] = (link.index, bool(flags & _IFF_LOWER_UP))
    return found


def missing(session: Session, wanted: Forwarding, resilient: int) -> list[Request]:
    """The requests that bring a node's forwarding back to what it should be with the carriers that there are now."""
    port = ports(session)
    usable = {hop.id for hop in wanted.hops if port[hop.device][1]}
    singles, groups = nexthops(session)
    requests = [
        messages.add_nexthop(hop.id, port[hop.device][0], hop.gateway)
        for hop in wanted.hops
        if hop.id in usable and hop.id not in singles
    ]
    alive: set[int] = set()
    for group in wanted.groups:
        members = tuple(member for member in group.members if member in usable)
        if members:
            alive.add(group.id)
            if groups.get(group.id) != frozenset(members):
                requests.append(messages.add_group(group.id, members, resilient))
    there = routes(session)
    requests += [
        messages.add_route(route.prefix, route.group, route.source)
        for route in wanted.routes
        if route.group in alive and (route.prefix, route.group) not in there
    ]
    return requests


def nexthops(session: Session) -> tuple[set[int], Mapping[int, frozenset[int]]]:
    """The lab's next-hop objects in the kernel: ids of the single ones, and members of the groups by id."""
    found = [
        hop
        for body in session.dump(rtnl.RTM_GETNEXTHOP, bytes(8))
        if (hop := rtnl.parse_next_hop(body)).protocol == messages.PROTOCOL
    ]
    return {hop.id for hop in found if not hop.group}, {hop.id: frozenset(hop.group) for hop in found if hop.group}


def routes(session: Session) -> set[tuple[str, int]]:
    """The lab's routes in the kernel, both families: (prefix, next-hop group)."""
    found = [
        rtnl.parse_route(body)
        for family in messages.FAMILY.values()
        for body in session.dump(rtnl.RTM_GETROUTE, bytes([family]) + bytes(11))
    ]
    return {(route.destination, route.next_hop_id) for route in found if route.protocol == messages.PROTOCOL}
