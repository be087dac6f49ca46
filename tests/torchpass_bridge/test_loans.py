"""When hosts of preemptible jobs are called for, and when they go back: by the simulated job."""

from __future__ import annotations

import msgspec
import pytest
from migration_sim import World
from sim_members import Keeper

from torchpass_bridge.core.coordinate import decide
from torchpass_bridge.core.scene import Call, Limits, Scene
from torchpass_bridge.wire import Entry, Loan, Status, prove

LIMITS = Limits(spare_wait_s=1.0, planned_wait_s=0.5, phase_s=3.0, lend_wait_s=3.0, give_back_s=0.5)


def world(seed: int, spares: int = 0, steps: int = 300, **given: object) -> World:
    made = World(seed, spares=spares, steps=steps, limits=LIMITS, **given)  # type: ignore[arg-type]
    made.run(40)
    return made


def end(made: World) -> list[Entry]:
    made.run(6000)
    assert made.job.ended == "finished", made.job.why
    assert sorted(made.completed) == list(range(made.steps))
    return [made.store.entries[number] for number in sorted(made.store.entries)]


def states(*keepers: Keeper) -> list[str]:
    return [keeper.loan.state for keeper in keepers]


@pytest.mark.parametrize("seed", range(10))
def test_when_no_spare_fits_a_host_is_lent_and_goes_back_when_the_job_is_over(seed: int) -> None:
    made = world(seed)
    keeper = made.add_loan("low0", stop_ticks=150)  # longer than a spare is waited for
    made.kill(made.holder(seed % 4))
    made.run(400)
    assert made.job.members[seed % 4].lent_from == "low/l-low0"
    assert states(keeper) == ["lent"]
    (entry,) = end(made)
    assert (entry.kind, entry.outcome, entry.hosts) == ("crash", "moved", (f"h{seed % 4}",))
    assert keeper.called == ["j/1"]
    made.holder(seed % 4).alive = False
    made.keep(keeper)
    assert states(keeper) == ["offered"]


def test_a_spare_of_its_own_comes_first_and_nobody_is_stopped() -> None:
    made = world(1, spares=2)
    keeper = made.add_loan("low0")
    made.kill(made.holder(1))
    made.run(100)
    made.ask("migrate", "h0", "a")
    assert [entry.outcome for entry in end(made)] == ["moved", "moved"]
    assert keeper.called == []


def test_as_many_hosts_as_are_needed_from_as_few_jobs_as_can_be() -> None:
    made = world(2, spares=1)
    keepers = [made.add_loan(*place) for place in (("low0", "one"), ("low1", "two"), ("low2", "two"))]
    for rank in (0, 1, 2):
        made.holder(rank).alive = False
    made.run(400)
    assert states(*keepers).count("lent") == 2
    (entry,) = end(made)
    assert (entry.ranks, entry.outcome) == ((0, 1, 2), "moved")


def test_the_second_host_of_a_job_that_is_stopped_already_is_taken_before_another_job_is_stopped() -> None:
    made = world(3)
    keepers = [made.add_loan(*place) for place in (("a", "one"), ("b", "two"), ("c", "one"))]
    for rank in (0, 3):
        made.kill(made.holder(rank))
        made.run(300)
    assert states(*keepers) == ["lent", "offered", "lent"]
    end(made)


def test_too_few_to_be_of_use_are_left_alone() -> None:
    made = world(4)
    keeper = made.add_loan("low0")
    for rank in (0, 1):
        made.holder(rank).alive = False
    made.run(2000)
    assert made.job.ended == "stopped"
    assert keeper.called == []


def test_a_lender_that_cannot_be_stopped_is_asked_once_and_another_one_serves() -> None:
    made = world(5)
    first, second = made.add_loan("a", "one", refuses="no folder"), made.add_loan("b", "two")
    made.kill(made.holder(2))
    made.run(400)
    assert states(first, second) == ["offered", "lent"]
    assert first.loan.called_by == "j/1"
    end(made)


def test_when_none_can_be_had_the_job_is_saved_and_the_ledger_says_why() -> None:
    made = world(6)
    made.add_loan("a", "one", refuses="one knows no folder for snapshots")
    made.kill(made.holder(2))
    made.run(2000)
    assert made.job.ended == "stopped"
    assert "a, lent by one: one knows no folder for snapshots" in made.store.entries[1].why


def test_who_is_not_done_in_time_is_waited_for_no_longer_and_the_call_is_taken_back() -> None:
    made = world(7)
    keeper = made.add_loan("a", stop_ticks=10**9)
    made.kill(made.holder(2))
    made.run(200)
    assert made.job.incident is not None  # longer than for a spare
    made.run(400)
    assert made.job.ended == "stopped"
    assert keeper.called == ["j/1"]
    assert (keeper.loan.state, keeper.loan.called_by) == ("offered", "")


def test_a_call_is_taken_back_when_a_spare_comes_first() -> None:
    made = world(8)
    keeper = made.add_loan("a", stop_ticks=10**9)
    made.kill(made.holder(2))
    made.run(100)
    assert states(keeper) == ["called"]
    made.add_spare("own")
    made.run(100)
    assert states(keeper) == ["offered"]
    assert end(made)[0].spares[0].startswith("own")


def test_who_is_not_heard_is_not_called_and_is_forgotten() -> None:
    made = world(9)
    dead, other = made.add_loan("a", "one"), made.add_loan("b", "two")
    made.run(20)
    dead.alive = False
    made.run(100)
    made.kill(made.holder(0))
    made.run(400)
    assert (dead.called, other.called) == ([], ["j/1"])
    made.run(600)
    assert set(made.store.loans) == {"l-b"}
    end(made)


def test_one_that_dies_after_it_was_called_is_replaced_by_another() -> None:
    made = world(10)
    dead, other = made.add_loan("a", "one"), made.add_loan("b", "two")
    made.kill(made.holder(0))
    while not dead.called:
        made.run(1)
    dead.alive = False
    made.limits = msgspec.structs.replace(LIMITS, lend_wait_s=30.0)
    made.run(900)
    assert (dead.called, other.called) == (["j/1"], ["j/1"])
    assert end(made)[0].outcome == "moved"


def test_as_long_as_a_rank_is_on_it_a_loan_is_kept_though_its_keeper_is_gone() -> None:
    made = world(11, steps=900)
    keeper = made.add_loan("a")
    made.kill(made.holder(0))
    made.run(300)
    keeper.alive = False
    made.run(1000)
    assert made.store.loans["l-a"][1].state == "lent"
    made.kill(made.holder(0))
    made.add_spare("own")
    made.run(1200)
    assert made.store.loans == {}


def test_a_rank_leaves_the_lent_host_when_a_spare_of_its_own_has_been_there_for_a_while() -> None:
    made = world(12, steps=900)
    keepers = made.add_loan("a"), made.add_loan("b")
    for rank in (0, 1):
        made.holder(rank).alive = False
    made.run(400)
    assert states(*keepers) == ["lent", "lent"]
    made.add_spare("own0")
    made.run(30)
    assert made.job.incident is None
    made.run(300)
    assert sorted(states(*keepers)) == ["lent", "offered"]
    made.add_spare("own1")
    crash, *back = end(made)
    assert (crash.trigger, crash.ranks) == ("silence", (0, 1))
    assert [entry.ranks for entry in back] == [(0,), (1,)]
    assert sorted(entry.cause for entry in back) == [f"{h} goes back to low, which has lent it" for h in "ab"]
    for entry in back:
        assert (entry.kind, entry.trigger, entry.outcome) == ("planned", "lending", "moved")
    assert states(*keepers) == ["offered", "offered"]
    assert made.job.moved_unix_s == ()


def test_a_lent_spare_that_is_not_needed_goes_back() -> None:
    """Two coordinators that hear of it at different times may call two; or the rank's own spare comes just after."""
    made = world(13, steps=600)
    keeper = made.add_loan("a")
    made.kill(made.holder(0))
    while keeper.loan.state != "lent":
        made.run(1)
    made.add_spare("own")
    assert keeper.spare is not None
    keeper.spare.mute_until = made.tick + 100  # it says nothing yet
    made.run(300)
    assert states(keeper) == ["offered"]
    assert len(end(made)) == 1


def test_a_planned_move_stops_a_job_only_when_nothing_else_fits() -> None:
    made = world(14)
    keeper = made.add_loan("a")
    made.ask("migrate", "h1", "a")
    (entry,) = end(made)
    assert (entry.kind, entry.outcome, keeper.called) == ("planned", "moved", ["j/1"])
    assert made.job.members[1].host == "a"


def test_its_own_host_is_no_way_out() -> None:
    made = world(15)
    keeper = made.add_loan("h1")
    made.ask("migrate", "h1", "a")
    (entry,) = end(made)
    assert (entry.outcome, keeper.called) == ("cancelled", [])


def test_who_does_not_know_the_jobs_key_is_not_called() -> None:
    made = world(16)
    for desk in made.desks:
        assert desk.scene is not None
        desk.scene.key = b"key"
    stranger = made.add_loan("a", "one")
    made.kill(made.holder(0))
    made.run(2000)
    assert (made.job.ended, stranger.called) == ("stopped", [])
    assert "a, lent by one: it does not know the job's key" in made.store.entries[1].why


def test_two_coordinators_call_the_same_host_for_one_rank() -> None:
    """Each decides before it has seen what the other one writes: the store takes one of the two."""
    made = world(17)
    loans = {name: Loan(name, "j", "low", name, proof=prove(b"", "j", name)) for name in ("c", "a", "b")}
    made.kill(made.holder(0))
    while made.job.incident is None:
        made.run(1)
    calls = []
    for order in (("a", "b", "c"), ("c", "b", "a")):
        scene = Scene(made.job, LIMITS, 0.0)
        scene.see_loans({name: loans[name] for name in order}, 0.0)
        for beat in range(1, 5):
            for member in (*(m.id for m in made.job.members[1:]), "a", "b", "c"):
                scene.hear(Status(member, beat, "stopped" if "h" in member else "waiting", 1, 9), 0.1 * beat)
        calls.append([action for action in decide(scene, 0.45, 0.0) if isinstance(action, Call)])
    assert calls[0] == calls[1] == [Call(msgspec.structs.replace(loans["a"], state="called", called_by="j/1"))]
