"""What happens to whom and when: the same for every arm."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

Kind = Literal["planned", "crash", "freeze"]
KINDS: tuple[Kind, ...] = ("planned", "crash", "freeze")
EVERY_S = 25.0
THAW_S = 10.0
"""A process that was stopped is killed so much later, as a host's watchdog would."""
JITTER_S = 5.0


@dataclass(frozen=True, slots=True)
class Event:
    """`at_s`: after the first step of the job. planned: the host is wanted for something else · crash: SIGKILL ·
    freeze: SIGSTOP."""

    at_s: float
    kind: Kind
    rank: int


def schedule(n: int, seed: int, world: int) -> tuple[Event, ...]:
    """`n` of each kind, one each `EVERY_S`, in an order and at moments that are drawn."""
    chance = random.Random(seed)
    kinds = [kind for kind in KINDS for _ in range(n)]
    chance.shuffle(kinds)
    return tuple(
        Event((number + 1) * EVERY_S - JITTER_S * chance.random(), kind, chance.randrange(world))
        for number, kind in enumerate(kinds)
    )


def length_s(n: int) -> float:
    """Of the job without faults: the last event is well inside it."""
    return (len(KINDS) * n + 0.7) * EVERY_S
