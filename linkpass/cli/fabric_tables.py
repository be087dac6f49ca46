"""A fabric, and what is wrong in a subnet, as tables and as plain data."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.text import Text

from linkpass.cli.tables import speed, table

if TYPE_CHECKING:
    from linkpass.subnet.finding import Finding
    from topology.model import Fabric
    from topology.sources.nccl import Host
    from topology.sources.ways import Way


def fabric_data(fabric: Fabric) -> dict[str, Any]:
    """A fabric as plain data."""
    return {
        "name": fabric.name,
        "nodes": [
            {"name": node.name, "role": node.role, "tier": node.tier, "rack": node.rack, "kind": node.kind}
            for node in fabric.nodes
        ],
        "links": [
            {
                "id": link.id,
                "ports": [
                    {"node": p.node, "name": p.name, "speed_bps": p.speed_bps, "rail": p.rail, "plane": p.plane}
                    for p in (link.a, link.b)
                ],
            }
            for link in fabric.links
        ],
        "notes": list(fabric.notes),
    }


def subnet_of(
    fabric: Fabric, findings: Sequence[Finding], ways: Sequence[Way], notes: Sequence[str], *, asked: bool
) -> RenderableType:
    """The fabric, ways that were asked for, and last what is wrong. `asked`: more than the fabric was."""
    parts = [fabric_of(fabric, notes)]
    for way in ways:
        steps = "".join(f" > {hop.peer.node}" for hop in way.hops)
        end = Text(way.end, "green" if way.end == "arrives" else "red")
        why = f": {way.why}" if way.why else ""
        parts += ["", Text.assemble(f"{way.source} to LID {way.lid}{steps} ", end, why)]
    rows = [(Text(one.kind, "red"), " - ".join(one.ports), one.says) for one in findings]
    if rows:
        parts += ["", table("Named", "what", "where", "why", rows=rows)]
    elif asked:
        parts += ["", Text("nothing is named", "green")]
    return Group(*parts)


def fabric_of(fabric: Fabric, notes: Sequence[str] = ()) -> RenderableType:
    """Tiers, nodes and links as tables, then the notes."""
    tiers: dict[Any, list[str]] = defaultdict(list)
    for node in fabric.nodes:
        tiers[node.tier].append(node.name)
    tier_rows = [
        ("unknown" if tier is None else tier, len(names), " ".join(names))
        for tier, names in sorted(tiers.items(), key=lambda item: -1 if item[0] is None else item[0])
    ]
    node_rows = [
        (node.name, node.role, node.tier, node.rack, node.kind, " ".join(sorted(fabric.neighbours(node.name))))
        for node in fabric.nodes
    ]
    link_rows = [
        (
            link.id,
            f"{link.a.node}:{link.a.name}",
            f"{link.b.node}:{link.b.name}",
            speed(link.a.speed_bps),
            link.a.rail,
            link.a.plane,
        )
        for link in fabric.links
    ]
    head = f"{fabric.name}: {len(fabric.hosts)} hosts, {len(fabric.switches)} switches, {len(fabric.links)} links"
    return Group(
        Text(head, "bold"), "",
        table("Tiers", "tier", "nodes", "names", rows=tier_rows), "",
        table("Nodes", "node", "role", "tier", "rack", "kind", "neighbours", rows=node_rows), "",
        table("Links", "link", "one end", "other end", "speed", "rail", "plane", rows=link_rows),
        *(Text(f"note: {note}", "dim") for note in notes or fabric.notes),
    )  # fmt: skip


def host_data(host: Host) -> dict[str, Any]:
    """What NCCL tells of a host as plain data."""
    return {"nics": [asdict(nic) for nic in host.nics], "gpus": [asdict(gpu) for gpu in host.gpus]}


def host_of(host: Host) -> RenderableType:
    """The adapters of a host, as NCCL sees it."""
    rows = [
        (nic.rail, nic.name, nic.port, speed(nic.speed_bps), " ".join(map(str, nic.near)) or None, nic.numa, nic.bus)
        for nic in sorted(host.nics, key=lambda nic: (nic.rail is None, nic.rail, nic.name))
    ]  # fmt: skip
    head = f"a host with {len(host.nics)} adapter ports and {len(host.gpus)} GPUs"
    columns = ("rail", "adapter", "port", "speed", "GPUs at its switch", "NUMA node", "PCI bus")
    return Group(Text(head, "bold"), "", table("Adapters", *columns, rows=rows))
