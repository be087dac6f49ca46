"""Sharded state: who gives which part, and at which step all go on. By the simulated job, and case by case."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from migration_chaos import chaos
from migration_sim import World
from sim_members import FIT

from torchpass_bridge.core import sharing
from torchpass_bridge.core.founding import found
from torchpass_bridge.core.places import keeper_of
from torchpass_bridge.core.scene import Limits, Scene
from torchpass_bridge.wire import Copy, Incident, Job, Member, Status

replace = msgspec.structs.replace


def scene(shards: int, steps: list[int], keeps: dict[int, list[tuple[int, int]]], *leaving: int) -> Scene:
    """Ranks at these steps, with these copies; those that leave say nothing."""
    members = tuple(Member(f"m{rank}", f"h{rank}", 1, "a:1", replace(FIT, shards=shards)) for rank in range(len(steps)))
    incident = Incident(1, "crash", leaving, (), "c")
    made = Scene(Job("j", len(steps), 1, members, incident=incident), Limits(), 0.0)
    for rank, step in enumerate(steps):
        if rank not in leaving:
            kept = tuple(keeps.get(rank, []))
            made.hear(Status(f"m{rank}", 1, "stopped", 1, step, keeps=kept), 0.0)
    return made


def decided(*given: Any) -> tuple[int, tuple[Copy, ...]]:
    chosen, why = sharing.after_crash(scene(*given))
    assert chosen is not None, why
    return chosen


def test_without_shards_all_go_forward_to_the_newest_step() -> None:
    assert decided(1, [7, 8, 8, 0], {}, 3) == (8, (Copy(0, (1, 2)), Copy(3, (1, 2))))


def test_a_part_whose_rank_is_gone_comes_from_who_keeps_it() -> None:
    keeps = {0: [(0, 6)], 1: [(1, 6)], 2: [(2, 6), (0, 7), (0, 6)]}
    assert decided(3, [0, 7, 7], keeps, 0) == (7, (Copy(0, (2,), kept=True),))


def test_who_is_ahead_of_what_is_kept_goes_back_by_itself() -> None:
    keeps = {1: [(1, 7)], 2: [(2, 6), (0, 7)]}
    assert decided(3, [0, 8, 7], keeps, 0) == (7, (Copy(0, (2,), kept=True), Copy(1, (1,), kept=True)))


def test_a_replica_that_stands_there_is_asked_before_a_copy() -> None:
    keeps = {0: [(0, 7)], 1: [(1, 7), (0, 8)], 3: [(1, 7)]}
    assert decided(2, [7, 8, 0, 8], keeps, 2) == (8, (Copy(0, (1,), kept=True), Copy(2, (1,), kept=True)))
    assert decided(2, [8, 8, 0, 7], keeps, 2) == (8, (Copy(2, (0,)), Copy(3, (1,))))


def test_one_whose_state_is_of_no_step_takes_what_it_keeps_itself() -> None:
    assert decided(2, [7, -1], {1: [(1, 7), (1, 6)]}) == (7, (Copy(1, (1,), kept=True),))


def test_a_step_of_which_a_part_is_missing_is_none() -> None:
    chosen, why = sharing.after_crash(scene(2, [0, 7], {1: [(1, 6), (0, 5)]}, 0))
    assert chosen is None
    assert why == "no step is left of which all parts of the state are there: part 0 at 5; part 1 at 6, 7"


def test_a_planned_move_takes_a_part_from_its_replicas_or_from_the_one_that_leaves() -> None:
    assert sharing.planned(scene(2, [7, 7, 7, 7], {}, 2)) == (Copy(2, (0,), 2),)
    assert sharing.planned(scene(4, [7, 7, 7, 7], {}, 2)) == (Copy(2, (2,), 2),)
    assert sharing.planned(scene(2, [7, 7, 7, 7], {}, 0, 2)) == (Copy(0, (0,), 0), Copy(2, (2,), 2))


def test_copies_are_kept_on_another_host_unless_a_replica_is_there() -> None:
    def members(shards: int, *hosts: str) -> list[Member]:
        return [Member(h, h[:1], 1, "a:1", replace(FIT, shards=shards, buddies=True), domain=h[1:]) for h in hosts]

    apart = members(4, "ax", "ax", "bx", "cy")
    assert [keeper_of(apart, rank) for rank in range(4)] == [apart[3], apart[3], apart[3], apart[0]]
    assert keeper_of(members(2, "ax", "ax", "bx", "bx"), 0) is None
    same = members(1, "ax", "ax", "bx")
    assert keeper_of(same, 0) is None
    both = members(2, "ax", "bx", "ax", "bx")
    assert keeper_of(both, 0) == both[1]


def test_ranks_that_cannot_hold_the_parts_equally_often_make_no_job() -> None:
    fit = replace(FIT, world=3, shards=2)
    job = found("j", {rank: Member(f"m{rank}", "h", 1, "a:1", fit) for rank in range(3)}, None)
    assert job is not None
    assert job.why == "3 ranks cannot hold 2 parts of the state equally often"


@pytest.mark.parametrize("seed", range(24))
def test_a_killed_rank_goes_on_with_what_its_buddy_keeps(seed: int) -> None:
    world = World(seed, shards=4)
    world.run(40 + 3 * seed)
    world.kill(world.holder(seed % 4))
    world.run(3000)
    assert world.job.ended == "finished"
    (entry,) = world.store.entries.values()
    assert (entry.kind, entry.outcome) == ("crash", "moved")
    done_again = sum(len(runs) - 1 for runs in world.applied.values())
    assert entry.steps_lost <= done_again <= 2


def test_steps_that_are_done_again_are_counted() -> None:
    worlds = []
    for seed in range(60):
        world = World(seed, shards=4)
        world.run(60)
        world.kill(world.holder(1))
        world.run(3000)
        worlds.append((sum(e.steps_lost for e in world.store.entries.values()), world))
    lost = {count for count, _ in worlds}
    assert {0, 1} <= lost
    for count, world in worlds:
        assert (count > 0) == any(len(runs) > 1 for runs in world.applied.values())


@pytest.mark.parametrize("seed", range(12))
def test_without_buddies_a_part_is_lost_with_its_rank_but_not_with_one_of_its_replicas(seed: int) -> None:
    ends = []
    for shards in (4, 2):
        world = World(seed, shards=shards, buddies=False)
        world.run(40)
        world.kill(world.holder(2))
        world.run(3000)
        ends.append(world.job.ended)
        (entry,) = world.store.entries.values()
        assert entry.outcome == ("lost" if shards == 4 else "moved")
    assert ends == ["lost", "finished"]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("shards", [2, 4])
def test_a_planned_move_of_sharded_state_does_no_step_again(seed: int, shards: int) -> None:
    world = World(seed, shards=shards)
    world.run(40)
    world.ask("migrate", "h1", "a")
    world.run(3000)
    (entry,) = world.store.entries.values()
    assert (world.job.ended, entry.outcome, entry.steps_lost) == ("finished", "moved", 0)
    assert all(len(runs) == 1 for runs in world.applied.values())


@pytest.mark.parametrize("seed", range(8))
def test_copies_that_were_kept_where_a_rank_leaves_are_elsewhere_before_it_goes(seed: int) -> None:
    world = World(seed, shards=4)
    world.run(40)
    world.ask("migrate", "h2", "a")
    while world.job.generation == 1:
        world.run(1)
    world.kill(world.holder(1))  # what it had last was kept by the one that has left
    world.run(3000)
    assert world.job.ended == "finished", world.job.why


@pytest.mark.parametrize("seed", range(80))
def test_any_faults_leave_a_sharded_job_that_ends(seed: int) -> None:
    """Lost only when nobody had some part any more: the simulation checks it."""
    world = chaos(seed, shards=(2, 4)[seed % 2])
    assert world.job.ended in ("finished", "lost"), (world.job.incident, world.job.why)
    if world.job.ended == "finished":
        assert sorted(world.completed) == list(range(world.steps))


@pytest.mark.parametrize("seed", range(80))
def test_one_fault_after_the_other_loses_nothing(seed: int) -> None:
    """With a part in two places each time, be it at a replica or at a buddy."""
    shards = (2, 4)[seed % 2]
    world = chaos(seed, shards=shards, buddies=shards == 4, singly=True)
    assert world.job.ended == "finished", (world.job.incident, [e.why for e in world.store.entries.values()])
    assert {e.outcome for e in world.store.entries.values()} <= {"moved", "cancelled"}
    assert sorted(world.completed) == list(range(world.steps))
