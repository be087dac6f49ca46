"""Raw rtnetlink in one namespace, for what pyroute2 has no messages for (next-hop objects, routes on them) and for the
few requests of a fault that must reach the kernel within a millisecond.

Many requests go in one `send`, every acknowledgement is read (rtnetlink(7); net/netlink/af_netlink.c: messages of one
datagram are handled in order, each is acknowledged by itself). Everything else: `lab.netns.desk`.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType

from lab.netns import namespace
from linkpass.wire import rtnl

_BATCH_BYTES = 32_000  # below the default send buffer, so that a batch is one datagram and one system call
_SOL_NETLINK, _NETLINK_EXT_ACK, _NETLINK_CAP_ACK, _NETLINK_GET_STRICT_CHK = 270, 11, 10, 12
_NLM_F_CAPPED, _NLM_F_ACK_TLVS = 0x100, 0x200


@dataclass(frozen=True, slots=True)
class Request:
    """One message to the kernel: type, flags beside REQUEST and ACK, body (header of the family and attributes).

    `what` names the thing for an error's text; errors in `allow` (errno values) are no errors here."""

    type: int
    flags: int
    body: bytes
    what: str = ""
    allow: frozenset[int] = frozenset()


class KernelError(OSError):
    """The kernel refused a request; the text says which one and why (with the kernel's own words where it has any)."""


class Session:
    """A netlink socket inside a namespace. `open()` connects; usable from any thread afterwards."""

    def __init__(self, target: int | str) -> None:
        self._target = target
        self._socket: socket.socket | None = None
        self._sequence = 0

    def open(self) -> Session:
        if self._socket is None:
            with namespace.inside(self._target):
                self._socket = open_socket()
        return self

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def __enter__(self) -> Session:
        return self.open()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def apply(self, requests: Sequence[Request]) -> None:
        """Send all requests in order and wait for the kernel's answer to each.

        Raises KernelError for the first refusal that its request does not allow; later ones were executed all the
        same (netlink has no transactions)."""
        start = 0
        while start < len(requests):
            sent, end = bytearray(), start
            while end < len(requests) and (not sent or len(sent) + len(requests[end].body) < _BATCH_BYTES):
                request = requests[end]
                flags = rtnl.F_REQUEST | rtnl.F_ACK | request.flags
                sent += rtnl.message(request.type, flags, self._sequence + 1 + end - start, request.body)
                end += 1
            first = self._sequence + 1
            self._sequence += end - start
            self._sock.send(sent)
            self._read_acks(requests[start:end], first)
            start = end

    def dump(self, kind: int, body: bytes) -> list[bytes]:
        """Everything of one kind: the body of each answer."""
        self._sequence += 1
        self._sock.send(rtnl.message(kind, rtnl.F_REQUEST | rtnl.F_DUMP, self._sequence, body))
        answers: list[bytes] = []
        while True:
            data = self._sock.recv(1 << 18)
            for answer in rtnl.messages(data):
                if answer.seq != self._sequence:
                    continue
                if answer.kind == rtnl.NLMSG_DONE and not answer.error:
                    return answers
                if answer.kind in (rtnl.NLMSG_ERROR, rtnl.NLMSG_DONE):  # the latter: it broke off
                    raise KernelError(answer.error, f"dump of message type {kind}: {os.strerror(answer.error)}")
                answers.append(answer.body)

    @property
    def _sock(self) -> socket.socket:
        if self._socket is None:
            raise RuntimeError("Session.open() was not called")
        return self._socket

    def _read_acks(self, requests: Sequence[Request], first: int) -> None:
        refused: KernelError | None = None
        waiting = len(requests)
        while waiting:
            for answer in rtnl.messages(self._sock.recv(1 << 18)):
                if answer.kind != rtnl.NLMSG_ERROR or not first <= answer.seq < first + len(requests):
                    continue
                waiting -= 1
                code = answer.error
                request = requests[answer.seq - first]
                if code and code not in request.allow and refused is None:
                    words = _extended_ack(answer.flags, answer.body) or os.strerror(code)
                    name = errno.errorcode.get(code, str(code))
                    refused = KernelError(code, f"{request.what or f'message {request.type}'}: {words} ({name})")
        if refused is not None:
            raise refused


def open_socket(groups: int = 0) -> socket.socket:
    """A bound rtnetlink socket in the calling thread's namespace. `groups`: bit mask of multicast groups."""
    sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)
    try:
        sock.bind((0, groups))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        for option in (_NETLINK_CAP_ACK, _NETLINK_EXT_ACK):
            sock.setsockopt(_SOL_NETLINK, option, 1)
    except OSError:
        sock.close()
        raise
    return sock


def _extended_ack(flags: int, payload: bytes) -> str:
    """The kernel's own sentence about an error (NLMSGERR_ATTR_MSG), empty when it gave none."""
    if not flags & _NLM_F_ACK_TLVS:
        return ""
    length = int(struct.unpack_from("=I", payload, 4)[0])
    offset = 4 + (16 if flags & _NLM_F_CAPPED else (length + 3) & ~3)
    words = dict(rtnl.attributes(payload, offset)).get(1, b"")
    return words.rstrip(b"\0").decode(errors="replace")
