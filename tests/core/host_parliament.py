"""Several cores that hear one another or not, and tell each other so; some of them lie."""

from __future__ import annotations

from collections.abc import Iterable

from fabric_sim import FabricSim

from linkpass.core import commands as cmd
from linkpass.core import events as ev

HOSTS = ("host1", "host2", "host3", "host4", "host5", "host6")
ADDRESSES = {name: f"fd00:ff::{number}" for number, name in enumerate(HOSTS, 1)}
LEAVES = {name: ("leaf1", "leaf2") if number <= 3 else ("leaf3", "leaf4") for number, name in enumerate(HOSTS, 1)}
STEP_S = 0.05
LIE_STEPS = 10
"""A lie is told again this often."""


class Parliament:
    """Six hosts in one job, each exchanging data with each. `dead`: hosts of which nothing comes; `cut`: pairs that do
    not hear each other, though others hear both; `liars`: what they hear is right, what they say is made up."""

    def __init__(self, dead: frozenset[str], cut: frozenset[frozenset[str]], liars: frozenset[str]) -> None:
        self.dead, self.cut, self.liars = dead, cut, liars
        self.sims = {name: self._sim(name) for name in HOSTS}
        self.lies: list[tuple[str, str, ev.Notice]] = []
        self._carried = dict.fromkeys(HOSTS, 0)

    def _sim(self, name: str) -> FabricSim:
        others = tuple(other for other in HOSTS if other != name)
        sim = FabricSim(host=name, addresses=ADDRESSES, leaves=LEAVES, peers=others, active=others).start(1.0)
        for other in others:
            sim.post(ev.PeerData(peer=ADDRESSES[other], flows=True))
        sim.run(0)
        return sim

    def hears(self, one: str, other: str) -> bool:
        return not {one, other} & self.dead and frozenset((one, other)) not in self.cut

    @property
    def living(self) -> list[str]:
        return [name for name in HOSTS if name not in self.dead]

    def run(self, span_s: float) -> None:
        for name in self.living:
            deaf_to = [other for other in HOSTS if other != name and not self.hears(name, other)]
            self.sims[name].silence(*deaf_to)
            for other in deaf_to:
                stopped = ev.PeerData(peer=ADDRESSES[other], flows=False)
                self.sims[name].later(0.5, lambda stopped=stopped: stopped)
        for step in range(round(span_s / STEP_S)):
            for name in self.living:
                self.sims[name].run(STEP_S)
            self._carry_words()
            for speaker, to, notice in self.lies if step % LIE_STEPS == 0 else ():
                if self.hears(speaker, to):
                    self.sims[to].post(ev.NoticeHeard(peer=ADDRESSES[speaker], notice=notice))

    def _carry_words(self) -> None:
        for name in self.living:
            sim = self.sims[name]
            told = [command for _, command in sim.log[self._carried[name] :] if isinstance(command, cmd.SendNotice)]
            self._carried[name] = len(sim.log)
            for command in () if name in self.liars else told:
                for address in command.peers:
                    to = sim.name[address]
                    if self.hears(name, to):
                        self.sims[to].post(ev.NoticeHeard(peer=ADDRESSES[name], notice=command.notice))

    def given_up(self, by: Iterable[str]) -> set[tuple[str, str]]:
        """(who, whom)."""
        return {
            (name, command.host)
            for name in by
            for _, command in self.sims[name].log
            if isinstance(command, cmd.Escalate)
        }
