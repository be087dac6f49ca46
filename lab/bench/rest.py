"""What a daemon costs when nothing happens, how soon it knows its paths, and whether it is ever wrong.

The shipped default configuration with only what a lab has to set (prefixes, peers, names, key, mode, files). Then both
cores are kept busy for ten minutes: a starved daemon must not blame the fabric.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.bench import shape
from lab.bench.reroute import Progress, built
from lab.bench.shape import Bench, Metrics, Row, Target, percentiles
from lab.daemons import Daemons, DaemonSpec
from lab.job import Job, JobSpec
from lab.netns.lab import NetnsLab
from lab.trial import JOB_STEPS, START_S
from linkpass.config import Config
from topology.model import Fabric

NAME = "rest"
CALM_S = 30.0
"""How long CPU time is counted for."""
PER_CORE = 2
"""Busy processes on each core."""
PIECE_S = 1.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

SHIPPED = DaemonSpec(mode="act", extra={"metrics": {"listen": Config().metrics.listen}})


@dataclass(frozen=True, slots=True)
class Plan:
    """`n`: starts that are timed; `stress_s`: how long both cores are busy; half as long again with a job."""

    n: int = 10
    seed: int = 0
    stress_s: float = 600.0
    calm_s: float = CALM_S

    @property
    def job_s(self) -> float:
        return min(self.stress_s / 5, 120.0)

    @property
    def total(self) -> int:
        return round(self.n + 2 * self.calm_s + self.stress_s + self.job_s)


def run(fabric: Fabric, plan: Plan, tell: Progress, *, name: str, folder: Path | None = None) -> Bench:
    """Raises LabError when a daemon or the job dies."""
    with built(fabric, name, folder) as lab, Daemons(lab, SHIPPED) as daemons:
        daemons.start().wait_ready(START_S)
        daemons.wait_settled(START_S)
        starts = []
        for number in range(plan.n):
            tell(f"start {number + 1} of {plan.n}", number)
            starts.append(_start_once(daemons, daemons.hosts[number % len(daemons.hosts)]))
        daemons.wait_settled(START_S)
        done_s = float(plan.n)
        tell("at rest", done_s)
        calm = _spend(daemons, plan.calm_s)
        done_s += plan.calm_s
        moved = daemons.moves
        with stress() as processes:
            pressed = _follow(daemons, plan.stress_s, tell, "both cores busy", done_s)
        done_s += plan.stress_s
        rest = Row(
            "rest",
            len(daemons.hosts),
            {**calm.metrics, "start_s": percentiles(starts), "false_moves": daemons.moves - moved},
            {},
            {**calm.info, "starts": len(starts), "stress_s": plan.stress_s, "busy_processes": processes, **pressed},
        )
        return shape.check(
            Bench(NAME, shape.commit(), shape.machine(), plan.seed, (rest, _with_job(lab, daemons, plan, tell, done_s)))
        )


def _with_job(lab: NetnsLab, daemons: Daemons, plan: Plan, tell: Progress, done_s: float) -> Row:
    """The same daemons while a job runs, which makes them probe fast; then with both cores busy, too."""
    tell("with a job: starting it", done_s)
    with Job(lab, daemons.hosts, lab.run_dir / "job", JobSpec(steps=JOB_STEPS, seed=plan.seed)) as job:
        job.start().wait_steps(20, START_S)
        daemons.wait_settled(START_S)
        moved = daemons.moves
        tell("with a job", done_s)
        busy = _spend(daemons, plan.calm_s)
        with stress():
            pressed = _follow(daemons, plan.job_s, tell, "with a job, both cores busy", done_s + plan.calm_s)
        job.update()
        job.check()
        info = {**busy.info, "median_step_ms": round(job.median_step_s() * 1e3, 2), "stress_s": plan.job_s, **pressed}
        return Row(
            "info-with-job", len(daemons.hosts), {**busy.metrics, "false_moves": daemons.moves - moved}, {}, info
        )


@dataclass(frozen=True, slots=True)
class Spent:
    metrics: Metrics
    info: dict[str, Any]


def _spend(daemons: Daemons, for_s: float) -> Spent:
    """CPU time and memory of all daemons over a time in which nobody asks them anything."""
    before = {host: _usage(daemons, host) for host in daemons.hosts}
    time.sleep(for_s)
    after = {host: _usage(daemons, host) for host in daemons.hosts}
    ratios = [(after[h][1] - before[h][1]) / (after[h][0] - before[h][0]) for h in daemons.hosts]
    memory = [after[host][2] for host in daemons.hosts]
    return Spent(
        {"cpu_ratio": round(max(ratios), 4), "rss_bytes": max(memory)},
        {"cpu_ratio_mean": round(statistics.fmean(ratios), 4), "rss_bytes_mean": round(statistics.fmean(memory)),
         "calm_s": for_s},
    )  # fmt: skip


def _usage(daemons: Daemons, host: str) -> tuple[float, float, int]:
    """(monotonic s, CPU s, resident bytes), read from /proc: asking the daemon would cost it time."""
    process = Path("/proc", str(daemons.processes[host].pid))
    fields = (process / "stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    pages = int((process / "statm").read_text().split()[1])
    return time.monotonic(), ticks / _TICKS_PER_S, pages * _PAGE_BYTES


def _start_once(daemons: Daemons, host: str) -> float:
    """Start one daemon beside the others: from the start of its process to its first verdict on a path."""
    daemons.stop_one(host)
    started_s = time.monotonic()
    daemons.start_one(host)
    daemons.wait_for_one(host, lambda _: _first_verdict_s(daemons, host) is not None, START_S, "judge a path")
    return (_first_verdict_s(daemons, host) or 0.0) - started_s


def _first_verdict_s(daemons: Daemons, host: str) -> float | None:
    found: float | None = daemons.view(host)["first_verdict_at_s"]
    return found


def _follow(daemons: Daemons, for_s: float, tell: Progress, what: str, done_s: float) -> Mapping[str, Any]:
    """Let time pass; what was decided meanwhile."""
    since_s = time.monotonic()
    while (passed_s := time.monotonic() - since_s) < for_s:
        tell(what, done_s + passed_s)
        daemons.check()
        time.sleep(min(PIECE_S, for_s - passed_s))
    entries = daemons.journal(since_s)
    return {
        "moves_in_journal": [f"{one.host}: {one.what} ({one.why})" for one in entries if one.is_move],
        "entries_in_journal": len(entries),
        "silences": sum(one.what.endswith(" is silent") for one in entries),
    }


@contextmanager
def stress() -> Iterator[int]:
    """Keep all cores busy; how many processes do."""
    count = PER_CORE * shape.machine().cores
    with ExitStack() as stack:
        for _ in range(count):
            process = subprocess.Popen([sys.executable, "-c", "while True: pass"], stdin=subprocess.DEVNULL)
            stack.callback(process.wait)
            stack.callback(process.kill)
        yield count


def targets(bench: Bench) -> list[Target]:
    del bench
    return [
        Target("rest", "cpu_ratio", "", "<=", 0.04),
        Target("rest", "rss_bytes", "", "<=", 70e6),
        Target("rest", "start_s", "max", "<=", 1.0),
        Target("rest", "false_moves", "", "==", 0.0),
    ]
