"""Questions to a peer's kernel: does it run (echo), and does anybody hold the daemon's port there (a datagram to it).

A kernel answers an echo though all of its programs stand still; it answers "port unreachable" (RFC 4443, section 3.1;
RFC 792) only when the daemon is gone, since every daemon holds a UDP socket on its port. Both are sent over each way
with its own label, pinned to its uplink, so that an answer over any of them counts. Kernels limit their errors (one a
second to each address): one that comes is enough.
"""

from __future__ import annotations

import asyncio
import ipaddress
import secrets
import socket
import struct
from collections.abc import Callable
from typing import Final

import msgspec

from linkpass.core.commands import AskHost
from linkpass.core.events import Event, HostAnswered, HostAskFailed
from linkpass.core.settings import CoreSettings
from linkpass.wire import bpf, icmp, probe

TRIES: Final = 2
ANSWER_S: Final = 0.2
"""How long to wait for answers after each try; both together less than the time before a host is judged."""
MOST_WAYS: Final = 16
AT_ONCE: Final = 8
"""Hosts that are asked at the same time: more have to wait, and their answers may come too late to count."""

_IPV6_FLOWINFO_SEND: Final = 33
_IPV6_RECVERR: Final = 25
_IP_RECVERR: Final = 11
_ICMP6_FILTER: Final = 1
_ICMP4_FILTER: Final = 1
_SOL_RAW: Final = 255
_EXTENDED_ERROR: Final = struct.Struct("=IBBBBII")
"""struct sock_extended_err (linux/errqueue.h): errno, origin, type, code, pad, info, data."""
_BY_ICMP: Final = {2: (3, 3), 3: (1, 4)}
"""Origin (SO_EE_ORIGIN_ICMP, _ICMP6) -> type and code of "port unreachable"."""


class _Question(msgspec.Struct):
    peer: bytes
    asked: dict[str, None]
    echoed: dict[str, None]
    settled: asyncio.Event
    closed: bool = False


class EchoEdge:
    """Sockets are made in the network namespace of the thread that calls `open`. `emit` takes the answers."""

    def __init__(self, settings: CoreSettings, emit: Callable[[Event], None], vrf: str = "") -> None:
        self._emit, self._vrf = emit, vrf.encode()
        self._own = settings.address
        self._port = settings.probing.port
        self._six = ":" in settings.address
        self._kind = icmp.ECHO6 if self._six else icmp.ECHO4
        self._uplinks: dict[str, tuple[int, socket.socket]] = {}
        """Uplink -> its index, and the socket that sends over it and hears nothing."""
        self._echo: socket.socket | None = None
        self._udp: socket.socket | None = None
        self._turns: asyncio.Semaphore | None = None
        self._ident = 0
        self._sequence = 0
        self._waiting: dict[int, tuple[_Question, str, bytes]] = {}
        """Sequence of an echo -> its question, uplink and payload."""
        self._asking: dict[bytes, _Question] = {}
        self.sent = 0

    def open(self) -> None:
        """Needs a running loop. OSError when raw sockets are not permitted."""
        self._ident = secrets.randbits(16)
        self._turns = asyncio.Semaphore(AT_ONCE)
        try:
            self._echo = self._raw(self._vrf)
            self._udp = socket.socket(socket.AF_INET6 if self._six else socket.AF_INET, socket.SOCK_DGRAM)
            self._bind(self._udp, self._vrf)
            if self._six:
                passed = struct.pack("=8I", *[0xFFFFFFFF] * 4, 0xFFFFFFFF & ~(1 << 1), *[0xFFFFFFFF] * 3)
                self._echo.setsockopt(socket.IPPROTO_ICMPV6, _ICMP6_FILTER, passed)  # 129 alone
                self._udp.setsockopt(socket.IPPROTO_IPV6, _IPV6_RECVERR, 1)
            else:
                self._echo.setsockopt(_SOL_RAW, _ICMP4_FILTER, struct.pack("=I", 0xFFFFFFFF & ~1))
                self._udp.setsockopt(socket.IPPROTO_IP, _IP_RECVERR, 1)
        except OSError:
            self.close()
            raise
        loop = asyncio.get_running_loop()
        loop.add_reader(self._echo, self._on_echo)
        loop.add_reader(self._udp, self._on_error)

    def _raw(self, device: bytes) -> socket.socket:
        family, protocol = (
            (socket.AF_INET6, socket.IPPROTO_ICMPV6) if self._six else (socket.AF_INET, socket.IPPROTO_ICMP)
        )
        made = socket.socket(family, socket.SOCK_RAW, protocol)
        try:
            self._bind(made, device)
        except OSError:
            made.close()
            raise
        return made

    def _bind(self, sock: socket.socket, device: bytes) -> None:
        sock.setblocking(False)
        if device:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device + b"\0")
        if self._six:
            sock.setsockopt(socket.IPPROTO_IPV6, _IPV6_FLOWINFO_SEND, 1)
        sock.bind((self._own, 0))

    def close(self) -> None:
        """Safe to call twice; what is being asked ends with what it has."""
        loop = asyncio.get_running_loop()
        for sock in (self._echo, self._udp):
            if sock is not None:
                loop.remove_reader(sock)
                sock.close()
        self._echo = self._udp = None
        for _, sender in self._uplinks.values():
            sender.close()
        self._uplinks.clear()
        for question in self._asking.values():
            question.settled.set()

    def set_uplink(self, name: str, ifindex: int) -> None:
        """An uplink is usable. Its socket is bound to the device: a preference in the packet (IPV6_PKTINFO) leaves the
        choice to the hash of a route with several ways. OSError when the device is gone."""
        known = self._uplinks.get(name)
        if known is not None and known[0] == ifindex:
            return
        self.drop_uplink(name)
        sender = self._raw(name.encode())
        nothing = bpf.Filter(bpf.nothing())
        sender.setsockopt(socket.SOL_SOCKET, bpf.SO_ATTACH_FILTER, nothing.fprog)
        self._uplinks[name] = ifindex, sender

    def drop_uplink(self, name: str) -> None:
        """Nothing is sent over it until `set_uplink`."""
        if name in self._uplinks:
            self._uplinks.pop(name)[1].close()

    async def ask(self, command: AskHost) -> None:
        """Emits HostAnswered or HostAskFailed."""
        ways = [(uplink, label) for uplink, label in command.ways if uplink in self._uplinks][:MOST_WAYS]
        peer = ipaddress.ip_address(command.peer).packed
        assert self._turns is not None
        async with self._turns:
            if self._echo is None or not ways or peer in self._asking or (len(peer) == 16) != self._six:
                why = "no usable uplink" if not ways else "it is being asked already, or cannot be asked from here"
                self._emit(HostAskFailed(cmd_id=command.cmd_id, peer=command.peer, why=why))
                return
            question = _Question(peer, dict.fromkeys(uplink for uplink, _ in ways), {}, asyncio.Event())
            self._asking[peer] = question
            sent: list[int] = []
            try:
                for _ in range(TRIES):
                    sent += [self._send(question, uplink, label) for uplink, label in ways]
                    try:
                        async with asyncio.timeout(ANSWER_S):
                            await question.settled.wait()
                        break
                    except TimeoutError:
                        continue
            finally:
                del self._asking[peer]
                for sequence in sent:
                    self._waiting.pop(sequence, None)
        self._emit(
            HostAnswered(
                cmd_id=command.cmd_id,
                peer=command.peer,
                asked=tuple(question.asked),
                echoed=tuple(question.echoed),
                closed=question.closed,
            )
        )

    def _send(self, question: _Question, uplink: str, label: int) -> int:
        """One echo and one datagram; the sequence of the echo. What the kernel does not send goes unanswered."""
        self._sequence = (self._sequence + 1) & 0xFFFF
        payload = secrets.token_bytes(8)
        self._waiting[self._sequence] = question, uplink, payload
        known = self._uplinks.get(uplink)
        if known is None or self._udp is None:
            return self._sequence
        where = str(ipaddress.ip_address(question.peer))
        echo = icmp.echo_request(self._kind, self._ident, self._sequence, payload)
        # A daemon that wakes up takes the datagram for a trace that came too far. Over which uplink it goes is the
        # kernel's choice: the answer to a socket that is bound to one would be lost when it comes over another.
        knock = bytes((probe.TRACE_VERSION, 0, 0, 0)) + payload
        for sock, data, port in ((known[1], echo, 0), (self._udp, knock, self._port)):
            self.sent += 1
            places: list[tuple[str | int, ...]] = [(where, port)]
            if self._six:
                places = [(where, port, label, 0), (where, port, 0, 0)]
            for place in places:
                try:
                    sock.sendto(data, place)
                    break
                except OSError:  # a label that is leased to somebody else (EINVAL): then without one
                    continue
        return self._sequence

    def _on_echo(self) -> None:
        assert self._echo is not None
        for _ in range(256):
            try:
                message, source = self._echo.recvfrom(2048)
            except BlockingIOError:
                return
            except OSError:
                continue
            reply = icmp.echo_reply(self._kind, message)
            if reply is None or reply[0] != self._ident:
                continue
            waiting = self._waiting.get(reply[1])
            if waiting is None:
                continue
            question, uplink, payload = waiting
            who = ipaddress.ip_address(str(source[0]).split("%")[0]).packed
            if who == question.peer and reply[2] == payload:
                question.echoed[uplink] = None
                self._settle(question)

    def _on_error(self) -> None:
        assert self._udp is not None
        for _ in range(256):
            try:
                _, ancillary, _, place = self._udp.recvmsg(512, 512, socket.MSG_ERRQUEUE)
            except BlockingIOError:
                break
            except OSError:
                continue
            question = self._asking.get(ipaddress.ip_address(str(place[0]).split("%")[0]).packed)
            if question is not None and any(_closed(data, question.peer) for _, _, data in ancillary):
                question.closed = True
                self._settle(question)
        with_data = True
        while with_data:  # nobody answers the datagrams; whoever writes here is not heard
            try:
                self._udp.recv(512)
            except OSError:
                with_data = False

    def _settle(self, question: _Question) -> None:
        """All that can be learnt is: an echo over each uplink, and the port closed. A held port is learnt by
        waiting."""
        if question.closed and question.echoed.keys() >= question.asked.keys():
            question.settled.set()


def _closed(data: bytes, peer: bytes) -> bool:
    """An extended error that says "port unreachable", sent by the peer itself and by nobody on the way."""
    if len(data) < _EXTENDED_ERROR.size:
        return False
    _, origin, kind, code, _, _, _ = _EXTENDED_ERROR.unpack_from(data)
    offender = data[_EXTENDED_ERROR.size :]
    # struct sockaddr_in6 has its address after 8 bytes, sockaddr_in after 4
    address = offender[8:24] if len(peer) == 16 else offender[4:8]
    return _BY_ICMP.get(origin) == (kind, code) and address == peer
