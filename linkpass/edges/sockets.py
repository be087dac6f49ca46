"""The kernel's socket table: which peers this host talks to now, and whether its data to them still advances.

Read with one dump of the established TCP connections to the configured prefixes; most of what it costs (some 0.3 ms
with the kernel's 262,144 hash buckets) is the kernel's walk through the table.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import ipaddress
import os
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Literal

import msgspec

from linkpass.core.events import Event, PeerData, PeersActive
from linkpass.wire import diag

ANSWER_S = 1.0
"""The kernel answers within the send; a longer silence is a fault, not a reason to stop the daemon for good."""
RECEIVE_BYTES = 1 << 18
OPENING_SYN_BYTES = 1
TRIED = 2
"""Retransmissions in a row without an acknowledgement: one may be chance."""
Stands = Literal["", "shut", "unacked"]
NOT_KNOWN: Stands = ""
_CLONE_NEWNET = 0x40000000


class NoSocketTableError(OSError):
    """The kernel does not show its TCP connections (no INET_DIAG, or it refuses)."""


class FlowKey(msgspec.Struct, frozen=True):
    """A live TCP connection of the job. The kernel's socket table has no flow labels: `label` 0 says unknown."""

    src: str
    sport: int
    dst: str
    dport: int
    label: int = 0


class Namespace(msgspec.Struct, frozen=True):
    """A network namespace in which TCP connections to other hosts are established.

    `connections` is None when it cannot be entered; `why` says why. `here`: it is this thread's own."""

    name: str
    """Below /run/netns, or `pid:N` of its oldest process."""
    inode: int
    connections: int | None
    pids: tuple[int, ...]
    here: bool = False
    why: str = ""


class _Table:
    """One sock_diag socket; it stays in the namespace of the thread that opens it."""

    def __init__(self) -> None:
        try:
            kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC
            self._socket = socket.socket(socket.AF_NETLINK, kind, diag.NETLINK_SOCK_DIAG)
        except OSError as error:
            raise NoSocketTableError(error.errno, f"socket table: {error.strerror}") from error
        self._socket.settimeout(ANSWER_S)
        self._seq = 0

    def close(self) -> None:
        self._socket.close()

    def established(self, prefixes: Iterable[str] = ()) -> list[diag.Connection]:
        """Raises NoSocketTableError."""
        self._seq += 1
        answers = diag.Dump(self._seq)
        try:
            self._socket.send(diag.request(self._seq, prefixes))
            while not answers.done:
                answers.feed(self._socket.recv(RECEIVE_BYTES))
        except OSError as error:  # a timeout, too
            text = error.strerror or str(error)
            if error.errno == errno.ENOENT:
                text = "the kernel has no INET_DIAG (module tcp_diag)"
            self._drain()
            raise NoSocketTableError(error.errno, f"socket table: {text}") from error
        return answers.connections

    def _drain(self) -> None:
        """Read what is left of a dump that failed: until then the kernel begins no other on this socket."""
        self._socket.settimeout(0)
        try:
            while self._socket.recv(RECEIVE_BYTES):
                pass
        except OSError:
            pass
        finally:
            self._socket.settimeout(ANSWER_S)


class SocketEdge:
    """Watches the connections of this network namespace to peers: remote address inside `prefixes`, not `own_address`.

    `poll` emits PeersActive when the set changes and PeerData when a peer's data starts or stops to advance (bytes
    acknowledged by it or received from it, since the last poll); `on_data(peer, grown_bytes)` is called for each peer
    whose growth is known. What a connection did before it was first polled by a fresh edge counts for nothing."""

    def __init__(
        self,
        emit: Callable[[Event], None],
        prefixes: Iterable[str],
        own_address: str,
        on_data: Callable[[str, int], None],
    ) -> None:
        self._emit, self._on_data = emit, on_data
        self._prefixes = tuple(prefixes)
        self._own = own_address
        self._table: _Table | None = None
        self._connections: tuple[diag.Connection, ...] = ()
        self._bytes: dict[int, int] | None = None
        self._active: tuple[str, ...] = ()
        self._flows: dict[str, tuple[bool, Stands]] = {}
        self.polled_s: float | None = None
        """When the table was last read."""
        self.errors = 0
        self.last_error = ""

    def open(self) -> None:
        """Open in this thread's network namespace. Raises NoSocketTableError when the kernel shows no connections."""
        table = _Table()
        try:
            table.established(self._prefixes)
        except NoSocketTableError:
            table.close()
            raise
        self._table = table

    def close(self) -> None:
        if self._table is not None:
            self._table.close()
            self._table = None

    def poll(self, now_s: float, also: Mapping[str, bool] | None = None) -> None:
        """Read the table. A read that fails is counted, and what was known stays.

        `also`: peers to which data flows past the kernel's sockets, and whether it has advanced since the last poll."""
        also = self._inside(also or {})
        if self._table is None or not self._prefixes:
            return
        try:
            found = self._table.established(self._prefixes)
        except NoSocketTableError as error:
            self.errors += 1
            self.last_error = str(error)
            return
        self.polled_s = now_s
        # A socket that nobody holds any more (inode 0) is the kernel's to finish, not a connection of the job.
        self._connections = tuple(c for c in found if c.dst != self._own and c.inode)
        active = tuple(sorted({c.dst for c in self._connections} | also.keys()))
        for peer in self._flows.keys() - set(active):
            del self._flows[peer]  # the core forgets it, too
        if active != self._active:
            self._active = active
            self._emit(PeersActive(peers=active))
        self._tell_growth(also)

    def _inside(self, peers: Mapping[str, bool]) -> dict[str, bool]:
        """Those of the configured prefixes."""
        networks = [ipaddress.ip_network(prefix) for prefix in self._prefixes]
        return {
            peer: advanced
            for peer, advanced in peers.items()
            if peer != self._own and any(ipaddress.ip_address(peer) in network for network in networks)
        }

    def flows(self, peer: str) -> tuple[FlowKey, ...]:
        """The peer's connections at the last poll."""
        return tuple(FlowKey(c.src, c.sport, c.dst, c.dport) for c in self._connections if c.dst == peer)

    def sockets(self) -> dict[int, int]:
        """Inode -> cookie (SO_COOKIE) of the connections at the last poll."""
        return {c.inode: c.cookie for c in self._connections}

    def connections(self) -> tuple[diag.Connection, ...]:
        """All of the last poll, with their counters."""
        return self._connections

    def _tell_growth(self, also: Mapping[str, bool]) -> None:
        before, self._bytes = self._bytes, {c.cookie: c.acked_bytes + c.received_bytes for c in self._connections}
        if before is None:
            return  # how much of their lives' bytes is recent is not known
        grown = {peer: int(advanced) for peer, advanced in also.items()}
        for c in self._connections:
            growth = self._bytes[c.cookie] - before.get(c.cookie, min(c.acked_bytes, OPENING_SYN_BYTES))
            grown[c.dst] = grown.get(c.dst, 0) + growth
        for peer, grown_bytes in grown.items():
            self._on_data(peer, grown_bytes)
            now = (True, NOT_KNOWN) if grown_bytes > 0 else (False, self._stands(peer))
            if self._flows.get(peer) != now:
                self._flows[peer] = now
                self._emit(PeerData(peer=peer, flows=now[0], stands=now[1]))

    def _stands(self, peer: str) -> Stands:
        """How data to a peer stands: a shut window says that its kernel lives and nobody reads, and counts first."""
        of_peer = [c for c in self._connections if c.dst == peer]
        if any(c.timer == diag.PERSIST for c in of_peer):
            return "shut"
        return "unacked" if any(c.timer == diag.RETRANSMIT and c.tries >= TRIED for c in of_peer) else NOT_KNOWN


def namespaces(proc: Path = Path("/proc"), named: Path = Path("/run/netns")) -> list[Namespace]:
    """The network namespaces that this process may see (by their processes, or by name) and in which TCP connections
    to other hosts are established, and those that it may not enter; this one first, then by name.

    Costs some milliseconds for each hundred processes and namespaces. Enters namespaces in a thread of its own that
    ends with it, so that no other code ever runs inside one."""
    here = os.stat(proc / "thread-self/ns/net").st_ino
    pids: dict[int, list[int]] = {}
    for pid in sorted(int(entry.name) for entry in os.scandir(proc) if entry.name.isdigit()):
        try:
            pids.setdefault(os.stat(proc / str(pid) / "ns/net").st_ino, []).append(pid)
        except OSError:
            continue  # it has ended, or is not ours to look at
    names = {inode: f"pid:{owners[0]}" for inode, owners in pids.items()}
    paths = {inode: proc / str(owners[0]) / "ns/net" for inode, owners in pids.items()}
    device = os.stat(proc / "thread-self/ns/net").st_dev
    for path in sorted(named.iterdir()) if named.is_dir() else ():
        try:
            status = path.stat()
        except OSError:
            continue
        if status.st_dev == device:  # a name whose mount is gone is an ordinary file
            names[status.st_ino], paths[status.st_ino] = path.name, path
    found = []
    for inode, (connections, why) in _count_in(paths, here).items():
        if connections or why:
            owners = tuple(pids.get(inode, ()))
            found.append(Namespace(names[inode], inode, connections, owners, here=inode == here, why=why))
    return sorted(found, key=lambda space: (not space.here, space.name))


def _count_in(paths: dict[int, Path], here: int) -> dict[int, tuple[int | None, str]]:
    """Connections to other hosts in each namespace, or None and the reason."""
    counts: dict[int, tuple[int | None, str]] = {}
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)

    def visit() -> None:
        # A real-time thread must not wait for one that the job keeps from running.
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, policy, parameters)
        for inode, path in paths.items():
            try:
                if inode != here:
                    _enter(path, inode)
                table = _Table()
            except OSError as error:
                counts[inode] = None, error.strerror or str(error)
                continue
            try:
                counts[inode] = sum(not _stays(c) for c in table.established()), ""
            except OSError as error:
                counts[inode] = None, error.strerror or str(error)
            finally:
                table.close()

    # the own namespace first: the thread starts there and does not come back
    paths = dict(sorted(paths.items(), key=lambda item: item[0] != here))
    thread = threading.Thread(target=visit, name="namespaces")
    thread.start()
    thread.join()
    return counts


def _enter(path: Path, inode: int) -> None:
    """Move the calling thread into the namespace. Raises OSError, also when the path leads to another one by now."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if os.fstat(fd).st_ino != inode:
            raise OSError(errno.ESTALE, "the process has ended")
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(fd, _CLONE_NEWNET):
            number = ctypes.get_errno()
            reason = "needs root (CAP_SYS_ADMIN) to enter" if number == errno.EPERM else os.strerror(number)
            raise OSError(number, reason)
    finally:
        os.close(fd)


def _stays(connection: diag.Connection) -> bool:
    """Within the host itself: never on a wire."""
    return connection.src == connection.dst or ipaddress.ip_address(connection.dst).is_loopback
