"""The cases of the bench, and one trial of each: always the same for the same fabric, case, number and seed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from lab.sim import fabrics
from lab.sim.faults import FAULT_KINDS, Fault, FaultKind, apart, draw
from lab.sim.trial import Score, Setup, run, setup
from lab.sim.watch import Watch, watch

Trial = tuple[list[Fault], dict[str, Score]]
SOFT: tuple[FaultKind, ...] = ("direction", "link", "nic", "host", "leaf", "spine")
HEALTHY = "512x2"
FULL_N, FULL_HOURS = 200, 24.0
TOGETHER = 10
"""Trials that one process does at a time."""
HOUR_TRIALS = 40.0
"""An hour of watching takes as long as so many trials."""


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
    "kind": Case(SOFT, (1.0, 0.05), 0.1, 2.0),
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
        watching = HOUR_TRIALS * self.hours if "healthy" in self.rows else 0.0
        return len(self.fabrics) * sum(map(self.trials, wide)) + watching


@dataclass(frozen=True, slots=True)
class Part:
    """What one process does at a time: some trials of a row, by number, or an hour of watching."""

    row: str
    fabric: str
    case: str
    numbers: range
    hours: float = 0.0


def parts_of(plan: Plan) -> list[Part]:
    parts = [
        Part(f"{case}-{fabric}", fabric, case, range(first, min(first + TOGETHER, plan.trials(case))))
        for fabric in plan.fabrics
        for case in plan.rows
        if case != "healthy"
        for first in range(0, plan.trials(case), TOGETHER)
    ]
    if "healthy" in plan.rows:
        hours = [(hour, min(1.0, plan.hours - hour)) for hour in range(math.ceil(plan.hours))]
        parts += [Part(f"healthy-{HEALTHY}", HEALTHY, "healthy", range(hour, hour + 1), of) for hour, of in hours]
    return parts


def done(part: Part, seed: int) -> list[Trial] | Watch:
    """A part, perhaps in a process of its own. The same wherever it is done."""
    made = _setup(part.fabric, seed)
    if part.case == "healthy":
        return watch(made, part.hours, (seed, part.numbers.start))
    return [trial(made, part.case, number, seed) for number in part.numbers]


@lru_cache(maxsize=1)
def _setup(fabric: str, seed: int) -> Setup:
    return setup("healthy", seed, make=fabrics.healthy) if fabric == HEALTHY else setup(fabric, seed)


def trial(made: Setup, case: str, number: int, seed: int) -> Trial:
    """One injection of a case."""
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
