"""The books of RoCE datagrams: what was asked of whom, and what the answers say.

A datagram asks, the peer answers it from its own queue pair, and says for how long it had it (R-Pingmesh, SIGCOMM 2024,
section 4; there a second answer carries the moment at which the first has left, here one does: the time between the
responder's last look at its clock and the wire counts as the network's). What both hosts took is told apart from what
the network took. Losses are settled by answers to later datagrams; a run without any is only held against the network
while the peer is heard otherwise, so that a daemon that runs late makes no evidence.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from typing import Final, NamedTuple

from linkpass.core.detect import PathDetector, Verdict, WindowedMin
from linkpass.core.settings import Detection
from linkpass.wire import probe
from rdma.ud import Route

PENDING: Final = 64
FLOOR_S: Final = 30.0
FIRST_WAIT_S: Final = 1.0
"""For the first answer, before a round trip is known."""


class Key(NamedTuple):
    """What makes a target: our device, port and address, the peer's address, and the class. Addresses: 16 bytes."""

    device: str
    port: int
    own: bytes
    gid: bytes
    traffic_class: int
    sl: int


class Asked(NamedTuple):
    """One datagram: when its making began and ended (monotonic), when it was sent by the port's clock."""

    begun_s: float
    sent_s: float
    token: int


class Target:
    """One address of a peer, asked from one of ours."""

    def __init__(self, key: Key, peer: bytes, address: str, index: int, detection: Detection, now_s: float) -> None:
        """`peer`, `address`: of the host behind it; `index`: its number in packets."""
        self.key, self.peer, self.address, self.index = key, peer, address, index
        self.due_s = now_s
        self.sgid_index = 0
        self.qpn = 0
        """The peer's queue pair that the datagrams under way were sent to."""
        self.pending: OrderedDict[int, Asked] = OrderedDict()
        self.detector = PathDetector(detection, now_s)
        self.seq = self.sent = self.answered = self.lost = self.lost_there = 0
        self.rtt_s = self.host_s = self.peer_host_s = 0.0
        self._limit = detection.blackhole_losses
        self._floor = WindowedMin(FLOOR_S)
        self._wait_s, self._spread_s = 0.0, FIRST_WAIT_S / 4
        self._count = self._last = 0

    @property
    def name(self) -> str:
        key = self.key
        dscp = f", DSCP {key.traffic_class >> 2}" if key.traffic_class >> 2 else ""
        level = f", SL {key.sl}" if key.sl else ""
        port = f"/{key.port}" if key.port != 1 else ""
        return f"{key.device}{port} to {gid_text(key.gid)}{dscp}{level}"

    def route(self) -> Route:
        key = self.key
        return Route(
            str(ipaddress.IPv6Address(key.gid)), self.sgid_index, traffic_class=key.traffic_class, sl=key.sl
        )  # fmt: skip

    def count_anew(self) -> None:
        """The peer answers elsewhere than before, or we ask from elsewhere: what is under way proves nothing."""
        self.pending.clear()
        self._count = self._last = 0

    def record(self, asked: Asked) -> None:
        """A datagram has left with the next number."""
        self.seq += 1
        self.sent += 1
        self.pending[self.seq] = asked
        if len(self.pending) > PENDING:
            self.pending.popitem(last=False)
            self.lost += 1

    def left(self, token: int, at_s: float) -> None:
        """The device says when a datagram really left."""
        for seq, asked in self.pending.items():
            if asked.token == token:
                self.pending[seq] = asked._replace(sent_s=at_s)
                return

    def answer(self, entry: probe.Heard, at_s: float, now_s: float) -> Verdict | None:
        """Take an answer that arrived at `at_s` by the port's clock; the verdict if it has changed. One to a question
        that is not open is left out."""
        asked = self.pending.pop(entry.last, None)
        if asked is None:
            return None
        before = [seq for seq in self.pending if seq < entry.last]
        for seq in before:
            del self.pending[seq]
        self.lost += len(before)
        self.answered += 1
        if self._last and entry.count > self._count:
            self.lost_there += max(0, entry.last - self._last - (entry.count - self._count))
        self._count, self._last = entry.count, entry.last
        away_s, total_s = at_s - asked.sent_s, now_s - asked.begun_s
        self.rtt_s, self.peer_host_s = max(0.0, away_s - entry.dwell_s), entry.dwell_s
        self.host_s = max(0.0, total_s - away_s)
        off_s = abs(total_s - self._wait_s)  # as TCP's timer (RFC 6298): the mean, and how far off it is
        first = not self._wait_s
        self._wait_s = total_s if first else 0.875 * self._wait_s + 0.125 * total_s
        self._spread_s = total_s / 2 if first else 0.75 * self._spread_s + 0.25 * off_s
        queueing_s = self.rtt_s - self._floor.add(now_s, self.rtt_s)
        return self.detector.update(now_s, 1 + len(before), len(before), 0, queueing_s)

    def overdue(self, now_s: float, interval_s: float, heard_s: float) -> int:
        """Datagrams whose answer is overdue although the peer was heard since (at `heard_s`)."""
        wait_s = max(interval_s, self._wait_s + 4 * self._spread_s)
        return sum(min(now_s, heard_s) - one.begun_s > wait_s for one in self.pending.values())

    def judge(self, now_s: float, missing: int) -> Verdict | None:
        """A run of `missing` without an answer; the verdict if it has changed."""
        return self.detector.update(now_s, 0, 0, missing, None) if missing >= self._limit else None

    @property
    def suspicious(self) -> int:
        """From so many overdue datagrams on the peer is asked anew where it answers."""
        return max(1, self._limit - 1)

    def why(self, missing: int = 0) -> str:
        """The verdict in words."""
        evidence = self.detector.verdict.evidence
        if evidence == "blackhole":
            run = f"{missing} datagrams in a row" if missing else "datagrams"
            return f"{run} without an answer, though the peer is heard otherwise and answers at that queue pair"
        if evidence == "lossy":
            there = f", {self.lost_there} of them on the way there" if self.lost_there else ""
            return f"about {self.detector.loss_ratio:.1%} of the datagrams lost ({self.lost} in all{there})"
        if evidence == "queueing":
            return f"a queue stands: {self.rtt_s * 1e3:.3g} ms in the network, {self._floor.value * 1e3:.3g} at best"
        return "datagrams are answered" if evidence == "good" else "never answered"


class Hearer:
    """A peer's address from which we are asked."""

    def __init__(self, boot: int) -> None:
        self.boot = boot
        self.windows: dict[int, probe.ReplayWindow] = {}
        self.counts: dict[int, int] = {}

    def accept(self, path: int, sequence: int) -> bool:
        window = self.windows.get(path)
        if window is None:
            window = self.windows[path] = probe.ReplayWindow()
        if not window.accept(sequence):
            return False
        self.counts[path] = self.counts.get(path, 0) + 1
        return True


def gid_text(gid: bytes) -> str:
    """As people write the address behind it."""
    address = ipaddress.IPv6Address(gid)
    return str(address.ipv4_mapped or address)


def gid_of(packed: bytes) -> bytes:
    """An address of 4 or 16 bytes as a GID."""
    return packed if len(packed) == 16 else bytes(10) + b"\xff\xff" + packed
