"""The escalation hook that fails: run again for the same host, with pauses, as long as that is needed."""

from __future__ import annotations

import itertools

from fabric_sim import FabricSim

from linkpass.core import commands as cmd
from linkpass.core import events as ev
from linkpass.core.settings import Limits


class Hook:
    """Runs what the core asks for; `works`: from which run on."""

    def __init__(self, sim: FabricSim, works: int) -> None:
        self.sim, self.works = sim, works
        self.runs: list[tuple[float, cmd.Escalate]] = []
        self._mark = sim.mark()

    def run(self, span_s: float) -> None:
        until_s = self.sim.now_s + span_s
        while self.sim.now_s < until_s:
            self.sim.run(min(1.0, until_s - self.sim.now_s))
            asked = [(s, c) for s, c in self.sim.log[self._mark :] if isinstance(c, cmd.Escalate)]
            self._mark = self.sim.mark()
            for at_s, one in asked:
                self.runs.append((at_s, one))
                if len(self.runs) >= self.works:
                    self.sim.post(ev.Escalated(cmd_id=one.cmd_id, host=one.host, accelerator=one.accelerator))
                else:
                    failed = ev.EscalateFailed(
                        cmd_id=one.cmd_id, host=one.host, why="hook: exit status 1", accelerator=one.accelerator
                    )
                    self.sim.post(failed)

    @property
    def hosts(self) -> list[str]:
        return [one.host for _, one in self.runs]

    @property
    def pauses_s(self) -> list[float]:
        times = [at_s for at_s, _ in self.runs]
        return [round(b - a) for a, b in itertools.pairwise(times)]


def fails(sim: FabricSim, name: str) -> None:
    sim.post(ev.PeerData(peer=sim.address[name], flows=True))
    sim.run(0)
    sim.silence(name)
    sim.later(0.5, lambda: ev.PeerData(peer=sim.address[name], flows=False))


def test_a_hook_that_fails_is_run_again_until_it_takes_the_host() -> None:
    sim = FabricSim().start()
    mark, hook = sim.mark(), Hook(sim, works=3)
    fails(sim, "host3")
    hook.run(3600)
    assert hook.hosts == ["host3"] * 3
    assert [abs(pause_s - wanted_s) <= 1 for pause_s, wanted_s in zip(hook.pauses_s, (30, 60), strict=True)] == [
        True
    ] * 2
    first, *others = (one for _, one in hook.runs)
    assert all((one.cause, one.evidence, one.since_s) == (first.cause, first.evidence, first.since_s) for one in others)
    told = sim.told(mark)
    assert sum("host3 was not handed over (hook: exit status 1; tried again in" in line for line in told) == 2
    assert sum(line.startswith("verdict host: host3 fails") for line in told) == 1
    assert told[-1] == "host3 was handed over (the escalation hook took it)"


def test_a_hook_that_never_works_is_given_up_and_takes_no_other_hosts_turn() -> None:
    sim = FabricSim(limits=Limits(escalations_per_hour=2)).start()
    mark, hook = sim.mark(), Hook(sim, works=1000)
    fails(sim, "host3")
    hook.run(60)
    fails(sim, "host4")
    hook.run(3 * 3600)
    assert hook.hosts.count("host3") == hook.hosts.count("host4") == 6
    assert sum("it failed 6 times, and is not tried again" in line for line in sim.told(mark)) == 2


def test_who_is_heard_again_is_not_handed_over_by_a_late_try() -> None:
    sim = FabricSim().start()
    hook = Hook(sim, works=1000)
    fails(sim, "host3")
    hook.run(10)
    assert hook.hosts == ["host3"]
    sim.speak("host3")
    hook.run(600)
    assert hook.hosts == ["host3"]
    fails(sim, "host3")  # another silence, and a handover of its own
    hook.run(50)
    assert hook.hosts == ["host3"] * 3 and hook.runs[0][1].cause != hook.runs[1][1].cause == hook.runs[2][1].cause


def test_this_host_hands_itself_over_again_as_long_as_its_evidence_stands() -> None:
    sim = FabricSim().start()
    hook = Hook(sim, works=1000)
    for what, gpu in (("machine check", ""), ("Xid 79", "0000:3b:00.0")):
        evidence = ev.HostEvidence(source="kernel log", what=what, severity="fatal", why="x", accelerator=gpu)
        sim.post(evidence)
        hook.run(40)
        assert [one.accelerator for _, one in hook.runs] == [""] * 2, "the whole host is handed over already"
    sim.post(ev.ClearRequested(link="host1"))
    hook.run(600)
    assert len(hook.runs) == 2
