"""`linkpass status`: what is held against this host itself, and where that comes from."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from linkpass.cli.tables import Row, in_space, table, word


def evidence(view: Row, *, everything: bool) -> RenderableType | None:
    """What this host's own sources hold against it; information only with `everything`."""
    rows = [
        (
            row["source"],
            row.get("accelerator") or "host",
            in_space(row, row["what"]),
            word(row["severity"]),
            "handed over" if row.get("handed_over") else "",
            row.get("cause"),
            row.get("why", ""),
        )
        for row in view.get("host_evidence") or ()
        if everything or row["severity"] != "info"
    ]
    if not rows:
        return None
    return table("Evidence against this host", "source", "of", "what", "severity", "", "story", "why", rows=rows)


def sources(view: Row, *, everything: bool) -> RenderableType | None:
    """Where evidence about this host comes from; one line while all that is asked for is read."""
    every = [row for row in view.get("host_sources") or () if everything or row["state"] != "off"]
    if not every:
        return None
    missing = [row for row in every if row["state"] != "read" or row.get("why")]
    if not everything:
        read = ", ".join(row["source"] for row in every if row["state"] == "read") or "none"
        lacks = "; ".join(f"{row['source']}: {row['why']}" for row in missing)
        return Text(f"host evidence is read from: {read}{f' (not known: {lacks})' if lacks else ''}")
    rows = [(row["source"], word(row["state"]), row.get("why", "")) for row in every]
    return table("Sources of host evidence", "source", "state", "what is missing", rows=rows)
