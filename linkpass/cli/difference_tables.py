"""How a fabric differs from its plan, as a table and as plain data."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.text import Text

from linkpass.cli.tables import table

if TYPE_CHECKING:
    from topology.difference import Compared
    from topology.sources.cables import Source


def difference_data(plan: Source, live: Source, found: Compared) -> dict[str, Any]:
    """A comparison as plain data."""
    return {
        "plan": _side(plan),
        "live": _side(live),
        "differences": [asdict(one) for one in found.differences],
        "alike": found.alike,
        "not_compared": found.unknown,
        "notes": [*found.notes, *plan.notes, *live.notes],
    }


def difference_of(plan: Source, live: Source, found: Compared) -> RenderableType:
    """What differs, a row each, and how much does not."""
    parts: list[RenderableType] = [Text(f"plan: {_head(plan)}; live: {_head(live)}", "bold"), ""]
    rows = [(Text(one.kind, "red"), " ".join(one.ports), one.says) for one in found.differences]
    if rows:
        parts += [table("Differences", "what", "where", "why", rows=rows), ""]
    count = len(found.differences)
    style = "green" if not count else ""
    parts.append(
        Text(f"{found.alike} links are as planned, {count or 'nothing'} differ{'' if count > 1 else 's'}", style)
    )
    if found.unknown:
        parts.append(Text(f"not compared, since neither end tells of it: {found.unknown} links", "yellow"))
    return Group(*parts, *(Text(f"note: {note}", "dim") for note in (*found.notes, *plan.notes, *live.notes)))


def _side(source: Source) -> dict[str, Any]:
    fabric = source.fabric
    return {"format": source.format, "name": fabric.name, "nodes": len(fabric.nodes), "links": len(fabric.links)}


def _head(source: Source) -> str:
    return f"{source.format}, {len(source.fabric.nodes)} nodes, {len(source.fabric.links)} links"
