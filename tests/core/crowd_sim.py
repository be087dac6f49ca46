"""Many hosts with a core each on one fabric in numbers: what they send loads its links, and loaded links queue.

Demands are constant bit rates, which is worse than a job that slows down: a direction that is asked for more than it
carries has a queue as long as that lasts. A path is told to queue when its late time outweighs the rest by QUEUE_S, as
probes would find (`detect.StandingQueue`)."""

from __future__ import annotations

from collections import defaultdict

from fabric_sim import QUEUE_S, FabricSim

from linkpass.core import commands as cmd
from linkpass.core import events as ev

TICK_S = 0.05


class CrowdSim:
    """`demand`: (host, peer) -> rate; a direction carries 1, or what `room` says."""

    def __init__(self, racks: int, per_rack: int, spines: int, demand: dict[tuple[str, str], float]) -> None:
        leaves = {
            f"host{rack * per_rack + n + 1}": (f"leaf{2 * rack + 1}", f"leaf{2 * rack + 2}")
            for rack in range(racks)
            for n in range(per_rack)
        }
        self.addresses = {name: f"fd00:ff::{number}" for number, name in enumerate(leaves, 1)}
        self.demand = demand
        self.room: defaultdict[str, float] = defaultdict(lambda: 1.0)
        self.sims: dict[str, FabricSim] = {}
        self._late: defaultdict[tuple[str, str, str, int], float] = defaultdict(float)
        for host in sorted({host for host, _ in demand}):
            peers = tuple(sorted(peer for one, peer in demand if one == host))
            self.sims[host] = FabricSim(
                host=host, peers=peers, active=peers, addresses=self.addresses, leaves=leaves,
                spines=tuple(f"spine{n + 1}" for n in range(spines)),
            )  # fmt: skip
        self._load: tuple[tuple[int, ...], dict[str, float]] = (), {}
        self._ways: dict[tuple[str, str, str, int], tuple[str, ...]] = {}
        for sim in self.sims.values():
            sim.start()

    @property
    def now_s(self) -> float:
        return next(iter(self.sims.values())).now_s

    def load(self) -> dict[str, float]:
        """Direction -> what flows want to send over it now."""
        state = tuple(len(sim.used) for sim in self.sims.values()) + tuple(sim.labels_at for sim in self.sims.values())
        if state == self._load[0]:
            return self._load[1]
        found: defaultdict[str, float] = defaultdict(float)
        for host, sim in self.sims.items():
            for peer, ways in sim.flows().items():
                share = self.demand[host, sim.name[peer]] / len(ways)
                for uplink, label in ways:
                    for direction in self._way(sim, peer, uplink, label):
                        found[direction] += share
        self._load = state, found
        return found

    def worst(self) -> float:
        """The fullest direction's load over its room."""
        return max(load / self.room[direction] for direction, load in self.load().items())

    def run(self, span_s: float) -> None:
        for _ in range(round(span_s / TICK_S)):
            full = {direction for direction, load in self.load().items() if load > self.room[direction]}
            for sim in self.sims.values():
                self._feel(sim, full)
                sim.run(TICK_S)

    def moves_since(self, marks: dict[str, int]) -> dict[str, int]:
        return {host: len(sim.since(marks[host], cmd.SetLabels)) for host, sim in self.sims.items()}

    def marks(self) -> dict[str, int]:
        return {host: sim.mark() for host, sim in self.sims.items()}

    def _feel(self, sim: FabricSim, full: set[str]) -> None:
        for target in sim.targets:
            key = (sim.host, *target)
            late = not full.isdisjoint(self._way(sim, *target))
            if not late and not self._late[key]:
                continue
            self._late[key] = min(QUEUE_S, max(0.0, self._late[key] + (TICK_S if late else -TICK_S)))
            if self._late[key] < 1e-9:
                self._late[key] = 0.0
            before = sim.evidence.get(target, "unknown")
            after = {0.0: "good", QUEUE_S: "queueing"}.get(self._late[key], before)
            if before in ("good", "queueing") and after != before:
                sim.evidence[target] = after
                peer, uplink, label = target
                sim.post(ev.PathEvidence(peer=peer, uplink=uplink, label=label, evidence=after, queueing_s=0.02))

    def _way(self, sim: FabricSim, peer: str, uplink: str, label: int) -> tuple[str, ...]:
        key = (sim.host, peer, uplink, label)
        if key not in self._ways:
            self._ways[key] = sim.directions(peer, uplink, label)
        return self._ways[key]
