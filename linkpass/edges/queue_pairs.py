"""The RDMA flows of this host: whom they talk to, whether they advance, how long their transports wait.

Looked at a few times a second, over netlink and each program's own file (`rdma.flows`). Both are answered by drivers,
whose firmware may be asked for each queue pair: so a thread looks, the event loop hands over and takes and never waits,
and looks take a twentieth of the time at most. Of a flow that stands although work waits the core is told, and goes on
being told while it lasts.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import msgspec

from linkpass.aside import Aside
from linkpass.core.events import Event, FlowGoes, FlowStands, PeerPatience
from rdma import drivers
from rdma.flows import Flow, FlowTable
from rdma.nldev import Nldev, RdmaNetlinkError
from rdma.resent import Lately, Sends, Sum
from rdma.steering import Setting, rungs
from rdma.sysfs import ROOT
from rdma.udp_port import given_port
from rdma.uverbs import Address

LOOK_S = 0.2
TAKE_S = 0.02
"""What is looked at is asked for again after so long."""
REST = 5
"""The least time from one look to the next, in times that a look takes: drivers ask their firmware for each queue pair.
More would name what stands too late where looks are slow."""
REST_MOST_S = 2.0
OPEN_AGAIN_S = 5.0
"""Without RDMA, whether a module has been loaded meanwhile."""
STANDS_S = 0.3
"""A flow that has sent nothing new for so long, though work waits, is told of: some round trips and a resend or two."""
TELL_AGAIN_S = 0.5


class Looked(msgspec.Struct, frozen=True):
    """`flows`: None when they could not be looked at. `families`: of their devices. `took_s`: for the look alone."""

    flows: list[Flow] | None
    families: dict[str, str]
    why: str
    took_s: float
    is_open: bool = True


class Watch:
    """The thread's: nothing else touches the table or the kernel's connection while it is at work."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._kernel = Nldev()
        self.table: FlowTable | None = None

    def look(self, now_s: float, again: Iterable[tuple[str, int | None]], how: tuple[int, os.sched_param]) -> Looked:
        """`again`: whose addresses are others now. It runs as the loop does: kept from running by a job, it could hold
        on to the interpreter."""
        if os.sched_getscheduler(0) != how[0]:
            try:
                os.sched_setscheduler(0, *how)
            except OSError:
                pass
        begun_s = time.monotonic()
        try:
            if self.table is None:
                self._kernel.open()
                self.table = FlowTable(self._kernel, self._root)
            for device, qpn in again:
                self.table.ask_again(device, qpn)
            flows = self.table.look(now_s)
            families = {device: self.table.family(device) for device in {flow.qp.device for flow in flows}}
            why = "; ".join(self.table.unknown.values())
        except RdmaNetlinkError as error:
            return Looked(None, {}, str(error), time.monotonic() - begun_s, self.table is not None)
        return Looked(flows, families, why, time.monotonic() - begun_s)

    def close(self) -> None:
        self._kernel.close()
        self.table = None


class QueuePairEdge:
    """`poll` as often as it asks for. `emit` takes what is for the core."""

    def __init__(
        self,
        emit: Callable[[Event], None],
        root: Path = ROOT,
        executor: Executor | None = None,
        watch: Watch | None = None,
    ) -> None:
        """`executor` runs one thing at a time, and is shut down by `close`."""
        self._emit = emit
        self._executor = executor or Aside("queue-pairs")
        self._watch = watch or Watch(root)
        self._looking: Future[Looked] | None = None
        self._begun_s = -math.inf
        self._seen_s: float | None = None
        self._due_s = -math.inf
        self._again: list[tuple[str, int | None]] = []
        self._families: dict[str, str] = {}
        self._flows: list[Flow] = []
        self._standing: dict[str, tuple[str, float]] = {}
        """Flows that were told of -> their peer, and when."""
        self._advanced: dict[str, bool] = {}
        self._patience: dict[str, float] = {}
        """Peers -> what was last told."""
        self._sums: dict[str, Sum] = {}
        """Flows -> what they have sent since that was last asked."""
        self._lately: dict[str, Lately] = {}
        self.on_again: set[Callable[[str], None]] = set()
        """Who is told of peers to which flows have sent something again since the look before."""
        self.why = "not looked at yet"
        """Why there is nothing to show, or not all; empty when all could be asked."""
        self.failures = 0
        """Looks that ended in a way that nobody has thought of."""
        self._said: set[str] = set()
        self._lines: list[str] = []

    def close(self) -> None:
        """Does not wait: a look that hangs in a driver is left behind."""
        self._executor.submit(self._watch.close)
        self._executor.shutdown(wait=False)

    def poll(self, now_s: float) -> float:
        """Take what the last look saw, begin the next when it is due. When to call again, in seconds."""
        if self._looking is not None:
            if not self._looking.done():
                return TAKE_S if now_s - self._begun_s < LOOK_S else LOOK_S
            looking, self._looking = self._looking, None
            self._take(looking, now_s)
        if now_s >= self._due_s:
            how = os.sched_getscheduler(0), os.sched_getparam(0)
            again, self._again = self._again, []
            self._begun_s = now_s
            self._looking = self._executor.submit(self._watch.look, now_s, again, how)
            return TAKE_S
        return min(LOOK_S, self._due_s - now_s)

    def _take(self, looking: Future[Looked], now_s: float) -> None:
        self._due_s = self._begun_s + LOOK_S
        try:
            looked = looking.result()
        except Exception as error:  # noqa: BLE001 - what drivers and programs answer is not ours: none of it may end the looking
            self.failed(error)
            return
        self.why = looked.why
        self._due_s = self._begun_s + (
            max(LOOK_S, min(REST * looked.took_s, REST_MOST_S)) if looked.is_open else OPEN_AGAIN_S
        )
        if self._again:  # told of since: as soon as may be
            self._due_s = now_s
        if looked.flows is not None:
            self._seen_s = self._begun_s
            self._flows = looked.flows
            self._families |= looked.families
            self._tell_all(self._begun_s)
            self._count(self._begun_s)
            for peer in {flow.peer for flow in self._flows if flow.peer and flow.went is not None and flow.went.again}:
                for tell in self.on_again:
                    tell(peer)

    def failed(self, error: Exception) -> None:
        """The looking goes on, and `why` says what came of it."""
        self.failures += 1
        kind = type(error).__name__
        self.why = f"RDMA flows are not looked at: {kind}: {error}"
        if kind not in self._said:
            self._said.add(kind)
            self._lines.append(self.why)

    def lines(self) -> list[str]:
        """What is to be logged since this was last asked: each kind of failure once."""
        lines, self._lines = self._lines, []
        return lines

    def age_s(self, now_s: float) -> float | None:
        """How old what is shown is; None when there is nothing yet."""
        return None if self._seen_s is None else now_s - self._seen_s

    def _tell_all(self, now_s: float) -> None:
        here: set[str] = set()
        for flow in self._flows:
            moves = 0.0 in (flow.silent_s, flow.received_s)
            for peer in flow.peers:
                self._advanced[peer] = self._advanced.get(peer, False) or moves
            here.add(flow.name)
            if flow.peer:
                self._tell(flow, flow.peer, now_s)
        for name in self._standing.keys() - here:
            peer, _ = self._standing.pop(name)
            self._emit(FlowGoes(peer=peer, flow=name, ended=True))
        self._tell_patience()

    def _count(self, now_s: float) -> None:
        here = {flow.name for flow in self._flows}
        for known in (self._sums, self._lately):
            for name in known.keys() - here:
                del known[name]
        for flow in self._flows:
            self._lately.setdefault(flow.name, Lately()).add(flow.went, now_s)
            if flow.went is not None:
                self._sums.setdefault(flow.name, Sum()).add(flow.went)

    def take_sent(self) -> list[Sends]:
        """What flows have sent since this was last asked, those of which it is known how much of it they sent again."""
        sums, self._sums = self._sums, {}
        found = []
        for flow in self._flows:
            told = sums[flow.name].told() if flow.name in sums else None
            if told is not None and flow.peer and flow.source and flow.qp.rqpn is not None:
                since_s = sums[flow.name].since_s
                found.append(Sends(flow.name, flow.source, flow.peer, flow.qp.rqpn, since_s, *told))
        return found

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
        if told is not None and told[0] != peer:  # it has moved
            del self._standing[name]
            self._emit(FlowGoes(peer=told[0], flow=name))
            told = None
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
        """The name of the RDMA driver of a flow's device; empty when it is not known."""
        return self._families.get(device, "")

    def ask_again(self, device: str, qpn: int | None = None) -> None:
        """Addresses of a device's flows, or of one of them, are others now."""
        self._again.append((device, qpn))
        self._due_s = -math.inf

    def take_peers(self) -> Mapping[str, bool]:
        """Peers of RDMA flows, and whether data has advanced since this was last asked."""
        now, self._advanced = self._advanced, {peer: False for flow in self._flows for peer in flow.peers}
        return now

    def snapshot(self, setting: Setting) -> list[dict[str, Any]]:
        """A row for each flow, for people. What is unknown is None."""
        return [self._row(flow, setting) for flow in self._flows]

    def _row(self, flow: Flow, setting: Setting) -> dict[str, Any]:
        family = self.family(flow.qp.device)
        return {
            "name": flow.name, "program": flow.program, "pid": flow.qp.pid or None, "device": flow.qp.device,
            "qpn": flow.qp.lqpn, "remote_qpn": flow.qp.rqpn, "type": flow.qp.type, "state": flow.qp.state,
            "own": flow.source, "peer": flow.peer, **_address(flow, family),
            "silent_s": flow.silent_s, "posted": flow.posted, "stands": flow.stands,
            **_again(self._lately.get(flow.name)),
            "gives_up_after_s": patience_s(flow), "left_s": left_s(flow),
            "never_gives_up": flow.deadline is not None and math.isinf(flow.deadline.least_s),
            "rungs": rungs(flow, drivers.of(family), setting), "why": flow.why,
        }  # fmt: skip


def _address(flow: Flow, family: str) -> dict[str, int | None]:
    """Of its address what a fabric may hash on, and the index of its own. The port: where the driver's rule is known;
    another one may have been given to it since."""
    if flow.to is None:
        return {"sgid_index": None, "flow_label": None, "udp_port": None}
    to = flow.to.to
    port = given_port(to.flow_label, flow.qp.lqpn, flow.to.dest_qpn) if family == "rxe" else None
    return {"sgid_index": to.sgid_index, "flow_label": to.flow_label, "udp_port": port}


def _again(lately: Lately | None) -> dict[str, Any]:
    """How often it went back lately to send again, whether that may have been more often, and who told."""
    again, least, by = lately.told() if lately is not None else (None, False, "")
    return {"sent_again": again, "sent_again_least": least, "sent_again_by": by}


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
