"""Faults of a simulated fabric: what they are called, which paths they hit, and what else can be seen of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from lab.sim.routes import mixed
from lab.sim.traffic import Traffic
from linkpass.core.diagnosis.verdict import Hint

Ints = NDArray[np.intp]
FaultKind = Literal["direction", "link", "nic", "host", "leaf", "spine", "bucket", "large"]
FAULT_KINDS: tuple[FaultKind, ...] = ("direction", "link", "nic", "host", "leaf", "spine", "bucket", "large")
BUCKETS = 8
"""Of one direction, one bucket is lost."""
HINTED_RATIO, HINT_NATS = 0.9, 6.0
"""How often a NIC's events, the counters of a host's link, or a host's own state tell of its fault, and how loud."""


@dataclass(frozen=True, slots=True)
class Fault:
    """`element`: what a verdict has to name; `rows`: the paths that it hits; `loss`: ratio on these."""

    kind: FaultKind
    element: str
    loss: float
    directions: Ints
    rows: Ints
    hint: Hint | None = None


def draw(traffic: Traffic, kind: FaultKind, loss: float, chance: np.random.Generator) -> Fault:
    """A fault of that kind at a random place that some path crosses."""
    while True:
        element, directions = _place(traffic, kind, chance)
        hit = np.isin(traffic.directions, directions).any(axis=1)
        if kind == "bucket":
            bucket = mixed(traffic.entropy ^ np.uint64(int(directions[0]) << 20)) % np.uint64(BUCKETS)
            hit &= bucket == np.uint64(chance.integers(BUCKETS))
        elif kind == "large":
            hit &= traffic.paths.large
        rows = np.flatnonzero(hit)
        if (~traffic.paths.holes[rows]).any():
            return Fault(kind, element, loss, directions, rows, _hint(traffic, kind, element, directions, chance))


def _place(traffic: Traffic, kind: FaultKind, chance: np.random.Generator) -> tuple[str, Ints]:
    routes, names = traffic.routes, traffic.paths.elements.names
    if kind == "nic":
        cable = int(chance.choice(routes.nics))
        return routes.links[cable].a.id, np.array([2 * cable, 2 * cable + 1])
    if kind in ("host", "leaf", "spine"):
        nodes = routes.nodes
        fit = {"host": (0,), "leaf": (1,), "spine": (2, 3)}[kind]
        name = nodes[int(chance.choice([place for place, node in enumerate(nodes) if node.tier in fit]))].name
        return name, routes.true_node_directions(name)
    direction = int(chance.integers(2 * len(routes.lower)))
    if kind == "link":
        cable = direction >> 1
        return routes.links[cable].id, np.array([2 * cable, 2 * cable + 1])
    return names[direction], np.array([direction])


def _hint(
    traffic: Traffic, kind: FaultKind, element: str, directions: Ints, chance: np.random.Generator
) -> Hint | None:
    at_host = kind == "link" and (directions[0] >> 1) in traffic.routes.nics
    words = {"nic": "its driver reports a fatal event", "host": "its daemon hangs while the kernel answers"}
    if (kind in words or at_host) and chance.random() < HINTED_RATIO:
        return Hint(element, HINT_NATS, words.get(kind, "symbol errors at the host's end"))
    return None


def apart(one: Fault, others: list[Fault]) -> bool:
    """Whether it can be told from the others at all: neither lies within the other."""
    mine = set(one.directions.tolist())
    return all(not mine & set(other.directions.tolist()) for other in others)
