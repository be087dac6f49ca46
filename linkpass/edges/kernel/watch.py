"""Watching the kernel: which uplinks there are, whether they carry, where they lead, and who touches what is ours.

An uplink is a device through which the kernel's own routes to the configured prefixes lead, or one that the
configuration names. What was learnt about its gateways is kept while its carrier is away, because the kernel
forgets the routes then. Notifications are read raw: only headers are parsed for kinds that do not concern us. When
the socket overflows everything is read anew.
"""

from __future__ import annotations

import array
import asyncio
import errno
import fcntl
import ipaddress
import socket
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from linkpass.core.events import Event, SteeringLost, UplinkGone, UplinkState
from linkpass.edges.kernel.routes import ALL, FIRST_ID, LAST_ID, PROTOCOL
from linkpass.edges.kernel.sock import NETLINK_ADD_MEMBERSHIP, SOL_NETLINK, RequestSocket
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
    ) -> None:
        self._prefixes = [ipaddress.ip_network(prefix) for prefix in prefixes]
        self._emit = emit
        self._on_uplink = on_uplink
        self._configured = tuple(configured)
        self._own_port_ids = own_port_ids
        self._requests = RequestSocket()
        self._socket: socket.socket | None = None
        self._devices: socket.socket | None = None
        self._known = _Known()
        self._uplinks: dict[str, UplinkInfo] = {}
        self._told: dict[str, UplinkInfo] = {}
        self._settling: asyncio.TimerHandle | None = None
        self.overflows = 0
        self.on_routes: Callable[[], None] | None = None
        """Called when others' routes have changed, once they have settled."""

    def open(self) -> None:
        """Connect in this thread's namespace, read everything, tell it, and go on listening in the running loop."""
        self._requests.open()
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
        self._known.links = {
            link.index: link
            for link in (rtnl.parse_link(answer.body) for answer in self._requests.dump(rtnl.RTM_GETLINK))
        }
        self._known.neighbours = {}
        for answer in self._requests.dump(rtnl.RTM_GETNEIGH):
            self._take_neighbour(rtnl.parse_neighbour(answer.body))
        self._discover()
        for name in list(self._uplinks):
            self._look(name)

    def resolve_gateways(self) -> None:
        """Make the kernel resolve gateways whose link-layer address is not known."""
        for info in self._uplinks.values():
            if not info.usable:
                continue
            for gateway, mac in ((info.gateway4, info.gateway4_mac), (info.gateway6, info.gateway6_mac)):
                if gateway and not mac:
                    body = rtnl.use_neighbour(info.index, gateway)
                    self._requests.change(rtnl.RTM_NEWNEIGH, body, rtnl.F_CREATE | rtnl.F_REPLACE, "resolve a gateway")

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
            self.resync()

    def _take(self, message: rtnl.Message) -> None:
        kind = message.kind
        if kind in (rtnl.RTM_NEWLINK, rtnl.RTM_DELLINK):
            link = rtnl.parse_link(message.body)
            if kind == rtnl.RTM_NEWLINK:
                self._known.links[link.index] = link
            else:
                self._known.links.pop(link.index, None)
            self._look(link.name)
        elif kind in (rtnl.RTM_NEWNEIGH, rtnl.RTM_DELNEIGH):
            neighbour = rtnl.parse_neighbour(message.body)
            if kind == rtnl.RTM_NEWNEIGH and self._take_neighbour(neighbour):
                owner = self._known.links.get(neighbour.index)
                if owner is not None:
                    self._look(owner.name)
        elif message.port_id not in self._own_port_ids():
            if kind == rtnl.RTM_DELROUTE and rtnl.parse_route(message.body).protocol == PROTOCOL:
                self._lost(message, f"route {rtnl.parse_route(message.body).destination}")
            elif kind == rtnl.RTM_DELNEXTHOP and FIRST_ID <= rtnl.parse_next_hop(message.body).id <= LAST_ID:
                self._lost(message, "next hop")
            self._settle()

    def _take_neighbour(self, neighbour: rtnl.Neighbour) -> bool:
        """Remember a resolved neighbour; one that fails to answer keeps its last known address. True on news."""
        key = (neighbour.index, neighbour.address)
        if not neighbour.usable or self._known.neighbours.get(key) == neighbour.mac:
            return False
        self._known.neighbours[key] = neighbour.mac
        return True

    def _lost(self, message: rtnl.Message, what: str) -> None:
        if message.port_id == 0:  # the kernel itself: carrier, expiry, a device that went
            return
        self._emit(SteeringLost(what=f"group {ALL}", by=f"{_process(message.port_id)} ({what})"))

    def _settle(self) -> None:
        if self._settling is None:
            self._settling = asyncio.get_running_loop().call_later(SETTLE_S, self._settled)

    def _settled(self) -> None:
        self._settling = None
        self._discover()
        for name in list(self._uplinks):
            self._look(name)
        if self.on_routes is not None:
            self.on_routes()

    # uplinks

    def _routes(self) -> list[rtnl.Route]:
        found = []
        for answer in self._requests.dump(rtnl.RTM_GETROUTE):
            route = rtnl.parse_route(answer.body)
            if route.protocol == PROTOCOL or route.kind != rtnl.TYPE_UNICAST or route.table != rtnl.TABLE_MAIN:
                continue
            network = ipaddress.ip_network(route.destination)
            if any(network.version == p.version and network.overlaps(p) for p in self._prefixes):
                found.append(route)
        return sorted(found, key=lambda route: -ipaddress.ip_network(route.destination).prefixlen)

    def _discover(self) -> None:
        for info in self._configured:
            self._uplinks.setdefault(info.name, info)
        for route in self._routes():
            for hop in route.hops:
                link = self._known.links.get(hop.index)
                if link is None or not hop.gateway or link.loopback:
                    continue
                info = self._uplinks.get(link.name) or UplinkInfo(link.name)
                if route.family == rtnl.AF_INET6:
                    info = replace(info, gateway6=hop.gateway)
                else:
                    info = replace(info, gateway4=hop.gateway)
                self._uplinks[link.name] = info

    def _look(self, name: str) -> None:
        info = self._uplinks.get(name)
        if info is None:
            return
        link = next((link for link in self._known.links.values() if link.name == name), None)
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
                speed_bps=_speed_bps(self._devices, name) if fresh and link.carrier else info.speed_bps,
            )
        self._uplinks[name] = info
        told = self._told.get(name)
        if told == info:
            return
        self._told[name] = info
        if not info.present and told is not None and told.present:
            self._emit(UplinkGone(uplink=name))
        elif told is None or told.usable != info.usable or told.speed_bps != info.speed_bps:
            self._emit(UplinkState(uplink=name, usable=info.usable, why=info.why(), speed_bps=info.speed_bps))
        self._on_uplink(info)


def _process(port_id: int) -> str:
    """Whose netlink socket this is, as far as can be known: a program's first socket has its process id as port id."""
    try:
        return f"{Path(f'/proc/{port_id}/comm').read_text().strip()} (pid {port_id})"
    except OSError:
        return f"netlink port {port_id}"


def _speed_bps(devices: socket.socket | None, name: str) -> int:
    """Nominal speed by ethtool's old request (ETHTOOL_GSET, SIOCETHTOOL), 0 where the driver does not say."""
    if devices is None:
        return 0
    command = array.array("B", struct.pack("=I40x", 0x1))
    address, _ = command.buffer_info()
    try:
        fcntl.ioctl(devices.fileno(), 0x8946, struct.pack("16sP", name.encode(), address))
    except OSError:
        return 0
    (low,) = struct.unpack_from("=H", command, 12)
    (high,) = struct.unpack_from("=H", command, 28)
    mbps: int = (high << 16) | low
    return 0 if mbps in (0xFFFF, 0xFFFFFFFF) else mbps * 1_000_000
