"""Processes in the lab: started in a namespace, recorded, found again, ended by pid, never by name."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec

from lab.netns import state


class Process(msgspec.Struct, frozen=True):
    """A process started in the lab. `started`: its start time in clock ticks since boot (`/proc/PID/stat`, field 22),
    which tells it from a later one of the same pid; `boot`: the boot that those ticks count from."""

    pid: int
    started: int
    node: str
    argv: tuple[str, ...] = ()
    boot: str = ""


def start_time(pid: int) -> int | None:
    """Start time in ticks; None when the process is gone or a zombie."""
    try:
        raw = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = raw[raw.rindex(b")") + 2 :].split()  # the name may contain anything, but ends with the last bracket
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def state_letter(pid: int) -> str:
    """How the kernel calls a process's state (proc(5)): R, S, D, T (stopped), Z …; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def record(run_dir: Path, pid: int, node: str, argv: tuple[str, ...] = ()) -> bool:
    """Remember a process as the lab's. False when it has ended already."""
    started = start_time(pid)
    if started is not None:
        state.write(run_dir / "pids" / str(pid), Process(pid, started, node, argv, boot_id()))
    return started is not None


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def recorded(run_dir: Path) -> list[Process]:
    """Recorded processes that still run; files of others are removed."""
    found: list[Process] = []
    try:
        files = sorted((run_dir / "pids").iterdir())
    except FileNotFoundError:
        return found
    for file in files:
        if file.name.startswith("."):
            continue
        process = state.read(file, Process)
        if process is None:
            continue
        if start_time(process.pid) == process.started and process.boot == boot_id():
            found.append(process)
        else:
            file.unlink(missing_ok=True)
    return found


def in_namespaces(inodes: Iterable[int]) -> dict[int, list[tuple[int, int]]]:
    """Who runs inside namespaces: inode -> (pid, start time). The calling process is left out."""
    wanted = {f"net:[{inode}]": inode for inode in inodes}
    found: dict[int, list[tuple[int, int]]] = {inode: [] for inode in wanted.values()}
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            where = os.readlink(f"/proc/{entry}/ns/net")
        except OSError:
            continue
        if where in wanted and (started := start_time(int(entry))) is not None:
            found[wanted[where]].append((int(entry), started))
    return found


def send(processes: Iterable[tuple[int, int]], number: signal.Signals) -> list[tuple[int, int]]:
    """Signal processes given as (pid, start time), each only if it is still the same one. Returns those reached."""
    reached = []
    for pid, started in processes:
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            # The descriptor holds the process: looked at after it was opened, the start time cannot go stale.
            if start_time(pid) == started:
                signal.pidfd_send_signal(handle, number)
                reached.append((pid, started))
        except ProcessLookupError:
            continue
        finally:
            os.close(handle)
    return reached


def end(processes: Iterable[tuple[int, int]], patience_s: float = 2.0) -> None:
    """Kill processes and wait until they are gone (or zombies of a parent that has yet to look)."""
    killed = send(processes, signal.SIGKILL)
    deadline = time.monotonic() + patience_s
    while killed and time.monotonic() < deadline:
        killed = [(pid, started) for pid, started in killed if start_time(pid) == started]
        if killed:
            time.sleep(0.002)
