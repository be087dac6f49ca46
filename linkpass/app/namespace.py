"""Network namespaces: entering one for a short section of this thread."""

from __future__ import annotations

import ctypes
import os
from types import TracebackType

CLONE_NEWNET = 0x40000000
OWN = "/proc/thread-self/ns/net"

_libc = ctypes.CDLL(None, use_errno=True)


def _enter(fd: int, what: str) -> None:
    if _libc.setns(fd, CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"cannot enter network namespace {what}: {os.strerror(number)}")


class Namespace:
    """A namespace by name below /run/netns or by path; an empty name is the daemon's own, and entering it does nothing.

    Sockets opened inside stay there. Nothing may be awaited inside."""

    def __init__(self, name: str = "") -> None:
        self.name = os.path.basename(name)
        self._path = name if "/" in name else f"/run/netns/{name}"
        self._back: list[int] = []
        self._inode = self.inode()

    def inode(self) -> int | None:
        """Of the namespace that has this name now; None when there is none. The daemon's own is 0."""
        if not self.name:
            return 0
        try:
            return os.stat(self._path).st_ino
        except OSError:
            return None

    @property
    def gone(self) -> bool:
        """The namespace has ended, or its name belongs to another one (a job that was started again)."""
        return self._inode is None or self.inode() != self._inode

    def __enter__(self) -> Namespace:
        if self.name:
            back = os.open(OWN, os.O_RDONLY | os.O_CLOEXEC)
            try:
                fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    _enter(fd, self._path)
                finally:
                    os.close(fd)
            except OSError:
                os.close(back)
                raise
            self._back.append(back)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.name:
            back = self._back.pop()
            try:
                _enter(back, "of the daemon")
            finally:
                os.close(back)
