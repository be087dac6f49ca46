"""One fault at a time: what the machine decides, and what it leaves alone."""

from __future__ import annotations

import msgspec
import pytest
from migration_sim import World
from sim_members import FIT

from torchpass_bridge.core.duty import duty
from torchpass_bridge.core.scene import Limits
from torchpass_bridge.wire import Ask, Entry


def entries(world: World) -> list[Entry]:
    return [world.store.entries[number] for number in sorted(world.store.entries)]


def end(world: World) -> list[Entry]:
    """Run on; the job has to end as if nothing had happened."""
    world.run(3000)
    assert world.job.ended == "finished"
    assert sorted(world.completed) == list(range(world.steps))
    return entries(world)


def test_an_undisturbed_job_has_no_incident_and_its_record_is_written_once() -> None:
    world = World(1)
    assert end(world) == []
    assert world.job.generation == 1
    assert len(world.store.history) == 2  # founded, ended


def test_a_killed_rank_is_moved_to_a_spare_and_its_old_holder_is_fenced() -> None:
    world = World(2)
    world.run(40)
    victim = world.holder(2)
    world.kill(victim)
    (entry,) = end(world)
    assert (entry.kind, entry.outcome, entry.ranks, entry.hosts) == ("crash", "moved", (2,), ("h2",))
    assert victim.member.id in world.job.fenced
    assert [m.host for m in world.job.members] == ["h0", "h1", entry.spares[0].split("-")[0], "h3"]


def test_a_frozen_rank_that_thaws_is_fenced_and_ends() -> None:
    world = World(3, steps=400)
    world.run(40)
    frozen = world.holder(1)
    frozen.frozen_until = world.tick + 300
    world.run(250)
    assert world.job.generation == 2
    world.run(100)
    assert duty(world.job, frozen.member.id).fenced
    assert not frozen.alive
    end(world)


def test_a_planned_move_pauses_all_at_one_step_and_breaks_no_collective() -> None:
    world = World(4)
    world.run(40)
    world.ask("migrate", "h1", "a")
    (entry,) = end(world)
    assert (entry.kind, entry.outcome, entry.attempts) == ("planned", "moved", 1)
    assert [phase for phase, _ in entry.phase_unix_s] == [
        "requested", "preparing", "quiescing", "moving", "resuming",
    ]  # fmt: skip
    assert all(len(groups) == 1 for groups in world.completed.values())
    assert world.answers["a"].taken


def test_a_planned_move_takes_state_from_those_that_stay_and_its_own_part_from_the_one_that_leaves() -> None:
    world = World(5)
    world.run(40)
    world.ask("migrate", "h1", "a")
    end(world)
    copies = {j.incident.copies for _, j in world.store.history if j.incident and j.incident.phase == "moving"}
    ((copy,),) = copies
    assert (copy.to, copy.sources, copy.own) == (1, (0, 2, 3), 1)


@pytest.mark.parametrize("seed", range(8))
def test_those_that_have_not_applied_the_last_step_take_it_from_one_that_has(seed: int) -> None:
    world = World(seed, steps=100)
    while True:
        world.run(1)
        inside = [p for p in world.processes.values() if p.in_step]
        if world.tick > 40 and len(inside) == world.ranks:
            break
    world.kill(inside[0])
    best = max(p.step for p in world.processes.values() if p.alive and p.rank is not None)
    (entry,) = end(world)
    moving = next(j.incident for _, j in world.store.history if j.incident and j.incident.phase == "moving")
    assert moving.at_step == best
    assert entry.steps_lost == 0


def test_members_that_are_cut_off_from_the_store_but_train_are_left_alone() -> None:
    world = World(6, steps=200)
    world.run(40)
    for rank in (0, 2, 3):
        world.holder(rank).mute_until = world.tick + 250
    assert end(world) == []


def test_a_store_that_is_away_or_a_coordinator_that_stood_still_is_nobodys_silence() -> None:
    world = World(7, steps=300)
    world.run(40)
    world.store.away = True
    world.run(200)
    world.store.away = False
    world.run(50)
    for desk in world.desks:
        desk.dead_until = world.tick + 200
    assert end(world) == []


def test_everybody_silent_at_once_is_decided_by_nobody() -> None:
    """The spares are heard, so the store is there: what they train with may be all right all the same."""
    world = World(8, steps=400)
    world.run(40)
    for rank in range(world.ranks):
        world.holder(rank).mute_until = world.tick + 300
    world.run(250)
    assert world.job.incident is None
    assert end(world) == []


@pytest.mark.parametrize("spares", [0, 2])
def test_nobody_heard_for_long_is_noted_and_unsaid_when_they_are_heard_again(spares: int) -> None:
    world = World(8, steps=400, spares=spares, limits=Limits(lost_s=1.5))
    world.run(40)
    for rank in range(world.ranks):
        world.holder(rank).mute_until = world.tick + 300
    world.run(250)
    assert world.job.unheard_unix_s > 0
    assert not world.job.ended
    world.run(100)
    assert world.job.unheard_unix_s == 0
    assert end(world) == []


def test_a_group_that_breaks_while_all_live_is_built_anew_with_the_same_members() -> None:
    world = World(9)
    world.run(40)
    for rank in range(world.ranks):
        process = world.holder(rank)
        process.in_step, process.doing, process.peer_gone = False, "stopped", True
    (entry,) = end(world)
    assert (entry.trigger, entry.ranks, entry.spares, entry.outcome) == ("broken group", (), (), "moved")
    assert world.job.fenced == ()


def test_the_spare_that_dies_is_replaced_and_the_group_is_built_anew() -> None:
    world = World(10)
    world.run(40)
    world.ask("migrate", "h0", "a")
    while not (world.job.incident and world.job.incident.phase == "moving"):
        world.run(1)
    first = world.processes[world.job.incident.claims[0][1].id]
    world.kill(first)
    (entry,) = end(world)
    assert entry.outcome == "moved"
    assert entry.attempts == 2
    assert first.member.id not in entry.spares


def test_a_crash_during_a_planned_move_goes_first_and_the_move_comes_after() -> None:
    world = World(11, spares=3, steps=300)
    world.run(40)
    world.ask("migrate", "h0", "a")
    while not (world.job.incident and world.job.incident.phase == "preparing"):
        world.run(1)
    world.kill(world.holder(3))
    crash, planned = end(world)
    assert (crash.kind, crash.ranks, crash.outcome) == ("crash", (3,), "moved")
    assert (planned.kind, planned.hosts, planned.outcome) == ("planned", ("h0",), "moved")


def test_a_second_crash_in_the_middle_of_one_leaves_with_it() -> None:
    world = World(12, spares=3)
    world.run(40)
    world.kill(world.holder(0))
    while not (world.job.incident and world.job.incident.phase == "preparing"):
        world.run(1)
    world.kill(world.holder(2))
    (entry,) = end(world)
    assert (entry.ranks, entry.outcome) == ((0, 2), "moved")


def test_what_is_withdrawn_in_time_costs_nothing() -> None:
    world = World(13)
    world.run(40)
    world.ask("migrate", "h0", "a")
    while not (world.job.incident and world.job.incident.phase == "quiescing"):
        world.run(1)
    world.ask("withdraw", "h0", "b")
    (entry,) = end(world)
    assert entry.outcome == "cancelled"
    assert world.job.members[0].host == "h0"
    assert world.answers["b"].taken


def test_what_is_not_running_cannot_be_withdrawn() -> None:
    world = World(14)
    world.run(40)
    world.ask("withdraw", "h3", "b")
    assert end(world) == []
    assert not world.answers["b"].taken
    assert "h3" in world.answers["b"].why


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("torch", "1.9", "torch version 1.9 instead of 2"),
        ("model", "other", "model other instead of m"),
        ("state_bytes", 2, "2 bytes of state instead of 1"),
        ("threads", 8, "number of threads 8 instead of 1"),
    ],
)
def test_a_spare_that_does_not_fit_is_refused_before_anything_is_paused(field: str, value: object, words: str) -> None:
    world = World(15, spares=0)
    world.add_spare("s0", msgspec.structs.replace(FIT, **{field: value}))
    world.run(40)
    world.ask("migrate", "h0", "a")
    (entry,) = end(world)
    assert entry.outcome == "cancelled"
    assert words in entry.why
    assert all(not j.incident or j.incident.phase == "requested" for _, j in world.store.history)


def test_a_crash_waits_for_a_spare_and_without_one_the_job_ends() -> None:
    world = World(16, spares=0)
    world.run(40)
    world.kill(world.holder(0))
    world.run(200)
    assert world.job.incident is not None
    world.run(400)
    assert world.job.ended == "stopped"
    assert entries(world)[0].outcome == "stopped"
    assert "torchpass spare" in entries(world)[0].why


def test_a_spare_that_comes_while_a_crash_waits_is_taken() -> None:
    world = World(17, spares=0)
    world.run(40)
    world.kill(world.holder(0))
    world.run(200)
    world.add_spare("late")
    assert end(world)[0].outcome == "moved"


def test_a_spare_on_another_host_and_in_another_domain_is_taken_first() -> None:
    world = World(18, spares=0)
    members = tuple(msgspec.structs.replace(m, domain=f"leaf{rank % 2}") for rank, m in enumerate(world.job.members))
    world.rewrite(msgspec.structs.replace(world.job, members=members))
    for host, domain in (("h3", ""), ("s1", "leaf0"), ("s2", "leaf2")):
        spare = world.add_spare(host)
        revision, record = world.store.spares[spare.member.id]
        spare.member = msgspec.structs.replace(spare.member, domain=domain)
        world.store.put_spare(msgspec.structs.replace(record, member=spare.member), revision)
    world.run(40)
    world.ask("migrate", "h0", "a")
    (entry,) = end(world)
    assert entry.spares[0].startswith("s2")


def test_only_so_many_moves_an_hour_unless_somebody_asks_in_person() -> None:
    world = World(19, spares=6, steps=600, limits=Limits(per_hour=1, spare_wait_s=3.0, phase_s=3.0))
    world.run(40)
    world.ask("failed", "h0", "first", unlimited=False)
    world.run(150)
    world.ask("failed", "h1", "second", unlimited=False)
    world.run(20)
    world.ask("migrate", "h2", "third")
    assert [e.hosts for e in end(world)] == [("h0",), ("h2",)]
    assert world.answers["first"].taken
    assert world.answers["third"].taken
    assert not world.answers["second"].taken
    assert "limit" in world.answers["second"].why


def test_a_host_without_ranks_is_said_to_have_none() -> None:
    world = World(20)
    world.run(40)
    world.ask("migrate", "nowhere", "a")
    assert end(world) == []
    assert "no rank of j is on nowhere" in world.answers["a"].why


def test_one_accelerator_of_a_host_leaves_and_the_others_stay() -> None:
    world = World(21, ranks=2, spares=2)
    members = tuple(
        msgspec.structs.replace(m, host="big", accelerator=f"gpu{rank}") for rank, m in enumerate(world.job.members)
    )
    for m in members:
        world.processes[m.id].member = m
    world.rewrite(msgspec.structs.replace(world.job, members=members))
    world.run(40)
    for desk in world.desks:
        assert desk.scene is not None
        desk.scene.asks.append(Ask("a", "migrate", "big", accelerator="gpu1", unlimited=True))
    (entry,) = end(world)
    assert entry.ranks == (1,)
    assert world.job.members[0].accelerator == "gpu0"


def test_a_host_that_is_said_to_have_failed_is_not_waited_for() -> None:
    def verdict_at(asked: bool) -> float:
        world = World(22, steps=400)
        world.run(40)
        world.holder(1).alive = False
        if asked:
            world.ask("failed", "h1", "a", unlimited=False)
        while world.job.incident is None or world.job.incident.kind != "crash":
            world.run(1)
        return world.tick * 0.01

    assert verdict_at(asked=True) < verdict_at(asked=False) - 0.2


def test_who_was_cut_off_from_the_store_while_it_trained_and_dies_then_is_moved() -> None:
    world = World(31, steps=400)
    world.run(40)
    victim = world.holder(1)
    victim.mute_until = world.tick + 10_000
    world.run(150)
    assert world.job.incident is None, "the others make steps, so it lives"
    while sum(p.in_step for p in world.processes.values()) < world.ranks:
        world.run(1)
    world.kill(victim)
    (entry,) = end(world)
    assert (entry.kind, entry.outcome, entry.ranks, entry.attempts) == ("crash", "moved", (1,), 1)
