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

_IFF_LOWER_UP = 1 << 16


def ports(session: Session) -> dict[str, tuple[int, bool]]:
    """Devices of a namespace: name -> (index, has carrier)."""
    found = {}
    for _kind, body in session.dump(messages.RTM_GETLINK, bytes(16)):
        _family, _type, index, flags, _change = struct.unpack_from("=BxHiII", body)
        name = messages.attributes(body, 16)[3].rstrip(b"\0").decode()
        found[name] = (index, bool(flags & _IFF_LOWER_UP))
    return found


def missing(session: Session, wanted: Forwarding, resilient: int) -> list[Request]:
    """The requests that bring a node's forwarding back to what it should be with the carriers that there are now."""
    port = ports(session)
    usable = {hop.id for hop in wanted.hops if port[hop.device][1]}
    singles, groups = nexthops(session)
    requests = [
        messages.add_nexthop(hop.id, hop.family, port[hop.device][0], hop.gateway)
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
        messages.add_route(route.prefix, route.family, route.group, route.source)
        for route in wanted.routes
        if route.group in alive and (route.prefix, route.group) not in there
    ]
    return requests


def nexthops(session: Session) -> tuple[set[int], Mapping[int, frozenset[int]]]:
    """The lab's next-hop objects in the kernel: ids of the single ones, and members of the groups by id."""
    singles: set[int] = set()
    groups: dict[int, frozenset[int]] = {}
    for _kind, body in session.dump(messages.RTM_GETNEXTHOP, bytes(8)):
        if body[2] != messages.PROTOCOL:
            continue
        found = messages.attributes(body, 8)
        (nhid,) = struct.unpack("=I", found[1])
        if 2 in found:
            groups[nhid] = frozenset(struct.unpack_from("=I", found[2], at)[0] for at in range(0, len(found[2]), 8))
        else:
            singles.add(nhid)
    return singles, groups


def routes(session: Session) -> set[tuple[str, int]]:
    """The lab's routes in the kernel, both families: (prefix, next-hop group)."""
    found = set()
    for family, number in messages.FAMILY.items():
        header = struct.pack("=BBBBBBBBI", number, 0, 0, 0, 0, 0, 0, 0, 0)
        for _kind, body in session.dump(messages.RTM_GETROUTE, header):
            length, protocol = body[1], body[5]
            values = messages.attributes(body, 12)
            if protocol == messages.PROTOCOL and 30 in values and 1 in values:
                prefix = f"{messages.address_text(values[1], family)}/{length}"
                found.add((prefix, struct.unpack("=I", values[30])[0]))
    return found
