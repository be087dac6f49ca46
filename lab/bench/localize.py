"""Whether what fails is named, in simulated fabrics whose truth is known, beside two published ways to localise.

Rows are `CASE-FABRIC`. Right is the element, or the class of elements that no observation tells apart; accuracy counts
the trials in which all faults and nothing else are named, by the first word in the single cases, after five seconds in
`multi`. See `lab.sim` for what is drawn and how.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lab.bench import shape
from lab.bench.reroute import Progress
from lab.bench.shape import Bench, Metrics, Row, Target, percentiles
from lab.sim import fabrics
from lab.sim.faults import FAULT_KINDS, Fault, FaultKind, apart, draw
from lab.sim.trial import BASELINES, Score, Setup, run, setup
from lab.sim.watch import watch

NAME = "localize"
SOFT: tuple[FaultKind, ...] = ("direction", "link", "nic", "host", "leaf", "spine")
HEALTHY = "512x2"
FULL_N, FULL_HOURS = 200, 24.0


@dataclass(frozen=True, slots=True)
class Case:
    """`kinds` take turns, and so do `losses`; a bucket's and large packets' fault always loses all. `part` of N is
    run."""

    kinds: tuple[FaultKind, ...]
    losses: tuple[float, ...]
    span_s: float
    limit_s: float
    most: int = 1
    part: float = 1.0


CASES: dict[str, Case] = {
    "single-hard": Case(FAULT_KINDS, (1.0,), 0.1, 2.0),
    "single-1pct": Case(SOFT, (0.01,), 0.5, 5.0),
    "multi": Case(FAULT_KINDS, (1.0, 0.05, 0.01), 1.0, 5.0, most=8),
    "kind": Case(("direction", "link", "nic", "host", "leaf", "spine"), (1.0, 0.05), 0.1, 2.0),
    "info-single-permille": Case(SOFT, (0.001,), 2.0, 60.0, part=0.25),
    "healthy": Case((), (), 2.0, 0.0),
}


@dataclass(frozen=True, slots=True)
class Plan:
    """`n`: trials of each row; the healthy fabric is watched for 24 hours when there are FULL_N, else for less."""

    n: int = FULL_N
    seed: int = 0
    rows: tuple[str, ...] = tuple(CASES)
    fabrics: tuple[str, ...] = tuple(fabrics.FABRICS)

    def trials(self, case: str) -> int:
        return max(1, round(self.n * CASES[case].part))

    @property
    def hours(self) -> float:
        return FULL_HOURS * self.n / FULL_N

    @property
    def total(self) -> float:
        """In trials; an hour of watching counts as many as take as long."""
        wide = [case for case in self.rows if case != "healthy"]
        watching = 40 * self.hours if "healthy" in self.rows else 0.0
        return len(self.fabrics) * sum(map(self.trials, wide)) + watching


def run_bench(plan: Plan, tell: Progress) -> Bench:
    rows = list(_rows(plan, tell))
    return shape.check(Bench(NAME, shape.commit(), shape.machine(), plan.seed, tuple(rows)))


def _rows(plan: Plan, tell: Progress) -> Iterator[Row]:
    done = 0.0
    for fabric in plan.fabrics:
        wide = [case for case in plan.rows if case != "healthy"]
        made = setup(fabric, plan.seed) if wide else None
        for case in wide:
            assert made is not None
            trials = []
            for number in range(plan.trials(case)):
                tell(f"{case}-{fabric}: {number + 1} of {plan.trials(case)}", done)
                trials.append(trial(made, case, number, plan.seed))
                done += 1
            yield row_of(f"{case}-{fabric}", trials)
    if "healthy" in plan.rows:
        yield _healthy(plan, tell, done)


def trial(made: Setup, case: str, number: int, seed: int) -> tuple[list[Fault], dict[str, Score]]:
    """One injection of a case: always the same for the same fabric, case, number and seed."""
    what = CASES[case]
    chance = np.random.default_rng((seed, list(CASES).index(case), number))
    faults: list[Fault] = []
    wanted = 1 if what.most == 1 else 2 + number % (what.most - 1)
    while len(faults) < wanted:
        turn = number if what.most == 1 else int(chance.integers(1000))
        kind = what.kinds[turn % len(what.kinds)]
        loss = what.losses[turn // len(what.kinds) % len(what.losses)]
        fault = draw(made.traffic, kind, 1.0 if kind in ("bucket", "large") else loss, chance)
        if apart(fault, faults):
            faults.append(fault)
    first = what.most == 1
    return faults, run(made, faults, chance, span_s=what.span_s, limit_s=what.limit_s, first_word=first)


def row_of(case: str, trials: Sequence[tuple[list[Fault], dict[str, Score]]]) -> Row:
    scores = {name: [by[name] for _, by in trials] for name in ("linkpass", *BASELINES)}
    info: dict[str, Any] = {"missed": _missed(trials)}
    metrics = _metrics(scores["linkpass"])
    if case.startswith("kind"):
        info["confusion"] = confusion(trials)
        metrics["switches_as_hosts"] = sum(
            count for key, count in info["confusion"].items() if key.startswith("switch > host")
        )
    return Row(case, len(trials), metrics, {name: _metrics(scores[name]) for name in BASELINES}, info)


def _metrics(scores: Sequence[Score]) -> Metrics:
    named, right = sum(one.named for one in scores), sum(one.right for one in scores)
    metrics: Metrics = {
        "accuracy_ratio": sum(one.exact for one in scores) / len(scores),
        "precision_ratio": right / named if named else 0.0,
        "recall_ratio": sum(one.found for one in scores) / sum(one.faults for one in scores),
        "false_accusations": named - right,
    }
    if times := [seconds for one in scores for seconds in one.times_s]:
        metrics["time_to_name_s"] = percentiles(times)
    if inference := [seconds for one in scores for seconds in one.inference_s]:
        metrics["inference_s"] = percentiles(inference)
    if classes := [size for one in scores for size in one.classes]:
        metrics["class_size_ratio"] = sum(size == 1 for size in classes) / len(classes)
    return metrics


def confusion(trials: Sequence[tuple[list[Fault], dict[str, Score]]]) -> dict[str, int]:
    """`truth > verdict` -> how often, by kind."""
    short = {"direction": "link", "leaf": "switch", "spine": "switch"}
    found: Counter[str] = Counter()
    for faults, scores in trials:
        truth = short.get(faults[0].kind, faults[0].kind)
        told = [short.get(kind, kind) for kind in scores["linkpass"].kinds] or ["nothing"]
        found.update(f"{truth} > {kind}" for kind in told)
    return dict(sorted(found.items()))


def _missed(trials: Sequence[tuple[list[Fault], dict[str, Score]]]) -> list[dict[str, Any]]:
    return [
        {
            "trial": number,
            "faults": [f"{fault.kind} {fault.element} {fault.loss:g}" for fault in faults],
            "named": scores["linkpass"].told,
        }
        for number, (faults, scores) in enumerate(trials)
        if not scores["linkpass"].exact
    ][:20]


def _healthy(plan: Plan, tell: Progress, done: float) -> Row:
    made = setup("healthy", plan.seed, make=fabrics.healthy)
    seen = watch(made, plan.hours, plan.seed, lambda hours: tell(f"healthy: {hours:.1f} h", done + 40 * hours))
    accused = {name: {"false_accusations": len(found)} for name, found in seen.accused.items()}
    metrics: Metrics = {**accused.pop("linkpass"), "inference_s": percentiles(seen.inference_s)}
    info = {
        "hours": round(seen.hours, 2),
        "congested": seen.congested,
        "congestion_named": seen.congestion_named,
        "accused": sorted(seen.accused["linkpass"])[:20],
    }
    return Row(f"healthy-{HEALTHY}", plan.n, metrics, {name: {**counts} for name, counts in accused.items()}, info)


def targets(bench: Bench) -> list[Target]:
    """Those of a row's case, and in all rows with faults no worse than either baseline."""
    found: list[Target] = []
    for row in bench.rows:
        case = row.case
        if case.startswith("info-"):
            continue
        if case.startswith("healthy"):
            found.append(Target(case, "false_accusations", "", "==", 0))
            continue
        if case.startswith("single-hard"):
            found.append(Target(case, "accuracy_ratio", "", ">=", 0.995))
        if case.startswith("single-1pct"):
            found.append(Target(case, "accuracy_ratio", "", ">=", 0.98))
        if case.startswith("multi"):
            found += [Target(case, f"{name}_ratio", "", ">=", 0.97) for name in ("precision", "recall")]
        if case.startswith("kind"):
            found.append(Target(case, "accuracy_ratio", "", ">=", 0.99))
            found.append(Target(case, "switches_as_hosts", "", "==", 0))
        found.append(Target(case, "class_size_ratio", "", ">=", 0.95))
        found.append(Target(case, "inference_s", "p99", "<=", 0.2))
    return found


def behind(bench: Bench) -> list[str]:
    """Rows in which a baseline is better, in words."""
    told = []
    for row in bench.rows:
        for name, metrics in row.without.items():
            for metric in ("accuracy_ratio", "precision_ratio", "recall_ratio"):
                ours, theirs = shape.figure(row.metrics, metric), shape.figure(metrics, metric)
                if ours is not None and theirs is not None and theirs > ours:
                    told.append(f"{row.case}: {metric} is {ours:.4g}, {name} has {theirs:.4g}")
    return told
