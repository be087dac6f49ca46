"""What a diagnosis says: an element, how sure, on what evidence, and what else was weighed."""

from __future__ import annotations

from typing import Literal

import msgspec

VerdictKind = Literal["direction", "link", "nic", "switch", "host", "congestion"]


class Hint(msgspec.Struct, frozen=True):
    """Evidence about one element that no path shows: a lost carrier, a counter of errors, a frozen host.

    `nats`: logarithm of how much likelier it is when the element fails; negative when it speaks for it."""

    element: str
    nats: float
    words: str


class Rival(msgspec.Struct, frozen=True):
    """An element that would explain the same paths: how well, and of which share of its paths."""

    element: str
    nats: float
    share: float


class Verdict(msgspec.Struct, frozen=True):
    """`element` fails. `others`: what no observation tells apart from it, or not yet.

    `confidence`: probability of `element` or `others`, against all else that could explain the same paths.
    `scope`: whole; partial, of which the share `share` of the paths is hit; large, packets only.
    `loss_ratio`: of the packets on the paths that are hit, of which the memory may hold some from before the fault.
    `since_s`: age of the suspicion.
    `certain`: worth acting on; the rest is a suspicion. `rivals`: `element` first, and what explains its paths about as
    well (within `search.RIVAL_NATS`), told apart or not. Nodes stand under their names, NICs as `host:port`."""

    kind: VerdictKind
    element: str
    confidence: float
    scope: Literal["whole", "partial", "large"]
    loss_ratio: float
    share: float
    nats: float
    since_s: float
    certain: bool
    others: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    ruled_out: tuple[str, ...] = ()
    rivals: tuple[Rival, ...] = ()

    @property
    def suspects(self) -> tuple[str, ...]:
        """The class of elements that are not told apart, the named one first."""
        return (self.element, *self.others)
