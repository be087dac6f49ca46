"""What a trainer's process is told from outside: by the environment, read once, when `join` is called."""

from __future__ import annotations

import itertools
import os
import secrets
import socket
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from torchpass_bridge.wire import BEAT_S, check_name

LATEST = "latest"
"""The job's own latest snapshot; at the start, when there is none."""
KEPT = "3"


class Times(msgspec.Struct, frozen=True):
    """Timeouts, from the shortest to the longest: each leaves room for what it waits for to fail first.

    `connect_s`: to a source of state; `stall_s`: without a byte from one; `build_s`: for a process group to connect;
    `phase_s`: the coordinators' limit for a phase (`core.scene.Limits`); `group_s`: of the group's collectives. The
    last one is only a net below: who waits in a collective is released by the record, long before."""

    beat_s: float = BEAT_S
    connect_s: float = 1.0
    stall_s: float = 2.0
    build_s: float = 8.0
    phase_s: float = 20.0
    group_s: float = 1800.0

    def check(self) -> None:
        """ValueError when they do not nest."""
        names = self.__struct_fields__
        for short, long in itertools.pairwise(names):
            if not 0 < getattr(self, short) < getattr(self, long):
                raise ValueError(
                    f"timeouts must nest, {' < '.join(names)}: {short} is {getattr(self, short):g}, "
                    f"{long} is {getattr(self, long):g}"
                )


class Settings(msgspec.Struct, frozen=True):
    """`rank` None: a spare. `id`: of this run of this process, never used again. `address`: where others reach it."""

    store: str
    job: str
    key: bytes
    rank: int | None
    world: int
    id: str
    host: str
    address: str
    domain: str = ""
    accelerator: str = ""
    lent_from: str = ""
    snapshots: str = ""
    """The folder, shared by all hosts, for snapshots of the job; empty: none are taken."""
    snapshots_kept: int = int(KEPT)
    """0: all."""
    restore: str = ""
    """The snapshot to begin with, or a folder of some, or LATEST; empty: at the start."""
    buddies: bool = True
    """Sharded state: a copy of this rank's part is left with another rank at each step."""
    times: Times = Times()


def from_environment(told: Mapping[str, str], times: Times) -> Settings:
    """ValueError names the variable that is missing or wrong."""
    times.check()
    spare = told.get("TORCHPASS_SPARE", "") not in ("", "0")
    job = check_name(_needed(told, "TORCHPASS_JOB", "the job's name"))
    store = _store(_needed(told, "TORCHPASS_STORE", "the store's address, as `torchpass store` prints it"))
    world = _number(told, "WORLD_SIZE", "how many ranks the job has")
    rank = None if spare else _number(told, "RANK", "this process's rank (or TORCHPASS_SPARE=1: a spare)")
    if rank is not None and rank >= world:
        raise ValueError(f"RANK={rank} is none of WORLD_SIZE={world} ranks")
    host = told.get("TORCHPASS_HOST") or socket.gethostname()
    return Settings(
        store=store,
        job=job,
        key=_key(told),
        rank=rank,
        world=world,
        id=f"{_plain(host)[:24]}-{os.getpid()}-{secrets.token_hex(4)}",
        host=host,
        address=told.get("TORCHPASS_ADDRESS") or _towards(store),
        domain=told.get("TORCHPASS_DOMAIN", ""),
        accelerator=told.get("TORCHPASS_ACCELERATOR") or told.get("LOCAL_RANK", ""),
        lent_from=told.get("TORCHPASS_LENT_FROM", ""),
        snapshots=_folder(told, "TORCHPASS_SNAPSHOTS"),
        snapshots_kept=_number(told, "TORCHPASS_SNAPSHOTS_KEPT", "how many")
        if "TORCHPASS_SNAPSHOTS_KEPT" in told
        else 3,
        restore=_restore(told) if rank is not None else "",
        buddies=told.get("TORCHPASS_BUDDY", "1") != "0",
        times=times,
    )


def _needed(told: Mapping[str, str], name: str, words: str) -> str:
    value = told.get(name, "")
    if not value:
        raise ValueError(f"{name} is not set: {words}")
    return value


def _number(told: Mapping[str, str], name: str, words: str) -> int:
    value = _needed(told, name, words)
    if not value.isdecimal():
        raise ValueError(f"{name}={value!r} is no number: {words}")
    return int(value)


def _folder(told: Mapping[str, str], name: str) -> str:
    """It need not be there yet."""
    value = told.get(name, "")
    if value and not Path(value).is_absolute():
        raise ValueError(f"{name}={value!r} is no absolute path: it has to be the same folder for every process")
    return value


def _restore(told: Mapping[str, str]) -> str:
    if told.get("TORCHPASS_RESTORE", "") != LATEST:
        return _folder(told, "TORCHPASS_RESTORE")
    if not told.get("TORCHPASS_SNAPSHOTS"):
        raise ValueError(f"TORCHPASS_RESTORE={LATEST} needs TORCHPASS_SNAPSHOTS, the folder of the job's snapshots")
    return LATEST


def _store(said: str) -> str:
    """An address as it is; else from a file that holds it, or the folder of a store on this machine."""
    if "://" in said:
        return said
    if Path(said).is_file():
        return Path(said).read_text().strip()
    from torchpass_bridge.store.server import ServerError, url_of

    try:
        return url_of(Path(said))
    except ServerError as error:
        raise ValueError(f"TORCHPASS_STORE={said}: {error}") from None


def _key(told: Mapping[str, str]) -> bytes:
    path = told.get("TORCHPASS_KEY_FILE", "")
    if path:
        with open(path, "rb") as file:
            key = file.read().strip()
    else:
        key = told.get("TORCHPASS_KEY", "").encode()
    if len(key) < 16:
        raise ValueError(
            "TORCHPASS_KEY (or the file TORCHPASS_KEY_FILE) needs at least 16 characters, the same for all processes "
            "of the job: state is given only to who knows it"
        )
    return key


def _plain(name: str) -> str:
    return "".join(c if c.isalnum() and c.isascii() else "-" for c in name)


def _towards(store: str) -> str:
    """This host's address on the way to the store; nothing is sent."""
    parts = urlsplit(store.split(",")[0])
    try:
        found = socket.getaddrinfo(parts.hostname or "127.0.0.1", parts.port or 4222, type=socket.SOCK_DGRAM)
        family, kind, _, _, address = found[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise ValueError(f"no way to the store at {parts.hostname}: {error}; or set TORCHPASS_ADDRESS") from error
