"""What the paths have shown until now: a memory of each of them, which fades."""

from __future__ import annotations

import numpy as np

from linkpass.core.diagnosis.elements import Ints
from linkpass.core.diagnosis.paths import Flags, Floats

RESET_SENT = 2.0
"""Packets in a row that must be lost for the past of a path to be void."""
LEAST_LOST = 0.05
"""Less than that of a lost packet is forgotten."""


class Memory:
    """One number a path, halved every `half_life_s`: packets `sent` and `lost`; how often a queue was looked for and
    stood (`looked`, `queued`). `run`: packets in a row that were lost until now; it does not fade.

    A path that has fallen silent is judged by its silence alone, whatever it carried before: bad news needs no more
    than a few packets. A fault that is over fades with the memory."""

    def __init__(self, count: int, half_life_s: float) -> None:
        self.half_life_s = half_life_s
        self.sent, self.lost, self.run = np.zeros(count), np.zeros(count), np.zeros(count)
        self.looked, self.queued = np.zeros(count), np.zeros(count)

    def take(self, span_s: float, sent: Floats, lost: Floats, queued: Floats | None) -> None:
        fade = 0.5 ** (span_s / self.half_life_s)
        self.sent *= fade
        self.lost *= fade
        self.sent += sent
        self.lost += lost
        self.lost[self.lost < LEAST_LOST] = 0.0
        self._begin_anew(sent, lost)
        if queued is not None:
            self.looked *= fade
            self.looked += 1.0
            self.queued *= fade
            self.queued += queued

    def void(self, rows: Flags) -> None:
        """Forget what these have carried and lost."""
        self.sent[rows] = self.lost[rows] = self.run[rows] = 0.0

    def _begin_anew(self, sent: Floats, lost: Floats) -> None:
        """Void the past of paths that have fallen silent: as many packets in a row lost, over windows, as it takes."""
        running = np.flatnonzero(self.run)
        self.run[running[lost[running] < sent[running]]] = 0.0
        rows = np.flatnonzero((lost > 0) & (lost >= sent))
        before = self.run[rows]
        self.run[rows] += sent[rows]
        silent = rows[(before < RESET_SENT) & (self.run[rows] >= RESET_SENT)]
        self.sent[silent] = self.lost[silent] = self.run[silent]

    def moved(self, count: int, rows: Ints, was: Ints) -> Memory:
        """The same of `count` paths, of which `rows` were `was` here; of the others nothing is known."""
        other = Memory(count, self.half_life_s)
        other.sent[rows], other.lost[rows], other.run[rows] = self.sent[was], self.lost[was], self.run[was]
        other.looked[rows], other.queued[rows] = self.looked[was], self.queued[was]
        return other
