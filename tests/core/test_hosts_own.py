"""What this host's own sources hold against it: one escalation, of the right thing, and a word to the peers."""

from __future__ import annotations

import pytest
from fabric_sim import FabricSim

from linkpass.core import commands as cmd
from linkpass.core import events as ev
from linkpass.core.settings import Limits
from linkpass.wire import probe

GPU, OTHER = "0000:3b:00.0", "0000:86:00.0"


def tell(
    sim: FabricSim, severity: ev.Severity, what: str = "hard lockup", accelerator: str = "",
    lasts_s: float | None = None, source: str = "kernel log",
) -> None:  # fmt: skip
    sim.post(
        ev.HostEvidence(
            source=source, what=what, severity=severity, why=f"a line of {what}", accelerator=accelerator,
            lasts_s=lasts_s,
        )
    )  # fmt: skip
    sim.run(0)


def given_up(sim: FabricSim, mark: int = 0) -> list[tuple[str, str]]:
    return [(command.host, command.accelerator) for command in sim.since(mark, cmd.Escalate)]


def words(sim: FabricSim, mark: int = 0) -> list[tuple[str, str]]:
    return [(one.notice.kind, one.notice.link) for one in sim.since(mark, cmd.SendNotice)]


def held(sim: FabricSim) -> set[str]:
    return {row.what for row in sim.core.view(sim.now_s).host_evidence}


def test_fatal_evidence_gives_this_host_up_once_and_tells_the_peers() -> None:
    sim = FabricSim().start()
    mark = sim.mark()
    tell(sim, "degraded", "hung task", lasts_s=600)
    assert given_up(sim, mark) == [] and words(sim, mark) == [("ailing", "kernel log: hung task: a line of hung task")]
    for _ in range(5):
        tell(sim, "fatal")
    sim.run(60)
    assert given_up(sim, mark) == [("host1", "")]
    (escalate,) = sim.since(mark, cmd.Escalate)
    assert escalate.evidence == (
        "kernel log: hard lockup: a line of hard lockup",
        "besides, kernel log: hung task: a line of hung task",
    )
    assert words(sim, mark)[1:] == [("failing", "kernel log: hard lockup: a line of hard lockup")]
    assert set(sim.since(mark, cmd.SendNotice)[-1].peers) == {sim.address[name] for name in sim.peers}
    sim.post(ev.Escalated(cmd_id=escalate.cmd_id, host="host1"))
    sim.run(0)
    last = sim.since(mark, cmd.Record)[-1]
    assert (last.what, last.cause) == ("host1 was handed over", escalate.cause)


def test_what_stands_is_told_again_and_what_is_cleared_is_taken_back() -> None:
    sim = FabricSim().start()
    tell(sim, "fatal")
    mark = sim.mark()
    sim.run(450)
    assert words(sim, mark) == [("failing", "kernel log: hard lockup: a line of hard lockup")] * 2
    sim.post(ev.ClearRequested(link="host1"))
    sim.run(1)
    assert words(sim, mark)[2:] == [("well", "")] and held(sim) == set()
    tell(sim, "fatal")  # after the repair it may fail again
    assert given_up(sim, mark) == [("host1", "")]


def test_a_peer_that_is_heard_again_is_told_what_stands() -> None:
    sim = FabricSim().start()
    tell(sim, "fatal")
    sim.silence("host2", "host3")
    sim.run(1)
    mark = sim.mark()
    sim.speak("host2")
    sim.run(0.5)
    sim.speak("host3")
    sim.run(10)
    assert words(sim, mark) == [("failing", "kernel log: hard lockup: a line of hard lockup")]
    assert set(sim.since(mark, cmd.SendNotice)[0].peers) == {sim.address[name] for name in sim.peers}


def test_a_failing_accelerator_condemns_itself_alone() -> None:
    sim = FabricSim().start()
    mark = sim.mark()
    tell(sim, "fatal", "Xid 79", GPU)
    tell(sim, "fatal", "unreachable", GPU, source="nvml")
    tell(sim, "degraded", "Xid 63", OTHER, lasts_s=600)
    assert given_up(sim, mark) == [("host1", GPU)]
    assert words(sim, mark)[0] == ("ailing", f"kernel log: Xid 79 of {GPU}: a line of Xid 79")
    assert not any(kind == "failing" for kind, _ in words(sim, mark))
    tell(sim, "fatal", "Xid 48", OTHER)
    assert given_up(sim, mark) == [("host1", GPU), ("host1", OTHER)]
    tell(sim, "fatal", "check", source="check")
    assert given_up(sim, mark)[2:] == [("host1", "")]
    tell(sim, "fatal", "Xid 74", "0000:ff:00.0")  # the whole host is given up already
    assert len(given_up(sim, mark)) == 3
    failed = ev.EscalateFailed(
        cmd_id=sim.since(mark, cmd.Escalate)[0].cmd_id, host="host1", why="no", accelerator=GPU
    )  # fmt: skip
    sim.post(failed)
    sim.run(0)
    assert sim.told(mark)[-1] == f"{GPU} of host1 was not handed over (no; tried again in 30 s)"


def test_a_level_that_is_over_may_come_back_and_is_given_up_anew() -> None:
    sim = FabricSim().start()
    for _ in range(2):
        mark = sim.mark()
        tell(sim, "degraded", "temperature", GPU, source="nvml")
        tell(sim, "fatal", "temperature", GPU, source="nvml")
        tell(sim, "well", "temperature", GPU, source="nvml")
        tell(sim, "well", "temperature", GPU, source="nvml")
        assert given_up(sim, mark) == [("host1", GPU)]
        assert sum("is over" in line for line in sim.told(mark)) == 1
        assert words(sim, mark)[-1] == ("well", "")


@pytest.mark.parametrize("severity", ["degraded", "info"])
def test_what_happened_is_forgotten_and_gives_up_nobody(severity: ev.Severity) -> None:
    sim = FabricSim().start()
    mark = sim.mark()
    tell(sim, severity, "out of memory", lasts_s=600)
    sim.run(500)
    tell(sim, severity, "out of memory", lasts_s=600)
    sim.run(500)
    assert held(sim) == {"out of memory"}
    sim.run(200)
    assert held(sim) == set() and given_up(sim, mark) == []
    assert ("well" in {kind for kind, _ in words(sim, mark)}) == (severity == "degraded")
    about = [line for line in sim.told(mark) if "out of memory" in line]
    assert len(about) == 2  # it came, it was over


def test_a_source_that_tells_without_an_end_is_bounded() -> None:
    sim = FabricSim(limits=Limits(escalations_per_hour=3)).start()
    mark = sim.mark()
    for number in range(1000):
        tell(sim, "fatal", "Xid 79", f"0000:{number:02x}:00.0")
    assert len(sim.core.world.hosts.own) == 256
    assert len(given_up(sim, mark)) == 3
    assert sum("is not handed over" in line for line in sim.told(mark)) == 1
    sim.run(3700)  # the next hour's
    assert len(given_up(sim, mark)) == 6


def test_a_daemon_that_is_kept_from_running_says_that_its_host_is_not_well() -> None:
    sim = FabricSim().start()
    mark = sim.mark()
    sim.post(ev.DaemonLate(late_s=0.5))
    sim.run(60)
    assert held(sim) == set()
    for _ in range(40):
        sim.post(ev.DaemonLate(late_s=0.3))
        sim.run(0.5)
    assert held(sim) == {"late"} and given_up(sim, mark) == []
    assert words(sim, mark) == []  # peers would wait less for it, and it needs more time
    sim.run(120)
    assert held(sim) == set()
    assert len([line for line in sim.told(mark) if "late" in line]) == 2


def test_what_is_fatal_finds_room_though_sources_have_told_much() -> None:
    sim = FabricSim().start()
    mark = sim.mark()
    for number in range(300):
        tell(sim, "info", f"line {number}", lasts_s=600)
    tell(sim, "degraded", "hung task", lasts_s=600)
    tell(sim, "fatal", "machine check")
    tell(sim, "info", "one more", lasts_s=600)
    assert given_up(sim, mark) == [("host1", "")]
    assert {"hung task", "machine check"} < held(sim) and len(held(sim)) == 256
    assert words(sim, mark)[-1][0] == "failing"


@pytest.mark.parametrize("letter", ["x", "ß", "温", "🔥"])
def test_a_reason_in_any_script_reaches_the_peers(letter: str) -> None:
    for shift in range(4):
        sim = FabricSim(host="h" * 64, addresses={"h" * 64: "fd00:ff::1"}, leaves={"h" * 64: ("leaf1", "leaf2")})
        mark = sim.start().mark()
        why = "." * shift + letter * 300
        sim.post(ev.HostEvidence(source="check", what="health", severity="fatal", why=why))
        sim.run(0)
        (word,) = [command.notice for command in sim.since(mark, cmd.SendNotice)]
        assert word.kind == "failing" and word.link.startswith("check: health: ") and word.link[-1] == letter
        wire = probe.WireNotice(probe.Kind.FAILING, 1, word.seq, word.ttl_s, word.origin, word.link)
        assert probe.notice_bytes(wire)


def test_an_observer_says_it_to_its_journal_and_to_no_peer() -> None:
    sim = FabricSim(mode="observe").start()
    mark = sim.mark()
    tell(sim, "fatal")
    assert given_up(sim, mark) == [] and words(sim, mark) == []
    assert "verdict host: host1 fails" in [one.what for one in sim.since(mark, cmd.Record)]


def test_an_observer_hands_nobody_over_and_says_whom_it_would() -> None:
    for mode, handed in (("act", 1), ("observe", 0)):
        sim = FabricSim(mode=mode).start()
        mark = sim.mark()
        sim.post(ev.HostEvidence(source="check", what="check", severity="fatal", why="it says so"))
        sim.run(1.0)
        assert len(sim.since(mark, cmd.Escalate)) == handed
        said = [one.what for one in sim.since(mark, cmd.Record)]
        assert ("would hand over host1" in said) == (mode == "observe")
