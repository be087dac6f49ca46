"""Questions on the wire and their answers: one packet each, paced, put again when nobody answers."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import secrets
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from linkpass.core.settings import Tracing
from linkpass.edges.traces import hearing
from linkpass.edges.traces.pace import Pace
from linkpass.wire import bpf, icmp, probe
from linkpass.wire.frame import ACK, ETHERNET_BYTES, RST, TCP, Headers, Template

TRIES: Final = 3
ANSWER_S: Final = 0.060
"""How long to wait for answers after the last packet of a try."""
SLICE_S: Final = 0.005
URGENT_SLICE_S: Final = 0.001
"""Packets of so long go in one turn of the loop."""

_IPV6_FLOWINFO_SEND: Final = 33
_IPV6_FLOWLABEL_MGR: Final = 32
_IPV6_HOPLIMIT: Final = 52


class Question(NamedTuple):
    """Who is at this hop? `uplink` "": wherever the kernel's routes lead."""

    uplink: str
    label: int
    hop: int
    sport: int
    dport: int
    copy: bool = False
    """A copy of a data flow's header, not a probe's."""


class Answer(NamedTuple):
    """`who`: the address that answers. `back_over`: the uplink that the answer came by, "": none of ours, or not told.
    `crossed`: routers on its way back, as its hop limit tells; None: not told."""

    who: str
    back_over: str = ""
    crossed: int | None = None


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


class Batch:
    """Questions to one host that belong together. Late answers count as long as it is open."""

    def __init__(self, dst: bytes) -> None:
        self.dst = dst
        self.answers: dict[Question, Answer] = {}
        self.more: dict[Question, list[Answer]] = {}
        """All answers to questions that were put again although they were answered."""
        self.needed: set[Question] = set()
        self.complete = asyncio.Event()
        self.templates: dict[Question, Template] = {}
        self.tokens: list[int] = []

    def take(self, question: Question, answer: Answer) -> None:
        if question in self.more:
            self.more[question].append(answer)
        self.answers.setdefault(question, answer)
        self.needed.discard(question)
        if not self.needed:
            self.complete.set()


class Asker:
    """Sockets are made in the network namespace of the thread that calls `open` and `set_uplink`."""

    def __init__(
        self, own: bytes, protocol: int, dscp: int, tracing: Tracing, clock: Callable[[], float], device: str = ""
    ) -> None:
        """`own`: this host's address, 16 or 4 bytes. `protocol`: that of the probes. `device`: the VRF of both."""
        self._device = device.encode()
        self._own, self._protocol, self._dscp, self._clock = own, protocol, dscp, clock
        self._six = len(own) == 16
        self._pace = Pace(tracing)
        self._uplinks: dict[str, _Uplink] = {}
        self._names: dict[int, str] = {}
        self._ears: socket.socket | None = None
        self._routed: socket.socket | None = None
        self._leased: set[tuple[bytes, int]] = set()
        self._waiting: dict[int, tuple[Batch, Question]] = {}
        self._token = 0
        self.sent = 0
        self.answered = 0

    def open(self) -> None:
        """Needs a running loop. OSError when raw sockets are not permitted."""
        self._token = secrets.randbits(32)
        self._ears = hearing.listening(self._six, self._device)
        self._routed = self._open_routed()
        asyncio.get_running_loop().add_reader(self._ears, self._on_answers)

    def _open_routed(self) -> socket.socket:
        """For packets that the kernel's routes send: a raw socket of the probes' protocol that receives nothing."""
        out = socket.socket(socket.AF_INET6 if self._six else socket.AF_INET, socket.SOCK_RAW, self._protocol)
        try:
            out.setblocking(False)
            if self._device:
                out.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, self._device + b"\0")
            nothing = bpf.Filter(bpf.nothing())
            out.setsockopt(socket.SOL_SOCKET, bpf.SO_ATTACH_FILTER, nothing.fprog)
            if self._six:
                out.setsockopt(socket.IPPROTO_IPV6, _IPV6_FLOWINFO_SEND, 1)
            out.bind((_text(self._own), 0))
        except OSError:
            out.close()
            raise
        return out

    def close(self) -> None:
        """Safe to call twice; traces in progress end with what they have."""
        for known in self._uplinks.values():
            known.socket.close()
        self._uplinks.clear()
        self._names.clear()
        if self._ears is not None:
            asyncio.get_running_loop().remove_reader(self._ears)
            self._ears.close()
            self._ears = None
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
            self._names.pop(known.ifindex, None)
            self._uplinks.pop(name).socket.close()
        out = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)  # protocol 0 receives nothing
        try:
            out.setblocking(False)
            out.bind((name, 0))
        except BaseException:
            out.close()
            raise
        self._uplinks[name] = _Uplink(ifindex, mac, gateway_mac, out)
        self._names[ifindex] = name

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

    def now_s(self) -> float:
        return self._clock()

    @contextlib.contextmanager
    def batch(self, dst: bytes) -> Iterator[Batch]:
        """Questions to one host; those that are put within the block."""
        made = Batch(dst)
        try:
            yield made
        finally:
            for token in made.tokens:
                self._waiting.pop(token, None)

    async def put(
        self, batch: Batch, needed: Sequence[Question], beyond: Sequence[Question] = (), *, urgent: bool = False,
        quiet_s: float = ANSWER_S,
    ) -> None:  # fmt: skip
        """Put questions once, and wait for the answers to `needed`; after the first, until none has come for `quiet_s`.
        UnanswerableError when an uplink cannot be used."""
        batch.needed = set(needed)
        batch.complete.clear()
        for question in (*needed, *beyond):
            await self._pause(urgent=urgent)
            self._token = (self._token + 1) & 0xFFFFFFFF
            self._waiting[self._token] = (batch, question)
            batch.tokens.append(self._token)
            if question not in batch.templates:
                batch.templates[question] = self._template(batch.dst, question)
            self._send(batch.templates[question], question, self._token)
        until_s = self._clock() + ANSWER_S
        while batch.needed and (left_s := until_s - self._clock()) > 0:
            before = len(batch.answers)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left_s, quiet_s)):
                    await batch.complete.wait()
            if batch.complete.is_set() or (before and len(batch.answers) == before):
                break

    async def ask(self, dst: bytes, needed: Sequence[Question], tries: int = TRIES) -> dict[Question, Answer]:
        """The answers to questions that are put up to `tries` times."""
        with self.batch(dst) as batch:
            for _ in range(tries):
                left = [question for question in needed if question not in batch.answers]
                if not left:
                    break
                await self.put(batch, left)
        return batch.answers

    async def _pause(self, *, urgent: bool) -> None:
        wait_s = self._pace.wait_s(self._clock(), urgent=urgent)
        if wait_s > (URGENT_SLICE_S if urgent else SLICE_S):
            await asyncio.sleep(wait_s)

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
        where = _text(headers.dst)
        if not self._six:
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

    def _on_answers(self) -> None:
        assert self._ears is not None
        for heard in hearing.waiting(self._ears):
            if heard.error.kind == "time_exceeded":
                back_over = self._names.get(heard.ifindex, "")
                self._take(heard.error.quoted, Answer(heard.who, back_over, heard.crossed))

    def _take(self, quoted: icmp.Quoted, answer: Answer) -> None:
        token = quoted.sequence if quoted.protocol == TCP else int.from_bytes(quoted.payload[4:8], "big")
        asked = self._waiting.get(token)
        if asked is None:
            return
        batch, question = asked
        if quoted.src != self._own or quoted.dst != batch.dst or quoted.sport != question.sport:
            return
        self.answered += 1
        batch.take(question, answer)


def _text(address: bytes) -> str:
    return socket.inet_ntop(socket.AF_INET6 if len(address) == 16 else socket.AF_INET, address)
