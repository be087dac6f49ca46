"""Who it was: from the netlink port id in a notification to a process.

The kernel gives a process's first netlink socket the process id as its port id, but only within the process's own pid
namespace, and any later socket gets another number. So the port is looked up in the kernel's table of netlink sockets
(/proc/net/netlink, netlink(7)), and its inode among the descriptors of the processes. A program that ran for a moment
is gone by then: only the port is known of it, which for most is the process id it had.
"""

from __future__ import annotations

import os
from pathlib import Path

TABLE = "/proc/thread-self/net/netlink"
"""Of the namespace of the thread that opens it, for as long as it is open."""
LINKS_READ = 20_000
"""Descriptors looked at for one port, some 40 ms: this happens in the daemon's loop, when somebody fights us."""
REMEMBERED = 64


class Removers:
    """Names the owners of netlink sockets of one network namespace. Needs /proc; without it ports stay numbers."""

    def __init__(self) -> None:
        self._table: int | None = None
        self._known: dict[tuple[int, str], str] = {}

    def open(self) -> None:
        """Bind to this thread's namespace."""
        try:
            self._table = os.open(TABLE, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._table = None

    def close(self) -> None:
        if self._table is not None:
            os.close(self._table)
            self._table = None

    def name(self, port_id: int, protocol: int = 0) -> str:
        """In words: `networkd (pid 412)`, or the port where nobody holds it any more. `protocol` as in socket(2)."""
        inode = self._inode(port_id, protocol)
        if not inode:
            return f"a process that has ended (netlink port {port_id})"
        key = (port_id, inode)
        if key not in self._known:
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            self._known[key] = _owner(port_id, f"socket:[{inode}]")
        return self._known[key] or f"netlink port {port_id}"

    def _inode(self, port_id: int, protocol: int) -> str:
        """Columns: sk, Eth (the protocol), Pid (the port id), Groups, Rmem, Wmem, Dump, Locks, Drops, Inode."""
        if self._table is None:
            return ""
        lines, offset = b"", 0
        while part := os.pread(self._table, 1 << 16, offset):
            lines += part
            offset += len(part)
        for line in lines.decode(errors="replace").splitlines()[1:]:
            columns = line.split()
            if len(columns) >= 10 and columns[1] == str(protocol) and columns[2] == str(port_id):
                return columns[9]
        return ""


def _owner(port_id: int, target: str) -> str:
    """The process that has a descriptor of this socket; the one whose id is the port first, because it mostly is."""
    budget = LINKS_READ
    pids = [str(port_id), *(name for name in os.listdir("/proc") if name.isdigit())]
    for pid in pids:
        folder = f"/proc/{pid}/fd"
        try:
            for name in os.listdir(folder):
                budget -= 1
                if os.readlink(f"{folder}/{name}") == target:
                    name = Path(f"/proc/{pid}/comm").read_bytes().decode(errors="replace").strip()
                    return f"{name} (pid {pid})"
        except OSError:  # it ended meanwhile, or is not ours to look at
            continue
        if budget <= 0:
            break
    return ""
