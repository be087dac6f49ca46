"""The network namespace that an edge was opened in, to be entered again later.

Sockets stay where they were opened, but a program that is started (nft, the guardian) lives where the starting thread
is, and the daemon's thread may be elsewhere by then."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

PATH = "/proc/thread-self/ns/net"
CLONE_NEWNET = 0x40000000

_libc = ctypes.CDLL(None, use_errno=True)


class Space:
    """Remembers this thread's namespace from `open` to `close`."""

    def __init__(self) -> None:
        self._fd = -1

    def open(self) -> None:
        self.close()
        self._fd = os.open(PATH, os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    @property
    def fd(self) -> int:
        """A descriptor of the namespace, -1 when not open."""
        return self._fd

    @contextmanager
    def inside(self) -> Iterator[None]:
        """This thread is there within the block; nothing may be awaited in it. Raises OSError."""
        if self._fd < 0 or os.stat(PATH).st_ino == os.fstat(self._fd).st_ino:
            yield
            return
        home = os.open(PATH, os.O_RDONLY | os.O_CLOEXEC)
        try:
            enter(self._fd)
            try:
                yield
            finally:
                enter(home)
        finally:
            os.close(home)


def enter(fd: int) -> None:
    """This thread goes into the namespace of a descriptor. Raises OSError."""
    if _libc.setns(fd, CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"cannot enter a network namespace: {os.strerror(number)}")
