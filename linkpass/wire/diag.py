"""The kernel's socket table (sock_diag) as values: TCP connections with their addresses, owner and counters.

One request asks for both families: the older message type TCPDIAG_GETSOCK dumps without a family
(net/ipv4/inet_diag.c, inet_diag_dump_compat), so that the kernel walks its hash table once instead of twice. A filter
in the kernel's bytecode keeps foreign connections out of the answer. Numbers, layouts: include/uapi/linux/inet_diag.h,
tcp.h (struct tcp_info) of Linux 6.12. The kernel does not report a connection's flow label here.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final

import msgspec

TCPDIAG_GETSOCK: Final = 18
"""netlink message type of the request and of each answer to it (NETLINK_SOCK_DIAG, 4)."""
NETLINK_SOCK_DIAG: Final = 4
ESTABLISHED: Final = 1
RETRANSMIT: Final = 1
"""idiag_timer: the retransmission timer (net/ipv4/inet_diag.c, inet_diag_msg_attrs_fill and inet_sk_diag_fill)."""
PERSIST: Final = 4
"""idiag_timer: the timer that asks a peer whose window is shut (RFC 9293, section 3.8.6.1)."""

_NLMSG_ERROR: Final = 2
_NLMSG_DONE: Final = 3
_REQUEST_DUMP: Final = 0x301
_AF_INET6: Final = 10
_ASK_INFO: Final = 1 << 1
"""INET_DIAG_INFO is extension 2; bit n - 1 asks for extension n."""
_INET_DIAG_INFO: Final = 2
_REQ_BYTECODE: Final = 1
_BC_JMP: Final = 1
_BC_D_COND: Final = 8

_HEADER = struct.Struct("=IHHII")
_SOCKET = struct.Struct("=BBBB2s2s16s16s4xII12xII")
"""struct inet_diag_msg: family, state, timer, retransmissions, ports, addresses, (interface), cookie (low half, high
half), (expires, queues), uid, inode."""
_SOCKET_BYTES: Final = 72
_MAPPED: Final = b"\0" * 10 + b"\xff\xff"


class Connection(msgspec.Struct, frozen=True):
    """A TCP connection as the kernel has it now. IPv4 spoken over an IPv6 socket is shown as IPv4.

    Counters of the whole life of the connection; 0 where the kernel is too old to have them."""

    src: str
    sport: int
    dst: str
    dport: int
    inode: int
    """Of the socket in sockfs, as `/proc/PID/fd` shows it; 0 when no process holds it any more."""
    cookie: int
    """The socket's number, unique while the machine runs (SO_COOKIE)."""
    uid: int
    state: int = ESTABLISHED
    rto_us: int = 0
    rtt_us: int = 0
    retransmitted: int = 0
    """Segments sent again."""
    sent_segments: int = 0
    """With data, those sent again among them (`tcpi_data_segs_out`)."""
    had_twice: int = 0
    """Of those sent again, what the receiver says it had already (`tcpi_dsack_dups`)."""
    acked_bytes: int = 0
    """Sent and acknowledged; counts the opening SYN as a byte."""
    received_bytes: int = 0
    timer: int = 0
    """Which of its timers runs (inet_diag_msg.idiag_timer): PERSIST: what waits finds the peer's window shut."""
    tries: int = 0
    """How often in a row what is unacknowledged was sent again, or a shut window was asked."""


def request(seq: int, prefixes: Iterable[str] = (), states: int = 1 << ESTABLISHED) -> bytes:
    """A dump of the TCP connections in `states` (bit n: state n) whose remote address is in a prefix; none: of all."""
    body = struct.pack("=BBBB48xII", 0, 0, 0, _ASK_INFO, states, 0)
    code = _match_remote([ipaddress.ip_network(prefix) for prefix in prefixes])
    if code:
        body += struct.pack("=HH", 4 + len(code), _REQ_BYTECODE) + code
    return _HEADER.pack(16 + len(body), TCPDIAG_GETSOCK, _REQUEST_DUMP, seq, 0) + body


def _match_remote(networks: list[ipaddress.IPv4Network | ipaddress.IPv6Network]) -> bytes:
    """Bytecode: any prefix that matches jumps to the end (accepted), the last that does not jumps beyond (refused)."""
    code = b""
    for position, network in enumerate(reversed(networks)):
        address = network.network_address.packed
        family = 2 if network.version == 4 else _AF_INET6
        condition = struct.pack("=BBxxi", family, network.prefixlen, -1) + address
        size = 4 + len(condition)
        if not position:
            code = struct.pack("=BBH", _BC_D_COND, size, size + 4) + condition
            continue
        jump = struct.pack("=BBH", _BC_JMP, 4, 4 + len(code))
        code = struct.pack("=BBH", _BC_D_COND, size, size + 4) + condition + jump + code
    return code


class RefusedError(OSError):
    """The kernel's refusal of a dump."""


class Dump:
    """Collects the answers to one request from its datagrams."""

    def __init__(self, seq: int) -> None:
        self._seq = seq
        self.done = False
        self.connections: list[Connection] = []

    def feed(self, data: bytes) -> None:
        """Raises RefusedError. Answers to other requests are passed over; a truncated message ends the datagram."""
        view = memoryview(data)
        offset = 0
        while offset + 16 <= len(data):
            size, kind, _, seq, _ = _HEADER.unpack_from(data, offset)
            if size < 16 or offset + size > len(data):
                return
            if seq == self._seq:
                if kind == TCPDIAG_GETSOCK:
                    found = parse(view[offset + 16 : offset + size])
                    if found is not None:
                        self.connections.append(found)
                elif kind in (_NLMSG_DONE, _NLMSG_ERROR):
                    number = -struct.unpack_from("=i", data, offset + 16)[0] if size >= 20 else 0
                    if number:
                        raise RefusedError(number, "the kernel refuses its socket table")
                    self.done = True
            offset += (size + 3) & ~3


def parse(body: bytes | memoryview) -> Connection | None:
    """A struct inet_diag_msg and its attributes; None when it is too short to be one."""
    if len(body) < _SOCKET_BYTES:
        return None
    family, state, timer, tries, sport, dport, src, dst, low, high, uid, inode = _SOCKET.unpack_from(body)
    rto_us = rtt_us = retransmitted = acked = received = sent = twice = 0
    for kind, info in _attributes(body):
        if kind == _INET_DIAG_INFO:
            if len(info) >= 104:
                (rto_us,) = struct.unpack_from("=I", info, 8)
                (rtt_us,) = struct.unpack_from("=I", info, 68)
                (retransmitted,) = struct.unpack_from("=I", info, 100)
            if len(info) >= 136:
                acked, received = struct.unpack_from("=QQ", info, 120)
            if len(info) >= 220:
                (sent,) = struct.unpack_from("=I", info, 156)
                (twice,) = struct.unpack_from("=I", info, 216)
    return Connection(
        _text(family, src),
        int.from_bytes(sport, "big"),
        _text(family, dst),
        int.from_bytes(dport, "big"),
        inode,
        high << 32 | low,
        uid,
        state,
        rto_us,
        rtt_us,
        retransmitted,
        sent,
        twice,
        acked,
        received,
        timer,
        tries,
    )


def _attributes(body: bytes | memoryview) -> Iterator[tuple[int, bytes | memoryview]]:
    offset = _SOCKET_BYTES
    while offset + 4 <= len(body):
        size, kind = struct.unpack_from("=HH", body, offset)
        if size < 4 or offset + size > len(body):
            return
        yield kind, body[offset + 4 : offset + size]
        offset += (size + 3) & ~3


@lru_cache(4096)
def _text(family: int, address: bytes) -> str:
    if family != _AF_INET6:
        address = address[:4]
    elif address.startswith(_MAPPED):
        address = address[12:]
    return str(ipaddress.ip_address(address))
