"""A trace edge on h1 of the small fabric, and what it was told to do."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import probe_lab as lab

from linkpass.core import commands as cmd
from linkpass.core import events as ev
from linkpass.core.settings import CoreSettings, Probing, Tracing
from linkpass.edges.traces import TraceEdge

LABELS = tuple(range(1, 13))
NAMES = {address: name for name, address in lab.SWITCHES.items()} | {
    f"10.127.{number}.{side}": (a, b)[side] for number, (a, _, b, _) in enumerate(lab.LINKS) for side in (0, 1)
}


@contextlib.asynccontextmanager
async def tracing(
    fabric: lab.Fabric, address: str = lab.HOSTS["h1"], *, pace: Tracing | None = None, names: dict[str, str] = NAMES,
    plan: Any = None, **probing: str,
) -> AsyncIterator[tuple[TraceEdge, list[ev.Event]]]:  # fmt: skip
    told: list[ev.Event] = []
    settings = CoreSettings(
        host="h1", address=address, probing=Probing(**probing), tracing=pace or Tracing()  # type: ignore[arg-type]
    )  # fmt: skip
    edge = TraceEdge(settings, told.append, names, plan=plan)
    with lab.inside("h1"):
        edge.open()
        for name in ("eth1", "eth2"):
            edge.set_uplink(name, fabric.ifindex["h1", name], fabric.mac["h1", name], fabric.gateway_mac("h1", name))
    try:
        yield edge, told
    finally:
        edge.close()
        edge.close()


def order(
    uplink: str = "eth1", peer: str = lab.HOSTS["h2"], labels: tuple[int, ...] = LABELS, *, urgent: bool = False
) -> cmd.TraceLabels:
    return cmd.TraceLabels(cmd_id=7, cause="t", peer=peer, uplink=uplink, labels=labels, urgent=urgent)


async def traced(edge: TraceEdge, told: list[ev.Event], command: cmd.TraceLabels) -> ev.LabelsTraced:
    """Trace, and hand back what came of it."""
    await edge.trace(command)
    event = told[-1]
    assert isinstance(event, ev.LabelsTraced), event
    return event


def kinds(event: ev.LabelsTraced) -> set[tuple[str, int]]:
    return {(note.kind, note.hop) for note in event.notes}
