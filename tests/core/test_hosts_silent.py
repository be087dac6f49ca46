"""Silent hosts: a kernel that answers, a daemon that has ended, others that hear them."""

from __future__ import annotations

import pytest
from fabric_sim import FabricSim
from silent_hosts import DETECTED_S, flowing, given_up, say, silent

from linkpass.core import commands as cmd
from linkpass.core import events as ev
from linkpass.core import hosts
from linkpass.core.settings import Limits


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
