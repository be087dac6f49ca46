"""Watching the kernel: which uplinks there are, whether they carry, where they lead, and who touches what is ours.

An uplink is a device through which the kernel's own routes to the configured prefixes lead, or one that the
configuration names. What was learnt about its gateways is kept while its carrier is away, because the kernel
forgets the routes then. Notifications are read raw: only headers are parsed for kinds that do not concern us. When
the socket overflows everything is read anew.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from linkpass.core.events import Event, SteeringLost, UplinkGone, UplinkState
from linkpass.edges.kernel.originals import LESS_SPECIFIC, families, originals
from linkpass.edges.kernel.remover import Removers
from linkpass.edges.kernel.routes import ALL, FIRST_ID, LAST_ID, PROTOCOL
from linkpass.edges.kernel.sock import NETLINK_ADD_MEMBERSHIP, SOL_NETLINK, RequestSocket
from linkpass.edges.kernel.speed import speed_bps
from linkpass.edges.kernel.vrf import Vrf, find
from linkpass.wire import rtnl

GROUPS = (
    rtnl.GROUP_LINK,
    rtnl.GROUP_NEIGH,
    rtnl.GROUP_IPV4_ROUTE,
    rtnl.GROUP_IPV6_ROUTE,
    rtnl.GROUP_NEXTHOP,
)
RECEIVE_BYTES = 4 << 20
SETTLE_S = 0.05
"""Route changes come in floods; they are read once when the flood has settled."""
DRAINED_MOST = 100_000
"""Datagrams thrown away after an overflow before everything is read anew, even if more keep coming."""
SO_RCVBUFFORCE = 33


@dataclass(frozen=True, slots=True)
class UplinkInfo:
    """What others need to use an uplink: addresses are text, MAC addresses six bytes or empty while unresolved."""

    name: str
    index: int = 0
    present: bool = False
    up: bool = False
    carrier: bool = False
    mac: bytes = b""
    mtu: int = 0
    gateway4: str = ""
    gateway6: str = ""
    gateway4_mac: bytes = b""
    gateway6_mac: bytes = b""
    speed_bps: int = 0

    @property
    def usable(self) -> bool:
        return self.present and self.up and self.carrier and bool(self.gateway4 or self.gateway6)

    def why(self) -> str:
        """Why it is not usable; empty when it is."""
        if not self.present:
            return "the device is gone"
        if not self.up:
            return "administratively down"
        if not self.carrier:
            return "no carrier"
        return "" if self.gateway4 or self.gateway6 else "no gateway known"


@dataclass(slots=True)
class _Known:
    links: dict[int, rtnl.Link] = field(default_factory=dict)
    neighbours: dict[tuple[int, str], bytes] = field(default_factory=dict)
    unconfirmed: set[tuple[int, str]] = field(default_factory=set)
    """Neighbours whose address is remembered, and wants to be asked for again: stale, failed, or forgotten."""

    def named(self, name: str) -> rtnl.Link | None:
        return next((link for link in self.links.values() if link.name == name), None)


def _owned_by_all(thing: rtnl.Route | rtnl.NextHop) -> tuple[str, ...]:
    if isinstance(thing, rtnl.Route):
        return (ALL,) if thing.protocol == PROTOCOL else ()
    return (ALL,) if FIRST_ID <= thing.id <= LAST_ID else ()


class WatchEdge:
    """Tells of uplinks through `emit` (events for the core) and `on_uplink` (details for the other edges)."""

    def __init__(
        self,
        prefixes: Iterable[str],
        emit: Callable[[Event], None],
        on_uplink: Callable[[UplinkInfo], None],
        *,
        configured: Iterable[UplinkInfo] = (),
        own_port_ids: Callable[[], set[int]] = set,
        owners: Callable[[rtnl.Route | rtnl.NextHop], tuple[str, ...]] = _owned_by_all,
        vrf: str = "",
    ) -> None:
        """`vrf`: the device of the VRF whose routes are watched; empty: the main table's. `owners` says which groups of
        ours a route or a next hop belongs to (RouteEdge.owners)."""
        self._prefixes = [ipaddress.ip_network(prefix) for prefix in prefixes]
        self._emit = emit
        self._on_uplink = on_uplink
        self._configured = tuple(configured)
        self._own_port_ids = own_port_ids
        self._owners = owners
        self._vrf_name, self._vrf = vrf, Vrf()
        self._removers = Removers()
        self._requests = RequestSocket()
        self._socket: socket.socket | None = None
        self._devices: socket.socket | None = None
        self._known = _Known()
        self._uplinks: dict[str, UplinkInfo] = {}
        self._around: set[str] = set()
        """Uplinks of which only a route around the prefixes is known."""
        self._told: dict[str, UplinkInfo] = {}
        self._settling: asyncio.TimerHandle | None = None
        self._unread = False
        self._late: list[UplinkInfo] = []
        self.overflows = 0
        self.on_routes: Callable[[], None] | None = None
        """Called when others' routes have changed, once they have settled."""

    def open(self) -> None:
        """Connect in this thread's namespace, read everything, tell it, and go on listening in the running loop."""
        self._requests.open()
        self._vrf = find(self._requests, self._vrf_name)
        self._removers.open()
        # Any socket stands for its namespace; later calls may come from a thread that is elsewhere.
        self._devices = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        sock = socket.socket(
            socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, socket.NETLINK_ROUTE
        )
        try:
            sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, RECEIVE_BYTES)
        except PermissionError:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
        sock.bind((0, 0))
        for group in GROUPS:
            sock.setsockopt(SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, group)
        self._socket = sock
        self.resync()
        asyncio.get_running_loop().add_reader(sock.fileno(), self._read)

    def close(self) -> None:
        self._late.clear()
        if self._settling is not None:
            self._settling.cancel()
            self._settling = None
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None
        if self._devices is not None:
            self._devices.close()
            self._devices = None
        self._requests.close()
        self._removers.close()

    @property
    def uplinks(self) -> dict[str, UplinkInfo]:
        return dict(self._uplinks)

    def own_address(self, family: int) -> str:
        """The preferred source of the routes to the prefixes: the address that a job's sockets get."""
        for route in self._routes():
            if route.family == family and route.source:
                return route.source
        return ""

    def resync(self) -> None:
        """Read links, neighbours and routes anew and tell what differs."""
        links = (rtnl.parse_link(answer.body) for answer in self._requests.dump(rtnl.RTM_GETLINK))
        self._known.links = {link.index: link for link in links}
        self._discover()
        self._read_neighbours()
        for name in list(self._uplinks):
            self._look(name)

    def resolve_gateways(self) -> None:
        """Make the kernel resolve gateways whose link-layer address is not known, and confirm those which it doubts: a
        gateway may have moved to another machine (VRRP) while nothing was sent to it.

        A refusal does not keep the other gateways from being resolved; the first one is raised at the end."""
        refusal: OSError | None = None
        for info in self._uplinks.values():
            if not info.usable:
                continue
            for gateway, mac in ((info.gateway4, info.gateway4_mac), (info.gateway6, info.gateway6_mac)):
                if gateway and (not mac or (info.index, gateway) in self._known.unconfirmed):
                    body = rtnl.use_neighbour(info.index, gateway)
                    what = f"resolve {gateway} on {info.name}"
                    try:
                        self._requests.change(rtnl.RTM_NEWNEIGH, body, rtnl.F_CREATE | rtnl.F_REPLACE, what)
                    except OSError as error:
                        refusal = refusal or error
        if refusal is not None:
            raise refusal

    # reading

    def _read(self) -> None:
        sock = self._socket
        if sock is None:
            return
        try:
            for _ in range(64):
                for message in rtnl.messages(sock.recv(1 << 17)):
                    self._take(message)
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                raise
            self.overflows += 1
            self._begin_anew()

    def _begin_anew(self) -> None:
        """After an overflow: what is still queued is older than what was dropped, and would undo what is read now."""
        self._drain()
        self._settle(reading_all=True)
        try:
            self.resync()
        except OSError:
            return  # it is tried again when the flood has settled
        self._unread = False

    def _drain(self) -> None:
        """Throw the queue away until it is empty: only then does the kernel take up telling again (netlink(7))."""
        sock, buffer = self._socket, bytearray(1)
        assert sock is not None
        for _ in range(DRAINED_MOST):
            try:
                sock.recv_into(buffer)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise

    def _take(self, message: rtnl.Message) -> None:
        kind = message.kind
        if kind in (rtnl.RTM_NEWLINK, rtnl.RTM_DELLINK):
            link = rtnl.parse_link(message.body)
            if not link.family:
                self._take_link(link, gone=kind == rtnl.RTM_DELLINK)
        elif kind in (rtnl.RTM_NEWNEIGH, rtnl.RTM_DELNEIGH):
            neighbour = rtnl.parse_neighbour(message.body)
            if self._take_neighbour(neighbour, gone=kind == rtnl.RTM_DELNEIGH):
                owner = self._known.links.get(neighbour.index)
                if owner is not None:
                    self._look(owner.name)
        elif message.port_id not in self._own_port_ids():
            if message.port_id:  # 0: the kernel itself: carrier, expiry, a device that went
                self._take_foreign(message)
            self._settle()

    def _take_link(self, link: rtnl.Link, *, gone: bool) -> None:
        before = self._known.links.get(link.index)
        if gone:
            self._known.links.pop(link.index, None)
        else:
            self._known.links[link.index] = link
        if before is not None and before.name != link.name:  # renamed: no device has the old name any more
            self._look(before.name)
        self._look(link.name)

    def _take_neighbour(self, neighbour: rtnl.Neighbour, *, gone: bool) -> bool:
        """Remember a gateway's link-layer address, also when the gateway fails to answer. True on news."""
        if not neighbour.address or not self._is_gateway(neighbour.address):
            return False
        key = (neighbour.index, neighbour.address)
        if neighbour.confirmed and not gone:
            self._known.unconfirmed.discard(key)
        else:
            self._known.unconfirmed.add(key)
        if gone or not neighbour.usable or self._known.neighbours.get(key) == neighbour.mac:
            return False
        self._known.neighbours[key] = neighbour.mac
        return True

    def _is_gateway(self, address: str) -> bool:
        return any(address in (info.gateway4, info.gateway6) for info in self._uplinks.values())

    def _take_foreign(self, message: rtnl.Message) -> None:
        """Somebody else has changed a route or a next hop: was it ours?"""
        kind = message.kind
        if kind in (rtnl.RTM_DELNEXTHOP, rtnl.RTM_NEWNEXTHOP):
            hop = rtnl.parse_next_hop(message.body)
            if not FIRST_ID <= hop.id <= LAST_ID:
                return
            groups = self._owners(hop)
            what = f"next hop {hop.id:#x}" + ("" if kind == rtnl.RTM_DELNEXTHOP else " changed")
        else:
            ours = rtnl.route_protocol(message.body) == PROTOCOL
            if ours != (kind == rtnl.RTM_DELROUTE) or not (ours or message.flags & rtnl.F_REPLACE):
                return
            route = rtnl.parse_route(message.body)
            groups = self._owners(route)
            what = f"route {route.destination}" + ("" if ours else " replaced")
        for group in groups:
            by = self._removers.name(message.port_id)
            self._emit(SteeringLost(what=f"group {group}", by=f"{by} ({what})"))

    def _settle(self, *, reading_all: bool = False) -> None:
        self._unread |= reading_all
        if self._settling is None:
            self._settling = asyncio.get_running_loop().call_later(SETTLE_S, self._settled)

    def _settled(self) -> None:
        self._settling = None
        try:
            if self._unread:
                self.resync()
                self._unread = False
            else:
                if self._discover():  # neighbours that are no gateways are not remembered: these may be known already
                    self._read_neighbours()
                for name in list(self._uplinks):
                    self._look(name)
        except OSError:  # no answer in time, or the dump was refused for want of memory: later
            self._settle()
            return
        if self.on_routes is not None:
            self.on_routes()

    # uplinks

    def _routes(self) -> list[rtnl.Route]:
        found = []
        for family in families(self._prefixes):
            found += self._requests.routes(family, table=self._vrf.table)
        return originals(found, self._prefixes, PROTOCOL)

    def _discover(self) -> bool:
        """Find uplinks and gateways; True when there are new ones. Of several gateways on a device the one of the most
        specific route counts.

        Devices of a route around the prefixes (the default route) are uplinks only as long as nothing better is known:
        it may be that of a management network, in force until the fabric's routes are there."""
        for info in self._configured:
            self._uplinks.setdefault(info.name, info)
        ways = [
            (route, link.name, hop.gateway)
            for route in self._routes()
            for hop in route.hops
            if hop.gateway and (link := self._known.links.get(hop.index)) is not None and not link.loopback
        ]
        proper = {name for route, name, _ in ways if route.metric != LESS_SPECIFIC}
        known = proper | (self._uplinks.keys() - self._around)
        seen: set[tuple[str, int]] = set()
        news = False
        for route, name, gateway in ways:
            if (name, route.family) in seen or (known and name not in known):
                continue
            seen.add((name, route.family))
            before = info = self._uplinks.get(name) or UplinkInfo(name)
            if route.family == rtnl.AF_INET6:
                info = replace(info, gateway6=gateway)
            elif rtnl.family_of(gateway) == rtnl.AF_INET:
                info = replace(info, gateway4=gateway)
            news |= info != before
            self._uplinks[name] = info
        if known:
            for name in self._around - known:
                self._drop(name)
        self._around = set() if known else {name for name, _ in seen} | self._around
        return news

    def _drop(self, name: str) -> None:
        """A device that turned out to be no uplink."""
        info = replace(self._uplinks.pop(name), present=False, up=False, carrier=False)
        self._told.pop(name, None)
        self._emit(UplinkGone(uplink=name))
        self._tell(info)

    def _read_neighbours(self) -> None:
        for answer in self._requests.dump(rtnl.RTM_GETNEIGH):
            self._take_neighbour(rtnl.parse_neighbour(answer.body), gone=False)

    def _look(self, name: str) -> None:
        info = self._uplinks.get(name)
        if info is None:
            return
        link = self._known.named(name)
        if link is None:
            info = replace(info, present=False, up=False, carrier=False)
        else:
            macs = self._known.neighbours
            fresh = info.index != link.index or not info.carrier
            info = replace(
                info,
                index=link.index,
                present=True,
                up=link.up,
                carrier=link.carrier,
                mac=link.mac,
                mtu=link.mtu,
                gateway4_mac=macs.get((link.index, info.gateway4), b""),
                gateway6_mac=macs.get((link.index, info.gateway6), b""),
                speed_bps=speed_bps(self._devices, name) if fresh and link.carrier else info.speed_bps,
            )
        self._uplinks[name] = info
        told = self._told.get(name)
        if told == info:
            return
        self._told[name] = info
        lost = told is not None and told.usable and not info.usable
        if not lost:
            self._tell(info)
        if not info.present and told is not None and told.present:
            self._emit(UplinkGone(uplink=name))
        elif told is None or told.usable != info.usable or told.speed_bps != info.speed_bps:
            self._emit(UplinkState(uplink=name, usable=info.usable, why=info.why(), speed_bps=info.speed_bps))
        if lost:
            self._late.append(info)
            asyncio.get_running_loop().call_soon(self._tell_late)

    def _tell(self, info: UplinkInfo) -> None:
        """Tell the other edges, in the order of events."""
        self._tell_late()
        self._on_uplink(info)

    def _tell_late(self) -> None:
        """What the other edges do about a lost uplink (closing sockets) can wait until the traffic has been moved."""
        while self._late:
            self._on_uplink(self._late.pop(0))
