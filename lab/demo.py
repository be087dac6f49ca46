"""The demo: a job is trained across a fabric that breaks in a row of ways, with linkpass and without.

    outcome = run(spec, screen)

Three runs of the same training: with a daemon on every host while the fabric breaks, with the kernel alone under the
same faults, and undisturbed. The weights of the first have to be those of the third, bit for bit. Measuring is
`lab.trial`'s, showing is the screen's; this file says what is done in which order.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from lab.bench.shape import encode
from lab.daemons import DaemonSpec
from lab.demo_plan import BOUND_S, Act, DemoSpec, Outcome, Played, Tried
from lab.demo_story import figures_of, first_difference, identical_by, story_of
from lab.errors import LabError
from lab.job import Job, JobSpec, Loopback
from lab.netns import processes, removal, state
from lab.netns.lab import NetnsLab, UpReport
from lab.report import page
from lab.steps import RankLog, steps_lost, weights_identical
from lab.telling import Line, Teller
from lab.trial import JOB_STEPS, Injection, Live, Trial

HASH_EVERY = 10
OWNER = "demo.owner"


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

    def healed(self, act: Act, live: Live) -> None: ...

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


def _with_linkpass(spec: DemoSpec, screen: Screen, lab: NetnsLab) -> Played:
    screen.chapter(1, "With linkpass", "one daemon on every host moves the traffic", _seconds(spec.acts))
    screen.waits("starting the daemons, and PyTorch on every host")
    daemons = DaemonSpec(mode="act", tcp_timers=True, realtime=True, record=True, topology=spec.topology)
    return _play(spec, screen, lab, daemons, list(spec.acts))


def _without(spec: DemoSpec, screen: Screen, lab: NetnsLab) -> Played:
    acts = [act for act in spec.acts if act.without]
    screen.chapter(2, "Without linkpass", "the same faults, the kernel alone", _seconds(acts))
    screen.waits("starting the job again, without daemons")
    return _play(spec, screen, lab, None, acts)


def _play(spec: DemoSpec, screen: Screen, lab: NetnsLab, daemons: DaemonSpec | None, acts: list[Act]) -> Played:
    job = JobSpec(preset="demo", steps=JOB_STEPS, seed=spec.seed, hash_every=HASH_EVERY)
    folder = lab.run_dir / ("with" if daemons else "without")
    found = []
    with Trial(lab, folder, daemons, job=job, seed=spec.seed, bound_s=BOUND_S) as trial:
        done_s = 0.0
        for number, act in enumerate(acts, 1):
            watch = _Watch(screen, trial, act, (number, len(acts)), done_s)
            one = trial.inject(act.case, hold_s=act.hold_s, wait_return=act.wait_return, watch=watch)
            found.append((act, one))
            watch.tell()
            done_s += act.hold_s
            screen.progress(done_s, trial.job)
            screen.judged(act, one, trial.job.steps)
        trial.job.stop(multiple_of=HASH_EVERY)
        notes = tuple(trial.notes)
    return Played(tuple(found), tuple(trial.jobs), notes)


class _Watch:
    """Passes on what happens during one injection."""

    def __init__(self, screen: Screen, trial: Trial, act: Act, place: tuple[int, int], done_s: float) -> None:
        self._screen, self._trial, self._act = screen, trial, act
        self._place, self._done_s = place, done_s
        self._teller: Teller | None = None

    def __call__(self, moment: str, live: Live) -> None:
        if moment == "injected":
            assert live.injected_at_s is not None
            self._teller = Teller(live.injected_at_s)
            self._screen.broken(*self._place, live)
        elif moment == "undone":
            self._sum_up("moved")
            self._screen.healed(self._act, live)
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


def _seconds(acts: Sequence[Act]) -> float:
    return sum(act.hold_s for act in acts)


# what is made of it
def _finish(spec: DemoSpec, ours: Played, theirs: Played | None, reference: list[RankLog], took_s: float) -> Outcome:
    identical = weights_identical(ours.job.ranks, reference)
    broke_at = first_difference(ours.job.ranks, reference)
    others = {act.case.name: one for act, one in theirs.found} if theirs else {}
    tried = tuple(
        Tried(act, one, identical_by(ours.job, one, broke_at, identical=identical), others.get(act.case.name))
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
    story = story_of(spec, tried, ours, theirs, reference, notes, identical=identical)
    pages, figures = spec.out / "index.html", spec.out / "figures.json"
    pages.write_text(page(story), encoding="utf-8")
    figures.write_bytes(encode(figures_of(spec, tried, took_s)))
    return Outcome(
        tried, identical, story.weights, ours.job.steps, lost, ours.job.median_step_s(), pages, figures, ours.notes
    )
