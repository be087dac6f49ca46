"""The pace of a job."""

from __future__ import annotations

from typing import Literal

import msgspec

from linkpass.core.events.base import Event

PaceKind = Literal["late", "awaits", "slow", "unread"]
"""What a host claims of a rank (`linkpass.core.pace`): `late`: others had opened a step and the speaker had not;
`awaits`: the speaker had opened one towards `about`, which had not; `slow`: its data to `about` stands in its queue,
`unread`: because `about` does not read."""


class PaceClaim(msgspec.Struct, frozen=True, array_like=True):
    """Counts since the speaker began to look, so that a word which is lost costs nothing. `about`: a peer's address;
    empty: the speaker itself. `hits` of `units` are steps in which it was so; `lag_s`: for how long, lately;
    `period_s`: from one step to the next."""

    kind: PaceKind
    about: str
    units: int
    hits: int
    lag_s: float
    period_s: float


class PaceTold(Event, frozen=True):
    """What this host (`peer` empty) or a peer sees of the job's pace: all its claims, a few times a second at most."""

    peer: str = ""
    claims: tuple[PaceClaim, ...] = ()


class StepArrived(Event, frozen=True):
    """A rank has come to the boundary of a step, says its trainer; at `at_s` by this host's clock. `peer` empty: it is
    this host's."""

    rank: int
    step: int
    at_s: float
    peer: str = ""
