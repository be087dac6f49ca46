"""An explained capture for people: a table of queue pairs, what happened when, and what cannot be known."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from linkpass.cli.tables import seconds, table

if TYPE_CHECKING:
    from rdma.roce.report import Flow, Report

STYLES = {
    "gave up": "bold red", "nak": "red", "broken": "red", "sent again": "yellow", "missing": "yellow",
    "cnp": "magenta", "congestion": "magenta", "moved": "cyan",
}  # fmt: skip


def shown(report: Report, head: str, most: int | None) -> RenderableType:
    """`most`: queue pairs in the table, those with trouble first; None: all."""
    order = sorted(report.flows, key=lambda flow: (not trouble(flow), -flow.packets))
    rows = [row(flow) for flow in order[:most]]
    left = len(order) - len(rows)
    title = f"Queue pairs, a line for each direction ({len(order)})" + (f"; {left} more with --all" if left else "")
    columns = (
        "from", "to", "kind", "packets", "payload", "again", "late", "missing", "told", "marked", "longest pause",
        "MTU", "port", "label", "moves",
    )  # fmt: skip
    parts: list[RenderableType] = [Text(head, "bold"), "", table(title, *columns, rows=rows), ""]
    if report.findings:
        parts.append(table("What happened", "at", "what", "from", "to", "", rows=events(report)))
        if report.unnamed:
            parts.append(Text(f"and {report.unnamed} more like these: the table counts them", "dim"))
    else:
        parts.append(Text("Nothing was sent again, refused, missing, marked or moved.", "green"))
    return Group(*parts, *(Text(f"note: {one}", "dim") for one in ("", *report.notes) if one))


def trouble(flow: Flow) -> bool:
    return bool(
        flow.sent_again or flow.sent_again_unseen or flow.out_of_order or flow.missing or flow.naks or flow.cnps
        or flow.ce or flow.broken or flow.gave_up is not False
    )  # fmt: skip


def ends(flow: Flow) -> tuple[str, str]:
    """Both with their queue pair; `?` when nothing tells the sender's."""
    return f"{flow.source} qp {'?' if flow.sender_qpn is None else flow.sender_qpn}", f"{flow.target} qp {flow.qpn}"


def row(flow: Flow) -> tuple[object, ...]:
    told = [f"{count} NAK: {what}" for what, count in flow.naks.items()]
    told += [f"{flow.cnps} CNP"] if flow.cnps else []
    again = flow.sent_again + flow.sent_again_unseen
    pause = "-" if flow.pause is None else seconds(flow.pause.seconds)
    if flow.pause is not None and flow.pause.waited is not None:
        pause += " waiting" if flow.pause.waited else " idle"
    way = flow.ways[-1] if flow.ways else None
    return (
        *ends(flow), flow.transport, flow.packets, size(flow.payload_bytes), again or "", flow.out_of_order or "",
        flow.missing or "", ", ".join(told), f"{flow.ce} CE" if flow.ce else "", pause, flow.mtu,
        None if way is None else way.source_port,
        None if way is None or way.label is None else f"{way.label:#x}", flow.moves or "",
    )  # fmt: skip


def events(report: Report) -> Iterator[tuple[object, ...]]:
    for one in report.findings:
        style = STYLES.get(one.kind, "")
        yield (f"{one.at_s:.6f} s", Text(one.kind, style), *ends(report.flows[one.flow]), Text(one.says, style))


def size(count: int) -> str:
    for unit, least in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= least:
            return f"{count / least:.1f} {unit}"
    return f"{count} B"
