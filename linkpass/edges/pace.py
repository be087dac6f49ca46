"""Looks at the job's sockets many times a second and says what that tells of the job's pace (`linkpass.core.pace`).

Which connections matter is known from the socket table, once a second: those that have carried a hundredth of what the
busiest has. Only these are asked for, one by one in a single datagram, and only while they carry anything. What a look
costs is measured, and the interval stretches so that all looks together stay within `cpu_ratio` of a core.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from linkpass.core.events import Event, PaceClaim, PaceTold, StepArrived
from linkpass.core.pace import PaceMeter
from linkpass.core.settings import Stragglers
from linkpass.faults import Faults
from linkpass.wire import diag, tcp_info

MOST_SOCKETS: Final = 128
BUSY_RATIO: Final = 0.01
QUIET_S: Final = 60.0
"""A connection that carries nothing for so long is not looked at until it does again."""
MOST_INTERVAL_S: Final = 0.5
TELL_S: Final = 0.1
"""Between two words, when there is something new that counts against somebody."""
REPEAT_S: Final = 1.0
ANSWER_S: Final = 0.05
RECEIVE_BYTES: Final = 4096
FIRST_COST_S: Final = 0.0005
WAKE_S: Final = 0.0001
"""What a look costs beside what its own clock sees: the loop's wake-up, words to peers and theirs. Measured: daemons
that look a hundred times a second take 1.8 % of a core more than those that do not, half of it within the looks."""
FADE: Final = 0.1
MOST_ARRIVALS: Final = 12


class PaceEdge:
    """`tell(claims, arrivals)` says it to peers. Sockets are opened in the network namespace of the thread that calls
    `open`; nothing is asked before `follow` names connections that carry data."""

    def __init__(
        self,
        settings: Stragglers,
        emit: Callable[[Event], None],
        tell: Callable[[tuple[PaceClaim, ...], list[StepArrived]], Any],
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._settings, self._emit, self._tell = settings, emit, tell
        self._clock, self._cpu_clock = clock, cpu_clock
        self._socket: socket.socket | None = None
        self._meter = PaceMeter(settings)
        self._carried: dict[int, int] = {}
        """Cookie -> bytes at the last `follow`."""
        self._growth: dict[int, tuple[float, float]] = {}
        """Cookie -> when it last carried something worth a look, and its share of it, fading."""
        self._asked: dict[int, tuple[bytes, str]] = {}
        """Sequence -> question, peer: one for each connection that is followed."""
        self._questions = b""
        self._seq = 0
        self._timer: asyncio.TimerHandle | None = None
        self._cost_s = FIRST_COST_S
        self._told_s = float("-inf")
        self._told_hits = 0
        self._arrivals: list[StepArrived] = []
        self._faults = Faults()
        self.looks = 0
        self.cpu_s = 0.0
        """Processor time of all looks so far."""
        self.last_error = ""

    def open(self) -> None:
        """Raises OSError when the kernel has no socket diagnosis."""
        kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC
        try:
            self._socket = socket.socket(socket.AF_NETLINK, kind, diag.NETLINK_SOCK_DIAG)
        except OSError as error:
            raise OSError(error.errno, f"the job's pace: {error.strerror}") from error
        self._socket.settimeout(ANSWER_S)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    @property
    def faults(self) -> int:
        return self._faults.count

    @property
    def interval_s(self) -> float:
        """Between two looks now."""
        least_s = (self._cost_s + WAKE_S) / self._settings.cpu_ratio
        return min(MOST_INTERVAL_S, max(self._settings.interval_s, least_s))

    def view(self) -> dict[str, Any]:
        """What `status` shows."""
        return {
            "connections": len(self._asked), "interval_s": self.interval_s, "looks": self.looks,
            "cpu_s": self.cpu_s, "steps": self._meter.units, "period_s": self._meter.period_s,
            "claims": msgspec.to_builtins([msgspec.structs.asdict(claim) for claim in self._meter.claims()]),
            "error": self.last_error,
        }  # fmt: skip

    def follow(self, connections: Iterable[diag.Connection]) -> None:
        """All connections of the job, as the socket table has them now; about once a second."""
        now_s = self._clock()
        found = {connection.cookie: connection for connection in connections}
        carried = {cookie: c.acked_bytes + c.received_bytes for cookie, c in found.items()}
        grown = {cookie: carried[cookie] - self._carried.get(cookie, carried[cookie]) for cookie in found}
        self._carried = carried
        least = max(1.0, BUSY_RATIO * max(grown.values(), default=0))
        self._growth = {
            cookie: (now_s, grown[cookie]) if grown[cookie] >= least else known
            for cookie in found
            if grown[cookie] >= least or ((known := self._growth.get(cookie, (-QUIET_S, 0.0)))[0] > now_s - QUIET_S)
        }
        busy = sorted(self._growth, key=lambda cookie: -self._growth[cookie][1])[:MOST_SOCKETS]
        self._ask_for([found[cookie] for cookie in busy])
        if self._asked and self._timer is None and self._socket is not None:
            self._arm()
        self._tell_arrivals()

    def arrived(self, arrival: StepArrived) -> None:
        """A rank of this host has come to a step: peers are told with the next word."""
        self._arrivals = [*self._arrivals, arrival][-MOST_ARRIVALS:]
        if self._timer is None:
            self._tell_arrivals()

    # inside
    def _ask_for(self, connections: list[diag.Connection]) -> None:
        self._asked = {}
        for c in connections:
            self._seq = (self._seq + 1) & 0x7FFFFFFF
            question = tcp_info.question(self._seq, c.src, c.sport, c.dst, c.dport, c.cookie)
            self._asked[self._seq] = question, c.dst
        self._questions = b"".join(question for question, _ in self._asked.values())
        followed = {peer for _, peer in self._asked.values()}
        self._meter.forget([peer for peer in self._meter.peers if peer not in followed])

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self.interval_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        begun_s = self._cpu_clock()
        with self._faults.caught("looking at the pace of the job"):
            self._look()
            self._speak()
        cost_s = self._cpu_clock() - begun_s
        self._cost_s += FADE * (cost_s - self._cost_s)
        self.cpu_s += cost_s
        self.looks += 1
        if self._asked:
            self._arm()

    def _look(self) -> None:
        if self._socket is None:
            return
        try:
            samples = self._ask(self._socket)
        except OSError as error:
            self.last_error = error.strerror or str(error)
            return
        self._meter.look(self._clock(), samples, self.interval_s)

    def _ask(self, sock: socket.socket) -> list[tcp_info.TcpState]:
        """Answers of those that are still there. What is left of an earlier question that failed is passed over."""
        sock.send(self._questions)
        missing = dict(self._asked)
        samples = []
        while missing:
            answer = sock.recv(RECEIVE_BYTES)
            asked = missing.pop(tcp_info.sequence(answer), None)
            if asked is None:
                continue
            state = tcp_info.parse(answer, asked[1])
            if state is not None:
                samples.append(state)
        if self._asked and not samples:
            self.last_error = f"none of {len(self._asked)} connections is told of ({errno.errorcode[errno.ENOENT]})"
        return samples

    def _speak(self) -> None:
        now_s = self._clock()
        new = self._meter.hits != self._told_hits
        if now_s - self._told_s < (TELL_S if new or self._arrivals else REPEAT_S):
            return
        claims = self._meter.claims()
        if claims:
            self._told_hits = self._meter.hits
            self._emit(PaceTold(claims=claims))
        if claims or self._arrivals:
            self._told_s = now_s
            arrivals, self._arrivals = self._arrivals, []
            self._tell(claims, arrivals)

    def _tell_arrivals(self) -> None:
        """Where there are no sockets to look at."""
        now_s = self._clock()
        if self._arrivals and self._timer is None and now_s - self._told_s >= TELL_S:
            self._told_s = now_s
            arrivals, self._arrivals = self._arrivals, []
            self._tell((), arrivals)
