"""A tiny pure fabric around one core: 4 hosts with 2 uplinks, 4 leaves, 2 spines, and what one host learns of it.

host1 and host2 hang on leaf1 and leaf2, host3 and host4 on leaf3 and leaf4; every leaf has both spines. The simulation
answers the core's questions (traces, the kernel's choice of uplinks), programs what it is told to, sends probes in the
mind only: a change of the fabric becomes PathEvidence after the time that real probes would need. Every run is the
same: what hashes in a fabric hashes here by value, and time is a number.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
from collections.abc import Callable, Iterable
from typing import Any

from linkpass.core import commands as cmd
from linkpass.core import events as ev
from linkpass.core.machine import Core
from linkpass.core.settings import CoreSettings, Probing

ADDRESS = {f"host{k}": f"fd00:ff::{k}" for k in range(1, 5)}
NAME = {address: name for name, address in ADDRESS.items()}
LEAVES = {
    "host1": ("leaf1", "leaf2"),
    "host2": ("leaf1", "leaf2"),
    "host3": ("leaf3", "leaf4"),
    "host4": ("leaf3", "leaf4"),
}
DETECT_PROBES = 3
QUEUE_S = 0.2
PROGRAM_S = 0.0003
ASK_S = 0.02
LOSSY_S = 2.0
TURNS_AT_ONE_TIME = 5
"""Deadlines that a core may ask for without time passing or anything else happening."""


def pick(what: str, choices: tuple[str, ...]) -> str:
    """An ECMP hash."""
    return choices[hashlib.blake2b(what.encode()).digest()[0] % len(choices)]


def crossed(host: str, hops: Iterable[str], peer: str) -> tuple[str, ...]:
    return tuple(f"{a}>{b}" for a, b in itertools.pairwise((host, *hops, peer)))


class FabricSim:
    """`core` and its world. `broken`: directions, nodes, or (direction, label) for one hash bucket of a link; `full`:
    directions at which a queue stands."""

    def __init__(
        self,
        *,
        mode: str = "act",
        peers: tuple[str, ...] = ("host2", "host3", "host4"),
        active: tuple[str, ...] = ("host2", "host3", "host4"),
        uplinks: tuple[str, ...] = ("eth1", "eth2"),
        addresses: dict[str, str] | None = None,
        host: str = "host1",
        leaves: dict[str, tuple[str, ...]] | None = None,
        spines: tuple[str, ...] = ("spine1", "spine2"),
        **settings: Any,
    ) -> None:
        """`leaves`: what other hosts than the usual ones hang on, or those otherwise."""
        self.host = host
        self.leaves = {**LEAVES, **(leaves or {})}
        self.spines = spines
        self.address = {**ADDRESS, **(addresses or {})}
        self.name = {address: name for name, address in self.address.items()}
        self.core = Core(
            CoreSettings(host=host, address=self.address[host], mode=mode, **settings)  # type: ignore[arg-type]
        )
        self.now_s = 1000.0
        self.uplinks = uplinks
        self.leaf = {name: (*self.leaves[host], "leaf9")[number] for number, name in enumerate(uplinks)}
        self.usable = dict.fromkeys(uplinks, True)
        self.peers, self.active = peers, active
        self.broken: set[str | tuple[str, int]] = set()
        self.full: set[str] = set()
        self.speed_bps = dict.fromkeys(uplinks, 100_000_000_000)
        self.loss: dict[str, float] = {}
        self.lossy_until_s: dict[str, float] = {}
        self.silent: set[str] = set()
        self.seeds: dict[str, int] = {}
        self.mute: set[str] = set()
        self.kernels: dict[str, str] = {}
        """Host -> what its kernel answers: `runs`, `ended` (nobody holds the daemon's port), `dead`; else nobody
        asks."""
        self.refuse_programs = 0
        self.deaf = False
        """Questions are not answered."""
        self.blind = False
        """The kernel's rerouting overlooks labels."""
        self.jitter_s = 0.0
        self.group: tuple[str, ...] | None = None
        self.lacking: set[str] = set()
        """Uplinks that the kernel's own routes do not lead over, so that our group does not, either."""
        self.labels: dict[str, tuple[int, ...]] = {}
        self.labels_at = 0
        """How often labels were programmed."""
        self.targets: dict[tuple[str, str, int], float] = {}
        self.evidence: dict[tuple[str, str, int], str] = {}
        self.telling: frozenset[tuple[str, str, int]] = frozenset()
        """Those of the targets that are judged also if they never answer."""
        self.log: list[tuple[float, cmd.Command]] = []
        self.events: list[tuple[float, ev.Event]] = []
        self.used: list[tuple[float, frozenset[str]]] = []
        """What directions carried flows, from a time on."""
        self._heap: list[tuple[float, int, Callable[[], ev.Event | None]]] = []
        self._number = itertools.count()

    # the fabric
    def hops(self, peer: str, uplink: str, label: int) -> tuple[str, ...]:
        near, far = self.leaf[uplink], self.leaves[self.name.get(peer, peer)]
        if near in far:
            return (near,)
        seed = self.seeds.get(near, 0)
        spine = pick(f"{near}/{seed}/{label}", self.spines)
        return near, spine, pick(f"{spine}-{label}", far)

    def kernel_uplink(self, label: int) -> str:
        members = self.group or tuple(name for name in self.uplinks if self.usable[name]) or self.uplinks
        members = tuple(name for name in members if name not in self.lacking) or members
        return pick(f"kernel/{len(members)}/{0 if self.blind else label}", members)

    def lead(self, group: str = "all") -> None:
        """Tell over which uplinks the group's routes lead now."""
        leads = tuple(name for name in self.group or () if name not in self.lacking)
        self.later(0.0, lambda: ev.GroupLeads(group=group, uplinks=leads))

    def directions(self, peer: str, uplink: str, label: int) -> tuple[str, ...]:
        return crossed(self.host, self.hops(peer, uplink, label), self.name[peer])

    def passes(self, peer: str, uplink: str, label: int) -> bool:
        if not self.usable[uplink]:
            return False
        for direction in self.directions(peer, uplink, label):
            a, _, b = direction.partition(">")
            if self.broken & {direction, a, b} or (direction, label) in self.broken:
                return False
        return True

    def flows(self) -> dict[str, list[tuple[str, int]]]:
        """peer -> (uplink, label) of every bucket of its flows, by what is programmed."""
        return {
            peer: [(self.kernel_uplink(label), label) for label in labels]
            for peer, labels in self.labels.items()
            if self.name[peer] in self.active
        }

    def carrying(self) -> frozenset[str]:
        return frozenset(
            direction
            for peer, ways in self.flows().items()
            for uplink, label in ways
            for direction in self.directions(peer, uplink, label)
        )

    # people and faults
    def start(self, settle_s: float = 3.0) -> FabricSim:
        for name in self.uplinks:
            self.post(ev.UplinkState(uplink=name, usable=self.usable[name], speed_bps=self.speed_bps[name]))
        for name in self.peers:
            self.post(ev.PeerKnown(peer=self.address[name], name=name))
        self.post(ev.PeersActive(peers=tuple(self.address[name] for name in self.active)))
        self.run(settle_s)
        return self

    def mark(self) -> int:
        """A place in the log."""
        return len(self.log)

    def since(self, mark: int, kind: type[cmd.Command]) -> list[Any]:
        return [command for _, command in self.log[mark:] if isinstance(command, kind)]

    def told(self, mark: int = 0) -> list[str]:
        return [f"{record.what} ({record.why})" for record in self.since(mark, cmd.Record)]

    def break_(self, *what: str | tuple[str, int]) -> None:
        self.broken.update(what)
        self.feel()

    def heal(self, *what: str | tuple[str, int]) -> None:
        self.broken.difference_update(what or tuple(self.broken))
        self.feel()

    def fill(self, *directions: str) -> None:
        """Queues stand there from now on; probes find them after a while, one path a little later than the other."""
        self.full.update(directions)
        self.feel_queues()

    def choke(self, *directions: str, of: int = 1) -> None:
        """Queues so deep and sudden that probes seem to be lost, until they arrive after all. They go with the flows:
        only every `of`-th path is caught."""
        targets = [
            t for t in self.targets if not set(directions).isdisjoint(self.directions(*t)) and t in self.evidence
        ]
        for target in targets[::of]:
            self.later(0.03, lambda target=target: self._tell(target, "blackhole"))
            self.later(0.08, lambda target=target: self._tell(target, "queueing"))
            self.later(0.5, lambda target=target: self._probe(target))

    def drain(self, *directions: str) -> None:
        self.full.difference_update(directions or tuple(self.full))
        self.feel_queues()

    def feel_queues(self) -> None:
        for number, target in enumerate(self.targets):
            self.later(QUEUE_S + number % 7 * 0.01, lambda target=target: self._probe(target))

    def carrier(self, uplink: str, usable: bool) -> None:
        self.usable[uplink] = usable
        self.post(ev.UplinkState(uplink=uplink, usable=usable, why="" if usable else "no carrier"))
        self.feel()

    def silence(self, *peers: str) -> None:
        self.silent.update(peers)
        for name in peers:
            self.later(0.25, lambda name=name: ev.PeerSilent(peer=self.address[name], silent_s=0.25))

    def speak(self, *peers: str) -> None:
        for name in peers:
            self.silent.discard(name)
            self.post(ev.PeerBack(peer=self.address[name]))
        self.feel()

    def later(self, delay_s: float, make: Callable[[], ev.Event | None]) -> None:
        heapq.heappush(self._heap, (self.now_s + delay_s, next(self._number), make))

    def post(self, event: ev.Event) -> None:
        self.later(0.0, lambda: event)

    def feel(self) -> None:
        """Probes notice a change of the fabric after a few of their intervals."""
        for number, (target, interval_s) in enumerate(self.targets.items()):
            delay_s = DETECT_PROBES * interval_s + number * self.jitter_s
            self.later(delay_s, lambda target=target: self._probe(target))

    def _probe(self, target: tuple[str, str, int]) -> ev.Event | None:
        peer = target[0]
        if target not in self.targets or self.name[peer] in self.silent:
            return None
        before = self.evidence.get(target, "unknown")
        after = "good" if self.passes(*target) else "blackhole"
        if after == "good" and before != "unknown" and self.full & set(self.directions(*target)):
            after = "queueing"
        if before == after or (before == "unknown" and after == "blackhole" and target not in self.telling):
            return None
        return self._tell(target, after)

    def _tell(self, target: tuple[str, str, int], after: str) -> ev.Event:
        peer, uplink, label = target
        self.evidence[target] = after
        return ev.PathEvidence(
            peer=peer, uplink=uplink, label=label, evidence=after, loss_ratio=float(after == "blackhole"),
            queueing_s=0.02 * (after == "queueing"), why="probes",
        )  # fmt: skip

    def windows(self, span_s: float, step_s: float = 0.1) -> None:
        """Count losses at `self.loss` exactly, spread evenly, window by window."""
        owed: dict[tuple[str, str, int], float] = {}
        for step in range(1, round(span_s / step_s) + 1):
            self.later(step * step_s, lambda: None)
            for name in self.peers:
                self.later(step * step_s, lambda name=name: self._window(name, step_s, owed))

    def _window(self, name: str, step_s: float, owed: dict[tuple[str, str, int], float]) -> ev.Event | None:
        counts = []
        for (peer, uplink, label), interval_s in self.targets.items():
            if peer != self.address[name] or not self.passes(peer, uplink, label):
                continue
            sent = round(step_s / interval_s)
            kept = 1.0
            for direction in self.directions(peer, uplink, label):
                kept *= 1 - self.loss.get(direction, 0.0)
            key = peer, uplink, label
            owed[key] = owed.get(key, 0.0) + sent * (1 - kept)
            lost = int(owed[key] + 1e-9)
            owed[key] -= lost
            counts.append(ev.PathCount(uplink, label, sent, lost))
        if any(count.lost for count in counts):
            self.lossy_until_s[name] = self.now_s + LOSSY_S
        if self.lossy_until_s.get(name, 0.0) < self.now_s:  # quiet time costs nothing
            return None
        return ev.PathWindow(peer=self.address[name], counts=tuple(counts))

    # the pump
    def run(self, span_s: float) -> None:
        """Let time pass, as the driver would: events of a moment first, then the core's deadline."""
        until_s = self.now_s + span_s
        turns, at_s = 0, -1.0
        while True:
            event_s = self._heap[0][0] if self._heap else float("inf")
            deadline_s = self.core.next_deadline_s()
            next_s = max(self.now_s, min(event_s, float("inf") if deadline_s is None else deadline_s))
            if next_s > until_s:
                break
            answers = event_s <= next_s
            turns = turns + 1 if next_s == at_s and not answers else 0
            at_s = self.now_s = next_s
            assert turns < TURNS_AT_ONE_TIME, f"no progress at {next_s}: deadline {deadline_s}"
            if answers:
                event = heapq.heappop(self._heap)[2]()
                if event is not None:
                    self.turn(event)
            else:
                self.turn(ev.Deadline())
        self.now_s = until_s

    def turn(self, event: ev.Event) -> None:
        self.events.append((self.now_s, event))
        for command in self.core.handle(event, self.now_s):
            self.log.append((self.now_s, command))
            self._carry_out(command)
        self.core.check_invariants()
        carrying = self.carrying()
        if not self.used or self.used[-1][1] != carrying:
            self.used.append((self.now_s, carrying))

    def ever_used(self, direction: str, since_s: float, until_s: float = float("inf")) -> bool:
        """Whether flows crossed a direction at any moment of a span."""
        before = [carrying for at_s, carrying in self.used if at_s <= since_s][-1:]
        within = [carrying for at_s, carrying in self.used if since_s < at_s <= until_s]
        return any(direction in carrying for carrying in before + within)

    def _carry_out(self, command: cmd.Command) -> None:
        if isinstance(command, cmd.SetProbes):
            self.targets = {(t.peer, t.uplink, t.label): t.interval_s for t in command.targets}
            self.evidence = {key: value for key, value in self.evidence.items() if key in self.targets}
            self.telling = frozenset((t.peer, t.uplink, t.label) for t in command.targets if t.telling)
            for key, interval_s in self.targets.items():
                if key not in self.evidence:
                    never = key in self.telling and not self.passes(*key)
                    self.later((DETECT_PROBES if never else 1) * interval_s + 0.001, lambda key=key: self._probe(key))
        elif isinstance(command, (cmd.SetGroup, cmd.SetLabels)):
            self.later(PROGRAM_S, lambda: self._program(command))
        elif isinstance(command, (cmd.TraceLabels, cmd.ResolveUplinks)) and not self.deaf:
            self.later(ASK_S, lambda: self._answer(command))
        elif isinstance(command, cmd.AskHost) and self.name[command.peer] in self.kernels:
            self.later(ASK_S, lambda: self._echo(command))

    def _echo(self, command: cmd.AskHost) -> ev.Event:
        state = self.kernels[self.name[command.peer]]
        asked = tuple(dict.fromkeys(uplink for uplink, _ in command.ways))
        reached = {uplink for uplink, label in command.ways if self.passes(command.peer, uplink, label)}
        echoed = tuple(uplink for uplink in asked if uplink in reached) if state != "dead" else ()
        return ev.HostAnswered(
            cmd_id=command.cmd_id, peer=command.peer, asked=asked, echoed=echoed,
            closed=state == "ended" and bool(reached),
        )  # fmt: skip

    def _program(self, command: cmd.SetGroup | cmd.SetLabels) -> ev.Event:
        refused = self.refuse_programs > 0
        self.refuse_programs -= refused
        if isinstance(command, cmd.SetGroup):
            if refused:
                return ev.GroupFailed(cmd_id=command.cmd_id, group=command.group, why="no buffer space")
            self.group = command.uplinks
            self.lead(command.group)
            return ev.GroupProgrammed(cmd_id=command.cmd_id, group=command.group)
        if refused:
            return ev.LabelsFailed(cmd_id=command.cmd_id, peer=command.peer, why="no buffer space")
        self.labels[command.peer] = command.labels
        self.labels_at += 1
        return ev.LabelsProgrammed(cmd_id=command.cmd_id, peer=command.peer)

    def _answer(self, command: cmd.TraceLabels | cmd.ResolveUplinks) -> ev.Event:
        if isinstance(command, cmd.ResolveUplinks):
            uplink_of = {label: self.kernel_uplink(label) for label in command.labels}
            return ev.UplinksResolved(cmd_id=command.cmd_id, peer=command.peer, uplink_of=uplink_of, blind=self.blind)
        found = {}
        for label in command.labels:
            hops = self.hops(command.peer, command.uplink, label)
            reached = list(itertools.takewhile(lambda hop: hop not in self.broken, hops))
            reached += [""] * (len(hops) - len(reached))
            found[label] = tuple(None if hop in self.mute else hop or None for hop in reached)
        return ev.LabelsTraced(cmd_id=command.cmd_id, peer=command.peer, uplink=command.uplink, hops=found)


def slow() -> Probing:
    """Probes every 50 ms: for tests in which the time to a verdict matters less than the number of turns."""
    return Probing(interval_s=0.05)
