"""How often four daemons name the wrong element when a direction or a link of their fabric loses some packets.

    python tests/core/bench_soft_faults.py --trials 100 --loss 0.01 --kind direction

Losses are drawn (binomial, beside a noise of 1e-5 a direction), seeds are fixed, time is simulated: each daemon gets
windows as the probes' edge tells them (50 ms, from a peer's first loss until a second after the last; suspect paths are
probed four times as often), opinions of lossy paths, and its peers' words. Peers stand still now and then, up to 0.6 s,
as on a busy machine: what was lost meanwhile becomes known late. Faults follow one another in one fabric, cleared in
between.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter, defaultdict

import numpy as np
from fabric_sim import ADDRESS, NAME, FabricSim

from linkpass.core import commands as cmd
from linkpass.core import events as ev
from linkpass.core.settings import Diagnosis

WINDOW_S, LOSSY_S, SUSPECT_S, EXTRA = 0.05, 1.0, 0.5, 4
NOISE_RATIO = 1e-5
STALL_RATIO, STALL_S = 0.03, (0.1, 0.6)
"""Of the windows of a peer, how many begin a time in which it stands still, and for how long."""
SERIES = 8
"""Faults in one fabric before it is built anew."""
VERDICT = re.compile(r"^verdict (?:direction|link|nic|switch|host): (\S+)(?: \(or (.+): not told apart\))?")
NAMES = re.compile(r"^verdict (?!congestion)(?!.*(?:holds no longer| fails)$)")
DIRECTIONS = tuple(
    direction
    for leaf in ("leaf1", "leaf2", "leaf3", "leaf4")
    for spine in ("spine1", "spine2")
    for direction in (f"{leaf}>{spine}", f"{spine}>{leaf}")
)
Key = tuple[str, str, int]


class Daemon(FabricSim):
    """One host of the four, with what its probes' edge keeps."""

    def __init__(self, host: str, chance: np.random.Generator) -> None:
        others = tuple(name for name in ADDRESS if name != host)
        super().__init__(host=host, peers=others, active=others, diagnosis=Diagnosis(enabled=True))
        self.chance = chance
        self.owed: dict[Key, float] = defaultdict(float)
        self.suspect_until_s: dict[Key, float] = {}
        self.lost_at_s: dict[Key, list[float]] = defaultdict(list)
        self.told: dict[Key, ev.Evidence] = {}
        self.stalled: dict[str, float] = {}
        self.unsaid: dict[str, dict[Key, list[int]]] = defaultdict(dict)
        self.seen = 0

    def window(self) -> None:
        for name in self.peers:
            found = self.unsaid[name]
            for key, interval_s in self.targets.items():
                if key[0] == self.address[name]:
                    self._probe_path(key, interval_s, found.setdefault(key, [0, 0]))
            if self.now_s >= self.stalled.get(name, 0.0) and self.chance.random() < STALL_RATIO:
                self.stalled[name] = self.now_s + float(self.chance.uniform(*STALL_S))
            if self.now_s >= self.stalled.get(name, 0.0):
                del self.unsaid[name]
                self._say(name, {key: counts for key, counts in found.items() if counts[0]})

    def _probe_path(self, key: Key, interval_s: float, counts: list[int]) -> None:
        fast = EXTRA if self.suspect_until_s.get(key, 0.0) >= self.now_s else 1
        self.owed[key] += WINDOW_S / interval_s * fast
        sent = int(self.owed[key])
        self.owed[key] -= sent
        kept = 1.0
        for direction in self.directions(*key):
            kept *= (1 - self.loss.get(direction, 0.0)) * (1 - NOISE_RATIO)
        lost = int(self.chance.binomial(sent, 1 - kept))
        counts[0] += sent
        counts[1] += lost
        if lost:
            self.suspect_until_s[key] = self.now_s + SUSPECT_S

    def _say(self, name: str, found: dict[Key, list[int]]) -> None:
        for key, (_, lost) in found.items():
            self._judge(key, lost)
        if any(lost for _, lost in found.values()):
            if self.lossy_until_s.get(name, 0.0) < self.now_s:  # windows begin somewhere in this one
                share = self.chance.random()
                found = {key: [max(lost, int(sent * share)), lost] for key, (sent, lost) in found.items()}
            self.lossy_until_s[name] = self.now_s + LOSSY_S
        if self.lossy_until_s.get(name, 0.0) >= self.now_s:
            counts = tuple(ev.PathCount(uplink, label, *one) for (_, uplink, label), one in found.items() if one[0])
            self.post(ev.PathWindow(peer=self.address[name], counts=counts))

    def _judge(self, key: Key, lost: int) -> None:
        """Three losses in half a second are a lossy path, none in two seconds a good one."""
        at_s = self.lost_at_s[key] = [one for one in self.lost_at_s[key] if one > self.now_s - 2] + [self.now_s] * lost
        was = self.told.get(key, "good")
        now: ev.Evidence = was if at_s else "good"
        if sum(one > self.now_s - 0.5 for one in at_s) >= 3:
            now = "lossy"
        if now != was:
            self.told[key] = now
            self.post(ev.PathEvidence(peer=key[0], uplink=key[1], label=key[2], evidence=now, why="probes"))

    def news(self) -> list[tuple[float, cmd.Command]]:
        fresh, self.seen = self.log[self.seen :], len(self.log)
        return fresh


def step(daemons: dict[str, Daemon]) -> list[tuple[float, str, str]]:
    """A window of all daemons, and their words to each other; what they name: (when, who, what)."""
    named = []
    for daemon in daemons.values():
        daemon.window()
        daemon.run(WINDOW_S)
    for host, daemon in daemons.items():
        for at_s, command in daemon.news():
            if isinstance(command, cmd.SendNotice) and command.notice.kind == "suspect":
                for peer in command.peers:
                    daemons[NAME[peer]].post(ev.NoticeHeard(peer=ADDRESS[host], notice=command.notice))
            elif isinstance(command, cmd.Record) and NAMES.match(command.what):
                named.append((at_s, host, command.what))
    return named


def trial(daemons: dict[str, Daemon], broken: tuple[str, ...], link: str, loss: float, span_s: float) -> Counter[str]:
    """Break it, look, repair it; counts of daemons that have named something, and of those that were wrong."""
    began_s = next(iter(daemons.values())).now_s
    right = set(broken) | ({link} if len(broken) == 2 else set())
    views, wrong, first_s = set(), set(), span_s
    for daemon in daemons.values():
        daemon.loss.update(dict.fromkeys(broken, loss))
    for _ in range(round(span_s / WINDOW_S)):
        for at_s, host, what in step(daemons):
            match = VERDICT.match(what)
            assert match is not None
            views.add(host)
            if right & {match[1], *(match[2] or "").split(", ")}:
                first_s = min(first_s, at_s - began_s)
            else:
                wrong.add(host)
                print(f"  {'+'.join(broken)}, after {at_s - began_s:.2f} s {host}: {what}", flush=True)
    for daemon in daemons.values():
        daemon.loss.clear()
    for _ in range(40):
        step(daemons)
    for daemon in daemons.values():
        daemon.post(ev.ClearRequested(link="*"))
    for _ in range(20):
        step(daemons)
    return Counter(
        views=len(views), wrong=len(wrong), bad=bool(wrong), unnamed=first_s == span_s, ms=int(first_s * 1e3)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--loss", type=float, default=0.01)
    parser.add_argument("--kind", choices=("direction", "link"), default="direction")
    parser.add_argument("--span", type=float, default=5.0, help="seconds that a fault lasts")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    daemons: dict[str, Daemon] = {}
    total: Counter[str] = Counter()
    took_ms = []
    for number in range(asked.trials):
        chance = np.random.default_rng([asked.seed, number])
        if number % SERIES == 0:
            daemons = {host: Daemon(host, chance.spawn(1)[0]) for host in ADDRESS}
            for daemon in daemons.values():
                daemon.start()
        for _ in range(int(chance.integers(80))):
            step(daemons)
        direction = DIRECTIONS[int(chance.integers(len(DIRECTIONS)))]
        a, b = direction.split(">")
        broken = (direction,) if asked.kind == "direction" else (direction, f"{b}>{a}")
        found = trial(daemons, broken, "-".join(sorted((a, b))), asked.loss, asked.span)
        took_ms.append(found.pop("ms"))
        total += found
    took_ms.sort()
    p50, p99 = (took_ms[min(len(took_ms) - 1, int(share * len(took_ms)))] / 1e3 for share in (0.5, 0.99))
    print(
        f"{asked.trials} faults ({asked.kind}, {asked.loss:.1%}): {total['views']} daemons named something, "
        f"{total['wrong']} of them wrongly, in {total['bad']} faults; {total['unnamed']} not named; "
        f"first right name p50 {p50:.2f} s, p99 {p99:.2f} s"
    )


if __name__ == "__main__":
    main()
