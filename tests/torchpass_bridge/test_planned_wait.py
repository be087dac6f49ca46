"""A planned move for which there is no spare yet: it waits for one, the job trains on, and nobody waits behind it."""

from __future__ import annotations

from migration_sim import World

from torchpass_bridge.core.scene import Limits
from torchpass_bridge.wire import Entry

LIMITS = Limits(spare_wait_s=3.0, planned_wait_s=4.0, phase_s=3.0)


def begun(seed: int, spares: int = 0, steps: int = 400) -> World:
    world = World(seed, spares=spares, steps=steps, limits=LIMITS)
    world.run(40)
    return world


def end(world: World) -> list[Entry]:
    world.run(4000)
    assert world.job.ended == "finished"
    assert sorted(world.completed) == list(range(world.steps))
    return [world.store.entries[number] for number in sorted(world.store.entries)]


def waits(world: World) -> list[str]:
    return [ask.waits for ask in world.job.waiting]


def test_a_spare_that_comes_in_time_is_taken() -> None:
    world = begun(1)
    world.ask("migrate", "h1", "a")
    world.run(100)
    assert world.answers["a"].taken
    (why,) = waits(world)
    assert why.startswith("no spare fits: none is offered")
    assert world.job.incident is None
    written = len(world.store.history)
    before = max(world.completed)
    world.run(50)
    assert (len(world.store.history), max(world.completed) > before) == (written, True), "it trains, nothing is written"
    world.add_spare("s0")
    (entry,) = end(world)
    assert (entry.kind, entry.outcome, entry.attempts) == ("planned", "moved", 1)
    assert world.job.members[1].host == "s0"


def test_when_its_time_is_up_it_is_cancelled_with_the_reason() -> None:
    world = begun(2)
    world.ask("migrate", "h1", "a")
    world.run(380)
    assert waits(world) and not world.store.entries
    world.run(150)
    assert waits(world) == []
    (entry,) = end(world)
    assert (entry.outcome, entry.kind, entry.hosts) == ("cancelled", "planned", ("h1",))
    assert "no spare fits: none is offered" in entry.why


def test_one_that_can_be_had_goes_before_one_that_waits() -> None:
    """The only spare is on the host that is to be left first."""
    world = begun(4)
    world.add_spare("h1")
    world.ask("migrate", "h1", "a")
    world.run(60)
    assert len(waits(world)) == 1 and "on h1, which is to be left" in waits(world)[0]
    world.ask("migrate", "h2", "b")
    world.run(300)
    assert [m.host for m in world.job.members] == ["h0", "h1", "h1", "h3"]
    assert [entry.outcome for entry in world.store.entries.values()] == ["moved"]


def test_it_can_be_taken_back_and_a_snapshot_does_not_wait_for_it() -> None:
    world = begun(5)
    world.ask("migrate", "h1", "a")
    world.run(60)
    world.ask("snapshot", "", "s")
    world.run(150)
    assert world.published and waits(world)
    world.ask("withdraw", "h1", "w")
    world.run(20)
    assert waits(world) == [] and world.answers["w"].taken
    assert end(world) == []


def test_a_crash_meanwhile_has_the_spare_first_and_the_move_the_next_one() -> None:
    world = begun(6)
    world.ask("migrate", "h1", "a")
    world.run(60)
    world.kill(world.holder(3))
    world.run(90)
    world.add_spare("s0")
    world.run(200)
    assert (world.job.members[3].host, world.job.members[1].host) == ("s0", "h1")
    assert waits(world)
    world.add_spare("s1")
    first, second = end(world)
    assert (first.kind, second.kind, second.outcome) == ("crash", "planned", "moved")
    assert world.job.members[1].host == "s1"


def test_a_coordinator_that_comes_new_goes_on_waiting() -> None:
    world = begun(7)
    world.ask("migrate", "h1", "a")
    world.run(100)
    for desk in world.desks:
        desk.restart()
    world.run(100)
    assert waits(world)
    world.add_spare("s0")
    (entry,) = end(world)
    assert entry.outcome == "moved"
