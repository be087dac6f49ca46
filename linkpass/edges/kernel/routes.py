"""Rung 2: our own, more preferred routes on next-hop groups; replacing a group moves all its routes at once.

For every route of the kernel's main table inside the configured prefixes that is not ours, a route of ours lies
over it: same destination, better metric, protocol 76. Others' routes are never edited; withdrawing ours uncovers
them. The kernel deletes next hops when their carrier goes and does not bring them back (net/ipv4/nexthop.c,
nexthop_flush_dev), so a group that cannot be replaced is built anew: next hops, group, routes.
"""

from __future__ import annotations

import ipaddress
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from linkpass.edges.kernel.sock import KernelRefusedError, RequestSocket
from linkpass.wire import rtnl

PROTOCOL = 76
FIRST_ID = 0x4C500000
LAST_ID = FIRST_ID + 0xFFFF
EXPIRES_S = 60
ALL = "all"


@dataclass(frozen=True, slots=True)
class Way:
    """How an uplink leads out: its device and a gateway per family (empty: none)."""

    index: int
    gateway4: str = ""
    gateway6: str = ""

    def gateway(self, family: int) -> str:
        return self.gateway6 if family == rtnl.AF_INET6 else self.gateway4


class RouteEdge:
    """Owns next hops, groups and routes of this host. Methods return at once; refusals raise KernelRefusedError."""

    def __init__(
        self,
        prefixes: Iterable[str],
        *,
        metric: int,
        rto_min_ms: int | None = None,
        expires_s: int = EXPIRES_S,
        table: int = rtnl.TABLE_MAIN,
    ) -> None:
        self._prefixes = [ipaddress.ip_network(prefix) for prefix in prefixes]
        self._metric = metric
        self._rto_min_ms = rto_min_ms
        self._expires_s = expires_s
        self._table = table
        self._socket = RequestSocket()
        self._ways: dict[str, Way] = {}
        self._hops: dict[tuple[str, int], int] = {}
        self._groups: dict[str, tuple[str, ...]] = {}
        self._routes: dict[str, dict[str, rtnl.Route]] = {}

    def open(self) -> None:
        """Connect in this thread's namespace and remove what an earlier run left behind, except what still steers.

        Raises KernelRefusedError."""
        self._socket.open()

    def close(self) -> None:
        self._socket.close()

    @property
    def port_id(self) -> int:
        return self._socket.port_id

    def set_ways(self, ways: Mapping[str, Way]) -> None:
        """The uplinks as the kernel has them now. After a change of device or gateway next hops are made anew."""
        for name, way in ways.items():
            if self._ways.get(name) != way:
                for family in (rtnl.AF_INET, rtnl.AF_INET6):
                    self._hops.pop((name, family), None)
        self._ways = dict(ways)

    def covered(self) -> list[rtnl.Route]:
        """The kernel's routes inside the prefixes that are not ours, the best of each destination first."""
        found: dict[str, rtnl.Route] = {}
        for answer in self._socket.dump(rtnl.RTM_GETROUTE):
            route = rtnl.parse_route(answer.body)
            if route.table != self._table or route.protocol == PROTOCOL or route.kind != rtnl.TYPE_UNICAST:
                continue
            if not any(hop.gateway for hop in route.hops):
                continue
            network = ipaddress.ip_network(route.destination)
            inside = any(network.version == p.version and network.subnet_of(p) for p in self._prefixes)  # type: ignore[arg-type]
            best = found.get(route.destination)
            if inside and (best is None or route.metric < best.metric):
                found[route.destination] = route
        return list(found.values())

    def set_group(self, group: str, uplinks: tuple[str, ...]) -> None:
        """Let `uplinks` carry a destination set: `all`, or the address of one peer. Empty: withdraw our routes."""
        if not uplinks:
            self.withdraw(group)
            return
        for family in self._families(group):
            members = [name for name in uplinks if name in self._ways and self._ways[name].gateway(family)]
            if members:
                self._replace(group, family, members)
        self._groups[group] = uplinks

    def refresh(self) -> None:
        """Extend our IPv6 routes' lives, lie over routes that are new, and make anew what the kernel dropped.

        A group that is refused does not keep the others from their refresh; the first refusal is raised at the end."""
        self._hops.clear()
        refusal: KernelRefusedError | None = None
        for group, uplinks in list(self._groups.items()):
            try:
                self.set_group(group, uplinks)
            except KernelRefusedError as error:
                refusal = refusal or error
        if refusal is not None:
            raise refusal

    def forget(self, group: str = ALL) -> None:
        """Somebody else has removed something of a group: it is left as it is, by `refresh` too, until the next
        `set_group` makes all of it anew. How often that is done is not decided here."""
        self._hops.clear()
        self._groups.pop(group, None)

    def withdraw(self, group: str) -> None:
        """Remove our routes, then the group, of one destination set."""
        for destination in list(self._routes.get(group, {})):
            self._drop_route(group, destination)
        self._routes.pop(group, None)
        for family in (rtnl.AF_INET, rtnl.AF_INET6):
            self._forgive(rtnl.RTM_DELNEXTHOP, rtnl.next_hop_id(_group_id(group, family)))
        self._groups.pop(group, None)

    def withdraw_all(self) -> None:
        for group in self._groups.keys() | self._routes.keys():
            self.withdraw(group)
        for name in self._ways:
            for family in (rtnl.AF_INET, rtnl.AF_INET6):
                self._forgive(rtnl.RTM_DELNEXTHOP, rtnl.next_hop_id(self._hop_id(name, family)))
        self._hops.clear()

    def sweep(self) -> list[str]:
        """Remove everything that carries our marks, whoever left it; what was removed, in words."""
        removed = []
        for answer in self._socket.dump(rtnl.RTM_GETROUTE):
            route = rtnl.parse_route(answer.body)
            if route.protocol == PROTOCOL and route.table == self._table:
                body = rtnl.route(route.destination, protocol=PROTOCOL, metric=route.metric, table=route.table)
                if self._forgive(rtnl.RTM_DELROUTE, body):
                    removed.append(f"route {route.destination} metric {route.metric}")
        hops = [rtnl.parse_next_hop(answer.body) for answer in self._socket.dump(rtnl.RTM_GETNEXTHOP)]
        for hop in sorted(hops, key=lambda hop: not hop.group):  # groups before their members
            if FIRST_ID <= hop.id <= LAST_ID and self._forgive(rtnl.RTM_DELNEXTHOP, rtnl.next_hop_id(hop.id)):
                removed.append(f"next hop {hop.id:#x}")
        self._hops.clear()
        self._groups.clear()
        self._routes.clear()
        return removed

    def uplink_of(self, peer: str, source: str, labels: Iterable[int]) -> dict[int, str]:
        """Which uplink the kernel's hash picks for each label now. Raises KernelRefusedError on kernels before 6.14."""
        names = {way.index: name for name, way in self._ways.items()}
        found = {}
        for label in labels:
            body = rtnl.route_lookup(peer, source=source, label=label)
            route = rtnl.parse_route(self._socket.ask(rtnl.RTM_GETROUTE, body, f"route to {peer}").body)
            if route.hops and route.hops[0].index in names:
                found[label] = names[route.hops[0].index]
        return found

    # how it is done

    def _families(self, group: str) -> list[int]:
        if group != ALL:
            return [rtnl.family_of(group)]
        versions = {prefix.version for prefix in self._prefixes}
        return [family for family, version in ((rtnl.AF_INET, 4), (rtnl.AF_INET6, 6)) if version in versions]

    def _replace(self, group: str, family: int, members: list[str]) -> None:
        body = rtnl.next_hop_group(_group_id(group, family), [self._hop_id(name, family) for name in members], PROTOCOL)
        what = f"group {group} over {', '.join(members)}"
        fast = all((name, family) in self._hops for name in members) and group in self._groups
        if fast:
            try:  # without F_CREATE: a group that is gone has taken its routes along, and must not come back alone
                self._socket.change(rtnl.RTM_NEWNEXTHOP, body, rtnl.F_REPLACE, what)
            except KernelRefusedError:  # the group, or a member, went with a carrier
                fast = False
        if not fast:
            for name in members:
                self._make_hop(name, family)
            self._socket.change(rtnl.RTM_NEWNEXTHOP, body, rtnl.F_CREATE | rtnl.F_REPLACE, what)
            self._lay_routes(group, family)
        elif self._routes_gone(group, family):
            self._lay_routes(group, family)

    def _routes_gone(self, group: str, family: int) -> bool:
        """This family has had no way yet when the group was made."""
        return not any(route.family == family for route in self._routes.get(group, {}).values())

    def _make_hop(self, name: str, family: int) -> None:
        way = self._ways[name]
        identity = self._hop_id(name, family)
        body = rtnl.next_hop(identity, way.index, way.gateway(family), PROTOCOL)
        self._socket.change(rtnl.RTM_NEWNEXTHOP, body, rtnl.F_CREATE | rtnl.F_REPLACE, f"next hop over {name}")
        self._hops[name, family] = identity

    def _hop_id(self, name: str, family: int) -> int:
        return FIRST_ID + (self._ways[name].index & 0x3FFF) + (0x4000 if family == rtnl.AF_INET6 else 0)

    def _lay_routes(self, group: str, family: int) -> None:
        covered = [route for route in self.covered() if route.family == family]
        if group == ALL:
            wanted = {over: route for route in covered for over in preferred(route, self._metric)}
        else:
            bits = 128 if family == rtnl.AF_INET6 else 32
            source = next((route.source for route in covered if _contains(route.destination, group)), "")
            wanted = {f"{group}/{bits}": rtnl.Route(f"{group}/{bits}", family, metric=self._metric + 1, source=source)}
        laid = self._routes.setdefault(group, {})
        for destination in [d for d, route in laid.items() if route.family == family and d not in wanted]:
            self._drop_route(group, destination)
        for destination, route in wanted.items():
            body = rtnl.route(
                destination,
                next_hop_id=_group_id(group, family),
                protocol=PROTOCOL,
                metric=self._metric,
                source=route.source,
                table=self._table,
                expires_s=self._expires_s,
                rto_min_ms=self._rto_min_ms,
            )
            self._socket.change(
                rtnl.RTM_NEWROUTE, body, rtnl.F_CREATE | rtnl.F_REPLACE, f"route {destination} on group {group}"
            )
            laid[destination] = route

    def _drop_route(self, group: str, destination: str) -> None:
        body = rtnl.route(destination, protocol=PROTOCOL, metric=self._metric, table=self._table)
        self._forgive(rtnl.RTM_DELROUTE, body)
        self._routes.get(group, {}).pop(destination, None)

    def _forgive(self, kind: int, body: bytes) -> bool:
        """Delete something that may be gone already; True when it was there."""
        try:
            self._socket.change(kind, body, 0, "remove")
        except KernelRefusedError:
            return False
        return True


def preferred(route: rtnl.Route, metric: int) -> list[str]:
    """The destinations under which a route with `metric` wins over `route`: its own, or, where its metric is as good
    (IPv4 knows no better one than 0), its two halves. None for a single address that cannot be halved."""
    network = ipaddress.ip_network(route.destination)
    effective = route.metric or (1024 if route.family == rtnl.AF_INET6 else 0)
    if effective > metric:
        return [route.destination]
    if network.prefixlen == network.max_prefixlen:
        return []
    return [str(half) for half in network.subnets()]


def _group_id(group: str, family: int) -> int:
    """Groups of peers share the upper half of our range; a collision of two peers is one in some ten thousands."""
    number = 0 if group == ALL else 1 + zlib.crc32(group.encode()) % 0x3FFE
    return FIRST_ID + 0x8000 + number + (0x4000 if family == rtnl.AF_INET6 else 0)


def _contains(destination: str, address: str) -> bool:
    network, one = ipaddress.ip_network(destination), ipaddress.ip_address(address)
    return network.version == one.version and one in network
