"""The kernel's list of RDMA devices and queue pairs, over netlink (include/uapi/rdma/rdma_netlink.h, `rdma resource`).

It tells which thread made each queue pair and how far it has come; for that the kernel asks the driver, and mlx5 its
firmware, once for each. What needs a privilege (CAP_NET_ADMIN) is left out by the kernel, not refused.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator
from types import TracebackType
from typing import Final, Literal

import msgspec

from rdma.netlink import DONE, DUMP, ERROR, HEADER, REQUEST, attributes, encode, errno_of

NETLINK_RDMA: Final = 20
_NLDEV: Final = 5 << 10
_GET, _RES_QP_GET, _STAT_GET = _NLDEV + 1, _NLDEV + 10, _NLDEV + 17
_DEV_INDEX, _DEV_NAME, _PORT_INDEX = 1, 2, 3
_RES_QP, _RES_QP_ENTRY = 19, 20
_LQPN, _RQPN, _RQ_PSN, _SQ_PSN, _TYPE, _STATE, _PID, _KERN_NAME, _PDN = 21, 22, 23, 24, 26, 27, 28, 29, 60
_STAT_RES, _STAT_COUNTER, _STAT_COUNTER_ENTRY, _STAT_COUNTER_ID = 75, 77, 78, 79
_HWCOUNTERS, _HWCOUNTER_ENTRY, _HWCOUNTER_NAME, _HWCOUNTER_VALUE = 80, 81, 82, 83

QpState = Literal["RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR", "unknown"]
STATES: Final[tuple[QpState, ...]] = ("RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR")
"""enum ib_qp_state (include/rdma/ib_verbs.h)."""
TYPES: Final = {
    0: "SMI",
    1: "GSI",
    2: "RC",
    3: "UC",
    4: "UD",
    8: "RAW_PACKET",
    9: "XRC_INI",
    10: "XRC_TGT",
    0xFF: "DRIVER",
}


class QueuePair(msgspec.Struct, frozen=True):
    """One queue pair. `rqpn`, `rq_psn`, `sq_psn`: None where the type has no peer. `pid`: as the kernel tells it, the
    thread that made it (see `rdma.program`); 0 once that has ended or where it is in another PID namespace, and for one
    of the kernel's, whose `owner` then says which part of the kernel. `domain`: number of its protection domain on its
    device, which belongs to one program."""

    device: str
    port: int
    lqpn: int
    rqpn: int | None
    type: str
    state: QpState
    sq_psn: int | None
    rq_psn: int | None
    pid: int
    owner: str = ""
    domain: int | None = None

    @property
    def of_kernel(self) -> bool:
        return not self.pid and bool(self.owner)


class Bound(msgspec.Struct, frozen=True):
    """A counter of the device's that somebody has bound to queue pairs (`rdma statistic qp bind`), as the kernel tells
    it. `number`: by which the device knows it; `counted`: since it was bound, or what was last known where the device
    did not answer just now: the kernel does not tell these apart (fill_res_counter_entry())."""

    device: str
    port: int
    number: int
    queue_pairs: tuple[int, ...]
    counted: dict[str, int]


class Listing(msgspec.Struct, frozen=True):
    """What the kernel listed, in its order. `unknown`: devices of which it did not list all -> why. One queue pair that
    its driver cannot tell of breaks off its device's list (drivers/infiniband/core/nldev.c, res_get_common_dumpit)."""

    queue_pairs: list[QueuePair]
    unknown: dict[str, str]


class RdmaNetlinkError(Exception):
    """The kernel has no RDMA, or refused; the text says which and what to do."""


class Nldev:
    """A connection. Used by one thread; every question is asked and answered before the call returns."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._sequence = 0

    def open(self) -> Nldev:
        """Raises RdmaNetlinkError where the kernel has no RDMA (module ib_core)."""
        try:
            self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, NETLINK_RDMA)
            self._socket.settimeout(2.0)
        except OSError as error:
            if error.errno in (errno.EPROTONOSUPPORT, errno.EAFNOSUPPORT):
                raise RdmaNetlinkError("this kernel has no RDMA (module ib_core is not loaded)") from None
            raise RdmaNetlinkError(f"the kernel's RDMA interface cannot be asked: {error.strerror}") from error
        return self

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def __enter__(self) -> Nldev:
        return self.open()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def devices(self) -> dict[str, int]:
        """Name -> the number by which the kernel knows it."""
        found = {}
        told, code = self._dump(_GET, b"")
        if code:
            raise RdmaNetlinkError(f"the kernel refused to list its RDMA devices: {os.strerror(code)}")
        for one in told:
            name, index = one.get(_DEV_NAME), one.get(_DEV_INDEX)
            if name is not None and index is not None:
                found[_text(name)] = _u32(index)
        return found

    def listing(self) -> Listing:
        """The queue pairs of all devices. Of a device that went meanwhile, or whose list broke off: what was told."""
        found, unknown = [], {}
        for name, index in self.devices().items():
            told, code = self._dump(_RES_QP_GET, encode(_DEV_INDEX, struct.pack("=I", index)))
            for one in told:
                for kind, entry in attributes(one.get(_RES_QP, b"")):
                    if kind == _RES_QP_ENTRY:
                        found.append(_queue_pair(name, dict(attributes(entry))))
            if code:
                unknown[name] = f"the kernel broke off its list of the queue pairs of {name}: {os.strerror(code)}"
        return Listing(found, unknown)

    def bound(self, device: str) -> list[Bound] | None:
        """The counters that are bound to queue pairs of a device; read, never bound here. Each costs a command of the
        device's. None: it cannot be asked (before Linux 5.3, or the device has gone)."""
        index = self.devices().get(device)
        if index is None:
            return None
        question = encode(_DEV_INDEX, struct.pack("=I", index)) + encode(_STAT_RES, struct.pack("=I", _RES_QP))
        told, code = self._dump(_STAT_GET, question)
        if code:
            return None
        return [
            _bound(device, dict(attributes(entry)))
            for one in told
            for kind, entry in attributes(one.get(_STAT_COUNTER, b""))
            if kind == _STAT_COUNTER_ENTRY
        ]

    def _dump(self, kind: int, payload: bytes) -> tuple[list[dict[int, bytes]], int]:
        """What was told, and the errno with which it ended: 0 when that is all."""
        if self._socket is None:
            raise RuntimeError("Nldev.open() was not called")
        self._sequence = self._sequence + 1 & 0xFFFFFFFF
        size = HEADER.size + len(payload)
        request = HEADER.pack(size, kind, REQUEST | DUMP, self._sequence, 0) + payload
        told: list[dict[int, bytes]] = []
        try:
            self._socket.send(request)
            while True:
                for answer, body in self._messages(self._socket.recv(1 << 18)):
                    if answer in (DONE, ERROR):
                        return told, errno_of(body)
                    told.append(dict(attributes(body)))
        except OSError as error:
            raise RdmaNetlinkError(f"the kernel's RDMA interface did not answer: {error.strerror or error}") from error

    def _messages(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Kind and body of each message of a datagram that answers the present question."""
        at = 0
        while at + HEADER.size <= len(data):
            size, kind, _, sequence, _ = HEADER.unpack_from(data, at)
            if size < HEADER.size:
                raise RdmaNetlinkError("the kernel's answer is cut")
            if sequence == self._sequence:  # others: of a question that was given up
                yield kind, data[at + HEADER.size : at + size]
            at += (size + 3) & ~3


def _queue_pair(device: str, of: dict[int, bytes]) -> QueuePair:
    def number(kind: int) -> int | None:
        value = of.get(kind)
        return None if value is None else int.from_bytes(value[:4], "little" if _LITTLE else "big")

    state = number(_STATE)
    kind = number(_TYPE)
    return QueuePair(
        device=device,
        port=number(_PORT_INDEX) or 0,
        lqpn=number(_LQPN) or 0,
        rqpn=number(_RQPN),
        type=TYPES.get(-1 if kind is None else kind, "unknown"),
        state=STATES[state] if state is not None and state < len(STATES) else "unknown",
        sq_psn=number(_SQ_PSN),
        rq_psn=number(_RQ_PSN),
        pid=number(_PID) or 0,
        owner=_text(of[_KERN_NAME]) if _KERN_NAME in of else "",
        domain=number(_PDN),
    )


def _bound(device: str, of: dict[int, bytes]) -> Bound:
    pairs = [dict(attributes(one)) for kind, one in attributes(of.get(_RES_QP, b"")) if kind == _RES_QP_ENTRY]
    counters = [dict(attributes(one)) for kind, one in attributes(of.get(_HWCOUNTERS, b"")) if kind == _HWCOUNTER_ENTRY]
    return Bound(
        device=device,
        port=_u32(of.get(_PORT_INDEX, bytes(4))),
        number=_u32(of.get(_STAT_COUNTER_ID, bytes(4))),
        queue_pairs=tuple(_u32(one[_LQPN]) for one in pairs if _LQPN in one),
        counted={
            _text(one[_HWCOUNTER_NAME]): struct.unpack_from("=Q", one[_HWCOUNTER_VALUE])[0]
            for one in counters
            if _HWCOUNTER_NAME in one and len(one.get(_HWCOUNTER_VALUE, b"")) == 8
        },
    )


_LITTLE: Final = struct.pack("=H", 1) == b"\x01\x00"


def _u32(value: bytes) -> int:
    number: int = struct.unpack_from("=I", value)[0]
    return number


def _text(value: bytes) -> str:
    return value.split(b"\0", 1)[0].decode("utf-8", "replace")
