"""The queues in front of a host's devices (qdiscs) as values: what the root of each has sent, dropped and holds.

struct tcmsg: family u8, pad 3, index i32, handle u32, parent u32, info u32. Sources: include/uapi/linux/rtnetlink.h,
gen_stats.h (struct gnet_stats_basic, gnet_stats_queue). Roots with a queue for each of the device's (mq) tell the sums.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from linkpass.wire.rtnl import attributes

ROOT: Final = 0xFFFFFFFF
"""TC_H_ROOT."""

_TCMSG: Final = struct.Struct("=BxxxiIII")
_TCA_STATS2: Final = 7
_BASIC: Final = 1
_QUEUE: Final = 3


class Queue(msgspec.Struct, frozen=True):
    """Totals since it was made, and what waits in it now."""

    index: int
    """Of the device."""
    handle: int
    """Of the queue: another one counts from the start."""
    sent_bytes: int
    dropped: int
    backlog_bytes: int


def parse(body: bytes) -> Queue | None:
    """The root queue of a device; None for any other, and for one without statistics."""
    if len(body) < _TCMSG.size:
        return None
    _, index, handle, parent, _ = _TCMSG.unpack_from(body)
    if parent != ROOT:
        return None
    told = {
        kind: data
        for outer, nested in attributes(body, _TCMSG.size)
        if outer == _TCA_STATS2
        for kind, data in attributes(nested)
    }
    basic, queue = told.get(_BASIC, b""), told.get(_QUEUE, b"")
    if len(basic) < 8 or len(queue) < 20:
        return None
    (sent,) = struct.unpack_from("=Q", basic)
    _, backlog, dropped = struct.unpack_from("=III", queue)
    return Queue(index, handle, sent, dropped, backlog)
