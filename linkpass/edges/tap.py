"""Packets as they pass a device: read with the kernel's receive time, without libpcap, in any network namespace.

scapy could sniff, but it keeps the devices of the namespace that it was loaded in, wants libpcap to compile a filter,
and does not count what it misses. Source: packet(7), Documentation/networking/filter.rst.
"""

from __future__ import annotations

import selectors
import socket
import struct
import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Final, NamedTuple

from linkpass.wire import bpf
from linkpass.wire.frame import ETH_P_IP, ETH_P_IPV6

_ETH_P_ALL: Final = 3
_SOL_PACKET: Final = 263
_PACKET_STATISTICS, _PACKET_IGNORE_OUTGOING = 6, 23
_PACKET_OUTGOING: Final = 4
_SO_TIMESTAMPNS: Final = 35
_TIMESPEC = struct.Struct("@ll")
_RECEIVE_BYTES: Final = 8 << 20
_LARGEST_FRAME: Final = 1 << 16


class Captured(NamedTuple):
    """A frame; `at_ns` is CLOCK_REALTIME, `where` the name given for its device."""

    data: bytes
    at_ns: int
    where: str
    outgoing: bool


def to_port(port: int) -> bytes:
    """A filter: TCP or UDP with that port on both sides, over IPv6 or IPv4 without options."""
    load_word, load_half, equal, give = 0x20, 0x28, 0x15, 0x06
    ports = port << 16 | port
    return bpf.assemble([
        (load_half, 0, 0, 12), (equal, 0, 2, ETH_P_IPV6),
        (load_word, 0, 0, 54), (equal, 3, 4, ports),
        (equal, 0, 3, ETH_P_IP),
        (load_word, 0, 0, 34), (equal, 0, 1, ports),
        (give, 0, 0, 0xFFFF), (give, 0, 0, 0),
    ])  # fmt: skip


class Tap:
    """Watches devices of the network namespace that the calling thread is in when it opens.

    `devices`: device -> name to show. `port`: only packets with that port on both sides; None: all. `incoming` leaves
    out what the device sends."""

    def __init__(self, devices: Mapping[str, str], *, port: int | None = None, incoming: bool = False) -> None:
        self._devices, self._port, self._incoming = devices, port, incoming
        self._sockets: dict[str, socket.socket] = {}
        self._selector = selectors.DefaultSelector()
        self._missed = 0

    def open(self) -> Tap:
        """OSError: no such device, or not permitted (CAP_NET_RAW)."""
        for device in self._devices:
            sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
            self._sockets[device] = sock
            if self._port is not None:
                attached = bpf.Filter(to_port(self._port))
                sock.setsockopt(socket.SOL_SOCKET, bpf.SO_ATTACH_FILTER, attached.fprog)
            if self._incoming:
                sock.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BYTES)
            sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
            sock.setblocking(False)
            sock.bind((device, _ETH_P_ALL))  # last: nothing comes before the filter is in its place
            self._selector.register(sock, selectors.EVENT_READ, self._devices[device])
        return self

    def frames(self, for_s: float | None) -> Iterator[Captured]:
        """Frames as they come, for so long after the first is asked for (None: without an end)."""
        until_s = None if for_s is None else time.monotonic() + for_s
        while True:
            left_s = None if until_s is None else until_s - time.monotonic()
            if left_s is not None and left_s <= 0:
                return
            for key, _ in self._selector.select(left_s):
                assert isinstance(key.fileobj, socket.socket)
                try:
                    data, notes, _, address = key.fileobj.recvmsg(_LARGEST_FRAME, 128)
                except BlockingIOError:
                    continue
                at_ns = next((_nanoseconds(note) for _, kind, note in notes if kind == _SO_TIMESTAMPNS), None)
                yield Captured(
                    data,
                    time.clock_gettime_ns(time.CLOCK_REALTIME) if at_ns is None else at_ns,
                    key.data,
                    address[2] == _PACKET_OUTGOING,
                )

    def missed(self) -> int:
        """Packets that passed but found the sockets' buffers full."""
        for sock in self._sockets.values():
            _, dropped = struct.unpack("=II", sock.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8))  # and clears
            self._missed += dropped
        return self._missed

    def close(self) -> None:
        self._selector.close()
        for sock in self._sockets.values():
            sock.close()
        self._sockets.clear()

    def __enter__(self) -> Tap:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def _nanoseconds(note: bytes) -> int:
    seconds, nanoseconds = _TIMESPEC.unpack_from(note)
    return int(seconds * 1_000_000_000 + nanoseconds)
