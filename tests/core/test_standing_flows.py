"""RDMA flows that stand: what is said of them, when it is said again, and that nothing moves for it."""

from __future__ import annotations

import pytest
from fabric_sim import FabricSim

from linkpass.core import commands as cmd
from linkpass.core import events as ev

FLOW = "ib_write_bw (pid 7), queue pair 17 of rxe0"
H3 = "fd00:ff::3"


def stands(sim: FabricSim, peer: str = H3, silent_s: float = 0.4, left_s: float | None = None) -> list[str]:
    """What is told of a flow that goes on standing."""
    mark = sim.mark()
    sim.post(ev.FlowStands(peer=peer, flow=FLOW, silent_s=silent_s, left_s=left_s))
    sim.run(0.05)
    return [line for line in sim.told(mark) if "stands" in line]


def test_a_flow_to_a_host_that_is_silent_alone_is_the_hosts_fault() -> None:
    sim = FabricSim().start()
    moved = sim.core.view(sim.now_s).moves
    sim.silence("host3")
    sim.run(0.3)
    (line,) = stands(sim, left_s=0.8)
    assert f"{FLOW} to host3 stands: host, not path" in line
    assert "gives up in 0.8 s" in line and "2 other peer(s) answer over eth1, eth2" in line
    (record,) = [one for one in sim.since(0, cmd.Record) if "stands" in one.what]
    assert record.cause == sim.core.world.table.peer(H3).cause
    assert stands(sim, silent_s=0.9) == []  # nothing new is known
    assert sim.core.view(sim.now_s).moves == moved


def test_what_is_not_known_yet_is_said_again_when_it_is() -> None:
    sim = FabricSim().start()
    (line,) = stands(sim)
    assert "stands: unknown" in line and "probes get through" in line
    mark = sim.mark()
    sim.silence("host3")
    sim.run(0.3)
    (line,) = [line for line in sim.told(mark) if "stands" in line]
    assert "host, not path" in line
    assert stands(sim, silent_s=0.9) == []


def test_why_it_stands_is_said_without_waiting_for_the_next_look() -> None:
    """A path that fails, too; how long it has stood goes on meanwhile."""
    sim = FabricSim().start()
    stands(sim, silent_s=0.4)
    mark = sim.mark()
    sim.run(0.5)
    sim.break_("leaf1>spine1")
    sim.run(0.5)
    (record,) = [one for one in sim.since(mark, cmd.Record) if "stands" in one.what]
    assert "stands: path" in record.what
    silent_s = float(record.why.split("nothing new sent for ")[1].split(" s")[0])
    assert 0.9 < silent_s < 1.5


def test_of_a_silent_peer_without_a_witness_nothing_is_claimed() -> None:
    sim = FabricSim(peers=("host3",), active=("host3",)).start()
    sim.silence("host3")
    sim.run(0.3)
    (line,) = stands(sim)
    assert "stands: unknown" in line and "nobody else answers" in line


def test_a_flow_over_a_path_that_fails_is_the_paths_fault() -> None:
    sim = FabricSim().start()
    sim.break_("leaf1>spine1")
    sim.run(0.5)
    (line,) = stands(sim)
    assert "stands: path" in line and "fail, blackhole" in line


def test_a_peer_that_nobody_has_probed_is_unknown() -> None:
    sim = FabricSim(peers=("host3",), active=("host3",)).start()
    (line,) = stands(sim, peer="fd00:ff::4")
    assert "stands: unknown" in line and "no path to it has been probed yet" in line


def test_a_flow_that_goes_on_is_said_once_under_the_same_cause() -> None:
    sim = FabricSim().start()
    sim.post(ev.FlowGoes(peer=H3, flow=FLOW))
    sim.run(0.05)
    assert not [line for line in sim.told() if FLOW in line]
    stands(sim)
    mark = sim.mark()
    for _ in range(2):
        sim.post(ev.FlowGoes(peer=H3, flow=FLOW, ended=True))
    sim.run(0.05)
    said = [one for one in sim.since(0, cmd.Record) if FLOW in one.what]
    assert [line for line in sim.told(mark) if FLOW in line] == [f"{FLOW} to host3 has ended (its queue pair is gone)"]
    assert len({one.cause for one in said}) == 1


@pytest.mark.parametrize(
    ("least_s", "interval_s"), [(0.47, 0.010), (0.047, 0.047 / 9), (0.001, 0.002), (None, 0.010)],
    ids=["patient", "impatient", "beyond reason", "never gives up"],
)  # fmt: skip
def test_paths_are_probed_so_often_that_a_transport_is_saved_in_time(least_s: float | None, interval_s: float) -> None:
    sim = FabricSim().start()
    sim.post(ev.PeerPatience(peer=H3, least_s=least_s))
    sim.run(0.1)
    of = {peer: {every for (to, _, _), every in sim.targets.items() if to == peer} for peer in ("fd00:ff::2", H3)}
    assert of["fd00:ff::2"] == {0.010}
    assert list(of[H3]) == [pytest.approx(interval_s)]
    told = [line for line in sim.told(0) if "are probed every" in line]
    assert len(told) == (interval_s < 0.010)
    sim.post(ev.PeerPatience(peer=H3, least_s=None))
    sim.run(0.1)
    assert {every for (to, _, _), every in sim.targets.items() if to == H3} == {0.010}
