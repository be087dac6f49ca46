"""Who keeps a loan, and who keeps a rank of the lender: over a real store, with processes that end in all ways."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from commands import torchpass
from live_members import KEY, Desks, LiveWorld, fit, job_of, running, steps, until

from torchpass_bridge import lending, ranks
from torchpass_bridge.exits import FENCED, OVER, REFUSED, SAVED
from torchpass_bridge.lending import Lending
from torchpass_bridge.ranks import Rank
from torchpass_bridge.store.records import Conflict, Records
from torchpass_bridge.store.server import Server
from torchpass_bridge.wire import BEAT_S, GIVEN_BACK, Job, Loan, Member, Spare, Status, prove

LOAN = Loan("l", "j", "low", "h0")
SCRIPT = """
import json, os, pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
number = len(list(folder.glob("start-*")))
told = {name: os.environ.get(name) for name in ("TORCHPASS_SPARE", "TORCHPASS_LENT_FROM", "TORCHPASS_RESTORE")}
(folder / f"draft").write_text(json.dumps(told))
(folder / f"draft").rename(folder / f"start-{number}")
while not (folder / f"end-{number}").exists():
    time.sleep(0.01)
sys.exit(int((folder / f"end-{number}").read_text()))
"""


class Script:
    """The training script: each start tells what it was given, and ends when, and as, the test wants it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.command = (sys.executable, "-c", SCRIPT, str(folder))

    def starts(self) -> int:
        return len(list(self.folder.glob("start-*")))

    def given(self, number: int) -> Any:
        return json.loads((self.folder / f"start-{number}").read_text())

    def end(self, number: int, code: int) -> None:
        draft = self.folder / "ending"
        draft.write_text(str(code))
        draft.rename(self.folder / f"end-{number}")


@pytest.fixture
def script(tmp_path: Path) -> Script:
    return Script(tmp_path / "script")


class Told(list[str]):
    """What a launcher has told."""

    def has(self, words: str) -> bool:
        return any(words in line for line in self)


@asynccontextmanager
async def kept(work: Any) -> AsyncIterator[asyncio.Future[int]]:
    task = asyncio.ensure_future(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def lender(url: str, snapshots: str = "/shared") -> AsyncIterator[LiveWorld]:
    """A preemptible job that trains."""
    world, desks = LiveWorld(url, 2, name="low"), Desks(url, key=b"")
    try:
        await desks.begin()
        for rank in range(2):
            process = await world._add(f"h{rank}", fit(2))
            process.doing = "waiting"
            process.member = msgspec.structs.replace(process.member, snapshots=snapshots)
            await world.clients[process.member.id].seat("low", rank, process.member)
        await world.start_rounds()
        await until(lambda: steps(world) > 3, "it trains")
        yield world
    finally:
        await desks.stop()
        await world.stop()


async def state(records: Records) -> tuple[str, str, str]:
    """Of the loan: its state, who has called it, why it was of no use."""
    held = await records.loan("l")
    return (held.value.state, held.value.called_by, held.value.why) if held else ("", "", "")


async def comes_to(records: Records, wanted: str) -> None:
    async def so() -> bool:
        return (await state(records))[0] == wanted

    await until(so, f"the loan is {wanted or 'gone'}")


async def call(records: Records, by: str = "j/1") -> None:
    """As a coordinator of the other job."""
    await comes_to(records, "offered")
    while True:
        held = await records.loan("l")
        assert held is not None
        try:
            await records.put_loan(msgspec.structs.replace(held.value, state="called", called_by=by), held.revision)
        except Conflict:
            continue
        return


def keeps(records: Records, script: Script, told: Told) -> Any:
    return kept(Lending(records, LOAN, script.command, os.environ, told.append).run())


async def ended(records: Records) -> Job:
    async def so() -> bool:
        held = await records.job("low")
        return held is not None and bool(held.value.ended)

    await until(so, "the lender has ended")
    held = await records.job("low")
    assert held is not None
    return held.value


# who keeps a loan
async def test_the_lender_is_saved_and_stopped_and_a_spare_is_started_and_the_host_goes_back(
    server: Server, records: Records, script: Script
) -> None:
    told = Told()
    async with lender(server.url), keeps(records, script, told):
        await call(records)
        await until(lambda: script.starts() == 1, "the script is started")
        assert script.given(0) == {"TORCHPASS_SPARE": "1", "TORCHPASS_LENT_FROM": "low/l", "TORCHPASS_RESTORE": None}
        job = await ended(records)
        assert (job.ended, job.saved[-1].path) == ("stopped", "/shared/1")
        assert (await state(records))[0] == "lent"
        script.end(0, OVER)
        await comes_to(records, "offered")
        await call(records, "j/2")  # nothing of the lender runs: it need not be asked
        await until(lambda: script.starts() == 2, "it is started again")
        script.end(1, FENCED)
        await comes_to(records, "offered")
    assert await records.loans() == {}


async def test_a_drained_host_is_not_lent_any_more(server: Server, records: Records, script: Script) -> None:
    told, loan = Told(), msgspec.structs.replace(LOAN, host="a9")
    async with lender(server.url) as world:
        keeper = asyncio.ensure_future(Lending(records, loan, script.command, os.environ, told.append).run())
        await until(lambda: _offered(records), "it is offered")
        result = await torchpass("drain", loan.host, store=server.url)
        assert result.exit_code == 0, result.output
        assert f"{loan.host} is not lent any more" in result.stdout
        assert await keeper == OVER
        assert told[-1] == f"no loan any more: {loan.host} is drained"
        assert await records.loans() == {}
        at = steps(world)
        await until(lambda: steps(world) > at + 3, "its job trains on")
    assert script.starts() == 0


async def _offered(records: Records) -> bool:
    return bool(await records.loans())


async def test_a_lender_that_cannot_be_saved_trains_on_and_the_reason_is_told(
    server: Server, records: Records, script: Script
) -> None:
    async with lender(server.url, snapshots="") as world, keeps(records, script, Told()):
        await call(records)
        await comes_to(records, "offered")
        _, by, why = await state(records)
        assert by == "j/1"
        assert "TORCHPASS_SNAPSHOTS" in why
        at = steps(world)
        await until(lambda: steps(world) > at + 3, "it trains on")
    assert script.starts() == 0


async def test_a_snapshot_that_fails_stops_nobody(server: Server, records: Records, script: Script) -> None:
    async with lender(server.url) as world, keeps(records, script, Told()):
        next(iter(world.processes.values())).disk = "No space left on device"
        await call(records)
        await comes_to(records, "offered")
        assert "No space left on device" in (await state(records))[2]
        at = steps(world)
        await until(lambda: steps(world) > at + 3, "it trains on")


async def test_nobody_decides_for_the_lender(server: Server, records: Records, script: Script) -> None:
    await records.put_job(Job("low", 1, 1, (Member("m", "h0", 1, "a:1", fit(1)),)), 0)
    async with keeps(records, script, Told()):
        await call(records)
        await comes_to(records, "offered")
        assert "torchpass coordinator" in (await state(records))[2]


async def test_a_lender_that_is_just_beginning_is_stopped_once_it_has(
    server: Server, records: Records, script: Script
) -> None:
    world, desks, told = LiveWorld(server.url, 2, name="low"), Desks(server.url, key=b""), Told()
    try:
        await desks.begin()
        await world.add_rank(0)
        await world.start_rounds()
        async with keeps(records, script, told):
            await call(records)
            await until(lambda: told.has("is asked to stop"), "it is called")
            await world.add_rank(1)
            assert (await ended(records)).saved[-1].path
            await until(lambda: script.starts() == 1, "the script is started")
    finally:
        await desks.stop()
        await world.stop()


async def test_a_call_that_is_taken_back_starts_nothing(server: Server, records: Records, script: Script) -> None:
    await records.seat("low", 0, Member("m", "h0", 1, "a:1", fit(2)))  # it waits for the other one
    told = Told()
    async with keeps(records, script, told):
        await call(records)
        held = await records.loan("l")
        assert held is not None
        await until(lambda: told.has("is asked to stop"), "it is called")
        await records.put_loan(LOAN, held.revision)
        await until(lambda: told.has("not needed any more"), "it is told")
        assert (await state(records))[0] == "offered"
    assert script.starts() == 0


async def test_a_spare_that_is_not_needed_goes_back_and_one_that_can_never_serve_ends_it(
    server: Server, records: Records, script: Script
) -> None:
    async with keeps(records, script, Told()) as running:
        for number, refused in enumerate((GIVEN_BACK, "model x instead of y")):
            await call(records, f"j/{number}")
            await until(lambda n=number: script.starts() == n + 1, "the script is started")  # type: ignore[misc]
            member = Member(f"s{number}", "h0", 1, "a:1", fit(1), lent_from="low/l")
            revision = await records.offer(Spare(member, "j", refused=refused))
            script.end(number, REFUSED)
            if refused == GIVEN_BACK:
                await comes_to(records, "offered")
                await records.drop_spare(Spare(member, "j"), revision)
        assert await running == REFUSED
    assert await records.loans() == {}


async def test_after_a_script_that_fails_here_the_lender_has_the_host_for_a_while(
    server: Server, records: Records, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Told()
    async with keeps(records, script, told):
        await call(records)
        await until(lambda: script.starts() == 1, "the script is started")
        script.end(0, 1)
        await comes_to(records, "")
        assert told.has("offered again in 60 s")
    monkeypatch.setattr(lending, "MAX_WAIT_S", 0.1)
    async with keeps(records, script, told):
        await call(records)
        await until(lambda: script.starts() == 2, "the script is started")
        script.end(1, 1)
        await comes_to(records, "")
        await comes_to(records, "offered")
        assert (await state(records))[2] == "its script ended with status 1"


async def test_what_was_forgotten_is_offered_again_and_who_is_ended_takes_it_and_its_script_along(
    server: Server, records: Records, script: Script
) -> None:
    async with keeps(records, script, Told()):
        await comes_to(records, "offered")
        await records.drop_loan("l", None)
        await comes_to(records, "offered")
        await call(records)
        await until(lambda: script.starts() == 1, "the script is started")
        await records.drop_loan("l", None)
        await comes_to(records, "lent")
    assert await records.loans() == {}


async def test_it_ends_with_the_job_that_it_is_for(server: Server, records: Records, script: Script) -> None:
    job = Job("j", 1, 1, (Member("m", "h9", 1, "a:1", fit(1)),))
    revision = await records.put_job(msgspec.structs.replace(job, ended="finished"), 0)
    async with keeps(records, script, Told()) as running:
        await comes_to(records, "offered")  # the job may be run again
        revision = await records.put_job(job, revision)
        await records.put_job(msgspec.structs.replace(job, ended="finished", generation=2), revision)
        async with asyncio.timeout(60):
            assert await running == OVER


# who calls for it
async def test_two_coordinators_call_one_host_for_one_rank_and_it_is_taken_when_its_spare_is_there(
    server: Server, records: Records
) -> None:
    async with running(server.url, spares=0, desks=2) as (world, desks):
        for name in ("l1", "l2"):
            await records.put_loan(Loan(name, "j", "low", f"a-{name}", proof=prove(KEY, "j", name)), 0)
        beats = asyncio.ensure_future(_beat(records, "l1", "l2"))
        seen: list[tuple[str, str]] = []

        async def watch() -> None:
            async for loans in records.watch_loans():
                seen.extend((name, held.value.state) for name, held in loans.items())

        watching = asyncio.ensure_future(watch())
        try:
            await world.die(world.processes[(await job_of(records)).members[1].id])
            await until(lambda: ("l1", "called") in seen, "one is called")
            held = await records.loan("l1")
            assert held is not None and held.value.called_by == "j/1"
            waits_s, since_s = desks.limits.spare_wait_s + 0.5, time.monotonic()
            await until(lambda: time.monotonic() - since_s > waits_s, "it has waited longer than for a spare")
            assert (await job_of(records)).incident is not None
            await records.put_loan(msgspec.structs.replace(held.value, state="lent"), held.revision)
            await world.add_live_spare("a-l1", lent_from="low/l1")

            async def over() -> bool:
                return bool(await records.entries(0.0))

            await until(over, "it has moved")
            (entry,) = await records.entries(0.0)
            assert (entry.outcome, entry.spares[0][:4]) == ("moved", "a-l1")
            assert (await job_of(records)).members[1].lent_from == "low/l1"
            assert ("l2", "called") not in seen
            at = steps(world)
            await until(lambda: steps(world) > at + 3, "it goes on")
        finally:
            for task in (beats, watching):
                task.cancel()
            await asyncio.gather(beats, watching, return_exceptions=True)


async def _beat(records: Records, *loans: str) -> None:
    for sequence in itertools.count(1):
        for loan in loans:
            records.say("j", Status(loan, sequence, "waiting"))
        await asyncio.sleep(BEAT_S)


# who keeps a rank
def stays(records: Records, script: Script, told: Told) -> Any:
    return kept(Rank(records, "low", script.command, {**os.environ, "RANK": "0"}, told.append).run())


RUNS = Job("low", 1, 1, (Member("m", "h0", 1, "a:1", fit(1)),))


async def test_a_rank_of_a_job_that_was_saved_goes_on_when_no_host_is_lent(
    server: Server, records: Records, script: Script
) -> None:
    told = Told()
    async with stays(records, script, told) as running:
        await until(lambda: script.starts() == 1, "it is started")
        assert script.given(0)["TORCHPASS_RESTORE"] == "latest"
        revision = await records.put_job(RUNS, 0)
        lent = await records.put_loan(msgspec.structs.replace(LOAN, state="called", called_by="j/1"), 0)
        await records.put_job(msgspec.structs.replace(RUNS, ended="stopped"), revision)
        script.end(0, SAVED)
        await until(lambda: told.has("waits: h0 is called (j/1)"), "it waits")
        lent = await records.put_loan(msgspec.structs.replace(LOAN, state="lent", called_by="j/1"), lent)
        await until(lambda: told.has("waits: h0 is lent (j/1)"), "it waits on")
        assert script.starts() == 1
        await records.put_loan(LOAN, lent)
        await until(lambda: script.starts() == 2, "it goes on")
        script.end(1, OVER)
        assert await running == OVER


async def test_a_rank_that_has_died_is_not_started_beside_its_job(
    server: Server, records: Records, script: Script
) -> None:
    told = Told()
    async with stays(records, script, told) as running:
        await until(lambda: script.starts() == 1, "it is started")
        revision = await records.put_job(RUNS, 0)
        script.end(0, 1)
        await until(lambda: told.has("waits: low trains"), "it waits")
        assert script.starts() == 1
        revision = await records.put_job(msgspec.structs.replace(RUNS, ended="stopped"), revision)
        await until(lambda: script.starts() == 2, "it goes on")
        revision = await records.put_job(msgspec.structs.replace(RUNS, generation=2), revision)
        script.end(1, FENCED)
        await records.put_job(msgspec.structs.replace(RUNS, generation=2, ended="finished"), revision)
        async with asyncio.timeout(60):
            assert await running == OVER


async def test_a_rank_whose_job_has_not_begun_makes_room_when_a_host_is_lent(
    server: Server, records: Records, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "GRACE_S", 0.1)
    told = Told()
    async with stays(records, script, told) as running:
        await until(lambda: script.starts() == 1, "it is started")
        lent = await records.put_loan(msgspec.structs.replace(LOAN, state="lent", called_by="j/1"), 0)
        await until(lambda: told.has("a host of its job is lent"), "it is ended")
        await records.put_loan(LOAN, lent)
        await until(lambda: script.starts() == 2, "it begins again")
        script.end(1, REFUSED)
        assert await running == REFUSED
