"""Ports whose error counters counted, in the meanings and by the formulas of host ports.

No thresholds: an output has no length of time, so a counter that counted is named. Counts since the counters were last
cleared say that something was, two readings that it goes on. Congestion is not failure and makes no finding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, Literal

from linkpass.subnet.counter_table import Tells, figure_of, meaning
from linkpass.subnet.finding import Finding
from rdma.counters.deltas import difference
from rdma.counters.table import Counter
from rdma.sysfs import Unknown
from topology.sources.ibqueryerrors import Counts, Reading, node_of
from topology.sources.infiniband import Subnet

_FINDINGS: Final[Mapping[str, Literal["sick link", "loss", "upstream"]]] = {
    "sick link": "sick link", "loss": "loss", "upstream": "upstream",
}  # fmt: skip


def faults_of(subnet: Subnet, later: Reading, earlier: Reading | None) -> tuple[list[Finding], list[str]]:
    """Ports whose error counters counted: since they were last cleared, or between two readings. And notes."""
    now = _by_port(subnet, later)
    before = None if earlier is None else _by_port(subnet, earlier)
    found, notes = [], []
    for port, values in now.items():
        for counter, value in values.items():
            known = meaning(counter)
            if known is None:
                notes.append(f"{port}: {counter} is {value}, what it means is not known")
                continue
            row, tells = known
            if tells not in _FINDINGS:
                continue
            counted = _counted(row, counter, value, port, later, earlier, before)
            if isinstance(counted, Unknown):
                notes.append(f"{port}: {counter} is {value}, {counted.detail}")
            elif counted > 0:
                least = row.bits < 64 and value == (1 << row.bits) - 1
                found.append(
                    _finding(subnet, port, counter, row, tells, counted, since=before is not None, least=least)
                )
    if later.failures:
        notes.append(f"{later.failures} queries for counters were not answered: those ports are not known")
    if later.suppressed:
        notes.append(f"suppressed, so not known: {', '.join(sorted(later.suppressed))}")
    if any(later.thresholds.values()):
        limits = ", ".join(f"{name} {limit}" for name, limit in later.thresholds.items() if limit)
        notes.append(f"not known up to its threshold: {limits}")
    return found, notes


def _by_port(subnet: Subnet, reading: Reading) -> dict[str, dict[str, int]]:
    """Port -> its counters. The sum over a node's ports counts only where no port of it is told of."""
    rows = [(counts, node_of(subnet, counts)) for counts in reading.ports]
    single = {_node_name(counts, node.name if node else "") for counts, node in rows if counts.port is not None}
    ports: dict[str, dict[str, int]] = {}
    for counts, node in rows:
        name = _node_name(counts, node.name if node else "")
        if counts.port is None and name in single:
            continue
        port = name if counts.port is None else node.port_id(counts.port) if node else f"{name}:{counts.port}"
        ports.setdefault(port, {}).update(counts.values)
    return ports


def _node_name(counts: Counts, name: str) -> str:
    return name or counts.said or f"GUID {counts.guid}"


def _counted(
    row: Counter, counter: str, value: int, port: str, later: Reading, earlier: Reading | None,
    before: Mapping[str, Mapping[str, int]] | None,
) -> int | Unknown:  # fmt: skip
    if earlier is None or before is None:
        return value * row.multiplier
    first = before.get(port, {}).get(counter)
    if first is None:
        all_then = (earlier.nodes_checked or 0) >= (later.nodes_checked or 0)
        if not (all_then and earlier.silent_is_zero(counter)):
            return Unknown("first reading", "and the earlier reading does not have it")
        first = 0
    return difference(row, first, value, 0.0)


def _finding(
    subnet: Subnet, port: str, counter: str, row: Counter, tells: Tells, count: int, *, since: bool, least: bool
) -> Finding:
    figure = figure_of(row.name)
    says, source = (figure.says, figure.source) if figure else (row.meaning, row.source)
    how = f"{counter} {'rose by' if since else 'is'} {'at least ' if least else ''}{count}"
    at = subnet.port(port)
    far = at and at[1].peer
    cable = f"; its cable goes to {subnet.nodes[far[0]].port_id(far[1])}" if far else ""
    return Finding(
        _FINDINGS[tells], (port,), f"{how}: {says}{cable}", source, counter, count, row.unit,
        "the earlier reading" if since else "it was last cleared",
    )  # fmt: skip


def rows_of(subnet: Subnet, reading: Reading) -> Iterator[dict[str, object]]:
    """Every counter of every port with its unit and meaning, as plain data."""
    for port, values in _by_port(subnet, reading).items():
        for counter, value in values.items():
            known = meaning(counter)
            row, tells = known or (None, None)
            yield {
                "port": port, "counter": counter, "value": value * (row.multiplier if row else 1),
                "unit": row.unit if row else None, "tells": tells, "meaning": row.meaning if row else None,
            }  # fmt: skip
