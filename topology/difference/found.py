"""What a comparison finds."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import Literal

from topology.model import Link, Port

Kind = Literal["swapped", "interchanged", "moved", "miscabled", "missing", "extra", "speed"]
"""swapped, interchanged: two, more cables have one another's ends. moved: a cable has one end elsewhere. miscabled:
several at once. speed: the cable is right, and runs at another speed."""

Pair = tuple[str, str]
Cable = tuple[Link, Port, Port]
Told = Set[str] | None
"""The nodes that tell of all their links; None: all do."""


@dataclass(frozen=True, slots=True)
class Difference:
    """`ports`: all that it concerns, NODE:PORT (names of nodes where a source knows no ports); `planned` and `live`:
    the cables that should be and that are there."""

    kind: Kind
    ports: tuple[str, ...]
    planned: tuple[Pair, ...]
    live: tuple[Pair, ...]
    says: str


@dataclass(frozen=True, slots=True)
class Compared:
    """`alike`: planned cables that are there as they should be; `unknown`: those of which no end tells."""

    differences: tuple[Difference, ...]
    alike: int
    unknown: int
    notes: tuple[str, ...]
