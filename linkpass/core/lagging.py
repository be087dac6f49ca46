"""What a straggler is, and the test on which a name rests.

Page's test (see `linkpass.core.detect`) on steps: are those that count against somebody a quarter of all (chance, full
cores) or four in five? A hit adds ln(0.8/0.25), a miss ln(0.2/0.75). A threshold of 13 takes 12 hits in a row; below 53
hits in a hundred the score only falls. By Wald's bound a rank that is late by chance in a quarter of its steps, each on
its own, crosses it about once in e^13 = 440,000 restarts; a name takes two hosts' claims. What the bound does not
cover is lateness that goes on for a while: a rank whose cores are taken for seconds is late in each of these steps. The
threshold is as high as leaves room to name one that is truly slow within 20 steps, with a miss or two.
"""

from __future__ import annotations

import math
from typing import Final, Literal

import msgspec

HIT: Final = math.log(0.8 / 0.25)
MISS: Final = math.log(0.2 / 0.75)
CEILING: Final = 1.25
"""Scores end at so many thresholds: a rank that keeps up again is acquitted after 13 steps."""

Cause = Literal["compute", "network", "reading"]

WORDS: Final[dict[Cause, str]] = {
    "compute": "all others wait for it to compute",
    "network": "all others wait for its network",
    "reading": "all others wait for it to read",
}


class Straggler(msgspec.Struct, frozen=True):
    """`host`: its address; `rank`: as the trainer calls it, -1: not known. `lag_s` of `period_s`: by how much the
    others' step is longer for it, at least. `story`: the causal id."""

    host: str
    cause: Cause
    evidence: tuple[str, ...]
    lag_s: float = 0.0
    period_s: float = 0.0
    rank: int = -1
    since_s: float = 0.0
    story: str = ""


def advance(score: float, hits: int, misses: int, threshold: float) -> float:
    return min(CEILING * threshold, max(0.0, score + hits * HIT + misses * MISS))
