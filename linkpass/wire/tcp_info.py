"""TCP connections asked for one by one (sock_diag), with what the kernel knows of their traffic: struct tcp_info.

A dump walks the kernel's whole hash table, 0.3 ms for a quarter of a million buckets however few connections there are;
a question for one connection is a look-up in it, some microseconds. Many questions go in one datagram, each has its own
answer. Numbers and layouts: include/uapi/linux/inet_diag.h, sock_diag.h, tcp.h of Linux 6.12.
"""

from __future__ import annotations

import ipaddress
import struct
from typing import Final

import msgspec

SOCK_DIAG_BY_FAMILY: Final = 20
INFO_BYTES: Final = 216
"""What has to be there of struct tcp_info: up to `tcpi_bytes_retrans` (Linux 4.19)."""

_REQUEST: Final = 0x1
_IPPROTO_TCP: Final = 6
_ASK_INFO: Final = 1 << 1
_INET_DIAG_INFO: Final = 2
_ATTRIBUTES_AT: Final = 16 + 72
_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_QUEUES = struct.Struct("=II")
_QUEUES_AT: Final = 16 + 56
_COOKIE = struct.Struct("=II")
_COOKIE_AT: Final = 16 + 44
_INFO = struct.Struct("=16xI24xI4xI12xI28xI24xQ8xI28xQ16xQQ")
"""struct tcp_info: snd_mss, last_data_sent, last_data_recv (ms), rtt (us), total_retrans, bytes_received,
notsent_bytes, rwnd_limited (us), bytes_sent, bytes_retrans."""


class TcpState(msgspec.Struct, frozen=True, gc=False):
    """One connection at one moment. Times in seconds; counters of its whole life.

    `written_bytes`: all that its owner has written, whether or not it has been sent (`tcpi_bytes_sent` less what was
    sent again, plus what waits unsent). `queued_bytes`: written and not acknowledged. `unread_bytes`: received and not
    read by the owner. `since_sent_s`, `since_received_s`: age of the last segment with data, in ticks of the kernel.
    `blocked_s`: time in which the receiver's window held sending up."""

    cookie: int
    peer: str
    written_bytes: int
    received_bytes: int
    queued_bytes: int
    unread_bytes: int
    segment_bytes: int
    since_sent_s: float
    since_received_s: float
    retransmitted: int
    blocked_s: float
    rtt_s: float


def question(seq: int, src: str, sport: int, dst: str, dport: int, cookie: int) -> bytes:
    """Ask for the connection with these ends, if it still has this cookie. IPv4 spoken over IPv6 is asked for as IPv4.

    One that is bound to a device is found only through a dump."""
    source, target = ipaddress.ip_address(src), ipaddress.ip_address(dst)
    family = 2 if source.version == 4 else 10
    ends = struct.pack("!HH", sport, dport) + source.packed.ljust(16, b"\0") + target.packed.ljust(16, b"\0")
    place = ends + struct.pack("=III", 0, cookie & 0xFFFFFFFF, cookie >> 32)
    body = struct.pack("=BBBxI", family, _IPPROTO_TCP, _ASK_INFO, 0xFFFFFFFF) + place
    return _HEADER.pack(16 + len(body), SOCK_DIAG_BY_FAMILY, _REQUEST, seq, 0) + body


def sequence(answer: bytes) -> int:
    """Of the question that a datagram answers; -1 when it is too short to be an answer."""
    return int(_HEADER.unpack_from(answer)[3]) if len(answer) >= 16 else -1


def parse(answer: bytes, peer: str) -> TcpState | None:
    """The answer to a question; None when the connection is gone, or the kernel tells too little of it."""
    if len(answer) < _ATTRIBUTES_AT:
        return None
    size, kind, _, _, _ = _HEADER.unpack_from(answer)
    if kind != SOCK_DIAG_BY_FAMILY or size > len(answer):
        return None
    at = _ATTRIBUTES_AT
    while at + 4 <= size:
        length, attribute = _ATTRIBUTE.unpack_from(answer, at)
        if length < 4:
            return None
        if attribute == _INET_DIAG_INFO:
            if length - 4 < INFO_BYTES or at + length > size:
                return None
            return _state(answer, at + 4, peer)
        at += (length + 3) & ~3
    return None


def _state(answer: bytes, at: int, peer: str) -> TcpState:
    unread, queued = _QUEUES.unpack_from(answer, _QUEUES_AT)
    low, high = _COOKIE.unpack_from(answer, _COOKIE_AT)
    segment, sent_ms, received_ms, rtt_us, again, received, unsent, blocked_us, sent, sent_again = _INFO.unpack_from(
        answer, at
    )
    return TcpState(
        high << 32 | low, peer, sent - sent_again + unsent, received, queued, unread, segment,
        sent_ms * 1e-3, received_ms * 1e-3, again, blocked_us * 1e-6, rtt_us * 1e-6,
    )  # fmt: skip
