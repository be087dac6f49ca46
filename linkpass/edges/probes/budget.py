"""Packet limits. Regular probes keep to them by their intervals; what comes on top has to ask first."""

from __future__ import annotations


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
