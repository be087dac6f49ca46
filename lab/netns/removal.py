"""Take a lab away, whatever state it is in: standing, half built, half removed, its files lost."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from lab.errors import LabError
from lab.netns import namespace, processes, state
from lab.netns.state import State


def remove(name: str, run_dir: Path | None = None) -> bool:
    """End a lab by its name: works from its state, its registration, or its namespaces' prefix alone.

    False when there was nothing of it. What daemons and jobs have written into its run directory stays."""
    check_name(name)
    need_root()
    run_dir = state.find(name) or run_dir or (state.RUNS / name).absolute()
    try:
        stored = state.read(run_dir / "state.json", State)
    except LabError:
        stored = None  # written by another version: the prefix must do
    foreign = stored is not None and stored.name != name  # another lab has the directory: only the prefix is ours
    if foreign:
        stored = None
    if stored is not None and stored.phase == "building" and _builder_lives(stored):
        _outwait(stored, run_dir)
    left = state.namespaces_left(name, stored)
    if not foreign:
        processes.end((one.pid, one.started) for one in processes.recorded(run_dir))
    _empty(left)
    for one in left:
        namespace.remove(one)
    if not foreign:
        _tidy(run_dir)
    state.forget(name)
    return bool(left) or stored is not None


def clear_the_way(name: str, run_dir: Path) -> Iterator[str]:
    """Before building: remove what a crash has left of this name or in this directory, and say so.

    Raises LabError when what is there is alive."""
    for place in dict.fromkeys((state.find(name) or run_dir, run_dir)):
        stored = state.read(place / "state.json", State)
        if stored is None:
            continue
        if stored.phase == "up" and any(map(namespace.exists, stored.namespaces)):
            hint = f"linkpass lab down {stored.name}, or give another --name"
            raise LabError(f"lab {stored.name} is up already ({place})", hint)
        if stored.phase == "building" and _builder_lives(stored):
            raise LabError(f"lab {stored.name} is being built by process {stored.builder[0]}", "wait for it")
        remove(stored.name, place)
        yield f"took away what an earlier build of {stored.name} had left"


def check_name(name: str) -> None:
    """Lab names are part of names of files and namespaces."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,40}", name):
        raise LabError(f"lab name {name!r}: expected up to 41 letters, digits, dots, dashes, underscores", "--name try")


def need_root() -> None:
    if os.geteuid() != 0:
        raise LabError("the lab makes network namespaces and needs root", "sudo linkpass lab …")


def _builder_lives(stored: State) -> bool:
    pid, started = stored.builder
    return pid != os.getpid() and processes.start_time(pid) == started


def _outwait(stored: State, run_dir: Path, patience_s: float = 10.0) -> None:
    """Wait for another process that is building this lab: it is done in a second, or dead already."""
    deadline = time.monotonic() + patience_s
    while _builder_lives(stored):
        now = state.read(run_dir / "state.json", State)
        if now is None or now.phase == "up":
            return
        if time.monotonic() > deadline:
            raise LabError(f"lab {stored.name} is being built by process {stored.builder[0]}", "end it, then try again")
        time.sleep(0.05)


def _empty(namespaces: list[str]) -> None:
    """End whoever runs in the namespaces, recorded or not; again, if one forked in the last moment."""
    inodes = [inode for one in namespaces if (inode := namespace.inode_of(one)) is not None]
    for _ in range(3):
        inside = [one for found in processes.in_namespaces(inodes).values() for one in found]
        if not inside:
            return
        processes.end(inside)


def _tidy(run_dir: Path) -> None:
    with suppress(FileNotFoundError), state.locked(run_dir):  # nobody is half-way through a write
        for file in ("faults.json", "lock", "state.json"):
            (run_dir / file).unlink(missing_ok=True)
    for file in ("faults.json", "state.json"):
        (run_dir / file).unlink(missing_ok=True)
    shutil.rmtree(run_dir / "pids", ignore_errors=True)
    for pattern in ("flap-*.log", "relay-*.log"):
        for log in run_dir.glob(pattern):
            log.unlink()
    with suppress(OSError):
        run_dir.rmdir()
