"""Named network namespaces: make, enter, remove.

The same convention as iproute2: a namespace's name is a bind mount of its nsfs file below `/run/netns`, so that every
other tool finds it (`ip -n NAME …`). A namespace belongs to a thread; a child process starts in that of the thread
which forks it, so no `preexec_fn` is needed to start a program inside one.

Source: setns(2), unshare(2), mount(2), network_namespaces(7), ip-netns(8).
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NETNS_DIR = Path("/run/netns")

_CLONE_NEWNET = 0x40000000
_CLONE_NEWNS = 0x00020000
_MS_BIND, _MS_REC, _MS_SLAVE, _MS_SHARED = 0x1000, 0x4000, 0x80000, 0x100000
_MNT_DETACH = 2

_libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: object) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")


def setns(fd: int) -> None:
    """Move the calling thread into the network namespace of an open nsfs descriptor."""
    _call("setns", fd, _CLONE_NEWNET)


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


def prepare() -> None:
    """Make `/run/netns` a shared mount, so that every mount namespace sees names made here (iproute2 does so)."""
    NETNS_DIR.mkdir(mode=0o755, parents=True, exist_ok=True)
    try:
        _mount(None, NETNS_DIR, _MS_SHARED | _MS_REC)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        _mount(NETNS_DIR, NETNS_DIR, _MS_BIND | _MS_REC)
        _mount(None, NETNS_DIR, _MS_SHARED | _MS_REC)


def create(name: str) -> int:
    """Make a namespace with that name and return an open descriptor of it. FileExistsError when it is taken."""
    path = path_of(name)
    os.close(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444))
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _call("unshare", _CLONE_NEWNET)
        try:
            _mount(Path("/proc/thread-self/ns/net"), path, _MS_BIND)
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        finally:
            setns(home)
    except OSError:
        remove(name)
        raise
    finally:
        os.close(home)


def remove(name: str) -> bool:
    """Take a namespace's name away; the kernel frees it once nothing runs in it. False when there was none."""
    path = path_of(name)
    while True:  # a killed builder may have mounted twice; each mount is undone
        try:
            _call("umount2", os.fsencode(path), _MNT_DETACH)
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOENT):
                break
            raise
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    return True


def own_sysfs() -> None:
    """Give this process a `/sys` that shows the devices of its network namespace (for `lab exec`; before an exec)."""
    _call("unshare", _CLONE_NEWNS)
    _mount(None, Path("/"), _MS_SLAVE | _MS_REC)
    try:
        _call("umount2", b"/sys", _MNT_DETACH)
    except OSError:
        pass  # nothing was mounted there
    _call("mount", b"sysfs", b"/sys", b"sysfs", 0, None)


def _mount(source: Path | None, target: Path, flags: int) -> None:
    _call("mount", os.fsencode(source) if source else b"none", os.fsencode(target), b"none", flags, None)
