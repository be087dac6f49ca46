"""Questions on the wire and their answers: one packet each, paced, asked again when nobody answers."""

from __future__ import annotations

import asyncio
import errno
import secrets
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec

from linkpass.wire import bpf, icmp, probe
from linkpass.wire.frame import ACK, ETHERNET_BYTES, RST, TCP, Headers, Template

TRIES: Final = 3
ANSWER_S: Final = 0.060
"""How long to wait for answers after the last packet of a try."""
BURST_S: Final = 0.005

_IPV6_FLOWINFO_SEND: Final = 33
_IPV6_FLOWLABEL_MGR: Final = 32
_IPV6_HOPLIMIT: Final = 52
_ICMP6_FILTER: Final = 1
_ICMP4_FILTER: Final = 1
_SOL_RAW: Final = 255


class Question(NamedTuple):
    """Who is at this hop? `uplink` "": wherever the kernel's routes lead."""

    uplink: str
    label: int
    hop: int
    sport: int
    dport: int
    copy: bool = False
    """A copy of a data flow's header, not a probe's."""


class UnanswerableError(Exception):
    """A trace cannot be made: the message says why."""


class _Uplink(msgspec.Struct):
    ifindex: int
    mac: bytes
    gateway_mac: bytes
    socket: socket.socket
    usable: bool = True

    @property
    def ready(self) -> bool:
        return self.usable and bool(self.gateway_mac)


class _Batch:
    """Questions that wait for answers together."""

    def __init__(self, dst: bytes, needed: set[Question]) -> None:
        self.dst, self.needed = dst, needed
        self.answers: dict[Question, str] = {}
        self.complete = asyncio.Event()


class Asker:
    """Sockets are made in the network namespace of the thread that calls `open` and `set_uplink`."""

    def __init__(
        self, own: bytes, protocol: int, dscp: int, packets_per_s: int, clock: Callable[[], float], device: str = ""
    ) -> None:
        """`own`: this host's address, 16 or 4 bytes. `protocol`: that of the probes. `device`: the VRF of both."""
        self._device = device.encode()
        self._own, self._protocol, self._dscp, self._clock = own, protocol, dscp, clock
        self._gap_s = 1 / packets_per_s
        self._uplinks: dict[str, _Uplink] = {}
        self._hears: socket.socket | None = None
        self._routed: socket.socket | None = None
        self._leased: set[tuple[bytes, int]] = set()
        self._waiting: dict[int, tuple[_Batch, Question]] = {}
        self._token = 0
        self._next_s = 0.0
        self.sent = 0
        self.answered = 0

    def open(self) -> None:
        """Needs a running loop. OSError when raw sockets are not permitted."""
        self._token = secrets.randbits(32)
        six = len(self._own) == 16
        self._hears = socket.socket(
            socket.AF_INET6 if six else socket.AF_INET,
            socket.SOCK_RAW,
            socket.IPPROTO_ICMPV6 if six else socket.IPPROTO_ICMP,
        )
        self._hears.setblocking(False)
        self._bind(self._hears)
        self._hears.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        if six:
            passed = 1 << icmp.ICMP6_UNREACHABLE | 1 << icmp.ICMP6_TIME_EXCEEDED
            mask = struct.pack("=8I", 0xFFFFFFFF & ~passed, *[0xFFFFFFFF] * 7)
            self._hears.setsockopt(socket.IPPROTO_ICMPV6, _ICMP6_FILTER, mask)
        else:
            passed = 1 << icmp.ICMP4_UNREACHABLE | 1 << icmp.ICMP4_TIME_EXCEEDED
            self._hears.setsockopt(_SOL_RAW, _ICMP4_FILTER, struct.pack("=I", 0xFFFFFFFF & ~passed))
        self._routed = self._open_routed()
        asyncio.get_running_loop().add_reader(self._hears, self._on_answer)

    def _open_routed(self) -> socket.socket:
        """For packets that the kernel's routes send: a raw socket of the probes' protocol that receives nothing."""
        six = len(self._own) == 16
        out = socket.socket(socket.AF_INET6 if six else socket.AF_INET, socket.SOCK_RAW, self._protocol)
        try:
            out.setblocking(False)
            self._bind(out)
            nothing = bpf.Filter(bpf.nothing())
            out.setsockopt(socket.SOL_SOCKET, bpf.SO_ATTACH_FILTER, nothing.fprog)
            if six:
                out.setsockopt(socket.IPPROTO_IPV6, _IPV6_FLOWINFO_SEND, 1)
            out.bind((_text(self._own), 0))
        except OSError:
            out.close()
            raise
        return out

    def _bind(self, sock: socket.socket) -> None:
        if self._device:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, self._device + b"\0")

    def close(self) -> None:
        """Safe to call twice; traces in progress end with what they have."""
        for known in self._uplinks.values():
            known.socket.close()
        self._uplinks.clear()
        if self._hears is not None:
            asyncio.get_running_loop().remove_reader(self._hears)
            self._hears.close()
            self._hears = None
        if self._routed is not None:
            self._routed.close()
            self._routed = None
            self._leased.clear()
        for batch, _ in self._waiting.values():
            batch.complete.set()

    def set_uplink(self, name: str, ifindex: int, mac: bytes, gateway_mac: bytes = b"") -> None:
        """As of the probe edge: MACs are 6 bytes, b"" while the gateway's is not known."""
        known = self._uplinks.get(name)
        if known is not None and (known.ifindex, known.mac) == (ifindex, mac):
            known.gateway_mac, known.usable = gateway_mac, True
            return
        if known is not None:
            self._uplinks.pop(name).socket.close()
        out = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)  # protocol 0 receives nothing
        try:
            out.setblocking(False)
            out.bind((name, 0))
        except BaseException:
            out.close()
            raise
        self._uplinks[name] = _Uplink(ifindex, mac, gateway_mac, out)

    def set_neighbour(self, name: str, gateway_mac: bytes) -> None:
        if name in self._uplinks:
            self._uplinks[name].gateway_mac = gateway_mac

    def drop_uplink(self, name: str) -> None:
        """Nothing is sent over it until `set_uplink`. The socket stays: closing one takes 10 ms (an RCU grace period),
        and this is called when the loop has to move traffic."""
        if name in self._uplinks:
            self._uplinks[name].usable = False

    def ready(self) -> list[str]:
        """The uplinks over which questions can be asked."""
        return [name for name, known in self._uplinks.items() if known.ready]

    async def ask(
        self, dst: bytes, needed: Sequence[Question], beyond: Sequence[Question] = (), tries: int = TRIES
    ) -> dict[Question, str]:
        """Address of the answering node for each question; those of `beyond` are asked once and not waited for."""
        batch = _Batch(dst, set(needed))
        templates: dict[Question, Template] = {}
        tokens: list[int] = []
        try:
            for attempt in range(tries):
                open_questions = [q for q in needed if q not in batch.answers]
                if not attempt:
                    open_questions += beyond
                for question in open_questions:
                    await self._pace()
                    self._token = (self._token + 1) & 0xFFFFFFFF
                    self._waiting[self._token] = (batch, question)
                    tokens.append(self._token)
                    if question not in templates:
                        templates[question] = self._template(dst, question)
                    self._send(templates[question], question, self._token)
                try:
                    async with asyncio.timeout(ANSWER_S):
                        await batch.complete.wait()
                    break
                except TimeoutError:
                    continue
        finally:
            for token in tokens:
                self._waiting.pop(token, None)
        return batch.answers

    async def _pace(self) -> None:
        now_s = self._clock()
        self._next_s = max(self._next_s, now_s) + self._gap_s
        if self._next_s - now_s > BURST_S:
            await asyncio.sleep(self._next_s - now_s)

    def _template(self, dst: bytes, question: Question) -> Template:
        known = self._uplinks.get(question.uplink)
        if question.uplink and (known is None or not known.ready):
            raise UnanswerableError(f"{question.uplink} is not usable")
        return Template(
            Headers(
                known.mac if known else bytes(6),
                known.gateway_mac if known else bytes(6),
                self._own,
                dst,
                TCP if question.copy else self._protocol,
                question.sport,
                question.dport,
                label=question.label,
                hop_limit=question.hop,
                dscp=self._dscp,
                flags=ACK if question.copy else RST,
                spoil=question.copy,
            )
        )

    def _send(self, template: Template, question: Question, token: int) -> None:
        # the version byte tells a peer's daemon that a packet which came too far is a trace's
        frame = template.frame(bytes((probe.TRACE_VERSION, 0, 0, 0)) + token.to_bytes(4, "big"), token)
        self.sent += 1
        try:
            if question.uplink:
                known = self._uplinks.get(question.uplink)
                if known is None or not known.usable:
                    raise UnanswerableError(f"{question.uplink} is not usable")
                known.socket.send(frame)
            else:
                self._send_routed(frame[ETHERNET_BYTES:], template.headers)
        except BlockingIOError:
            pass  # the queue is full: the question is asked again
        except OSError as error:
            raise UnanswerableError(f"{question.uplink or 'routed trace'}: {error.strerror}") from error

    def _send_routed(self, packet: bytes, headers: Headers) -> None:
        """Let the kernel's routes choose the uplink, by the same fields as for the job's flows.

        While any socket of the namespace holds a label exclusively, other labels must be leased first (EINVAL)."""
        if self._routed is None:
            raise UnanswerableError("the edge is closed")
        six = len(self._own) == 16
        where = _text(headers.dst)
        if not six:
            limit = [(socket.IPPROTO_IP, socket.IP_TTL, struct.pack("=i", headers.hop_limit))]
            self._routed.sendmsg([packet[20:]], limit, 0, (where, 0))
            return
        limit = [(socket.IPPROTO_IPV6, _IPV6_HOPLIMIT, struct.pack("=i", headers.hop_limit))]
        place = (where, 0, headers.label, 0)
        try:
            self._routed.sendmsg([packet[40:]], limit, 0, place)
        except OSError as error:
            if error.errno != errno.EINVAL or (headers.dst, headers.label) in self._leased:
                raise
            self._lease(headers)
            self._routed.sendmsg([packet[40:]], limit, 0, place)

    def _lease(self, headers: Headers) -> None:
        """struct in6_flowlabel_req: get, shared by anyone, create. The lease ends with the socket."""
        assert self._routed is not None
        request = headers.dst + struct.pack("!I", headers.label) + struct.pack("=BBHHHI", 0, 255, 1, 0, 0, 0)
        self._routed.setsockopt(socket.IPPROTO_IPV6, _IPV6_FLOWLABEL_MGR, request)
        self._leased.add((headers.dst, headers.label))

    def _on_answer(self) -> None:
        assert self._hears is not None
        six = len(self._own) == 16
        for _ in range(256):
            try:
                message, source = self._hears.recvfrom(2048)
            except BlockingIOError:
                return
            except OSError:
                continue
            who = str(source[0]).split("%")[0]
            error = icmp.parse6(message) if six else icmp.parse4(message)
            if error is not None and error.kind == "time_exceeded":
                self._take(error.quoted, who)

    def _take(self, quoted: icmp.Quoted, who: str) -> None:
        token = quoted.sequence if quoted.protocol == TCP else int.from_bytes(quoted.payload[4:8], "big")
        asked = self._waiting.get(token)
        if asked is None:
            return
        batch, question = asked
        if quoted.src != self._own or quoted.dst != batch.dst or quoted.sport != question.sport:
            return
        self.answered += 1
        batch.answers[question] = who
        if batch.needed <= batch.answers.keys():
            batch.complete.set()


def _text(address: bytes) -> str:
    return socket.inet_ntop(socket.AF_INET6 if len(address) == 16 else socket.AF_INET, address)
