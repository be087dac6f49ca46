"""By ports. Planned and live cables are two matchings of the same ports; where they differ, their union falls apart
into rings and chains in which both alternate. Each of these is one mistake, and is named as one: a ring of two cables
is a swap.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from topology.difference.found import Cable, Compared, Difference, Kind, Pair, Told
from topology.model import Port


class Ports:
    """Planned and live cables. `told`: of both, the nodes that tell of all their links, None: all do; `unsure`: live
    ports of which nothing certain is told; `none`: how to say that nothing is there."""

    def __init__(
        self, wanted: list[Cable], there: list[Cable], told: tuple[Told, Told], unsure: set[str], none: str
    ) -> None:
        self._planned_told, self._told = told
        self._unsure = unsure
        self._none = none
        self._ports = {port.id: port for _, *ends in (*there, *wanted) for port in ends}
        self._wanted = {x.id: y.id for _, *ends in wanted for x, y in (ends, ends[::-1])}
        self._there = {x.id: y.id for _, *ends in there for x, y in (ends, ends[::-1])}
        self._speeds = [
            {frozenset((a.id, b.id)): _speed(a, b) for _, a, b in side} for side in (wanted, there)
        ]  # fmt: skip

    def compared(self, notes: tuple[str, ...]) -> Compared:
        found: list[Difference] = []
        alike = unknown = 0
        done: set[str] = set()
        order = {port: place for place, port in enumerate(dict.fromkeys((*self._wanted, *self._there)))}
        for port in order:
            if port in done:
                continue
            group = self._group(port)
            if order[group[-1]] < order[group[0]]:
                group.reverse()
            done.update(group)
            if len(group) == 2 and self._wanted.get(port) == self._there.get(port):
                other = self._slower(*group)
                found += other
                alike += not other
            elif self._is_unknown(group):
                unknown += 1
            else:
                found.append(self._named(group))
        return Compared(tuple(found), alike, unknown, notes)

    def _group(self, start: str) -> list[str]:
        """The ports of the ring or chain of this one, in their order: a chain from its end."""
        first, came = start, ""
        while True:  # back to an end, or once round
            step = next((side for side in ("wanted", "there") if side != came and first in self._side(side)), None)
            if step is None:
                break
            first, came = self._side(step)[first], step
            if first == start:
                break
        group, here = [first], first
        came = ""
        while True:
            step = next((side for side in ("wanted", "there") if side != came and here in self._side(side)), None)
            if step is None or (there := self._side(step)[here]) == first:
                return group
            group.append(there)
            here, came = there, step

    def _side(self, name: str) -> dict[str, str]:
        return self._wanted if name == "wanted" else self._there

    def _is_unknown(self, group: list[str]) -> bool:
        """A cable that one side has, and of which the other does not tell."""
        if len(group) > 2:
            return False
        if group[0] in self._there:
            return self._planned_told is not None and not any(
                self._ports[port].node in self._planned_told for port in group
            )
        return not any(map(self._tells, group))

    def _tells(self, port: str) -> bool:
        return port not in self._unsure and (self._told is None or self._ports[port].node in self._told)

    def _named(self, group: list[str]) -> Difference:
        planned = _pairs(group, self._wanted)
        live = _pairs(group, self._there)
        ring = all(port in self._wanted and port in self._there for port in group)
        if ring:
            kind: Kind = "swapped" if len(planned) == 2 else "interchanged"
        else:
            kinds: dict[tuple[int, int], Kind] = {(1, 0): "missing", (0, 1): "extra", (1, 1): "moved"}
            kind = kinds.get((len(planned), len(live)), "miscabled")
        return Difference(kind, tuple(group), planned, live, self._says(kind, group, planned, live))

    def _says(self, kind: Kind, group: list[str], planned: tuple[Pair, ...], live: tuple[Pair, ...]) -> str:
        if kind == "missing":
            mute = "".join(f"; {port} does not tell" for port in planned[0] if not self._tells(port))
            return f"{planned[0][0]} should lead to {planned[0][1]}, and {self._none}{mute}"
        if kind == "extra":
            return f"{live[0][0]} leads to {live[0][1]}, and should have no link"
        if kind == "swapped":
            (a, b), (_, d) = planned
            if self._ports[b].node == self._ports[d].node:
                a, b = b, a
            return (
                f"{a} should lead to {b}, leads to {self._there[a]}; {b} is found at {self._there[b]}: these two are "
                "swapped"
            )
        steps = [f"{a} should lead to {b}, leads to {self._there[a]}" for a, b in self._misled(group)]
        if kind == "interchanged":
            return f"{'; '.join(steps)}: these {len(planned)} are interchanged"
        for port in group:
            if port not in self._there:
                steps.append(f"at {port} {self._none}" if self._tells(port) else f"{port} does not tell")
            elif port not in self._wanted:
                steps.append(f"{port} should have none")
        return "; ".join(steps)

    def _misled(self, group: list[str]) -> Iterator[Pair]:
        """Ports that lead elsewhere than they should, one of each planned cable where that says it all."""
        said: set[str] = set()
        for port in group:
            if port in self._wanted and port in self._there and self._wanted[port] not in said:
                said.add(port)
                yield port, self._wanted[port]

    def _slower(self, a: str, b: str) -> list[Difference]:
        ends = frozenset((a, b))
        planned, runs = (speeds[ends] for speeds in self._speeds)
        if planned is None or runs is None or planned == runs:
            return []
        says = f"{a} - {b} should run at {_rate(planned)}, runs at {_rate(runs)}"
        return [Difference("speed", (a, b), ((a, b),), ((a, b),), says)]


def _pairs(group: list[str], side: Mapping[str, str]) -> tuple[Pair, ...]:
    seen: dict[frozenset[str], Pair] = {}
    for port in group:
        if port in side:
            seen.setdefault(frozenset((port, side[port])), (port, side[port]))
    return tuple(seen.values())


def _speed(a: Port, b: Port) -> int | None:
    """What a link runs at: the less that its ends state."""
    stated = [port.speed_bps for port in (a, b) if port.speed_bps is not None]
    return min(stated) if stated else None


def _rate(bps: int) -> str:
    return next(
        (f"{bps / size:g} {unit}bit/s" for size, unit in ((1e9, "G"), (1e6, "M")) if bps >= size), f"{bps} bit/s"
    )
