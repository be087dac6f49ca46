"""In what a fabric differs from its plan: every miscabled port, from both ends."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from topology.difference import nodes
from topology.difference.found import Compared, Difference, Kind
from topology.difference.names import alike, called, called_id, other
from topology.difference.ports import Ports
from topology.model import Port
from topology.sources.cables import Source

__all__ = ["Compared", "Difference", "Kind", "compare"]


def compare(plan: Source, live: Source, ignore: Sequence[str] = ()) -> Compared:
    """`ignore`: patterns (`*`, `?`) of nodes or ports (NODE:PORT); cables that end there are left out of both."""
    names, notes = alike(plan, live)
    wanted = [(link, link.a, link.b) for link in plan.fabric.links]
    there = [(link, called(link.a, names), called(link.b, names)) for link in live.fabric.links]
    if plan.ports and live.ports:
        known = {port.id for _, *ends in wanted for port in ends}
        others = {called_id(port, names): also for port, also in live.other_names.items()}
        there = [(link, other(a, others, known), other(b, others, known)) for link, a, b in there]
    wanted, there = (
        [(link, a, b) for link, a, b in side if not any(_ignored(port, ignore) for port in (a, b))]
        for side in (wanted, there)
    )
    told = None if live.told is None else {names.get(name, name) for name in live.told}
    if not (plan.ports and live.ports):
        return nodes.compared(wanted, there, (plan.told, told), notes, {node.name for node in plan.fabric.hosts})
    unsure = {called_id(port, names) for port in live.unsure}
    words = "no neighbour is heard" if live.format == "LLDP" else "there is no link"
    return Ports(wanted, there, (plan.told, told), unsure, words).compared(notes)


def _ignored(port: Port, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(text, pattern) for pattern in patterns for text in (port.node, port.id))
