"""Rung 2: our own, more preferred routes on next-hop groups; replacing a group moves all its routes at once.

For every route of the kernel's main table to the configured prefixes that is not ours, a route of ours lies over it:
same destination, better metric, protocol 76. Others' routes are never edited; withdrawing ours uncovers them. A route
of ours leads over those of the chosen uplinks that the route below has, and over no other: routes below with the same
ways share a bundle (`bundle.py`), one where all is as usual.

The kernel deletes next hops when their carrier goes and does not bring them back (net/ipv4/nexthop.c,
nexthop_flush_dev), so a group that cannot be replaced is built anew: next hops, group, routes.
"""

from __future__ import annotations

import errno
import ipaddress
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from linkpass.edges.kernel.bundle import Bundle, Exit, Ids, renewal
from linkpass.edges.kernel.originals import Network, contains, effective_metric, families, originals
from linkpass.edges.kernel.sock import KernelRefusedError, RequestSocket
from linkpass.edges.kernel.vrf import Vrf, find
from linkpass.wire import rtnl

PROTOCOL = 76
FIRST_ID = 0x4C500000
LAST_ID = FIRST_ID + 0xFFFF
EXPIRES_S = 60
ALL = "all"


@dataclass(frozen=True, slots=True)
class Way:
    """An uplink: its device, and a gateway per family (empty: none).

    The gateways count where the operator has named the uplink (`everywhere`): it then leads to all destinations. Any
    other leads where the kernel's own routes say, by their gateways."""

    index: int
    gateway4: str = ""
    gateway6: str = ""
    everywhere: bool = False

    def gateway(self, family: int) -> str:
        return self.gateway6 if family == rtnl.AF_INET6 else self.gateway4


@dataclass(slots=True)
class _Plan:
    """What should lie in the kernel for one group: a bundle each for destinations with the same ways below them."""

    family: int
    source: str
    exits: frozenset[Exit]
    mtu: int = 0
    destinations: set[str] = field(default_factory=set)


class RouteEdge:
    """Owns next hops, groups and routes of this host. Methods return at once; refusals raise KernelRefusedError."""

    def __init__(
        self,
        prefixes: Iterable[str],
        *,
        metric: int,
        rto_min_ms: int | None = None,
        expires_s: int = EXPIRES_S,
        vrf: str = "",
    ) -> None:
        """`vrf`: the device of the VRF whose routes these are; empty: the main table's."""
        self._prefixes: list[Network] = [ipaddress.ip_network(prefix) for prefix in prefixes]
        self._metric = metric
        self._rto_min_ms = rto_min_ms
        self._expires_s = expires_s
        self._vrf_name, self._vrf = vrf, Vrf()
        self._socket = RequestSocket()
        self._ways: dict[str, Way] = {}
        self._wanted: dict[str, tuple[str, ...]] = {}
        self._bundles: dict[str, list[Bundle]] = {}
        self._removed: set[str] = set()
        """Groups that somebody else has taken something of, and that were not asked for since."""
        self._ids: Ids | None = None
        self._told_laid = False
        self.on_laid: Callable[[bool], None] | None = None
        """Told whether IPv4 routes of ours lie in the kernel, when that changes: nothing there makes them expire."""
        self.on_leads: Callable[[str, tuple[str, ...]], None] | None = None
        """Told over which uplinks a group's routes lead, whenever their choice has changed."""
        self._leads: dict[str, frozenset[object]] = {}

    def open(self) -> None:
        """Connect in this thread's namespace. What an earlier run left stays until `sweep`.

        Raises KernelRefusedError."""
        self._socket.open()
        self._vrf = find(self._socket, self._vrf_name)

    def close(self) -> None:
        self._socket.close()

    @property
    def port_id(self) -> int:
        return self._socket.port_id

    def set_ways(self, ways: Mapping[str, Way]) -> None:
        """The uplinks as the kernel has them now. After a change of device next hops are made anew."""
        self._ways = dict(ways)

    def owners(self, thing: rtnl.Route | rtnl.NextHop) -> tuple[str, ...]:
        """The groups that a route (by destination and metric) or a next hop (by id) in the kernel belongs to."""
        if isinstance(thing, rtnl.NextHop):
            return tuple(g for g, made in self._bundles.items() if any(thing.id in one.ids() for one in made))
        if thing.metric != self._metric or thing.table != self._vrf.table:
            return ()
        return tuple(g for g, made in self._bundles.items() if any(thing.destination in one.laid for one in made))

    def covered(self) -> list[rtnl.Route]:
        """Others' routes to the prefixes that lead over a gateway, the best of each destination, the longest first."""
        found: list[rtnl.Route] = []
        for family in families(self._prefixes):
            found += self._socket.routes(family, table=self._vrf.table)
        return [r for r in originals(found, self._prefixes, PROTOCOL) if any(hop.gateway for hop in r.hops)]

    def set_group(self, group: str, uplinks: tuple[str, ...]) -> None:
        """Let `uplinks` carry a destination set: `all`, or the address of one peer. Empty: withdraw our routes.

        When all is well that is one message a bundle. What is missing in the kernel is put back, whoever took it."""
        if not uplinks:
            self.withdraw(group)
            return
        self._wanted[group] = uplinks
        removed = group in self._removed
        self._removed.discard(group)
        try:
            if removed or not (self._replace(group, uplinks) or self._remake(group, uplinks)):
                self._build(group, uplinks, strict=True)
        finally:
            self._tell_leads(group)

    def refresh(self) -> None:
        """Extend our IPv6 routes' lives, lie over routes that are new, and make anew what the kernel dropped.

        A group of which somebody else has removed something, and which was not asked for since, is his: what is left of
        it goes, too, or half of it would steer on for ever without us. A group that is refused does not keep the others
        from their refresh; the first refusal is raised at the end."""
        refusal: KernelRefusedError | None = None
        for group in list(self._wanted):
            if group in self._removed:
                self.withdraw(group)
                continue
            try:
                self._build(group, self._wanted[group], strict=False)
            except KernelRefusedError as error:
                refusal = refusal or error
            finally:
                self._tell_leads(group)
        if refusal is not None:
            raise refusal

    def forget(self, group: str = ALL) -> None:
        """Somebody else has removed something of a group: `refresh` does not put it back, the next `set_group` does.
        How often that is done is not decided here."""
        self._removed.add(group)

    def withdraw(self, group: str) -> None:
        """Remove our routes, then the groups, then the next hops of one destination set."""
        for bundle in self._bundles.pop(group, []):
            bundle.remove(self._socket)
        self._wanted.pop(group, None)
        self._removed.discard(group)
        self._tell_laid()

    def withdraw_all(self) -> None:
        for group in list(self._bundles.keys() | self._wanted.keys()):
            self.withdraw(group)

    def sweep(self) -> list[str]:
        """Remove everything that carries our marks, whoever left it; what was removed, in words."""
        removed = []
        for family in (rtnl.AF_INET6, rtnl.AF_INET):
            for route in self._socket.routes(family, table=self._vrf.table, protocol=PROTOCOL):
                body = rtnl.route(route.destination, protocol=PROTOCOL, metric=route.metric, table=route.table)
                if self._forgive(rtnl.RTM_DELROUTE, body):
                    removed.append(f"route {route.destination} metric {route.metric}")
        hops = [rtnl.parse_next_hop(answer.body) for answer in self._socket.dump(rtnl.RTM_GETNEXTHOP)]
        ours = [hop for hop in hops if FIRST_ID <= hop.id <= LAST_ID]
        if ours:
            self._socket.change_many(renewal(PROTOCOL, self._metric, self._vrf.table))
        for hop in sorted(ours, key=lambda hop: not hop.group):  # groups before their members
            if self._forgive(rtnl.RTM_DELNEXTHOP, rtnl.next_hop_id(hop.id)):
                removed.append(f"next hop {hop.id:#x}")
        self._wanted.clear()
        self._bundles.clear()
        self._removed.clear()
        self._ids = None
        self._tell_laid()
        return removed

    def uplink_of(self, peer: str, source: str, labels: Iterable[int]) -> dict[int, str]:
        """Which uplink the kernel's hash picks for each label now. Raises KernelRefusedError on kernels before 6.14.

        The kernel keeps a ready-made route per next hop and CPU. When the route that one was made for has gone, packets
        still use it, but this question is answered with ENETUNREACH: throw them away, then ask again."""
        labels = list(labels)
        try:
            return self._uplink_of(peer, source, labels)
        except KernelRefusedError as error:
            if error.errno != errno.ENETUNREACH:
                raise
        for bundle in self._all():
            bundle.renew_hops(self._socket)
        return self._uplink_of(peer, source, labels)

    def blind_uplink(self, peer: str, source: str) -> str:
        """The uplink of all relabelled packets, where the kernel's rerouting overlooks the label (6.1); empty
        when it is none of ours. Raises KernelRefusedError."""
        names = {way.index: name for name, way in self._ways.items()}
        body = rtnl.route_lookup(peer, source=source, device=self._vrf.index)
        route = rtnl.parse_route(self._socket.ask(rtnl.RTM_GETROUTE, body, f"route to {peer}").body)
        return names.get(route.hops[0].index, "") if route.hops else ""

    def ways_to(self, address: str) -> tuple[str, ...]:
        """The uplinks that our routes to an address can choose from; none where it is left to the kernel's own."""
        wanted = ipaddress.ip_network(address)
        found = [
            (network.prefixlen, bundle)
            for bundle in self._all()
            for network in map(ipaddress.ip_network, bundle.laid)
            if contains(network, wanted)
        ]
        if not found:
            return ()
        _, bundle = max(found, key=lambda one: one[0])
        return tuple(sorted({one.name for one in bundle.exits}))

    def packet_bytes(self, device_bytes: Mapping[int, int]) -> int:
        """The largest IPv4 packet that others' routes to the prefixes let through; `device_bytes`: MTU by index."""
        return max(
            (
                route.mtu or max((device_bytes.get(hop.index, 0) for hop in route.hops), default=0)
                for route in self.covered()
                if route.family == rtnl.AF_INET
            ),
            default=0,
        )

    def _uplink_of(self, peer: str, source: str, labels: list[int]) -> dict[int, str]:
        names = {way.index: name for name, way in self._ways.items()}
        found = {}
        for label in labels:
            body = rtnl.route_lookup(peer, source=source, label=label, device=self._vrf.index)
            route = rtnl.parse_route(self._socket.ask(rtnl.RTM_GETROUTE, body, f"route to {peer}").body)
            if route.hops and route.hops[0].index in names:
                found[label] = names[route.hops[0].index]
        return found

    # how it is done

    def _all(self) -> list[Bundle]:
        return [bundle for made in self._bundles.values() for bundle in made]

    def _as_made(self, group: str, uplinks: tuple[str, ...]) -> list[tuple[Bundle, tuple[Exit, ...]]]:
        """The group's bundles and the ways chosen for each (none: the kernel's own routes serve there). Empty when it
        takes a look at the kernel: nothing is known yet, nothing chosen leads anywhere, or a device is another now."""
        found = [(bundle, bundle.chosen(uplinks)) for bundle in self._bundles.get(group, [])]
        indexes = {name: way.index for name, way in self._ways.items()}
        if any(indexes.get(e.name, e.device) != e.device for bundle, _ in found for e in bundle.exits):
            return []
        return found if any(members for _, members in found) else []

    def _replace(self, group: str, uplinks: tuple[str, ...]) -> bool:
        """The fast way: one message a bundle moves the traffic; those behind them in the same datagram look after the
        routes. False: something is not as we left it, or a next hop was never made."""
        found = self._as_made(group, uplinks)
        if not found or not all(bundle.is_ready(members) for bundle, members in found):
            return False
        serving = [(bundle, members) for bundle, members in found if members]
        changes = [bundle.replacement(members) for bundle, members in serving]
        checks = [check for bundle, _ in serving for check in bundle.checks()]
        outcomes = [error for error, _ in self._socket.change_many(changes + checks)]
        moved = not any(outcomes[: len(changes)])
        for (bundle, members), error in zip(serving, outcomes, strict=False):
            if not error:
                bundle.members = members
        return moved and all(error in (0, errno.EEXIST) for error in outcomes[len(changes) :])

    def _remake(self, group: str, uplinks: tuple[str, ...]) -> bool:
        """Make everything anew as it was, without a look at others' routes, which takes long where there are many:
        after a carrier took it, and for an uplink's first use."""
        found = self._as_made(group, uplinks)
        try:
            for bundle, members in found:
                if members:
                    bundle.make(self._socket, members, strict=True)
                else:
                    bundle.remove(self._socket)
        except KernelRefusedError:
            return False
        self._tell_laid()
        return bool(found)

    def _build(self, group: str, uplinks: tuple[str, ...], *, strict: bool) -> None:
        """The slow way: read what there is to lie over and make everything anew. What moves from one bundle to another
        is laid there before it is taken away here.

        `strict`: an uplink that cannot be used is a refusal; otherwise the others carry on without it."""
        kept: list[Bundle] = []
        refusal: KernelRefusedError | None = None
        old = self._bundles.get(group, [])
        for plan in self._plans(group):
            bundle = self._claim(old, kept, plan)
            bundle.exits, bundle.reasons = plan.exits, plan.destinations
            kept.append(bundle)
        self._bundles[group] = kept
        leads = [bundle for bundle in kept if bundle.chosen(uplinks)]
        for bundle in leads:
            try:
                bundle.make(self._socket, bundle.chosen(uplinks), strict=strict)
            except KernelRefusedError as error:
                refusal = refusal or error
        for bundle in [*(one for one in old if one not in kept), *(one for one in kept if one not in leads)]:
            bundle.remove(self._socket)
        for bundle in leads:
            bundle.tidy(self._socket)
        self._remove_leavings(leads)
        self._tell_laid()
        if refusal is not None:
            raise refusal
        if not leads and strict:
            what = f"group {group} over {', '.join(uplinks)}: no route of the kernel to the prefixes leads over them"
            raise KernelRefusedError(errno.ENETUNREACH, what)

    def _plans(self, group: str) -> list[_Plan]:
        plans: dict[tuple[int, str, frozenset[Exit], int], _Plan] = {}
        for over in self._below(group):
            exits = frozenset(self._exits(over))
            if not exits:
                continue
            if group == ALL:
                destinations = preferred(over, self._metric)
            else:
                destinations = [f"{group}/{128 if over.family == rtnl.AF_INET6 else 32}"]
            if destinations:
                key = (over.family, over.source, exits, over.mtu)
                plans.setdefault(key, _Plan(*key)).destinations.update(destinations)
        return list(plans.values())

    def _below(self, group: str) -> list[rtnl.Route]:
        """What the group's routes lie over; for a peer the longest route to it, unless that is as good as ours."""
        routes = self.covered()
        if group == ALL:
            return routes
        peer = ipaddress.ip_network(group)
        for route in routes:  # the longest come first
            if contains(ipaddress.ip_network(route.destination), peer):
                own = route.destination == str(peer)
                return [] if own and effective_metric(route) <= self._metric else [route]
        return []

    def _exits(self, route: rtnl.Route) -> Iterable[Exit]:
        names = {way.index: name for name, way in self._ways.items()}
        for hop in route.hops:
            if hop.gateway and hop.index in names:
                yield Exit(names[hop.index], hop.index, hop.gateway)
        for name, way in self._ways.items():
            if way.everywhere and way.gateway(route.family):
                yield Exit(name, way.index, way.gateway(route.family))

    def _numbers(self) -> Ids:
        """Our range of ids, less those that an earlier run has left behind."""
        if self._ids is None:
            self._ids = Ids(FIRST_ID, LAST_ID)
            self._ids.shun(rtnl.parse_next_hop(answer.body).id for answer in self._socket.dump(rtnl.RTM_GETNEXTHOP))
        return self._ids

    def _claim(self, old: list[Bundle], taken: list[Bundle], plan: _Plan) -> Bundle:
        """The bundle that has most of a plan's destinations already, or a new one."""
        alike = (plan.family, plan.source, plan.mtu)
        able = [one for one in old if one not in taken and (one.family, one.source, one.mtu) == alike]
        best = max(able, key=lambda one: len(one.reasons & plan.destinations), default=None)
        if best is not None and best.reasons & plan.destinations:
            return best
        return Bundle(
            family=plan.family,
            source=plan.source,
            exits=plan.exits,
            protocol=PROTOCOL,
            metric=self._metric,
            table=self._vrf.table,
            expires_s=self._expires_s,
            rto_min_ms=self._rto_min_ms,
            numbers=self._numbers(),
            mtu=plan.mtu,
        )

    def _remove_leavings(self, bundles: list[Bundle]) -> None:
        """An earlier run's routes beside ours would go on steering: the kernel takes the older of two."""
        for bundle in bundles:
            for route in self._socket.routes(bundle.family, table=self._vrf.table, protocol=PROTOCOL):
                if route.destination in bundle.laid and route.next_hop_id != bundle.ident:
                    self._forgive(rtnl.RTM_DELROUTE, bundle.route(route.destination, route.next_hop_id))

    def _forgive(self, kind: int, body: bytes) -> bool:
        """Delete something that may be gone already; True when it was there."""
        try:
            self._socket.change(kind, body, 0, "remove")
        except KernelRefusedError:
            return False
        return True

    def _tell_laid(self) -> None:
        laid = any(bundle.laid for bundle in self._all())
        if laid != self._told_laid:
            self._told_laid = laid
            if self.on_laid is not None:
                self.on_laid(laid)

    def _tell_leads(self, group: str) -> None:
        bundles = [bundle for bundle in self._bundles.get(group, []) if bundle.laid and bundle.members]
        leads = frozenset((bundle.ident, len(bundle.laid), bundle.members) for bundle in bundles)
        if leads != self._leads.get(group, frozenset()):
            self._leads[group] = leads
            if self.on_leads is not None:
                self.on_leads(group, tuple(sorted({one.name for bundle in bundles for one in bundle.members})))


def preferred(route: rtnl.Route, metric: int) -> list[str]:
    """The destinations under which a route with `metric` wins over `route`: its own, or, where its metric is as good
    (IPv4 knows no better one than 0), its two halves. None for a single address that cannot be halved."""
    if effective_metric(route) > metric:
        return [route.destination]
    network = ipaddress.ip_network(route.destination)
    if network.prefixlen == network.max_prefixlen:
        return []
    return [str(half) for half in network.subnets()]
