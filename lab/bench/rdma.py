"""Does an RDMA program survive what breaks under it: with linkpass, and without.

Two hosts of the leaf-spine fabric are emulated guests with soft-RoCE under a VRF, a daemon in each; the others are
namespaces. The program (`lab.rdma_writer`, RC, timeout 14, 6 retries: it gives up after 0.47 s) checks every message.
`blackhole` swallows in turn a link of the fabric (moved by label) and an uplink of the host (moved by route); `drain`
has programs that send, write and read in turn. The seed draws the moment of each fault. Figures are those of emulated
processors: outcomes and orders of time count.
"""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab.bench import shape
from lab.bench.reroute import Progress
from lab.bench.shape import Bench, Metrics, Row, Target, percentiles
from lab.capture import Capture, Sightings
from lab.daemons import Daemons, DaemonSpec, Entry
from lab.errors import LabError
from lab.faults import parse
from lab.netns.breaker import ActiveFault
from lab.netns.lab import NetnsLab
from lab.qemu.daemons import GuestDaemons
from lab.qemu.guest import Guest
from lab.qemu.hosts import talking
from lab.rdma_job import KINDS, Kind, RdmaJob, Result, longest_pause_s, roce_flows, way_of
from topology.model import Fabric

NAME = "rdma"
SENDER, RECEIVER = "host1", "host3"
TIMEOUT = 14
LOOK_S = 0.4
HOLD_S = 3.0
LOSSY_S = 6.0
"""How long faults last; losses take the daemons longer to be sure of."""
SETTLE_S = 20.0
PHASE_S = 0.2
"""Faults come at any moment of the probes' round."""
AFTER_S = 1.0
"""A program that was held up is given so long to show it."""
TRIES = 3
"""Starts of a program that keeps dying by itself."""
HANGS_S = 3.0
"""A frozen host is thawed after so long, for the fabric to be whole again."""

CASES: dict[str, str] = {
    "blackhole": "a link swallows everything: one of the fabric, and the host's own, in turn",
    "carrier": "the uplink that carries the program loses its carrier",
    "drain": "the uplink that carries the program is drained, then cut",
    "stalled-qp": "the receiving host freezes",
    "loss-5pct": "a link of the fabric loses 5 % of its packets",
}


@dataclass(frozen=True, slots=True)
class Plan:
    n: int = 20
    seed: int = 0
    cases: tuple[str, ...] = tuple(CASES)
    least: int = 3

    @property
    def without(self) -> int:
        return max(self.least, self.n // 3)

    @property
    def total(self) -> int:
        """Injections: what the progress bar counts."""
        return len(self.cases) * (self.n + self.without)


@dataclass(slots=True)
class Shot:
    """One fault. Times in seconds after it; None: did not happen."""

    fault: str
    survived: bool
    stall_s: float
    reroute_s: float | None = None
    move_s: float | None = None
    """Of a drain: from the daemon's taking of the order until the first packet elsewhere."""
    named_s: float | None = None
    said: str = ""


@dataclass(slots=True)
class Found:
    shots: dict[str, list[Shot]] = field(default_factory=dict)
    results: dict[str, list[Result]] = field(default_factory=dict)
    """Of the programs that ran through a case's faults."""


def run(fabric: Fabric, plan: Plan, tell: Progress, *, name: str, folder: Path | None = None) -> Bench:
    """Boot the lab, try everything, take it down. Raises LabError."""
    with built(fabric, name, folder) as (lab, guests):
        none = Found()
        with Trial(lab, guests, None, seed=plan.seed) as trial:
            done = _try(trial, plan, none, plan.without, "without linkpass", tell, 0)
        ours = Found()
        tell("starting the daemons", done)
        with GuestDaemons(lab, guests, DaemonSpec()).start() as daemons:
            daemons.wait_ready(120)
            daemons.wait_settled(120)
            with Trial(lab, guests, daemons, seed=plan.seed) as trial:
                _try(trial, plan, ours, plan.n, "with linkpass", tell, done)
    return shape.check(
        Bench(NAME, shape.commit(), shape.machine(), plan.seed, tuple(rows(plan, ours, none)))
    )  # fmt: skip


@contextmanager
def built(fabric: Fabric, name: str, folder: Path | None = None) -> Iterator[tuple[NetnsLab, dict[str, Guest]]]:
    """A lab whose SENDER and RECEIVER are guests, and both connected."""
    lab = NetnsLab(fabric, name=name, run_dir=folder, guests=(SENDER, RECEIVER))
    lab.up()
    try:
        with talking(lab, SENDER) as sender, talking(lab, RECEIVER) as receiver:
            yield lab, {SENDER: sender, RECEIVER: receiver}
    finally:
        lab.down()


class Trial:
    """Faults under a running program, one after the other; the program is started anew when it has died."""

    def __init__(
        self, lab: NetnsLab, guests: dict[str, Guest], daemons: Daemons | None, *, timeout: int = TIMEOUT, seed: int = 0
    ) -> None:
        """`timeout`: the program's, an exponent: with 14 it gives up after 0.47 s, with 15 after 0.94."""
        self._timeout = timeout
        self._chance = random.Random(seed)
        self.lab, self.guests, self.daemons = lab, guests, daemons
        self.ends = lab.address(SENDER), lab.address(RECEIVER)
        self.results: list[Result] = []
        self._job: RdmaJob | None = None
        self._how: tuple[int, Kind] = 6, "send"
        """Retries and kind of the program that runs."""
        self._capture = Capture.of(lab, socket.IPPROTO_UDP)

    def __enter__(self) -> Trial:
        self._capture.open()
        return self

    def __exit__(self, *_: object) -> None:
        if self._job is not None:
            self._job.close()
        self._capture.close()

    def end_program(self) -> None:
        """Its result is kept."""
        if self._job is not None:
            job, self._job = self._job, None
            self.results.append(job.stop())

    def way_of_program(self) -> list[str]:
        """The directions that a program takes now, once the daemons attend to it. LabError."""
        return self._running((6, "send"))[1]

    def shoot(self, case: str, number: int) -> Shot:
        kind = KINDS[number % len(KINDS)] if case == "drain" else "send"
        job, way = self._running((7 if case == "stalled-qp" else 6, kind))
        time.sleep(self._chance.random() * PHASE_S)
        if case == "stalled-qp":
            return self._freeze(job)
        uplink = _of(way, SENDER)
        inner = next((d for d in way if d.startswith("leaf") and ">spine" in d), uplink)
        link = uplink if case in ("carrier", "drain") or (case == "blackhole" and number % 2) else inner
        text = {
            "carrier": f"carrier:{_link(link)}", "loss-5pct": f"loss:{_link(link)}:5%",
        }.get(case, f"blackhole:{_link(link)}")  # fmt: skip
        return self._break(job, link, text, hold_of(case), drained=case == "drain")

    def _break(self, job: RdmaJob, link: str, text: str, hold_s: float, *, drained: bool) -> Shot:
        """`drained`: the order first, where there is somebody to take it; then the cut."""
        device = self.lab.fabric.link(_link(link)).port(SENDER).name if drained else ""
        self._capture.watch()
        time.sleep(LOOK_S)
        at_s = time.monotonic()
        if drained and self.daemons is not None:
            self.daemons.post(SENDER, "/drain", link=device)
            time.sleep(1.0)
        with self._fault(text):
            self._hold(job, hold_s)
            ended_s = time.monotonic()
        said = f"drain {device}, {text}" if drained else text
        shot = self._judge(job, said, link, at_s, ended_s, self._capture.take())
        taken = next((e.now_s for e in self._journal(at_s) if e.host == SENDER and "is drained" in e.what), None)
        if drained and taken is not None and shot.reroute_s is not None:
            shot.move_s = at_s + shot.reroute_s - taken
        if drained and self.daemons is not None:
            self.daemons.post(SENDER, "/undrain", link=device)
        return shot

    def _freeze(self, job: RdmaJob) -> Shot:
        at_s = time.monotonic()
        with self._fault(f"freeze:{RECEIVER}"):
            time.sleep(HANGS_S)
            ended_s = time.monotonic()
        time.sleep(AFTER_S)
        said = [e for e in self._journal(at_s) if "stands: host, not path" in e.what]
        stall_s = longest_pause_s(job.pauses(), at_s, ended_s)
        first = min((entry.now_s for entry in said), default=None)
        named_s = None if first is None else first - at_s
        return Shot(
            f"freeze:{RECEIVER}", job.alive, stall_s, named_s=named_s, said=said[0].what if said else ""
        )  # fmt: skip

    def _judge(self, job: RdmaJob, text: str, link: str, at_s: float, ended_s: float, seen: Sightings) -> Shot:
        time.sleep(AFTER_S)
        flows = roce_flows(seen, *self.ends)
        found = seen.reroute({link}, at_s, ended_s, before_s=LOOK_S, only=flows)
        return Shot(text, job.alive, longest_pause_s(job.pauses(), at_s, ended_s), found.first_s)

    def _hold(self, job: RdmaJob, hold_s: float) -> None:
        """Until the fault is to end; no longer than its program lives."""
        until_s = time.monotonic() + hold_s
        while time.monotonic() < until_s and job.alive:
            time.sleep(0.1)

    def _running(self, how: tuple[int, Kind]) -> tuple[RdmaJob, list[str]]:
        """The program, with messages flowing and every path good, and the way that they take. LabError."""
        for _ in range(TRIES):
            job = self._started(how)
            if way := self._way(job):
                return job, way
        raise LabError("the RDMA program does not live long enough to be measured", "see its logs in the guest's share")

    def _started(self, how: tuple[int, Kind]) -> RdmaJob:
        if self._job is not None and (not self._job.alive or self._how != how):
            self.end_program()
        if self._job is None:
            self._how = how
            sender, receiver, (retries, kind) = self.guests[SENDER], self.guests[RECEIVER], how
            self._job = RdmaJob(
                sender, receiver, self.ends[1], kind=kind, timeout=self._timeout, retries=retries
            ).start()
        if self.daemons is not None:
            self.daemons.clear()
            until_s = time.monotonic() + SETTLE_S
            while not all(map(self._attends, (SENDER, RECEIVER))) and time.monotonic() < until_s:
                time.sleep(0.2)
            time.sleep(1.0)
        return self._job

    def _attends(self, host: str) -> bool:
        """Whether a daemon knows of the program, and finds all its paths good."""
        assert self.daemons is not None
        view = self.daemons.view(host)
        known = any(peer["active"] and peer["address"] in self.ends for peer in view["peers"])
        return known and self.daemons.is_settled(host, view)

    def _way(self, job: RdmaJob) -> list[str]:
        """The directions that carry the program now; none when it has died."""
        while job.alive:
            self._capture.watch()
            time.sleep(LOOK_S)
            self._capture.pause()
            way = way_of(self._capture.take(), *self.ends)
            if any(direction.startswith(f"{SENDER}>") for direction in way):
                return way
        return []

    @contextmanager
    def _fault(self, text: str) -> Iterator[ActiveFault]:
        fault = self.lab.fault(parse(text, self.lab.fabric))
        try:
            yield fault
        finally:
            fault.undo()

    def _journal(self, since_s: float) -> list[Entry]:
        return self.daemons.journal(since_s) if self.daemons is not None else []


def hold_of(case: str) -> float:
    return LOSSY_S if case == "loss-5pct" else HOLD_S


def _try(trial: Trial, plan: Plan, found: Found, count: int, title: str, tell: Progress, done: int) -> int:
    for case in plan.cases:
        trial.results.clear()
        shots = found.shots.setdefault(case, [])
        for number in range(count):
            tell(f"{title}: {case} {number + 1} of {count}", done)
            shots.append(trial.shoot(case, number))
            done += 1
        trial.end_program()
        found.results[case] = list(trial.results)
    return done


def rows(plan: Plan, ours: Found, none: Found) -> Iterator[Row]:
    for case in plan.cases:
        shots = ours.shots[case]
        info = {
            "what": CASES[case],
            "without_n": len(none.shots[case]),
            "deaths": sum(bool(one.error) for one in ours.results[case]),
            "errors": sorted({one.error for one in none.results[case] if one.error}),
            "injections": [_shown(shot) for shot in shots],
        }
        yield Row(case, len(shots), metrics_of(case, ours), {"none": metrics_of(case, none)}, info)


def metrics_of(case: str, found: Found) -> Metrics:
    """One column. What did not come within the fault's time counts with all of it: a lower bound."""
    shots, results = found.shots[case], found.results[case]
    metrics: Metrics = {
        "survived_ratio": sum(shot.survived for shot in shots) / len(shots),
        "payload_errors": sum(result.payload_errors for result in results)
        + sum(result.completed > result.received for result in results),
        "stall_ms": percentiles(shot.stall_s * 1e3 for shot in shots),
    }
    if case == "stalled-qp":
        metrics["named"] = sum(shot.named_s is not None for shot in shots)
        if times := [shot.named_s * 1e3 for shot in shots if shot.named_s is not None]:
            metrics["named_ms"] = percentiles(times)
    else:
        metrics["reroute_ms"] = percentiles(
            (hold_of(case) if shot.reroute_s is None else shot.reroute_s) * 1e3 for shot in shots
        )
    if case == "drain":
        metrics["move_ms"] = percentiles((HOLD_S if shot.move_s is None else shot.move_s) * 1e3 for shot in shots)
    return metrics


def targets(bench: Bench) -> list[Target]:
    """The figures that rows are held to."""
    wanted: dict[str, tuple[tuple[str, str, str, float], ...]] = {
        "blackhole": (("reroute_ms", "p99", "<=", 150.0),),
        "carrier": (("stall_ms", "max", "<=", 200.0),),
        "drain": (("move_ms", "max", "<=", 50.0),),
        "stalled-qp": (("named_ms", "max", "<=", 1000.0),),
        "loss-5pct": (("reroute_ms", "max", "<=", 2000.0),),
    }
    every = (("survived_ratio", "", "==", 1.0), ("payload_errors", "", "==", 0.0))
    return [
        Target(row.case, metric, stat, how, value)  # type: ignore[arg-type]
        for row in bench.rows
        for metric, stat, how, value in (*wanted[row.case], *every)
    ]


def _of(way: list[str], node: str) -> str:
    return next(direction for direction in way if direction.startswith(f"{node}>"))


def _link(direction: str) -> str:
    return "-".join(direction.split(">"))


def _shown(shot: Shot) -> dict[str, Any]:
    times = {
        "stall_ms": shot.stall_s, "reroute_ms": shot.reroute_s, "move_ms": shot.move_s, "named_ms": shot.named_s,
    }  # fmt: skip
    return {
        "fault": shot.fault,
        "survived": shot.survived,
        **{name: round(value * 1e3, 1) for name, value in times.items() if value is not None},
        **({"said": shot.said} if shot.said else {}),
    }
