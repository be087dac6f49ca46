"""Packets in, findings out: what a capture of RoCE traffic says of each queue pair. Pure, in one pass.

A packet names the receiver's queue pair only. The sender's is found by its answers: an acknowledgement carries the
number of a request, and where just one direction of the other way has that number, the two are a pair. Answers that
contradict it later undo the pair, and `unknown` is said.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from rdma.roce import findings
from rdma.roce.direction import NAMED, Direction
from rdma.roce.packet import CNP, Packet, operation
from rdma.roce.psn import Came
from rdma.roce.report import Finding, Flow, Report, Way

COPY_S: Final = 1e-3
"""The same packet at another interface, or with another hop limit, within this time is not one sent again."""
REMEMBERED: Final = 4096
VOTES: Final = 3
"""Answers that fit one direction alone, before two directions count as a pair where there are others."""
FLOWS: Final = 20_000
_CONNECTED: Final = frozenset({"RC", "UC", "XRC"})


class Explainer:
    """`add` each packet in the order of the capture, then ask once for the `report`. Memory is bounded: by the number
    of queue pairs (at most FLOWS), not by that of packets."""

    def __init__(self) -> None:
        self._flows: dict[tuple[str, str, int, int | None], Direction] = {}
        self._between: dict[tuple[str, str], list[Direction]] = {}
        self._recent: dict[tuple[str, str, int, int, int, bytes], tuple[float, str, int]] = {}
        self._votes: Counter[tuple[int, int]] = Counter()
        self._against: Counter[int] = Counter()
        self._distrusted: set[tuple[int, int]] = set()
        self._named: Counter[tuple[int, str]] = Counter()
        self._findings: list[Finding] = []
        self._places: set[str] = set()
        self._packets = self._untold = 0
        self._last_s = 0.0

    def add(self, packet: Packet) -> None:
        """Times may go back a little between packets, as captures of several queues do."""
        self._packets += 1
        self._last_s = max(self._last_s, packet.at_s)
        flow = self._flow(packet)
        if flow is None:
            self._untold += 1
            return
        if packet.icrc_ok is False:
            flow.broken += 1
            self._tell(packet.at_s, "broken", flow, findings.broken(packet))
            return
        if self._is_copy(packet):
            flow.copies += 1
            return
        self._count(flow, packet)
        if packet.opcode == CNP:
            flow.cnps += 1
        elif packet.transport == "?":
            return
        elif not packet.is_answer:
            if flow.request(packet) is Came.ELSEWHERE:
                self._tell(packet.at_s, "new connection", flow, findings.jumped(packet))
        elif flow.transport in _CONNECTED:
            self._answer(flow, packet)

    def _flow(self, packet: Packet) -> Direction | None:
        key = (packet.source, packet.target, packet.qpn, packet.sender_qpn)
        flow = self._flows.get(key)
        if flow is None and len(self._flows) < FLOWS:
            flow = self._flows[key] = Direction(len(self._flows), packet)
        return flow

    def _count(self, flow: Direction, packet: Packet) -> None:
        if not flow.packets:  # a broken one may have named any queue pair
            flow.transport, flow.first_s = packet.transport, packet.at_s
            self._between.setdefault((packet.source, packet.target), []).append(flow)
        flow.packets += 1
        flow.last_s = packet.at_s
        flow.operations[packet.opcode] += 1
        flow.unchecked += packet.icrc_ok is None
        flow.ect += packet.ecn in (1, 2)
        if packet.ecn == 3:
            flow.ce += 1
            if flow.ce == 1:
                self._tell(packet.at_s, "congestion", flow, "a switch marked a packet: congestion (ECN CE)")
        if packet.opcode == CNP:
            if flow.cnps == 0:
                self._tell(packet.at_s, "cnp", flow, findings.slow_down(packet))
            return
        if flow.transport == "CNP":
            flow.transport = packet.transport
        if packet.is_full and packet.payload_bytes:
            flow.mtu = max(flow.mtu or 0, packet.payload_bytes)
        way = (packet.source_port, packet.label)
        if way != flow.way:
            if flow.way is not None:
                flow.moves += 1
                self._tell(packet.at_s, "moved", flow, findings.moved(flow.way, way))
            flow.way = way
            if len(flow.ways) < NAMED:
                flow.ways.append(Way(packet.at_s, *way))

    def _is_copy(self, packet: Packet) -> bool:
        """Seen a moment ago at another point of capture. Copies are what it was before it: no loss, nothing again."""
        self._places.add(packet.where)
        key = (packet.source, packet.target, packet.qpn, packet.opcode, packet.psn, packet.icrc)
        before = self._recent.pop(key, None)
        self._recent[key] = (packet.at_s, packet.where, packet.hop_limit)
        if len(self._recent) > REMEMBERED:
            del self._recent[next(iter(self._recent))]
        if before is None or abs(packet.at_s - before[0]) > COPY_S:
            return False
        return (packet.where, packet.hop_limit) != before[1:]

    # answers and pairs
    def _answer(self, flow: Direction, packet: Packet) -> None:
        if flow.pair is None:
            self._guess(flow, packet.psn)
        flow.answer(packet)
        asker = flow.pair
        nak = packet.nak
        if asker is not None:
            asker.measure()
            if asker.requests.first is not None and not asker.requests.covers(packet.psn):
                self._doubt(flow, asker)
            else:
                self._votes[_key(flow, asker)] += 1
            asker.hear(packet)
        if nak:
            flow.naks[nak] += 1
            if packet.rnr_s is not None:
                flow.rnr_s.add(packet.rnr_s)
            self._tell(packet.at_s, "nak", flow, findings.refused(packet), nak)

    def _guess(self, flow: Direction, psn: int) -> None:
        others = [one for one in self._between.get((flow.target, flow.source), ()) if one.transport == flow.transport]
        fits = [
            one for one in others
            if one.pair is None and one.requests.covers(psn) and _key(flow, one) not in self._distrusted
        ]  # fmt: skip
        if len(fits) != 1:
            return
        (asker,) = fits
        key = _key(flow, asker)
        self._votes[key] += 1
        alone = len(others) == 1 and len(self._between[flow.source, flow.target]) == 1
        if alone or self._votes[key] >= VOTES:
            flow.pair, asker.pair = asker, flow
            flow.paired_by = asker.paired_by = "acknowledged numbers"

    def _doubt(self, flow: Direction, asker: Direction) -> None:
        """An answer to what was never asked: an uncaptured request's, or the pair is wrong."""
        key = _key(flow, asker)
        self._against[flow.index] += 1
        if self._against[flow.index] > 8 and self._against[flow.index] > self._votes[key]:
            self._distrusted.add(key)
            flow.pair = asker.pair = None
            flow.paired_by = asker.paired_by = ""
            self._against[flow.index] = 0

    # the report
    def _tell(self, at_s: float, kind: str, flow: Direction, says: str, counted_as: str = "") -> None:
        key = (flow.index, counted_as or kind)
        self._named[key] += 1
        if self._named[key] <= NAMED:
            self._findings.append(Finding(at_s, kind, flow.index, says))

    def report(self, end_s: float | None = None) -> Report:
        """`end_s`: of the capture, where other packets go on after the last RoCE packet."""
        end_s = max(self._last_s, end_s or 0.0)
        self._pair_the_rest()
        views = []
        for flow in self._flows.values():
            flow.close()
            for hole in flow.holes:
                self._tell(hole.at_s, "missing", flow, findings.skipped(hole))
            longest = sorted(flow.retries.stalls, key=lambda one: one.seconds, reverse=True)
            for stall in longest[:NAMED]:
                self._tell(stall.began_s, "sent again", flow, findings.sent_again(stall, flow))
            self._named[flow.index, "sent again"] = flow.retries.count
            gave_up, words = findings.given_up(flow, end_s)
            if words and flow.retries.stall is not None:
                self._tell(flow.retries.stall.last_s, "gave up", flow, words)
            views.append(_view(flow, gave_up=gave_up))
        self._findings.sort(key=lambda one: one.at_s)
        unnamed = sum(max(0, count - NAMED) for count in self._named.values())
        notes = findings.notes(list(self._flows.values()), self._untold, len(self._places))
        return Report(tuple(views), tuple(self._findings), self._packets, unnamed, tuple(notes))

    def _pair_the_rest(self) -> None:
        """Two directions without answers that tell are a pair where there are no others between the two addresses."""
        able = (*_CONNECTED, "CNP")
        for source, target in self._between:
            ours = [one for one in self._between[source, target] if one.transport in able]
            theirs = [one for one in self._between.get((target, source), []) if one.transport in able]
            if len(ours) != 1 or len(theirs) != 1:
                continue
            a, b = ours[0], theirs[0]
            if a.transport != "CNP" and a.pair is None and b.pair is None and _key(a, b) not in self._distrusted:
                a.pair, b.pair = b, a
                a.paired_by = b.paired_by = "the only ones between these addresses"


def _key(a: Direction, b: Direction) -> tuple[int, int]:
    return (min(a.index, b.index), max(a.index, b.index))


def _view(flow: Direction, *, gave_up: bool | None) -> Flow:
    stalls = [one.seconds for one in flow.retries.stalls if one.ended_s is not None]
    return Flow(
        source=flow.source, target=flow.target, qpn=flow.qpn,
        sender_qpn=flow.pair.qpn if flow.pair is not None else flow.sender_qpn,
        paired_by=flow.paired_by or ("said by its datagrams" if flow.sender_qpn is not None else ""),
        reverse=flow.pair.index if flow.pair is not None else None,
        transport=flow.transport, packets=flow.packets, first_s=flow.first_s, last_s=flow.last_s,
        operations={operation(code): count for code, count in sorted(flow.operations.items())},
        payload_bytes=flow.payload_bytes, repeated_bytes=flow.repeated_bytes,
        sent_again=flow.retries.again, sent_again_unseen=flow.retries.unseen, out_of_order=flow.retries.late,
        missing=flow.missing, missing_answered=flow.missing_answered,
        naks=dict(flow.naks), rnr_s=tuple(sorted(flow.rnr_s)), cnps=flow.cnps, ce=flow.ce, ect=flow.ect,
        broken=flow.broken, unchecked=flow.unchecked, copies=flow.copies, mtu=flow.mtu,
        ways=tuple(flow.ways), moves=flow.moves, pause=flow.pause, stalls=flow.retries.count,
        stalls_s=tuple(stalls), gave_up=gave_up,
    )  # fmt: skip
