"""Queues: which direction is named for them, what is moved off it, how it comes back, and when nothing is moved."""

from __future__ import annotations

import itertools

import pytest
from fabric_sim import FabricSim

from linkpass.core import commands as cmd
from linkpass.core import events as ev
from linkpass.core.congestion import LOST_MOST_RATIO, PAUSE_S, overloaded
from linkpass.core.relief import AGAIN_S, STEP_S, TRIAL_S
from linkpass.core.settings import Limits

HOLD_S = Limits().congestion_hold_s
LINK = "leaf1>spine1"


def moves(sim: FabricSim, mark: int = 0) -> list[cmd.SetLabels]:
    return sim.since(mark, cmd.SetLabels)


def told(sim: FabricSim, mark: int = 0) -> str:
    return "\n".join(sim.told(mark))


def until_left(sim: FabricSim, link: str = LINK, within_s: float = 1.5) -> float:
    """Run until no flow crosses a direction; how long it took."""
    begun_s = sim.now_s
    while link in sim.carrying():
        assert sim.now_s - begun_s < within_s, told(sim)
        sim.run(0.01)
    return sim.now_s - begun_s


def test_an_overloaded_link_is_named_and_left_within_a_second() -> None:
    sim = FabricSim().start()
    assert LINK in sim.carrying()
    mark = sim.mark()
    sim.fill(LINK)
    assert until_left(sim, within_s=1.0) > 0.2
    assert f"verdict congestion: {LINK} is overloaded" in told(sim, mark)
    assert "(20 ms)" in told(sim, mark)
    assert ("congestion", LINK) in [(one.kind, one.name) for one in sim.core.view(sim.now_s).congestion]


def test_a_queue_damps_nothing_and_is_no_failure() -> None:
    sim = FabricSim().start()
    sim.fill(LINK)
    sim.run(2.0)
    world = sim.core.world
    elements = [*world.links.values(), *(path.element for path in world.table.in_use())]
    assert {element.state for element in elements} == {"up"}
    assert all(element.penalty == 0 for element in elements)
    assert sim.core.view(sim.now_s).verdicts == ()


def test_half_goes_first_and_the_rest_stays_when_that_is_enough() -> None:
    sim = FabricSim().start()
    before = {peer: list(labels) for peer, labels in sim.labels.items()}
    mark = sim.mark()
    sim.fill(LINK)
    while not moves(sim, mark):
        sim.run(0.01)
    sim.drain(LINK)
    sim.run(5.0)
    assert LINK in sim.carrying()
    crossing = {
        peer: {label for uplink, label in ways if LINK in sim.directions(peer, uplink, label)}
        for peer, ways in sim.flows().items()
    }
    for move in moves(sim, mark):
        over = {
            label for label in before[move.peer] if LINK in sim.directions(move.peer, sim.kernel_uplink(label), label)
        }
        assert crossing[move.peer] < over
        assert len(crossing[move.peer]) == len(over) // 2
    assert len(moves(sim, mark)) == len({move.peer for move in moves(sim, mark)}), "one step"


def test_the_way_back_is_tried_with_a_few_and_then_taken_by_all() -> None:
    sim = FabricSim().start()
    before = {peer: set(labels) for peer, labels in sim.labels.items()}
    sim.fill(LINK)
    until_left(sim)
    sim.drain()
    sim.run(HOLD_S - 1.0)
    assert LINK not in sim.carrying()
    mark = sim.mark()
    sim.run(HOLD_S / 2 + 2.0)
    trial = len({move.peer for move in moves(sim, mark)})
    sim.run(TRIAL_S + 3.0)
    assert {peer: set(labels) for peer, labels in sim.labels.items()} == before
    assert len(moves(sim, mark)) >= trial > 0
    assert " back: " in told(sim, mark)


def test_a_queue_that_comes_back_is_left_at_once_and_the_next_way_back_waits_twice_as_long() -> None:
    sim = FabricSim().start()
    sim.fill(LINK)
    until_left(sim)
    holds = []
    for _ in range(4):
        (overload,) = sim.core.world.congestion.overloads
        holds.append(overload.hold_s)
        sim.drain()
        while LINK not in sim.carrying():
            sim.run(0.05)
        mark = sim.mark()
        sim.fill(LINK)
        until_left(sim)
        peers = [move.peer for move in moves(sim, mark)]
        assert len(peers) == len(set(peers)), "in one step"
    assert holds == [HOLD_S, 2 * HOLD_S, 4 * HOLD_S, 8 * HOLD_S]


def test_a_queue_long_after_the_last_is_a_new_story() -> None:
    sim = FabricSim().start()
    sim.fill(LINK)
    until_left(sim)
    sim.drain()
    sim.run(100.0)
    sim.fill(LINK)
    until_left(sim)
    (overload,) = sim.core.world.congestion.overloads
    assert overload.hold_s == HOLD_S
    sim.drain()
    sim.run(800.0)
    assert sim.core.world.congestion.overloads == []


def test_what_only_carries_the_queue_elsewhere_is_taken_back() -> None:
    sim = FabricSim().start()
    mark = sim.mark()
    sim.fill(LINK)
    until_left(sim)
    (first,) = sim.core.world.congestion.overloads
    eased, before = set(first.eased), len(moves(sim, mark))
    sim.fill("leaf1>spine2")
    sim.run(0.6)
    assert "moving them does not help" in told(sim, mark)
    assert set(first.eased) < eased
    assert first.hold_s == 2 * HOLD_S
    assert LINK in sim.carrying(), "they carry again"
    assert len(moves(sim, mark)) > before
    sim.drain("leaf1>spine2")
    sim.run(0.5)
    kept, later = set(first.eased), sim.mark()
    sim.run(HOLD_S / 2)
    assert set(first.eased) == kept
    assert not moves(sim, later)


def test_incast_is_said_once_and_nothing_is_moved() -> None:
    sim = FabricSim().start()
    mark = sim.mark()
    sim.fill("leaf3>host3", "leaf4>host3")
    sim.run(3.0)
    assert moves(sim, mark) == []
    (line,) = [line for line in sim.told(mark) if "incast" in line]
    assert line.startswith("incast at host3: its own link is full, no path helps")
    assert ("full", "host3") in [(one.kind, one.name) for one in sim.core.view(sim.now_s).congestion]
    sim.drain()
    sim.run(1.0)
    assert "host3 is no longer full" in told(sim, mark)
    mark = sim.mark()
    sim.fill("leaf3>host3", "leaf4>host3")
    sim.run(1.0)
    assert sim.told(mark) == [], "it was said a moment ago"
    sim.drain()
    sim.run(PAUSE_S)
    sim.fill("leaf3>host3", "leaf4>host3")
    sim.run(1.0)
    assert "incast at host3" in told(sim, mark)


def test_one_of_a_receivers_two_links_is_left_for_the_other() -> None:
    sim = FabricSim().start()
    sim.fill("leaf3>host3")
    until_left(sim, "leaf3>host3", within_s=1.0)
    assert "leaf4>host3" in sim.carrying()
    assert "incast" not in told(sim)


def test_own_links_that_are_full_are_said_and_kept() -> None:
    sim = FabricSim().start()
    mark = sim.mark()
    sim.fill("host1>leaf1", "host1>leaf2")
    sim.run(3.0)
    assert moves(sim, mark) == []
    (line,) = [line for line in sim.told(mark) if "queue" in line]
    assert line.startswith("queues on every path from host1")


def test_one_own_link_that_is_full_is_left_for_the_other() -> None:
    sim = FabricSim(active=("host3", "host4")).start()
    sim.fill("host1>leaf1")
    sim.run(2.0)
    eased = {path for one in sim.core.world.congestion.overloads for path in one.eased}
    assert eased
    assert {uplink for _, uplink, _ in eased} == {"eth1"}


def test_no_path_without_a_queue_is_said_and_not_called_incast() -> None:
    sim = FabricSim().start()
    mark = sim.mark()
    sim.fill("leaf1>spine1", "leaf1>spine2", "leaf2>spine1", "leaf2>spine2")
    sim.run(2.0)
    assert "every path to host3 has a queue: there is none to move to" in told(sim, mark)
    assert "incast" not in told(sim, mark)
    assert moves(sim, mark) == []


def test_nobody_is_named_for_queues_that_share_no_link() -> None:
    """One label of each link is late: links that carry others without a queue have none."""
    sim = FabricSim().start()
    mark = sim.mark()
    peer = sim.address["host3"]
    paths = list(sim.core.world.table.in_use())
    uplink, label = next(
        path.key
        for path in paths
        if path.peer == peer
        and set(path.links) <= {link for other in paths if other is not path for link in other.links}
    )
    sim.post(ev.PathEvidence(peer=peer, uplink=uplink, label=label, evidence="queueing", queueing_s=0.01))
    sim.run(2.0)
    assert moves(sim, mark) == []
    assert "overloaded" not in told(sim, mark)


A, B, C, D = ("h>l", "l>s1"), ("h>l", "l>s2"), ("h>m", "m>s1"), ("h>m", "m>s2")


@pytest.mark.parametrize(
    ("queued", "clear", "found"),
    [
        ([], [A, B], []),
        ([A], [B, C], [("l>s1",)]),
        ([A, B], [C, D], [("h>l",)]),
        ([A, C], [B, D], [("l>s1",), ("m>s1",)]),
        ([A, A], [A, B], []),
        ([A], [A, B], []),
        ([A], [C, D], [("h>l", "l>s1")]),
        ([A, A, A, D], [B, C], [("l>s1",), ("m>s2",)]),
    ],
)
def test_queues_are_explained_by_the_fewest_directions(queued: list, clear: list, found: list) -> None:
    assert overloaded(queued, clear) == found


@pytest.mark.parametrize("wavers", [True, False])
def test_a_path_that_wavers_acquits_nobody(wavers: bool) -> None:
    sim = FabricSim().start()
    mark = sim.mark()
    over = [target for target in sim.targets if LINK in sim.directions(*target)]
    assert len(over) >= 3
    for peer, uplink, label in over[1:]:
        sim.post(ev.PathEvidence(peer=peer, uplink=uplink, label=label, evidence="queueing", queueing_s=0.01))
    peer, uplink, label = over[0]
    sim.run(0.5)
    assert f"{LINK} is overloaded" not in told(sim, mark)
    sim.post(ev.PathEvidence(peer=peer, uplink=uplink, label=label, evidence="good", wavers=wavers))
    sim.run(1.0)
    assert (f"{LINK} is overloaded" in told(sim, mark)) is wavers


def test_a_slow_uplink_gets_no_more_than_twice_its_share() -> None:
    sim = FabricSim(active=("host3",), limits=Limits(max_moved_ratio=1.0))
    sim.speed_bps["eth2"] = 10_000_000_000
    sim.start()
    carried = [uplink for uplink, _ in sim.flows()[sim.address["host3"]]].count("eth2")
    sim.fill("host1>leaf1")
    sim.run(5.0)
    assert [uplink for uplink, _ in sim.flows()[sim.address["host3"]]].count("eth2") == carried
    sim = FabricSim(active=("host3",), limits=Limits(max_moved_ratio=1.0)).start()
    sim.fill("host1>leaf1")
    sim.run(5.0)
    assert [uplink for uplink, _ in sim.flows()[sim.address["host3"]]].count("eth2") > carried


def test_no_more_than_the_set_share_is_moved_at_once() -> None:
    sim = FabricSim(active=("host3",), limits=Limits(max_moved_ratio=0.0)).start()
    mark = sim.mark()
    sim.fill(LINK)
    sim.run(3 * AGAIN_S)
    assert moves(sim, mark) == []
    assert f"{LINK} is overloaded" in told(sim, mark)


def test_observe_says_what_it_would_do() -> None:
    sim = FabricSim(mode="observe").start()
    mark = sim.mark()
    sim.fill(LINK)
    sim.run(2.0)
    assert "would have moved" in told(sim, mark)
    assert moves(sim, 0) == []


def test_the_operator_clears_it() -> None:
    sim = FabricSim().start()
    before = {peer: set(labels) for peer, labels in sim.labels.items()}
    sim.fill(LINK)
    until_left(sim)
    sim.drain()
    sim.run(1.0)
    sim.post(ev.ClearRequested(link="*"))
    sim.run(0.5)
    assert {peer: set(labels) for peer, labels in sim.labels.items()} == before


def test_a_failure_on_what_is_left_outweighs_a_queue() -> None:
    """The path that was left for its queue is better than one on which nothing gets through."""
    sim = FabricSim(active=("host3", "host4")).start()
    sim.fill(LINK)
    until_left(sim)
    sim.break_("spine2", "leaf2>spine1")
    sim.run(1.0)
    assert LINK in sim.carrying()


def test_a_peer_that_falls_silent_takes_its_witness_along() -> None:
    sim = FabricSim(active=("host3",)).start()
    sim.fill("leaf3>host3")
    sim.run(0.6)
    sim.silence("host3")
    sim.run(3.0)
    assert not any(one.queued for one in sim.core.world.congestion.overloads)
    sim.post(ev.PeersActive(peers=()))
    sim.run(1.0)


def test_speeds_that_are_not_known_are_taken_as_equal() -> None:
    sim = FabricSim(active=("host3",), limits=Limits(max_moved_ratio=1.0))
    sim.speed_bps = {"eth1": 0, "eth2": 10_000_000_000}
    sim.start()
    carried = [uplink for uplink, _ in sim.flows()[sim.address["host3"]]].count("eth2")
    sim.fill("host1>leaf1")
    sim.run(2.0)
    assert [uplink for uplink, _ in sim.flows()[sim.address["host3"]]].count("eth2") > carried


def test_directions_that_are_not_told_apart_are_when_others_cross_them() -> None:
    sim = FabricSim(active=("host3",), limits=Limits(labels_per_peer=2)).start()
    sim.fill("leaf3>host3")
    sim.run(1.0)
    (overload,) = sim.core.world.congestion.overloads
    assert "leaf3>host3" in overload.links
    before = len(overload.links)
    sim.post(ev.PeersActive(peers=(sim.address["host3"], sim.address["host4"])))
    sim.run(5.0)
    sim.drain("leaf3>host3")
    sim.run(1.0)
    sim.fill("leaf3>host3")
    sim.run(1.0)
    (overload,) = sim.core.world.congestion.overloads
    assert "leaf3>host3" in overload.links
    assert before > len(overload.links)


# a queue that looks like a blackhole at first
def test_a_sudden_queue_is_left_at_once_and_turns_out_to_be_no_failure() -> None:
    sim = FabricSim().start()
    mark = sim.mark()
    sim.choke(LINK)
    assert until_left(sim, within_s=0.06) > 0.03
    sim.run(0.3)
    assert f"verdict congestion: {LINK} is overloaded" in told(sim, mark)
    world = sim.core.world
    elements = [*world.links.values(), *(path.element for path in world.table.in_use())]
    assert {element.state for element in elements} == {"up"}
    assert all(element.penalty == 0 and element.relapses == 0 for element in elements)
    left = [command.cause for command in sim.since(mark, cmd.SetLabels)]
    assert len(set(left)) == 1, "one story"
    later = sim.mark()
    sim.run(HOLD_S - 1.0)
    assert LINK not in sim.carrying()
    assert moves(sim, later) == [], "nothing went there and back meanwhile"
    sim.run(HOLD_S)
    assert LINK in sim.carrying()


def test_a_sudden_queue_that_went_with_the_flows_is_that_of_its_paths() -> None:
    """Those beside them over the same link never had one: no direction explains it, and nobody runs back into it."""
    sim = FabricSim().start()
    before = {peer: set(labels) for peer, labels in sim.labels.items()}
    mark = sim.mark()
    sim.choke(LINK, of=2)
    sim.run(1.0)
    assert "were late, not dead" in told(sim, mark)
    assert LINK in told(sim, mark).split("they share ")[1]
    left = {peer: before[peer] - set(labels) for peer, labels in sim.labels.items()}
    assert sum(map(len, left.values())) == 2
    later = sim.mark()
    sim.run(HOLD_S - 2.0)
    assert moves(sim, later) == []
    holds = []
    for _ in range(3):
        (overload,) = sim.core.world.congestion.overloads
        holds.append(overload.hold_s)
        while {peer: before[peer] - set(labels) for peer, labels in sim.labels.items()} == left:
            sim.run(0.05)
        sim.choke(LINK, of=2)
        sim.run(1.0)
        assert {peer: before[peer] - set(labels) for peer, labels in sim.labels.items()} == left
    assert holds == [HOLD_S, 2 * HOLD_S, 4 * HOLD_S]
    sim.run(20 * HOLD_S)
    assert {peer: set(labels) for peer, labels in sim.labels.items()} == before


def test_what_left_a_sudden_queue_comes_back_when_it_only_moved_the_queue() -> None:
    sim = FabricSim().start()
    mark = sim.mark()
    sim.choke(LINK)
    sim.run(0.3)
    sim.fill("leaf1>spine2")
    sim.run(0.6)
    assert "moving them does not help" in told(sim, mark)
    assert LINK in sim.carrying()


def test_sudden_incast_moves_nothing_for_long() -> None:
    sim = FabricSim().start()
    before = {peer: set(labels) for peer, labels in sim.labels.items()}
    mark = sim.mark()
    sim.choke("leaf3>host3", "leaf4>host3")
    sim.run(1.0)
    assert "incast at host3" in told(sim, mark)
    assert {peer: set(labels) for peer, labels in sim.labels.items()} == before
    assert sim.core.world.congestion.late == {}


def test_a_path_that_dies_for_good_is_no_queue() -> None:
    sim = FabricSim().start()
    sim.break_(LINK)
    sim.run(0.2)
    sim.heal()
    sim.run(0.2)
    watched = [path for path in sim.core.world.table.in_use() if path.element.state == "watch"]
    assert watched
    assert all(path.element.penalty > 0 for path in watched)


# what the ports' counters say
def lossy(sim: FabricSim, uplink: str, ratio: float) -> None:
    for peer, name, label in list(sim.targets):
        if name == uplink:
            event = ev.PathEvidence(peer=peer, uplink=name, label=label, evidence="lossy", loss_ratio=ratio, why="lost")
            sim.post(event)
    sim.run(1.0)


PAUSED = ev.CongestionEvidence(uplink="eth1", out=("the neighbour does not let us send priority 3: it has no room",))


@pytest.mark.parametrize("ratio", [0.05, 2 * LOST_MOST_RATIO])
def test_a_few_losses_over_a_paused_port_are_its_congestion(ratio: float) -> None:
    sim = FabricSim().start()
    sim.post(PAUSED)
    sim.run(0.1)
    lossy(sim, "eth1", ratio)
    down = [path for path in sim.core.world.table.in_use() if path.element.state == "down"]
    assert bool(down) is (ratio > LOST_MOST_RATIO)
    if not down:
        evidence = {path.evidence for path in sim.core.world.table.in_use() if path.uplink == "eth1"}
        assert evidence == {"queueing"}
        assert "no room" in told(sim)


def test_windows_over_a_paused_port_are_no_evidence_of_loss() -> None:
    for paused in (True, False):
        sim = FabricSim().start()
        if paused:
            sim.post(PAUSED)
        sim.loss = {"host1>leaf1": 0.1}
        sim.windows(3.0)
        sim.run(3.0)
        assert (sim.core.world.links.get("host1>leaf1") is None) is paused


def test_a_link_that_fails_behind_a_paused_port_is_told_by_the_paths_that_do_not_cross_it() -> None:
    sim = FabricSim().start()
    sim.post(PAUSED)
    sim.loss = {LINK: 0.1}
    sim.windows(3.0)
    sim.run(3.0)
    assert LINK in sim.core.world.soft


def test_a_failure_keeps_its_penalty_when_a_later_one_turns_out_to_be_none() -> None:
    sim = FabricSim().start()
    path = next(path for path in sim.core.world.table.in_use() if path.uplink == "eth1" and path.peer in sim.labels)
    say = {"peer": path.peer, "uplink": path.uplink, "label": path.label}
    sim.post(ev.PathEvidence(**say, evidence="blackhole", why="lost"))
    sim.post(ev.PathEvidence(**say, evidence="good", why="back"))
    sim.run(0.01)
    kept = path.element.penalty
    assert kept > 0
    sim.post(ev.PathEvidence(**say, evidence="blackhole", why="lost"))
    sim.run(0.01)
    assert path.element.penalty > kept
    sim.post(ev.PathEvidence(**say, evidence="queueing", why="late"))
    sim.run(0.01)
    assert path.element.penalty == kept
    assert path.element.state == "watch"


def test_marks_on_what_comes_in_are_said_and_change_nothing() -> None:
    sim = FabricSim().start()
    mark = sim.mark()
    sim.post(ev.CongestionEvidence(uplink="eth1", into=("packets arrive marked",)))
    sim.post(ev.CongestionEvidence(uplink="eth1", into=("packets arrive marked", "we ask senders to slow down")))
    sim.run(0.1)
    lossy(sim, "eth1", 0.05)
    assert [path for path in sim.core.world.table.in_use() if path.element.state == "down"]
    sim.post(ev.CongestionEvidence(uplink="eth1"))
    sim.post(ev.CongestionEvidence(uplink="eth1"))
    sim.run(0.1)
    lines = [line for line in sim.told(mark) if "congested" in line]
    assert lines == [
        "eth1 is congested by its counters (packets arrive marked)",
        "eth1 is no longer congested (by its counters)",
    ]


def test_steps_wait_for_what_the_queues_say() -> None:
    """The second step comes when the first has been seen not to be enough."""
    sim = FabricSim().start()
    mark = sim.mark()
    sim.fill(LINK)
    sim.run(2.0)
    times = [at_s for at_s, command in sim.log[mark:] if isinstance(command, cmd.SetLabels)]
    gaps = [later - sooner for sooner, later in itertools.pairwise(times) if later - sooner > 0.05]
    assert gaps
    assert min(gaps) >= STEP_S - 0.05


def test_a_link_that_loses_large_packets_alone_is_said_to() -> None:
    sim = FabricSim().start()
    mark = sim.mark()
    for peer, uplink, label in sim.targets:
        if LINK in sim.directions(peer, uplink, label):
            event = ev.PathEvidence(peer=peer, uplink=uplink, label=label, evidence="blackhole", large_only=True)
            sim.post(event)
    sim.run(0.5)
    assert f"verdict link: {LINK} lets no large packets through" in told(sim, mark)
    assert LINK not in sim.carrying()
