"""What torchpass costs a job that is well: its steps beside stock DDP's, and what each part of it takes of the machine.

The same job in turns: with torchpass, with stock DDP, and with stock DDP whose C library is told by the environment to
keep freed memory, as torchpass has it done (`torchpass_bridge.memory`): that alone makes steps shorter.

Times of steps are worth as much as the machine is quiet; what the kernel counts for each thread (processor time, page
faults, context switches) is not so easily disturbed, and says where the time goes. All of it is per step, and of all
processes of a part together.
"""

from __future__ import annotations

import bisect
import itertools
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lab.bench import shape
from lab.bench.reroute import Progress
from lab.bench.shape import Bench, Metrics, Row, Target, percentiles
from lab.errors import LabError
from lab.goodput.accounts import Part, Spent, between, book, children
from lab.goodput.arms import START_S, WORLD, Arm, Linkpass, Undisturbed
from lab.goodput.story import Story

NAME = "healthy"
STEPS: Final = 60
FIRST: Final = 10
"""Steps before anything is counted: memory, buckets and kernels are made in them."""
LAST: Final = 3
"""Steps after it."""
POLL_S: Final = 0.25
STEP_S: Final = 0.35
"""About, for the bar of progress."""
PARTS: Final[dict[str, Part]] = {"main-threads": "main", "beside-threads": "torchpass", "other-threads": "others"}
"""Of the ranks, by the rows' names."""
ARMS: Final = ("linkpass", "stock", "stock-kept")
T_95: Final = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 9: 2.26, 11: 2.20, 19: 2.09, 29: 2.05, 39: 2.02}
"""Student's t for a two-sided interval, by degrees of freedom; others as the next smaller one."""


@dataclass(frozen=True, slots=True)
class Plan:
    """`n`: rounds, each with one run of every arm."""

    n: int = 5
    seed: int = 0
    steps: int = STEPS

    @property
    def total(self) -> float:
        """Seconds, about."""
        return len(ARMS) * self.n * (self.steps * STEP_S + 8.0)


@dataclass(frozen=True, slots=True)
class Ran:
    """One run. `parts`: what each took of the machine in a step, `took_s` of the clock; `ranks`: pages that each rank's
    training thread was given in a step."""

    step_s: float
    took_s: float
    parts: dict[str, Spent]
    ranks: tuple[int, ...]
    hash: str


def run(plan: Plan, tell: Progress, folder: Path | None = None) -> Bench:
    """Raises LabError when a run cannot start, or a process of it ends."""
    rounds: list[dict[str, Ran]] = []
    with tempfile.TemporaryDirectory(prefix="healthy-") as made:
        place = folder or Path(made)
        for number in range(plan.n):
            ran: dict[str, Ran] = {}
            turn = number % len(ARMS)  # each is first as often
            for name in (*ARMS[turn:], *ARMS[:turn]):
                done = len(ARMS) * number + len(ran)
                tell(f"round {number + 1} of {plan.n}: {name}", done * plan.total / (len(ARMS) * plan.n))
                ran[name] = follow(_arm(name, place / f"{name}{number}", plan.steps))
            rounds.append(ran)
    return shape.check(Bench(NAME, shape.commit(), shape.machine(), plan.seed, tuple(rows(rounds, plan))))


def _arm(name: str, folder: Path, steps: int) -> Arm:
    if name == "linkpass":
        return Linkpass(folder, steps, spares=0)
    from torchpass_bridge.memory import KEPT_BYTES, MMAP_BYTES

    kept = {"MALLOC_TRIM_THRESHOLD_": str(KEPT_BYTES), "MALLOC_MMAP_THRESHOLD_": str(MMAP_BYTES)}
    return Undisturbed(folder, steps, kept if name == "stock-kept" else None)


def follow(arm: Arm) -> Ran:
    """Run it to its end, and count from its step FIRST on."""
    try:
        arm.start()
        _until(arm, FIRST)
        ranks = [arm.processes[f"h{rank}"].pid for rank in range(WORLD)]
        helpers = {
            name: [process.pid, *children(process.pid)] for name, process in arm.processes.items()
            if name in ("coordinator", "store")
        }  # fmt: skip
        pids = [*ranks, *(pid for found in helpers.values() for pid in found)]
        before, began_s = book(pids), time.monotonic()
        _until(arm, arm.steps - LAST)
        after, ended_s = book(pids), time.monotonic()
        while not arm.over():
            arm.check()
            time.sleep(POLL_S)
        spent, story = between(before, after), arm.reader.story
        steps = _at(story, ended_s) - _at(story, began_s)
        parts = {
            name: _sum([spent[pid].get(part, Spent()) for pid in ranks]).over(steps) for name, part in PARTS.items()
        } | {
            name: _sum([one for pid in found for one in spent.get(pid, {}).values()]).over(steps)
            for name, found in helpers.items()
        }  # fmt: skip
        faults = tuple(round(spent[pid]["main"].faults / steps) for pid in ranks)
        ends = [at_s for at_s, _ in story.whole if began_s <= at_s <= ended_s]
        step_s = statistics.median(b - a for a, b in itertools.pairwise(ends))
        return Ran(step_s, (ended_s - began_s) / steps, parts, faults, "".join(sorted(set(story.hashes.values()))))
    finally:
        arm.close()


def _until(arm: Arm, step: int) -> None:
    """All ranks have applied so many steps."""
    until_s = time.monotonic() + START_S
    while True:
        whole = arm.reader.update().whole
        if whole and whole[-1][1] + 1 >= step:
            return
        arm.check()
        if not whole and time.monotonic() > until_s:
            raise LabError(f"{arm.name}: no step within {START_S:g} s: {arm.said()}", f"see {arm.folder}")
        time.sleep(POLL_S)


def _at(story: Story, at_s: float) -> float:
    """How many steps were done then, with the share of the one under way."""
    ends = [end_s for end_s, _ in story.whole]
    number = bisect.bisect_right(ends, at_s)
    return number + (at_s - ends[number - 1]) / (ends[number] - ends[number - 1])


def _sum(spent: Sequence[Spent]) -> Spent:
    return sum(spent, Spent())


def rows(rounds: Sequence[dict[str, Ran]], plan: Plan) -> list[Row]:
    ran = {name: [one[name] for one in rounds] for name in ARMS}
    mine = ran["linkpass"]
    whole: Metrics = {
        "step_ms": _step_ms(mine),
        "weights_identical": len({o.hash for of in ran.values() for o in of}) == 1,
    }
    info: dict[str, Any] = {"steps": plan.steps, "world": WORLD}
    for name, words in (("stock", "longer"), ("stock-kept", "longer_than_kept")):
        ratios = [one["linkpass"].step_s / one[name].step_s - 1 for one in rounds]
        whole[f"{words}_ratio"] = round(statistics.fmean(ratios), 4)
        info[f"{words}_each"] = [round(ratio, 4) for ratio in ratios]
        if len(ratios) > 1:  # of a single round nothing is known but what it was
            mean, half = interval(ratios)
            whole[f"{words}_at_most_ratio"] = round(mean + half, 4)
            info[f"{words}_at_least"] = round(mean - half, 4)
    others = {name: ran[name] for name in ARMS if name != "linkpass"}
    made = [Row("step", len(rounds), whole, {name: {"step_ms": _step_ms(of)} for name, of in others.items()}, info)]
    for name in ("job", *PARTS, "coordinator", "store"):
        theirs = {other: _metrics(of, name) for other, of in others.items() if name == "job" or name in of[0].parts}
        faults = {f"faults_of_each_rank, {arm}": [one.ranks for one in of] for arm, of in ran.items()}
        made.append(Row(name, len(rounds), _metrics(mine, name), theirs, faults if name == "main-threads" else {}))
    return made


def _step_ms(ran: Sequence[Ran]) -> shape.Times:
    return percentiles(1e3 * one.step_s for one in ran)


def _metrics(ran: Sequence[Ran], name: str) -> Metrics:
    """Of a step; faults and switches by their median over the runs. `core_ratio`: of one core, of what is done by the
    clock and not by steps (statuses) the better measure: on a busy machine steps take longer."""
    spent = [_sum(list(one.parts.values())) if name == "job" else one.parts[name] for one in ran]
    return {
        "core_ratio": round(
            statistics.median(one.cpu_ms / 1e3 / its.took_s for one, its in zip(spent, ran, strict=True)), 4
        ),
        "cpu_ms": percentiles(one.cpu_ms for one in spent),
        "faults": round(statistics.median(one.faults for one in spent)),
        "waits": round(statistics.median(one.waits for one in spent)),
        "taken_off": round(statistics.median(one.taken for one in spent)),
    }


def interval(values: Sequence[float]) -> tuple[float, float]:
    """(mean, half of its 95 % interval), of two values and more."""
    free = len(values) - 1
    student = T_95[max(known for known in T_95 if known <= free)]
    return statistics.fmean(values), student * statistics.stdev(values) / len(values) ** 0.5


def targets(bench: Bench) -> list[Target]:
    del bench
    return [
        Target("step", "longer_than_kept_at_most_ratio", "", "<=", 0.005),
        Target("step", "weights_identical", "", "==", 1.0),
    ]
