"""Netlink sockets that ask and wait: a request, its acknowledgement or its dump."""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Sequence

from linkpass.wire import rtnl

SOL_NETLINK = 270
NETLINK_ADD_MEMBERSHIP = 1
NETLINK_CAP_ACK = 10
NETLINK_EXT_ACK = 11
NETLINK_GET_STRICT_CHK = 12
ANSWER_S = 2.0
"""The kernel answers within microseconds; a longer silence is a fault, not a reason to stop the daemon for good."""

AT_ONCE = 64
"""Changes in one datagram: their answers have to fit into the socket's receive buffer."""

DUMPS = 5


class KernelRefusedError(OSError):
    """The kernel's answer to a request: errno and, where it gave one, its sentence."""


class NotPermittedError(KernelRefusedError):
    """The daemon lacks CAP_NET_ADMIN."""


def refused(number: int, what: str, sentence: str = "") -> KernelRefusedError:
    kind = NotPermittedError if number in (errno.EPERM, errno.EACCES) else KernelRefusedError
    text = sentence or os.strerror(number)
    if kind is NotPermittedError:
        text += " (needs root or CAP_NET_ADMIN)"
    return kind(number, f"{what}: {text}")


class RequestSocket:
    """One rtnetlink socket in the network namespace of the thread that opens it."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._seq = 0

    def open(self) -> None:
        """Strict checking makes the kernel refuse what it does not know instead of overlooking it: one before 6.14
        would answer a question about a flow label as if there were no label."""
        sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
        for option in (NETLINK_EXT_ACK, NETLINK_CAP_ACK, NETLINK_GET_STRICT_CHK):
            try:
                sock.setsockopt(SOL_NETLINK, option, 1)
            except OSError as error:  # Linux before 4.20 has no strict checking
                if error.errno != errno.ENOPROTOOPT:
                    sock.close()
                    raise
        sock.bind((0, 0))
        sock.settimeout(ANSWER_S)
        self._socket = sock

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    @property
    def port_id(self) -> int:
        """The port id that the kernel names in notifications as the author of our changes."""
        return int(self._sock().getsockname()[0])

    def _sock(self) -> socket.socket:
        if self._socket is None:
            raise RuntimeError("the netlink socket is not open")
        return self._socket

    def change(self, kind: int, body: bytes, flags: int, what: str) -> None:
        """Send a change and wait for its acknowledgement. Raises KernelRefusedError."""
        self._seq += 1
        sock = self._sock()
        sock.send(rtnl.message(kind, flags | rtnl.F_REQUEST | rtnl.F_ACK, self._seq, body))
        while True:
            for answer in rtnl.messages(sock.recv(65536)):
                if answer.seq != self._seq or answer.kind != rtnl.NLMSG_ERROR:
                    continue
                if answer.error:
                    raise refused(answer.error, what, _sentence(answer))
                return

    def change_many(self, changes: Sequence[tuple[int, bytes, int]]) -> list[tuple[int, str]]:
        """Send changes (kind, body, flags) in one go; the kernel carries out one after the other, and a refused one
        does not keep it from the next. (errno or 0, the kernel's sentence) of each."""
        outcomes: list[tuple[int, str]] = []
        for first in range(0, len(changes), AT_ONCE):
            outcomes += self._change_some(changes[first : first + AT_ONCE])
        return outcomes

    def _change_some(self, changes: Sequence[tuple[int, bytes, int]]) -> list[tuple[int, str]]:
        first = self._seq + 1
        self._seq += len(changes)
        sock = self._sock()
        sock.send(
            b"".join(
                rtnl.message(kind, flags | rtnl.F_REQUEST | rtnl.F_ACK, first + step, body)
                for step, (kind, body, flags) in enumerate(changes)
            )
        )
        outcomes: dict[int, tuple[int, str]] = {}
        while len(outcomes) < len(changes):
            for answer in rtnl.messages(sock.recv(65536)):
                if answer.seq >= first and answer.kind == rtnl.NLMSG_ERROR:
                    outcomes[answer.seq] = (answer.error, _sentence(answer))
        return [outcomes[first + step] for step in range(len(changes))]

    def ask(self, kind: int, body: bytes, what: str) -> rtnl.Message:
        """Ask for one object. Raises KernelRefusedError."""
        self._seq += 1
        sock = self._sock()
        sock.send(rtnl.message(kind, rtnl.F_REQUEST, self._seq, body))
        while True:
            for answer in rtnl.messages(sock.recv(65536)):
                if answer.seq != self._seq:
                    continue
                if answer.kind == rtnl.NLMSG_ERROR:
                    raise refused(answer.error, what, _sentence(answer))
                return answer

    def dump(self, kind: int, family: int = 0, *, table: int = 0, protocol: int = 0) -> list[rtnl.Message]:
        """All objects of a kind; `table` and `protocol` spare the kernel the telling of others' routes, where it can.

        A dump that the kernel says was interrupted is taken again, a few times. One that broke off raises
        KernelRefusedError: a part must not be taken for all."""
        for again in reversed(range(DUMPS)):
            try:
                found, interrupted = self._dump_once(kind, family, table, protocol)
            except KernelRefusedError as error:
                if error.errno != errno.EINTR or not again:
                    raise
                continue
            if not interrupted:
                break
        return found

    def routes(self, family: int, *, table: int, protocol: int = 0) -> list[rtnl.Route]:
        """The routes of a table in one family (of one protocol, if one is given)."""
        try:
            answers = self.dump(rtnl.RTM_GETROUTE, family, table=table, protocol=protocol)
        except KernelRefusedError as error:
            if error.errno != errno.ENOENT:  # there is no such table yet: it is made with its first route
                raise
            answers = []
        found = (rtnl.parse_route(answer.body) for answer in answers)
        return [route for route in found if route.table == table and protocol in (0, route.protocol)]

    def _dump_once(self, kind: int, family: int, table: int, protocol: int) -> tuple[list[rtnl.Message], bool]:
        self._seq += 1
        sock = self._sock()
        sock.send(rtnl.dump(kind, self._seq, family, table=table, protocol=protocol))
        found: list[rtnl.Message] = []
        interrupted = False
        while True:
            for answer in rtnl.messages(sock.recv(1 << 18)):
                if answer.seq != self._seq:
                    continue
                interrupted |= bool(answer.flags & 0x10)  # NLM_F_DUMP_INTR
                if answer.kind == rtnl.NLMSG_DONE:
                    if answer.error:  # the kernel says here why it broke off (netlink_dump_done()): not all was told
                        raise refused(answer.error, "dump", _sentence(answer))
                    return found, interrupted
                if answer.kind == rtnl.NLMSG_ERROR:
                    raise refused(answer.error, "dump", _sentence(answer))
                found.append(answer)


def _sentence(answer: rtnl.Message) -> str:
    """The kernel's own words (NLMSGERR_ATTR_MSG), when it sent some."""
    if not answer.flags & 0x200:  # NLM_F_ACK_TLVS
        return ""
    offset = 20
    if answer.kind == rtnl.NLMSG_DONE:
        offset = 4
    elif not answer.flags & 0x100:  # not capped: the request follows the header
        (size,) = struct.unpack_from("=I", answer.body, 4)
        offset = 4 + ((size + 3) & ~3)
    for kind, data in rtnl.attributes(answer.body, offset):
        if kind == 1:
            return data.rstrip(b"\0").decode(errors="replace")
    return ""
