"""How long a job trains under one schedule of faults: with torchpass, torchrun's restarts, torchft, and without faults.

(a) `none`: stock DDP without faults; it lasts as long as the schedule. (b) `restart`: torchrun, checkpoints at the best
interval. (c) `torchft`. (d) `linkpass`. One run an arm: the same job, machine, moments and ranks, and all steps.
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.bench import shape
from lab.bench.reroute import Progress
from lab.bench.shape import Bench, Metrics, Row, Target, percentiles
from lab.errors import LabError
from lab.goodput.arms import ARMS, WORLD, Arm
from lab.goodput.schedule import EVERY_S, KINDS, Event, length_s, schedule
from lab.goodput.story import Cost, Story

NAME = "goodput"
CASES = ("none", "restart", "torchft", "linkpass")
PROBE_STEPS = 30
POLL_S = 0.1
LONGEST = 6.0
"""Times the length without faults: an arm that is not done by then is given up."""


@dataclass(frozen=True, slots=True)
class Plan:
    """`n`: events of each kind. `arms`: besides `none`, which all are compared with."""

    n: int = 3
    seed: int = 0
    arms: tuple[str, ...] = CASES

    @property
    def total(self) -> float:
        """Seconds, about."""
        return length_s(self.n) * (1 + 1.7 * len([arm for arm in self.arms if arm != "none"]))


@dataclass(frozen=True, slots=True)
class Ran:
    """One arm's run. `struck`: when each event was, monotonic."""

    arm: str
    story: Story
    struck: tuple[tuple[float, Event], ...]
    complete: bool

    def cost(self, number: int) -> Cost:
        at_s = self.struck[number][0]
        until_s = self.struck[number + 1][0] if number + 1 < len(self.struck) else math.inf
        return self.story.cost(at_s, min(until_s, self.story.whole[-1][0] + 1.0))


def run(plan: Plan, tell: Progress, folder: Path | None = None) -> Bench:
    """Raises LabError when an arm cannot start, or the job without faults does not end."""
    with tempfile.TemporaryDirectory(prefix="goodput-") as made:
        place = folder or Path(made)
        tell("how long a step and a checkpoint take", 0.0)
        step_s, save_s = probe(place)
        steps = round(length_s(plan.n) / step_s)
        # Young's first-order optimum, for one fault each EVERY_S.
        every = max(1, round(math.sqrt(2 * save_s * EVERY_S) / step_s))
        events = schedule(plan.n, plan.seed, WORLD)
        ran: dict[str, Ran] = {}
        for name in CASES:
            if name == "none" or name in plan.arms:
                told = {"GOODPUT_EVERY": str(every)} if name == "restart" else {}
                arm = ARMS[name](place / name, steps, told)
                done_s = length_s(plan.n) * (1.7 * len(ran))
                ran[name] = follow(arm, () if name == "none" else events, lambda words, at_s=done_s: tell(words, at_s))
        info = {"steps": steps, "step_s": round(step_s, 4), "checkpoint_s": round(save_s, 3), "checkpoint_every": every,
                "events": [f"{event.at_s:.1f} s {event.kind} rank {event.rank}" for event in events]}  # fmt: skip
        return shape.check(Bench(NAME, shape.commit(), shape.machine(), plan.seed, tuple(rows(ran, plan, info))))


def probe(place: Path) -> tuple[float, float]:
    """(a step's usual time, a checkpoint's), both in s, on this machine now."""
    told = follow(ARMS["none"](place / "probe", PROBE_STEPS, {"GOODPUT_PROBE": "1"}), (), lambda words: None).story
    if not told.saved_s:
        raise LabError("no checkpoint was written", f"see {place / 'probe'}")
    return told.step_s, statistics.median(told.saved_s)


def follow(arm: Arm, events: Sequence[Event], tell: Any) -> Ran:
    """Run an arm to its end, or to where it is given up."""
    left, struck = list(events), []
    started_s = time.monotonic()
    try:
        arm.start()
        first_s = 0.0
        while not arm.over():
            arm.turn()
            arm.check()
            now_s = time.monotonic()
            told = arm.reader.story
            if not first_s and told.whole:
                first_s = told.whole[0][0]
            if not first_s and now_s - started_s > 120.0:
                raise LabError(f"{arm.name}: no step within two minutes: {arm.said()}", f"see {arm.folder}")
            if first_s and left and now_s - first_s >= left[0].at_s:
                event = left.pop(0)
                struck.append((time.monotonic(), event))
                arm.strike(event)
            step = told.whole[-1][1] if told.whole else 0
            tell(f"{arm.name}: step {step} of {arm.steps}, {len(struck)} events")
            if first_s and now_s - first_s > LONGEST * (events[-1].at_s if events else 300.0):
                return Ran(arm.name, told, tuple(struck), complete=False)
            time.sleep(POLL_S)
        if arm.name == "none":
            for process in arm.processes.values():
                process.wait(30.0)
        return Ran(arm.name, arm.reader.update(), tuple(struck), complete=True)
    finally:
        arm.close()


def rows(ran: dict[str, Ran], plan: Plan, info: dict[str, Any]) -> list[Row]:
    none = ran["none"].story
    made = []
    for name, one in ran.items():
        told = info if name == "none" else {"complete": one.complete}
        told = {**told, "took_s": round(one.story.took_s, 2)}
        made.append(Row(name, len(one.struck), _whole(one, none), {}, told))
    for kind in KINDS:
        found = {name: _costs(one, kind) for name, one in ran.items() if name != "none"}
        mine = found.pop("linkpass", {})
        each = {name: _each(one, kind) for name, one in ran.items() if name != "none"}
        made.append(Row(kind, plan.n, mine, found, {"each": each}))
    return made


def _whole(one: Ran, none: Story) -> Metrics:
    hashes = set(one.story.hashes.values())
    return {
        "time_ratio": round(one.story.took_s / none.took_s, 4),
        "overhead_ratio": round(one.story.step_s / none.step_s, 4),
        "steps_lost": one.story.steps_lost,
        "weights_identical": one.complete and hashes == set(none.hashes.values()) and len(hashes) == 1,
    }


def _of_kind(one: Ran, kind: str) -> list[Cost]:
    return [one.cost(number) for number, (_, event) in enumerate(one.struck) if event.kind == kind]


def _costs(one: Ran, kind: str) -> Metrics:
    costs = _of_kind(one, kind)
    if not costs:
        return {}
    return {
        "pause_s": percentiles(cost.pause_s for cost in costs),
        "recover_s": percentiles(cost.recover_s for cost in costs),
        "steps_lost": sum(cost.steps_lost for cost in costs),
    }


def _each(one: Ran, kind: str) -> list[dict[str, float]]:
    return [{"pause_s": round(cost.pause_s, 3), "recover_s": round(cost.recover_s, 3)} for cost in _of_kind(one, kind)]


def behind(bench: Bench) -> list[str]:
    """Arms that were faster than linkpass."""
    times = {row.case: row.metrics["time_ratio"] for row in bench.rows if "time_ratio" in row.metrics}
    mine = times.get("linkpass")
    return [
        f"{name} took {shape.text_of(ratio)} times as long as without faults, linkpass {shape.text_of(mine)}"
        for name, ratio in times.items()
        if mine is not None and name not in ("none", "linkpass") and float(ratio) <= float(mine)  # type: ignore[arg-type]
    ]


def targets(bench: Bench) -> list[Target]:
    del bench
    return [
        Target("linkpass", "time_ratio", "", "<=", 1.15),
        Target("linkpass", "steps_lost", "", "==", 0.0),
        Target("linkpass", "weights_identical", "", "==", 1.0),
        Target("planned", "pause_s", "p50", "<=", 0.15),
        Target("planned", "pause_s", "p95", "<=", 0.5),
        Target("crash", "recover_s", "p50", "<=", 2.0),
        Target("crash", "recover_s", "p95", "<=", 3.0),
        Target("freeze", "recover_s", "p50", "<=", 2.0),
        Target("freeze", "recover_s", "p95", "<=", 3.0),
    ]
