"""Whose a thread is and what its program is called, from /proc (proc(5)).

The kernel names a queue pair's owner by the thread that made it (drivers/infiniband/core/restrack.c attaches `current`,
nldev.c tells its task_pid_vnr()), while files, start time and pidfd_open(2) are those of the process, which its thread
group's number stands for.
"""

from __future__ import annotations

from pathlib import Path


def thread_group(thread: int) -> int | None:
    """The process that a thread belongs to (`Tgid` of its status); None when it has ended."""
    try:
        lines = Path(f"/proc/{thread}/status").read_bytes().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith(b"Tgid:")), None)


def program(pid: int) -> str:
    """What it is called; empty when it has ended. The kernel cuts names at 15 bytes, in the midst of a letter, too, and
    a program may give itself any bytes (prctl(2), PR_SET_NAME)."""
    try:
        return Path(f"/proc/{pid}/comm").read_bytes().decode(errors="replace").strip()
    except OSError:
        return ""
