"""What the counters mean that infiniband-diags prints: rows of `rdma.counters.table`, and those of no kernel file.

What a count above zero tells is for the formulas of host ports (`rdma.counters.evidence`) to say, where one uses it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Literal

from rdma.counters.evidence import FIGURES, Figure, Kind, Thresholds
from rdma.counters.reading import Window
from rdma.counters.table import Counter, Unit, find
from rdma.sysfs import Unknown

Tells = Literal["sick link", "loss", "upstream", "congestion", "traffic", "usual"]
"""What a count above zero is. Usual: it comes with normal work."""

_KINDS: Final[Mapping[Kind, Tells]] = {
    "congestion": "congestion", "loss": "loss", "sick link": "sick link", "failed": "loss",
}  # fmt: skip

_FILES: Final[Mapping[str, tuple[str, Tells]]] = {
    "SymbolErrorCounter": ("symbol_error", "sick link"),
    "LinkErrorRecoveryCounter": ("link_error_recovery", "sick link"),
    "LinkDownedCounter": ("link_downed", "sick link"),
    "PortRcvErrors": ("port_rcv_errors", "sick link"),
    "PortRcvRemotePhysicalErrors": ("port_rcv_remote_physical_errors", "upstream"),
    "PortRcvSwitchRelayErrors": ("port_rcv_switch_relay_errors", "usual"),
    "PortXmitDiscards": ("port_xmit_discards", "loss"),
    "PortXmitConstraintErrors": ("port_xmit_constraint_errors", "loss"),
    "PortRcvConstraintErrors": ("port_rcv_constraint_errors", "loss"),
    "LocalLinkIntegrityErrors": ("local_link_integrity_errors", "sick link"),
    "ExcessiveBufferOverrunErrors": ("excessive_buffer_overrun_errors", "sick link"),
    "VL15Dropped": ("VL15_dropped", "loss"),
    "PortXmitData": ("port_xmit_data", "traffic"),
    "PortRcvData": ("port_rcv_data", "traffic"),
    "PortXmitPkts": ("port_xmit_packets", "traffic"),
    "PortRcvPkts": ("port_rcv_packets", "traffic"),
    "PortUnicastXmitPkts": ("unicast_xmit_packets", "traffic"),
    "PortUnicastRcvPkts": ("unicast_rcv_packets", "traffic"),
    "PortMulticastXmitPkts": ("multicast_xmit_packets", "traffic"),
    "PortMulticastRcvPkts": ("multicast_rcv_packets", "traffic"),
    "PortXmitWait": ("port_xmit_wait", "congestion"),
}
"""The tools' name -> the kernel's file of the same counter, whose row has unit, width and meaning."""

_IBTA: Final = "InfiniBand Architecture Specification, volume 1, chapter 16"


def _own(unit: Unit, bits: int, meaning: str, multiplier: int = 1) -> Counter:
    return Counter("counters", "", "", unit, meaning, _IBTA, (), multiplier, bits, saturates=True)


_OTHERS: Final[Mapping[str, tuple[Counter, Tells]]] = {
    "QP1Dropped": (_own("packets", 16, "management packets to queue pair 1 dropped for lack of room"), "loss"),
    "PortInactiveDiscards": (_own("packets", 16, "packets dropped: the port was not active"), "loss"),
    "PortNeighborMTUDiscards": (_own("packets", 16, "packets dropped: longer than the neighbour's MTU"), "loss"),
    "PortSwLifetimeLimitDiscards": (_own("packets", 16, "packets dropped: too long in the switch"), "loss"),
    "PortSwHOQLifetimeLimitDiscards": (_own("packets", 16, "packets dropped: too long at a queue's head"), "loss"),
    "PortLocalPhysicalErrors": (_own("packets", 16, "packets with physical errors, broken on this link"), "sick link"),
    "PortMalformedPktErrors": (_own("packets", 16, "packets whose headers make no sense"), "sick link"),
    "PortBufferOverrunErrors": (_own("packets", 16, "packets dropped: the receive buffer overran"), "sick link"),
    "PortDLIDMappingErrors": (_own("packets", 16, "packets dropped: no way for their destination LID"), "loss"),
    "PortVLMappingErrors": (_own("packets", 16, "packets dropped: no virtual lane for their service level"), "loss"),
    "PortLoopingErrors": (_own("packets", 16, "packets dropped: they would leave by the port they came by"), "loss"),
    "SyncHeaderErrorCounter": (_own("events", 16, "broken synchronisation headers on any lane"), "sick link"),
    "UnknownBlockCounter": (_own("events", 16, "blocks of an unknown type on any lane"), "sick link"),
    "ErrorDetectionCounterLane": (_own("events", 16, "errors detected on a lane"), "sick link"),
    "FECCorrectableBlockCtrLane": (_own("events", 32, "blocks of a lane that were corrected"), "usual"),
    "FECUncorrectableBlockCtrLane": (_own("events", 32, "blocks of a lane beyond correction"), "sick link"),
    "FECCorrectableSymbolCtrLane": (_own("events", 32, "symbols of a lane that were corrected"), "usual"),
    "PortFECCorrectableBlockCtr": (_own("events", 32, "blocks that were corrected"), "usual"),
    "PortFECUncorrectableBlockCtr": (_own("events", 32, "blocks beyond correction: packets broke"), "sick link"),
    "PortFECCorrectedSymbolCtr": (_own("events", 32, "symbols that were corrected"), "usual"),
    "XmtDataSL": (_own("bytes", 32, "data sent of a service level", 4), "traffic"),
    "RcvDataSL": (_own("bytes", 32, "data received of a service level", 4), "traffic"),
    "PortOpRcvPkts": (_own("packets", 32, "packets received of one operation code"), "traffic"),
    "PortOpRcvData": (_own("bytes", 32, "data received of one operation code", 4), "traffic"),
    "PortXmitFlowPkts": (_own("packets", 32, "flow control packets sent"), "traffic"),
    "PortRcvFlowPkts": (_own("packets", 32, "flow control packets received"), "traffic"),
    "PortVLOpPackets": (_own("packets", 16, "packets of one operation code received on a virtual lane"), "traffic"),
    "PortVLOpData": (_own("bytes", 32, "data of one operation code received on a virtual lane", 4), "traffic"),
    "PortVLXmitFlowCtlUpdateErrors": (_own("events", 2, "flow control updates that came late"), "sick link"),
    "PortVLXmitWait": (_own("ticks", 16, "ticks in which a virtual lane had to wait"), "congestion"),
    "SWPortVLCongestion": (_own("packets", 16, "packets dropped for congestion on a virtual lane"), "congestion"),
    "PortPktRcvFECN": (_own("packets", 32, "packets received with the mark of a full queue"), "congestion"),
    "PortPktRcvBECN": (_own("packets", 32, "notices received that ask to slow down"), "congestion"),
    "PortSLRcvFECN": (_own("packets", 32, "marked packets received of a service level"), "congestion"),
    "PortSLRcvBECN": (_own("packets", 32, "notices to slow down received of a service level"), "congestion"),
    "PortXmitTimeCong": (_own("ticks", 32, "ticks in which the port sent into congestion"), "congestion"),
    "PortVLXmitTimeCong": (_own("ticks", 32, "ticks in which a virtual lane sent into congestion"), "congestion"),
}
"""What the kernel has no file for. The number of a lane, level or virtual lane follows the name."""


def meaning(counter: str) -> tuple[Counter, Tells] | None:
    """Unit, width and meaning of a counter by the tools' name, and what it tells; None: nobody has described it."""
    if counter in _FILES:
        file, tells = _FILES[counter]
        row = find("counters", file)
        assert row is not None
        figure = figure_of(row.name)
        return row, _KINDS[figure.kind] if figure else tells
    return _OTHERS.get(counter) or _OTHERS.get(re.sub(r"\d+$", "", counter))


def figure_of(name: str) -> Figure | None:
    """The formula of host ports in which this counter alone makes a difference."""
    if not name:
        return None
    some = {"received_packets": 1, "sent_packets": 1}
    limits = Thresholds(tick_s=1.0)
    for figure in FIGURES:
        value = figure.of(Window("", 0.0, 1.0, {**some, name: 1}), limits)
        if name not in some and not isinstance(value, Unknown) and value > 0:
            return figure
    return None
