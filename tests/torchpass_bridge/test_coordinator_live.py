"""Coordinators over a real store, with members that follow their duty: moved, crashed, killed, restarted, refused."""

from __future__ import annotations

import time

import msgspec
import pytest
from live_members import Desks, LiveWorld, ask, fit, job_of, running, steps, until

from torchpass_bridge.store.records import NoCoordinator, Records
from torchpass_bridge.store.server import Server
from torchpass_bridge.wire import Ask, Entry


async def closed(records: Records, number: int = 1) -> Entry:
    """The incident's entry, once it is closed and the job has gone on."""
    found: list[Entry] = []

    async def there() -> bool:
        found[:] = [entry for entry in await records.entries(0.0) if entry.number == number]
        return bool(found) and (await job_of(records)).incident is None

    await until(there, f"incident {number} is closed")
    return found[0]


async def goes_on(world: LiveWorld) -> None:
    before = steps(world)
    await until(lambda: steps(world) > before + 5, "the job makes steps")


# beginnings
async def test_a_job_is_founded_when_all_its_ranks_are_there(server: Server, records: Records) -> None:
    world, desks = LiveWorld(server.url), Desks(server.url)
    await desks.begin()
    try:
        await world.add_rank(0)
        await world.add_rank(2)
        await world.start_rounds()
        coordinator = desks.all[0][2]
        await until(lambda: "j" in coordinator.desks and len(coordinator.picture.seats) == 2, "two seats are seen")
        assert await records.job("j") is None
        await world.add_rank(1)
        await goes_on(world)
        job = await job_of(records)
        assert (job.generation, job.attempt, job.world) == (1, 0, 3)
        assert [m.host for m in job.members] == ["h0", "h1", "h2"]
    finally:
        await desks.stop()
        await world.stop()


async def test_ranks_that_are_not_alike_are_refused_and_may_try_again(server: Server, records: Records) -> None:
    world, desks = LiveWorld(server.url, ranks=2), Desks(server.url)
    await desks.begin()
    try:
        first = await world.add_rank(0)
        await world.add_rank(1, fit(2, torch="3"))
        await world.start_rounds()
        await until(lambda: len(world.ended) == 2, "both are told")
        assert world.ended[first.member.id] == (
            "refusedrank 1 on h1 is not like rank 0 on h0: torch version 3 instead of 2"
        )
        await world.add_rank(0)
        await world.add_rank(1)
        await goes_on(world)
        assert (await job_of(records)).generation == 2
    finally:
        await desks.stop()
        await world.stop()


async def test_a_finished_job_can_be_run_again_under_its_name(server: Server, records: Records) -> None:
    async with running(server.url, ranks=2, spares=0) as (world, _):
        world.steps = steps(world) + 3

        async def over() -> bool:
            return (await job_of(records)).ended == "finished"

        await until(over, "the job has finished")
        old = {m.id for m in (await job_of(records)).members}
        world.completed.clear()
        world.steps = 10**6
        await world.add_rank(0)
        await world.add_rank(1)
        await goes_on(world)
        job = await job_of(records)
        assert job.generation == 2 and set(job.fenced) == old


# moves
async def test_a_planned_move_takes_no_step_away(server: Server, records: Records) -> None:
    async with running(server.url) as (world, _):
        assert (await ask(records, "migrate", "h1", cause="maintenance")).taken
        entry = await closed(records)
        assert (entry.kind, entry.outcome, entry.hosts, entry.cause) == ("planned", "moved", ("h1",), "maintenance")
        job = await job_of(records)
        assert [m.host for m in job.members] == ["h0", "s0", "h2"] and job.generation == 2
        await goes_on(world)
        again = await ask(records, "migrate", "h1")
        assert not again.taken and again.why == "no rank of j is on h1"

        async def given_back() -> bool:
            return set((await records.spares()).keys()) == {"s1-2"}

        await until(given_back, "the spare that has a rank is none any more")


async def test_a_crash_is_taken_over(server: Server, records: Records) -> None:
    async with running(server.url) as (world, _):
        await world.die(world.processes[(await job_of(records)).members[2].id])
        entry = await closed(records)
        assert (entry.kind, entry.outcome, entry.ranks, entry.steps_lost) == ("crash", "moved", (2,), 0)
        assert [m.host for m in (await job_of(records)).members] == ["h0", "h1", "s0"]
        await goes_on(world)


async def test_two_coordinators_do_what_one_does(server: Server, records: Records) -> None:
    async with running(server.url, desks=3) as (world, _):
        assert (await ask(records, "migrate", "h1")).taken
        await closed(records)
        await world.die(world.processes[(await job_of(records)).members[0].id])
        entry = await closed(records, 2)
        job = await job_of(records)
        assert (entry.outcome, job.generation, job.incidents) == ("moved", 3, 2)
        assert [m.host for m in job.members][1:] == ["s0", "h2"]
        await goes_on(world)


async def test_a_record_that_makes_no_sense_ends_the_watching_of_no_other_job(
    server: Server, records: Records, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(server.url) as (_, _):
        job = await job_of(records)
        odd = msgspec.structs.replace(job, name="odd", members=job.members[:1])
        revision = await records.put_job(odd, 0)
        await until(lambda: "job odd: its desk begins anew" in caplog.text, "it is told")
        assert (await ask(records, "migrate", "h1")).taken
        assert (await closed(records)).outcome == "moved"
        await records.put_job(msgspec.structs.replace(odd, members=job.members), revision)

        async def answered() -> bool:
            try:
                answer = await records.ask("odd", Ask("q", "migrate", "nowhere"), 0.5)
            except NoCoordinator:
                return False
            return answer.why == "no rank of odd is on nowhere"

        await until(answered, "the job that makes sense again is decided for")


# failures on the way
async def test_another_coordinator_goes_on_in_any_phase(server: Server, records: Records) -> None:
    async with running(server.url) as (world, desks):
        await world.die(world.processes[(await job_of(records)).members[2].id])

        async def begun() -> bool:
            return (await job_of(records)).incident is not None

        await until(begun, "an incident is under way")
        await desks.kill()
        await desks.begin()
        assert (await closed(records)).outcome == "moved"
        await goes_on(world)


async def test_the_store_is_killed_in_an_incident_and_comes_back(server: Server, records: Records) -> None:
    async with running(server.url) as (world, _):
        assert (await ask(records, "migrate", "h1")).taken
        await server.kill()
        before = steps(world)
        await until(lambda: steps(world) > before or any(p.doing == "paused" for p in world.processes.values()), "on")
        await server.start()
        assert (await closed(records)).outcome in ("moved", "cancelled")
        await goes_on(world)
        await world.die(world.processes[(await job_of(records)).members[2].id])
        await closed(records, 2)
        await goes_on(world)


async def test_without_a_store_the_job_trains_and_nobody_is_condemned(server: Server, records: Records) -> None:
    async with running(server.url) as (world, desks):
        await server.kill()
        scene = desks.all[0][2].desks["j"].scene
        assert scene is not None
        long_s = 1.5 * scene.limits.silent_s
        await until(lambda: time.monotonic() - scene.heard_s > long_s, "nobody is heard for longer than is allowed")
        await goes_on(world)
        await server.start()
        await goes_on(world)
        job = await job_of(records)
        assert job.incident is None and job.incidents == 0


async def test_a_spare_that_dies_is_replaced_by_another(server: Server, records: Records) -> None:
    async with running(server.url) as (world, _):
        await world.die(world.processes[(await job_of(records)).members[2].id])

        async def claimed() -> bool:
            incident = (await job_of(records)).incident
            return incident is not None and bool(incident.claims)

        await until(claimed, "a spare is claimed")
        incident = (await job_of(records)).incident
        assert incident is not None
        await world.die(world.processes[incident.claims[0][1].id])
        entry = await closed(records)
        assert entry.outcome == "moved" and len(entry.spares) == 1
        await goes_on(world)


# refusals
async def test_spares_that_do_not_fit_are_told_why_and_nobody_is_paused(server: Server, records: Records) -> None:
    async with running(server.url, spares=0) as (world, _):
        wrong_key = await world.add_live_spare("s1", key=b"another")
        misfit = await world.add_live_spare("s2", fit(3, torch="1.9", threads=8))
        small = await world.add_live_spare("s3", fit(3, state_bytes=0))
        await until(lambda: len(world.ended) == 3, "all are told")
        assert world.ended == {
            wrong_key.member.id: "it does not know the job's key",
            misfit.member.id: "torch version 1.9 instead of 2; number of threads 8 instead of 1",
            small.member.id: "0 bytes of state instead of 1",
        }
        assert (await ask(records, "migrate", "h1")).taken
        entry = await closed(records)
        assert entry.outcome == "cancelled" and "it does not know the job's key" in entry.why
        assert all(group == (1, 0) for groups in world.completed.values() for group, _ in groups)
        await goes_on(world)


async def test_the_hourly_budget_holds_for_all_but_operators(server: Server, records: Records) -> None:
    world, desks = LiveWorld(server.url), Desks(server.url)
    desks.limits = type(desks.limits)(silent_s=1.0, per_hour=1)
    try:
        await desks.begin()
        for number in range(3):
            await world.add_live_spare(f"s{number}")
        await world.start()
        await goes_on(world)
        assert (await ask(records, "migrate", "h0", trigger="threshold")).taken
        await closed(records)
        refused = await ask(records, "migrate", "h1", trigger="threshold")
        assert not refused.taken and "which is the limit" in refused.why
        assert (await ask(records, "migrate", "h1", unlimited=True)).taken
        assert (await closed(records, 2)).outcome == "moved"
    finally:
        await desks.stop()
        await world.stop()
