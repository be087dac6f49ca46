"""The demo: a job is trained across a fabric that breaks in a row of ways, with linkpass and without.

    outcome = run(spec, screen)

Three runs of the same training: with a daemon on every host while the fabric breaks, with the kernel alone under the
same faults, and undisturbed. The weights of the first have to be those of the third, bit for bit. Measuring is
`lab.trial`'s, showing is the screen's; this file says what is done in which order, and makes the page's story of it.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from lab.bench.shape import Bench, Row, commit, encode, machine, percentiles
from lab.cases import CASES, Case
from lab.daemons import DaemonSpec
from lab.errors import LabError
from lab.job import Job, JobSpec, Loopback
from lab.netns import processes, removal, state
from lab.netns.lab import NetnsLab, UpReport
from lab.report import FaultShown, MoveShown, RunShown, Story, page
from lab.steps import RankLog, steps_lost, weights_identical
from lab.telling import Line, Teller
from lab.trial import JOB_STEPS, Injection, Live, Trial
from topology.model import Fabric

HASH_EVERY = 10
BOUND_S = 10.0
"""The kernel alone gets this long after a fault to bring the job back."""
OWNER = "demo.owner"


@dataclass(frozen=True, slots=True)
class Act:
    """One fault of the demo. `without`: the kernel has to face it too; `wait_return`: the way back is shown."""

    case: Case
    hold_s: float = 3.0
    without: bool = True
    wait_return: bool = True


HANGS = Case("spine-hangs", "spine", "dead:{node}:silent", "a spine hangs: its ports stay up, nothing gets through")

ACTS: tuple[Act, ...] = (
    Act(CASES["carrier"]),
    Act(CASES["blackhole-both"]),
    Act(CASES["blackhole-oneway"], without=False),
    Act(CASES["blackhole-hostleaf"]),
    Act(CASES["bucket"]),
    Act(CASES["loss-5pct"]),
    Act(HANGS),
    Act(CASES["drain"], 2.0, without=False),
    Act(CASES["flap"], 6.0, without=False, wait_return=False),
)
QUICK: tuple[Act, ...] = (
    Act(CASES["carrier"], 1.5),
    Act(CASES["blackhole-both"], 1.5),
    Act(CASES["bucket"], 1.5, without=False),
)


@dataclass(frozen=True, slots=True)
class DemoSpec:
    """`fabric`: of the topology file `topology`; `out`: folder for the page and the figures."""

    fabric: Fabric
    topology: Path
    out: Path
    acts: Sequence[Act] = ACTS
    name: str = "demo"
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Tried:
    """An act and what came of it; `without`: the same with the kernel alone, if that was tried."""

    act: Act
    found: Injection
    identical: bool | None = None
    without: Injection | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    tried: tuple[Tried, ...]
    identical: bool | None
    weights: str
    steps: int
    lost: int
    median_step_s: float
    page: Path
    figures: Path
    notes: tuple[str, ...]

    @property
    def failures(self) -> list[str]:
        """What went wrong, in words; empty: training went on through everything and ended as if nothing had been."""
        found = [f"{one.found.fault}: the job did not survive it" for one in self.tried if not one.found.recovered]
        if self.lost:
            found.append(f"{self.lost} steps were lost")
        if self.identical is not True:
            found.append("the weights are not those of the undisturbed run")
        return found


class Screen(Protocol):
    """Who shows it. Every method returns at once."""

    def built(self, lab: NetnsLab, report: UpReport) -> None: ...

    def chapter(self, number: int, title: str, text: str, total: float) -> None:
        """A run begins; `total`: what `progress` will count to."""

    def progress(self, done: float, job: Job) -> None: ...

    def waits(self, what: str) -> None:
        """Nothing to see for some seconds, and why."""

    def broken(self, number: int, of: int, live: Live) -> None: ...

    def line(self, line: Line) -> None: ...

    def healed(self, live: Live) -> None: ...

    def judged(self, act: Act, found: Injection, steps: int) -> None: ...


def run(spec: DemoSpec, screen: Screen) -> Outcome:
    """All three runs and the files in `spec.out`. Raises LabError; whatever happens, nothing of it is left running."""
    began_s = time.monotonic()
    spec.out.mkdir(parents=True, exist_ok=True)
    with _fabric(spec, screen) as lab:
        ours = _with_linkpass(spec, screen, lab)
        theirs = _without(spec, screen, lab) if any(act.without for act in spec.acts) else None
    reference = _undisturbed(spec, screen, lab, ours.job.steps)
    return _finish(spec, ours, theirs, reference, time.monotonic() - began_s)


# the runs
@dataclass(frozen=True, slots=True)
class _Played:
    """A run with faults: what each did, and the job."""

    found: tuple[tuple[Act, Injection], ...]
    jobs: tuple[Job, ...]
    notes: tuple[str, ...]

    @property
    def job(self) -> Job:
        return self.jobs[-1]


@contextmanager
def _fabric(spec: DemoSpec, screen: Screen) -> Iterator[NetnsLab]:
    """The lab, and nothing of it afterwards. What a demo that was killed has left is taken away first."""
    run_dir = state.find(spec.name) or (state.RUNS / spec.name).absolute()
    if (owner := state.read(run_dir / OWNER, processes.Process)) is not None:
        if processes.start_time(owner.pid) == owner.started and owner.pid != os.getpid():
            raise LabError(f"a demo runs already (process {owner.pid})", "wait for it, or give another --name")
        removal.remove(spec.name)
    lab = NetnsLab(spec.fabric, name=spec.name, run_dir=run_dir)
    report = lab.up()
    try:
        started = processes.start_time(os.getpid()) or 0
        state.write(run_dir / OWNER, processes.Process(os.getpid(), started, ""))
        screen.built(lab, report)
        yield lab
    finally:
        (run_dir / OWNER).unlink(missing_ok=True)
        lab.down()


def _with_linkpass(spec: DemoSpec, screen: Screen, lab: NetnsLab) -> _Played:
    screen.chapter(1, "With linkpass", "one daemon on every host moves the traffic", _seconds(spec.acts))
    screen.waits("starting the daemons, and PyTorch on every host")
    daemons = DaemonSpec(mode="act", tcp_timers=True, realtime=True, record=True, topology=spec.topology)
    return _play(spec, screen, lab, daemons, list(spec.acts))


def _without(spec: DemoSpec, screen: Screen, lab: NetnsLab) -> _Played:
    acts = [act for act in spec.acts if act.without]
    screen.chapter(2, "Without linkpass", "the same faults, the kernel alone", _seconds(acts))
    screen.waits("starting the job again, without daemons")
    return _play(spec, screen, lab, None, acts)


def _play(spec: DemoSpec, screen: Screen, lab: NetnsLab, daemons: DaemonSpec | None, acts: list[Act]) -> _Played:
    job = JobSpec(preset="demo", steps=JOB_STEPS, seed=spec.seed, hash_every=HASH_EVERY)
    folder = lab.run_dir / ("with" if daemons else "without")
    found = []
    with Trial(lab, folder, daemons, job=job, seed=spec.seed, bound_s=BOUND_S) as trial:
        done_s = 0.0
        for number, act in enumerate(acts, 1):
            watch = _Watch(screen, trial, number, len(acts), done_s)
            one = trial.inject(act.case, hold_s=act.hold_s, wait_return=act.wait_return, watch=watch)
            found.append((act, one))
            watch.tell()
            done_s += act.hold_s
            screen.progress(done_s, trial.job)
            screen.judged(act, one, trial.job.steps)
        trial.job.stop(multiple_of=HASH_EVERY)
        notes = tuple(trial.notes)
    return _Played(tuple(found), tuple(trial.jobs), notes)


class _Watch:
    """Passes on what happens during one injection."""

    def __init__(self, screen: Screen, trial: Trial, number: int, of: int, done_s: float) -> None:
        self._screen, self._trial = screen, trial
        self._number, self._of, self._done_s = number, of, done_s
        self._teller: Teller | None = None

    def __call__(self, moment: str, live: Live) -> None:
        if moment == "injected":
            assert live.injected_at_s is not None
            self._teller = Teller(live.injected_at_s)
            self._screen.broken(self._number, self._of, live)
        elif moment == "undone":
            self.tell()
            self._sum_up("moved")
            self._screen.healed(live)
        self.tell()
        if live.injected_at_s is not None:
            until_s = live.undone_at_s or time.monotonic()
            self._trial.job.update()
            self._screen.progress(self._done_s + until_s - live.injected_at_s, self._trial.job)
        if moment == "returned":
            self._sum_up("back")

    def tell(self) -> None:
        if self._teller is not None and self._trial.daemons is not None:
            for line in self._teller.take(self._trial.daemons.journal(self._teller.origin_s)):
                self._screen.line(line)

    def _sum_up(self, kind: str) -> None:
        line = self._teller.others("moved" if kind == "moved" else "back") if self._teller is not None else None
        if line is not None:
            self._screen.line(line)


def _undisturbed(spec: DemoSpec, screen: Screen, lab: NetnsLab, steps: int) -> list[RankLog]:
    """The same training on loopback, where nothing breaks, for as many steps."""
    screen.chapter(3, "Undisturbed", "the same training, nothing breaks: what should the weights be?", float(steps))
    screen.waits("starting the job on loopback")
    hosts = [host.name for host in lab.fabric.hosts]
    job_spec = JobSpec(preset="demo", steps=steps, seed=spec.seed, hash_every=HASH_EVERY)
    with Job(Loopback(), hosts, lab.run_dir / "undisturbed", job_spec) as job:
        job.start()

        def done() -> bool:
            if job.steps:
                screen.progress(job.steps, job)
            return job.finished

        job.wait_for(done, 900.0, "end")
        job.wait()
        return job.ranks


# what is made of it
def _finish(spec: DemoSpec, ours: _Played, theirs: _Played | None, reference: list[RankLog], took_s: float) -> Outcome:
    identical = weights_identical(ours.job.ranks, reference)
    broke_at = first_difference(ours.job.ranks, reference)
    others = {act.case.name: one for act, one in theirs.found} if theirs else {}
    tried = tuple(
        Tried(act, one, _identical_by(ours.job, one, broke_at, identical=identical), others.get(act.case.name))
        for act, one in ours.found
    )
    lost = steps_lost(ours.job.ranks)
    notes = (
        "The job's TCP timers are tuned by the daemons, which run with real-time priority; without linkpass both are "
        "as the kernel has them.",
        "Without linkpass, too, a fault ends when its time is over: where the job stood still until then, that alone "
        "brought it back.",
        *ours.notes,
        *(theirs.notes if theirs else ()),
    )  # fmt: skip
    story = _story(spec, tried, ours, theirs, reference, notes, identical=identical)
    pages, figures = spec.out / "index.html", spec.out / "figures.json"
    pages.write_text(page(story), encoding="utf-8")
    figures.write_bytes(encode(_bench(spec, tried, took_s)))
    return Outcome(
        tried, identical, story.weights, ours.job.steps, lost, ours.job.median_step_s(), pages, figures, ours.notes
    )


def first_difference(ours: Sequence[RankLog], reference: Sequence[RankLog]) -> int | None:
    """The first step at which any rank's weights differ from the reference's; None: they never do."""
    known = {step: value for log in reference for step, value in log.hashes.items()}
    differ = [step for log in ours for step, value in log.hashes.items() if known.get(step, value) != value]
    return min(differ, default=None)


def _identical_by(job: Job, found: Injection, broke_at: int | None, *, identical: bool | None) -> bool | None:
    """Whether the weights were still right after a fault: what went wrong before or in it is laid at its door."""
    if identical is None or broke_at is None:
        return identical
    at = min(sum(end_s <= found.undone_at_s for end_s in log.ends_s) for log in job.ranks)
    return broke_at > at


def _story(
    spec: DemoSpec,
    tried: Sequence[Tried],
    ours: _Played,
    theirs: _Played | None,
    reference: list[RankLog],
    notes: Sequence[str],
    *,
    identical: bool | None,
) -> Story:
    origin_s = min(log.ends_s[0] for log in ours.job.ranks)
    their_origin_s = min(log.ends_s[0] for log in theirs.jobs[0].ranks) if theirs else 0.0
    return Story(
        title=f"{number_word(len(tried))} faults, and training went on",
        fabric=f"{spec.fabric.name}: {_shape(spec.fabric)}",
        run=RunShown.of(ours.job.ranks, origin_s),
        faults=[_shown(one, origin_s, their_origin_s) for one in tried],
        moves=[
            MoveShown(entry.now_s - origin_s, entry.host, entry.what, entry.why, entry.rung)
            for _, found in ours.found
            for entry in found.entries
            if entry.is_move
        ],
        hosts=[host.name for host in spec.fabric.hosts],
        machine=machine(),
        commit=commit(),
        weights=max(ours.job.ranks[0].hashes.items())[1],
        weights_identical=identical,
        reference=RunShown.of(reference, min(log.ends_s[0] for log in reference)),
        without=_joined([RunShown.of(job.ranks, their_origin_s) for job in theirs.jobs]) if theirs else None,
        notes=notes,
    )


def _shown(one: Tried, origin_s: float, their_origin_s: float) -> FaultShown:
    found, other = one.found, one.without
    shown = FaultShown(
        name=one.act.case.name,
        what=f"{one.act.case.what} ({found.fault})",
        since_s=found.injected_at_s - origin_s,
        until_s=found.undone_at_s - origin_s,
        reroute_ms=_ms(found.reroute_s),
        stall_ms=_ms(found.stall.seconds),
        steps_lost=found.steps_lost,
        weights_identical=one.identical,
        moves=found.all_moves,
    )
    if other is None:
        return shown
    return dataclasses.replace(
        shown,
        stall_without_ms=_ms(other.stall.seconds),
        without_since_s=other.injected_at_s - their_origin_s,
        without_until_s=other.undone_at_s - their_origin_s,
        without_note=note_on(other),
    )


def note_on(found: Injection) -> str:
    """How the job without linkpass came out of a fault, where that was not by itself."""
    if not found.recovered:
        return f"did not go on within {BOUND_S:g} s of its end"
    return "ended only with the fault" if found.stall.until_s > found.undone_at_s else ""


def _bench(spec: DemoSpec, tried: Sequence[Tried], took_s: float) -> Bench:
    rows = tuple(
        Row(
            case=one.act.case.name,
            n=1,
            metrics={
                **({"reroute_ms": percentiles([one.found.reroute_s * 1e3])} if one.found.reroute_s is not None else {}),
                "stall_ms": percentiles([one.found.stall.seconds * 1e3]),
                "steps_lost": one.found.steps_lost,
                **({"weights_identical": one.identical} if one.identical is not None else {}),
                "moves": one.found.all_moves,
            },
            without={
                "kernel": {
                    "stall_ms": percentiles([one.without.stall.seconds * 1e3]),
                    "steps_lost": one.without.steps_lost,
                    "moves": 0,
                }
            }
            if one.without is not None
            else {},
            info={"fault": one.found.fault, "hold_s": one.act.hold_s, "demo_s": round(took_s, 1)},
        )
        for one in tried
    )
    return Bench("demo", commit(), machine(), spec.seed, rows)


def _joined(runs: Sequence[RunShown]) -> RunShown:
    """A job that was started anew is shown as one."""
    first = runs[0]
    return RunShown(
        [end for one in runs for end in one.ends_s],
        [took for one in runs for took in one.took_s],
        [loss for one in runs for loss in one.losses],
        first.median_s,
    )


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3


def _seconds(acts: Sequence[Act]) -> float:
    return sum(act.hold_s for act in acts)


def number_word(count: int) -> str:
    words = ("No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten", "Eleven", "Twelve")
    return words[count] if count < len(words) else str(count)


def _shape(fabric: Fabric) -> str:
    tiers = [node.tier for node in fabric.switches]
    parts = [f"{len(fabric.hosts)} hosts", f"{tiers.count(1)} leaves", f"{tiers.count(2)} spines"]
    return ", ".join(part for part in parts if not part.startswith("0 "))
