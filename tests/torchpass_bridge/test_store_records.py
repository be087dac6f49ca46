"""The records in a real store: who wins, what watchers see, and what a restart of the server leaves."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import random
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

from torchpass_bridge.store.link import TRY_S
from torchpass_bridge.store.records import Conflict, NoCoordinator, Records, StoreAway, Taken
from torchpass_bridge.store.server import Server, ServerError
from torchpass_bridge.wire import Answer, Ask, Entry, Fit, Job, Loan, Member, Spare, Status, encode

FIT = Fit(torch="2", device="cpu", model="m", optimizer="o", state_bytes=1, threads=1, world=2)
T = TypeVar("T")


def member(name: str, host: str = "h") -> Member:
    return Member(name, host, 1, f"{host}:1", FIT)


def job(generation: int = 1, name: str = "j") -> Job:
    return Job(name, 2, generation, (member("a"), member("b")))


def entry(number: int, ended_unix_s: float, why: str = "") -> Entry:
    return Entry(
        "j", number, "crash", "c", (), "silence", (0,), ("h",), (), "moved", why, 0.0, ended_unix_s, 0.5, 0, 2, 1
    )


async def until(values: AsyncIterator[T], wanted: int) -> T:
    """The first value whose revision is at least `wanted`."""
    async for value in values:
        if value.revision >= wanted:  # type: ignore[attr-defined]
            return value
    raise AssertionError("ended")


class Seen:
    """What a watcher has given so far, and a way to wait for what it will."""

    def __init__(self, values: AsyncIterator[T]) -> None:
        self.all: list[T] = []
        self._news = asyncio.Event()
        self._task = asyncio.ensure_future(self._watch(values))

    async def _watch(self, values: AsyncIterator[T]) -> None:
        async for value in values:
            self.all.append(value)
            self._news.set()

    async def until(self, wanted: object) -> None:
        """`wanted`: a function of the latest value."""
        async with asyncio.timeout(60):
            while not (self.all and wanted(self.all[-1])):  # type: ignore[operator]
                self._news.clear()
                await self._news.wait()

    async def end(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


@pytest.fixture
async def clients(server: Server) -> AsyncIterator[list[Records]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(await Records.connect(server.url, f"c{n}")) for n in range(8)]


# who wins
async def test_of_many_that_write_the_same_revision_exactly_one_does(clients: list[Records]) -> None:
    revision = await clients[0].put_job(job(), 0)
    for generation in range(2, 12):
        tries = [client.put_job(job(generation), revision) for client in clients]
        results = await asyncio.gather(*tries, return_exceptions=True)
        won = [result for result in results if isinstance(result, int)]
        assert len(won) == 1
        assert all(isinstance(result, Conflict) for result in results if not isinstance(result, int))
        revision = won[0]
    held = await clients[1].job("j")
    assert held is not None and held.revision == revision and held.value.generation == 11


async def test_a_record_is_made_once(clients: list[Records]) -> None:
    results = await asyncio.gather(*(client.put_job(job(), 0) for client in clients), return_exceptions=True)
    assert sum(isinstance(result, int) for result in results) == 1
    assert sum(isinstance(result, Conflict) for result in results) == len(clients) - 1


async def test_fifty_that_claim_ten_spares_get_each_once(clients: list[Records]) -> None:
    for number in range(10):
        await clients[0].offer(Spare(member(f"s{number}"), "j"))
    got: list[tuple[str, str]] = []

    async def claimer(number: int) -> None:
        client, name = clients[number % len(clients)], f"j/{number}"
        while True:
            free = {k: held for k, held in (await client.spares()).items() if not held.value.claimed_by}
            if not free:
                return
            spare_id, held = sorted(free.items())[number % len(free)]
            try:
                await client.put_spare(Spare(held.value.member, "j", claimed_by=name), held.revision)
            except Conflict:
                continue
            got.append((spare_id, name))
            return

    await asyncio.gather(*(claimer(number) for number in range(50)))
    assert sorted(spare for spare, _ in got) == sorted(f"s{number}" for number in range(10))
    held = await clients[0].spares()
    assert {(spare, one.value.claimed_by) for spare, one in held.items()} == set(got)


async def test_of_many_that_call_a_loan_one_does_and_who_keeps_it_sees_it(clients: list[Records]) -> None:
    keeper, *others = clients
    loan = Loan("l", "j", "low", "h")
    revision = await keeper.put_loan(loan, 0)
    with pytest.raises(Conflict):
        await keeper.put_loan(loan, 0)
    seen = Seen(keeper.watch_loans())
    calls = [
        other.put_loan(msgspec.structs.replace(loan, state="called", called_by=f"j/{number}"), revision)
        for number, other in enumerate(others)
    ]
    results = await asyncio.gather(*calls, return_exceptions=True)
    (won,) = [number for number, result in enumerate(results) if isinstance(result, int)]
    assert sum(isinstance(result, Conflict) for result in results) == len(others) - 1
    await seen.until(lambda loans: loans["l"].value.called_by == f"j/{won}")
    await others[0].drop_loan("l", None)
    await seen.until(lambda loans: not loans)
    assert await keeper.loan("l") is None
    assert await keeper.put_loan(loan, 0) > revision
    assert {name: held.value for name, held in (await keeper.loans()).items()} == {"l": loan}
    await seen.end()


async def test_a_seat_is_taken_once_and_again_only_when_its_run_has_ended(records: Records) -> None:
    await records.seat("j", 0, member("a"))
    await records.seat("j", 0, member("a"))
    with pytest.raises(Taken, match="rank 0 of j is taken by process 1 on h") as taken:
        await records.seat("j", 0, member("z"))
    assert taken.value.by.id == "a"
    revision = await records.put_job(job(), 0)
    with pytest.raises(Taken):
        await records.seat("j", 0, member("z"))
    await records.put_job(Job("j", 2, 1, job().members, ended="finished"), revision)
    await records.seat("j", 0, member("z"))
    assert {rank: one.id for rank, one in (await records.seats("j")).items()} == {0: "z"}


async def test_a_deleted_record_can_be_made_again_and_deleting_names_a_revision(records: Records) -> None:
    spare = Spare(member("s"), "j")
    revision = await records.offer(spare)
    assert await records.offer(spare) == revision
    claimed = await records.put_spare(Spare(spare.member, "j", claimed_by="j/1"), revision)
    with pytest.raises(Conflict):
        await records.drop_spare(spare, revision)
    await records.drop_spare(spare, claimed)
    assert await records.spares() == {}
    assert await records.offer(spare) > claimed


async def test_names_that_would_be_other_keys_are_refused(records: Records) -> None:
    for name in ("a.b", "*", ">", "", "a b", "x" * 65):
        with pytest.raises(ValueError, match="a name is"):
            await records.job(name)


async def test_what_is_too_large_is_said_before_it_is_sent(records: Records) -> None:
    noise = random.Random(1).randbytes(9 << 20)
    with pytest.raises(ValueError, match=r"j\.k has \d+ bytes, the store takes 8388608"):
        await records.scratch_set("j.k", noise)


async def test_the_record_of_a_large_job_comes_as_it_was_and_is_small_on_the_way(records: Records) -> None:
    members = tuple(member(f"m{n}", f"host{n}") for n in range(1024))
    large = Job("j", 1024, 1, members)
    seen = Seen(records.watch_job("j"))
    revision = await records.put_job(large, 0)
    await seen.until(lambda held: held.value == large)
    assert await records.put_job(msgspec.structs.replace(large, generation=2), revision) == revision + 1
    await seen.until(lambda held: held.value.generation == 2)
    held = await records.job("j")
    assert held is not None and held.value.members == members
    stored = await records._link.js.get_last_msg("KV_torchpass", "$KV.torchpass.job.j")
    assert stored.data is not None and len(stored.data) < len(encode(large)) / 5
    await seen.end()


# what watchers see
async def test_a_watcher_sees_the_latest_first_and_then_every_revision(records: Records) -> None:
    revision = await records.put_job(job(), 0)
    seen = Seen(records.watch_job("j"))
    await seen.until(lambda held: held.revision == revision)
    for generation in range(2, 30):
        revision = await records.put_job(job(generation), revision)
    await seen.until(lambda held: held.revision == revision)
    assert [held.value.generation for held in seen.all] == list(range(1, 30))
    await seen.end()


async def test_spares_are_seen_as_one_picture(records: Records) -> None:
    seen = Seen(records.watch_spares())
    await seen.until(lambda spares: spares == {})
    await records.offer(Spare(member("s1"), "j"))
    revision = await records.offer(Spare(member("s2"), "j"))
    await seen.until(lambda spares: set(spares) == {"s1", "s2"})
    await records.drop_spare(Spare(member("s2"), "j"), revision)
    await seen.until(lambda spares: set(spares) == {"s1"})
    await seen.end()


async def test_watchers_go_on_after_a_kill_and_see_what_was_written_by_others_meanwhile(
    server: Server, clients: list[Records]
) -> None:
    one, other = clients[:2]
    revision = await one.put_job(job(), 0)
    jobs, spares = Seen(one.watch_job("j")), Seen(one.watch_spares())
    statuses, asks = Seen(one.statuses("j")), Seen(one.asks("j"))
    heard: list[Status] = []
    hearing = AsyncExitStack()
    await hearing.enter_async_context(one.hearing("j", heard.append))
    await jobs.until(lambda held: held.revision == revision)
    for round_ in range(3):
        await server.kill()
        with pytest.raises(StoreAway):
            await other.put_job(job(99), 1)
        await server.start()
        revision = await other.put_job(job(2 + round_), revision)
        await other.offer(Spare(member(f"s{round_}"), "j"))
        await jobs.until(lambda held, r=revision: held.revision == r)
        await spares.until(lambda picture, r=round_: f"s{r}" in picture)
    beat = asyncio.ensure_future(_say_until(other, statuses))
    await statuses.until(lambda status: status.step == 7)
    await beat
    assert heard and heard[-1].step == 7
    await hearing.aclose()
    answer = asyncio.ensure_future(other.ask("j", Ask("q", "migrate", "h"), 5.0))
    await asks.until(lambda one: one[0].id == "q")
    await asks.all[-1][1](Answer(True, "yes"))
    assert (await answer).why == "yes"
    for seen in (jobs, spares, statuses, asks):
        await seen.end()


async def test_a_change_of_which_no_word_came_is_found(clients: list[Records]) -> None:
    one, other = clients[:2]
    spares = Seen(one.watch_spares())
    await other.offer(Spare(member("s0"), "j"))
    await spares.until(lambda picture: "s0" in picture)
    for subscription in one._link._subscriptions.values():
        await subscription.unsubscribe()
    await other.offer(Spare(member("s1"), "j"))
    await spares.until(lambda picture: picture.keys() == {"s0", "s1"})
    await spares.end()


async def test_what_goes_wrong_with_a_status_ends_nothing(clients: list[Records]) -> None:
    one, other = clients[:2]
    heard: list[int] = []

    def hear(status: Status) -> None:
        heard.append(status.sequence)
        raise RuntimeError("not as it should be")

    async with one.hearing("j", hear):
        sequences = itertools.count(1)
        while len(heard) < 2:
            other.say("j", Status("a", next(sequences), "training"))
            await asyncio.sleep(0.02)
    assert one.up


async def _say_until(records: Records, seen: Seen) -> None:
    """As members do: again and again."""
    while not seen.all:
        records.say("j", Status("a", 1, "training", step=7))
        await asyncio.sleep(0.02)


# the store is away
async def test_a_call_waits_for_a_restart_and_is_done_once(server: Server, records: Records) -> None:
    revision = await records.put_job(job(), 0)
    await server.kill()
    write = asyncio.ensure_future(records.put_job(job(2), revision))
    await server.start()
    assert await write == revision + 1
    held = await records.job("j")
    assert held is not None and held.value.generation == 2


async def test_a_write_that_is_sent_again_is_done_once(server: Server, records: Records) -> None:
    """The server stands still for longer than an answer is waited for: all of them are in its queue when it goes on."""
    revision = await records.put_job(job(), 0)
    os.kill(server.pid, signal.SIGSTOP)
    write = asyncio.ensure_future(records.put_job(job(2), revision))
    asyncio.get_running_loop().call_later(2.2 * TRY_S, os.kill, server.pid, signal.SIGCONT)
    assert await write == revision + 1
    assert await records.put_job(job(3), revision + 1) == revision + 2
    await records.scratch_add("j.k", 1)
    os.kill(server.pid, signal.SIGSTOP)
    adds = asyncio.gather(*(records.scratch_add("j.k", 1) for _ in range(4)))
    asyncio.get_running_loop().call_later(2.2 * TRY_S, os.kill, server.pid, signal.SIGCONT)
    assert sorted(await adds) == [2, 3, 4, 5]
    assert await records.scratch_get("j.k") == b"5"


async def test_a_write_of_which_nothing_is_known_may_have_been_done(server: Server, records: Records) -> None:
    revision = await records.put_job(job(), 0)
    os.kill(server.pid, signal.SIGSTOP)
    with pytest.raises(StoreAway):
        await records.put_job(job(2), revision)
    os.kill(server.pid, signal.SIGCONT)
    with pytest.raises(Conflict):
        await records.put_job(job(3), revision)
    held = await records.job("j")
    assert held is not None and (held.value.generation, held.revision) == (2, revision + 1)


async def test_without_a_store_every_call_says_so(server: Server, records: Records) -> None:
    await server.stop()
    with pytest.raises(StoreAway, match=r"write job\.j: the store at 127\.0\.0\.1:\d+ does not answer"):
        await records.put_job(job(), 0)
    with pytest.raises(StoreAway, match="went away"):
        await records.ask("j", Ask("q", "migrate", "h"), 0.2)
    records.say("j", Status("a", 1, "training"))
    assert not records.up
    with pytest.raises(StoreAway, match="Is it started"):
        await Records.connect(server.url)


async def test_a_wrong_password_is_said(server: Server) -> None:
    with pytest.raises(StoreAway, match="Authorization Violation"):
        await Records.connect(server.url.replace("torchpass:", "torchpass:not"))


async def test_nobody_decides_for_a_job_without_a_coordinator(records: Records) -> None:
    with pytest.raises(NoCoordinator, match="torchpass coordinator"):
        await records.ask("j", Ask("q", "migrate", "h"), 1.0)


async def test_what_is_no_record_is_left_out(records: Records) -> None:
    await records._bucket.put("spare.odd", b"{", None)
    await records.offer(Spare(member("s"), "j"))
    assert set(await records.spares()) == {"s"}


# the ledger
async def test_an_entry_is_written_once_and_found_by_time_and_job(records: Records) -> None:
    for number in range(1, 5):
        await records.write_entry(entry(number, 100.0 * number))
    await records.write_entry(entry(4, 9999.0, "a second one"))
    assert [one.number for one in await records.entries(150.0)] == [2, 3, 4]
    assert [one.why for one in await records.entries(400.0, "j")] == [""]
    assert await records.entries(0.0, "other") == []


# for process groups
async def test_sums_are_exact_however_many_add(clients: list[Records]) -> None:
    sums = await asyncio.gather(*(client.scratch_add("j.1.0/count", 1) for client in clients for _ in range(5)))
    assert sorted(sums) == list(range(1, 41))


async def test_any_text_is_a_key_and_prefixes_are_dropped_together(records: Records) -> None:
    keys = ["j.2.0/a b", "j.2.0/a=20b", "j.2.0//ä*>", "j..x.", "j", "other.j"]
    for number, key in enumerate(keys):
        await records.scratch_set(key, b"%d" % number)
    assert [await records.scratch_get(key) for key in keys] == [b"%d" % n for n in range(len(keys))]
    await records.scratch_drop("j")
    assert [await records.scratch_get(key) for key in keys] == [None] * 5 + [b"5"]


async def test_a_value_is_waited_for_and_a_restart_forgets_it(server: Server, clients: list[Records]) -> None:
    waiting = asyncio.ensure_future(clients[0].scratch_wait("j.k", 10.0))
    await clients[1].scratch_set("j.k", b"v")
    assert await waiting == b"v"
    with pytest.raises(TimeoutError, match=r"j\.other was not set within 0\.05 s"):
        await clients[0].scratch_wait("j.other", 0.05)
    await server.kill()
    await server.start()
    assert await clients[0].scratch_get("j.k") is None
    await clients[1].scratch_set("j.k", b"w")
    assert await clients[0].scratch_wait("j.k", 10.0) == b"w"


async def test_a_connection_that_the_server_ends_for_good_is_made_anew(server: Server, records: Records) -> None:
    """It does so after what it does not understand; the client gives up by itself then."""
    await records.put_job(job(), 0)
    seen = Seen(records.watch_job("j"))
    await seen.until(lambda held: held.value.generation == 1)
    client = records._link._client
    client._transport.write(b"NONSENSE\r\n")
    revision = 1
    for generation in range(2, 50):
        revision = await records.put_job(job(generation), revision)
        if records._link._client is not client:
            break
        await asyncio.sleep(0.01)
    assert client.is_closed and records._link._client is not client
    await seen.until(lambda held: held.revision == revision)
    await records.put_job(job(99), revision)
    await seen.until(lambda held: held.value.generation == 99)
    await seen.end()


# The client leaves the sockets of refused attempts to the garbage collector, which complains.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_another_store_at_its_address_for_a_while_is_not_taken_for_it(
    tmp_path: Path, server: Server, records: Records
) -> None:
    """Its password is another one; what it says is not believed, and the right one is found again."""
    revision = await records.put_job(job(), 0)
    seen = Seen(records.watch_job("j"))
    await seen.until(lambda held: held.revision == revision)
    await server.stop()
    async with Server(tmp_path / "other", port=int(server.url.rpartition(":")[2])):
        with pytest.raises(StoreAway):
            await records.put_job(job(2), revision)
    await server.start()
    revision = await records.put_job(job(3), revision)
    await seen.until(lambda held: held.revision == revision)
    await seen.end()
    gc.collect()


# the server
async def test_a_server_keeps_its_place_and_its_password(tmp_path: Path) -> None:
    async with Server(tmp_path) as server:
        url = server.url
    async with Server(tmp_path) as server:
        assert server.url == url
        with pytest.raises(ServerError, match=f"served by process {server.pid} already"):
            await Server(tmp_path).start()
    assert (tmp_path / "nats.conf").stat().st_mode & 0o077 == 0


async def test_a_server_that_cannot_listen_says_why(tmp_path: Path, server: Server) -> None:
    port = int(server.url.rpartition(":")[2])
    with pytest.raises(ServerError, match="address already in use"):
        await Server(tmp_path / "other", port=port).start()


async def test_addresses_of_a_fabric_serve(tmp_path: Path) -> None:
    async with Server(tmp_path, host="::1") as server:
        assert "@[::1]:" in server.url
        async with await Records.connect(server.url) as records:
            await records.put_job(job(), 0)
