"""Which of a queue pair's requests were sent again, since when, why, and when it went on.

A sender that misses an answer goes back and repeats everything from there on; one that was told of a gap, or that the
receiver is not ready, does so at once (InfiniBand Architecture Specification, volume 1, 9.7.5 and 9.7.8). A packet that
comes late and was not seen before may have been sent again too, or the fabric has changed the order: what comes before
and after it tells.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from rdma.roce.packet import Packet
from rdma.roce.psn import Came

SENT: Final = 512
"""Requests whose moment is remembered, to tell how long after it they were sent again."""
LISTED: Final = 64
"""Stalls that are kept, the longest of them."""


class Stall(msgspec.Struct):
    """From the first packet that was sent again to progress. `at`: the lowest number of them, unrolled; `rounds`: how
    often that one was sent again; `after_s`: since it was sent before; `nak`: what asked for it; `answered`: it had
    been acknowledged before it was sent again; `interval_s`: the longest between two tries; `ended_s`: None while
    nothing proves progress."""

    began_s: float
    at: int
    psn: int
    after_s: float
    nak: str
    answered: bool
    last_s: float
    interval_s: float
    packets: int = 1
    rounds: int = 1
    ended_s: float | None = None

    @property
    def seconds(self) -> float:
        """Infinite without an end."""
        return math.inf if self.ended_s is None else self.ended_s - self.began_s


class Retries:
    """`again`: packets seen before; `unseen`: sent again, though the first copy never passed; `late`: out of order."""

    __slots__ = ("_last_at", "_latest", "_nak", "_repeats", "_run", "_sent", "again", "count", "late", "stall",
                 "stalls", "unseen")  # fmt: skip

    def __init__(self) -> None:
        self.again = self.unseen = self.late = self.count = 0
        self.stalls: list[Stall] = []
        self.begin()

    def begin(self) -> None:
        """Another connection: what was under way has nothing to do with what comes."""
        self.stall: Stall | None = None
        self._latest: Stall | None = None
        self._repeats = False  # the last request was sent again
        self._run = 0  # late packets in a row, with nothing between their numbers
        self._last_at: int | None = None
        self._sent: dict[int, float] = {}
        self._nak = ("", 0, -math.inf)  # the last one: what, which number, when

    def request(self, packet: Packet, came: Came, at: int, answered: int | None, *, paired: bool) -> None:
        """`at`: its number, unrolled; `answered`: the highest one acknowledged; `paired`: answers are seen at all."""
        follows = self._last_at is not None and at == self._last_at + 1
        if came is Came.LATE and not self._was_lost(at, follows=follows):
            self.late += 1
            self._run = self._run + 1 if follows else 1
        elif came in (Came.LATE, Came.AGAIN):
            self.unseen += came is Came.LATE
            self.again += came is Came.AGAIN
            if came is Came.AGAIN and self._run and follows:  # those before it began the repetition
                self.late -= self._run
                self.unseen += self._run
            self._resent(packet, at, answered, follows=follows)
            self._run = 0
        else:
            self._repeats, self._run = False, 0
            if not paired:
                self._progress(packet.at_s)  # a new packet, since nothing else can prove it
        self._last_at = at
        self._sent.pop(at, None)
        self._sent[at] = packet.at_s
        if len(self._sent) > SENT:
            del self._sent[next(iter(self._sent))]

    def _was_lost(self, at: int, *, follows: bool) -> bool:
        """Whether a late packet was asked for, or belongs to a repetition."""
        what, number, _ = self._nak
        return (what == "PSN sequence error" and number == at) or (self._repeats and follows and self.stall is not None)

    def _resent(self, packet: Packet, at: int, answered: int | None, *, follows: bool) -> None:
        stall, goes_on = self.stall, self._repeats and follows
        self._repeats = True
        if stall is None and goes_on and self._latest is not None:
            self._latest.packets += 1  # its first ones were answered meanwhile
        elif stall is None:
            before_s = self._sent.get(at)
            what, number, nak_s = self._nak
            asked = what and number <= at and (before_s is None or nak_s >= before_s)
            after_s = 0.0 if before_s is None else max(0.0, packet.at_s - before_s)
            self._open(Stall(packet.at_s, at, packet.psn, after_s, what if asked else "",
                             answered is not None and at <= answered, packet.at_s, after_s))  # fmt: skip
        else:
            stall.packets += 1
            if at < stall.at:
                stall.at, stall.psn = at, packet.psn
            elif at == stall.at:
                stall.rounds += 1
                stall.interval_s = max(stall.interval_s, packet.at_s - stall.last_s)
                stall.last_s = packet.at_s

    def _open(self, stall: Stall) -> None:
        self.stall = self._latest = stall
        self.count += 1
        self.stalls.append(stall)
        if len(self.stalls) > LISTED:
            self.stalls.remove(min(self.stalls, key=lambda one: one.seconds))

    def answer(self, at: int, nak: str, at_s: float) -> None:
        """The other end has everything up to `at`; a NAK complains of the number after it."""
        if nak:
            self._nak = (nak, at + 1, at_s)
        if self.stall is not None and at >= self.stall.at:
            self._progress(at_s)

    def _progress(self, at_s: float) -> None:
        if self.stall is not None:
            self.stall.ended_s = at_s
            self.stall = None
