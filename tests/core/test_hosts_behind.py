"""Silent hosts and the switches in front of them: which of the two it is, and when that is not known."""

from __future__ import annotations

import pytest
from fabric_sim import FabricSim
from silent_hosts import DETECTED_S, SINGLE, blamed, flowing, given_up, say, silent, single

from linkpass.core import commands as cmd
from linkpass.core import events as ev
from linkpass.core import hosts
from linkpass.core.diagnosis.verdict import Verdict


def test_hosts_behind_one_dead_leaf_are_the_leaf() -> None:
    sim = flowing(single(), "host3", "host4")
    mark = sim.mark()
    sim.break_("leaf3")
    silent(sim, "host3", "host4")
    sim.run(60)
    assert given_up(sim, mark) == []
    assert blamed(sim, mark) == ["verdict switch: leaf3 lets nothing through"]
    assert {peer.silence for peer in sim.core.view(sim.now_s).peers if peer.silent} == {"behind leaf3"}
    sim.heal()
    sim.speak("host3", "host4")
    sim.run(10)
    assert given_up(sim, mark) == []
    assert {peer.silence for peer in sim.core.view(sim.now_s).peers} == {""}


def test_of_two_hosts_behind_a_healed_leaf_the_one_that_stays_silent_is_given_up() -> None:
    sim = flowing(single(), "host3", "host4")
    sim.break_("leaf3")
    silent(sim, "host3", "host4")
    sim.run(DETECTED_S)
    sim.heal()
    sim.speak("host4")
    sim.run(1.9)
    assert given_up(sim) == []  # it gets its time to come back, too
    sim.run(0.2)
    assert given_up(sim) == ["host3"]


def test_a_leaf_that_answers_acquits_itself_and_both_hosts_are_given_up() -> None:
    sim = flowing(single(), "host3", "host4")
    mark = sim.mark()
    silent(sim, "host3", "host4")
    sim.run(DETECTED_S)
    assert sorted(given_up(sim, mark)) == ["host3", "host4"]
    assert all("leaf3 answers traces" in one.evidence for one in sim.since(mark, cmd.Escalate))


def test_a_leaf_held_to_be_dead_that_answers_later_has_its_hosts_judged_again() -> None:
    sim = flowing(single(), "host3", "host4")
    sim.mute.add("leaf3")
    silent(sim, "host3", "host4")
    sim.run(DETECTED_S)
    assert given_up(sim) == []
    sim.mute.clear()
    sim.run(120)  # a trace of the usual round meets it
    assert sorted(given_up(sim)) == ["host3", "host4"]


def test_hosts_of_two_dead_leaves_are_no_hosts_fault() -> None:
    sim = flowing(FabricSim().start(), "host3", "host4")
    mark = sim.mark()
    sim.break_("leaf3", "leaf4")
    silent(sim, "host3", "host4")
    sim.run(60)
    assert given_up(sim, mark) == []
    assert blamed(sim, mark) == ["verdict switch: leaf3 or leaf4 lets nothing through"]


def test_a_host_on_two_leaves_of_which_one_lives_is_given_up() -> None:
    sim = flowing(FabricSim().start(), "host3", "host4")
    mark = sim.mark()
    sim.break_("leaf3")
    silent(sim, "host3")
    sim.run(DETECTED_S)
    assert given_up(sim, mark) == ["host3"]


def test_peers_that_are_probed_slowly_are_waited_for() -> None:
    """Host 4 is idle: that it is silent as well shows only after three seconds, and until then it would acquit leaf
    3."""
    sim = flowing(single(active=("host2", "host3")), "host3")
    mark = sim.mark()
    sim.break_("leaf3")
    silent(sim, "host3")
    sim.silent.add("host4")
    sim.later(3.05, lambda: ev.PeerSilent(peer=sim.address["host4"], silent_s=3.05))
    sim.run(60)
    assert given_up(sim, mark) == []
    assert blamed(sim, mark) == ["verdict switch: leaf3 lets nothing through"]


def test_an_idle_peer_that_goes_on_speaking_acquits_the_leaf_when_nothing_else_does() -> None:
    sim = flowing(single(active=("host2", "host3")), "host3")
    mark = sim.mark()
    sim.mute.add("leaf3")
    silent(sim, "host3")
    sim.run(3.0)
    assert given_up(sim, mark) == []
    sim.run(1.5)
    assert given_up(sim, mark) == ["host3"]
    assert "host4 answers through leaf3" in sim.since(mark, cmd.Escalate)[0].evidence


def alone() -> tuple[FabricSim, int]:
    """Host 3 is the only known one behind leaf 3, which does not answer traces; it falls silent, and its data stops."""
    sim = flowing(single(peers=("host2", "host3"), active=("host2", "host3")), "host3")
    sim.mute.add("leaf3")
    mark = sim.mark()
    silent(sim, "host3")
    return sim, mark


def test_a_host_alone_behind_its_leaf_cannot_be_told_from_it_and_is_not_given_up() -> None:
    sim, mark = alone()
    sim.run(600)
    assert given_up(sim, mark) == [] and blamed(sim, mark) == []
    said = [line for line in sim.told(mark) if "nobody else is known behind leaf3" in line]
    assert len(said) == 1 and said[0].startswith("host3 stays silent, and is not given up")
    assert {peer.silence for peer in sim.core.view(sim.now_s).peers if peer.silent} == {"it or its switch"}


@pytest.mark.parametrize("speaks", ["leaf", "kernel", "localisation", "word", "word before"])
def test_a_host_alone_behind_its_leaf_is_given_up_once_something_tells_them_apart(speaks: str) -> None:
    sim, mark = alone()
    if speaks == "word before":
        sim.speak("host3")
        say(sim, "host3", "failing", "check: broken", 7)
        silent(sim, "host3")
    sim.run(0 if speaks == "word before" else 10)
    assert given_up(sim, mark) == []
    if speaks == "leaf":
        sim.mute.clear()
    elif speaks == "kernel":
        sim.kernels["host3"] = "runs"
    elif speaks == "localisation":
        hosts.on_verdict(sim.core.world, sim.core._tray, "host3", ("all paths to it lose everything",), sim.now_s)
    elif speaks == "word":
        say(sim, "host3", "failing", "check: broken", 7)
    sim.run(120)
    assert given_up(sim, mark) == ["host3"]


def test_a_leaf_that_dies_with_one_known_host_behind_it_hands_over_nobody() -> None:
    sim = flowing(single(peers=("host2", "host3"), active=("host2", "host3")), "host3")
    sim.kernels = {"host2": "runs", "host3": "runs"}
    sim.run(10)
    mark = sim.mark()
    sim.break_("leaf3")
    silent(sim, "host3")
    sim.run(60)
    assert given_up(sim, mark) == []


def test_two_leaves_of_one_host_do_not_fail_together() -> None:
    sim = flowing(FabricSim(peers=("host2", "host3"), active=("host2", "host3")).start(), "host3")
    sim.mute.update(("leaf3", "leaf4"))
    mark = sim.mark()
    silent(sim, "host3")
    sim.run(DETECTED_S)
    (escalate,) = sim.since(mark, cmd.Escalate)
    assert "leaf3, leaf4 would have to fail together" in escalate.evidence


@pytest.mark.parametrize("heard", [True, False], ids=["one is heard", "none is heard"])
def test_a_host_behind_an_unknown_switch_is_told_from_it_by_others_behind_unknown_ones(heard: bool) -> None:
    sim = FabricSim(leaves={"host4": ("leaf3", "leaf4") if heard else ("leaf1", "leaf2")})
    sim.mute.update(("leaf3", "leaf4"))
    flowing(sim.start(), "host3")
    mark = sim.mark()
    silent(sim, "host3")
    sim.run(60)
    assert given_up(sim, mark) == (["host3"] if heard else [])


def test_a_neighbour_that_is_not_probed_is_asked_for_its_leaf() -> None:
    addresses = {f"peer{k}": f"fd00:ff:0:1::{k:x}" for k in range(1, 40)}
    leaves = {**SINGLE, **dict.fromkeys(addresses, ("leaf3",))}
    sim = FabricSim(
        uplinks=("eth1",), leaves=leaves, addresses=addresses, peers=("host2", "host3", *addresses),
        active=("host2", "host3"),
    ).start(60)  # fmt: skip
    flowing(sim, "host3")
    sim.kernels = dict.fromkeys((*addresses, "host3"), "runs")
    sim.kernels["host3"] = "dead"
    sim.mute.add("leaf3")
    mark = sim.mark()
    silent(sim, "host3")
    sim.run(DETECTED_S)
    assert given_up(sim, mark) == ["host3"]
    assert any("behind leaf3 answers an echo" in part for part in sim.since(mark, cmd.Escalate)[0].evidence) or any(
        "answers through leaf3" in part for part in sim.since(mark, cmd.Escalate)[0].evidence
    )
    asked = {command.peer for command in sim.since(mark, cmd.AskHost)} - {sim.address["host3"]}
    assert 1 <= len(asked) <= 3


def test_peers_behind_unknown_switches_that_fall_silent_together_are_not_given_up() -> None:
    sim = FabricSim()
    sim.mute.update(("leaf3", "leaf4"))
    flowing(sim.start(), "host3", "host4")
    mark = sim.mark()
    silent(sim, "host3", "host4")
    sim.run(60)
    assert given_up(sim, mark) == []
    assert any("the switches in front of them are not known" in line for line in sim.told(mark))
    sim.speak("host4")
    sim.run(5)
    assert given_up(sim, mark) == ["host3"]


def test_a_switch_that_localisation_names_keeps_its_hosts_until_it_is_acquitted() -> None:
    sim = flowing(single(), "host3")
    mark = sim.mark()
    sim.mute.add("leaf3")
    hosts.on_switch(sim.core.world, "leaf3", sim.now_s, stands=True)
    silent(sim, "host3")  # its port of the leaf alone: host 4 answers through the same leaf
    sim.run(30)
    assert given_up(sim, mark) == []
    hosts.on_switch(sim.core.world, "leaf3", sim.now_s, stands=False)
    sim.run(5)
    assert given_up(sim, mark) == ["host3"]


def test_a_switch_that_answers_is_no_excuse_whatever_localisation_says() -> None:
    sim = flowing(single(), "host3", "host4")
    hosts.on_switch(sim.core.world, "leaf3", sim.now_s, stands=True)
    silent(sim, "host3", "host4")
    sim.run(DETECTED_S)
    assert sorted(given_up(sim)) == ["host3", "host4"]


def test_what_the_diagnosis_is_certain_of_is_followed() -> None:
    def finding(kind: str, element: str, **more: object) -> Verdict:
        told = {"confidence": 0.99, "scope": "whole", "loss_ratio": 1.0, "share": 1.0, "nats": 50.0, "since_s": 1.0}
        return Verdict(kind=kind, element=element, certain=True, **{**told, **more})  # type: ignore[arg-type]

    sim = FabricSim().start()
    world, tray = sim.core.world, sim.core._tray
    world.findings = (
        finding("switch", "leaf3"), finding("switch", "leaf4", loss_ratio=0.05), finding("host", "host2"),
        finding("switch", "leaf2", others=("host1",)), finding("host", "host1"),
    )  # fmt: skip
    for _ in range(2):
        hosts.follow(world, tray, sim.now_s)
    assert world.hosts.blamed == {"leaf3"}
    said = [command.what for command in tray.empty() if isinstance(command, cmd.Record)]
    assert said == ["host2 is held to fail, and heard: not given up"]
    world.findings = ()
    hosts.follow(world, tray, sim.now_s)
    assert world.hosts.blamed == set()


def test_what_fell_silent_long_before_explains_nothing() -> None:
    sim = flowing(FabricSim().start(), "host3", "host4")
    silent(sim, "host4")
    sim.run(30)
    assert given_up(sim) == ["host4"]
    silent(sim, "host3")
    sim.mute.update(("leaf3", "leaf4"))
    sim.run(DETECTED_S)
    assert given_up(sim) == ["host4", "host3"]
