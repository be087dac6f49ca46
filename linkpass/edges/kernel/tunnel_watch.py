"""Notices that somebody else has touched our tunnels: their devices, rules, routes, or where they lead.

Only removals, and devices set down, are told. What the kernel does itself follows from one of those, or from the loss
of an uplink, which is told elsewhere. Forwarding entries are not looked after: probes go by them.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable

from linkpass.edges.kernel.remover import Removers
from linkpass.edges.kernel.routes import PROTOCOL
from linkpass.edges.kernel.sock import NETLINK_ADD_MEMBERSHIP, SOL_NETLINK
from linkpass.wire import rtnl
from linkpass.wire import vxlan_links as links

GROUPS = (rtnl.GROUP_LINK, rtnl.GROUP_NEIGH, rtnl.GROUP_IPV4_ROUTE, links.GROUP_IPV4_RULE)
READS_AT_ONCE = 64


class TunnelWatch:
    """`owner(index, mark)`: the tunnel that a device, or a mark or table, belongs to; None: it is not ours. `lost` is
    told the tunnels of one removal, and who it was."""

    def __init__(
        self,
        own_port_id: int,
        owner: Callable[[int, int], int | None],
        is_up: Callable[[int], bool],
        lost: Callable[[set[int], str], None],
    ) -> None:
        """`is_up`: whether a device is, by its index, now: what is told of a device as it is made is old by then."""
        self._own_port_id, self._owner, self._is_up, self._lost = own_port_id, owner, is_up, lost
        self._socket: socket.socket | None = None
        self._removers = Removers()

    def open(self) -> None:
        """Listen in this thread's namespace, in the running loop."""
        kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        sock = socket.socket(socket.AF_NETLINK, kind, socket.NETLINK_ROUTE)
        sock.bind((0, 0))
        for group in GROUPS:
            sock.setsockopt(SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, group)
        self._socket = sock
        self._removers.open()
        asyncio.get_running_loop().add_reader(sock.fileno(), self._read)

    def close(self) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None
        self._removers.close()

    def _read(self) -> None:
        lost: set[int] = set()
        who = 0
        try:
            for _ in range(READS_AT_ONCE):
                if self._socket is None:
                    break
                for message in rtnl.messages(self._socket.recv(1 << 17)):
                    port = self._of(message) if message.port_id != self._own_port_id else None
                    if port is not None:
                        lost.add(port)
                        who = who or message.port_id
        except BlockingIOError:
            pass
        except OSError as error:
            if error.errno != errno.ENOBUFS:  # what was missed is put right by nobody but the next look
                raise
        if lost:
            self._lost(lost, f"{self._removers.name(who) if who else 'somebody'} (tunnels)")

    def _of(self, message: rtnl.Message) -> int | None:
        kind, body = message.kind, message.body
        if kind in (rtnl.RTM_DELLINK, rtnl.RTM_NEWLINK):
            link = rtnl.parse_link(body)
            if link.family or (kind == rtnl.RTM_NEWLINK and link.up):
                return None
            port = self._owner(link.index, 0)
            return None if port is None or self._is_up(link.index) else port
        if not message.port_id:
            return None
        if kind == rtnl.RTM_NEWNEIGH:  # a permanent neighbour fails first, by its remover, then goes, by nobody
            neighbour = rtnl.parse_neighbour(body)
            return None if neighbour.usable or not neighbour.address else self._owner(neighbour.index, 0)
        if kind == rtnl.RTM_DELROUTE and rtnl.route_protocol(body) == PROTOCOL:
            return self._owner(0, rtnl.parse_route(body).table)
        if kind == links.RTM_DELRULE and (rule := links.parse_rule(body)) is not None:
            return self._owner(0, rule.mark)
        return None
