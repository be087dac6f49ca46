"""What a lab leaves on disk, so that another process can go on with it, and `down` can clean up after any crash.

    RUN_DIR/state.json     the lab: written before the first namespace is made, so it names everything there may be
    RUN_DIR/faults.json    faults in force now
    RUN_DIR/pids/PID       one file per process started in the lab
    /run/linkpass-lab/NAME a link to RUN_DIR: finds a lab by its name from anywhere, keeps two from one name

Writes are renames; a lock file orders processes that change faults at the same time.
"""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
from collections.abc import Mapping
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from lab.errors import LabError
from lab.faults import AnyFault
from lab.netns import namespace
from topology.model import Fabric, Link, Node

REGISTRY = Path("/run/linkpass-lab")
RUNS = Path("build/lab")
"""Where run directories lie when nothing else is said, from the current directory."""

VERSION = 1


class StoredFabric(msgspec.Struct, frozen=True):
    name: str
    nodes: tuple[Node, ...]
    links: tuple[Link, ...]
    notes: tuple[str, ...]

    @classmethod
    def of(cls, fabric: Fabric) -> StoredFabric:
        return cls(fabric.name, fabric.nodes, fabric.links, fabric.notes)

    def fabric(self) -> Fabric:
        return Fabric(self.name, self.nodes, self.links, self.notes)


class State(msgspec.Struct, frozen=True, kw_only=True):
    """`phase`: `building` until everything stands. `builder`: pid and start time (ticks) of who builds."""

    version: int = VERSION
    name: str
    phase: Literal["building", "up"]
    builder: tuple[int, int]
    namespaces: tuple[str, ...]
    fabric: StoredFabric
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    guests: tuple[str, ...] = ()
    """Hosts that are guests of an emulator."""
    hash_seed: bool = True


class Stopped(msgspec.Struct, frozen=True):
    """A process that a fault has stopped: to be continued by its undo, if it is still the same one."""

    pid: int
    started: int


class ActiveRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A fault in force. Times are monotonic seconds. `driver`: pid and start time of a process that does nothing but
    make it flap, or hold packets; `down`: whether it bites now (always, but for one that flaps)."""

    id: int
    fault: AnyFault
    injected_at_s: float
    down: bool = True
    driver: tuple[int, int] | None = None
    stopped: tuple[Stopped, ...] = ()


class Faults(msgspec.Struct, frozen=True):
    next_id: int = 1
    active: tuple[ActiveRecord, ...] = ()


T = TypeVar("T")


def read(path: Path, kind: type[T]) -> T | None:
    """A stored value; None when there is no such file. LabError when it is not of this version."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise LabError(
            f"{path} is not readable by this version ({error})", "remove the lab with its own version"
        ) from error


def write(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(msgspec.json.encode(value, enc_hook=_plain))
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _plain(value: object) -> object:
    if isinstance(value, Mapping):  # a read-only view of labels
        return dict(value)
    raise TypeError(f"{type(value).__name__} is not stored")


def make_lock(run_dir: Path) -> None:
    run_dir.mkdir(parents=True, exist_ok=True)
    (run_dir / "lock").touch()


def locked(run_dir: Path) -> AbstractContextManager[object]:
    """Hold the lab's lock: one process or thread at a time changes its faults. FileNotFoundError: the lab is gone."""
    file = open(run_dir / "lock", "r+b")  # noqa: SIM115 - closed, and so unlocked, by who leaves the context
    fcntl.flock(file, fcntl.LOCK_EX)
    if os.fstat(file.fileno()).st_nlink == 0:  # it was removed, with the lab, while we waited for it
        file.close()
        raise FileNotFoundError(errno.ENOENT, "the lab is gone", str(run_dir / "lock"))
    return closing(file)


def register(name: str, run_dir: Path) -> None:
    REGISTRY.mkdir(mode=0o755, parents=True, exist_ok=True)
    forget(name)
    (REGISTRY / name).symlink_to(run_dir.resolve())


def forget(name: str) -> None:
    (REGISTRY / name).unlink(missing_ok=True)


def find(name: str) -> Path | None:
    """The run directory of the lab of that name, None when none is registered."""
    try:
        return Path(os.readlink(REGISTRY / name))
    except OSError:
        return None


def labs() -> dict[str, Path]:
    """All labs of this machine: name -> run directory."""
    try:
        names = sorted(os.listdir(REGISTRY))
    except FileNotFoundError:
        return {}
    return {name: path for name in names if (path := find(name)) is not None}


def namespaces_left(name: str, stored: State | None) -> list[str]:
    """Namespaces that belong to a lab: those its state names, and those of its prefix that no other lab claims.

    (`lp-a-b-c` may be node `b-c` of lab `a` or node `c` of lab `a-b`: another lab's state decides.)"""
    claimed: set[str] = set()
    for other, run_dir in labs().items():
        if other != name and (state := read(run_dir / "state.json", State)) is not None:
            claimed.update(state.namespaces)
    try:
        present = os.listdir(namespace.NETNS_DIR)
    except FileNotFoundError:
        present = []
    mine = {entry for entry in present if entry.startswith(f"lp-{name}-") and entry not in claimed}
    mine.update(entry for entry in (stored.namespaces if stored else ()) if entry in present)
    return sorted(mine)
