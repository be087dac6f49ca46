"""The retransmission timers of the job's own sockets, tuned from outside the job and put back (opt-in).

A socket is borrowed from its owner (pidfd_open(2), pidfd_getfd(2)), its options are read and set, and it is closed
again before this returns: a descriptor held for longer would keep a dead job's connection alive. Which socket it is
says its inode and its cookie (SO_COOKIE), which no other socket has while the machine runs; the old values are in the
undo journal before they are changed. Options: TCP_RTO_MAX_MS and TCP_RTO_MIN_US (include/uapi/linux/tcp.h, Linux 6.15).

The descriptors are handled raw: Python's socket object may change the O_NONBLOCK flag that the job shares with us.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Protocol

import msgspec

KIND = "tcp_timers"
"""Of our entries in the undo journal."""
TCP_RTO_MAX_MS = 44
TCP_RTO_MIN_US = 45
SEARCH_S = 0.004
"""How long one poll may look for owners; the rest is looked through by the next ones."""
MOST_RTO_MIN_US = 200_000
"""The kernel's own least timeout."""
_SO_COOKIE = 57
_SYS_PIDFD_GETFD = 438
_NAMES = {TCP_RTO_MIN_US: "TCP_RTO_MIN_US", TCP_RTO_MAX_MS: "TCP_RTO_MAX_MS"}

Plain = Mapping[str, int | str]


class Undo(Protocol):
    """What is needed of the undo journal."""

    def note(self, kind: str, changes: Sequence[Plain], *, sync: bool = True) -> list[int]: ...

    def done(self, numbers: Sequence[int]) -> None: ...

    def pending(self, kind: str) -> dict[int, Plain]: ...


class Summary(msgspec.Struct, frozen=True):
    """`tuned`: sockets whose timers are ours now; `refused`: those that could not be had; `why`: the newest reason."""

    tuned: int
    refused: int
    why: str = ""


class Holder(msgspec.Struct, frozen=True):
    """Where a socket was found."""

    pid: int
    started: int
    """Start time of the process, clock ticks after boot (`/proc/PID/stat`, field 22)."""
    fd: int


class _Tuned(msgspec.Struct):
    holder: Holder
    numbers: list[int]


class _Space(msgspec.Struct):
    """The sockets of one network namespace, by inode."""

    tuned: dict[int, _Tuned] = {}
    refused: dict[int, str] = {}
    search: Iterator[tuple[int, Holder] | None] | None = None
    sought: set[int] = set()
    """Those that were wanted when the search began: what it does not find of them has no owner."""


class LostError(OSError):
    """The process, its descriptor or the socket is no longer the one that was meant."""


class TcpTimerEdge:
    """Sets the least and the greatest retransmission timeout of sockets whose own are longer; shorter ones stay."""

    def __init__(self, undo: Undo, rto_min_us: int, rto_max_ms: int) -> None:
        self._undo = undo
        self._asked = {TCP_RTO_MIN_US: rto_min_us, TCP_RTO_MAX_MS: rto_max_ms}
        self._wanted: dict[int, int] = {}
        """Option -> the value that the kernel makes of what was asked for (it knows whole ticks, at least two)."""
        self._spaces: dict[str, _Space] = {}
        self._why = ""

    def open(self) -> None:
        """Find out what this kernel can do, on a socket of our own. What it cannot do is said by `summary`."""
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as own:
            for option, value in self._asked.items():
                try:
                    self._wanted[option] = _least(own.fileno(), option, value)
                except OSError as error:
                    self._why = f"{_NAMES[option]} {value}: {error.strerror}"
                    if error.errno in (errno.ENOPROTOOPT, errno.EOPNOTSUPP):
                        self._why = f"this kernel has no {_NAMES[option]} (Linux 6.15): set routes.rto_min_ms instead"

    def close(self) -> None:
        """Put the timers back that this edge has tuned. What cannot be put back stays in the undo journal."""
        pending = self._undo.pending(KIND)
        tuned = [tuned for space in self._spaces.values() for tuned in space.tuned.values()]
        self._restore({number: pending[number] for one in tuned for number in one.numbers if number in pending})
        self._spaces.clear()

    def summary(self) -> Summary:
        spaces = self._spaces.values()
        return Summary(sum(len(space.tuned) for space in spaces), sum(len(s.refused) for s in spaces), self._why)

    def poll(self, sockets: Mapping[int, int], netns: str = "") -> bool:
        """`sockets`: inode -> cookie of the connections to tune in one network namespace (any name that tells it from
        others). True: owners are still being looked for; the next call goes on.

        Sockets that have left the mapping get their own timers back, where they still exist."""
        if not self._wanted:
            return False
        space = self._spaces.setdefault(netns, _Space())
        self._leave(space, [inode for inode in space.tuned if inode not in sockets])
        for inode in space.refused.keys() - sockets.keys():
            del space.refused[inode]
        new = {inode: sockets[inode] for inode in sockets if inode not in space.tuned and inode not in space.refused}
        if not new:
            space.search = None
            return False
        if space.search is None:
            space.sought = set(new)
            space.search = _descriptors({tuned.holder.pid for tuned in space.tuned.values()}, [])
        until_s = time.monotonic() + SEARCH_S
        for found in space.search:
            if found is not None and found[0] in new:
                self._tune(space, found[0], new.pop(found[0]), found[1])
            if not new or time.monotonic() > until_s:
                return bool(new)
        for inode in new.keys() & space.sought:
            self._refuse(space, inode, "its owner is not found (in another PID namespace, or not ours to look at)")
        space.search = None
        return bool(new.keys() - space.sought)

    def restore(self) -> int:
        """Put back what the undo journal has of this kind, also of an earlier run. How many sockets that were.

        Sockets that could not be had stay in the journal; of those that are closed by now nothing is left to do."""
        self._spaces.clear()
        return self._restore(self._undo.pending(KIND))

    def _restore(self, pending: Mapping[int, Plain]) -> int:
        numbers = sorted(pending, reverse=True)
        done: set[int] = set()
        undone = put_back([pending[number] for number in numbers], done.add)
        self._undo.done([number for number, fine in zip(numbers, undone, strict=True) if fine])
        return len(done)

    def _tune(self, space: _Space, inode: int, cookie: int, holder: Holder) -> None:
        """Borrows twice, so that a slow disk between reading and setting never holds on to the job's socket."""
        numbers: list[int] = []
        try:
            with _Borrowed(holder, inode, cookie) as fd:
                old = {option: _get(fd, option) for option in self._wanted}
            todo = {option: value for option, value in self._wanted.items() if old[option] > value}
            who = {"pid": holder.pid, "started": holder.started, "fd": holder.fd, "inode": inode, "cookie": cookie}
            changes = [who | {"option": option, "old": old[option], "new": value} for option, value in todo.items()]
            # not synced: a socket does not survive the machine either
            numbers = self._undo.note(KIND, changes, sync=False) if changes else []
            with _Borrowed(holder, inode, cookie) as fd:
                for option, value in todo.items():
                    _set(fd, option, value)
        except LostError:
            self._undo.done(numbers)  # gone meanwhile, or it is found elsewhere by the next search
        except OSError as error:
            self._restore({number: change for number, change in self._undo.pending(KIND).items() if number in numbers})
            self._refuse(space, inode, _reason(error))
        else:
            space.tuned[inode] = _Tuned(holder, numbers)

    def _refuse(self, space: _Space, inode: int, why: str) -> None:
        space.refused[inode] = self._why = why

    def _leave(self, space: _Space, inodes: Sequence[int]) -> None:
        if not inodes:
            return
        pending = self._undo.pending(KIND)
        for inode in inodes:
            numbers = [number for number in space.tuned.pop(inode).numbers if number in pending]
            for number in numbers:
                try:
                    _put_back(pending[number], None)
                except OSError:
                    continue  # almost always: the connection is closed
            self._undo.done(numbers)


def read(change: Plain) -> Plain:
    """A change of ours, of the undo journal, if it has all that putting back needs: ints of 64 bits. Raises ValueError
    for any other."""
    for name in ("pid", "started", "fd", "inode", "cookie", "option", "old", "new"):
        value = change.get(name)
        if not isinstance(value, int) or not 0 <= value < 1 << 64:
            raise ValueError(f"{name} is {value!r}")
    return change


def put_back(changes: Sequence[Plain], on_socket: Callable[[int], None] = lambda _: None) -> list[bool]:
    """Set the old values of changes (of the undo journal) where ours still stand. True: done, or the socket is gone.

    `on_socket` is called with the inode of each socket that was found."""
    undone = [False] * len(changes)
    lost: dict[int, list[int]] = {}
    for position, change in enumerate(changes):
        try:
            _put_back(change, None)
            undone[position] = True
            on_socket(int(change["inode"]))
        except LostError:
            lost.setdefault(int(change["inode"]), []).append(position)
        except OSError:
            continue
    if not lost:
        return undone
    # Its owner may have passed it on, or moved it to another descriptor. If nobody has it, it is closed.
    unseen: list[int] = []
    for found in _descriptors(set(), unseen):
        if found is None or found[0] not in lost:
            continue
        try:
            for position in lost[found[0]]:
                _put_back(changes[position], found[1])
                undone[position] = True
                on_socket(found[0])
        except LostError:
            continue
        except OSError:
            pass  # found, but not ours to change
        del lost[found[0]]
    for positions in lost.values():
        for position in positions:
            undone[position] = not unseen
    return undone


def _put_back(change: Plain, holder: Holder | None) -> None:
    """Leaves a value alone that is not ours any more: the job has set its own since."""
    at = holder or Holder(int(change["pid"]), int(change["started"]), int(change["fd"]))
    option = int(change["option"])
    with _Borrowed(at, int(change["inode"]), int(change["cookie"])) as fd:
        if _get(fd, option) == int(change["new"]):
            _set(fd, option, int(change["old"]))


class _Borrowed:
    """A duplicate of another process's socket for the length of a block. LostError when it is not that one."""

    def __init__(self, holder: Holder, inode: int, cookie: int) -> None:
        self._holder, self._inode, self._cookie = holder, inode, cookie
        self._fd = -1

    def __enter__(self) -> int:
        holder = self._holder
        try:
            process = os.pidfd_open(holder.pid)
        except ProcessLookupError as error:
            raise LostError(errno.ESRCH, "the process has ended") from error
        try:
            if _started(holder.pid) != holder.started:  # the pidfd holds on to the process: it cannot change any more
                raise LostError(errno.ESRCH, "the process has ended")
            self._fd = _libc().syscall(_SYS_PIDFD_GETFD, process, holder.fd, 0)
            if self._fd < 0:
                number = ctypes.get_errno()
                kind = LostError if number in (errno.EBADF, errno.ESRCH) else OSError
                raise kind(number, os.strerror(number))
        finally:
            os.close(process)
        try:
            if os.fstat(self._fd).st_ino != self._inode or _cookie_of(self._fd) != self._cookie:
                raise LostError(errno.ESTALE, "the descriptor is another socket's by now")
        except OSError as error:
            os.close(self._fd)
            if error.errno in (errno.ENOTSOCK, errno.EOPNOTSUPP, errno.ENOPROTOOPT):
                raise LostError(error.errno, "the descriptor is no such socket any more") from error
            raise
        return self._fd

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


def _descriptors(likely: set[int], unseen: list[int]) -> Iterator[tuple[int, Holder] | None]:
    """(inode, holder) of every socket descriptor of all processes: likely ones first, then those in this network
    namespace, then the others. None in between, so that a caller can stop at any time. Processes that this one may not
    look at are added to `unseen`."""
    pids = sorted((int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()), reverse=True)
    here = _namespace("thread-self")
    later = []
    for pid in [*sorted(likely & set(pids)), *(pid for pid in pids if pid not in likely)]:
        if pid not in likely and _namespace(str(pid)) != here:
            later.append(pid)
            yield None
        else:
            yield from _descriptors_of(pid, unseen)
    for pid in later:
        yield from _descriptors_of(pid, unseen)


def _descriptors_of(pid: int, unseen: list[int]) -> Iterator[tuple[int, Holder] | None]:
    base = f"/proc/{pid}/fd"
    try:
        names = os.listdir(base)
        started = _started(pid)
    except PermissionError:
        unseen.append(pid)
        return
    except OSError:
        return  # it has ended
    for name in names:
        try:
            target = os.readlink(f"{base}/{name}")
        except OSError:
            continue
        yield (int(target[8:-1]), Holder(pid, started, int(name))) if target.startswith("socket:[") else None


def _namespace(process: str) -> str:
    try:
        return os.readlink(f"/proc/{process}/ns/net")
    except OSError:
        return ""


def _started(pid: int) -> int:
    """Field 22 of `/proc/PID/stat`. Raises LostError."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError) as error:
        raise LostError(errno.ESRCH, "the process has ended") from error


def _reason(error: OSError) -> str:
    if error.errno in (errno.EPERM, errno.EACCES):
        return "not permitted to borrow the job's sockets (needs CAP_SYS_PTRACE)"
    return error.strerror or str(error)


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _set(fd: int, option: int, value: int) -> None:
    number = ctypes.c_int(value)
    if _libc().setsockopt(fd, socket.IPPROTO_TCP, option, ctypes.byref(number), 4):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _get(fd: int, option: int) -> int:
    number, size = ctypes.c_int(), ctypes.c_uint32(4)
    if _libc().getsockopt(fd, socket.IPPROTO_TCP, option, ctypes.byref(number), ctypes.byref(size)):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return number.value


def _least(fd: int, option: int, value: int) -> int:
    """Set the least value from `value` on that the kernel takes; what it makes of it. At 100 Hz that is 20 ms."""
    while True:
        try:
            _set(fd, option, value)
            return _get(fd, option)
        except OSError as error:
            if error.errno != errno.EINVAL or option != TCP_RTO_MIN_US or value >= MOST_RTO_MIN_US:
                raise
        value += 1000


def _cookie_of(fd: int) -> int:
    number, size = ctypes.c_uint64(), ctypes.c_uint32(8)
    if _libc().getsockopt(fd, socket.SOL_SOCKET, _SO_COOKIE, ctypes.byref(number), ctypes.byref(size)):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return number.value
