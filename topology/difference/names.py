"""Names that differ and mean the same."""

from __future__ import annotations

from collections.abc import Mapping

from topology.model import Port
from topology.sources.cables import Source
from topology.sources.reading import domainless


def alike(plan: Source, live: Source) -> tuple[dict[str, str], tuple[str, ...]]:
    """Live nodes whose name differs from a planned one by a domain only: what the plan calls them; and a note."""
    found = domainless(*((node.name for node in side.fabric.nodes) for side in (live, plan)))
    if not found:
        return found, ()
    first = next(iter(found))
    return found, (f"taken to be the same by their names without domain: {len(found)} nodes, for instance {first}",)


def called(port: Port, names: Mapping[str, str]) -> Port:
    at = names.get(port.node)
    return port if at is None else Port(at, port.name, port.speed_bps, port.rail, port.plane, port.mac)


def called_id(port_id: str, names: Mapping[str, str]) -> str:
    node, _, name = port_id.partition(":")
    return f"{names.get(node, node)}:{name}"


def other(port: Port, others: Mapping[str, tuple[str, ...]], known: set[str]) -> Port:
    """By another of its names where the plan has that one only."""
    if port.id in known:
        return port
    also = next((name for name in others.get(port.id, ()) if f"{port.node}:{name}" in known), port.name)
    return Port(port.node, also, port.speed_bps, port.rail, port.plane, port.mac)
