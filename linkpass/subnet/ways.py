"""Ways by which packets do not arrive, as findings."""

from __future__ import annotations

from collections.abc import Iterator

from linkpass.subnet.finding import Finding
from topology.sources.infiniband import Subnet
from topology.sources.ways import Ways

_NAMED = 6
"""LIDs that a sentence names; all are in the finding."""


def faults_of(subnet: Subnet, ways: Ways) -> Iterator[Finding]:
    for fault in ways.faults():
        shown = ", ".join(_whose(subnet, lid) for lid in fault.lids[:_NAMED])
        more = f" and {len(fault.lids) - _NAMED} more" if len(fault.lids) > _NAMED else ""
        says = f"{fault.why}: packets to {shown}{more} do not arrive ({fault.pairs} pairs of host ports)"
        yield Finding(fault.end, fault.at, says, lids=fault.lids, host_pairs=fault.pairs)


def notes_of(ways: Ways) -> Iterator[str]:
    if ways.missing:
        yield f"no whole table, so ways through them are not known: {', '.join(ways.missing)}"
    if ways.strange:
        yield f"tables of switches that are not in the subnet: {', '.join(ways.strange)}"


def _whose(subnet: Subnet, lid: int) -> str:
    node, number = subnet.lids[lid]
    return f"LID {lid} ({node.name if number is None else node.port_id(number)})"
