"""An open uverbs file of somebody else's program, borrowed for a moment: pidfd_open(2), pidfd_getfd(2).

A copy that is kept would keep the program's queue pairs and memory alive after it died. So the copy lives inside one
`with` block, and whose it is, is checked after it was taken: the pid's start time, and that the file is the device's.
Needs CAP_SYS_PTRACE (ptrace(2), PTRACE_MODE_ATTACH_REALCREDS).
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rdma.sysfs import ROOT, Unknown, read_text

_PIDFD_GETFD = 438
_CAP_SYS_PTRACE = 19
_libc = ctypes.CDLL(None, use_errno=True)


class NotBorrowedError(Exception):
    """The file cannot be had; the text says why."""


def may_borrow() -> bool:
    """Whether this process has CAP_SYS_PTRACE (capabilities(7), proc(5): CapEff)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> _CAP_SYS_PTRACE & 1)
    return False


def start_ticks(pid: int) -> int | None:
    """When a process started, in ticks since boot (proc(5), stat, field 22); None when it is gone or a zombie."""
    try:
        raw = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = raw[raw.rindex(b")") + 2 :].split()
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def device_number(device: str, root: Path = ROOT) -> int | None:
    """The number of the character device of an RDMA device; None when it has none."""
    name = _verbs_name(device, root)
    text = read_text(root / "class/infiniband_verbs" / name / "dev")
    if not name or isinstance(text, Unknown):
        return None
    major, _, minor = text.partition(":")
    return os.makedev(int(major), int(minor))


def device_file(device: str, root: Path = ROOT) -> str:
    """`/dev/infiniband/uverbsN`; empty when it has none."""
    name = _verbs_name(device, root)
    return f"/dev/infiniband/{name}" if name else ""


def _verbs_name(device: str, root: Path) -> str:
    folder = root / "class/infiniband_verbs"
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return ""
    return next((name for name in names if read_text(folder / name / "ibdev") == device), "")


@contextmanager
def borrowed(pid: int, started: int, number: int) -> Iterator[list[int]]:
    """Copies of all descriptors of a process that are open on the character device `number`, closed on the way out.

    `started`: the start time by which the process was found. NotBorrowedError: it is another one, or not allowed."""
    copies: list[int] = []
    try:
        handle = os.pidfd_open(pid)
    except OSError as error:
        raise NotBorrowedError(f"process {pid}: {error.strerror}") from None
    try:
        if start_ticks(pid) != started:  # the descriptor holds the process: this cannot go stale any more
            raise NotBorrowedError(f"process {pid} is another one than before")
        for fd in _descriptors(pid, number):
            copy = _libc.syscall(_PIDFD_GETFD, handle, fd, 0)
            if copy < 0:
                code = ctypes.get_errno()
                if code == errno.EBADF:
                    continue  # closed since it was listed
                hint = " (CAP_SYS_PTRACE is needed)" if code == errno.EPERM else ""
                raise NotBorrowedError(f"process {pid}: pidfd_getfd: {os.strerror(code)}{hint}")
            copies.append(copy)
            status = os.fstat(copy)
            if not stat.S_ISCHR(status.st_mode) or status.st_rdev != number:
                os.close(copies.pop())  # another file since it was listed
        yield copies
    finally:
        for copy in copies:
            os.close(copy)
        os.close(handle)


def _descriptors(pid: int, number: int) -> list[int]:
    """Descriptors of a process on a character device. Looked at by `stat`, which follows the link and opens nothing."""
    found = []
    folder = f"/proc/{pid}/fd"
    try:
        names = os.listdir(folder)
    except OSError as error:
        raise NotBorrowedError(f"process {pid}: {error.strerror}") from None
    for name in names:
        try:
            status = os.stat(f"{folder}/{name}")
        except OSError:
            continue
        if stat.S_ISCHR(status.st_mode) and status.st_rdev == number:
            found.append(int(name))
    return found
