"""The RDMA flows of this host: whom they talk to, whether they advance, how long their transports wait.

Looked at a few times a second, over netlink and each program's own file (`rdma.flows`); no program is touched. Of a
flow that stands although work waits the core is told, and goes on being told while it lasts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from linkpass.core.events import Event, FlowGoes, FlowStands, PeerPatience
from rdma import drivers
from rdma.flows import Flow, FlowTable
from rdma.nldev import Nldev, RdmaNetlinkError
from rdma.steering import Setting, rungs
from rdma.sysfs import ROOT
from rdma.uverbs import Address

LOOK_S = 0.2
STANDS_S = 0.3
"""A flow that has sent nothing new for so long, though work waits, is told of: some round trips and a resend or two."""
TELL_AGAIN_S = 0.5


class QueuePairEdge:
    """`poll` every LOOK_S. `emit` takes what is for the core."""

    def __init__(self, emit: Callable[[Event], None], root: Path = ROOT) -> None:
        self._emit = emit
        self._root = root
        self._kernel = Nldev()
        self._table: FlowTable | None = None
        self._flows: list[Flow] = []
        self._standing: dict[str, tuple[str, float]] = {}
        """Flows that were told of -> their peer, and when."""
        self._advanced: dict[str, bool] = {}
        self._patience: dict[str, float] = {}
        """Peers -> what was last told."""
        self.why = "not looked at yet"
        """Why there is nothing to show; empty when all could be asked."""

    def open(self) -> None:
        """Never fails: without RDMA `why` says so."""
        try:
            self._kernel.open()
            self._table = FlowTable(self._kernel, self._root)
            self.why = ""
        except RdmaNetlinkError as error:
            self.why = str(error)

    def close(self) -> None:
        self._kernel.close()
        self._table = None

    @property
    def is_open(self) -> bool:
        return self._table is not None

    def poll(self, now_s: float) -> None:
        """Look at all queue pairs once."""
        if self._table is None:
            return
        try:
            self._flows = self._table.look(now_s)
            self.why = ""
        except RdmaNetlinkError as error:
            self.why = str(error)
            return
        here: set[str] = set()
        for flow in self._flows:
            peer = flow.peer
            if peer:
                here.add(flow.name)
                moves = 0.0 in (flow.silent_s, flow.received_s)
                self._advanced[peer] = self._advanced.get(peer, False) or moves
                self._tell(flow, peer, now_s)
        for name in self._standing.keys() - here:
            peer, _ = self._standing.pop(name)
            self._emit(FlowGoes(peer=peer, flow=name, ended=True))
        self._tell_patience()

    def _tell_patience(self) -> None:
        least: dict[str, float] = {}
        for flow in self._flows:
            if flow.peer and flow.qp.state == "RTS" and (waits_s := patience_s(flow)) is not None:
                least[flow.peer] = min(waits_s, least.get(flow.peer, math.inf))
        for peer in self._patience.keys() | least.keys():
            if self._patience.get(peer) != least.get(peer):
                self._emit(PeerPatience(peer=peer, least_s=least.get(peer)))
        self._patience = least

    def _tell(self, flow: Flow, peer: str, now_s: float) -> None:
        name = flow.name
        told = self._standing.get(name)
        if flow.stands and flow.silent_s is not None and flow.silent_s >= STANDS_S:
            if told is None or now_s - told[1] >= TELL_AGAIN_S:
                self._standing[name] = peer, now_s
                left = left_s(flow)
                self._emit(FlowStands(peer=peer, flow=name, silent_s=flow.silent_s, left_s=left))
        elif told is not None and flow.silent_s == 0.0:
            del self._standing[name]
            self._emit(FlowGoes(peer=peer, flow=name))

    @property
    def flows(self) -> tuple[Flow, ...]:
        """As they were at the last look."""
        return tuple(self._flows)

    def addresses(self) -> list[tuple[str, Address]]:
        """Device and address vector of every flow whose address is known."""
        return [(flow.qp.device, flow.to.to) for flow in self._flows if flow.to is not None]

    def family(self, device: str) -> str:
        """The name of a device's RDMA driver; empty when it is not known."""
        return self._table.family(device) if self._table is not None else ""

    def ask_again(self, device: str, qpn: int | None = None) -> None:
        """Addresses of a device's flows, or of one of them, are others now."""
        if self._table is not None:
            self._table.ask_again(device, qpn)

    def take_peers(self) -> Mapping[str, bool]:
        """Peers of RDMA flows, and whether data has advanced since this was last asked."""
        now, self._advanced = self._advanced, {flow.peer: False for flow in self._flows if flow.peer}
        return now

    def snapshot(self, setting: Setting) -> list[dict[str, Any]]:
        """A row for each flow, for people. What is unknown is None."""
        return [self._row(flow, setting) for flow in self._flows]

    def _row(self, flow: Flow, setting: Setting) -> dict[str, Any]:
        family = self.family(flow.qp.device)
        return {
            "name": flow.name, "program": flow.program, "pid": flow.qp.pid, "device": flow.qp.device,
            "qpn": flow.qp.lqpn, "remote_qpn": flow.qp.rqpn, "type": flow.qp.type, "state": flow.qp.state,
            "own": flow.source, "peer": flow.peer, "silent_s": flow.silent_s, "posted": flow.posted,
            "stands": flow.stands,
            "gives_up_after_s": patience_s(flow), "left_s": left_s(flow),
            "never_gives_up": flow.deadline is not None and math.isinf(flow.deadline.least_s),
            "rungs": rungs(flow, drivers.of(family), setting), "why": flow.why,
        }  # fmt: skip


def patience_s(flow: Flow) -> float | None:
    """For how long its transport waits for an answer at least; None: for ever, or not known."""
    least = flow.deadline.least_s if flow.deadline is not None else math.inf
    return least if math.isfinite(least) else None


def left_s(flow: Flow) -> float | None:
    """Until its transport may give up what waits now; None: never, not known, or nothing waits."""
    if flow.deadline is None or flow.silent_s is None or not flow.stands:
        return None
    left = flow.deadline.left_s(flow.silent_s)
    return left if math.isfinite(left) else None
