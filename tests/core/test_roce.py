"""Datagrams through RDMA devices that fail are named and explain a flow that stands; nothing is moved for them."""

from __future__ import annotations

from fabric_sim import FabricSim

from linkpass.core import commands as cmd
from linkpass.core import events as ev
from linkpass.core.events import Evidence

H3 = "fd00:ff::3"
NAME = f"rxe0 to {H3}"


def tell(sim: FabricSim, evidence: Evidence, why: str = "because") -> list[cmd.Record]:
    mark = sim.mark()
    sim.post(ev.RoceEvidence(device="rxe0", peer=H3, name=NAME, evidence=evidence, why=why))
    sim.run(0.1)
    return sim.since(mark, cmd.Record)


def test_a_queue_that_fails_alone_is_named_once_and_moves_nothing() -> None:
    sim = FabricSim().start()
    (said,) = tell(sim, "blackhole", "3 in a row")
    assert (said.what, said.why) == (f"blackhole of RoCE datagrams from {NAME} (host3)", "3 in a row")
    assert (said.level, said.element) == ("warning", "host3")
    assert tell(sim, "blackhole") == []
    (worse,) = tell(sim, "lossy")
    (over,) = tell(sim, "good", "datagrams are answered")
    assert over.what == f"RoCE datagrams from {NAME} (host3) get through"
    assert said.cause == worse.cause == over.cause != ""
    assert tell(sim, "good") == tell(sim, "queueing") == []
    assert sim.core.view(sim.now_s).moves == 0


def test_it_belongs_to_the_story_of_a_path_that_fails() -> None:
    sim = FabricSim().start()
    sim.break_("leaf1>spine1")
    sim.run(5)
    (said,) = tell(sim, "blackhole")
    bad = next(p for p in sim.core.world.table.peer(H3).used() if p.element.state == "down")
    assert said.cause == bad.element.cause


def test_a_flow_that_stands_over_good_paths_is_explained_by_its_queue() -> None:
    sim = FabricSim().start()
    (said,) = tell(sim, "blackhole", "3 in a row")
    mark = sim.mark()
    sim.post(ev.FlowStands(peer=H3, flow="ib_write_bw (pid 7)", silent_s=0.4))
    sim.run(0.1)
    (record,) = sim.since(mark, cmd.Record)
    assert record.what == "ib_write_bw (pid 7) to host3 stands: RoCE queue"
    assert f"{NAME}, 3 in a row" in record.why and record.cause == said.cause


def test_what_is_no_longer_asked_explains_nothing() -> None:
    sim = FabricSim().start()
    tell(sim, "blackhole")
    (over,) = tell(sim, "unknown", "it is not asked any more")
    assert over.what.endswith("are no longer judged")
    mark = sim.mark()
    sim.post(ev.FlowStands(peer=H3, flow="ib_write_bw (pid 7)", silent_s=0.4))
    sim.run(0.1)
    assert "stands: unknown" in sim.told(mark)[0]
