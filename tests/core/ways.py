"""Ways through a leaf-spine fabric, as their directions."""

from __future__ import annotations

import itertools


def path(*nodes: str) -> tuple[str, ...]:
    return tuple(f"{a}>{b}" for a, b in itertools.pairwise(nodes))


A = path("h1", "l1", "s1", "l3", "h3")
B = path("h1", "l1", "s2", "l3", "h3")
C = path("h1", "l2", "s1", "l4", "h3")
D = path("h1", "l2", "s2", "l4", "h3")
E = path("h1", "l1", "s1", "l4", "h4")
