"""One incident in a few lines: what was seen, what explains it, what it is not, what was done, and how it ended."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, Literal

from rich.table import Table
from rich.text import Text

from linkpass.cli.tables import Row, seconds, table

Part = Literal["seen", "named", "done", "checked", "ended"]
PARTS: Final[tuple[tuple[Part, str], ...]] = (
    ("seen", "seen"), ("named", "explained by"), ("done", "done"), ("checked", "checked"), ("ended", "afterwards"),
)  # fmt: skip
SHOWN: Final = 3
_RULED_OUT: Final = "; ruled out: "
_PATTERNS: Final[tuple[tuple[Part, re.Pattern[str]], ...]] = (
    (
        "ended",
        re.compile(r"holds no longer$|^(moved|would move) .* back: |heard again$| is up$| is over$|get through$"),
    ),
    ("named", re.compile(r"^verdict |loses packets$|suspected of losing packets$")),
    ("checked", re.compile(r"after the move$|does not get through$|still fail$|not verified$")),
    ("done", re.compile(r"^(moved|would move|asked) |^could not program |handed over$|drained$|stood down ")),
)


def story_of(entries: Sequence[Row]) -> Table:
    """The entries of one cause by what they are; of many alike the first are shown and the others counted."""
    first_s = entries[0]["now_s"]
    rows: list[tuple[Any, ...]] = []
    for part, title in PARTS:
        ours = [entry for entry in entries if part_of(entry) == part]
        ours.sort(key=lambda entry: not entry["rung"])  # moves are what people look for
        for number, entry in enumerate(ours[:SHOWN]):
            why, _, ruled_out = entry["why"].partition(_RULED_OUT)
            at = f"+{seconds(entry['now_s'] - first_s)}"
            style = "bold" if part == "named" else ""
            rows.append((title if not number else "", at, Text(entry["what"].removeprefix("verdict "), style), why))
            if ruled_out:
                rows += [("not" if not n else "", "", text, "") for n, text in enumerate(ruled_out.split(", "))]
        if len(ours) > SHOWN:
            rows.append(("", "", Text(f"and {len(ours) - SHOWN} more", "dim"), ""))
    if not any(part_of(entry) == "named" for entry in entries):
        rows.insert(0, ("explained by", "", Text("nothing that can be named with certainty", "dim"), ""))
    return table(f"{entries[0]['cause']}, {entries[0]['wall']}", "", "after", "what", "why", rows=rows)


def part_of(entry: Row) -> Part:
    """What an entry is in its story."""
    return next((part for part, pattern in _PATTERNS if pattern.search(entry["what"])), "seen")
