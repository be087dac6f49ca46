"""A healthy fabric for hours: noise, and links that are congested for a while. Whoever is named is falsely accused."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from lab.sim.baselines import bouncing, lifted, voting
from lab.sim.trial import BASELINES, Setup
from lab.sim.weather import Weather
from linkpass.core.diagnosis.localise import Localiser, certain

WINDOW_S = 2.0
CHANGE_S = 600.0
"""After that another link is congested, or none."""
EPOCH_S = 60.0
"""What the baselines are given at a time."""


@dataclass(slots=True)
class Watch:
    hours: float
    accused: dict[str, set[str]] = field(default_factory=dict)
    """By whom -> `element at minute`: an accusation is counted once while it stands."""
    inference_s: list[float] = field(default_factory=list)
    congested: int = 0
    congestion_named: int = 0


def watch(made: Setup, hours: float, seed: Sequence[int]) -> Watch:
    """`seed`: of the hours that are watched."""
    chance = np.random.default_rng((*seed, 13))
    paths, seen = made.traffic.paths, Watch(hours, {name: set() for name in ("linkpass", *BASELINES)})
    weather, localiser = Weather(made.traffic, chance), Localiser(paths)
    localiser.window(weather.steady())
    sent, lost = np.zeros(len(paths)), np.zeros(len(paths))
    standing: set[str] = set()
    crowded, named = "", False
    for number in range(1, round(hours * 3600 / WINDOW_S) + 1):
        if number % round(CHANGE_S / WINDOW_S) == 1:
            crowded, named = _change(made, weather, chance), False
            seen.congested += bool(crowded)
        window = weather.window(WINDOW_S)
        began_s = time.thread_time()
        verdicts = localiser.window(window)
        seen.inference_s.append(time.thread_time() - began_s)
        accused = {verdict.element for verdict in certain(verdicts)}
        seen.accused["linkpass"] |= {f"{element} at {number}" for element in accused - standing}
        standing = accused
        if not named and any(one.kind == "congestion" and one.element == crowded for one in verdicts):
            named, seen.congestion_named = True, seen.congestion_named + 1
        quiet = 1.0 - window.queued if window.queued is not None else 1.0
        sent += window.sent * quiet
        lost += window.lost * quiet
        if number % round(EPOCH_S / WINDOW_S) == 0:
            for name in BASELINES:
                votes = name == "007"
                bad = voting(paths, made.believed, sent, lost) if votes else bouncing(paths, made.blocks, sent, lost)
                seen.accused[name] |= {f"{paths.elements.names[x]} at {number}" for x in lifted(paths, bad)}
            sent[:] = lost[:] = 0.0
    return seen


def _change(made: Setup, weather: Weather, chance: np.random.Generator) -> str:
    if chance.random() < 0.5:
        weather.congested = np.zeros(0, dtype=np.intp)
        return ""
    direction = int(chance.integers(2 * len(made.traffic.routes.lower)))
    weather.congest(direction)
    return made.traffic.paths.elements.names[direction]
