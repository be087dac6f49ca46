"""Packet sequence numbers: 24 bits that wrap, and which of them a point of capture has seen.

Numbers are compared as RFC 1982 does: the shorter way round is the direction. They are unrolled into plain integers, so
that a stream may wrap as often as it likes; what lies half a round back is forgotten.
"""

from __future__ import annotations

from bisect import bisect_right
from enum import Enum
from typing import Final

ROUND: Final = 1 << 24
HALF: Final = ROUND >> 1
JUMP: Final = 1 << 16
"""Further than this from what is expected, a number belongs to another connection, or to a long time unseen."""
HOLES: Final = 4096
"""Remembered; of more, the oldest are forgotten (their packets would count as seen)."""


class Came(Enum):
    """How a packet's number stands to those before it."""

    FIRST = "first"
    NEXT = "next"
    AHEAD = "ahead"
    """Numbers in between have not been seen."""
    LATE = "late"
    """Behind others, and not seen before."""
    AGAIN = "again"
    ELSEWHERE = "elsewhere"
    """A jump; nothing was changed, and `begin` begins anew."""


def distance(psn: int, reference: int) -> int:
    """From one number to another, the shorter way round: -2^23 to 2^23 - 1."""
    return (psn - reference + HALF) % ROUND - HALF


class Seen:
    """`next`: the number expected, unrolled; `holes`: ranges below it that were not seen, from the lowest on."""

    __slots__ = ("first", "forgotten", "holes", "next")

    def __init__(self) -> None:
        self.first: int | None = None
        self.next = 0
        self.holes: list[tuple[int, int]] = []
        self.forgotten = 0
        """Numbers in holes that are no longer remembered."""

    def unroll(self, psn: int) -> int:
        """The number as an integer near `next`."""
        return self.next + distance(psn, self.next)

    def covers(self, psn: int) -> bool:
        """It lies between the first and the last that were seen."""
        return self.first is not None and self.first <= self.unroll(psn) < self.next

    def begin(self, psn: int, count: int = 1) -> None:
        """Forget what was seen, and count from here."""
        self.holes.clear()
        self.first, self.next = psn, psn + count

    def add(self, psn: int, count: int = 1) -> Came:
        """A packet that takes `count` numbers from `psn` on."""
        if self.first is None:
            self.begin(psn, count)
            return Came.FIRST
        at = self.unroll(psn)
        if not -JUMP <= at - self.next <= JUMP and not self.first <= at < self.next:
            return Came.ELSEWHERE
        if at >= self.next:
            ahead = at > self.next
            if ahead:
                self._hole(self.next, at)
            self.next = at + count
            self._forget()
            return Came.AHEAD if ahead else Came.NEXT
        if at < self.first:
            if at + count < self.first:
                self.holes.insert(0, (at + count, self.first))
            self.fill(self.first, at + count)
            self.first, self.next = at, max(self.next, at + count)
            return Came.LATE
        was_missing = self.fill(at, at + count)
        self.next = max(self.next, at + count)
        return Came.LATE if was_missing else Came.AGAIN

    def skip(self, to: int) -> None:
        """What lies before `to` is not expected."""
        self.next = max(self.next, to)

    def missing(self, start: int, end: int) -> int:
        """How many numbers of a range were not seen."""
        return sum(max(0, min(end, b) - max(start, a)) for a, b in self.holes)

    def _hole(self, start: int, end: int) -> None:
        self.holes.append((start, end))
        if len(self.holes) > HOLES:
            a, b = self.holes.pop(0)
            self.forgotten += b - a

    def fill(self, start: int, end: int) -> bool:
        """Whether `start` itself was missing; the whole range counts as seen from now on."""
        index = max(0, bisect_right(self.holes, (start, ROUND << 40)) - 1)
        was_missing = False
        while index < len(self.holes) and self.holes[index][0] < end:
            a, b = self.holes[index]
            if b <= start:
                index += 1
                continue
            was_missing = was_missing or a <= start < b
            left = [part for part in ((a, start), (end, b)) if part[0] < part[1]]
            self.holes[index : index + 1] = left
            index += len(left)
        return was_missing

    def _forget(self) -> None:
        """Half a round back a number could be taken for one to come."""
        assert self.first is not None
        low = self.next - HALF
        if low > self.first:
            self.first = low
            while self.holes and self.holes[0][1] <= low:
                a, b = self.holes.pop(0)
                self.forgotten += b - a
