"""Limit what a device sends: a token bucket filter as its root queue (net/sched/sch_tbf.c, tc-tbf(8))."""

from __future__ import annotations

import errno

from pyroute2 import IPRoute

from lab.netns.connections import asking

_HANDLE = 0x7B0000
_ROOT = 0xFFFFFFFF
_LATENCY_S = 0.05
_MOST_BYTES_PER_S = 0xFFFFFFFF
"""The field's width: 34 Gbit/s, more than a lab link carries on any machine; what is above it limits nothing."""


def shape(route: IPRoute, index: int, bps: int | None) -> None:
    """Put a limit in bits per second on a device, change it, or take it off (None; no error when there is none)."""
    if bps is None:
        with asking(f"shaper off device {index}", errno.ENOENT, errno.EINVAL):
            route.tc("del", index=index, parent=_ROOT)
        return
    rate = min(bps // 8, _MOST_BYTES_PER_S)
    burst = max(15_000, rate // 250)  # a timer tick of 4 ms must not starve the bucket
    with asking(f"shaper of {bps} bit/s on device {index}"):
        limit = burst + int(rate * _LATENCY_S)
        route.tc("replace", "tbf", index=index, handle=_HANDLE, rate=rate, burst=burst, limit=min(limit, 0xFFFFFFFF))
