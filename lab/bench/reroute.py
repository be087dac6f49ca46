"""How fast a training job gets off a failing link: with linkpass, and without it.

Columns of a row: linkpass with the job's TCP timers tuned (`reroute_ms`, `stall_ms`), untuned (`stall_untuned_ms`) and
with `rto_min` on the routes (`stall_rtomin_ms`); the kernel alone, whose TCP picks another flow label when it has to
send again (`kernel`), and the same with tuned timers (`kernel-timers`). All of a bench's jobs train alike, so one
undisturbed run tells what their weights should be. `retransmissions` leaves out what an undisturbed job sends again,
too: tail loss probes whose segment had arrived (`lab.netns.traffic.SentAgain`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab.bench import shape
from lab.bench.shape import Bench, Metrics, Row, Target, percentiles
from lab.cases import CASES
from lab.daemons import DaemonSpec
from lab.injection import Injection
from lab.job import JobSpec, undisturbed
from lab.netns.lab import NetnsLab
from lab.steps import RankLog, weights_identical
from lab.trial import JOB_STEPS, Trial
from linkpass.config import Config
from topology.model import Fabric

NAME = "reroute"
HASH_EVERY = 50
JOB_S = 90.0
"""A job that ran for so long is ended before the next injection: the undisturbed run goes as far as the longest."""
BOUND_S = 10.0
"""So long after a fault the job is given to go on; then it is started anew, and its stall counts as that long."""
CHANCE_OF_RETURN = 10
"""One in so many flaps is followed until the traffic is back: damping makes that last up to a minute."""

ROWS: dict[str, str] = {
    "carrier-out": "carrier", "carrier-in": "carrier", "blackhole-both": "blackhole-both",
    "blackhole-oneway": "blackhole-oneway", "blackhole-hostleaf": "blackhole-hostleaf", "bucket": "bucket",
    "loss-5pct": "loss-5pct", "flap": "flap", "drain": "drain", "rate-cut": "rate-cut", "largepackets": "largepackets",
}  # fmt: skip
"""Row -> the case of `lab.cases` that is injected for it. One loss of carrier serves two rows."""

TIMERS = (Config().tcp_timers.rto_min_us, Config().tcp_timers.rto_max_ms)
RTO_MIN_MS = 5


@dataclass(frozen=True, slots=True)
class Setup:
    """One way to run the job. `timers`: tuned by the lab, because no daemon is there to do it."""

    name: str
    daemons: DaemonSpec | None = None
    timers: tuple[int, int] | None = None


TUNED = Setup("linkpass", DaemonSpec(realtime=True, tcp_timers=True))
UNTUNED = Setup("linkpass, timers untuned", DaemonSpec(realtime=True))
RTO_MIN = Setup("linkpass, rto_min", DaemonSpec(realtime=True, rto_min_ms=RTO_MIN_MS))
PLAIN = Setup("linkpass, not realtime", DaemonSpec(realtime=False, tcp_timers=True))
KERNEL = Setup("kernel")
KERNEL_TIMERS = Setup("kernel-timers", timers=TIMERS)
BASELINES = (KERNEL, KERNEL_TIMERS)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a bench does. `rows`: some of ROWS."""

    n: int = 10
    seed: int = 0
    rows: tuple[str, ...] = tuple(ROWS)
    setups: tuple[Setup, ...] = (TUNED, PLAIN, UNTUNED, RTO_MIN, *BASELINES)
    least: int = 3
    """Injections of a case without linkpass, at least."""

    @property
    def cases(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(ROWS[row] for row in self.rows))

    def count(self, setup: Setup, case: str) -> int:
        """Injections of a case in a setup."""
        if setup is TUNED:
            return self.n
        if setup in BASELINES:
            return max(self.least, self.n // 3)
        if setup is PLAIN:
            return max(2, self.n // 5) if case == "blackhole-both" else 0
        share = 5 if setup is UNTUNED else 10  # no target hangs on the others
        return 0 if case in ("flap", "drain", "rate-cut") else max(1, self.n // share)

    @property
    def quiet(self) -> int:
        """Undisturbed stretches that are measured, to know what the machine alone does to a step."""
        return max(2, self.n // 3)

    @property
    def total(self) -> int:
        """Seconds of faults: what the progress bar counts."""
        return round(sum(self.count(setup, one) * CASES[one].hold_s for setup in self.setups for one in self.cases))


@dataclass(slots=True)
class Found:
    """What was measured in one setup."""

    injections: list[Injection] = field(default_factory=list)
    jobs: list[Sequence[RankLog]] = field(default_factory=list)
    """Logs by the number of the job that an injection tells."""
    quiet: list[tuple[float, int]] = field(default_factory=list)

    def of(self, case: str) -> list[Injection]:
        return [one for one in self.injections if one.case == case]


Progress = Callable[[str, float], None]
"""What is done now, and how many seconds of faults lie behind."""


def run(fabric: Fabric, plan: Plan, tell: Progress, *, name: str, folder: Path | None = None) -> Bench:
    """Build the lab, try everything, take it down. Raises LabError when the job or a daemon dies."""
    found: dict[str, Found] = {}
    with built(fabric, name, folder) as lab:
        done_s = 0.0
        for setup in plan.setups:
            if any(plan.count(setup, case) for case in plan.cases):
                found[setup.name], done_s = _try(lab, plan, setup, tell, done_s)
        tell("the undisturbed run", done_s)
        reference = _reference(lab, found)
        return shape.check(
            Bench(NAME, shape.commit(), shape.machine(), plan.seed, tuple(rows(plan, found, reference)))
        )  # fmt: skip


def _try(lab: NetnsLab, plan: Plan, setup: Setup, tell: Progress, done_s: float) -> tuple[Found, float]:
    """All cases in one setup; what was measured, and how many seconds of faults lie behind."""
    tell(f"{setup.name}: starting the job", done_s)
    found = Found()
    folder = lab.run_dir / setup.name.replace(", ", "-").replace(" ", "-")
    spec = JobSpec(steps=JOB_STEPS, hash_every=HASH_EVERY)
    with Trial(lab, folder, setup.daemons, timers=setup.timers, job=spec, seed=plan.seed, bound_s=BOUND_S) as trial:
        if setup is TUNED:
            found.quiet = [trial.quiet() for _ in range(plan.quiet)]
        for case in plan.cases:
            count = plan.count(setup, case)
            for number in range(count):
                back = setup is TUNED and case == "flap" and number % CHANCE_OF_RETURN == 0
                if trial.job_age_s > (JOB_S / 3 if back else JOB_S):
                    trial.start_job()
                tell(f"{setup.name}: {case} {number + 1} of {count}", done_s)
                found.injections.append(trial.inject(CASES[case], wait_return=back))
                done_s += CASES[case].hold_s
    found.jobs = [job.ranks for job in trial.jobs]
    return found, done_s


@contextmanager
def built(fabric: Fabric, name: str, folder: Path | None = None) -> Iterator[NetnsLab]:
    lab = NetnsLab(fabric, name=name, run_dir=folder)
    lab.up()
    try:
        yield lab
    finally:
        lab.down()


def rows(plan: Plan, found: dict[str, Found], reference: Sequence[RankLog]) -> Iterator[Row]:
    tuned = found[TUNED.name]
    for row in plan.rows:
        ours = tuned.of(ROWS[row])
        metrics = metrics_of(row, ours, tuned, reference)
        info: dict[str, Any] = {**info_of(ours), "realtime": True, "tcp_timers_us_ms": list(TIMERS)}
        columns = [(tuned, ours)]
        for setup, metric in ((UNTUNED, "stall_untuned_ms"), (RTO_MIN, "stall_rtomin_ms")):
            if setup.name in found and (others := found[setup.name].of(ROWS[row])):
                columns.append((found[setup.name], others))
                metrics[metric] = percentiles(one.stall.seconds * 1e3 for one in others)
                info[f"{metric}_n"] = len(others)
        metrics["steps_lost"] = sum(one.steps_lost for _, column in columns for one in column)
        metrics["weights_identical"] = all(_identical(measured, column, reference) for measured, column in columns)
        without: dict[str, Metrics] = {}
        for setup in (one for one in BASELINES if one.name in found):
            theirs = found[setup.name].of(ROWS[row])
            without[setup.name] = metrics_of(row, theirs, found[setup.name], reference)
            info[f"{setup.name}_n"] = len(theirs)
            info[f"{setup.name}_endless"] = sum(not one.recovered or one.stall.seconds > 2.5 for one in theirs)
        yield Row(row, len(ours), metrics, without, info)
    if PLAIN.name in found:
        ours = found[PLAIN.name].of("blackhole-both")
        metrics = metrics_of("blackhole-both", ours, found[PLAIN.name], reference)
        yield Row("info-no-realtime", len(ours), metrics, {}, {**info_of(ours), "realtime": False})
    quiet: Metrics = {
        "stall_ms": percentiles(stall_s * 1e3 for stall_s, _ in tuned.quiet),
        "retransmissions": sum(count for _, count in tuned.quiet),
    }
    yield Row("info-undisturbed", len(tuned.quiet), quiet, {}, {"what": "the same job and daemons without a fault"})


def metrics_of(row: str, ours: Sequence[Injection], found: Found, reference: Sequence[RankLog]) -> Metrics:
    """One column of one row. A flow that found no other way counts with the fault's whole time: a lower bound."""
    metrics: Metrics = {
        "reroute_ms": percentiles(reroutes_ms(row, ours)),
        "stall_ms": percentiles(one.stall.seconds * 1e3 for one in ours),
        "steps_lost": sum(one.steps_lost for one in ours),
        "weights_identical": _identical(found, ours, reference),
        "moves": sum(one.moves for one in ours),
    }
    if row == "loss-5pct":
        metrics["off_link_ms"] = percentiles(
            1e3 * (one.off_link_s if one.off_link_s is not None else one.undone_at_s - one.injected_at_s)
            for one in ours
        )
    if row == "flap":
        metrics["packets_on_bad_link"] = sum(one.packets_on_bad_link for one in ours)
        if returns := [one.return_s for one in ours if one.waited and one.return_s is not None]:
            metrics["return_s"] = percentiles(returns)
    if row == "rate-cut" and (ratios := [one.step_ratio for one in ours if one.step_ratio is not None]):
        metrics["step_ratio"] = round(statistics.median(ratios), 3)
        metrics["worst_step_ratio"] = round(max(ratios), 3)
    if row == "drain":
        metrics["retransmissions"] = sum(one.retransmissions for one in ours)
    return metrics


def reroutes_ms(row: str, ours: Sequence[Injection]) -> list[float]:
    """Of the injections that hit any flow of the row's kind."""
    found = []
    for one in ours:
        which = {"carrier-out": one.out, "carrier-in": one.into}.get(row)
        affected, first_s = (one.affected, one.reroute_s) if which is None else (which.affected, which.first_s)
        if affected:
            found.append(1e3 * (one.undone_at_s - one.injected_at_s if first_s is None else first_s))
    return found


def info_of(ours: Sequence[Injection]) -> dict[str, Any]:
    """What stands behind a row, for whoever asks why."""
    return {
        "median_step_ms": round(max(one.median_step_s for one in ours) * 1e3, 2),
        "stalls_over_50_ms_most": max(one.stalls for one in ours),
        "moves_of_all_daemons": sum(one.all_moves for one in ours),
        "moves_of_one_daemon_most": max(one.moves for one in ours),
        "flows_affected": sum(one.affected for one in ours),
        "flows_moved": sum(one.moved for one in ours),
        "retransmissions": sum(one.retransmissions for one in ours),
        "injections": [
            {
                "fault": one.fault,
                "reroute_ms": _ms(one.reroute_s),
                "all_rerouted_ms": _ms(one.rerouted_s),
                "off_link_ms": _ms(one.off_link_s),
                "stall_ms": _ms(one.stall.seconds),
                "stall_at_ms": _ms(one.stall.at_s - one.injected_at_s),
                "moves": one.moves,
                **({"return_s": round(one.return_s, 3)} if one.waited and one.return_s is not None else {}),
                **({"stall_at_return_ms": _ms(one.back_stall_s)} if one.waited else {}),
                **({"step_ratio": round(one.step_ratio, 2)} if one.case == "rate-cut" and one.step_ratio else {}),
                **({"notes": list(one.notes)} if one.notes else {}),
            }
            for one in ours
        ],
    }


def targets(bench: Bench) -> list[Target]:
    """The figures that rows are held to."""
    found: list[Target] = []
    for row in bench.rows:
        if row.case not in ROWS:
            continue
        wanted = [*_TARGETS[row.case], ("steps_lost", "", "==", 0.0), ("weights_identical", "", "==", 1.0)]
        if row.case == "flap":
            wanted.append(("moves", "", "<=", 2.0 * row.n))
        found += [Target(row.case, metric, stat, how, value) for metric, stat, how, value in wanted]  # type: ignore[arg-type]
    return found


def behind(bench: Bench) -> list[str]:
    """Where a baseline is as good as linkpass in the 99th percentile, in words."""
    found = []
    for row in bench.rows:
        for name, theirs in row.without.items():
            for metric in ("reroute_ms", "stall_ms"):
                if row.case == "drain" and metric == "reroute_ms":
                    continue  # an order has no moment at which traffic must have left
                ours_ms, theirs_ms = (shape.figure(which, metric, "p99") or math.inf for which in (row.metrics, theirs))
                if ours_ms >= theirs_ms:
                    found.append(f"{row.case}: {metric} p99 {ours_ms:g} with linkpass, {theirs_ms:g} with {name}")
    return found


_STALL = (("stall_ms", "p50", "<=", 60.0), ("stall_ms", "p99", "<=", 120.0), ("stall_untuned_ms", "max", "<=", 350.0))
_SILENT = (("reroute_ms", "p50", "<=", 40.0), ("reroute_ms", "p99", "<=", 60.0), *_STALL)
_TARGETS: dict[str, tuple[tuple[str, str, str, float], ...]] = {
    "carrier-out": (("reroute_ms", "p50", "<=", 3.0), ("reroute_ms", "p99", "<=", 15.0), *_STALL),
    "carrier-in": (("reroute_ms", "p50", "<=", 10.0), ("reroute_ms", "p99", "<=", 60.0), *_STALL),
    "blackhole-both": _SILENT,
    "blackhole-oneway": _SILENT,
    "blackhole-hostleaf": _SILENT,
    "bucket": _SILENT,
    "loss-5pct": (("off_link_ms", "p99", "<=", 500.0), ("stall_ms", "p99", "<=", 150.0), _STALL[2]),
    "rate-cut": (("reroute_ms", "max", "<=", 1000.0), ("step_ratio", "", "<=", 1.2)),
    "largepackets": (("reroute_ms", "p50", "<=", 200.0), ("reroute_ms", "p99", "<=", 500.0)),
    "flap": (("packets_on_bad_link", "", "==", 0.0), *_STALL[:2]),
    "drain": (("stall_ms", "max", "<=", 20.0), ("retransmissions", "", "==", 0.0)),
}


def _reference(lab: NetnsLab, found: dict[str, Found]) -> list[RankLog]:
    longest = max(len(log.ends_s) for one in found.values() for job in one.jobs for log in job)
    steps = max(HASH_EVERY, longest // HASH_EVERY * HASH_EVERY)
    spec = JobSpec(steps=steps, hash_every=HASH_EVERY)
    return undisturbed(lab.run_dir / "undisturbed", len(lab.fabric.hosts), spec)


def _identical(found: Found, ours: Sequence[Injection], reference: Sequence[RankLog]) -> bool:
    return all(weights_identical(found.jobs[one.job], reference) is True for one in ours)


def _ms(value_s: float | None) -> float | None:
    return None if value_s is None else round(value_s * 1e3, 1)
