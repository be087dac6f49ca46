"""Views as rich tables. Values the daemon does not know are shown as `-`, never as zero."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

Row = Mapping[str, Any]
STYLES = {
    "up": "green", "good": "green", "usable": "green", "armed": "green", "yes": "green", "act": "green",
    "down": "red", "blackhole": "red", "unusable": "red", "off": "red", "silent": "red", "stood down": "red",
    "stands": "red", "stopped": "yellow", "fatal": "red", "degraded": "yellow", "read": "green", "absent": "dim",
    "held": "yellow", "watch": "yellow", "lossy": "yellow", "queueing": "yellow", "drained": "yellow", "no": "yellow",
    "unknown": "dim", "-": "dim", "observe": "cyan",
}  # fmt: skip


def word(text: Any) -> Text:
    """A word of the vocabulary in its colour."""
    shown = "-" if text in (None, "") else str(text)
    return Text(shown, STYLES.get(shown, ""))


def seconds(value: float | None) -> str:
    """A span in a unit that fits."""
    if value is None:
        return "-"
    if value < 1e-3:
        return f"{value * 1e6:.0f} µs"
    if value < 1:
        return f"{value * 1e3:.1f} ms"
    if value < 120:
        return f"{value:.1f} s"
    minutes, _ = divmod(int(value), 60)
    hours, minutes = divmod(minutes, 60)
    return (
        f"{hours // 24} d {hours % 24} h"
        if hours >= 48
        else f"{hours} h {minutes:02d} min"
        if hours
        else f"{minutes} min"
    )


def speed(bps: float | None) -> str:
    if not bps:
        return "-"
    unit, size = next(
        ((u, s) for u, s in (("Tbit/s", 1e12), ("Gbit/s", 1e9), ("Mbit/s", 1e6)) if bps >= s), ("bit/s", 1)
    )
    return f"{bps / size:g} {unit}"


def table(title: str, *columns: str, rows: Iterable[Sequence[Any]]) -> Table:
    """A plain table; cells that are not renderable become text."""
    made = Table(title=title, title_justify="left", title_style="bold", header_style="dim", box=None, pad_edge=False)
    for column in columns:
        made.add_column(column, overflow="fold")
    for row in rows:
        made.add_row(*(cell if isinstance(cell, Text) else Text("-" if cell is None else str(cell)) for cell in row))
    return made


def in_space(row: Row, name: str) -> str:
    """A name of another network namespace than the daemon's own says which."""
    return f"{row['netns']}:{name}" if row.get("netns") else name


def paths_table(rows: Iterable[Row]) -> Table:
    """One row a path."""
    cells = [
        (
            row.get("peer_name") or row.get("name") or row["peer"],
            in_space(row, row["uplink"]),
            f"{row['label']:#06x}",
            " ".join(hop or "?" for hop in row.get("hops") or ()) or "-",
            word(row.get("evidence")),
            f"{row['loss_ratio']:.1%}" if row.get("loss_ratio") else "",
            seconds(row.get("rtt_s") or None),
            seconds(row.get("age_s")),
            "in use" if row.get("in_use") else "",
            "; ".join(filter(None, (row.get("why"), _traces(row)))),
        )
        for row in rows
    ]
    columns = ("peer", "uplink", "label", "hops", "evidence", "loss", "round trip", "heard", "use", "why")
    return table("", *columns, rows=cells)


def _traces(row: Row) -> str:
    """What is known of the traces over a path; `status` has the reasons."""
    said = ", ".join(str(kind).replace("_", " ") for kind in row.get("traces") or ())
    return f"traces: {said}" if said else ""


def journal_table(entries: Sequence[Row]) -> Table:
    """One row an entry; the second column counts from the first entry of the same start."""
    first: dict[Any, float] = {}
    cells = []
    for row in entries:
        since_s = row["now_s"] - first.setdefault(row.get("run"), row["now_s"])
        style = "yellow" if row.get("level") == "warning" else ""
        rung = str(row["rung"]) if row.get("rung") else ""
        cells.append(
            (row["wall"], f"+{since_s * 1e3:.1f} ms", row["cause"], rung, Text(row["what"], style), row["why"])
        )
    return table("", "time", "since", "id", "rung", "what", "why", rows=cells)
