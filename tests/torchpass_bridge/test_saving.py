"""When a snapshot is taken, of which step, and what becomes of the job: by the simulated job."""

from __future__ import annotations

import msgspec
import pytest
from migration_sim import World

from torchpass_bridge.core.scene import Limits


def world(seed: int, **given: object) -> World:
    made = World(seed, **given)  # type: ignore[arg-type]
    made.run(40)
    return made


def end(made: World) -> None:
    made.run(3000)
    assert made.job.ended == "finished"
    assert sorted(made.completed) == list(range(made.steps))
    assert all(len(groups) == 1 for groups in made.completed.values())


@pytest.mark.parametrize("seed", range(8))
def test_a_snapshot_is_of_one_step_and_the_job_trains_on_in_its_group(seed: int) -> None:
    made = world(seed, steps=150)
    made.ask("snapshot", "", "a")
    end(made)
    (saved,) = made.job.saved
    assert made.answers["a"].taken
    assert (saved.path, saved.why, saved.number) == ("/shared/1", "", 1)
    assert made.published == {1: saved.step}
    assert made.job.generation == 1
    assert made.store.entries == {}


def test_who_has_passed_the_step_before_it_heard_of_it_lets_a_later_one_be_chosen() -> None:
    made = world(1, steps=300)
    for desk in made.desks:
        assert desk.scene is not None
        desk.scene.limits = msgspec.structs.replace(desk.scene.limits, cut_s=0.0)  # the cut comes too early
    made.processes["h2-3"].mute_until = made.tick + 60
    made.ask("snapshot", "", "a")
    end(made)
    assert made.job.saved[-1].path
    assert any(job.saving.attempt for _, job in made.store.history if job.saving)


def test_two_requests_are_one_snapshot_and_an_end_comes_after_it() -> None:
    made = world(2, steps=300)
    made.ask("snapshot", "", "a")
    made.ask("snapshot", "", "b")
    made.ask("stop", "", "c")
    made.run(2000)
    assert made.job.ended == "stopped"
    assert [saved.number for saved in made.job.saved] == [1, 2]
    assert made.job.why == f"saved after step {made.job.saved[-1].step - 1}: /shared/2"
    assert len({p.step for p in made.processes.values() if p.rank is not None}) == 1
    assert made.published[2] == made.holder(0).step == made.job.saved[-1].step


def test_a_crash_interrupts_it_and_it_begins_anew() -> None:
    made = world(3, steps=300)
    made.ask("snapshot", "", "a")
    made.run(10)
    assert made.job.saving is not None
    made.kill(made.holder(1))
    end(made)
    assert made.job.saved[-1].path
    assert [entry.outcome for entry in made.store.entries.values()] == ["moved"]
    assert made.job.saved[-1].step > next(
        job.incident.at_step for _, job in made.store.history if job.incident and job.incident.at_step >= 0
    )


@pytest.mark.parametrize("seed", range(10))
def test_when_no_spare_is_left_the_survivors_save_the_job_and_it_ends(seed: int) -> None:
    made = world(seed, spares=0, steps=300)
    victim = made.holder(seed % 4)
    made.kill(victim)
    made.run(2000)
    assert made.job.ended == "stopped"
    (entry,) = made.store.entries.values()
    assert (entry.kind, entry.outcome, entry.ranks) == ("crash", "stopped", (seed % 4,))
    assert "no spare fits" in entry.why and "saved after step" in entry.why
    (saved,) = made.job.saved
    alive = [made.processes[m.id] for m in made.job.members if m.id != victim.member.id]
    assert saved.step == max(p.step for p in alive)
    assert made.published == {1: saved.step}
    assert entry.steps_lost == 0
    assert made.limits.gone_s <= entry.detection_s < made.limits.silent_s + 0.5


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(("shards", "buddies", "saves"), [(2, False, True), (4, False, False), (4, True, True)])
def test_of_a_sharded_state_that_is_done_if_somebody_has_each_part(
    seed: int, shards: int, buddies: bool, saves: bool
) -> None:
    made = World(seed, spares=0, steps=300, shards=shards, buddies=buddies)
    made.run(40)
    made.ask("snapshot", "", "a")
    while not made.job.saved:
        made.run(1)
        assert not made.job.ended
    assert made.job.saved[0].path
    made.kill(made.holder(1))
    made.run(2000)
    assert made.job.ended == "stopped"
    assert bool(made.job.saved[-1].number == 2) is saves


def test_another_one_dies_while_they_save_and_those_that_are_left_save_again() -> None:
    made = world(5, spares=0, steps=300, limits=Limits(spare_wait_s=1.0, phase_s=3.0))
    made.kill(made.holder(0))
    while made.job.incident is None or made.job.incident.phase != "saving":
        made.run(1)
    made.kill(made.holder(1))
    made.run(2000)
    assert made.job.ended == "stopped"
    assert made.job.saved[-1].path == "/shared/2"


def test_without_a_folder_nothing_is_asked_of_anybody_and_a_job_without_spares_ends_unsaved() -> None:
    made = World(6, spares=0, steps=300)
    bare = tuple(msgspec.structs.replace(m, snapshots="") for m in made.job.members)
    made.rewrite(msgspec.structs.replace(made.job, members=bare))
    made.run(40)
    made.ask("snapshot", "", "a")
    made.run(10)
    assert not made.answers["a"].taken
    assert "TORCHPASS_SNAPSHOTS" in made.answers["a"].why
    made.kill(made.holder(0))
    made.run(2000)
    assert (made.job.ended, made.job.saved) == ("stopped", ())
    assert made.store.entries[1].steps_lost == max(p.step for p in made.processes.values())


def test_a_disk_that_fails_is_said_and_the_job_trains_on_also_when_it_was_to_end() -> None:
    made = world(7, steps=300)
    made.holder(2).disk = "No space left on device"
    made.ask("stop", "", "a")
    end(made)
    (saved,) = made.job.saved
    assert (saved.path, saved.why) == ("", "rank 2 on h2: No space left on device")


def test_who_never_gets_done_does_not_hold_the_next_one_up_for_ever() -> None:
    made = World(8, steps=400, limits=Limits(save_s=0.5))
    made.run(40)
    made.ask("snapshot", "", "a")
    while made.job.saving is None or made.job.saving.at_step < 0:
        made.run(1)
    slow = made.holder(3)
    while not slow.saved[0]:
        made.run(1)
    slow.writing_until = 10**9
    end(made)
    assert f"{slow.member.id} on h3" in made.job.saved[0].why


def test_a_job_that_ends_before_the_step_comes_is_not_held_up() -> None:
    made = World(9, steps=12)
    made.run(5)
    made.ask("snapshot", "", "a")
    end(made)
    assert made.job.saving is None
