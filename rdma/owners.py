"""Whose each queue pair is: from the thread that the kernel names to the process whose files can be asked.

Once that thread has ended the kernel names nobody, though queue pair and program go on. Then it is still the process
that it was before, or that of another queue pair in its protection domain.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

import msgspec

from rdma.borrowed import start_ticks
from rdma.nldev import QueuePair
from rdma.program import thread_group


class Owner(msgspec.Struct, frozen=True):
    """A process, and when it started (ticks since boot)."""

    pid: int
    started: int


NOBODY = Owner(0, 0)
"""Of a queue pair whose program cannot be found."""


class Owners:
    """Used by one thread. It remembers of one call what the next may need."""

    def __init__(self) -> None:
        self._before: dict[tuple[str, int], tuple[QueuePair, Owner]] = {}
        self._threads: dict[int, Owner | None] = {}
        """Of this call alone: numbers of threads are used again."""

    def of(self, queue_pairs: Iterable[QueuePair], unknown: Container[str] = ()) -> list[tuple[QueuePair, Owner]]:
        """Those of programs, with their owners. One whose program has just ended is left out. `unknown`: devices of
        which not all were listed."""
        self._threads = {}
        listed = [qp for qp in queue_pairs if not qp.of_kernel]
        direct = [self._of_thread(qp.pid) if qp.pid else None for qp in listed]
        of_domain = {
            (qp.device, qp.domain): owner
            for qp, owner in zip(listed, direct, strict=True)
            if owner and owner is not NOBODY and qp.domain is not None
        }
        found = []
        for qp, at_once in zip(listed, direct, strict=True):
            of_others = of_domain.get((qp.device, qp.domain)) if qp.domain is not None else None
            owner = at_once or self._remembered(qp) or of_others
            if owner is not None or not qp.pid:
                found.append((qp, owner or NOBODY))
        kept = {place: before for place, before in self._before.items() if place[0] in unknown}
        self._before = kept | {(qp.device, qp.lqpn): (qp, owner) for qp, owner in found if owner is not NOBODY}
        return found

    def lives(self, owner: Owner) -> bool:
        return owner.pid == 0 or start_ticks(owner.pid) == owner.started

    def _remembered(self, qp: QueuePair) -> Owner | None:
        before, owner = self._before.get((qp.device, qp.lqpn), (None, NOBODY))
        if before is None or (before.rqpn, before.domain) != (qp.rqpn, qp.domain) or not self.lives(owner):
            return None
        return owner

    def _of_thread(self, thread: int) -> Owner | None:
        if thread not in self._threads:
            pid = thread_group(thread)
            started = start_ticks(pid) if pid is not None else None
            found = Owner(pid, started) if pid is not None and started is not None else None
            if found is None and pid not in (None, thread) and start_ticks(thread) is not None:
                found = NOBODY  # its first thread has ended alone, and its files can no longer be had over that
            self._threads[thread] = found
        return self._threads[thread]
