"""Gloo groups built through the real store, all members as threads of this process: the sockets are real."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from torchpass_bridge.store.records import Records
from torchpass_bridge.store.server import Server
from torchpass_bridge.trainer import groups
from torchpass_bridge.trainer.groups import Group, build
from torchpass_bridge.trainer.rendezvous import Aborted, Rendezvous

CPU = torch.device("cpu")
BUILD_S, GROUP_S = 5.0, 60.0


class Store:
    """A store and a client of it, in a loop of its own."""

    def __init__(self, folder: Path) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()
        self._server = Server(folder)
        self.call(self._server.start()).result()
        self.records: Records = self.call(Records.connect(self._server.url)).result()

    def call(self, asked: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(asked, self.loop)

    def rendezvous(self, prefix: str, timeout_s: float = BUILD_S) -> Rendezvous:
        return Rendezvous(self.records, self.call, prefix, timeout_s)

    def close(self) -> None:
        self.call(self.records.close()).result()
        self.call(self._server.stop()).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    made = Store(tmp_path_factory.mktemp("store"))
    yield made
    made.close()


def together(count: int, do: Callable[[int], Any]) -> list[Any]:
    """What each thread returned, or raised."""
    found: list[Any] = [None] * count

    def run(number: int) -> None:
        try:
            found[number] = do(number)
        except Exception as error:  # noqa: BLE001 (looked at by the tests)
            found[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    return found


def built(store: Store, world: int, key: tuple[int, int]) -> list[Group]:
    def one(rank: int) -> Group:
        rendezvous = store.rendezvous(f"t-{key[0]}-{key[1]}.")
        return build(key, rank, world, rendezvous, CPU, "127.0.0.1", BUILD_S, GROUP_S)

    found = together(world, one)
    assert all(isinstance(group, Group) for group in found), found
    return found


def summed(group: Group, rank: int) -> float:
    x = torch.full((3,), float(rank + 1))
    group.pg.allreduce([x]).wait()
    return float(x[0])


def test_a_group_comes_together_through_the_store(store: Store) -> None:
    began_s = time.perf_counter()
    made = built(store, 4, (1, 0))
    print(f"4 members: {1e3 * (time.perf_counter() - began_s):.0f} ms")
    assert together(4, lambda rank: summed(made[rank], rank)) == [10.0] * 4
    assert not any(group.broken() for group in made)


def test_a_group_stands_whoever_looks_at_it_meanwhile(store: Store) -> None:
    """Each look has copies of all sockets for a moment."""
    made = built(store, 3, (11, 0))
    over = threading.Event()

    def look(_: int) -> int:
        looks = 0
        while not over.is_set():
            made[0].broken()
            looks += 1
        return looks

    def count(_: int) -> set[int]:
        counts = {made[1].connections.count() for _ in range(300)} if made[1].connections else set()
        over.set()
        return counts

    found = together(3, lambda number: count(number) if number == 2 else look(number))
    assert min(found[:2]) > 10
    assert len(found[2]) == 1


def test_everybody_is_let_go_from_a_collective_that_cannot_end(store: Store) -> None:
    """One member never comes. Another group of the same process, and the store's connection, are not touched."""
    made, other = built(store, 4, (2, 0)), built(store, 2, (3, 0))
    errors: list[Any] = [None] * 3

    def wait(rank: int) -> None:
        try:
            summed(made[rank], rank)
        except RuntimeError as error:
            errors[rank] = error

    threads = [threading.Thread(target=wait, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for rank in range(3):
        made[rank].release()
    for thread in threads:
        thread.join(GROUP_S / 2)
    assert all(isinstance(error, RuntimeError) for error in errors), errors
    assert all(group.broken() for group in made)
    assert together(2, lambda rank: summed(other[rank], rank)) == [3.0, 3.0]
    assert not any(group.broken() for group in other)
    assert store.records.up


def test_one_that_is_gone_is_noticed_by_its_connections(store: Store) -> None:
    made = built(store, 3, (4, 0))
    gone = made.pop()
    assert gone.connections is not None
    gone.connections.shut()
    together(2, lambda rank: summed(made[rank], rank))  # each finds out when it uses the connection
    assert [group.broken() for group in made] == [True, True]
    assert not any(group.released for group in made)


def test_who_waits_for_a_member_that_never_comes_can_be_called_off(store: Store) -> None:
    rendezvous = store.rendezvous("t-5-0.", 60.0)
    began_s = time.monotonic()
    found: list[Any] = []

    def wait() -> None:
        try:
            build((5, 0), 0, 2, rendezvous, CPU, "127.0.0.1", 60.0, GROUP_S)
        except RuntimeError as error:
            found.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    while not rendezvous.told:
        time.sleep(0.001)
    rendezvous.abort()
    thread.join(30)
    assert "not wanted" in str(found[0])
    assert time.monotonic() - began_s < 60.0
    with pytest.raises(Aborted):
        rendezvous.get("anything")


def test_a_member_that_does_not_come_in_time_is_an_error(store: Store) -> None:
    with pytest.raises(TimeoutError, match="was not set within"):
        build((6, 0), 0, 2, store.rendezvous("t-6-0.", 0.2), CPU, "127.0.0.1", 0.2, GROUP_S)


def test_one_who_is_alone_asks_nobody(store: Store) -> None:
    try:
        groups.install(groups.hollow(2, 4))
        assert (dist.get_rank(), dist.get_world_size()) == (2, 4)
        x = torch.ones(2)
        dist.all_reduce(x)
        dist.barrier()
        assert x.tolist() == [1.0, 1.0]
        first, second = built(store, 1, (7, 0))[0], built(store, 1, (8, 0))[0]
        for group in (first, second):
            groups.install(group)
            dist.all_reduce(x)
            assert dist.group.WORLD is group.pg
            assert dist.get_backend() == "gloo"
        assert list(dist.distributed_c10d._world.pg_map) == [second.pg]
    finally:
        dist.destroy_process_group()


def test_groups_leave_nothing_open(store: Store) -> None:
    def files() -> int:
        return len(os.listdir("/proc/self/fd"))

    def round_(number: int) -> None:
        for group in built(store, 2, (20, number)):
            group.release()
            group.close()

    round_(0)
    before = files()
    for number in range(1, 5):
        round_(number)
    assert files() <= before
