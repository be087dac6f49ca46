"""Claims about the pace of a job, and arrivals at steps, as values of a probe's types 4 and 5. All numbers big-endian.

type 4, claims: entries of 33 bytes: kind (1): 1 late, 2 awaits, 3 slow, 4 unread; about (16): an address, IPv4 as
                ::ffff:a.b.c.d, all zero: the sender; units (4), hits (4), lag (4) and period (4) in us
type 5, arrivals: entries of 20 bytes: rank (4), step (8), time (8): ns of the sender's monotonic clock
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

CLAIMS: Final = 4
ARRIVALS: Final = 5
MOST_CLAIMS: Final = 7
MOST_ARRIVALS: Final = 12
"""What fits behind a length of one byte."""
KINDS: Final = ("late", "awaits", "slow", "unread")

_CLAIM = struct.Struct("!B16sIIII")
_ARRIVAL = struct.Struct("!IQQ")
_MOST: Final = 0xFFFFFFFF
_MAPPED: Final = b"\0" * 10 + b"\xff\xff"


class Claim(NamedTuple):
    kind: str
    about: str
    units: int
    hits: int
    lag_s: float
    period_s: float


class Arrival(NamedTuple):
    """`at_ns` is by the sender's clock."""

    rank: int
    step: int
    at_ns: int


def claims_value(claims: Sequence[Claim]) -> bytes:
    """At most MOST_CLAIMS; what does not fit into a field saturates."""
    return b"".join(
        _CLAIM.pack(
            KINDS.index(claim.kind) + 1, _packed(claim.about), claim.units & _MOST, claim.hits & _MOST,
            _microseconds(claim.lag_s), _microseconds(claim.period_s),
        )
        for claim in claims[:MOST_CLAIMS]
    )  # fmt: skip


def claims_of(value: bytes) -> list[Claim]:
    """Of another length than whole entries: none. Kinds that are not known are passed over: later versions' words."""
    if len(value) % _CLAIM.size:
        return []
    return [
        Claim(KINDS[kind - 1], _text(about), units, hits, lag * 1e-6, period * 1e-6)
        for kind, about, units, hits, lag, period in _CLAIM.iter_unpack(value)
        if 0 < kind <= len(KINDS)
    ]


def arrivals_value(arrivals: Sequence[Arrival]) -> bytes:
    """The newest MOST_ARRIVALS."""
    return b"".join(_ARRIVAL.pack(*arrival) for arrival in arrivals[-MOST_ARRIVALS:])


def arrivals_of(value: bytes) -> list[Arrival]:
    return [] if len(value) % _ARRIVAL.size else [Arrival(*entry) for entry in _ARRIVAL.iter_unpack(value)]


def _microseconds(seconds: float) -> int:
    return min(_MOST, max(0, int(seconds * 1e6)))


def _packed(address: str) -> bytes:
    if not address:
        return bytes(16)
    packed = ipaddress.ip_address(address).packed
    return packed if len(packed) == 16 else _MAPPED + packed


def _text(packed: bytes) -> str:
    if not any(packed):
        return ""
    return str(ipaddress.ip_address(packed[12:] if packed.startswith(_MAPPED) else packed))
