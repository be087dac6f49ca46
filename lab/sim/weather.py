"""What is seen of a fabric, window by window: noise, faults, a congested link, and evidence besides the paths."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lab.sim.faults import Fault
from lab.sim.traffic import Traffic
from linkpass.core.diagnosis.localise import Window

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]
NOISE_RATIO = 1e-5
"""Loss of a healthy direction."""
CONGESTED_LOSS, SEEN_RATIO, FALSELY_RATIO = 0.005, 0.97, 1e-3
"""Loss over a congested link; how often a path over it, and another, seems to queue in a window."""
STUCK_PER_S = 20.0
"""Packets of a flow that gets nothing through: retransmissions."""
STEADY_S = 14.4
"""Seconds of windows that a memory with a half-life of ten seconds holds."""


class Weather:
    """`faults` begin with the first `window`; `steady` is what a memory held before."""

    def __init__(self, traffic: Traffic, chance: np.random.Generator, faults: Sequence[Fault] = ()) -> None:
        self.traffic, self.chance, self.faults = traffic, chance, list(faults)
        self.lengths = (traffic.directions >= 0).sum(axis=1)
        self.noise = np.cumsum(traffic.rate * self.lengths * NOISE_RATIO)
        self.phase = chance.random(len(traffic.rate))
        self.elapsed_s = 0.0
        self.congested: Ints = np.zeros(0, dtype=np.intp)

    def congest(self, direction: int) -> None:
        self.congested = np.flatnonzero((self.traffic.directions == direction).any(axis=1))

    def steady(self) -> Window:
        sent = np.round(self.traffic.rate * STEADY_S)
        return Window(0.0, sent, self._noise(STEADY_S, sent))

    def window(self, span_s: float) -> Window:
        """The next window."""
        due = self.traffic.rate * self.elapsed_s + self.phase
        sent = np.floor(due + self.traffic.rate * span_s) - np.floor(due)
        first = self.elapsed_s == 0.0
        self.elapsed_s += span_s
        for fault in self.faults:
            if fault.loss > 0.5:
                stuck = fault.rows[self.traffic.flow[fault.rows]]
                sent[stuck] = np.minimum(sent[stuck], np.ceil(STUCK_PER_S * span_s))
        lost = self._noise(span_s, sent)
        for fault in self.faults:
            self._lose(sent, lost, fault.rows, fault.loss)
        self._lose(sent, lost, self.congested, CONGESTED_LOSS)
        hints = tuple(fault.hint for fault in self.faults if fault.hint and first)
        return Window(span_s, sent, lost, self._queues(), hints)

    def _noise(self, span_s: float, sent: Floats) -> Floats:
        lost = np.zeros(len(sent))
        count = int(self.chance.poisson(self.noise[-1] * span_s))
        rows = np.searchsorted(self.noise, np.sort(self.chance.random(count)) * self.noise[-1])
        np.add.at(lost, rows, 1.0)
        return np.minimum(lost, sent)

    def _lose(self, sent: Floats, lost: Floats, rows: Ints, ratio: float) -> None:
        if rows.size:
            lost[rows] += self.chance.binomial((sent[rows] - lost[rows]).astype(np.int64), ratio)

    def _queues(self) -> Floats:
        queued = np.zeros(len(self.phase))
        count = int(self.chance.poisson(len(queued) * FALSELY_RATIO))
        queued[self.chance.integers(0, len(queued), count)] = 1.0
        queued[self.congested] = self.chance.random(len(self.congested)) < SEEN_RATIO
        return queued
