"""Datagrams of RoCE beside the probes of paths: the RDMA devices' own queues, asked as the job uses them.

Every port with an address in the configured prefixes gets a queue pair for datagrams (`rdma.ud`). Where a peer answers
is told over the probes of paths, signed as they are: asked for, remembered for as long as the peer's daemon is the same
one, asked for again when answers stay away. Each planned peer is asked from this host's own address, and each address
that a flow of the job talks to from the flow's own address, in the flow's own class. On soft-RoCE a datagram takes the
way that its bucket takes now: these are evidence of the queue, not of every path; the probes of paths go on as before.
Datagrams are taken from what those leave of the host's packet limit.
"""

from __future__ import annotations

import asyncio
import ipaddress
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

from linkpass.core.detect import Verdict
from linkpass.core.events import Event, RoceEvidence
from linkpass.edges.probes.books import Books
from linkpass.edges.probes.peers import Peer
from linkpass.edges.probes.roce_books import Asked, Hearer, Key, Target, gid_of, gid_text
from linkpass.edges.probes.roce_ports import Side, Sides
from linkpass.edges.probes.roce_told import Directory
from linkpass.edges.probes.sending import Sender
from linkpass.faults import Faults
from linkpass.wire import probe
from rdma.sysfs import ROOT
from rdma.ud import BYTES, Arrived, Route

NO_PORT: Final = "no RDMA port here has an address in the prefixes: paths are probed by UDP, and nothing by verbs"
LOOK_S: Final = 1.0
"""Devices that came or went, ports that are broken."""
POLL_S: Final = 0.005
"""How often a port is looked at that wakes nobody."""


class RoceFlow(NamedTuple):
    """What a flow of the job uses: device, port, index of its own address, the peer's address, class, service level."""

    device: str
    port: int
    sgid_index: int
    gid: str
    traffic_class: int
    sl: int


class RoceProbes:
    """`open` inside the running loop. `emit` takes what is for the core; `clock` is CLOCK_MONOTONIC."""

    def __init__(
        self, books: Books, sender: Sender, signer: probe.Signer, emit: Callable[[Event], None],
        clock: Callable[[], float], prefixes: Iterable[str], root: Path = ROOT,
    ) -> None:  # fmt: skip
        self._books, self._sender, self._signer, self._emit, self._clock = books, sender, signer, emit, clock
        self._sides = Sides(prefixes, root, self._on_readable)
        self._own = gid_of(books.own)
        self._class = books.settings.probing.dscp << 2
        self._interval_s = books.settings.probing.verbs_interval_s
        self._targets: dict[Key, Target] = {}
        self._numbers: dict[int, Target] = {}
        self._next_number = 0
        self._flows: tuple[RoceFlow, ...] = ()
        self._told = Directory(books, sender, self._sides)
        self._hearers: dict[bytes, Hearer] = {}
        self._sequence = 0
        self._look_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._faults = Faults()
        self.refused = 0
        """Datagrams that were not a peer's."""

    # life
    def open(self) -> list[str]:
        """What cannot be had, in words."""
        self._books.on_roce = self._on_roce
        with self._faults.caught("looking at RDMA ports"):
            self._sides.look()
        self._look_s = self._clock() + LOOK_S
        self._arm()
        return [self.why] if self.why else []

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._books.on_roce = None
        self._sides.close()

    @property
    def why(self) -> str:
        """Why there is nothing, or not all; empty when all is well."""
        fault = f"a fault of linkpass itself, {self._faults.last}" if self._faults.count else ""
        return fault or self._sides.why or ("" if self._sides.any else NO_PORT)

    @property
    def faults(self) -> int:
        """Faults of linkpass itself; the log has each kind."""
        return self._faults.count

    # orders
    def set_flows(self, flows: Iterable[RoceFlow]) -> None:
        """What the job's flows use now."""
        self._flows = tuple(dict.fromkeys(flows))
        self._plan(self._clock())

    def reread(self, device: str) -> None:
        """The device's addresses have moved."""
        if self._sides.reread(device):
            self._told.tell_all(self._clock())
        self._plan(self._clock())

    def _plan(self, now_s: float) -> None:
        """Whom to ask, from where, as what. Targets that stay keep their books."""
        wanted: dict[Key, Peer] = {}
        for flow in self._flows:
            side = self._sides.get(flow.device, flow.port)
            own = next((gid for gid, index in side.gids.items() if index == flow.sgid_index), None) if side else None
            gid = gid_of(ipaddress.ip_address(flow.gid).packed)
            peer = self._told.peer_of(gid)
            if own is not None and peer is not None:
                wanted[Key(flow.device, flow.port, own, gid, flow.traffic_class, flow.sl)] = peer
        asked = {(key.own, key.gid) for key in wanted}
        home = self._sides.having(self._own)
        for peer in self._books.peers.values():
            gid = gid_of(peer.packed)
            if home is not None and peer.paths and (self._own, gid) not in asked:
                wanted[Key(home.device, home.port, self._own, gid, self._class, 0)] = peer
        for key in self._targets.keys() - wanted.keys():
            target = self._targets.pop(key)
            del self._numbers[target.index]
            self._tell(target, Verdict("unknown", ""))
        for key, peer in wanted.items():
            side = self._sides.get(key.device, key.port)
            known = self._targets.get(key)
            if known is None and len(self._numbers) < probe.NO_PATH:
                known = self._add(key, peer, now_s)
            if known is not None and side is not None:
                known.sgid_index = side.gids.get(key.own, known.sgid_index)

    def _add(self, key: Key, peer: Peer, now_s: float) -> Target:
        while self._next_number in self._numbers:
            self._next_number = (self._next_number + 1) % probe.NO_PATH
        number, self._next_number = self._next_number, (self._next_number + 1) % probe.NO_PATH
        target = Target(key, peer.packed, peer.address, number, self._books.settings.detection, now_s)
        target.seq = self._sequence  # a number that had another target goes on where that one may have ended
        self._targets[key] = self._numbers[number] = target
        return target

    def _on_roce(self, peer: Peer, places: list[probe.RocePlace]) -> None:
        now_s = self._clock()
        if self._told.take(peer, places, now_s):
            self._plan(now_s)

    # the tick
    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        now_s = self._clock()
        due_s = min((t.due_s for t in self._targets.values()), default=math.inf)
        if self._sides.polled:
            due_s = min(due_s, now_s + POLL_S)
        wait_s = max(0.0, min(due_s, self._look_s) - now_s)
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._tick)

    def _tick(self) -> None:
        """What one port or target meets keeps no other from its turn, and nothing keeps the next tick from coming."""
        self._timer = None
        try:
            now_s = self._clock()
            for side in self._sides.all():
                self._on_readable(side)
            for target in [t for t in self._targets.values() if t.due_s <= now_s]:
                late_s = now_s - target.due_s
                target.due_s = now_s + self._interval_s - (late_s if late_s < self._interval_s else 0.0)
                with self._faults.caught("asking a peer by verbs"):
                    self._probe(target, now_s)
            if now_s >= self._look_s:
                self._look_s = now_s + LOOK_S
                with self._faults.caught("looking at RDMA ports"):
                    if self._sides.look_changed():
                        self._told.tell_all(now_s)
                    self._plan(now_s)
        finally:
            self._arm()

    def _on_readable(self, side: Side) -> None:
        with self._faults.caught("reading datagrams"):
            self._read(side)

    def _probe(self, target: Target, now_s: float) -> None:
        peer = self._books.peers.get(target.peer)
        side = self._sides.get(target.key.device, target.key.port)
        if peer is None or not peer.boot or side is None:
            return
        if peer.silent:  # nothing can be said of the queue while nothing is heard at all
            target.pending.clear()
            return
        place = self._told.place(peer, target.key.gid)
        if place is None:
            self._told.ask(peer, now_s)
            return
        if place.qpn != target.qpn:
            target.qpn = place.qpn
            target.count_anew()
        missing = target.overdue(now_s, self._interval_s, peer.last_heard_s)
        if missing >= target.suspicious:
            first_s = next(iter(target.pending.values())).begun_s
            if self._told.said_since(peer, first_s):
                self._tell(target, target.judge(now_s, missing), missing)
            else:
                self._told.ask(peer, now_s, again=True)
        if not self._sender.afford_datagram(now_s):
            return
        begun_s = self._clock()
        report = probe.Report(0, peer.boot, 0, size_bytes=BYTES)
        payload = probe.encode(
            self._signer, target.key.own + target.key.gid, report, self._books.boot, target.index, target.seq + 1,
            int(begun_s * 1e9), probe.ASK,
        )  # fmt: skip
        sent_s = side.ud.now_s()
        token = side.ud.send(payload, target.route(), place.qpn, place.qkey)
        if token is not None:
            target.record(Asked(begun_s, sent_s, token))
            self._sequence = max(self._sequence, target.seq)

    def _read(self, side: Side) -> None:
        left, arrived = side.ud.poll()
        if side.ud.stamped:
            here = [one for one in self._targets.values() if (one.key.device, one.key.port) == (side.device, side.port)]
            for one in left:
                for target in here:
                    target.left(one.token, one.at_s)
        for datagram in arrived:
            if not self._hear(side, datagram):
                self.refused += 1

    def _hear(self, side: Side, datagram: Arrived) -> bool:
        """A datagram of a peer: answered, or an answer. False when it is not one."""
        peer = self._told.peer_of(datagram.source)
        if peer is None or datagram.target not in side.gids:
            return False
        packet = probe.decode(self._signer, datagram.source + datagram.target, datagram.payload)
        if isinstance(packet, probe.Refusal) or packet.boot != peer.boot:
            return False
        if packet.flags & probe.ASK:
            return self._answer(side, datagram, peer, packet)
        if packet.report_boot != self._books.boot:
            return False
        now_s = self._clock()
        for entry in packet.report():
            target = self._numbers.get(entry.path)
            if target is not None and (target.key.own, target.key.gid) == (datagram.target, datagram.source):
                answered = target.answered
                self._tell(target, target.answer(entry, datagram.at_s, now_s))
                if target.answered > answered:
                    peer.roce_late.take(target.peer_host_s, self._interval_s)
                    self._books.roce_late.take(target.host_s, self._interval_s)
        return True

    def _answer(self, side: Side, datagram: Arrived, peer: Peer, packet: probe.Probe) -> bool:
        """At once, in the class it came in, with how long it was here."""
        place = self._told.place(peer, datagram.source)
        hearer = self._hearers.get(datagram.source)
        if hearer is None or hearer.boot != packet.boot:
            hearer = self._hearers[datagram.source] = Hearer(packet.boot)
        if place is None or place.qpn != datagram.source_qpn or not hearer.accept(packet.path, packet.sequence):
            return False
        now_s = self._clock()
        if not self._sender.afford_datagram(now_s):
            return True
        here_s = max(0.0, side.ud.now_s() - datagram.at_s)
        heard = probe.Heard(packet.path, packet.sequence, hearer.counts[packet.path], dwell_s=here_s)
        report = probe.Report(0, peer.boot, 0, (heard,), size_bytes=BYTES)
        payload = probe.encode(
            self._signer, datagram.target + datagram.source, report, self._books.boot, probe.NO_PATH, 0,
            int(now_s * 1e9),
        )  # fmt: skip
        route = Route(
            str(ipaddress.IPv6Address(datagram.source)),
            side.gids[datagram.target],
            traffic_class=datagram.traffic_class,
        )
        side.ud.send(payload, route, place.qpn, place.qkey)
        return True

    def _tell(self, target: Target, verdict: Verdict | None, missing: int = 0) -> None:
        if verdict is None or (
            verdict.evidence == "unknown" and target.detector.verdict.evidence in ("good", "unknown")
        ):
            return
        ratio = 1.0 if verdict.evidence == "blackhole" else target.detector.loss_ratio
        event = RoceEvidence(
            device=target.key.device, peer=target.address, name=target.name, evidence=verdict.evidence,
            loss_ratio=ratio, rtt_s=target.rtt_s, host_s=target.host_s, peer_host_s=target.peer_host_s,
            why=target.why(missing) if verdict.evidence != "unknown" else "it is not asked any more",
        )  # fmt: skip
        self._emit(event)

    # what people are shown
    def rows(self) -> list[dict[str, Any]]:
        """A row a target. Times in seconds; None before the first answer."""
        return [
            {
                "name": t.name, "device": t.key.device, "peer": t.address, "gid": gid_text(t.key.gid),
                "source": gid_text(t.key.own), "traffic_class": t.key.traffic_class,
                "evidence": t.detector.verdict.evidence, "why": t.why(),
                "network_s": t.rtt_s if t.answered else None, "host_s": t.host_s if t.answered else None,
                "peer_host_s": t.peer_host_s if t.answered else None, "sent": t.sent, "answered": t.answered,
                "lost": t.lost, "stamped": self._sides.stamped(t.key.device, t.key.port),
            }
            for t in self._targets.values()
        ]  # fmt: skip
