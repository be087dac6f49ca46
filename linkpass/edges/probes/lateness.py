"""How late hosts are with what they owe to probes: by their own word on the reports, by their answers of RoCE.

A report rides on the next probe, so that how long a probe was there before it was told of (`dwell`) is mostly the wait
for that one, and says nothing of the host. What does is by how much the report left after its own plan had wanted it:
the time in which the daemon was kept from running, or from what it had to do, by its own clock alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, Literal

from linkpass.core.events import ProbeDelay

if TYPE_CHECKING:
    from linkpass.edges.probes.books import Books

LATENESS_S: Final = 1.0
"""A window."""
LONG_S: Final = 1.0
"""A report counts for no more time than this, however long it was since the one before (which may be lost)."""


class Lateness:
    """Of one host and one kind of answers. Each delay counts for the time since the one before, so that the average is
    what a probe meets that comes at any moment."""

    __slots__ = ("_at_s", "_span_s", "_sum", "floor_s")

    def __init__(self) -> None:
        self._at_s: float | None = None
        self._sum = self._span_s = 0.0
        self.floor_s = float("inf")
        """The least average of all windows; inf before the first. It is of one run of the host's daemon, and of no
        clock but that: it need not forget."""

    def told(self, late_s: float, at_s: float) -> None:
        """A report that left at `at_s` by its sender's clock, `late_s` after it was due."""
        if self._at_s is not None:
            self.take(late_s, at_s - self._at_s)
        self._at_s = at_s

    def take(self, late_s: float, span_s: float) -> None:
        """A delay that counts for `span_s`."""
        span_s = min(span_s, LONG_S)
        if span_s > 0:
            self._sum += max(0.0, late_s) * span_s
            self._span_s += span_s

    def close(self) -> float | None:
        """The average delay of the window that ends now; None: nothing was heard in it."""
        if not self._span_s:
            return None
        delay_s = self._sum / self._span_s
        self._sum = self._span_s = 0.0
        self.floor_s = min(self.floor_s, delay_s)
        return delay_s


def delays_of(books: Books, limit_s: float) -> tuple[ProbeDelay, ...]:
    """End the window of all hosts; none, unless one of them is later than `limit_s`."""
    found = [
        ProbeDelay(host, source, delay_s, late.floor_s)
        for host, source, late in _all(books)
        if (delay_s := late.close()) is not None
    ]
    return tuple(found) if any(one.delay_s > limit_s for one in found) else ()


def _all(books: Books) -> Iterator[tuple[str, Literal["reports", "RoCE"], Lateness]]:
    own = books.settings.address
    yield own, "reports", books.late
    yield own, "RoCE", books.roce_late
    for peer in books.peers.values():
        yield peer.address, "reports", peer.late
        yield peer.address, "RoCE", peer.roce_late
