"""One injection: windows from the beginning of faults until they are named or time is over, and who was right."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from lab.sim.baselines import bouncing, lifted, voting
from lab.sim.fabrics import FABRICS
from lab.sim.faults import Fault
from lab.sim.routes import Routes
from lab.sim.traffic import Traffic, plan
from lab.sim.weather import Weather
from linkpass.core.diagnosis.elements import Elements
from linkpass.core.diagnosis.localise import Localiser, certain
from linkpass.core.diagnosis.verdict import Verdict
from topology.model import Fabric

SWAPPED_RATIO = 0.01
BASELINES = ("007", "netbouncer")


@dataclass(frozen=True, slots=True)
class Setup:
    """A fabric with its traffic, made once for many trials."""

    name: str
    traffic: Traffic
    believed: NDArray[np.intp]
    blocks: NDArray[np.intp]


def setup(name: str, seed: int, *, peers: int | None = None, make: Callable[[], Fabric] | None = None) -> Setup:
    """`peers` that each NIC probes: two in fabrics of eight rails, else eight (the budget is a host's)."""
    fabric = (make or FABRICS[name])()
    elements = Elements(fabric)
    routes = Routes(fabric, SWAPPED_RATIO, seed)
    traffic = plan(routes, elements, peers=peers or (2 if fabric.name.startswith("rail") else 8), seed=seed)
    believed = np.where(traffic.paths.holes[:, None], -1, traffic.directions)
    tiers = np.array([node.tier or 0 for node in fabric.nodes], dtype=np.intp)
    return Setup(name, traffic, believed, 10 * tiers[elements.source] + tiers[elements.target])


@dataclass(slots=True)
class Score:
    """Of one way to localise, in one trial. `named`: elements named; `right`: of these; `found`: faults found."""

    faults: int = 0
    named: int = 0
    right: int = 0
    found: int = 0
    exact: bool = False
    times_s: list[float] = field(default_factory=list)
    inference_s: list[float] = field(default_factory=list)
    classes: list[int] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)


def run(
    made: Setup, faults: Sequence[Fault], chance: np.random.Generator, *, span_s: float, limit_s: float,
    decoy: bool = True, first_word: bool = True, baselines: bool = True,
) -> dict[str, Score]:  # fmt: skip
    """`first_word`: what linkpass says first counts; else what it says at the limit.

    Baselines see all windows until then, without the paths on which a queue stood at the time: neither knows of
    congestion, and they are told when the faults began."""
    weather = Weather(made.traffic, chance, faults)
    localiser = Localiser(made.traffic.paths)
    if decoy:
        weather.congest(_elsewhere(made, faults, chance))
    localiser.window(weather.steady())
    mine = Score(len(faults))
    count = len(made.traffic.rate)
    sent, lost = np.zeros(count), np.zeros(count)
    times: dict[str, float] = {}
    said: tuple[Verdict, ...] = ()
    while weather.elapsed_s < limit_s - 1e-9:
        over = first_word and bool(said)
        window = weather.window(limit_s - weather.elapsed_s if over else span_s)  # the rest is the baselines' alone
        quiet = 1.0 if window.queued is None else 1.0 - window.queued
        sent += window.sent * quiet
        lost += window.lost * quiet
        if over:
            break
        began_s = time.thread_time()
        verdicts = localiser.window(window)
        mine.inference_s.append(time.thread_time() - began_s)
        said = certain(verdicts)
        for fault in faults:
            if any(fault.element in one.suspects for one in said):
                times.setdefault(fault.element, weather.elapsed_s)
    _score(mine, [one.suspects for one in said], faults)
    mine.times_s = list(times.values())
    mine.classes = [len(one.suspects) for one in said]
    mine.kinds = [one.kind for one in said]
    mine.told = [f"{one.kind} {'|'.join(one.suspects)} {one.scope} {one.nats:.0f}" for one in said]
    return {"linkpass": mine, **(_baselines(made, faults, sent, lost) if baselines else {})}


def _baselines(
    made: Setup, faults: Sequence[Fault], sent: NDArray[np.float64], lost: NDArray[np.float64]
) -> dict[str, Score]:
    """An element with the same paths as the right one is right: they have no evidence to tell them apart."""
    paths, scores = made.traffic.paths, {}
    for name in BASELINES:
        began_s = time.thread_time()
        if name == "007":
            named = voting(paths, made.believed, sent, lost)
        else:
            named = bouncing(paths, made.blocks, sent, lost)
        score = Score(len(faults), inference_s=[time.thread_time() - began_s])
        truth = {int(paths.marks[paths.elements.index[fault.element]]): fault.element for fault in faults}
        found = [
            truth.get(int(paths.marks[element]), paths.elements.names[element]) for element in lifted(paths, named)
        ]
        _score(score, [(element,) for element in found], faults)
        score.classes = [1] * len(found)
        scores[name] = score
    return scores


def _score(score: Score, named: Sequence[tuple[str, ...]], faults: Sequence[Fault]) -> None:
    truth = {fault.element for fault in faults}
    score.named = len(named)
    score.right = sum(bool(truth & set(suspects)) for suspects in named)
    score.found = sum(any(element in suspects for suspects in named) for element in truth)
    score.exact = score.named == score.right and score.found == len(faults)


def _elsewhere(made: Setup, faults: Sequence[Fault], chance: np.random.Generator) -> int:
    """A direction for the congestion that is no fault's."""
    taken = {int(direction) for fault in faults for direction in fault.directions}
    while True:
        direction = int(chance.integers(2 * len(made.traffic.routes.lower)))
        if direction not in taken:
            return direction
