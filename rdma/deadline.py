"""How long a queue pair's transport waits before it gives up: the time in which its traffic has to be moved. Pure.

A requester without an answer sends again after T = 4.096 us x 2^timeout, `retry_count` times; then the queue pair ends
in an error that no program of today survives (InfiniBand Architecture Specification, volume 1, 9.7.6.1.3: the real
timeout lies between T and 4 T, so this is the least).
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from rdma import drivers

UNIT_S: Final = 4.096e-6


class Deadline(msgspec.Struct, frozen=True):
    """`least_s` after the last answer the transport may give up; infinite where it never does. `note`: what is not
    certain about it."""

    least_s: float
    note: str = ""

    def left_s(self, silent_s: float) -> float:
        """Of a queue pair whose last answer came `silent_s` ago."""
        return max(0.0, self.least_s - silent_s)


def deadline(timeout: int, retry_count: int, driver: str) -> Deadline:
    """`timeout` 0..31, `retry_count` 0..7, as a query tells them."""
    if not 0 <= timeout <= 31 or not 0 <= retry_count <= 7:
        raise ValueError(f"timeout {timeout} is 0..31 and retry_count {retry_count} is 0..7")
    if timeout == 0:
        return Deadline(math.inf, "timeout 0: waits for ever")
    if drivers.of(driver).never_gives_up == retry_count:
        return Deadline(math.inf, f"{driver} with retry_count {retry_count} tries for ever")
    note = {
        "mlx5": "firmware may wait up to four times as long, or send again earlier (adaptive retransmission)",
        "rxe": "exact: a kernel timer",
    }.get(driver, "the specification allows up to four times as long")
    return Deadline((retry_count + 1) * UNIT_S * 2.0**timeout, note)
