"""A small fabric whose every path is observed, and windows of it whose losses are counted, not drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import permutations

import numpy as np

from linkpass.core.diagnosis.elements import Elements
from linkpass.core.diagnosis.localise import Localiser, Settings, Window, certain
from linkpass.core.diagnosis.paths import Paths
from linkpass.core.diagnosis.verdict import Hint, Verdict
from topology.generate import leaf_spine
from topology.model import Fabric

EACH = 3
"""Labels that walk each path."""


def small(hosts: int = 6) -> Fabric:
    return leaf_spine(hosts, uplinks=2, racks=2, spines=3)


class Observed:
    """`fabric` with all its equal-cost paths, EACH times; every third of them is probed with large packets."""

    def __init__(self, fabric: Fabric, *, holes: Sequence[int] = ()) -> None:
        self.fabric = fabric
        names = [host.name for host in fabric.hosts]
        found = [path.directions for a, b in permutations(names, 2) for path in fabric.equal_cost_paths(a, b)]
        self.routes = [route for route in found for _ in range(EACH)]
        self.large = np.arange(len(self.routes)) % EACH == 0
        self.elements = Elements(fabric)
        mute = np.zeros(len(self.routes), dtype=bool)
        mute[list(holes)] = True
        numbers = self.elements.numbers(self.routes)
        self.paths = Paths(self.elements, numbers, holes=mute, large=self.large)

    def crossing(self, element: str) -> list[int]:
        """Paths over an element; a NIC's are those of its link."""
        name = element
        if ":" in element:
            name = next(link.id for link in self.fabric.links if element in (link.a.id, link.b.id))
        over = self.fabric.expand(name)
        return [row for row, route in enumerate(self.routes) if over & set(route)]

    def window(
        self, faults: Mapping[str, float], *, sent: float = 100.0, span_s: float = 1.0, hints: tuple[Hint, ...] = (),
        only: Sequence[int] | None = None, queued: Sequence[int] | None = None,
    ) -> Window:  # fmt: skip
        """Every path carries `sent`; `faults`: element -> loss ratio, on the paths `only` if given."""
        kept = np.ones(len(self.routes))
        for element, loss in faults.items():
            hit = [row for row in self.crossing(element) if only is None or row in only]
            kept[hit] *= 1 - loss
        flags = None
        if queued is not None:
            flags = np.zeros(len(self.routes))
            flags[list(queued)] = 1.0
        return Window(span_s, np.full(len(kept), sent), np.round(sent * (1 - kept)), flags, hints)

    def localiser(self, settings: Settings | None = None) -> Localiser:
        """One that has seen ten seconds of health."""
        localiser = Localiser(self.paths, settings)
        localiser.window(self.window({}, sent=1000.0))
        return localiser

    def told(self, faults: Mapping[str, float], *, windows: int = 2, **more: object) -> tuple[Verdict, ...]:
        """What is certain after some windows of these faults."""
        localiser = self.localiser()
        said: tuple[Verdict, ...] = ()
        for _ in range(windows):
            said = certain(localiser.window(self.window(faults, **more)))  # type: ignore[arg-type]
        return said


def suspects(verdicts: Sequence[Verdict]) -> set[frozenset[str]]:
    return {frozenset(verdict.suspects) for verdict in verdicts}
