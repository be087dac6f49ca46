"""RDMA flows that can only be moved one by one: which uplinks they are to leave, when again, what is said."""

from __future__ import annotations

import itertools

import pytest
from fabric_sim import FabricSim

from linkpass.core import commands as cmd
from linkpass.core import events as ev

FLOW = "ib_write_bw (pid 7), queue pair 17 of rxe0"
H3 = "fd00:ff::3"


def leaving(sim: FabricSim, mark: int = 0) -> list[cmd.MoveFlows]:
    return [one for one in sim.since(mark, cmd.MoveFlows) if isinstance(one, cmd.MoveFlows)]


def drained(**settings: bool | str) -> FabricSim:
    sim = FabricSim(**{"live_qps": True, **settings}).start()  # type: ignore[arg-type]
    sim.post(ev.DrainRequested(link="eth1"))
    sim.run(0.1)
    return sim


def test_a_drain_takes_flows_off_the_uplink_after_the_routes_have_left_it() -> None:
    sim = drained()
    (command,) = leaving(sim)
    assert (command.uplink, command.leave) == ("eth1", True)
    order = [one for _, one in sim.log if isinstance(one, cmd.SetGroup | cmd.MoveFlows)]
    assert isinstance(order[-2], cmd.SetGroup) and order[-2].uplinks == ("eth2",)
    assert order[-1] == command
    assert command.cause == order[-2].cause


@pytest.mark.parametrize("settings", [{"live_qps": False}, {"mode": "observe"}], ids=["not allowed", "observe"])
def test_nothing_is_stopped_unless_it_is_allowed(settings: dict[str, bool | str]) -> None:
    assert leaving(drained(**settings)) == []


def test_an_uplink_that_loses_everything_is_not_left_this_way() -> None:
    """What is outstanding there is never answered: no queue would drain."""
    sim = FabricSim(live_qps=True).start()
    sim.break_("host1>leaf1")
    sim.run(1.0)
    assert leaving(sim) == []


def test_the_only_good_uplink_is_not_left() -> None:
    sim = FabricSim(live_qps=True).start()
    sim.break_("host1>leaf2")
    sim.run(1.0)
    sim.post(ev.DrainRequested(link="eth1"))
    sim.run(0.5)
    assert leaving(sim) == []


def test_what_could_not_be_moved_is_tried_again_with_growing_pauses() -> None:
    sim = drained()
    times = []
    for _ in range(4):
        command = leaving(sim)[-1]
        times.append(next(at_s for at_s, one in reversed(sim.log) if one is command))
        sim.post(ev.FlowsStay(cmd_id=command.cmd_id, uplink="eth1", why="not drained within 1 s"))
        sim.run(3.0)
    assert all(later - before >= 2.0 for before, later in itertools.pairwise(times))
    (line,) = [line for line in sim.told(0) if "still go over eth1" in line]
    assert "not drained within 1 s" in line
    sim.post(ev.FlowsLeft(cmd_id=leaving(sim)[-1].cmd_id, uplink="eth1"))
    mark = sim.mark()
    sim.run(60.0)
    assert leaving(sim, mark) == []


def test_an_undrained_uplink_is_left_alone() -> None:
    sim = drained()
    sim.post(ev.FlowsLeft(cmd_id=leaving(sim)[-1].cmd_id, uplink="eth1"))
    mark = sim.mark()
    sim.post(ev.UndrainRequested(link="eth1"))
    sim.run(0.5)
    (command,) = leaving(sim, mark)
    assert (command.uplink, command.leave) == ("eth1", False)


def test_every_attempt_is_told_and_a_move_counts_once() -> None:
    sim = drained()
    (command,) = leaving(sim)
    moves = sim.core.view(sim.now_s).moves
    refused = (False, "the peer refuses: it only answers")
    for moved, why in ((True, "both ends have the new address"), refused, refused):  # said once
        sim.post(ev.FlowMoved(peer=H3, flow=FLOW, moved=moved, why=why, took_s=0.012, for_cause=command.cause))
    sim.run(0.1)
    done, kept = [one for one in sim.since(0, cmd.Record) if FLOW in one.what]  # type: ignore[union-attr]
    assert done.what == f"moved {FLOW} to host3 to other addresses, it stood for 12 ms"
    assert kept.what == f"{FLOW} to host3 stays where it is"
    assert kept.why == "the peer refuses: it only answers"
    assert done.cause == kept.cause == command.cause
    assert sim.core.view(sim.now_s).moves == moves, "the drain was counted already"
