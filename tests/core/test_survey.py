"""What is asked of the fabric and the kernel: when it is traced again, and kernels that answer otherwise."""

from __future__ import annotations

import itertools

from fabric_sim import FabricSim

from linkpass.core import commands as cmd
from linkpass.core.settings import Probing
from linkpass.core.survey import plan, probing_interval_s


def refreshes(sim: FabricSim, mark: int) -> list[tuple[float, str]]:
    return [(at_s, f"{c.peer} {c.uplink}") for at_s, c in sim.log[mark:] if isinstance(c, cmd.TraceLabels)]


def test_what_is_known_is_traced_again_in_turn_and_not_by_all_hosts_at_once() -> None:
    stories = []
    for host, others in (("host1", ("host2", "host3", "host4")), ("host2", ("host1", "host3", "host4"))):
        sim = FabricSim(host=host, peers=others, active=others).start()
        mark = sim.mark()
        sim.run(300)
        story = refreshes(sim, mark)
        assert len({at_s for at_s, _ in story}) == len(story), "one at a time"
        for pair in {pair for _, pair in story}:
            times = [at_s for at_s, other in story if other == pair]
            ages = [later - sooner for sooner, later in itertools.pairwise(times)]
            assert 6 <= len(times) <= 10 and all(30 <= age_s < 60 for age_s in ages)
        stories.append({at_s for at_s, _ in story})
    together = [at_s for at_s in stories[0] if any(abs(at_s - other_s) < 0.5 for other_s in stories[1])]
    assert len(together) < 2 * len(stories[0]) / 3, "of two hosts that look in the same tenth of each second"


def test_a_trace_waits_while_news_is_bad_but_not_for_ever() -> None:
    sim = FabricSim().start()
    sim.run(25)
    mark, begun_s = sim.mark(), sim.now_s
    for _ in range(80):
        sim.break_("leaf1>spine1")
        sim.run(0.5)
        sim.heal()
        sim.run(0.5)
    calm = FabricSim().start()
    calm.run(105)
    assert not [at_s for at_s, _ in refreshes(sim, mark) if at_s < begun_s + 33]
    assert {pair for _, pair in refreshes(sim, mark)}
    assert len(refreshes(sim, mark)) < len(refreshes(calm, 0)) / 2


def blind_sim() -> FabricSim:
    sim = FabricSim()
    sim.blind = True
    return sim.start()


def test_a_kernel_that_overlooks_labels_is_planned_for_on_all_uplinks() -> None:
    """Linux before 6.14: all that is relabelled takes one uplink; the labels of the others are probed all the same."""
    sim = blind_sim()
    (way,) = {uplink for ways in sim.flows().values() for uplink, _ in ways}
    assert {uplink for _, uplink, _ in sim.targets} == {"eth1", "eth2"}
    for peer, ways in sim.flows().items():
        assert all((peer, uplink, label) in sim.targets for uplink, label in ways)
    leaf = sim.leaf[way]
    sim.break_(f"{leaf}>spine1")
    sim.run(0.5)
    begun_s = sim.now_s
    sim.run(3)
    assert not sim.ever_used(f"{leaf}>spine1", begun_s)
    assert sim.group == ("eth1", "eth2")
    sim.heal()
    sim.run(10)
    sim.break_(f"host1>{leaf}")
    sim.run(0.5)
    (other,) = {uplink for ways in sim.flows().values() for uplink, _ in ways}
    assert sim.group == (other,) != (way,)
    for peer, ways in sim.flows().items():
        assert all((peer, uplink, label) in sim.targets for uplink, label in ways)
    sim.heal()
    sim.run(10)
    assert sim.group == ("eth1", "eth2")
    assert {uplink for ways in sim.flows().values() for uplink, _ in ways} == {way}


def test_no_more_probes_are_credited_than_the_packet_limits_let_through() -> None:
    """The probes' edge stretches what does not fit: what was not sent acquits no link."""
    some = Probing(max_packets_per_s=400, max_link_packets_per_s=300)
    sim = FabricSim(probing=some).start()
    world = sim.core.world
    per_s = sum(1 / probing_interval_s(world, world.table.peer(peer)) for peer, _, _ in world.planned)
    assert world.stretch > 1
    assert per_s <= some.max_packets_per_s
    asked_per_s = sum(1 / target.interval_s for target in plan(world, sim.now_s))
    assert asked_per_s > some.max_packets_per_s, "the plan says what is wanted"
