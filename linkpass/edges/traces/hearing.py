"""The answers' side: a raw ICMP socket, and what the kernel tells of each packet beside its text."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from linkpass.wire import icmp

_ICMP6_FILTER: Final = 1
_ICMP4_FILTER: Final = 1
_SOL_RAW: Final = 255
_IP_PKTINFO: Final = 8
_ROOM: Final = socket.CMSG_SPACE(20) + socket.CMSG_SPACE(4)
MOST: Final = 256
"""Packets that are read in one turn."""

INITIAL_HOP_LIMITS: Final = (64, 128, 255)
"""With which systems send; routers on the way take one each."""


class Heard(NamedTuple):
    """An ICMP error: who sent it, the number of the interface that it came by (0: not told), and its hop limit when it
    arrived (0: not told)."""

    error: icmp.IcmpError
    who: str
    ifindex: int
    hop_limit: int

    @property
    def crossed(self) -> int | None:
        """Routers that it has crossed: systems begin with 64, 128 or 255, and paths are short."""
        if not self.hop_limit:
            return None
        return next(first for first in INITIAL_HOP_LIMITS if first >= self.hop_limit) - self.hop_limit


def listening(six: bool, device: bytes) -> socket.socket:  # noqa: FBT001
    """A raw socket that hears ICMP errors of one family. OSError when raw sockets are not permitted."""
    family, protocol = (
        (socket.AF_INET6, socket.IPPROTO_ICMPV6) if six else (socket.AF_INET, socket.IPPROTO_ICMP)
    )  # fmt: skip
    ears = socket.socket(family, socket.SOCK_RAW, protocol)
    try:
        ears.setblocking(False)
        if device:
            ears.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device + b"\0")
        ears.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        if six:
            passed = 1 << icmp.ICMP6_UNREACHABLE | 1 << icmp.ICMP6_TIME_EXCEEDED
            mask = struct.pack("=8I", 0xFFFFFFFF & ~passed, *[0xFFFFFFFF] * 7)
            ears.setsockopt(socket.IPPROTO_ICMPV6, _ICMP6_FILTER, mask)
            ears.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
            ears.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVHOPLIMIT, 1)
        else:
            passed = 1 << icmp.ICMP4_UNREACHABLE | 1 << icmp.ICMP4_TIME_EXCEEDED
            ears.setsockopt(_SOL_RAW, _ICMP4_FILTER, struct.pack("=I", 0xFFFFFFFF & ~passed))
            ears.setsockopt(socket.IPPROTO_IP, _IP_PKTINFO, 1)
    except OSError:
        ears.close()
        raise
    return ears


def waiting(ears: socket.socket) -> Iterator[Heard]:
    """What has arrived, up to MOST packets; what is no such error is left out."""
    six = ears.family == socket.AF_INET6
    for _ in range(MOST):
        try:
            message, told, _, source = ears.recvmsg(2048, _ROOM)
        except BlockingIOError:
            return
        except OSError:
            continue
        error = icmp.parse6(message) if six else icmp.parse4(message)
        if error is None:
            continue
        ifindex, hop_limit = 0, 0 if six else message[8]
        for level, kind, data in told:
            if (level, kind) == (socket.IPPROTO_IPV6, socket.IPV6_PKTINFO):
                (ifindex,) = struct.unpack_from("=I", data, 16)
            elif (level, kind) == (socket.IPPROTO_IPV6, socket.IPV6_HOPLIMIT):
                (hop_limit,) = struct.unpack_from("=i", data)
            elif (level, kind) == (socket.IPPROTO_IP, _IP_PKTINFO):
                (ifindex,) = struct.unpack_from("=i", data)
        yield Heard(error, str(source[0]).split("%")[0], ifindex, hop_limit)
