"""Hosts that let probes wait: when one is called slow, what that explains, and what it never does."""

from __future__ import annotations

import pytest
from fabric_sim import FabricSim
from silent_hosts import flowing, given_up, silent

from linkpass.core import commands as cmd
from linkpass.core import events as ev
from linkpass.core.diagnosis import hearsay
from linkpass.core.settings import Detection, Diagnosis

WELL_S, LATE_S = 0.0005, 0.07
WINDOWS = Detection().slow_host_windows
LINK = "leaf1>spine1"
TWO = ("host2", "host3")
"""With these peers nobody else crosses the link and acquits it."""
FORGET_S = 600.0


def delays(
    sim: FabricSim, seconds: int = 1, *, floor_s: float = WELL_S, source: str = "reports", **late: float
) -> None:
    """Windows of all hosts, one a second; `late`: of those that differ."""
    rows = tuple(
        ev.ProbeDelay(sim.address[name], source, late.get(name, WELL_S), floor_s)  # type: ignore[arg-type]
        for name in (sim.host, *sim.peers)
    )
    for _ in range(seconds):
        sim.post(ev.ProbeDelays(delays=rows))
        sim.run(1.0)


def slow(sim: FabricSim) -> set[str]:
    return {peer.name for peer in sim.core.view(sim.now_s).peers if peer.slow}


def said(sim: FabricSim, mark: int = 0) -> list[str]:
    words = ("lets probes wait", "in time", "no longer held to be slow")
    return [one.what for one in sim.since(mark, cmd.Record) if any(word in one.what for word in words)]


def moves(sim: FabricSim, mark: int) -> list[cmd.Command]:
    return [*sim.since(mark, cmd.SetLabels), *sim.since(mark, cmd.SetGroup)]


def queue(sim: FabricSim, name: str, *, over: str = "", evidence: str = "queueing") -> None:
    """A queue is seen on the paths to a host alone, on all or on those over a direction."""
    for peer, uplink, label in sim.targets:
        if peer == sim.address[name] and (not over or over in sim.directions(peer, uplink, label)):
            sim.post(
                ev.PathEvidence(
                    peer=peer, uplink=uplink, label=label, evidence=evidence, queueing_s=0.02, why="probes",  # type: ignore[arg-type]
                )
            )  # fmt: skip
    sim.run(1.0)


def test_a_host_that_lets_probes_wait_is_named_once_and_nothing_follows() -> None:
    sim = FabricSim().start()
    mark = sim.mark()
    delays(sim, WINDOWS - 1, host3=LATE_S)
    assert slow(sim) == set() and said(sim, mark) == []
    delays(sim, 30, host3=LATE_S)
    assert slow(sim) == {"host3"} and said(sim, mark) == ["host3 is slow: it lets probes wait"]
    (told,) = [one for one in sim.since(mark, cmd.Record) if "is slow" in one.what]
    assert told.element == "host3" and told.cause
    assert told.why == "reports: 70 ms late, 0.5 ms at its best, 0.5 ms the median of 3 others"
    assert moves(sim, mark) == [] and given_up(sim, mark) == [] and sim.since(mark, cmd.SendNotice) == []
    assert sim.core.view(sim.now_s).verdicts == ()


def test_what_all_hosts_share_is_no_hosts_fault() -> None:
    sim = FabricSim().start()
    delays(sim, 30, **dict.fromkeys(("host1", "host2", "host3", "host4"), LATE_S))
    assert slow(sim) == set()
    delays(sim, 30, host1=LATE_S, host2=LATE_S, host3=LATE_S)  # half of the others are as late
    assert slow(sim) == set()


def test_who_is_as_late_at_its_best_is_not_named() -> None:
    sim = FabricSim().start()
    delays(sim, 30, floor_s=0.05, host3=LATE_S)
    assert slow(sim) == set()


@pytest.mark.parametrize("late_of_ten", [3, 5])
def test_moments_of_lateness_do_not_add_up(late_of_ten: int) -> None:
    sim = FabricSim().start()
    for second in range(200):
        if second % 10 < late_of_ten:
            delays(sim, host3=LATE_S)
        else:
            sim.run(1.0)  # in quiet time nothing is told
    assert slow(sim) == set()


def test_with_one_other_host_there_is_nobody_to_compare_with() -> None:
    sim = FabricSim(peers=("host3",), active=("host3",)).start()
    delays(sim, 30, host3=LATE_S)
    assert slow(sim) == set()


def test_this_hosts_own_lateness_names_nobody_here() -> None:
    sim = FabricSim().start()
    mark = sim.mark()
    delays(sim, 30, host1=LATE_S)
    assert slow(sim) == set() and said(sim, mark) == []


def test_answers_to_datagrams_are_compared_with_their_like() -> None:
    sim = FabricSim().start()
    rows = [ev.ProbeDelay(sim.address[name], "reports", WELL_S, WELL_S) for name in ("host1", "host2", "host4")]
    alone = ev.ProbeDelay(sim.address["host3"], "RoCE", LATE_S, WELL_S)
    for _ in range(30):
        sim.post(ev.ProbeDelays(delays=(*rows, alone)))
        sim.run(1.0)
    assert slow(sim) == set()
    delays(sim, WINDOWS, source="RoCE", host3=LATE_S)
    assert slow(sim) == {"host3"}


def test_it_is_over_when_it_has_been_in_time_for_as_long_and_longer_after_each_relapse() -> None:
    sim = FabricSim().start()
    lasted = []
    for _ in range(8):
        delays(sim, WINDOWS, host3=LATE_S)
        assert slow(sim) == {"host3"}
        for _ in range(5):  # half as late, it stays so
            delays(sim, host3=0.6 * LATE_S)
        begun_s = sim.now_s
        while slow(sim):
            sim.run(1.0)
        lasted.append(round(sim.now_s - begun_s))
    assert lasted[0] in (WINDOWS - 1, WINDOWS) and lasted == sorted(lasted)
    assert lasted[3] >= 7 * lasted[0] and lasted[-1] == lasted[-2]  # and has a bound
    causes = {one.cause for one in sim.since(0, cmd.Record) if "lets probes wait" in one.what}
    assert len(causes) == 1 and len(said(sim)) == 16
    sim.run(FORGET_S)
    delays(sim, WINDOWS, host3=LATE_S)
    assert sim.core.world.table.peers[sim.address["host3"]].host.slowness.hold_s == WINDOWS


@pytest.mark.parametrize("is_slow", [False, True])
def test_a_queue_on_paths_to_a_slow_host_alone_names_no_link_and_moves_nothing(is_slow: bool) -> None:
    sim = FabricSim(peers=TWO, active=TWO, diagnosis=Diagnosis(enabled=True)).start()
    if is_slow:
        delays(sim, WINDOWS, host3=LATE_S)
    mark = sim.mark()
    queue(sim, "host3", over=LINK)
    for _ in range(3):
        delays(sim, host3=LATE_S if is_slow else WELL_S)
    named = [one.what for one in sim.since(mark, cmd.Record) if one.what.startswith("verdict congestion")]
    assert bool(named) is bool(moves(sim, mark)) is not is_slow
    kinds = {finding.kind for finding in sim.core.world.findings}
    assert ("congestion" in kinds) is not is_slow


@pytest.mark.parametrize("is_slow", [False, True])
def test_a_queue_on_all_paths_to_a_slow_host_is_no_incast(is_slow: bool) -> None:
    sim = FabricSim().start()
    if is_slow:
        delays(sim, WINDOWS, host3=LATE_S)
    mark = sim.mark()
    queue(sim, "host3")
    assert any("its own link is full" in line for line in sim.told(mark)) is not is_slow
    assert moves(sim, mark) == []


def test_a_queue_that_was_laid_at_a_link_is_the_hosts_once_it_is_known_to_be_slow() -> None:
    sim = FabricSim(peers=TWO, active=TWO).start()
    queue(sim, "host3", over=LINK)
    (overload,) = sim.core.world.congestion.overloads
    assert overload.queued
    mark = sim.mark()
    delays(sim, WINDOWS + 1, host3=LATE_S)
    assert not overload.queued
    assert any("the queue on" in line and "is laid at the host" in line for line in sim.told(mark))
    queue(sim, "host3", over=LINK, evidence="good")
    queue(sim, "host3", over=LINK)
    assert not overload.queued
    while slow(sim):
        sim.run(1.0)
    sim.run(1.0)
    assert overload.queued  # it stands on, and the host is in time


def test_a_link_that_is_overloaded_for_others_is_left_by_all() -> None:
    sim = FabricSim().start()
    delays(sim, WINDOWS, host3=LATE_S)
    sim.fill(LINK)
    sim.run(2.0)
    assert LINK not in sim.carrying()


def test_a_blackhole_on_the_way_to_a_slow_host_is_left_at_once() -> None:
    sim = FabricSim().start()
    delays(sim, WINDOWS, host3=LATE_S)
    mark = sim.mark()
    sim.break_(LINK)
    sim.run(0.5)
    assert LINK not in sim.carrying() and moves(sim, mark)


@pytest.mark.parametrize("is_slow", [False, True])
def test_a_sudden_queue_of_a_slow_host_keeps_no_flows_away(is_slow: bool) -> None:
    sim = FabricSim().start()
    if is_slow:
        delays(sim, WINDOWS, host3=LATE_S)
    queue(sim, "host3", over=LINK, evidence="blackhole")
    queue(sim, "host3", over=LINK)
    queue(sim, "host3", over=LINK, evidence="good")
    assert bool(sim.core.world.congestion.overloads) is not is_slow


@pytest.mark.parametrize("is_slow", [False, True])
def test_a_slow_host_is_given_up_no_sooner_and_its_slowness_stands_beside_the_rest(is_slow: bool) -> None:
    sim = flowing(FabricSim().start(), "host3")
    if is_slow:
        delays(sim, WINDOWS, host3=LATE_S)
    mark, begun_s = sim.mark(), sim.now_s
    silent(sim, "host3")
    while not given_up(sim, mark):
        sim.run(0.1)
        assert sim.now_s - begun_s < 10
    escalate_s = sim.core.settings.detection.escalate_s
    assert sim.now_s - begun_s >= escalate_s
    (escalate,) = sim.since(mark, cmd.Escalate)
    assert any(line.startswith("it was slow before: reports: 70 ms late") for line in escalate.evidence) is is_slow


def test_a_slow_host_that_falls_silent_idle_is_not_given_up() -> None:
    sim = FabricSim().start()
    delays(sim, WINDOWS, host3=LATE_S)
    mark = sim.mark()
    sim.silence("host3")
    sim.run(60.0)
    assert given_up(sim, mark) == []
    assert "host3 is no longer held to be slow" in said(sim, mark)


def test_for_the_diagnosis_it_breaks_ties_and_accuses_nobody() -> None:
    sim = FabricSim(diagnosis=Diagnosis(enabled=True)).start()
    delays(sim, 30, host3=LATE_S)
    assert sim.core.world.findings == ()
    queue(sim, "host3", over=LINK)  # it looks
    diagnosis = sim.core._diagnosis
    assert diagnosis is not None and diagnosis._ground.localiser is not None
    hints = hearsay.hints(sim.core.world, diagnosis._ground.localiser.paths, sim.now_s)
    assert [(hint.element, hint.nats) for hint in hints] == [("host3", hearsay.SLOW_NATS)]
    assert hearsay.SLOW_NATS < hearsay.MOST_SHARED_NATS
