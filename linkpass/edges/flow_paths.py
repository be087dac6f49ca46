"""Which path each flow of the job takes, and what it has sent again there: evidence of loss by the traffic itself.

The kernel's socket table says how much a flow has sent and sent again (tcpi_data_segs_out, tcpi_total_retrans), and how
much of that the receiver had twice (tcpi_dsack_dups, RFC 2883: it was not lost), but not its flow label. The label that
counts is the one on the wire, after the bucket's has been written: it is read from some packets as they leave the
uplinks (packet(7)). Nobody looks before a flow has sent something again, and for `CALM_S` after the last time.

What a queue pair has sent again others know (`rdma.resent`). Only of soft-RoCE do packets leave where they can be
looked at: hardware sends them past the kernel, and of a flow that is not seen no path is known.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Final

from linkpass.core.events import Event, FlowAt, FlowCount, FlowsLosing, FlowWindow
from linkpass.wire import bpf
from linkpass.wire.diag import Connection
from linkpass.wire.frame import ETH_P_IPV6, ETHERNET_BYTES, ROCE_PORT, UDP
from rdma.resent import Sends

CALM_S: Final = 10.0
SAMPLE: Final = 8
"""One of so many packets is looked at."""
MOST_FRAMES: Final = 256
"""Of one uplink in one poll; what comes after them is not looked at."""
MOST_FLOWS: Final = 4096
MOST_ASKED: Final = 64
"""Flows to one peer that are told to have sent something again."""
FRAME_BYTES: Final = ETHERNET_BYTES + 40 + 20
LEAST_BYTES: Final = ETHERNET_BYTES + 20 + 20
"""The same of UDP and RoCE's base transport header (8 and 12 bytes) as of TCP's."""
ROCE: Final = -1
_BUFFER_BYTES: Final = 1 << 22
"""The kernel counts whole segments against it, though only their heads are kept."""
_SO_RCVBUFFORCE: Final = 33
_ETH_P_ALL: Final = 3
_ETH_P_802_EX1: Final = 0x88B5
"""For experiments: a socket bound to it is not asked when other packets leave, and cannot be bound to nothing."""

Flow = tuple[str, int, int]
"""(peer, own port, its port); of RDMA: (peer, number of its queue pair, ROCE)."""
Way = tuple[str, int]
"""(uplink, label); of IPv4 the label is 0."""


class FlowPathEdge:
    """`follow` is called after each poll of the socket table. Emits FlowsLosing for each peer to which flows have sent
    something again in the last window and were seen since, and a FlowWindow a peer whose flows have sent something in a
    window, one window late: a flow counts for a path only if it took that path before and after. What is known of queue
    pairs may be of a window before: these have to be seen there in that one as well.

    `own`: this host's address; flows from other ones take other paths than all that is known of."""

    def __init__(self, emit: Callable[[Event], None], own: str) -> None:
        self._emit, self._own = emit, own
        self._sockets: dict[str, socket.socket] = {}
        self._looking: set[str] = set()
        self._until_s = float("-inf")
        self._before: dict[int, tuple[int, int, int]] = {}
        """Cookie -> segments sent, sent again, had twice, at the last poll."""
        self._ways: Mapping[Flow, Way | None] = {}
        self._ways_before: Mapping[Flow, Way | None] = {}
        self._polls: deque[float] = deque([float("inf")] * 3, 3)
        """When it was last polled: the first of these is the beginning of what `_ways_before` tells of."""
        self._grown: Mapping[Flow, tuple[int, int]] = {}
        self._sends: Mapping[Flow, Sends] = {}

    def set_uplink(self, name: str) -> None:
        """Call in the network namespace. Raises OSError."""
        if name in self._sockets:
            return
        sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, 0)
        try:
            attached = bpf.Filter(bpf.leaving(FRAME_BYTES, SAMPLE))
            sock.setsockopt(socket.SOL_SOCKET, bpf.SO_ATTACH_FILTER, attached.fprog)
            sock.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER_BYTES)
        except OSError:
            sock.close()
            raise
        self._sockets[name] = sock

    def close(self) -> None:
        for sock in self._sockets.values():
            sock.close()
        self._sockets.clear()
        self._looking.clear()

    def follow(self, connections: Iterable[Connection], now_s: float, sends: Iterable[Sends] = ()) -> None:
        """The job's connections as they are now, and what RDMA flows have sent lately."""
        grown = self._growth(connections)
        of_rdma = {(one.peer, one.to, ROCE): one for one in sends if one.own == self._own}
        grown |= {flow: (one.sent, one.again) for flow, one in of_rdma.items()}
        if any(again for _, again in grown.values()):
            self._until_s = now_s + CALM_S
        seen = self._read()
        if now_s < self._until_s:
            self._look()
        elif self._looking:
            self._look_away()
        self._tell_losing(seen)
        self._tell(seen)
        self._ways, self._ways_before, self._grown, self._sends = seen, self._ways, grown, of_rdma
        self._polls.append(now_s)

    def _growth(self, connections: Iterable[Connection]) -> dict[Flow, tuple[int, int]]:
        """(segments sent, of which again and for a reason) of each flow since the last poll."""
        before, self._before = self._before, {}
        grown: dict[Flow, tuple[int, int]] = {}
        for one in connections:
            if len(self._before) == MOST_FLOWS:
                break
            if one.src != self._own:
                continue
            now = self._before[one.cookie] = one.sent_segments, one.retransmitted, one.had_twice
            then = before.get(one.cookie)
            if then is not None and now[0] > then[0]:
                sent, again, twice = (mine - its for mine, its in zip(now, then, strict=True))
                grown[one.dst, one.sport, one.dport] = sent, min(max(0, again - twice), sent)
        return grown

    def _look(self) -> None:
        for name in self._sockets.keys() - self._looking:
            with contextlib.suppress(OSError):  # no such device now
                self._sockets[name].bind((name, _ETH_P_ALL))
                self._looking.add(name)

    def _look_away(self) -> None:
        """The kernel makes sure that nobody is at the hook any more, and that takes it a while."""
        socks = [(self._sockets[name], name) for name in self._looking]
        self._looking.clear()

        def unbind() -> None:
            for sock, name in socks:
                with contextlib.suppress(OSError):
                    sock.bind((name, _ETH_P_802_EX1))

        threading.Thread(target=unbind, name="flow paths", daemon=True).start()

    def _read(self) -> dict[Flow, Way | None]:
        """Where flows were seen since the last poll; None: on several paths."""
        seen: dict[Flow, Way | None] = {}
        for uplink in self._looking:
            sock = self._sockets[uplink]
            for _ in range(MOST_FRAMES):
                try:
                    frame = sock.recv(FRAME_BYTES)
                except OSError:  # nothing more, or the device is gone
                    break
                found = parse(frame)
                if found is not None:
                    flow, way = found[0], (uplink, found[1])
                    seen[flow] = way if seen.get(flow, way) == way else None
            else:
                self._drain(sock)
        return seen

    def _drain(self, sock: socket.socket) -> None:
        """What is left was seen in this window and must not be taken for the next one's."""
        for _ in range(16 * MOST_FRAMES):
            try:
                sock.recv(0)
            except OSError:
                return

    def _tell(self, seen: Mapping[Flow, Way | None]) -> None:
        """Tell of the last window, of the flows that have stayed on their path since."""
        of_peer: dict[str, list[FlowCount]] = {}
        for flow, (sent, again) in self._grown.items():
            way = self._ways.get(flow)
            if way is None or seen.get(flow) != way:
                continue
            one = self._sends.get(flow)
            if one is None:
                of_peer.setdefault(flow[0], []).append(FlowCount(FlowAt(*way, *flow[1:]), sent, again))
            elif one.since_s >= self._polls[0] and self._ways_before.get(flow) == way:
                count = FlowCount(FlowAt(*way, *flow[1:]), sent, again, one.name, one.least)
                of_peer.setdefault(flow[0], []).append(count)
        for peer, counts in of_peer.items():
            self._emit(FlowWindow(peer=peer, counts=tuple(counts)))

    def _tell_losing(self, seen: Mapping[Flow, Way | None]) -> None:
        """Tell where flows are that sent something again in the last window: their ways are to be known when this
        window is told of."""
        of_peer: dict[str, list[FlowAt]] = {}
        for flow, (_, again) in sorted(self._grown.items(), key=lambda item: -item[1][1]):
            way = seen.get(flow)
            if (
                flow[2] != ROCE
                and again
                and way is not None
                and len(flows := of_peer.setdefault(flow[0], [])) < MOST_ASKED
            ):
                flows.append(FlowAt(*way, *flow[1:]))
        for peer, flows in of_peer.items():
            self._emit(FlowsLosing(peer=peer, flows=tuple(flows)))


def parse(frame: bytes) -> tuple[Flow, int] | None:
    """Of an Ethernet frame with TCP or RoCE over IPv6 or IPv4: the flow and its label. None: cut off, a later fragment,
    or an IPv4 packet with options."""
    if int.from_bytes(frame[12:14], "big") == ETH_P_IPV6:
        if len(frame) < FRAME_BYTES:
            return None
        label, protocol, dst, after = int.from_bytes(frame[15:18], "big") & 0xFFFFF, frame[20], frame[38:54], 54
    else:
        if len(frame) < LEAST_BYTES or frame[14] != 0x45 or int.from_bytes(frame[20:22], "big") & 0x1FFF:
            return None
        label, protocol, dst, after = 0, frame[23], frame[30:34], 34
    own, its = (int.from_bytes(frame[at : at + 2], "big") for at in (after, after + 2))
    if protocol != UDP:
        return (_text(dst), own, its), label
    if its != ROCE_PORT:
        return None
    return (_text(dst), int.from_bytes(frame[after + 13 : after + 16], "big"), ROCE), label


@lru_cache(4096)
def _text(address: bytes) -> str:
    return str(ipaddress.ip_address(address))
