"""What an RDMA device says of its ports: evidence of the uplink that lies on one, a line in the journal for others."""

from __future__ import annotations

import pytest
from fabric_sim import FabricSim

from linkpass.core import commands as cmd
from linkpass.core import events as ev
from linkpass.core.events import PortNews

BACK_S = 3.0
"""The floor of a first failure, and the time to gather."""


def port(what: PortNews, *netdevs: str, number: int = 1, detail: str = "") -> ev.PortEvent:
    return ev.PortEvent(device="mlx5_0", port=number, what=what, netdevs=netdevs, detail=detail)


def tell(sim: FabricSim, event: ev.Event, span_s: float = 0.2) -> list[cmd.Record]:
    mark = sim.mark()
    sim.post(event)
    sim.run(span_s)
    return [one for one in sim.since(mark, cmd.Record) if one.element == "mlx5_0/1" or one.element == "mlx5_0"]


def uplinks_used(sim: FabricSim) -> set[str]:
    return {uplink for ways in sim.flows().values() for uplink, _ in ways}


def test_traffic_leaves_an_uplink_whose_port_is_in_error_and_comes_back_when_it_has_earned_it() -> None:
    sim = FabricSim().start()
    (said,) = tell(sim, port("PORT_ERR", "eth1"))
    assert (said.what, said.why) == ("RDMA port mlx5_0/1 is in error", "PORT_ERR on eth1")
    assert said.level == "warning"
    assert sim.group == ("eth2",) and uplinks_used(sim) == {"eth2"}
    moved = [one for one in sim.since(0, cmd.SetGroup) if one.uplinks == ("eth2",)]
    assert [one.cause for one in moved] == [said.cause]
    view = next(one for one in sim.core.view(sim.now_s).uplinks if one.name == "eth1")
    assert (view.usable, view.state, view.why) == (True, "down", "PORT_ERR of mlx5_0/1")
    (again,) = tell(sim, port("PORT_ACTIVE", "eth1"))
    assert (again.cause, again.what) == (said.cause, "RDMA port mlx5_0/1 is active")
    assert sim.group == ("eth2",)
    sim.run(BACK_S)
    assert sim.group == ("eth1", "eth2")


@pytest.mark.parametrize("first", ["carrier", "port"])
def test_a_lost_carrier_and_its_port_event_are_one_story(first: str) -> None:
    """Whichever is told first, going down and coming up."""
    sim = FabricSim().start()
    for up in (False, True):
        event = port("PORT_ACTIVE" if up else "PORT_ERR", "eth1")
        if first == "port":
            sim.post(event)
        sim.carrier("eth1", up)
        if first == "carrier":
            sim.post(event)
        sim.run(0.5)
        assert sim.group == ("eth2",)
    causes = {one.cause for one in sim.since(0, cmd.Record) if one.element in ("eth1", "mlx5_0/1")}
    assert len(causes) == 1
    sim.run(BACK_S)
    assert sim.group == ("eth1", "eth2")
    assert sim.core.view(sim.now_s).moves == 2


def test_a_carrier_that_returns_while_the_port_is_in_error_brings_nothing_back() -> None:
    sim = FabricSim().start()
    tell(sim, port("PORT_ERR", "eth1"))
    sim.carrier("eth1", False)
    sim.run(0.5)
    sim.carrier("eth1", True)
    sim.run(30)
    assert sim.group == ("eth2",)
    tell(sim, port("GONE", "eth1", number=0))  # nothing is said against it any more
    sim.run(BACK_S)
    assert sim.group == ("eth1", "eth2")


def test_the_last_uplinks_are_not_taken_when_all_ports_are_in_error() -> None:
    sim = FabricSim().start()
    sim.post(port("PORT_ERR", "eth1"))
    sim.post(port("PORT_ERR", "eth2", number=2))
    sim.run(1)
    assert sim.group == ("eth1", "eth2")
    assert uplinks_used(sim) == {"eth1", "eth2"}


def test_a_port_under_a_vrf_is_recorded_and_moves_nothing() -> None:
    sim = FabricSim().start()
    (said,) = tell(sim, port("PORT_ERR", "vrf0"), 1.0)
    assert said.why == "PORT_ERR on vrf0; no uplink lies on it"
    assert sim.group == ("eth1", "eth2") and sim.core.view(sim.now_s).moves == 0


def test_addresses_that_move_soon_after_belong_to_the_same_story_and_later_to_their_own() -> None:
    sim = FabricSim().start()
    (down,) = tell(sim, port("PORT_ERR", "eth1"))
    (gids,) = tell(sim, port("GID_CHANGE", "eth1", detail="fd00::1 (RoCE v2) moved from index 1 to 3"))
    assert gids.cause == down.cause and gids.level == "info"
    assert gids.why == "GID_CHANGE on eth1; fd00::1 (RoCE v2) moved from index 1 to 3"
    sim.run(60)
    (later,) = tell(sim, port("GID_CHANGE", "eth1"))
    assert later.cause not in ("", down.cause)
    (up,) = tell(sim, port("PORT_ACTIVE", "eth1"))
    assert up.cause == down.cause
