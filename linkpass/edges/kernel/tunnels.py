"""Entropy tunnels: VXLAN devices of ours with one fixed source port each, and how packets get into and out of them.

A host has one end (`linkpass-in`) that takes out what peers send, and for each uplink some devices that only send. What
a device sends leaves over its uplink whatever the kernel's routes prefer: its forwarding entries name the uplink, and
all of them lead to the peer's one end, so that hosts need not have the same number of tunnels. A mark (`marks.py`)
leads by a rule to a table of two routes: what has been marked finds the tunnel, and what the tunnel sends, which is
looked up for the uplink, overlooks that one and finds the uplink's gateway. So no packet can go around in a circle, and
a limit on the size of the job's packets (`mtu` of its route) is not taken for one of the outer packets.

No device learns, floods or asks: link addresses follow from IPv4 addresses. Without marks nothing goes in; when a
device or its routes are gone, what is marked goes by the main table.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from linkpass.edges.kernel import tunnel_ground as ground
from linkpass.edges.kernel.sock import RequestSocket, refused
from linkpass.edges.kernel.space import Space
from linkpass.edges.kernel.tunnel_ground import END_NAME, NoTunnelsError, Tunnel, TunnelWay, sweep_tunnels
from linkpass.edges.kernel.tunnel_watch import TunnelWatch
from linkpass.wire import nfnl, rtnl
from linkpass.wire import vxlan_links as links
from linkpass.wire.vxlan import OVERHEAD_BYTES, End, mac_of

__all__ = ["END_NAME", "NoTunnelsError", "Tunnel", "TunnelEdge", "TunnelWay", "sweep_tunnels"]

REMADE_MOST = 3
"""How often an end that others have removed is made again."""


class TunnelEdge:
    """Owns devices, rules and tables. Refusals of the kernel raise KernelRefusedError.

    `on_lost` is told when others remove something: the source ports of the tunnels that are broken, and who."""

    def __init__(
        self,
        own: str,
        end: End,
        *,
        first_port: int,
        per_uplink: int,
        on_lost: Callable[[set[int], str], None] | None = None,
    ) -> None:
        """`own`: the address that the job's sockets use; `first_port`: of the source ports."""
        self._own, self._end = own, end
        self._first_port, self._per_uplink = first_port, per_uplink
        self._on_lost = on_lost
        self._socket = RequestSocket()
        self._space = Space()
        self._watch: TunnelWatch | None = None
        self._blocks: dict[str, int] = {}
        self._ways: dict[str, TunnelWay] = {}
        self._packet_bytes = 0
        self._broken = False
        self._end_lost = 0
        self._peers: dict[str, End] = {}
        self.tunnels: dict[int, Tunnel] = {}
        """By source port."""
        self.refused: dict[str, str] = {}
        """Uplinks without tunnels -> why."""
        self.end_index = 0
        """Index of the device that takes packets out; 0: there is none."""

    # life
    def open(self) -> None:
        """Make this host's end in this thread's namespace; one of an earlier run that is as it should be stays, since
        peers may be sending to it. With `on_lost` it goes on listening in the running loop. Raises NoTunnelsError."""
        if ipaddress.ip_address(self._own).version != 4:
            raise NoTunnelsError(f"entropy tunnels are for IPv4, and this host's address is {self._own}")
        self._space.open()
        try:
            self._socket.open()
            ground.refuse_taken(self._socket, self._space, self._end.port)
            self._make_end()
        except OSError as error:
            self.close()
            raise NoTunnelsError(f"entropy tunnels cannot be made here: {error}") from error
        except NoTunnelsError:
            self.close()
            raise
        if self._on_lost is not None:
            self._watch = TunnelWatch(self._socket.port_id, self._owner, self._is_up, self._lost)
            self._watch.open()

    def close(self) -> None:
        """Let go; what lies in the kernel stays (`withdraw`, `sweep`)."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        self._socket.close()
        self._space.close()

    def withdraw(self) -> None:
        """Remove what sends. The end stays, for what is still under way to it, until `sweep`."""
        ground.remove(self._socket, self.tunnels.values())
        self.tunnels.clear()

    def sweep(self) -> list[str]:
        """Remove all devices and rules that carry our marks, whoever left them; what was removed, in words."""
        self.tunnels.clear()
        self.end_index = 0
        return ground.sweep(self._socket)

    # what there should be
    def set_ways(self, ways: Mapping[str, TunnelWay], packet_bytes: int) -> None:
        """Make tunnels over these uplinks, and remove all others. `packet_bytes`: the largest packet that the job may
        send. An uplink that cannot carry it in a tunnel gets none (`refused`): nothing is fragmented or made smaller.

        Raises KernelRefusedError, or NoTunnelsError when a device of ours would take somebody else's name."""
        self._ways, self._packet_bytes = dict(ways), packet_bytes
        self.refused = {}
        wanted: dict[int, Tunnel] = {}
        for uplink in sorted(ways):
            way = ways[uplink]
            if why := self._unfit(uplink, way):
                self.refused[uplink] = why
                continue
            first = self._first_port + self._block(uplink) * self._per_uplink
            if first + self._per_uplink > 0x10000:
                self.refused[uplink] = f"no tunnels over {uplink}: there are no {self._per_uplink} source ports left"
                continue
            wanted.update((port, Tunnel(port, uplink, way)) for port in range(first, first + self._per_uplink))
        same = {port for port, one in self.tunnels.items() if replace(one, index=0) == wanted.get(port)}
        if self._broken or same != wanted.keys() or same != self.tunnels.keys():
            self._make(wanted)
        else:  # the kernel takes the routes over an uplink away when that is set down
            for one in self.tunnels.values():
                ground.open_way(self._socket, one)

    def mend(self) -> bool:
        """Make again what others have removed; whether something was. Raises as `set_ways`."""
        broken = self._broken
        if broken:
            self.set_ways(self._ways, self._packet_bytes)
        return broken

    def mend_end(self) -> str:
        """Make this host's end again if others have removed it; why not, in words."""
        if self.end_index:
            return ""
        if self._end_lost > REMADE_MOST:
            return f"{END_NAME} was removed {self._end_lost} times: peers can send nothing through tunnels any more"
        self._make_end()
        return ""

    def set_peer(self, address: str, end: End | None) -> None:
        """Lead all tunnels to a peer's end; None: it has none any more. Raises KernelRefusedError."""
        before = self._peers.pop(address, None)
        if end is not None:
            self._peers[address] = end
            self._lead(self.tunnels.values(), {address: end})
        elif before is not None:
            changes = [
                (rtnl.RTM_DELNEIGH, body, 0)
                for one in self.tunnels.values()
                for body in self._places(one, address, before)
            ]
            self._socket.change_many(changes)

    @property
    def port_id(self) -> int:
        """The port id that the kernel names in notifications as the author of our changes."""
        return self._socket.port_id

    @property
    def peers(self) -> tuple[str, ...]:
        return tuple(self._peers)

    def reach(self, address: str) -> dict[int, str]:
        """The tunnels to a peer: source port -> uplink."""
        return {port: one.uplink for port, one in self.tunnels.items()} if address in self._peers else {}

    # how it is done
    def _unfit(self, uplink: str, way: TunnelWay) -> str:
        if not way.gateway:
            return f"no tunnels over {uplink}: no IPv4 gateway is known there"
        if not self._packet_bytes:
            return f"no tunnels over {uplink}: no IPv4 route to the prefixes shows how large the job's packets may be"
        room, need = way.mtu - OVERHEAD_BYTES, self._packet_bytes + OVERHEAD_BYTES
        if self._packet_bytes > room:
            return (
                f"no tunnels over {uplink}: its MTU is {way.mtu}, and the job's packets of up to {self._packet_bytes} "
                f"bytes would need {need}: raise it there and in the fabric, or give the job's routes an mtu of {room}"
            )
        return ""

    def _block(self, uplink: str) -> int:
        """Which block of source ports is an uplink's: its own for good, so that others' coming moves nothing."""
        if uplink not in self._blocks:
            taken = set(self._blocks.values())
            self._blocks[uplink] = next(number for number in range(len(taken) + 1) if number not in taken)
        return self._blocks[uplink]

    def _make_end(self) -> None:
        wanted = links.Vxlan(END_NAME, self._end.vni, self._end.port, local=self._own, mac=self._mac)
        self.end_index = ground.make_devices(self._socket, self._space, [wanted])[END_NAME]

    @property
    def _mac(self) -> bytes:
        return mac_of(socket.inet_aton(self._own))

    def _make(self, wanted: dict[int, Tunnel]) -> None:
        stale = [one for port, one in self.tunnels.items() if replace(one, index=0) != wanted.get(port)]
        ground.remove(self._socket, stale)
        names = {one.name for one in wanted.values()} | {END_NAME}
        for device in ground.devices(self._socket):  # of an earlier run with another configuration
            if device.name not in names:
                self._socket.change_many([(rtnl.RTM_DELLINK, links.delete_link(device.index), 0)])
        for rule in ground.rules(self._socket):
            if rule.mark & 0xFFFF not in wanted:
                self._socket.change_many([ground.removal(rule)])
        devices = [
            links.Vxlan(
                one.name, self._end.vni + 1 + port - self._first_port, self._end.port, (port, port + 1), self._own,
                self._mac, one.way.mtu - OVERHEAD_BYTES,
            )
            for port, one in wanted.items()
        ]  # fmt: skip
        index = ground.make_devices(self._socket, self._space, devices)
        self.tunnels = {port: replace(one, index=index[one.name]) for port, one in wanted.items()}
        for one in self.tunnels.values():
            ground.open_way(self._socket, one)
        self._lead(self.tunnels.values(), self._peers)
        self._broken = False

    def _lead(self, tunnels: Iterable[Tunnel], peers: Mapping[str, End]) -> None:
        put = rtnl.F_CREATE | rtnl.F_REPLACE
        changes = [
            (rtnl.RTM_NEWNEIGH, body, put)
            for one in tunnels
            for address, end in peers.items()
            for body in self._places(one, address, end)
        ]
        for error, sentence in self._socket.change_many(changes):
            if error:
                raise refused(error, "where tunnels lead", sentence)

    @staticmethod
    def _places(one: Tunnel, address: str, end: End) -> tuple[bytes, bytes]:
        """A peer's neighbour and forwarding entry on a device."""
        mac = mac_of(socket.inet_aton(address))
        where = links.forwarding(one.index, mac, address, port=end.port, vni=end.vni, over=one.way.device)
        return links.neighbour(one.index, address, mac), where

    # others' hands
    def _owner(self, index: int, mark: int) -> int | None:
        """The source port of the tunnel that a device (or a mark and table) is of; 0: of the end; None: of none."""
        if index and index == self.end_index:
            return 0
        if mark:
            return mark & 0xFFFF if mark >> 16 == nfnl.MARK >> 16 and mark & 0xFFFF in self.tunnels else None
        return next((port for port, one in self.tunnels.items() if index == one.index), None)

    def _is_up(self, index: int) -> bool:
        return any(one.index == index and one.up for one in ground.devices(self._socket))

    def _lost(self, ports: set[int], by: str) -> None:
        if 0 in ports:
            self.end_index = 0
            self._end_lost += 1
        self._broken |= bool(ports - {0})
        if self._on_lost is not None:
            self._on_lost(ports, by)
