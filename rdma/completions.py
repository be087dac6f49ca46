"""How a queue pair's completions are heard, by what the device and pyverbs allow.

`Woken`: a completion queue with a channel; a packet wakes whoever waits for its descriptor, and times are those at
which it was read. `Stamped`: an extended queue whose completions carry the device's own clock, so that a program that
comes late measures as well as one that comes at once; pyverbs cannot acknowledge the events of such a queue, so it is
polled. Both tell the same: what came, and when by the clock `now_s()`.
"""

from __future__ import annotations

import os
import select
import time
from typing import Any, Final, NamedTuple, Protocol

from rdma.verbs import Pyverbs, VerbsError, event_descriptors

WC_RECV: Final = 1 << 7
"""enum ibv_wc_opcode: set in all that was received."""


class Completion(NamedTuple):
    """`at_s`: by the clock of the queue. `status` 0 is success; of others only `number` and `status` count."""

    number: int
    status: int
    at_s: float
    received: bool
    length: int
    source_qpn: int


class Completions(Protocol):
    queue: Any

    def fileno(self) -> int | None:
        """What to wait for; None: nothing, it has to be polled."""

    def now_s(self) -> float: ...
    def poll(self) -> list[Completion]: ...
    def close(self) -> None: ...


class Woken:
    """Times are CLOCK_MONOTONIC. Only what the sender marked as solicited wakes."""

    def __init__(self, pyverbs: Pyverbs, context: Any, depth: int) -> None:
        before = event_descriptors()
        self._channel = pyverbs.cq.CompChannel(context)
        new = event_descriptors() - before
        if len(new) != 1:
            raise VerbsError(f"a completion channel of {context.name} has {len(new)} descriptors")
        (self._fd,) = new
        os.set_blocking(self._fd, False)
        self._waiting = select.poll()
        self._waiting.register(self._fd, select.POLLIN)
        self._depth = depth
        self.queue = pyverbs.cq.CQ(context, depth, None, self._channel, 0)
        self._wc_ok = pyverbs.enums.IBV_WC_SUCCESS
        self.queue.req_notify(True)

    def fileno(self) -> int:
        return self._fd

    def now_s(self) -> float:
        return time.monotonic()

    def poll(self) -> list[Completion]:
        at_s = self.now_s()
        if self._waiting.poll(0):
            self._channel.get_cq_event(self.queue)
            self.queue.ack_events(1)
            self.queue.req_notify(True)  # before the queue is read: what comes in between wakes again
        _, found = self.queue.poll(num_entries=self._depth)
        return [
            Completion(one.wr_id, one.status, at_s, bool(one.opcode & WC_RECV), one.byte_len, one.src_qp)
            for one in found
        ]

    def close(self) -> None:
        self.queue.close()
        self._channel.close()


class Stamped:
    """Times are the device's clock, in seconds. VerbsError where the device has no stamps; with `stamps` False, times
    are CLOCK_MONOTONIC, at the moment of reading: the same queue on a device without."""

    def __init__(self, pyverbs: Pyverbs, context: Any, depth: int, *, stamps: bool = True) -> None:
        e = pyverbs.enums
        self._context, self._depth = context, depth
        self._hertz = 1e3 * context.query_device_ex().hca_core_clock if stamps else 0.0
        if stamps and not self._hertz:
            raise VerbsError(f"completions of {context.name} carry no time: the device has no clock")
        flags = e.IBV_WC_EX_WITH_BYTE_LEN | e.IBV_WC_EX_WITH_SRC_QP
        if stamps:
            flags |= e.IBV_WC_EX_WITH_COMPLETION_TIMESTAMP
        try:
            self.queue = pyverbs.cq.CQEX(context, pyverbs.cq.CqInitAttrEx(cqe=depth, wc_flags=flags))
        except Exception as error:
            raise VerbsError(f"completions of {context.name} carry no time: {error}") from error
        self._poll_attr = pyverbs.cq.PollCqAttr()

    def fileno(self) -> None:
        return None

    def now_s(self) -> float:
        if not self._hertz:
            return time.monotonic()
        seconds, ticks = self._context.query_rt_values_ex()  # mlx5 puts its whole clock into the second
        return float(seconds * 1e9 + ticks) / self._hertz

    def poll(self) -> list[Completion]:
        queue, found = self.queue, []
        at_s = 0.0 if self._hertz else time.monotonic()
        for _ in range(self._depth):
            # One a turn: after `poll_next` has found nothing, soft-RoCE's `end_poll` (rdma-core 44) skips an entry.
            if queue.start_poll(self._poll_attr):  # ENOENT: nothing there; then end_poll must not be called
                break
            good = queue.status == 0  # of others only number and status count
            received = good and bool(queue.read_opcode() & WC_RECV)
            length, source = (queue.read_byte_len(), queue.read_src_qp()) if received else (0, 0)
            stamp_s = queue.read_timestamp() / self._hertz if good and self._hertz else at_s
            found.append(Completion(queue.wr_id, queue.status, stamp_s, received, length, source))
            queue.end_poll()
        return found

    def close(self) -> None:
        self.queue.close()


def make(pyverbs: Pyverbs, context: Any, depth: int) -> Completions:
    """With the device's stamps where it has them."""
    try:
        return Stamped(pyverbs, context, depth)
    except VerbsError:
        return Woken(pyverbs, context, depth)
