"""The kernel's list of RDMA devices and queue pairs, over netlink (include/uapi/rdma/rdma_netlink.h, `rdma resource`).

It tells whose each queue pair is and how far it has come, without touching the program. What needs a privilege
(CAP_NET_ADMIN) is left out by the kernel, not refused.
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

from rdma.netlink import DONE, DUMP, ERROR, HEADER, REQUEST, attributes, encode

NETLINK_RDMA: Final = 20
_NLDEV: Final = 5 << 10
_GET, _RES_QP_GET = _NLDEV + 1, _NLDEV + 10
_DEV_INDEX, _DEV_NAME, _PORT_INDEX = 1, 2, 3
_RES_QP, _RES_QP_ENTRY = 19, 20
_LQPN, _RQPN, _RQ_PSN, _SQ_PSN, _TYPE, _STATE, _PID, _KERN_NAME, _CTXN = 21, 22, 23, 24, 26, 27, 28, 29, 64

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
    """One queue pair. `rqpn`, `rq_psn`, `sq_psn`: None where the type has no peer. `pid`: 0 for one of the kernel's,
    whose `owner` then says which part of the kernel. `context`: which opening of the device it belongs to."""

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
    context: int | None = None


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
        for told in self._dump(_GET, b""):
            name, index = told.get(_DEV_NAME), told.get(_DEV_INDEX)
            if name is not None and index is not None:
                found[_text(name)] = _u32(index)
        return found

    def queue_pairs(self) -> list[QueuePair]:
        """Of all devices, in the kernel's order."""
        found = []
        for name, index in self.devices().items():
            for told in self._dump(_RES_QP_GET, encode(_DEV_INDEX, struct.pack("=I", index))):
                for kind, entry in attributes(told.get(_RES_QP, b"")):
                    if kind == _RES_QP_ENTRY:
                        found.append(_queue_pair(name, dict(attributes(entry))))
        return found

    def _dump(self, kind: int, payload: bytes) -> Iterator[dict[int, bytes]]:
        if self._socket is None:
            raise RuntimeError("Nldev.open() was not called")
        self._sequence += 1
        size = HEADER.size + len(payload)
        request = HEADER.pack(size, kind, REQUEST | DUMP, self._sequence, 0) + payload
        try:
            self._socket.send(request)
            messages = list(self._answers())
        except OSError as error:
            raise RdmaNetlinkError(f"the kernel's RDMA interface did not answer: {error.strerror or error}") from error
        for message in messages:
            yield dict(attributes(message))

    def _answers(self) -> Iterator[bytes]:
        assert self._socket is not None
        while True:
            data = self._socket.recv(1 << 18)
            at = 0
            while at + HEADER.size <= len(data):
                size, kind, _, sequence, _ = HEADER.unpack_from(data, at)
                if size < HEADER.size:
                    raise RdmaNetlinkError("the kernel's answer is cut")
                body = data[at + HEADER.size : at + size]
                at += (size + 3) & ~3
                if sequence != self._sequence:
                    continue  # of a question that was given up
                if kind == DONE:
                    return
                if kind == ERROR:
                    code = -struct.unpack_from("=i", body)[0]
                    if code in (0, errno.ENOENT):  # a device that has gone since it was listed
                        return
                    raise RdmaNetlinkError(f"the kernel refused to list: {os.strerror(code)}")
                yield body


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
        context=number(_CTXN),
    )


_LITTLE: Final = struct.pack("=H", 1) == b"\x01\x00"


def _u32(value: bytes) -> int:
    number: int = struct.unpack_from("=I", value)[0]
    return number


def _text(value: bytes) -> str:
    return value.split(b"\0", 1)[0].decode("utf-8", "replace")
