"""Process groups: the one that is trained in, the next one, and two for one who trains alone.

The next group is built in a thread while training goes on in the present one (10 ms), and takes its place between two
steps (0.05 ms): as the default group, so that the training script's own `dist.all_reduce` follows, and in each DDP.
"""

from __future__ import annotations

import contextlib
import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as native
from torch.distributed import distributed_c10d as c10d

from torchpass_bridge.trainer.release import Connections, listening
from torchpass_bridge.trainer.rendezvous import Rendezvous

NAME = c10d.GroupName("torchpass")
"""The default group's, in every generation: what looks groups up by name finds the present one."""

Key = tuple[int, int]
"""(generation, attempt)"""

Grid = tuple[int, int]
"""(replicate, shard): how the ranks lie in a mesh of two dimensions, row by row."""
DIMENSIONS = ("replicate", "shard")


class Group:
    """One that stands. `release` lets everybody go who waits in its collectives; it is of no use afterwards.

    `ranks`: its members, by their ranks in the job. `dims`: those of a mesh of two dimensions, that come and go with
    it."""

    def __init__(
        self, key: Key, pg: dist.ProcessGroup, backend: Any, kind: str, store: native.Store,
        name: str = NAME, ranks: tuple[int, ...] = (),
    ) -> None:  # fmt: skip
        self.key, self.kind, self.name = key, kind, c10d.GroupName(name)
        self.ranks = ranks or tuple(range(pg.size()))
        self.dims: tuple[Group, ...] = ()
        self.pg: Any = pg
        self.backend: Any = backend
        self.store: Any = store
        self.connections: Connections | None = None
        self.released = False
        self._stood = 0

    def watch(self, connections: Connections) -> None:
        self.connections = connections
        self._stood = connections.count()

    def release(self) -> None:
        if self.released:
            return
        self.released = True
        for dim in self.dims:
            dim.release()
        if self.connections is not None:
            self.connections.shut()
        else:
            self.backend.abort()

    def close(self) -> None:
        """Once nobody uses it any more."""
        for dim in self.dims:
            dim.close()
        self.pg = self.backend = self.store = None

    def broken(self) -> bool:
        """Whether a member is found to be gone: for one of NCCL's only its own errors tell."""
        if self.released or any(dim.broken() for dim in self.dims):
            return True
        if self.connections is not None:
            return self.connections.count() < self._stood
        return bool(self.backend.get_error() != native.ErrorType.SUCCESS)


def build(
    key: Key,
    rank: int,
    world: int,
    store: Rendezvous,
    device: torch.device,
    address: str,
    build_s: float,
    group_s: float,
    grid: Grid | None = None,
) -> Group:
    """Blocks until all members have come, in a thread of its own. TimeoutError or RuntimeError when one does not."""

    def made(name: str, ranks: tuple[int, ...], at: native.Store) -> Group:
        if device.type == "cuda":
            return _nccl(key, ranks.index(rank), len(ranks), at, device, group_s, name, ranks)
        return _connected(key, rank, ranks, store, at, address, build_s, group_s, name)

    group = made(NAME, tuple(range(world)), store)
    group.dims = tuple(
        made(f"{NAME}-{name}", ranks, native.PrefixStore(f"{name}{ranks[0]}", store))
        for name, ranks in lines(rank, grid)
    )
    return group


def lines(rank: int, grid: Grid | None) -> list[tuple[str, tuple[int, ...]]]:
    """Of each dimension of the mesh, those that rank `rank` is in line with."""
    if grid is None:
        return []
    replicate, shard = grid
    row, column = divmod(rank, shard)
    found = [tuple(range(column, replicate * shard, shard)), tuple(range(row * shard, (row + 1) * shard))]
    return list(zip(DIMENSIONS, found, strict=True))


def _connected(
    key: Key, me: int, ranks: tuple[int, ...], told: Rendezvous, store: native.Store, address: str, build_s: float,
    group_s: float, name: str,
) -> Group:  # fmt: skip
    """`told`: the store that sees what is set, `store`: the same, or a part of it."""
    rank, world, before = ranks.index(me), len(ranks), len(told.told)
    backend = _gloo(store, rank, world, address, build_s)
    group = _group(key, store, rank, world, backend, "gloo", name, ranks)
    mine = listening(told.told[before:])
    if mine is None:
        raise RuntimeError("the socket on which Gloo listens is not found: nobody could be released from this group")
    store.set(f"listens/{rank}", f"{mine[0]} {mine[1]}")
    others = []
    for other in range(world):
        if other != rank:
            host, port = bytes(store.get(f"listens/{other}")).decode().split()
            others.append((host, int(port)))
    group.watch(Connections(mine, others))
    backend._set_default_timeout(timedelta(seconds=group_s))
    return group


def solo(device: torch.device) -> Group:
    """A real group with one member: a DDP in it does all that it does, but hears nobody."""
    store = native.HashStore()
    if device.type == "cuda":
        return _nccl((0, 0), 0, 1, store, device, 60.0)
    return _group((0, 0), store, 0, 1, _gloo(store, 0, 1, "127.0.0.1", 60.0), "gloo")


def hollow(rank: int, world: int, grid: Grid | None = None) -> Group:
    """One that says it is rank `rank` of `world`, and whose collectives end at once and leave everything as it is.

    The default group of one who does a step alone: what the script asks of the group ends, and is not used."""
    group = _hollow(NAME, rank, tuple(range(world)))
    group.dims = tuple(_hollow(f"{NAME}-{name}", rank, ranks) for name, ranks in lines(rank, grid))
    return group


def _hollow(name: str, rank: int, ranks: tuple[int, ...]) -> Group:
    store = native.HashStore()
    backend = native.FakeProcessGroup._create_internal(ranks.index(rank), len(ranks))
    pg = dist.ProcessGroup(store, ranks.index(rank), len(ranks))
    for kind in ("cpu", "cuda"):
        pg._register_backend(torch.device(kind), dist.ProcessGroup.BackendType.CUSTOM, backend)
    pg._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)
    pg._set_group_name(c10d.GroupName(name))
    return Group((0, 0), pg, backend, "fake", store, name, ranks)


def install(group: Group) -> None:
    """As the default group of this process, in place of the one before; and the groups of its mesh."""
    world = c10d._world
    names = {NAME, *(c10d.GroupName(f"{NAME}-{name}") for name in DIMENSIONS)}
    for old in [pg for pg, name in world.pg_names.items() if name in names]:
        name = world.pg_names[old]
        for table in (
            world.pg_map, world.pg_names, world.pg_group_ranks, world.pg_backend_config, world.pg_to_tag,
            world.pg_coalesce_state,
        ):  # fmt: skip
            table.pop(old, None)
        for groups in world.tags_to_pg.values():
            if old in groups:
                groups.remove(old)
        with contextlib.suppress(RuntimeError):
            native._unregister_process_group(name)
    for one in (group, *group.dims):
        _register(one)
    c10d._update_default_pg(group.pg)


def _register(group: Group) -> None:
    world, pg = c10d._world, group.pg
    world.pg_map[pg] = (group.kind, group.store)
    world.pg_names[pg] = group.name
    world.pg_group_ranks[pg] = {rank: number for number, rank in enumerate(group.ranks)}
    world.pg_backend_config[pg] = f"cpu:{group.kind},cuda:{group.kind}" if group.kind == "fake" else _config(group.kind)
    world.tags_to_pg.setdefault(f"ptd:{group.name}", []).append(pg)
    world.pg_to_tag[pg] = f"ptd:{group.name}"
    native._register_process_group(group.name, pg)


def _config(kind: str) -> str:
    return "cuda:nccl" if kind == "nccl" else "cpu:gloo"


def _gloo(store: native.Store, rank: int, world: int, address: str, build_s: float) -> Any:
    make: Any = dist.ProcessGroupGloo
    named = os.environ.get("GLOO_SOCKET_IFNAME", "")
    options = make._Options()
    if named and world > 1:
        options._devices = [make.create_device(interface=name, lazy_init=False) for name in named.split(",")]
    else:
        options._devices = [make.create_device(hostname=address, lazy_init=False)]
    options._threads = 2 * len(options._devices)
    options._timeout = timedelta(seconds=build_s)
    return make(store, rank, world, options)


def _group(
    key: Key, store: native.Store, rank: int, world: int, backend: Any, kind: str, name: str = NAME,
    ranks: tuple[int, ...] = (),
) -> Group:  # fmt: skip
    pg = dist.ProcessGroup(store, rank, world)
    pg._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, backend)
    pg._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
    pg._set_group_name(c10d.GroupName(name))
    return Group(key, pg, backend, kind, store, name, ranks)


def _nccl(
    key: Key, rank: int, world: int, store: native.Store, device: torch.device, group_s: float, name: str = NAME,
    ranks: tuple[int, ...] = (),
) -> Group:  # fmt: skip
    """The same for GPUs. Not run here: nothing of this has seen a GPU yet."""
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=group_s)
    backend = dist.ProcessGroupNCCL(store, rank, world, options)
    pg = dist.ProcessGroup(store, rank, world)
    pg._register_backend(torch.device("cuda"), dist.ProcessGroup.BackendType.NCCL, backend)
    pg._set_default_backend(dist.ProcessGroup.BackendType.NCCL)
    pg._set_group_name(c10d.GroupName(name))
    backend.eager_connect_single_device(device)  # else its members meet in the first step
    return Group(key, pg, backend, "nccl", store, name, ranks)
