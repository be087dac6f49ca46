"""Whether an uplink's own queue drops because more is sent than it can: throughput beside loss.

Drops alone do not say so: a queue may drop by its own rules, or what it is set to lose. They are an overload's when the
uplink sends at its rate. That is known in two ways, and one is enough: it has sent nearly what its speed allows, or
what waits was long when the second began and when it ended, at the rate at which it went out. A short burst is neither.
An uplink that drops and sends little is not overloaded: what is lost over it is lost.
"""

from __future__ import annotations

from typing import Final

import msgspec

FULL_RATIO: Final = 0.9
"""Of the nominal speed, in bytes of frames: preambles, gaps and checksums take 2 % at 1,500 bytes and 16 % at 128."""


class Second(msgspec.Struct, frozen=True):
    """What an uplink's queue has done in `seconds`. `waiting_bytes`: the lesser of the beginning and the end."""

    seconds: float
    sent_bytes: int
    dropped: int
    waiting_bytes: int


def overrun(seen: Second, speed_bps: int, queueing_s: float) -> str:
    """Why an uplink is overloaded by what is sent; empty: it is not, or that is not known. `speed_bps` 0: not known."""
    if seen.dropped <= 0 or seen.seconds <= 0 or seen.sent_bytes <= 0:
        return ""
    bps = 8 * seen.sent_bytes / seen.seconds
    said = f"its own queue has dropped {seen.dropped} packet(s) in {seen.seconds:.2g} s"
    if speed_bps and bps >= FULL_RATIO * speed_bps:
        return f"{said}, while it sent {bps / speed_bps:.0%} of its speed"
    waits_s = 8 * seen.waiting_bytes / bps
    if waits_s >= queueing_s:
        return f"{said}, with {waits_s * 1e3:.3g} ms of data waiting at {bps / 1e6:.3g} Mbit/s"
    return ""
