"""A fabric, its daemons and a job, held so that faults can be tried on them one after another and measured.

    with Trial(lab, folder, DaemonSpec(tcp_timers=True)) as trial:
        found = trial.inject(CASES["blackhole-both"])

One injection: the daemons forget the past, a link that carries the job's bytes is chosen, broken, held, healed; then
the job settles. What the fabric did is read from a capture in the fabric, what the job did from its own logs, what
the daemons did from their journals. All times are monotonic seconds.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from lab import cases
from lab.bucket import bucket_of
from lab.capture import Capture, Flow, Sightings
from lab.cases import Case, Place
from lab.daemons import Daemons, DaemonSpec
from lab.errors import LabError
from lab.injection import BEFORE_S, Injection, Live, judge
from lab.job import Job, JobSpec
from lab.netns.breaker import ActiveFault
from lab.netns.lab import NetnsLab
from lab.steps import steps_lost
from lab.tuner import Tuner

TICK_S = 0.05
TAKE_S = 2.0
SENT_LOOKS, SENT_LOOK_S = 4, 0.01
SETTLE_S = 20.0
RETURN_S = 120.0
START_S = 180.0
JOB_STEPS = 10_000_000
"""Never reached: jobs are ended by whoever tries them."""


__all__ = ["JOB_STEPS", "Injection", "Live", "Trial", "Watch"]

Watch = Callable[[str, Live], None]
"""Called with `chosen`, `injected`, `holding` (again and again), `undone`, `settled`, `returned`."""


class Trial:
    """`daemons` None: the kernel alone; with `timers` (least µs, greatest ms) its job has tuned timers all the same.

    `bound_s`: how long a job may need to go on after a fault; one that needs longer is started anew, and its stall so
    far stands as a lower bound."""

    def __init__(
        self,
        lab: NetnsLab,
        run_dir: Path,
        daemons: DaemonSpec | None,
        *,
        timers: tuple[int, int] | None = None,
        job: JobSpec | None = None,
        seed: int = 0,
        bound_s: float = 10.0,
    ) -> None:
        self.lab = lab
        self.run_dir = run_dir
        self.daemons = Daemons(lab, daemons) if daemons is not None else None
        self.jobs: list[Job] = []
        self.notes: list[str] = []
        self._spec = job or JobSpec(steps=JOB_STEPS)
        self._timers = timers
        self._bound_s = bound_s
        self._chance = random.Random(seed)
        self._last: dict[str, str] = {}
        self._capture = Capture.of(lab)
        self._stack = ExitStack()
        self._job_started_s = 0.0

    # life
    def __enter__(self) -> Trial:
        try:
            if self.daemons is not None:
                self._stack.enter_context(self.daemons)
                self.daemons.start().wait_ready(START_S)
            self._stack.enter_context(self._capture)
            self._stack.callback(self._close_jobs)
            self.start_job()
        except BaseException as error:
            self._stack.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stack.__exit__(kind, error, tb)

    @property
    def job(self) -> Job:
        return self.jobs[-1]

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(host.name for host in self.lab.fabric.hosts)

    @property
    def job_age_s(self) -> float:
        return time.monotonic() - self._job_started_s

    def start_job(self) -> None:
        """Start the job (again) and wait until it runs and the daemons look after it. LabError when it does not."""
        self._close_jobs()
        job = Job(self.lab, self.hosts, self.run_dir / f"job{len(self.jobs)}", self._spec)
        self.jobs.append(job)
        job.start().wait_steps(20, START_S)
        self._job_started_s = time.monotonic()
        if self._timers is not None:
            with Tuner(self.lab, self.run_dir, *self._timers) as tuner:
                tuner.tune()
        if self.daemons is not None:
            self.daemons.wait_for(self._attends, SETTLE_S + START_S, "look after the job")
        self.settle()

    def settle(self) -> bool:
        """The daemons forget the past and find everything good, and the job makes steps. False: not within the time."""
        fine = True
        if self.daemons is not None:
            self.daemons.clear()
            try:
                self.daemons.wait_for(self._is_whole, SETTLE_S, "find everything good")
            except LabError as error:
                self.daemons.check()
                self.notes.append(str(error))
                fine = False
        return self.job.settle(time.monotonic(), self._bound_s) and fine

    # trying
    def inject(
        self, case: Case, *, hold_s: float | None = None, wait_return: bool = False, watch: Watch | None = None
    ) -> Injection:
        """Break, hold, heal, settle. `wait_return`: give the daemons time to bring the traffic back by themselves.

        Raises LabError when the job or a daemon dies, or no link carries the job."""
        if self.daemons is not None:
            self.daemons.clear()
        self._capture.watch()
        time.sleep(BEFORE_S)
        seen = self._capture.take()
        place = self._choose(case, seen)
        only, bucket = self._bucket(case, place, seen)
        fault = cases.fault_of(case, place, self.lab.fabric, bucket=bucket, orders=self.daemons is not None)
        live = Live(case, place, str(fault) if fault is not None else f"drain {place.link}")
        tell = watch or _nobody
        tell("chosen", live)
        looks = SENT_LOOKS if fault is None else 1
        lost_before, sent_before = steps_lost(self.job.ranks), self._sent_again(looks)
        active: ActiveFault | None = None
        started_s = time.monotonic()
        try:
            if fault is None:
                self._order("/drain", place)
            else:
                active = self.lab.fault(fault)
                started_s = active.injected_at_s
            live.injected_at_s = started_s
            tell("injected", live)
            self._hold(started_s + (hold_s or case.hold_s), seen, watch, live)
        finally:
            sent_after = self._sent_again(looks)
            ended_s = live.undone_at_s = time.monotonic()
            if active is not None:
                active.undo()
            elif live.injected_at_s is not None:
                self._order("/undrain", place)
        tell("undone", live)
        recovered = self.job.settle(ended_s, self._bound_s)
        stall = self.job.stall(started_s, time.monotonic())
        tell("settled", live)
        if wait_return:
            self._wait_return(seen, watch, live)
            tell("returned", live)
        self._capture.pause()
        seen.add(self._capture.take())
        notes = self._after(recovered=recovered)
        entries = tuple(self.daemons.journal(started_s)) if self.daemons is not None else ()
        job = self.jobs[-1] if recovered else self.jobs[-2]
        return judge(
            live, seen, only, job.ranks, stall=stall, recovered=recovered, waited=wait_return, entries=entries,
            # One from before may turn out needless only now: that takes nothing from this fault's.
            retransmissions=max(0, sent_after - sent_before),
            steps_lost=steps_lost(job.ranks) - lost_before, notes=notes,
            host_address=self.lab.address(place.host) if place.host else "", job=self.jobs.index(job),
        )  # fmt: skip

    def quiet(self, for_s: float = cases.HOLD_S) -> tuple[float, int]:
        """What an undisturbed job does in the time of a fault: its longest stall (s), segments sent again."""
        before, started_s = self._sent_again(SENT_LOOKS), time.monotonic()
        time.sleep(for_s)
        stall = self.job.stall(started_s, time.monotonic())
        return stall.seconds, max(0, self._sent_again(SENT_LOOKS) - before)

    # inside
    def _sent_again(self, looks: int = 1) -> int:
        """Segments that had to be sent again so far, by all hosts. A needless one is known as such only when its
        receiver has answered: several looks see none too many."""
        found = []
        for number in range(looks):
            time.sleep(SENT_LOOK_S if number else 0.0)
            found.append(sum(count.needed for count in self.lab.sent_again().values()))
        return min(found)

    def _choose(self, case: Case, seen: Sightings) -> Place:
        rates = seen.rates(BEFORE_S)
        place = cases.choose(case, self.lab.fabric, rates, self._chance, self._last.get(case.name, ""))
        self._last[case.name] = place.link
        return place

    def _bucket(self, case: Case, place: Place, seen: Sightings) -> tuple[Collection[Flow] | None, int]:
        """Of a `bucket` fault: the bucket that carries most bytes, and its flows."""
        if "{bucket}" not in case.fault:
            return None, 1
        size: Counter[int] = Counter()
        flows: dict[int, set[Flow]] = {}
        for s in seen.seen:
            if s.direction in place.broken:
                number = bucket_of(s.flow.source, s.flow.target, s.label, cases.BUCKETS)
                size[number] += s.size_bytes
                flows.setdefault(number, set()).add(s.flow)
        if not size:
            raise LabError(f"{case.name}: no packet of the job on {place.where}", "does the job run?")
        number = size.most_common(1)[0][0]
        return flows[number], number

    def _order(self, url: str, place: Place) -> None:
        """A host's link is its own matter and its peers'; for a link of the fabric the operators' host tells all."""
        assert self.daemons is not None
        self.daemons.post(place.host or self.hosts[0], url, link=place.link, everywhere=not place.host)

    def _hold(self, until_s: float, seen: Sightings, watch: Watch | None, live: Live) -> None:
        take_s = time.monotonic() + TAKE_S
        while (now_s := time.monotonic()) < until_s:
            if now_s >= take_s:
                seen.add(self._capture.take())
                take_s = now_s + TAKE_S
            if watch is not None:
                watch("holding", live)
            time.sleep(max(0.0, min(TICK_S if watch is not None else TAKE_S, until_s - time.monotonic())))

    def _wait_return(self, seen: Sightings, watch: Watch | None, live: Live) -> None:
        if self.daemons is None:
            return
        end_s = time.monotonic() + RETURN_S
        while time.monotonic() < end_s:
            if all(self._is_whole(host) for host in self.hosts):
                self._hold(time.monotonic() + BEFORE_S, seen, watch, live)  # the first packets on the old path
                return
            self._hold(time.monotonic() + 2 * BEFORE_S, seen, watch, live)
        self.notes.append(f"{live.fault}: the traffic was not back after {RETURN_S:g} s")

    def _after(self, *, recovered: bool) -> tuple[str, ...]:
        """Make ready for the next one; what has to be said about this one."""
        before = len(self.notes)
        if not recovered:
            self.notes.append(f"the job did not go on within {self._bound_s:g} s after the fault and was started anew")
            self.start_job()
        else:
            self.settle()
        return tuple(self.notes[before:])

    def _attends(self, host: str) -> bool:
        """A daemon knows the job's peers, has labels for them and has found its sockets."""
        assert self.daemons is not None
        view = self.daemons.view(host)
        active = [peer for peer in view["peers"] if peer["active"]]
        steered = all(peer["labels"] or not _wants_labels(view, peer) for peer in active)
        tuned = not self.daemons.spec.tcp_timers or view["tcp_timers"]["tuned"] > 0
        return bool(active) and steered and tuned and self._is_whole(host, view)

    def _is_whole(self, host: str, view: dict[str, Any] | None = None) -> bool:
        assert self.daemons is not None
        view = view or self.daemons.view(host)
        whole = all(link["state"] in ("up", "unknown") and not link["drained"] for link in view["links"])
        ports = all(uplink["state"] in ("up", "unknown") for uplink in view["uplinks"])
        return whole and ports and self.daemons.is_settled(host, view)

    def _close_jobs(self) -> None:
        for job in self.jobs:
            job.close()
            job.update()


def _nobody(moment: str, live: Live) -> None:
    del moment, live


def _wants_labels(view: dict[str, Any], peer: dict[str, Any]) -> bool:
    return bool(view["rungs"]["1"]["armed"] and peer["steerable"]["rung1"])
