"""One direction of a queue pair's packets: what came new, again, late or not at all, and what was answered.

A queue pair's requests count in its own sequence; its answers carry the numbers of the other end's requests
(InfiniBand Architecture Specification, volume 1, 9.7). So a direction has two sequences. A READ request takes as many
numbers as its answer has packets, which depends on the path's MTU: that is learnt from first and middle packets, which
are always full.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import Final

import msgspec

from rdma.roce.packet import READ, Packet
from rdma.roce.psn import Came, Seen
from rdma.roce.report import Pause, Way
from rdma.roce.retries import Retries

MTUS: Final = (256, 512, 1024, 2048, 4096)
NAMED: Final = 20
"""Findings of a kind that are named for a direction; the rest are counted."""
READS: Final = 256
AHEAD: Final = 64
"""An answer to a number further than this beyond the last request seen is not ours, or its request was not captured."""


class Hole(msgspec.Struct):
    """Numbers that were skipped at a moment: unrolled, the end not included. `of_answers`: they are READ responses'.
    `left`: how many of them never came, and how many of those were acknowledged; None until that is final."""

    at_s: float
    start: int
    end: int
    of_answers: bool = False
    left: tuple[int, int] | None = None


class Direction:
    """`heard`: how many packets; `pair`: the other direction, once known. Fed by `rdma.roce.explain`."""

    def __init__(self, index: int, packet: Packet) -> None:
        self.index = index
        self.source, self.target, self.qpn = packet.source, packet.target, packet.qpn
        self.sender_qpn = packet.sender_qpn
        self.transport = packet.transport
        self.first_s = self.last_s = packet.at_s
        self.pair: Direction | None = None
        self.paired_by = ""
        self.operations: Counter[int] = Counter()
        self.requests, self.answers = Seen(), Seen()
        self.packets = self.payload_bytes = self.repeated_bytes = 0
        self.retries = Retries()
        self.cnps = self.ce = self.ect = self.broken = self.unchecked = self.copies = self.restarts = 0
        self.naks: Counter[str] = Counter()
        self.rnr_s: set[float] = set()
        self.mtu: int | None = None
        self.ways: list[Way] = []
        self.moves = 0
        self.way: tuple[int, int | None] | None = None
        self.answered: int | None = None
        """The highest of our requests that the other end acknowledged, unrolled."""
        self.last_request_s: float | None = None
        self.pause: Pause | None = None
        self.holes: list[Hole] = []
        self.missing = self.missing_answered = 0
        """Numbers that never came, and how many of them were acknowledged: of what is closed."""
        self.reads: deque[tuple[int, int]] = deque(maxlen=READS)
        self._unsized: tuple[int, int] | None = None
        """A READ request whose count of numbers is not known yet: its number, its bytes."""

    @property
    def reliable(self) -> bool:
        return self.transport in ("RC", "XRC")

    @property
    def waits(self) -> bool | None:
        """Whether a request that passed here has no answer yet. None when answers are not known."""
        if self.pair is None or not self.reliable:
            return None
        return self.answered is None or self.answered < self.requests.next - 1

    # requests
    def request(self, packet: Packet) -> Came:
        """A packet of our own sequence; how it stands to those before."""
        self._pause(packet.at_s)
        self._settle(packet.psn)
        expected, count = self.requests.next, self._numbers(packet)
        came = self.requests.add(packet.psn, count)
        if came is Came.ELSEWHERE:
            self._anew()
            self.requests.begin(packet.psn, count)
        at = self.requests.unroll(packet.psn)
        if came is Came.AHEAD and len(self.holes) < NAMED:
            self.holes.append(Hole(packet.at_s, expected, at))
        if self.reliable:
            self.retries.request(packet, came, at, self.answered, paired=self.pair is not None)
        elif came in (Came.LATE, Came.AGAIN):
            self.retries.late += came is Came.LATE
            self.retries.again += came is Came.AGAIN
        if came is Came.AGAIN:
            self.repeated_bytes += packet.payload_bytes
        else:
            self.payload_bytes += packet.payload_bytes
        self.last_request_s = packet.at_s
        return came

    def _anew(self) -> None:
        """Another connection of the same numbers and addresses, or the same one after a long time unseen."""
        self.restarts += 1
        self._close_holes()
        self.answered, self._unsized = None, None
        self.retries.begin()
        self.reads.clear()

    def _pause(self, at_s: float) -> None:
        if self.last_request_s is None:
            return
        seconds = max(0.0, at_s - self.last_request_s)
        if self.pause is None or seconds > self.pause.seconds:
            self.pause = Pause(self.last_request_s, seconds, self.waits)

    # READ requests take the numbers of their answer
    def _numbers(self, packet: Packet) -> int:
        if packet.opcode & 0x1F != READ:
            return 1
        count = numbers_of(packet.read_bytes or 0, self.path_mtu)
        if count is None:
            self._unsized = (packet.psn, packet.read_bytes or 0)
            return 1
        self.reads.append((packet.psn, count))
        return count

    @property
    def path_mtu(self) -> int | None:
        return self.mtu or (self.pair.mtu if self.pair is not None else None)

    def _settle(self, psn: int) -> None:
        """The next request after a READ of unknown length: its number tells the length, if an MTU explains it."""
        if self._unsized is None:
            return
        start, size = self._unsized
        between = self.requests.unroll(psn) - self.requests.unroll(start)
        self.measure(between if between in {numbers_of(size, mtu) for mtu in MTUS} else None)

    def measure(self, count: int | None = None) -> None:
        """The numbers of a READ request whose length was not known, if its answer has told the MTU meanwhile; `count`
        them else."""
        if self._unsized is None:
            return
        start, size = self._unsized
        count = numbers_of(size, self.path_mtu) or count
        if count is not None:
            self.requests.skip(self.requests.unroll(start) + count)
            self.reads.append((start, count))
            self._unsized = None

    # answers
    def answer(self, packet: Packet) -> None:
        """An acknowledgement or READ response of the other direction's requests, which `pair` holds once known."""
        if not packet.is_read_response:
            return
        operation = packet.opcode & 0x1F
        fresh = self.answers.first is None
        at = self.answers.unroll(packet.psn)
        if not fresh and at > self.answers.next:
            to = at if operation in (13, 16) else self._read_start(packet.psn)
            if to is not None and to <= at:
                self.answers.skip(to)
        expected, first = self.answers.next, self.answers.first
        came = self.answers.add(packet.psn)
        if came is Came.ELSEWHERE:
            self.answers.begin(packet.psn)
        elif came is Came.LATE and first is not None and at < first:
            self.answers.fill(at, first)  # an earlier request's: what lies between need not be answers
        elif came is Came.AHEAD and len(self.holes) < NAMED:
            self.holes.append(Hole(packet.at_s, expected, self.answers.unroll(packet.psn), of_answers=True))
        if came is Came.AGAIN:
            self.retries.again += 1
            self.repeated_bytes += packet.payload_bytes
            return
        self.retries.late += came is Came.LATE
        self.payload_bytes += packet.payload_bytes

    def _read_start(self, psn: int) -> int | None:
        """Where the answer with this number began, in the unrolled sequence of answers."""
        if self.pair is None:
            return None
        for start, count in reversed(self.pair.reads):
            at = self.answers.unroll(start)
            if at <= self.answers.unroll(psn) < at + count:
                return at
        return None

    def hear(self, packet: Packet) -> None:
        """The other end's answer to our requests."""
        if self.requests.first is None:
            return
        at, nak = self.requests.unroll(packet.psn), packet.nak
        if at >= self.requests.next + AHEAD:
            return
        at -= bool(nak)
        if self.answered is None or at > self.answered:
            self.answered = at
        self.retries.answer(at, nak, packet.at_s)

    def close(self) -> None:
        """The capture has ended."""
        self._close_holes()

    def _close_holes(self) -> None:
        """What has not come by now counts as missing."""
        for hole in self.holes:
            if hole.left is None:
                seen = self.answers if hole.of_answers else self.requests
                known = 0 if hole.of_answers else self._known(hole.start, hole.end)
                hole.left = seen.missing(hole.start, hole.end), known
        self.missing_answered += self._known(self.requests.first or 0, self.requests.next)
        self.missing += self.requests.missing(self.requests.first or 0, self.requests.next)
        self.missing += self.answers.missing(self.answers.first or 0, self.answers.next)
        for seen in (self.requests, self.answers):
            self.missing += seen.forgotten
            seen.forgotten = 0
            seen.holes.clear()

    def _known(self, start: int, end: int) -> int:
        """How many numbers of a range never passed here and were acknowledged all the same."""
        return 0 if self.answered is None else self.requests.missing(start, min(end, self.answered + 1))


def numbers_of(size: int, mtu: int | None) -> int | None:
    """How many packets an answer of so many bytes has; None when that depends on an MTU which is not known."""
    if mtu is None:
        return 1 if size <= MTUS[0] else None
    return max(1, -(-size // mtu))
