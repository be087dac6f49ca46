"""A thousand flows that meet the same thing: the first are named, the others counted, and nothing grows for ever."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from fabric_sim import FabricSim

from linkpass.core import commands as cmd
from linkpass.core import crowd, flows
from linkpass.core import events as ev

H2, H3 = "fd00:ff::2", "fd00:ff::3"
ROUND = range(1000)


def flow(number: int) -> str:
    return f"train (pid 7), queue pair {number} of rxe0"


def stands(number: int) -> ev.Event:
    return ev.FlowStands(peer=H3, flow=flow(number), silent_s=0.4, left_s=None)


def goes(number: int) -> ev.Event:
    return ev.FlowGoes(peer=H3, flow=flow(number))


def ends(number: int) -> ev.Event:
    return ev.FlowGoes(peer=H3, flow=flow(number), ended=True)


def moved(number: int) -> ev.Event:
    return ev.FlowMoved(peer=H3, flow=flow(number), moved=True, why="both ends", took_s=0.01, for_cause="host1-7")


def stays(number: int) -> ev.Event:
    return ev.FlowMoved(peer=H3, flow=flow(number), moved=False, why="refused", took_s=0.0, for_cause="host1-7")


def records(sim: FabricSim, mark: int = 0) -> list[cmd.Record]:
    return [one for one in sim.since(mark, cmd.Record) if isinstance(one, cmd.Record) and "queue pair" in one.what]


def counts(sim: FabricSim, mark: int = 0) -> list[cmd.Record]:
    return [one for one in sim.since(mark, cmd.Record) if isinstance(one, cmd.Record) and "more RDMA" in one.what]


def post(sim: FabricSim, make: Callable[[int], ev.Event], numbers: range = ROUND) -> int:
    mark = sim.mark()
    for number in numbers:
        sim.post(make(number))
    sim.run(0.1)
    return mark


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (stands, "stand: unknown"), (goes, "go on"), (ends, "have ended"),
        (moved, "were moved to other addresses"), (stays, "stay where they are"),
    ],
)  # fmt: skip
def test_the_first_are_named_and_the_others_are_one_line(make: Callable[[int], ev.Event], said: str) -> None:
    sim = FabricSim().start()
    if make in (goes, ends):
        post(sim, stands)
        sim.run(5.0)
    mark = post(sim, make)
    named = records(sim, mark)
    assert [re.findall(r"pair (\d+)", one.what) for one in named] == [[str(number)] for number in range(5)]
    assert counts(sim, mark) == []
    sim.run(1.5)
    (line,) = counts(sim, mark)
    assert line.what == f"995 more RDMA flow(s) to host3 {said}"
    assert {one.cause for one in named} == {line.cause}
    assert (line.element, line.level, line.rung) == (named[0].element, named[0].level, named[0].rung)
    sim.run(60.0)
    assert len(counts(sim, mark)) == 1


def test_what_goes_on_growing_is_told_at_the_latest_after_a_while_and_then_ever_more_rarely() -> None:
    sim = FabricSim().start()
    post(sim, stays, range(6))
    for number in range(6, 400):
        sim.post(stays(number))
        sim.run(0.5)
    while_growing = len(counts(sim))
    sim.run(crowd.PAUSE_MAX_S)
    assert sum(int(one.what.split()[0]) for one in counts(sim)) == 395
    assert 6 <= while_growing <= 10  # every 10 s at first, of 197
    assert len(counts(sim)) == while_growing + 1


def test_flows_to_many_peers_are_bounded_over_all_of_them() -> None:
    sim = FabricSim().start()
    sim.deaf = True  # who these peers are it does not know
    for number in range(300):
        peer = f"fd00:ff::1:{number:x}"
        for which in (0, 1):
            sim.post(
                ev.FlowMoved(peer=peer, flow=flow(2 * number + which), moved=True, why="w", took_s=0.0, for_cause="c-1")
            )
    sim.run(2.0)
    assert len(records(sim)) == crowd.NAMED
    lines = counts(sim)
    assert len(lines) == crowd.LINES + 1
    assert sum(int(one.what.split()[0]) for one in lines) == 600 - crowd.NAMED
    assert "to 265 other peer(s) were moved" in lines[-1].what


def test_another_cause_names_its_own_first() -> None:
    sim = FabricSim().start()
    for number in range(20):
        cause = f"c-{number % 2}"
        sim.post(ev.FlowMoved(peer=H2, flow=flow(number), moved=True, why="w", took_s=0.0, for_cause=cause))
    sim.run(2.0)
    assert [sum(one.cause == cause for one in records(sim)) for cause in ("c-0", "c-1")] == [5, 5]
    assert sorted((one.cause, one.what.split()[0]) for one in counts(sim)) == [("c-0", "5"), ("c-1", "5")]


def test_what_is_remembered_is_bounded_and_nothing_counted_is_lost() -> None:
    sim = FabricSim().start()
    for number in range(crowd.MOST + 10):
        for which in range(6):
            name = flow(10 * number + which)
            sim.post(ev.FlowMoved(peer=H2, flow=name, moved=True, why="w", took_s=0.0, for_cause=f"c-{number}"))
    assert len(sim.core.world.crowds) <= crowd.MOST
    sim.run(2.0)
    assert len(counts(sim)) == crowd.MOST + 10
    for number in range(flows.MOST_KEPT + 10):
        sim.core.handle(stands(number), sim.now_s)
        sim.core.handle(stays(number), sim.now_s)
    assert len(sim.core.world.standing) == len(sim.core.world.kept) == flows.MOST_KEPT
