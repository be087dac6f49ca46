"""Counters of a subnet's ports: every one that the tools print is described, and tells what a host port's does."""

from __future__ import annotations

from pathlib import Path

import pytest

from linkpass.subnet.counter_table import figure_of, meaning
from linkpass.subnet.counters import faults_of, rows_of
from topology.sources import ibnetdiscover, ibqueryerrors
from topology.sources.ibqueryerrors import Reading

HERE = Path(__file__).parents[1] / "topology" / "ib"
NET = ibnetdiscover.read((HERE / "ibnetdiscover.txt").read_text())
READING = ibqueryerrors.parse((HERE / "ibqueryerrors.txt").read_text())

PRINTED = """
SymbolErrorCounter LinkErrorRecoveryCounter LinkDownedCounter PortRcvErrors PortRcvRemotePhysicalErrors
PortRcvSwitchRelayErrors PortXmitDiscards PortXmitConstraintErrors PortRcvConstraintErrors LocalLinkIntegrityErrors
ExcessiveBufferOverrunErrors VL15Dropped QP1Dropped PortXmitData PortRcvData PortXmitPkts PortRcvPkts PortXmitWait
PortUnicastXmitPkts PortUnicastRcvPkts PortMulticastXmitPkts PortMulticastRcvPkts XmtDataSL0 XmtDataSL15 RcvDataSL0
PortInactiveDiscards PortNeighborMTUDiscards PortSwLifetimeLimitDiscards PortSwHOQLifetimeLimitDiscards
PortLocalPhysicalErrors PortMalformedPktErrors PortBufferOverrunErrors PortDLIDMappingErrors PortVLMappingErrors
PortLoopingErrors SyncHeaderErrorCounter UnknownBlockCounter ErrorDetectionCounterLane0 FECCorrectableBlockCtrLane11
FECUncorrectableBlockCtrLane0 FECCorrectableSymbolCtrLane3 PortFECCorrectableBlockCtr PortFECUncorrectableBlockCtr
PortFECCorrectedSymbolCtr PortOpRcvPkts PortOpRcvData PortXmitFlowPkts PortRcvFlowPkts PortVLOpPackets0 PortVLOpData7
PortVLXmitFlowCtlUpdateErrors15 PortVLXmitWait0 SWPortVLCongestion1 PortPktRcvFECN PortPktRcvBECN PortSLRcvFECN0
PortSLRcvBECN15 PortXmitTimeCong PortVLXmitTimeCong14
"""
"""libibmad/fields.c, the fields of all attributes that perfquery asks for; lanes and levels by example."""


@pytest.mark.parametrize("counter", PRINTED.split())
def test_every_counter_has_unit_and_meaning(counter: str) -> None:
    found = meaning(counter)
    assert found is not None
    row, tells = found
    assert row.unit and row.meaning and row.source and tells
    assert row.multiplier == (4 if "Data" in counter else 1)


def test_where_a_formula_of_host_ports_uses_a_counter_it_says_what_it_tells() -> None:
    used = {counter for counter in PRINTED.split() if (row := meaning(counter)) and figure_of(row[0].name)}
    assert used == {"SymbolErrorCounter", "PortRcvErrors", "LinkDownedCounter", "PortXmitWait"}
    told = {counter: found[1] for counter in used if (found := meaning(counter))}
    assert told == {
        "SymbolErrorCounter": "sick link", "PortRcvErrors": "sick link", "LinkDownedCounter": "sick link",
        "PortXmitWait": "congestion",
    }  # fmt: skip


def one(text: str) -> Reading:
    return ibqueryerrors.parse("# Port counters: Lid 2 port 3 (CapMask: 0x1300)\n" + text)


def test_what_counted_is_named_with_its_port_and_its_meaning() -> None:
    found, notes = faults_of(NET, READING, None)
    assert [(fault.kind, fault.ports, fault.counter, fault.count) for fault in found] == [
        ("sick link", ("node2:HCA-2/1",), "LinkDownedCounter", 2), ("sick link", ("leaf1:7",), "SymbolErrorCounter", 77)
    ] and notes == []  # fmt: skip
    assert found[1].says == "SymbolErrorCounter is 77: bits arrive wrong: a cable, an optic or a port is sick; " + (
        "its cable goes to spine1:1"
    )
    units = {str(row["counter"]): row["unit"] for row in rows_of(NET, READING)}
    assert units["PortXmitData"] == "bytes" and units["LinkDownedCounter"] == "events"


def test_congestion_traffic_and_what_is_usual_are_not_named() -> None:
    text = "PortXmitWait:....9\nPortXmitData:....9\nPortRcvSwitchRelayErrors:....9\nPortFECCorrectedSymbolCtr:...9\n"
    assert faults_of(NET, one(text), None) == ([], [])


def test_a_counter_at_its_end_has_counted_at_least_that_and_tells_no_difference() -> None:
    (fault,), _ = faults_of(NET, one("SymbolErrorCounter:....65535\n"), None)
    assert "is at least 65535" in fault.says
    found, notes = faults_of(NET, one("SymbolErrorCounter:....65535\n"), one("SymbolErrorCounter:....65535\n"))
    assert found == [] and "stands at 65535" in notes[0]


def test_between_two_readings_only_what_rose_is_named() -> None:
    (fault,), _ = faults_of(NET, one("SymbolErrorCounter:....9\nPortRcvErrors:...4\n"), one(
        "SymbolErrorCounter:....7\nPortRcvErrors:...4\n"
    ))  # fmt: skip
    assert (fault.counter, fault.count, fault.since) == ("SymbolErrorCounter", 2, "the earlier reading")
    (fault,), _ = faults_of(NET, one("SymbolErrorCounter:....3\n"), one("SymbolErrorCounter:....7\n"))
    assert fault.count == 3  # cleared in between: at least what was counted since


def test_what_the_earlier_reading_left_out_is_unknown_and_not_zero() -> None:
    found, notes = faults_of(NET, one("SymbolErrorCounter:....9\n"), one("PortRcvErrors:...4\n"))
    assert found == [] and notes == ["leaf1:3: SymbolErrorCounter is 9, and the earlier reading does not have it"]
    limited = ibqueryerrors.parse((HERE / "ibqueryerrors-thresholds.txt").read_text())
    found, notes = faults_of(NET, READING, Reading((), limited.nodes_checked, limited.thresholds, limited.suppressed))
    assert found == [] and len(notes) == 2
    _, notes = faults_of(NET, limited, None)
    assert notes == [
        "suppressed, so not known: LinkDownedCounter",
        "not known up to its threshold: SymbolErrorCounter 10, VL15Dropped 100",
    ]


def test_strange_counters_and_unanswered_queries_are_said() -> None:
    reading = one("NobodyKnows:....9\n")
    found, notes = faults_of(NET, Reading(reading.ports, failures=2), None)
    assert found == []
    assert notes == [
        "leaf1:3: NobodyKnows is 9, what it means is not known",
        "2 queries for counters were not answered: those ports are not known",
    ]


def test_a_sum_over_all_ports_is_named_at_the_node_where_no_port_is_told_of() -> None:
    text = "# Port counters: Lid 2 port 255 (CapMask: 0x1300)\nSymbolErrorCounter:....7\n"
    (fault,), _ = faults_of(NET, ibqueryerrors.parse(text), None)
    assert fault.ports == ("leaf1",)
