"""Packet limits. Regular probes keep to them by their intervals; what comes on top has to ask first."""

from __future__ import annotations

from collections.abc import Iterable

REGULAR_SHARE = 0.95
"""Share of a limit that regular probes may use; the rest is for answers, notices and the confirmation of suspicions."""


class Bucket:
    """A token bucket of `rate` packets/s; 0.1 s of the rate may be saved up."""

    __slots__ = ("_at_s", "_depth", "_rate", "_tokens")

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._depth = self._tokens = rate / 10
        self._at_s = 0.0

    def spend(self, now_s: float, packets: int) -> None:
        """Packets that are sent in any case. The debt is bounded, so that it is soon forgotten."""
        self._refill(now_s)
        self._tokens = max(self._tokens - packets, -self._depth)

    def take(self, now_s: float, packets: int) -> bool:
        self._refill(now_s)
        if self._tokens < packets:
            return False
        self._tokens -= packets
        return True

    def _refill(self, now_s: float) -> None:
        self._tokens = min(self._depth, self._tokens + (now_s - self._at_s) * self._rate)
        self._at_s = now_s


def stretch(targets: Iterable[tuple[str, float]], per_host: float, per_link: float) -> float:
    """By what all intervals must be multiplied to keep both limits; 1.0 when they fit.

    `targets`: (uplink, interval in s) of each path; limits in packets/s."""
    rates: dict[str, float] = {}
    for uplink, interval_s in targets:
        rates[uplink] = rates.get(uplink, 0.0) + 1 / interval_s
    host = sum(rates.values()) / (per_host * REGULAR_SHARE)
    link = max(rates.values(), default=0.0) / (per_link * REGULAR_SHARE)
    return max(1.0, host, link)
