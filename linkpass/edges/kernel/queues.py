"""The queues in front of the uplinks, read about once a second in a thread: do they drop because too much is sent?

The dump of all queues of a namespace waits for the kernel's lock of network settings, which drivers may hold for
milliseconds. A reading that is not done when the next one is due is waited for. Nothing is changed by it. What bypasses
the kernel (RoCE in hardware) is in none of these queues: its counters speak for it (`linkpass.edges.counters`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Final

from linkpass.aside import Aside
from linkpass.core.events import Event, UplinkOverrun
from linkpass.core.offered import Second, overrun
from linkpass.edges.kernel.sock import RequestSocket
from linkpass.wire import qdisc, rtnl

UNREAD_POLLS: Final = 3
"""After so many without a reading nothing that was found before counts any more."""
RESTS: Final = 3
"""An overload is over after so many readings without one: a job in lock-step fills a queue in turns."""

Seen = tuple[float, dict[int, qdisc.Queue]]
"""When it was read, and the root queues by device."""


class QueueEdge:
    """Emits UplinkOverrun on a change. Opened in the thread of the namespace; `close` waits for nobody."""

    def __init__(
        self, emit: Callable[[Event], None], clock: Callable[[], float], queueing_s: float,
        executor: Executor | None = None,
    ) -> None:  # fmt: skip
        """`executor` runs one thing at a time, and is shut down by `close`. `queueing_s`: see `overrun`."""
        self._emit, self._clock, self._queueing_s = emit, clock, queueing_s
        self._executor = executor or Aside("queues")
        self._socket = RequestSocket()
        self._uplinks: dict[str, tuple[int, int]] = {}
        """Name -> index and speed."""
        self._reading: Future[Seen] | None = None
        self._before: Seen | None = None
        self._told: dict[str, str] = {}
        self._rests: dict[str, int] = {}
        """Readings without an overload since the last with one."""
        self._unread = 0
        self._closed = False
        self.errors = 0

    def open(self) -> None:
        """OSError when there is no netlink."""
        self._socket.open()

    def close(self) -> None:
        """Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        self._executor.submit(self._socket.close)
        self._executor.shutdown(wait=False)

    def set_uplink(self, name: str, index: int, speed_bps: int) -> None:
        """`speed_bps` 0: not known."""
        self._uplinks[name] = index, speed_bps

    def drop_uplink(self, name: str) -> None:
        if self._uplinks.pop(name, None) is not None:
            self._tell(name, "")

    def poll(self) -> None:
        """Take the last reading and begin the next."""
        if self._reading is not None:
            if not self._reading.done():
                self._not_read()
                return
            self._take(self._reading)
        how = os.sched_getscheduler(0), os.sched_getparam(0)
        self._reading = self._executor.submit(self._read, how)

    def _read(self, how: tuple[int, os.sched_param]) -> Seen:
        """In the thread. It runs as the loop does: kept from running by a job, it could hold on to the interpreter."""
        if os.sched_getscheduler(0) != how[0]:
            try:
                os.sched_setscheduler(0, *how)
            except OSError:
                pass
        answers = self._socket.dump(rtnl.RTM_GETQDISC)
        found = (qdisc.parse(answer.body) for answer in answers)
        return self._clock(), {one.index: one for one in found if one is not None}

    def _take(self, reading: Future[Seen]) -> None:
        try:
            seen = reading.result()
        except OSError:
            self.errors += 1
            self._not_read()
            return
        self._unread = 0
        before, self._before = self._before, seen
        for name, (index, speed_bps) in self._uplinks.items():
            second = _between(before, seen, index)
            why = overrun(second, speed_bps, self._queueing_s) if second is not None else ""
            self._rests[name] = 0 if why else self._rests.get(name, RESTS) + 1
            if why or self._rests[name] >= RESTS:
                self._tell(name, why)

    def _not_read(self) -> None:
        self._unread += 1
        if self._unread >= UNREAD_POLLS:
            self._before = None
            for name in self._uplinks:
                self._tell(name, "")

    def _tell(self, name: str, why: str) -> None:
        before, self._told[name] = self._told.get(name, ""), why
        if bool(before) != bool(why):
            self._emit(UplinkOverrun(uplink=name, why=why))


def _between(before: Seen | None, seen: Seen, index: int) -> Second | None:
    """What a device's queue has done between two readings; None: it was not the same queue, or there is none."""
    was, now = before[1].get(index) if before is not None else None, seen[1].get(index)
    if before is None or was is None or now is None or was.handle != now.handle:
        return None
    return Second(
        seconds=seen[0] - before[0],
        sent_bytes=now.sent_bytes - was.sent_bytes,
        dropped=(now.dropped - was.dropped) & 0xFFFFFFFF,  # 32 bits wide
        waiting_bytes=min(now.backlog_bytes, was.backlog_bytes),
    )
