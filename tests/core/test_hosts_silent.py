"""Silent hosts: a switch in front of them, a kernel that answers, a daemon that has ended, others that hear them."""

from __future__ import annotations

import pytest
from fabric_sim import FabricSim

from linkpass.core import commands as cmd
from linkpass.core import events as ev
from linkpass.core import hosts
from linkpass.core.diagnosis.verdict import Verdict
from linkpass.core.settings import Limits

SINGLE = {"host1": ("leaf1",), "host2": ("leaf1",), "host3": ("leaf3",), "host4": ("leaf3",)}
"""Every host on one leaf."""
DETECTED_S = 5.0
"""After which whatever is said of a silence has been said, also of peers that are probed slowly."""


def single(**more: object) -> FabricSim:
    return FabricSim(uplinks=("eth1",), leaves=SINGLE, **more).start()  # type: ignore[arg-type]


def flowing(sim: FabricSim, *names: str) -> FabricSim:
    for name in names:
        sim.post(ev.PeerData(peer=sim.address[name], flows=True))
    sim.run(0)
    return sim


def silent(sim: FabricSim, *names: str, stands: str = "") -> None:
    """They fall silent, and their data stops."""
    sim.silence(*names)
    for name in names:
        address = sim.address[name]
        stopped = ev.PeerData(peer=address, flows=False, stands=stands)  # type: ignore[arg-type]
        sim.later(0.5, lambda stopped=stopped: stopped)


def given_up(sim: FabricSim, mark: int = 0) -> list[str]:
    return [command.host for command in sim.since(mark, cmd.Escalate)]


def blamed(sim: FabricSim, mark: int = 0) -> list[str]:
    return [record.what for record in sim.since(mark, cmd.Record) if record.what.startswith("verdict")]


# a switch in front
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


# its kernel
def asked(state: str, *, stands: str = "") -> tuple[FabricSim, int]:
    """Host 3 falls silent, and its data stops; its kernel has answered before and answers so now."""
    sim = FabricSim()
    sim.kernels["host3"] = "runs"
    flowing(sim.start(), "host3")
    mark = sim.mark()
    sim.kernels["host3"] = state
    silent(sim, "host3", stands=stands)
    sim.run(DETECTED_S)
    return sim, mark


def test_a_kernel_that_answers_while_all_above_it_stands_is_a_frozen_host() -> None:
    sim, mark = asked("runs", stands="shut")
    (escalate,) = sim.since(mark, cmd.Escalate)
    assert "frozen: its kernel answers over eth1, eth2, and nothing above it does" in escalate.evidence
    assert any("nobody reads what has come" in part for part in escalate.evidence)


def test_a_kernel_that_answers_nowhere_any_more_is_a_dead_host() -> None:
    sim, mark = asked("dead", stands="unacked")
    (escalate,) = sim.since(mark, cmd.Escalate)
    assert "dead: its kernel, which answered before, answers over none of eth1, eth2" in escalate.evidence
    assert any("nothing that was sent is acknowledged" in part for part in escalate.evidence)


def test_a_daemon_that_has_ended_gives_up_nobody_though_the_data_stops() -> None:
    """A job that pauses (a checkpoint, its end) just when the daemon crashes is no failing host."""
    sim, mark = asked("ended")
    sim.run(60)
    assert given_up(sim, mark) == []
    assert sum("only its daemon" in line and "daemon has ended" in line for line in sim.told(mark)) == 1


def test_a_host_that_follows_its_daemon_is_given_up_though_no_data_tells() -> None:
    sim, mark = asked("ended")
    sim.run(60)
    sim.kernels["host3"] = "dead"
    sim.run(130)
    (escalate,) = sim.since(mark, cmd.Escalate)
    assert any(part.startswith("dead: its kernel") for part in escalate.evidence)


def test_the_daemon_of_a_host_without_data_may_end_as_well() -> None:
    sim = FabricSim(active=("host2",))
    sim.kernels = dict.fromkeys(("host2", "host3", "host4"), "runs")
    sim.start(10)
    sim.kernels["host3"] = "ended"
    sim.silence("host3")
    sim.run(60)
    assert given_up(sim) == []
    sim.speak("host3")
    sim.kernels["host3"] = "dead"
    sim.run(1)
    mark = sim.mark()
    sim.silence("host3")
    sim.run(60)
    assert given_up(sim) == []  # switched off, as far as anybody can know
    assert any("nothing had been exchanged with it lately" in line for line in sim.told(mark))


@pytest.mark.parametrize("speaks", ["queue pair", "queue pair, late", "localisation", "word"])
def test_a_host_without_data_in_sockets_is_given_up_when_more_speaks_against_it(speaks: str) -> None:
    sim = FabricSim(active=("host2",)).start()
    if speaks == "word":
        say(sim, "host3", "failing", "check: broken", 7)
    mark = sim.mark()
    sim.silence("host3")
    stands = ev.FlowStands(peer=sim.address["host3"], flow="ib_write_bw 7 qp 17", silent_s=0.5)
    if speaks == "queue pair":
        sim.later(0.8, lambda: stands)
    sim.run(DETECTED_S)
    assert given_up(sim, mark) == (["host3"] if speaks in ("queue pair", "word") else [])
    if speaks == "queue pair, late":
        sim.post(stands)
    elif speaks == "localisation":
        hosts.on_verdict(sim.core.world, sim.core._tray, "host3", ("all paths to it lose everything",), sim.now_s)
    sim.run(DETECTED_S)
    assert given_up(sim, mark) == ["host3"]


def test_a_port_that_was_never_held_proves_nothing() -> None:
    sim = FabricSim()
    sim.kernels["host3"] = "ended"  # a daemon of an older version, or somebody else holds the port
    flowing(sim.start(), "host3")
    silent(sim, "host3")
    sim.run(DETECTED_S)
    assert given_up(sim) == ["host3"]


def test_a_kernel_that_never_answered_is_not_called_dead() -> None:
    sim = FabricSim()
    sim.kernels["host3"] = "dead"  # echoes are filtered
    flowing(sim.start(), "host3")
    silent(sim, "host3")
    sim.run(DETECTED_S)
    (escalate,) = sim.since(0, cmd.Escalate)
    assert not any("kernel" in part for part in escalate.evidence)


def test_a_kernel_that_cannot_be_asked_is_said_once() -> None:
    sim = FabricSim().start()
    for number in range(3):
        sim.post(ev.HostAskFailed(cmd_id=number, peer=sim.address["host3"], why="no usable uplink"))
    sim.post(ev.HostAnswered(cmd_id=1, peer="fd00:ff::99", asked=("eth1",)))  # of nobody
    sim.run(0)
    assert sum("cannot be asked" in line for line in sim.told()) == 1


# its own word
def say(sim: FabricSim, speaker: str, kind: ev.NoticeKind, text: str, seq: int, ttl_s: float = 60.0) -> None:
    notice = ev.Notice(kind=kind, link=text, origin="somebody", seq=seq, ttl_s=ttl_s)
    sim.post(ev.NoticeHeard(peer=sim.address[speaker], notice=notice))
    sim.run(0)


def test_a_hosts_own_word_shortens_the_wait_and_gives_up_nobody_that_is_heard() -> None:
    waits = {}
    for kind in ("well", "ailing", "failing"):
        sim = flowing(FabricSim().start(), "host3")
        say(sim, "host3", kind, "kernel log: hard lockup", 7)  # type: ignore[arg-type]
        sim.run(30)
        assert given_up(sim) == []
        begun_s = sim.now_s
        silent(sim, "host3")
        sim.run(DETECTED_S)
        ((at_s, escalate),) = [(s, c) for s, c in sim.log if isinstance(c, cmd.Escalate)]
        waits[kind] = at_s - begun_s
        said = any("it said of itself: kernel log: hard lockup" in part for part in escalate.evidence)
        assert said == (kind != "well")
    assert waits["well"] == pytest.approx(2.0)
    assert waits["ailing"] == pytest.approx(1.0)
    assert waits["failing"] < 0.6


def test_a_word_that_comes_in_the_silence_counts_and_an_old_one_does_not() -> None:
    sim = flowing(FabricSim().start(), "host3")
    say(sim, "host3", "failing", "check: broken", 7, ttl_s=5.0)
    say(sim, "host3", "well", "", 6)  # an earlier one that comes late
    assert any("host3 says that it fails" in line for line in sim.told())
    sim.run(10)  # the word has ended
    silent(sim, "host3")
    sim.run(0.6)
    assert given_up(sim) == []
    say(sim, "host3", "failing", "check: broken again", 8)
    sim.run(0.1)
    assert given_up(sim) == ["host3"]


# others
def test_a_host_that_others_hear_is_not_given_up_here() -> None:
    sim = flowing(FabricSim().start(), "host3")
    mark = sim.mark()
    silent(sim, "host3")
    sim.run(1.5)
    (question,) = sim.since(mark, cmd.SendNotice)
    assert (question.notice.kind, question.notice.link) == ("missing", sim.address["host3"])
    assert set(question.peers) == {sim.address["host2"], sim.address["host4"]}
    say(sim, "host2", "heard", sim.address["host3"], 1)
    sim.run(1.0)
    assert given_up(sim, mark) == []
    assert sum("1 other daemon(s) hear it, 1 do not" in line for line in sim.told(mark)) == 1
    sim.run(10)  # its word has ended, and nobody has repeated it
    assert given_up(sim, mark) == ["host3"]


def test_one_voice_does_not_outweigh_several() -> None:
    sim = flowing(FabricSim().start(), "host3")
    silent(sim, "host3")
    sim.run(1.5)
    say(sim, "host2", "heard", sim.address["host3"], 1)
    say(sim, "host4", "missing", sim.address["host3"], 1)
    sim.run(1.0)
    assert given_up(sim) == ["host3"]
    assert "1 other daemon(s) do not hear it either" in sim.since(0, cmd.Escalate)[0].evidence


def test_who_hears_a_missed_host_answers_and_is_not_made_to_answer_without_an_end() -> None:
    sim = flowing(FabricSim().start(), "host3")
    mark = sim.mark()
    for number in range(50):
        say(sim, "host2", "missing", sim.address["host4"], number)
    say(sim, "host3", "missing", sim.address["host4"], 0)
    say(sim, "host2", "missing", sim.address["host2"], 0)  # of itself
    say(sim, "host2", "missing", "fd00:ff::77", 0)  # of nobody
    answers = sim.since(mark, cmd.SendNotice)
    assert [(one.notice.kind, one.notice.link, one.peers) for one in answers] == [
        ("heard", sim.address["host4"], (sim.address["host2"],)),
        ("heard", sim.address["host4"], (sim.address["host3"],)),
    ]


def test_who_exchanges_data_with_a_silent_host_speaks_for_it_and_asks_nobody() -> None:
    """Only its daemon stands: those without data with it cannot know, and are told."""
    sim = flowing(FabricSim().start(), "host3")
    mark = sim.mark()
    sim.silence("host3")
    sim.run(DETECTED_S)
    assert not sim.since(mark, cmd.SendNotice)
    say(sim, "host2", "missing", sim.address["host3"], 1)
    (answer,) = sim.since(mark, cmd.SendNotice)
    assert (answer.notice.kind, answer.peers) == ("heard", (sim.address["host2"],))


def test_an_observer_asks_nobody() -> None:
    sim = flowing(FabricSim(mode="observe").start(), "host3")
    mark = sim.mark()
    say(sim, "host2", "missing", sim.address["host4"], 0)
    silent(sim, "host3")
    sim.run(DETECTED_S)
    assert given_up(sim, mark) == []
    assert any(line.startswith("would hand over host3") for line in sim.told(mark))
    assert not sim.since(mark, cmd.SendNotice)


# localisation and the budget
def test_a_host_that_localisation_names_is_given_up_sooner_when_it_is_silent_and_never_when_it_is_heard() -> None:
    sim = flowing(FabricSim().start(), "host3")
    tray = sim.core._tray
    evidence = ("all 8 paths to it lose everything",)
    for _ in range(3):
        hosts.on_verdict(sim.core.world, tray, "host3", evidence, sim.now_s)
    hosts.on_verdict(sim.core.world, tray, "nobody", evidence, sim.now_s)
    said = [command for command in tray.empty() if isinstance(command, cmd.Record)]
    assert [record.what for record in said] == ["host3 is held to fail, and heard: not given up"]
    begun_s = sim.now_s
    silent(sim, "host3")
    sim.run(0.6)
    hosts.on_verdict(sim.core.world, tray, sim.address["host3"], evidence, sim.now_s)
    sim.run(2)
    ((at_s, escalate),) = [(s, c) for s, c in sim.log if isinstance(c, cmd.Escalate)]
    assert at_s - begun_s == pytest.approx(1.0)
    assert evidence[0] in escalate.evidence
    hosts.on_verdict(sim.core.world, tray, "host1", evidence, sim.now_s)  # this host itself
    sim.run(1)
    assert given_up(sim) == ["host3"]
    assert [one.severity for one in sim.core.view(sim.now_s).host_evidence] == ["degraded"]


def test_no_more_than_the_budget_is_handed_over_in_an_hour() -> None:
    sim = flowing(FabricSim(limits=Limits(escalations_per_hour=2)).start(), "host2", "host3", "host4")
    for name in ("host2", "host3"):
        silent(sim, name)
        sim.run(30)
    mark = sim.mark()
    sim.speak("host2")
    flowing(sim, "host2")
    silent(sim, "host4")
    sim.run(600)
    assert given_up(sim) == ["host2", "host3"]
    assert sum("is not handed over" in line for line in sim.told(mark)) == 1
    sim.run(3600)
    assert given_up(sim) == ["host2", "host3", "host4"]


# a judge who was kept from running
def kept_from_running(sim: FabricSim, span_s: float) -> None:
    """The core gets no turn for so long; what happens meanwhile waits."""
    sim.now_s += span_s


def test_a_judge_who_was_kept_from_running_asks_first_and_waits_for_the_answers() -> None:
    sim = flowing(FabricSim(), "host3")
    sim.kernels = dict.fromkeys(("host2", "host3", "host4"), "runs")
    sim.start(1)
    mark = sim.mark()
    silent(sim, "host3")
    sim.run(0.6)
    kept_from_running(sim, 3.0)
    sim.run(5)
    at_s = {kind: [s for s, c in sim.log[mark:] if isinstance(c, kind)] for kind in (cmd.AskHost, cmd.Escalate)}
    (escalated_s,) = at_s[cmd.Escalate]
    asked_s = [s for s, c in sim.log[mark:] if isinstance(c, cmd.AskHost) and c.peer == sim.address["host3"]]
    assert escalated_s - asked_s[0] > 0.9
    assert any(part.startswith("frozen: ") for part in sim.since(mark, cmd.Escalate)[0].evidence)


def test_a_host_that_came_back_while_its_judge_stood_is_not_given_up() -> None:
    sim = flowing(FabricSim().start(), "host3")
    mark = sim.mark()
    silent(sim, "host3")
    sim.run(1.5)  # it is asked about in time, and the answers lie unread
    kept_from_running(sim, 1.0)
    sim.turn(ev.Deadline())
    sim.speak("host3")
    sim.run(10)
    assert given_up(sim, mark) == []


def test_who_said_that_it_fails_is_given_up_by_a_late_judge_as_well() -> None:
    sim = flowing(FabricSim().start(), "host3")
    say(sim, "host3", "failing", "check: broken", 7)
    mark = sim.mark()
    silent(sim, "host3")
    kept_from_running(sim, 3.0)
    sim.run(0.1)
    assert given_up(sim, mark) == ["host3"]


def test_what_a_host_said_before_it_started_anew_shortens_no_wait() -> None:
    sim = flowing(FabricSim().start(), "host3")
    say(sim, "host3", "failing", "kernel log: machine check", 7, ttl_s=600.0)
    sim.silence("host3")
    sim.run(0.3)
    sim.speak("host3")
    sim.run(1)
    mark = sim.mark()
    silent(sim, "host3")
    sim.run(1.9)
    assert given_up(sim, mark) == []
    sim.run(0.2)
    assert given_up(sim, mark) == ["host3"]


def test_a_host_that_has_started_anew_counts_its_words_anew() -> None:
    sim = flowing(FabricSim().start(), "host3")
    say(sim, "host3", "ailing", "kernel log: hung task", 25_920_000)
    say(sim, "host3", "failing", "an old word", 600)
    assert not any("that it fails" in line for line in sim.told())
    sim.silence("host3")
    sim.run(1)
    sim.speak("host3")
    sim.run(1)
    mark = sim.mark()
    say(sim, "host3", "failing", "kernel log: machine check", 600)
    assert any("host3 says that it fails" in line for line in sim.told(mark))
    silent(sim, "host3")
    sim.run(0.6)
    assert given_up(sim, mark) == ["host3"]
