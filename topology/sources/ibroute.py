"""Linear forwarding tables, as `ibroute LID`, `dump_fts` (once `dump_lfts`) and a subnet manager's dumps print them.

Format: infiniband-diags/ibroute.c and dump_fts.c, dump_unicast_tables. A LID that is not printed has no valid port
there. `--all`, `--no_dests` and ranges of LIDs are read; multicast tables are refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from topology.sources.infiniband import chatter
from topology.sources.yamltext import TopologyError

_HEAD: Final = re.compile(
    r"Unicast lids \[0x(?P<first>[0-9a-f]{1,4})-0x(?P<last>[0-9a-f]{1,4})\] of switch (?P<at>.*?) "
    r"guid 0x(?P<guid>[0-9a-f]{16}) \((?P<said>.*)\):"
)
_ENTRY: Final = re.compile(r"0x(?P<lid>[0-9a-f]{4}) (?P<port>\d{3})(?: +: \((?P<said>.*)\))?")
_COUNT: Final = re.compile(r"(?P<count>\d+) (?:valid )?lids dumped")
_FAILED: Final = re.compile(r"SubnGet\(LFT\) failed on switch '.*' .*Node GUID 0x(?P<guid>[0-9a-f]+) .*")
_WORDS: Final = frozenset({
    "Lid  Out   Destination", "Port     Info", "*** WARNING ***: this command has been replaced by dump_fts",
})  # fmt: skip
_MULTICAST: Final = "multicast tables are not followed: run ibroute or dump_fts without -M"
NO_PORT: Final = 255


@dataclass(frozen=True, slots=True)
class Table:
    """The table of one switch. `ports`: LID -> the port it leaves by, 0 for the switch itself.

    `first` to `last` were asked for. From 0 on it is the whole table, and the switch drops what lies above `last`.
    `answered`: False where the switch did not tell all of it, whatever was printed."""

    line: int
    guid: str
    said: str
    first: int
    last: int
    ports: Mapping[int, int] = field(default_factory=dict)
    answered: bool = True

    def covers(self, lid: int) -> bool:
        """Whether the text tells what happens to this LID."""
        return self.answered and (self.first <= lid <= self.last or (self.first == 0 and lid > self.last))


def is_output(text: str) -> bool:
    """Whether a text looks like the programs' output."""
    return "Unicast lids [" in text[:8000]


def parse(text: str, where: str = "<text>") -> tuple[Table, ...]:
    """The tables in the order of the text. Raises TopologyError, naming file, line and what was expected."""
    tables: dict[str, Table] = {}
    silent: set[str] = set()
    ports: dict[int, int] = {}
    now: Table | None = None
    number = 0
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.strip()
        if not bare or bare in _WORDS or chatter(bare, where, number):
            continue
        if bare.startswith("Multicast mlids"):
            raise TopologyError(where, number, "", _MULTICAST)
        if bare.startswith("SubnGet() failed"):
            raise TopologyError(where, number, "", f"a switch did not answer, its table is not whole: {bare[:80]}")
        if failed := _FAILED.fullmatch(bare):
            silent.add(failed["guid"].zfill(16))
        elif head := _HEAD.fullmatch(bare):
            if now is not None:
                raise TopologyError(where, number, "", f"the table of {now.said!r} was cut: expected `lids dumped`")
            if head["guid"] in tables:
                raise TopologyError(where, number, "", f"the table of switch {head['guid']} appears twice")
            ports = {}
            first, last = int(head["first"], 16), int(head["last"], 16)
            now = tables[head["guid"]] = Table(number, head["guid"], head["said"].strip(), first, last, ports)
        elif now is not None and (entry := _ENTRY.fullmatch(bare)):
            _enter(now, ports, entry, where, number)
        elif now is not None and (count := _COUNT.fullmatch(bare)):
            if int(count["count"]) != len(ports):
                what = f"{now.said!r}: {len(ports)} lines of {count['count']}: the table was cut or joined with another"
                raise TopologyError(where, number, "", what)
            tables[now.guid] = _without_holes(now, ports)
            now = None
        else:
            raise TopologyError(where, number, "", f"expected a line of ibroute's output, got {bare[:60]!r}")
    if now is not None:
        what = f"the table of {now.said!r} was cut: expected `lids dumped` at its end (did the switch answer?)"
        raise TopologyError(where, number, "", what)
    if not tables:
        raise TopologyError(where, 1, "", "no table: expected the output of ibroute or dump_fts")
    return tuple(
        Table(one.line, one.guid, one.said, one.first, one.last, one.ports, one.guid not in silent)
        for one in tables.values()
    )


def _enter(table: Table, ports: dict[int, int], entry: re.Match[str], where: str, number: int) -> None:
    lid, port = int(entry["lid"], 16), int(entry["port"])
    if lid in ports:
        raise TopologyError(where, number, "", f"LID {lid} appears twice in the table of {table.said!r}")
    if port > NO_PORT or not table.first <= lid <= table.last:
        expected = f"a port up to {NO_PORT} and a LID from {table.first} to {table.last}"
        raise TopologyError(where, number, "", f"expected {expected}, got port {port} and LID {lid}")
    ports[lid] = NO_PORT if "illegal port" in (entry["said"] or "") else port


def _without_holes(table: Table, ports: Mapping[int, int]) -> Table:
    kept = {lid: port for lid, port in ports.items() if port != NO_PORT}
    return Table(table.line, table.guid, table.said, table.first, table.last, kept)
