"""What a counter counted between two readings. Pure.

Lifetime totals say when a host was booted, not how it is: only differences over a monotonic interval are evidence. A
counter may wrap at its width, stop at its end, or begin anew (a driver was loaded again, somebody cleared it)."""

from __future__ import annotations

from typing import Final

from rdma.counters.table import Counter
from rdma.sysfs import Unknown, Value

MOST_PER_S: Final = 1e9
"""No port counts faster: 1.6 Tbit/s of minimal packets are 2.4e9/s over all its lanes, of one queue counter far fewer.
What would take a faster wrap is a new beginning."""


def difference(row: Counter, before: Value, after: Value, seconds: float) -> Value:
    """Counted in between, in `row.unit`. After a new beginning: what was counted since then, which is a lower bound."""
    if isinstance(before, Unknown):
        return before
    if isinstance(after, Unknown):
        return after
    if row.gauge:
        raise ValueError(f"{row.file} goes up and down: a difference means nothing")
    end = (1 << row.bits) - 1
    if row.saturates and row.bits < 64 and before == after == end:
        return Unknown("saturated", f"{row.file} stands at {end}; clear it (perfquery -R) to count again")
    if after >= before:
        return (after - before) * row.multiplier
    if not row.saturates and row.bits < 64:
        wrapped = after + end + 1 - before
        if 0 < wrapped <= MOST_PER_S * seconds:
            return wrapped * row.multiplier
    return after * row.multiplier
