"""Counters of ports, as `ibqueryerrors` (of a subnet) and `perfquery` (of a port) print them. Names and numbers only.

Format: infiniband-diags/ibqueryerrors.c, print_results, print_data_cnts, print_port_config and print_summary;
infiniband-diags/perfquery.c with the field names of libibmad/fields.c. All of perfquery's attributes are read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from topology.sources.iblinkinfo import LINK
from topology.sources.infiniband import IbNode, Subnet, chatter
from topology.sources.yamltext import TopologyError

_NODE: Final = re.compile(r'(?:Errors|Data Counters) for (?:0x(?P<guid>[0-9a-f]{1,16}) )?"(?P<said>.*)"')
_COUNTER: Final = r"\[[A-Za-z0-9]+ == \d{1,20}(?: \(\d+\.\d+[KMGTPE]?B?\))?\]"
_PORT: Final = re.compile(
    rf"GUID 0x(?P<guid>[0-9a-f]{{1,16}}) port (?P<port>\d{{1,3}}|ALL):(?P<counts>(?: {_COUNTER})*)"
)
_COUNT: Final = re.compile(r"\[(?P<name>[A-Za-z0-9]+) == (?P<value>\d+)")
_LINK_INFO: Final = re.compile(rf"Link info: +{LINK}")
_SUMMARY: Final = re.compile(r"## Summary: (?P<nodes>\d{1,6}) nodes checked, \d+ bad nodes found")
_THRESHOLDS: Final = re.compile(r"## (?:Thresholds:(?P<some>.*)|\(null\))")
_THRESHOLD: Final = re.compile(r"\[(?P<name>\w+) = (?P<value>\d+)\]")
_SUPPRESSED: Final = re.compile(r"## Suppressed:(?P<names>[ \w]*)")
_OTHER: Final = re.compile(
    r"##  +\d+ ports checked, \d+ ports have errors beyond threshold|##  +(?P<failed>\d{1,6}) PMA query failures"
)
_QUERY: Final = re.compile(
    r"# (?P<what>Port counters|Port extended counters|\w+(?: with RS-FEC Active)? counters|PortSamplesControl): "
    r"(?P<at>Lid (?P<lid>\d{1,5})|.*?) port (?P<port>\d{1,3})(?: \(CapMask: .*\))?"
)
_FIELD: Final = re.compile(r"(?P<name>[A-Za-z0-9_]+):\.*(?P<value>0x[0-9a-f]{1,16}|\d{1,20})")
_SETTINGS: Final = frozenset({"PortSelect", "CounterSelect", "CounterSelect2"})
_WRONG_BITS: Final = ("Port counters", "QP1Dropped")
"""The short form shows the bits of VL15Dropped under this name too: its offset in libibmad/fields.c is not turned round
as the others' are. The extended form is right."""
ALL_PORTS: Final = 255


@dataclass(frozen=True, slots=True)
class Counts:
    """What one port has counted since its counters were last cleared: name -> number as printed (data in 4 bytes).

    `guid`: of the port or its node; `port` None: the sum over all ports of the node."""

    line: int
    guid: str | None
    lid: int | None
    said: str
    port: int | None
    values: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Reading:
    """One output. ibqueryerrors prints what is above its `thresholds` (0 where none is named) and not `suppressed`;
    perfquery prints all that it asks for, and has no `nodes_checked`. `failures`: queries that were not answered."""

    ports: tuple[Counts, ...]
    nodes_checked: int | None = None
    thresholds: Mapping[str, int] = field(default_factory=dict)
    suppressed: frozenset[str] = frozenset()
    failures: int = 0

    def silent_is_zero(self, counter: str) -> bool:
        """Whether a port that is not printed with this counter stands at zero."""
        quiet = self.failures == 0 and not self.thresholds.get(counter) and counter not in self.suppressed
        return self.nodes_checked is not None and quiet


def is_output(text: str) -> bool:
    """Whether a text looks like the programs' output."""
    return any(
        _NODE.fullmatch(line) or _SUMMARY.fullmatch(line) or _QUERY.fullmatch(line) for line in text.splitlines()
    )


def parse(text: str, where: str = "<text>") -> Reading:
    """Several outputs of perfquery may follow one another. Raises TopologyError, naming file and line."""
    ports: list[Counts] = []
    said = what = ""
    fields: dict[str, int] | None = None
    reading = Reading(())
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.strip()
        if not bare or chatter(bare, where, number):
            continue
        if found := _NODE.fullmatch(bare):
            said, fields = found["said"].strip(), None
        elif found := _PORT.fullmatch(bare):
            values = {one["name"]: int(one["value"]) for one in _COUNT.finditer(found["counts"])}
            port = None if found["port"] == "ALL" else int(found["port"])
            ports.append(Counts(number, found["guid"].zfill(16), None, said, port, values))
        elif found := _QUERY.fullmatch(bare):
            fields, what = {}, found["what"]
            lid = int(found["lid"]) if found["lid"] else None
            port = None if int(found["port"]) == ALL_PORTS else int(found["port"])
            ports.append(Counts(number, None, lid, found["at"], port, fields))
        elif fields is not None and (found := _FIELD.fullmatch(bare)):
            counts = found["name"] not in _SETTINGS and (what, found["name"]) != _WRONG_BITS
            if counts and what != "PortSamplesControl" and not found["value"].startswith("0x"):
                fields[found["name"]] = int(found["value"])
        elif found := _SUMMARY.fullmatch(bare):
            reading = replace(reading, nodes_checked=int(found["nodes"]))
        elif found := _THRESHOLDS.fullmatch(bare):
            limits = {one["name"]: int(one["value"]) for one in _THRESHOLD.finditer(found["some"] or "")}
            reading = replace(reading, thresholds=limits)
        elif found := _SUPPRESSED.fullmatch(bare):
            reading = replace(reading, suppressed=frozenset(found["names"].split()))
        elif found := _OTHER.fullmatch(bare):
            reading = replace(reading, failures=reading.failures + int(found["failed"] or 0))
        elif not _LINK_INFO.fullmatch(bare):
            raise TopologyError(where, number, "", f"expected a line of ibqueryerrors or perfquery, got {bare[:60]!r}")
    if not ports and reading.nodes_checked is None:
        raise TopologyError(where, 1, "", "no port: expected the output of ibqueryerrors or perfquery")
    return replace(reading, ports=tuple(ports))


def node_of(subnet: Subnet, counts: Counts) -> IbNode | None:
    """The node of a port that was counted: by GUID, by LID, by description."""
    if counts.guid is not None:
        return subnet.with_guid(counts.guid) or subnet.with_name(counts.said)
    owner = subnet.lids.get(counts.lid or 0)
    return owner[0] if owner else None
