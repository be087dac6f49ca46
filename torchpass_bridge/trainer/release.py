"""How somebody who waits in a collective that cannot end is let go.

NCCL has an abort. Gloo has none: none of its calls lets a thread go that waits in a collective (measured). What does is
to shut the connections of the group down: the collective fails at once with "connection closed". Only those are touched
that belong to the group: one end of each is a listening socket of a member, and those addresses are known. A listening
one is never shut down, for that ends the process.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

Address = tuple[str, int]


def listening(told: list[bytes]) -> Address | None:
    """The listening socket of this process whose port is found in what Gloo told the other members."""
    for sock in _sockets():
        if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            host, port = sock.getsockname()[:2]
            if any(socket.AF_INET.to_bytes(2, "little") + port.to_bytes(2, "big") in data for data in told) or any(
                socket.AF_INET6.to_bytes(2, "little") + port.to_bytes(2, "big") in data for data in told
            ):
                return str(host), int(port)
    return None


class Connections:
    """Those of one Gloo group. `mine`: where this member listens, `others`: where the others do."""

    def __init__(self, mine: Address, others: list[Address]) -> None:
        self.mine, self.others = mine, frozenset(others)

    def count(self) -> int:
        """Those that stand. Gloo closes one when its other end is gone, as soon as it notices."""
        return sum(1 for _ in self._of_the_group())

    def shut(self) -> int:
        """Shuts them all down; how many there were."""
        shut = 0
        for sock in self._of_the_group():
            try:
                sock.shutdown(socket.SHUT_RDWR)
                shut += 1
            except OSError:
                pass  # closed by the other end in this moment
        return shut

    def _of_the_group(self) -> Iterator[socket.socket]:
        for sock in _sockets():
            try:
                here, there = sock.getsockname()[:2], sock.getpeername()[:2]
            except OSError:
                continue  # listening, or not connected any more
            if here == self.mine or there in self.others:
                yield sock


def _sockets() -> Iterator[socket.socket]:
    """Copies of this process's stream sockets, each one once; a copy is closed when the next one is asked for.

    A copy stays what it is, even if the number of the original goes to another file meanwhile. Another thread that
    looks has copies, too, which are gone in a moment: a socket is known by its inode."""
    seen = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            sock = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue
        with sock:
            inode = os.fstat(sock.fileno()).st_ino
            if inode in seen:
                continue
            seen.add(inode)
            if sock.type == socket.SOCK_STREAM and sock.family in (socket.AF_INET, socket.AF_INET6):
                yield sock
