"""One next-hop group in the kernel, its next hops, and the routes on it.

Each bundle has next hops of its own. The kernel keeps ready-made routes per next hop and CPU (fib6_nh's rt6i_pcpu),
made for whichever route asked first: routes that share a next hop share metrics and preferred source by accident, and
when one of them is removed the others' lookups answer ENETUNREACH. So only routes that are alike share one, and after
the removal of a route the next hops are renewed, which throws the ready-made routes away.

A ready-made route is valid until the next IPv6 route is *added* (rt6_is_valid: the serial number of all tables; only
adding counts it up). Whoever keeps one, a connected socket or a queue pair of soft-RoCE, goes on with it when the route
is removed, and when the next hop is, too, all that it sends is dropped: in the first network namespace the dead route
passes for a valid one for ever. So between routes and next hops something is added (`renewal`).
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from linkpass.edges.kernel.sock import KernelRefusedError, RequestSocket
from linkpass.wire import rtnl

CHECKED_MOST = 16
"""Routes looked after at each replacement of their group: some 10 µs each, after the traffic has moved. More of them
are looked after by the refresh alone."""


class Ids:
    """Numbers of a range, given out one after the other so that one just given back is not used again at once."""

    def __init__(self, first: int, last: int) -> None:
        self._first, self._last = first, last
        self._next = first
        self._taken: set[int] = set()

    def shun(self, idents: Iterable[int]) -> None:
        """Numbers that somebody else uses."""
        self._taken.update(idents)

    def take(self) -> int:
        """Raises KernelRefusedError when all are taken."""
        for _ in range(self._first, self._last + 1):
            ident = self._next
            self._next = self._first if ident == self._last else ident + 1
            if ident not in self._taken:
                self._taken.add(ident)
                return ident
        raise KernelRefusedError(errno.ENOSPC, "all ids of ours for next hops are taken")

    def give(self, ident: int) -> None:
        self._taken.discard(ident)


Change = tuple[int, bytes, int]
"""Kind, body and flags of a request."""


class Exit(NamedTuple):
    """One way out: a device, by name and index, and the gateway there."""

    name: str
    device: int
    gateway: str


@dataclass(slots=True, eq=False)
class Bundle:
    family: int
    source: str
    exits: frozenset[Exit]
    """All ways that the routes below ours have."""
    protocol: int
    metric: int
    table: int
    expires_s: int
    rto_min_ms: int | None
    numbers: Ids
    mtu: int = 0
    """Of the routes below: nobody's packets may grow because ours lie over them."""
    reasons: set[str] = field(default_factory=set)
    """The destinations that routes should be laid to. None is laid while no chosen uplink leads there."""
    ident: int = 0
    hops: dict[Exit, int] = field(default_factory=dict)
    laid: set[str] = field(default_factory=set)
    members: tuple[Exit, ...] = ()
    """What the group in the kernel consists of, as far as we have made it."""

    def ids(self) -> set[int]:
        return {self.ident, *self.hops.values()} - {0}

    def chosen(self, uplinks: Sequence[str]) -> tuple[Exit, ...]:
        """The ways over the uplinks, of those that are allowed here."""
        return tuple(sorted(one for one in self.exits if one.name in uplinks))

    def is_ready(self, members: Iterable[Exit]) -> bool:
        """One message is enough to put these in charge; or they are none, and nothing is laid."""
        if not members:
            return not self.laid
        return self.laid == self.reasons and all(one in self.hops for one in members)

    def replacement(self, members: tuple[Exit, ...]) -> Change:
        """The one message that moves the traffic.

        Without F_CREATE: a group that is gone has taken its routes along, and must not come back alone."""
        return rtnl.RTM_NEWNEXTHOP, self._group(members), rtnl.F_REPLACE

    def checks(self) -> list[Change]:
        """Puts back routes that are missing, and extends the others' lives: those are refused with EEXIST."""
        if len(self.laid) > CHECKED_MOST:
            return []
        return [(rtnl.RTM_NEWROUTE, self.route(one), rtnl.F_CREATE) for one in sorted(self.laid)]

    def make(self, sock: RequestSocket, members: tuple[Exit, ...], *, strict: bool) -> None:
        """Next hops, then the group, then the routes, each whether it is there or not. Raises KernelRefusedError."""
        refusal: KernelRefusedError | None = None
        usable = []
        for one in members:
            try:
                self._make_hop(sock, one)
                usable.append(one)
            except KernelRefusedError as error:
                refusal = refusal or error
        if refusal is not None and (strict or not usable):
            self._keep_alive(sock)
            raise refusal
        self._make_group(sock, tuple(usable))
        self.members = tuple(usable)
        for destination in sorted(self.reasons):
            what = f"route {destination} over {_names(members)}"
            try:
                sock.change(rtnl.RTM_NEWROUTE, self.route(destination), rtnl.F_CREATE, what)
            except KernelRefusedError as error:
                if error.errno != errno.EEXIST:  # there already: its life is extended by the attempt
                    refusal = refusal or error
                    continue
            self.laid.add(destination)
        self._forget_hops(sock)
        if refusal is not None and strict:
            raise refusal

    def _keep_alive(self, sock: RequestSocket) -> None:
        """What lies in the kernel goes on as it is, and does not expire for want of an uplink that was asked for."""
        if self.laid:
            sock.change_many([(rtnl.RTM_NEWROUTE, self.route(one), rtnl.F_CREATE) for one in sorted(self.laid)])

    def tidy(self, sock: RequestSocket) -> None:
        """Remove routes that have lost their reason."""
        idle = self.laid - self.reasons
        if idle:
            sock.change_many([(rtnl.RTM_DELROUTE, self.route(one), 0) for one in sorted(idle)])
            self.laid -= idle
            self.renew_hops(sock)

    def renew_hops(self, sock: RequestSocket) -> None:
        """Replace each next hop by itself: the kernel throws away what it has kept ready for it."""
        changes = [(rtnl.RTM_NEWNEXTHOP, self._hop(one), rtnl.F_REPLACE) for one in self.hops]
        if changes:
            sock.change_many(changes)

    def remove(self, sock: RequestSocket) -> None:
        """All of it, whether it is there or not: routes, group, next hops. It can be made again."""
        idents = ([self.ident] if self.ident else []) + list(self.hops.values())
        changes = [(rtnl.RTM_DELROUTE, self.route(one), 0) for one in sorted(self.laid)]
        if self.family == rtnl.AF_INET6 and idents:
            changes += renewal(self.protocol, self.metric, self.table)
        changes += [(rtnl.RTM_DELNEXTHOP, rtnl.next_hop_id(ident), 0) for ident in idents]
        sock.change_many(changes)
        for ident in idents:
            self.numbers.give(ident)
        self.ident = 0
        self.hops.clear()
        self.laid.clear()
        self.members = ()

    def _make_hop(self, sock: RequestSocket, one: Exit) -> None:
        if one not in self.hops:
            self.hops[one] = self.numbers.take()
        what = f"next hop over {one.name}"
        sock.change(rtnl.RTM_NEWNEXTHOP, self._hop(one), rtnl.F_CREATE | rtnl.F_REPLACE, what)

    def _make_group(self, sock: RequestSocket, members: tuple[Exit, ...]) -> None:
        self.ident = self.ident or self.numbers.take()
        flags = rtnl.F_CREATE | rtnl.F_REPLACE
        sock.change(rtnl.RTM_NEWNEXTHOP, self._group(members), flags, f"group over {_names(members)}")

    def _forget_hops(self, sock: RequestSocket) -> None:
        """Next hops over ways that are no longer allowed."""
        for one in [one for one in self.hops if one not in self.exits]:
            ident = self.hops.pop(one)
            sock.change_many([(rtnl.RTM_DELNEXTHOP, rtnl.next_hop_id(ident), 0)])
            self.numbers.give(ident)

    def _hop(self, one: Exit) -> bytes:
        return rtnl.next_hop(self.hops[one], one.device, one.gateway, self.protocol)

    def _group(self, members: Iterable[Exit]) -> bytes:
        return rtnl.next_hop_group(self.ident, [self.hops[one] for one in members], self.protocol)

    def route(self, destination: str, next_hop_id: int = 0) -> bytes:
        """A route of ours, for adding or removing it; on the bundle's own group unless another is given."""
        return rtnl.route(
            destination,
            next_hop_id=next_hop_id or self.ident,
            protocol=self.protocol,
            metric=self.metric,
            source=self.source,
            table=self.table,
            expires_s=self.expires_s,
            rto_min_ms=self.rto_min_ms,
            mtu=self.mtu,
        )


def renewal(protocol: int, metric: int, table: int) -> list[Change]:
    """What every ready-made IPv6 route is found outdated by, at its next use: a route that nobody's packets take is
    added, and removed again."""
    body = rtnl.discard_route(protocol=protocol, metric=metric, table=table)
    return [(rtnl.RTM_NEWROUTE, body, rtnl.F_CREATE | rtnl.F_REPLACE), (rtnl.RTM_DELROUTE, body, 0)]


def _names(members: Iterable[Exit]) -> str:
    return ", ".join(one.name for one in members)
