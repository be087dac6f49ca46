"""Whatever fails, and when: the job ends, no applied step is done again, no rank has two holders, no spare two ranks.

What must hold at every write of the record and in every collective is asserted by the simulation itself."""

from __future__ import annotations

import pytest
from migration_chaos import chaos


@pytest.mark.parametrize("seed", range(80))
def test_any_faults_at_any_moments_leave_a_job_that_ends(seed: int) -> None:
    world = chaos(seed)
    assert world.job.ended == "finished", (world.job.incident, [e.why for e in world.store.entries.values()])
    assert {e.outcome for e in world.store.entries.values()} <= {"moved", "cancelled"}
    assert sorted(world.completed) == list(range(world.steps))


def test_many_faults_meet_every_way_that_an_incident_can_go() -> None:
    ways = {(e.kind, e.outcome, e.attempts > 1) for seed in range(80) for e in chaos(seed).store.entries.values()}
    assert {("crash", "moved", True), ("crash", "moved", False), ("planned", "moved", False)} <= ways
    assert ("planned", "cancelled", False) in ways


def test_snapshots_are_published_amid_all_that_and_none_is_of_two_steps() -> None:
    worlds = [chaos(seed) for seed in range(80)]
    assert sum(len(world.published) for world in worlds) > 20
    assert all(world.job.saving is None for world in worlds)
    assert any(j.saving.attempt for world in worlds for _, j in world.store.history if j.saving)


@pytest.mark.parametrize("seed", range(60))
def test_with_hosts_of_other_jobs_it_is_the_same_and_they_go_back(seed: int) -> None:
    world = chaos(seed, spares=1, steps=250, lent=True)
    assert world.job.ended in ("finished", "stopped"), world.job.incident
    assert {e.outcome for e in world.store.entries.values()} <= {"moved", "cancelled", "stopped"}
    for _, loan in world.store.loans.values():
        assert loan.state != "called" or loan.called_by


def test_lent_hosts_are_met_in_every_state_amid_all_that() -> None:
    worlds = [chaos(seed, spares=1, steps=250, lent=True) for seed in range(60)]
    assert sum(world.job.ended == "finished" for world in worlds) > 50
    assert sum(len(keeper.called) for world in worlds for keeper in world.keepers.values()) > 30
    assert any(
        e.trigger == "lending" and e.outcome == "moved" for world in worlds for e in world.store.entries.values()
    )
    assert any(m.lent_from for world in worlds for m in world.job.members)
