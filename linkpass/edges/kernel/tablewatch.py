"""Notices that somebody else has touched our nftables table.

The kernel tells of every change (NFNLGRP_NFTABLES), and after each transaction who made it (NFT_MSG_NEWGEN). What we do
ourselves is many messages and is turned away before it reaches us, by the port id."""

from __future__ import annotations

import asyncio
import errno
import socket
import sys
from collections.abc import Callable

from linkpass.edges.kernel.sock import NETLINK_ADD_MEMBERSHIP, SOL_NETLINK
from linkpass.wire import bpf, nfnl, rtnl

NETLINK_NETFILTER = 12
SO_RCVBUFFORCE = 33
RECEIVE_BYTES = 4 << 20
READS_AT_ONCE = 64

Lost = Callable[[set[str] | None, str], None]
"""(the peers whose elements went, or None: the table cannot work any more; who)"""


class TableWatch:
    """`lost` is told what others remove; `unsure` when messages were dropped and anything may have happened."""

    def __init__(
        self, table: str, own_port_id: int, lost: Lost, unsure: Callable[[], None], family: int = nfnl.FAMILY_IPV6
    ) -> None:
        self._table, self._family = table, family
        self._own_port_id = own_port_id
        self._lost = lost
        self._unsure = unsure
        self._socket: socket.socket | None = None
        self._peers: set[str] = set()
        self._broken = ""

    def open(self) -> None:
        """Listen in this thread's namespace, in the running loop."""
        sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, NETLINK_NETFILTER)
        sock.setblocking(False)
        try:
            sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, RECEIVE_BYTES)
        except PermissionError:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
        # A filter loads in network order, the kernel writes the port id (offset 12 of the header) in the host's.
        port = int.from_bytes(self._own_port_id.to_bytes(4, sys.byteorder), "big")
        program = bpf.assemble([(0x20, 0, 0, 12), (0x15, 0, 1, port), (0x06, 0, 0, 0), (0x06, 0, 0, 0xFFFFFFFF)])
        keep = bpf.Filter(program)
        sock.setsockopt(socket.SOL_SOCKET, bpf.SO_ATTACH_FILTER, keep.fprog)
        sock.bind((0, 0))
        sock.setsockopt(SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, nfnl.GROUP_NFTABLES)
        self._socket = sock
        asyncio.get_running_loop().add_reader(sock.fileno(), self.read)

    def close(self) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None

    def discard(self) -> None:
        """What is queued is about a table that has just been made anew."""
        self._peers.clear()
        self._broken = ""
        while self._socket is not None:
            try:
                self._socket.recv(1)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise

    def read(self) -> None:
        """Take what has been told by now."""
        try:
            for _ in range(READS_AT_ONCE):
                if self._socket is None:
                    return
                for message in rtnl.messages(self._socket.recv(1 << 17)):
                    self._take(message)
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                raise
            self.discard()
            self._unsure()

    def _take(self, message: rtnl.Message) -> None:
        if (author := nfnl.parse_author(message)) is not None:
            self._tell(f"{author.name} (pid {author.pid})")
            return
        removal = nfnl.parse_removal(message, self._family)
        if removal is None or removal.table != self._table:
            return
        if removal.what == "element":
            self._peers.add(removal.peer)
        else:
            self._broken = removal.what

    def _tell(self, by: str) -> None:
        """A transaction is complete."""
        peers, broken = self._peers, self._broken
        self._peers, self._broken = set(), ""
        if broken:
            self._lost(None, f"{by} ({broken})")
        elif peers:
            self._lost(peers, f"{by} (map)")
