"""Whether what fails is named, in simulated fabrics whose truth is known, beside two published ways to localise.

Rows are `CASE-FABRIC`. Right is the element, or the class of elements that no observation tells apart; accuracy counts
the trials in which all faults and nothing else are named, by the first word in the single cases, after five seconds in
`multi`. `inference_s` is CPU time of one update. See `lab.sim` for what is drawn and how.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import groupby
from multiprocessing import get_context
from typing import Any

from lab.bench import shape
from lab.bench.reroute import Progress
from lab.bench.shape import Bench, Metrics, Row, Target, percentiles
from lab.sim.cases import HOUR_TRIALS, Part, Plan, Trial, done, parts_of
from lab.sim.trial import BASELINES, Score
from lab.sim.watch import Watch

NAME = "localize"


def run_bench(plan: Plan, tell: Progress, workers: int = 1) -> Bench:
    """In so many processes, if there is work for them."""
    parts, do = parts_of(plan), partial(done, seed=plan.seed)
    if workers == 1 or len(parts) == 1:
        rows = list(_rows(plan, parts, map(do, parts), tell))
    else:
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
            rows = list(_rows(plan, parts, pool.map(do, parts), tell))
    return shape.check(Bench(NAME, shape.commit(), shape.machine(), plan.seed, tuple(rows)))


def _rows(plan: Plan, parts: Sequence[Part], results: Iterable[list[Trial] | Watch], tell: Progress) -> Iterator[Row]:
    tell(parts[0].row, 0.0)
    so_far = 0.0
    for row, group in groupby(zip(parts, results, strict=True), key=lambda pair: pair[0].row):
        trials: list[Trial] = []
        watched: list[Watch] = []
        for part, result in group:
            if isinstance(result, Watch):
                watched.append(result)
                so_far += HOUR_TRIALS * part.hours
            else:
                trials += result
                so_far += len(result)
            tell(row, so_far)
        yield _healthy(row, plan.n, watched) if watched else row_of(row, trials)


def row_of(case: str, trials: Sequence[Trial]) -> Row:
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


def confusion(trials: Sequence[Trial]) -> dict[str, int]:
    """`truth > verdict` -> how often, by kind."""
    short = {"direction": "link", "leaf": "switch", "spine": "switch"}
    found: Counter[str] = Counter()
    for faults, scores in trials:
        truth = short.get(faults[0].kind, faults[0].kind)
        told = [short.get(kind, kind) for kind in scores["linkpass"].kinds] or ["nothing"]
        found.update(f"{truth} > {kind}" for kind in told)
    return dict(sorted(found.items()))


def _missed(trials: Sequence[Trial]) -> list[dict[str, Any]]:
    return [
        {
            "trial": number,
            "faults": [f"{fault.kind} {fault.element} {fault.loss:g}" for fault in faults],
            "named": scores["linkpass"].told,
        }
        for number, (faults, scores) in enumerate(trials)
        if not scores["linkpass"].exact
    ][:20]


def _healthy(case: str, n: int, watched: Sequence[Watch]) -> Row:
    """The hours of a row, each watched by a localiser of its own."""
    accused = {name: sum(len(one.accused[name]) for one in watched) for name in ("linkpass", *BASELINES)}
    inference_s = [seconds for one in watched for seconds in one.inference_s]
    metrics: Metrics = {"false_accusations": accused["linkpass"], "inference_s": percentiles(inference_s)}
    info = {
        "hours": round(sum(one.hours for one in watched), 2),
        "congested": sum(one.congested for one in watched),
        "congestion_named": sum(one.congestion_named for one in watched),
        "accused": sorted(name for one in watched for name in one.accused["linkpass"])[:20],
    }
    return Row(case, n, metrics, {name: {"false_accusations": accused[name]} for name in BASELINES}, info)


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
