"""Loss beside throughput: when an uplink's own queue says overload, what that excuses, and what it never does."""

from __future__ import annotations

import pytest
from fabric_sim import FabricSim

from linkpass.core import commands as cmd
from linkpass.core import events as ev
from linkpass.core.congestion import LOST_MOST_RATIO
from linkpass.core.offered import Second, overrun
from linkpass.core.settings import Detection

QUEUEING_S = Detection().queueing_s
GBIT = 1_000_000_000
SECOND_BYTES = GBIT // 8
OVERRUN = ev.UplinkOverrun(uplink="eth1", why="its own queue has dropped 9 packet(s) in 1 s, while it sent 97%")
LINK = "leaf1>spine1"


@pytest.mark.parametrize(
    ("seen", "speed_bps", "full"),
    [
        (Second(1.0, int(0.95 * SECOND_BYTES), 10, 0), GBIT, True),
        (Second(2.0, int(1.9 * SECOND_BYTES), 10, 0), GBIT, True),
        (Second(1.0, int(0.95 * SECOND_BYTES), 0, 0), GBIT, False),  # full, and nothing lost here
        (Second(1.0, int(0.5 * SECOND_BYTES), 10, 0), GBIT, False),  # lost, and far from full
        (Second(1.0, int(0.95 * SECOND_BYTES), 10, 0), 0, False),  # of an unknown speed
        (Second(1.0, 125_000, 10, 12_500), GBIT, True),  # 100 ms wait at 1 Mbit/s: somebody has cut the rate
        (Second(1.0, 125_000, 0, 12_500), GBIT, False),
        (Second(1.0, 125_000, 10, 0), GBIT, False),  # a burst that has gone, or what is set to be lost
        (Second(1.0, int(0.5 * SECOND_BYTES), 10, 1500), GBIT, False),  # one packet waits: 24 us
        (Second(1.0, 0, 10, 12_500), GBIT, False),  # nothing gets out at all: that is no overload
        (Second(0.0, 0, 10, 12_500), GBIT, False),
        (Second(1.0, -5, 10, 12_500), GBIT, False),  # counted anew
    ],
)
def test_drops_are_an_overloads_only_at_the_rate_of_the_uplink(seen: Second, speed_bps: int, *, full: bool) -> None:
    assert bool(overrun(seen, speed_bps, QUEUEING_S)) is full


def lossy(sim: FabricSim, uplink: str, ratio: float, *, evidence: str = "lossy") -> None:
    for peer, name, label in list(sim.targets):
        if name == uplink:
            event = ev.PathEvidence(
                peer=peer, uplink=name, label=label, evidence=evidence, loss_ratio=ratio, why="lost"  # type: ignore[arg-type]
            )  # fmt: skip
            sim.post(event)
    sim.run(1.0)


def down(sim: FabricSim) -> bool:
    return any(path.element.state == "down" for path in sim.core.world.table.in_use())


@pytest.mark.parametrize("ratio", [0.05, 2 * LOST_MOST_RATIO])
@pytest.mark.parametrize("full", [False, True])
def test_a_few_losses_over_an_overrun_uplink_are_its_queues(ratio: float, *, full: bool) -> None:
    sim = FabricSim().start()
    if full:
        sim.post(OVERRUN)
    sim.run(0.1)
    lossy(sim, "eth1", ratio)
    assert down(sim) is not (full and ratio <= LOST_MOST_RATIO)


@pytest.mark.parametrize("full", [False, True])
def test_windows_over_an_overrun_uplink_name_no_link(*, full: bool) -> None:
    sim = FabricSim().start()
    if full:
        sim.post(OVERRUN)
    sim.loss = {"host1>leaf1": 0.1}
    sim.windows(3.0)
    sim.run(3.0)
    assert (sim.core.world.links.get("host1>leaf1") is None) is full


def test_a_link_that_loses_behind_an_overrun_uplink_is_told_by_the_paths_beside_it() -> None:
    sim = FabricSim().start()
    sim.post(OVERRUN)
    sim.loss = {LINK: 0.1}
    sim.windows(3.0)
    sim.run(3.0)
    assert LINK in sim.core.world.soft


def test_a_blackhole_behind_an_overrun_uplink_is_left_at_once() -> None:
    sim = FabricSim().start()
    sim.post(OVERRUN)
    sim.break_(LINK)
    sim.run(0.5)
    assert LINK not in sim.carrying()


def test_an_overrun_uplink_shows_it_while_it_lasts() -> None:
    sim = FabricSim().start()
    for event in (OVERRUN, ev.UplinkOverrun(uplink="eth1")):
        sim.post(event)
        sim.run(0.1)
        shown = {one.name: one.overrun for one in sim.core.view(sim.now_s).uplinks}
        assert shown == {"eth1": event.why, "eth2": ""}


def test_the_other_uplink_is_not_excused_nor_this_one_when_it_is_over() -> None:
    sim = FabricSim().start()
    mark = sim.mark()
    sim.post(OVERRUN)
    sim.run(0.1)
    lossy(sim, "eth2", 0.05)
    assert down(sim)
    sim = FabricSim().start()
    mark = sim.mark()
    for event in (OVERRUN, OVERRUN, ev.UplinkOverrun(uplink="eth1"), ev.UplinkOverrun(uplink="eth1")):
        sim.post(event)
    sim.run(0.1)
    said = [one.what for one in sim.since(mark, cmd.Record)]
    assert said == ["eth1 is overrun by what is sent", "eth1 is no longer overrun by what is sent"]
    lossy(sim, "eth1", 0.05)
    assert down(sim)
