"""Flows that no probed label leads: which are traced, what their ways say, and what they cannot say alone."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from fabric_sim import ADDRESS, FabricSim

from linkpass.core import commands as cmd
from linkpass.core import events as ev
from linkpass.core.diagnosis.accounts import Accounts
from linkpass.core.diagnosis.flow_rows import FLOW_WEIGHT, FlowRows
from linkpass.core.diagnosis.flow_ways import KEPT_S, MOST_KEPT
from linkpass.core.diagnosis.traced import Row, traced
from linkpass.core.settings import Diagnosis

KERNELS = 0x10000
"""Labels from here on are the kernel's own: ours have 16 bits."""
FLOWS = 8
"""From each uplink to each peer."""
FOUR = {name: f"10.0.0.{number}" for number, name in enumerate(ADDRESS, start=1)}


class FlowSim(FabricSim):
    """Traces flows, too: by their labels, in IPv4 by their ports."""

    def _carry_out(self, command: cmd.Command) -> None:
        super()._carry_out(command)
        if isinstance(command, cmd.TraceFlows):
            found = tuple((flow, self.way(command.peer, flow)) for flow in command.flows)
            self.later(
                0.06,
                lambda: ev.FlowsTraced(cmd_id=command.cmd_id, peer=command.peer, uplink=command.uplink, hops=found),
            )

    def way(self, peer: str, flow: ev.FlowAt) -> tuple[str, ...]:
        port = self.core.settings.probing.port
        label = flow.label or (0 if flow.sport == flow.dport == port else flow.sport)
        return self.hops(peer, flow.uplink, label)

    def over(self, direction: str, peer: str, flow: ev.FlowAt) -> bool:
        nodes = (self.host, *self.way(peer, flow), self.name[peer])
        return direction in [f"{a}>{b}" for a, b in itertools.pairwise(nodes)]


def started(*, family: int = 6, **more: Any) -> FlowSim:
    if family == 4:
        more["addresses"] = FOUR
    return FlowSim(mode="observe", diagnosis=Diagnosis(enabled=True), **more).start()  # type: ignore[return-value]


def flow(number: int, uplink: str = "eth1", *, label: int | None = None) -> ev.FlowAt:
    return ev.FlowAt(uplink, KERNELS + number if label is None else label, 40000 + number, 5000)


def flows_to(sim: FlowSim) -> list[tuple[str, ev.FlowAt]]:
    six = ":" in sim.core.settings.address
    return [
        (sim.address[name], flow(number, uplink, label=None if six else 0))
        for name in sim.peers
        for uplink in sim.uplinks
        for number in range(FLOWS)
    ]


def send(sim: FlowSim, direction: str, sent: int, again: int, span_s: float) -> None:
    """Each second all flows tell what they have sent, those over `direction` that they sent some again."""
    for second in range(1, round(span_s) + 1):
        for name in sim.peers:
            mine = [one for peer, one in flows_to(sim) if peer == sim.address[name]]
            hit = {one for one in mine if sim.over(direction, sim.address[name], one)}
            losing = ev.FlowsLosing(peer=sim.address[name], flows=tuple(one for one in mine if one in hit))
            counts = tuple(ev.FlowCount(one, sent, again if one in hit else 0) for one in mine)
            if again:
                sim.later(float(second), lambda losing=losing: losing)
            if second > 1:
                window = ev.FlowWindow(peer=sim.address[name], counts=counts)
                sim.later(float(second), lambda window=window: window)


def verdicts(sim: FlowSim, mark: int) -> list[str]:
    said = [one.what for one in sim.since(mark, cmd.Record) if one.what.startswith("verdict ")]
    return [text.split(" loses")[0] for text in said]


def evidence(sim: FlowSim) -> str:
    return "; ".join(said for one in sim.core.world.findings for said in one.evidence)


def asked(sim: FlowSim, mark: int) -> list[ev.FlowAt]:
    return [one for command in sim.since(mark, cmd.TraceFlows) for one in command.flows]


# which are traced
def test_a_flow_that_sends_again_is_asked_for_once() -> None:
    sim = started()
    mark, peer = sim.mark(), sim.address["host3"]
    for second in range(10):
        sim.later(float(second), lambda: ev.FlowsLosing(peer=peer, flows=(flow(1),)))
        sim.later(float(second), lambda: ev.FlowWindow(peer=peer, counts=(ev.FlowCount(flow(1), 100, 1),)))
    sim.run(10.0)
    (command,) = sim.since(mark, cmd.TraceFlows)
    assert (command.peer, command.uplink, command.flows) == (peer, "eth1", (flow(1),))
    sim.post(ev.FlowsLosing(peer=peer, flows=(flow(2), flow(1, "eth2"))))  # another label, another uplink
    sim.run(1.0)
    assert asked(sim, mark)[1:] == [flow(2), flow(1, "eth2")]


def test_no_more_than_so_many_an_uplink_and_second_those_first_that_lose_most() -> None:
    sim = started()
    mark = sim.mark()
    for name in ("host3", "host4"):
        many = tuple(flow(number, uplink) for number in range(12) for uplink in sim.uplinks)
        sim.post(ev.FlowsLosing(peer=sim.address[name], flows=many))
    sim.run(0.5)
    for uplink in sim.uplinks:
        per_peer = [one.flows for one in sim.since(mark, cmd.TraceFlows) if one.uplink == uplink]
        assert per_peer == [tuple(flow(n, uplink) for n in range(12)), tuple(flow(n, uplink) for n in range(4))]
    sim.run(1.0)
    sim.post(ev.FlowsLosing(peer=sim.address["host4"], flows=tuple(flow(n) for n in range(12))))
    sim.run(0.5)
    assert asked(sim, mark)[32:] == [flow(n) for n in range(4, 12)]


def test_it_is_asked_again_where_the_fabric_has_found_other_ways() -> None:
    sim = started()
    peer = sim.address["host3"]
    mark = sim.mark()
    hops = {label: sim.hops(peer, "eth1", label) for label in sim.core.world.table.peer(peer).pool}
    for spine, again in (("spine1", 1), (None, 1), ("spine2", 2), ("spine2", 2)):  # no answer tells nothing
        other = {label: (way[0], spine, way[-1]) for label, way in hops.items()}
        sim.post(ev.LabelsTraced(cmd_id=0, peer=peer, uplink="eth1", hops=other))
        sim.post(ev.FlowsLosing(peer=peer, flows=(flow(1),)))
        sim.run(4.0)
        assert len(asked(sim, mark)) == again


@pytest.mark.parametrize("why", ["switched off", "probed label", "not usable", "nobody known", "other family"])
def test_others_are_not_asked_for(why: str) -> None:
    many = Diagnosis(enabled=True, trace_flows=0 if why == "switched off" else 16)
    sim: FlowSim = FlowSim(mode="observe", diagnosis=many).start()  # type: ignore[assignment]
    mark, peer, one = sim.mark(), sim.address["host3"], flow(1)
    if why == "probed label":
        uplink, label = sim.core.world.table.peer(peer).in_use[0]
        one = ev.FlowAt(uplink, label, 40000, 5000)
    elif why == "not usable":
        one = flow(1, "eth9")
    elif why == "nobody known":
        peer = "fd00::99"
    elif why == "other family":
        peer = "10.0.0.9"
        sim.post(ev.PeerKnown(peer=peer, name="four"))
    sim.post(ev.FlowsLosing(peer=peer, flows=(one,)))
    sim.run(1.0)
    assert asked(sim, mark) == []


def test_what_is_remembered_is_bounded_and_forgotten() -> None:
    sim = started()
    mark, peer = sim.mark(), sim.address["host3"]
    for second in range(40):
        many = tuple(flow(100 * second + number, uplink) for number in range(16) for uplink in sim.uplinks)
        sim.later(second * 0.5, lambda many=many: ev.FlowsLosing(peer=peer, flows=many))
    sim.run(20.0)
    assert len(asked(sim, mark)) == MOST_KEPT
    sim.run(KEPT_S)
    sim.post(ev.FlowsLosing(peer=peer, flows=(flow(1),)))
    sim.run(1.0)
    assert sim.core._diagnosis is not None and len(list(sim.core._diagnosis._ways.known())) == 1


# what they say
def test_what_traced_flows_send_again_is_told_with_the_name() -> None:
    sim = started()
    mark = sim.mark()
    send(sim, "spine1>leaf3", 10_000, 100, 12.0)
    sim.run(2.0)
    sim.loss["spine1>leaf3"] = 0.01
    sim.windows(10.0)
    sim.run(6.0)
    assert verdicts(sim, mark) == ["verdict direction: spine1>leaf3"]
    assert "flows of the job send again on" in evidence(sim)


def test_they_make_certain_sooner_what_probes_find() -> None:
    took_s = []
    for again in (0, 100):
        sim = started()
        send(sim, "spine1>leaf3", 10_000, again, 12.0)
        sim.run(3.0)
        mark, began_s = sim.mark(), sim.now_s
        sim.loss["spine1>leaf3"] = 0.005
        sim.windows(9.0)
        sim.run(9.0)
        assert verdicts(sim, mark) == ["verdict direction: spine1>leaf3"]
        named = (at_s for at_s, one in sim.log[mark:] if isinstance(one, cmd.Record) and "verdict " in one.what)
        took_s.append(next(named) - began_s)
    assert took_s[1] <= took_s[0]


def test_what_no_probe_has_lost_accuses_nobody_and_wakes_nobody() -> None:
    sim = started()
    mark = sim.mark()
    send(sim, "leaf1>spine1", 100_000, 30_000, 8.0)
    sim.run(2.0)
    assert asked(sim, mark)
    assert sim.core._diagnosis is not None and sim.core._diagnosis.due_s is None
    sim.loss["spine2>leaf4"] = 0.05
    sim.windows(6.0)
    sim.run(6.0)
    assert verdicts(sim, mark) == ["verdict direction: spine2>leaf4"]


def test_flows_that_send_nothing_again_acquit_nobody_of_what_probes_find() -> None:
    sim = started()
    mark = sim.mark()
    for peer, one in flows_to(sim):  # they did once, and are known
        sim.post(ev.FlowsLosing(peer=peer, flows=(one,)))
        sim.run(0.2)
    send(sim, "", 1_000_000, 0, 12.0)
    sim.run(2.0)
    sim.loss["spine1>leaf3"] = 0.05
    sim.windows(8.0)
    sim.run(8.0)
    assert verdicts(sim, mark) == ["verdict direction: spine1>leaf3"]


def test_what_a_flow_was_chosen_for_does_not_count() -> None:
    """It is told of before the way is known; chance has chosen the flow, and would be taken for a sign."""
    sim = started()
    peer, one = sim.address["host3"], flow(1)
    sim.loss["spine1>leaf3"] = sim.loss["spine2>leaf3"] = 0.05
    sim.windows(3.0)
    sim.run(1.0)
    window = ev.FlowWindow(peer=peer, counts=(ev.FlowCount(one, 1000, 50),))
    for chosen in (True, False):
        if chosen:
            sim.post(ev.FlowsLosing(peer=peer, flows=(one,)))
        sim.post(window)
        sim.run(0.5)
        assert sim.core._diagnosis is not None and sim.core._diagnosis._ground.localiser is not None
        memory = sim.core._diagnosis._ground.localiser._memory
        assert (memory.sent[-1] > 0) is not chosen


def test_what_flows_have_lost_by_a_fault_that_is_over_is_forgotten_with_what_probes_have() -> None:
    sim = started()
    send(sim, "spine1>leaf3", 10_000, 100, 10.0)
    sim.run(2.0)
    sim.loss["spine1>leaf3"] = 0.05
    sim.windows(5.0)
    sim.run(8.0)

    def lost() -> float:
        assert sim.core._diagnosis is not None and sim.core._diagnosis._ground.localiser is not None
        first = len(sim.core._diagnosis._ground.keys)
        return float(sim.core._diagnosis._ground.localiser._memory.lost[first:].sum())

    assert lost() > 1
    sim.loss.clear()
    sim.post(ev.ClearRequested(link="*"))
    sim.run(0.5)
    assert lost() == 0


def test_a_direction_that_no_probe_crosses_is_not_blamed_for_its_flows() -> None:
    """Flows of the kernel's labels go over a spine of which no probed label knows; the losses of all are one spine's
    that both cross, in part."""
    sim = started(spines=("spine1", "spine2", "spine3"))
    mark = sim.mark()
    sim.loss["leaf3>host3"] = 0.02
    sim.windows(10.0)
    send(sim, "spine3>leaf3", 1000, 300, 10.0)
    sim.run(10.0)
    assert verdicts(sim, mark)[:1] == ["verdict direction: leaf3>host3"]


# IPv4
def test_of_ipv4_the_probes_are_traced_with_the_flows_and_name_what_fails() -> None:
    """Without tunnels no path was known, and nobody was named."""
    named: list[list[str]] = []
    for traces in (False, True):
        sim = started(family=4)
        mark, port = sim.mark(), sim.core.settings.probing.port
        hit = next(iter(sim.directions(peer, over, 0)[1] for peer, over, _ in sim.targets if peer == FOUR["host3"]))
        if traces:
            send(sim, hit, 10_000, 100, 12.0)
        sim.run(3.0)
        sim.loss[hit] = 0.05
        sim.windows(9.0)
        sim.run(9.0)
        named.append(verdicts(sim, mark))
        if traces:
            first = sim.since(mark, cmd.TraceFlows)[0]
            assert first.flows[0] == ev.FlowAt(first.uplink, 0, port, port)
            assert all(one.label == 0 for one in asked(sim, mark))
            assert "flows of the job send again on" in evidence(sim)
    assert named[0] == []
    assert all(text.startswith(f"verdict direction: {hit} (or ") for text in named[1]) and named[1]


def test_ipv4_flows_are_not_taken_for_their_probes() -> None:
    """They have ports of their own, by which they may go another way."""
    sim = started(family=4)
    accounts = Accounts(sim.core.world)
    accounts.flows(ev.FlowWindow(peer=FOUR["host3"], counts=(ev.FlowCount(flow(1, label=0), 100, 10),)))
    assert not accounts._flows


# what they weigh
ROWS = [
    Row("eth1", ("a", "l1", "s1", "l2", "b")),
    Row("eth1", ("a", "l1", "s2", "l2", "b")),
    Row("eth1", ("a", "l1", "s1", "l2", "b")),
    Row("eth1", ("a", "l1", "s2", "l2", "b")),
    Row("eth1", ("a", "l1", "s3", "l2", "b")),
    Row("eth2", ("a", "x1", "b")),
]
"""Two probed paths and four flows: one on each of them, one that shares their ends alone, one that shares nothing."""


def weighed(
    sent: list[int], again: list[int], probes: list[list[float]], queued: tuple[float, float] = (0, 0)
) -> list[list[float]]:
    paths, rows = traced(ROWS, {"a", "b"}, 2), FlowRows()
    keys = [[("b", flow(number))] for number in range(4)]
    counts = tuple(ev.FlowCount(flow(number), *both) for number, both in enumerate(zip(sent, again, strict=True)))
    rows.take("b", counts, 1.0)
    told = rows.weigh(paths, keys, np.array(probes, dtype=float), np.array(queued, dtype=float), 1.0, 0.1)
    again_told = rows.weigh(paths, keys, np.array(probes, dtype=float), np.array(queued, dtype=float), 1.1, 0.1)
    assert not again_told.any()  # each count is weighed once
    return [[float(number) for number in row] for row in told]


def test_a_segment_weighs_a_quarter_of_a_probe() -> None:
    sent, lost = weighed([40, 0, 0, 0], [4, 0, 0, 0], [[1000, 1000], [50, 0]])
    assert (sent[0], lost[0]) == (40 * FLOW_WEIGHT, 4 * FLOW_WEIGHT) and not any(sent[1:] + lost[1:])


def test_over_no_direction_do_flows_weigh_more_than_the_probes_that_crossed_it() -> None:
    sent, lost = weighed([10_000, 10_000, 10_000, 0], [0, 0, 0, 0], [[100, 50], [0, 0]])
    assert sent[0] <= 100 and sent[1] <= 50 and sum(sent) <= 150 and sent[2] > 0 and not any(lost)


def test_their_losses_weigh_no_more_than_those_of_probes_on_their_way() -> None:
    sent, lost = weighed([10_000] * 4, [1000] * 4, [[100, 100], [3, 0]])
    assert 0 < sum(lost) <= 3 + 1e-9
    assert lost[0] / sent[0] == pytest.approx(0.1)


def test_where_no_probe_has_lost_anything_flows_that_lose_say_nothing() -> None:
    sent, lost = weighed([1000] * 4, [10, 10, 10, 0], [[100, 100], [0, 0]])
    assert not any(sent[:3] + lost)


def test_what_shares_nothing_with_a_probed_path_says_nothing() -> None:
    assert weighed([0, 0, 0, 1000], [0, 0, 0, 10], [[100, 100], [5, 5]]) == [[0.0] * 4] * 2


def test_over_a_queue_flows_say_nothing() -> None:
    sent, lost = weighed([1000] * 4, [10] * 4, [[100, 100], [5, 5]], (1, 0))
    assert sent[0] == lost[0] == 0.0


def test_what_was_told_long_ago_is_not_weighed() -> None:
    paths, rows = traced(ROWS, {"a", "b"}, 2), FlowRows()
    rows.take("b", (ev.FlowCount(flow(0), 100, 10),), 1.0)
    assert not rows.weigh(paths, [[("b", flow(0))]], np.full((2, 2), 50.0), np.zeros(2), 9.0, 0.1).any()
