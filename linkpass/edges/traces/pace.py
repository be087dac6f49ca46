"""How fast questions go: a steady rate in the long run, and a bucket that lets a burst go at once."""

from __future__ import annotations

from typing import Final

from linkpass.core.settings import Tracing

LATE_S: Final = 0.002
"""A loop that comes back late makes up for so much, or a burst would be as slow as the loop is busy."""


class Pace:
    """A token bucket (RFC 2697 speaks of a committed rate and burst). Every packet takes a token; urgent ones go at the
    burst's rate as long as there are some, all others at the steady rate."""

    __slots__ = ("_at_s", "_next_s", "_settings", "_tokens")

    def __init__(self, settings: Tracing) -> None:
        self._settings = settings
        self._tokens = float(settings.burst_packets)
        self._at_s = self._next_s = float("-inf")

    def wait_s(self, now_s: float, *, urgent: bool) -> float:
        """Takes a packet's place; how long from now it is until that has come."""
        known = self._settings
        if self._at_s > float("-inf"):
            grown = self._tokens + (now_s - self._at_s) * known.packets_per_s
            self._tokens = min(float(known.burst_packets), grown)
        self._at_s = now_s
        rate = known.burst_packets_per_s if urgent and self._tokens >= 1 else known.packets_per_s
        self._tokens -= 1
        self._next_s = max(self._next_s, now_s - LATE_S) + 1 / rate
        return self._next_s - now_s
