"""What directions have left, and how much can flow from some nodes to others at once.

What is not known is None and never zero: a cut of which a room is not known is at least what the others hold.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from topology.model.fabric import Fabric
from topology.model.flow import Flow, Pair

Rooms = Mapping[str, int | None]
"""Direction -> how much it takes, in any whole unit; None: not known."""


_SOURCE, _TARGET = ":sources", ":targets"
"""No node has a name with a colon."""


def one_each(fabric: Fabric) -> dict[str, int | None]:
    """Room for one in every visible direction: a cut then counts links."""
    return {direction: 1 for link in fabric.links for direction in link.directions() if fabric.shows(direction)}


def speeds_bps(fabric: Fabric) -> dict[str, int | None]:
    """The speed of every visible direction: the least that its two ports state, None where neither does."""
    found: dict[str, int | None] = {}
    for link in fabric.links:
        stated = [port.speed_bps for port in (link.a, link.b) if port.speed_bps is not None]
        speed = min(stated) if stated else None
        found.update((direction, speed) for direction in link.directions() if fabric.shows(direction))
    return found


def residual_bps(fabric: Fabric, load_bps: Mapping[str, float]) -> dict[str, int | None]:
    """What each visible direction has left of its speed under a load: whole bits per second, at least 0.

    None where its speed or its load is not known: give 0 for what is idle. Loads of hidden directions are left out.
    Raises UnknownElementError for a load of what is no direction of the fabric, ValueError for one below 0."""
    for direction, load in load_bps.items():
        if not load >= 0:
            raise ValueError(f"load of {direction}: expected 0 or more bits per second, got {load}")
        fabric.without([direction])
    found: dict[str, int | None] = {}
    for direction, speed in speeds_bps(fabric).items():
        known = load_bps.get(direction)
        found[direction] = None if speed is None or known is None else max(0, int(speed - known))
    return found


class Cut:
    """How much can flow from any of some nodes to any of others at once, and which directions set the limit.

    The maximum flow, which is the least cut (Ford and Fulkerson 1956); hosts never transit. `without` asks the same of
    the fabric in which elements have failed, and starts from the flow that is known: only what went over them is
    looked for anew."""

    def __init__(
        self, fabric: Fabric, sources: Iterable[str], targets: Iterable[str], rooms: Rooms | None = None
    ) -> None:
        """`rooms`: of each direction, for instance `speeds_bps` or `residual_bps` (default: `one_each`); a direction
        that it leaves out is not known. Raises UnknownElementError, or ValueError when a side is empty or both share
        a node."""
        self.fabric = fabric
        self._sources, self._targets = frozenset(sources), frozenset(targets)
        for side, what in ((self._sources, "sources"), (self._targets, "targets")):
            if not side:
                raise ValueError(f"{what}: expected at least one node")
            for name in side:
                fabric.node(name)
        both = self._sources & self._targets
        if both:
            raise ValueError(f"expected two sides without a common node, got {', '.join(sorted(both))} in both")
        self._rooms = one_each(fabric) if rooms is None else rooms
        self._between: defaultdict[Pair, list[str]] = defaultdict(list)
        self._unknown: list[tuple[str, Pair]] = []
        self._failed: frozenset[str] = frozenset()
        held: defaultdict[Pair, int] = defaultdict(int)
        for direction in one_each(fabric):
            pair = self._pair(direction)
            if pair is not None:
                room = self._rooms.get(direction)
                held[pair] += room or 0
                self._between[pair].append(direction)
                self._unknown += [(direction, pair)] if room is None else []
        self._flow = Flow(held, _SOURCE, _TARGET)

    @property
    def room(self) -> int:
        """The most that can flow, in the unit of the rooms. Where not all is `known`: what the known rooms hold."""
        return self._flow.value

    @property
    def known(self) -> bool:
        """Whether `room` would be the same however large the rooms are that are not known."""
        return _TARGET not in self._flow.reached(self._opened())

    @property
    def directions(self) -> tuple[str, ...]:
        """The directions that set the limit, those nearest to the sources where there is a choice."""
        here = self._flow.reached(self._opened())
        if _TARGET in here:
            here = self._flow.reached()
        pairs = self._flow.leaving(here)
        return tuple(key for pair in pairs for key in self._between.get(pair, ()) if key not in self._failed)

    def without(self, elements: Iterable[str]) -> Cut:
        """The cut after elements (node names, link ids, direction ids) have failed. Raises UnknownElementError."""
        names = tuple(elements)
        made = object.__new__(Cut)
        made.fabric = self.fabric.without(names)
        made._sources, made._targets, made._rooms = self._sources, self._targets, self._rooms
        made._between, made._unknown = self._between, self._unknown
        failed = {key for name in names if self.fabric.shows(name) for key in self.fabric.expand(name)}
        made._failed = self._failed | failed
        lost: defaultdict[Pair, int] = defaultdict(int)
        for direction in failed:
            pair = self._pair(direction)
            if pair is not None:
                lost[pair] += self._rooms.get(direction) or 0
        made._flow = self._flow.less(lost)
        return made

    def _opened(self) -> list[Pair]:
        return [pair for key, pair in self._unknown if key not in self._failed]

    def _pair(self, direction: str) -> Pair | None:
        """The step that a direction is, each side taken as one node; None: of no use to the flow."""
        source, target = (self._place(port.node) for port in self.fabric.direction(direction))
        if source is None or target is None or source in (target, _TARGET) or target == _SOURCE:
            return None
        return source, target

    def _place(self, node: str) -> str | None:
        if node in self._sources:
            return _SOURCE
        if node in self._targets:
            return _TARGET
        return node if self.fabric.node(node).role == "switch" else None
