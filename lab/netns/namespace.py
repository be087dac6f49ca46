"""Named network namespaces through `pyroute2.netns`: make, enter, remove.

The same convention as iproute2: a namespace's name is a bind mount of its nsfs file below `/run/netns`, so that every
other tool finds it (`ip -n NAME …`). A namespace belongs to a thread; a child process starts in that of the thread
which forks it, so no `preexec_fn` is needed to start a program inside one.

Of pyroute2 the parts that fork are not used (`netns.create`, `IPRoute(netns=…)`): a fork of a process with threads is
deprecated since Python 3.12, costs 10 ms and more with torch loaded, and leaves the child's copies of sockets unclosed.
A thread that is in the namespace does the same without one.

Source: setns(2), unshare(2), mount(2), network_namespaces(7), ip-netns(8).
"""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyroute2 import netns

NETNS_DIR = Path(netns.NETNS_RUN_DIR)

_CLONE_NEWNET = 0x40000000
_CLONE_NEWNS = 0x00020000
_MS_REC, _MS_SLAVE = 0x4000, 0x80000
_MNT_DETACH = 2

_libc = ctypes.CDLL(None, use_errno=True)
"""Given to pyroute2 too: left to itself it runs a program to find this library."""


def _call(name: str, *arguments: object) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")


def setns(fd: int) -> None:
    """Move the calling thread into the network namespace of an open nsfs descriptor."""
    netns.setns(fd, libc=_libc)


def path_of(name: str) -> Path:
    return NETNS_DIR / name


def exists(name: str) -> bool:
    return path_of(name).exists()


def inode_of(name: str) -> int | None:
    """The namespace's inode number (what `/proc/PID/ns/net` shows), None when the name is not a namespace."""
    try:
        status = path_of(name).stat()
    except FileNotFoundError:
        return None
    # A name left behind between `open` and `mount` is an ordinary file of another file system: not a namespace.
    return status.st_ino if status.st_dev == os.stat("/proc/self/ns/net").st_dev else None


@contextmanager
def inside(target: int | str) -> Iterator[None]:
    """Run a block with the calling thread inside a namespace (descriptor or name), then back where it was.

    Sockets and processes that the block opens stay in the namespace. Do not `await` inside: other tasks of the
    thread would run there too.
    """
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        fd = target if isinstance(target, int) else os.open(path_of(target), os.O_RDONLY | os.O_CLOEXEC)
        try:
            setns(fd)
            try:
                yield
            finally:
                setns(home)
        finally:
            if fd is not target:
                os.close(fd)
    finally:
        os.close(home)


def create(name: str) -> int:
    """Make a namespace with that name and return an open descriptor of it. FileExistsError when it is taken."""
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _call("unshare", _CLONE_NEWNET)
        try:
            netns.attach(name, threading.get_native_id(), libc=_libc)  # by this thread, which is in the new one
            return os.open(path_of(name), os.O_RDONLY | os.O_CLOEXEC)
        except FileExistsError:
            raise
        except OSError:
            remove(name)
            raise
        finally:
            setns(home)
    finally:
        os.close(home)


def remove(name: str) -> bool:
    """Take a namespace's name away; the kernel frees it once nothing runs in it. False when there was none."""
    for _ in range(8):  # a killed builder may have mounted twice; each mount is undone
        try:
            netns.remove(name, libc=_libc)
        except FileNotFoundError:
            return False
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
        else:
            return True
    raise OSError(errno.EBUSY, f"namespace {name} cannot be unmounted")


def own_sysfs() -> None:
    """Give this process a `/sys` that shows the devices of its network namespace (for `lab exec`; before an exec)."""
    _call("unshare", _CLONE_NEWNS)
    _call("mount", b"none", b"/", b"none", _MS_SLAVE | _MS_REC, None)
    try:
        _call("umount2", b"/sys", _MNT_DETACH)
    except OSError:
        pass  # nothing was mounted there
    _call("mount", b"sysfs", b"/sys", b"sysfs", 0, None)
