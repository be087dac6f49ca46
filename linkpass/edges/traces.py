"""Which nodes a label leads over: hop-limited copies of the probes, and who answers that their time was exceeded.

A trace's packets have the protocol, addresses and ports of the probes and leave pinned to an uplink, so they take the
path that a probe with that label takes. They carry hop limits short of the host: the number of hops is found first,
with a few packets, as the farthest hop that answers. Copies of a real flow's header carry its ports; with ACK alone
(no RST, SYN or FIN), a sequence number of ours and a wrong checksum they are dropped should one ever arrive.

The answer quotes the packet (RFC 4443, section 3.3; RFC 1812, section 4.3.2.3), and with it a number of ours that says
which question it belongs to. Everything is paced; a hop that stays mute after two more tries is None.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import secrets
import socket
import struct
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

import msgspec

from linkpass.core.commands import CompareFlows, ResolveUplinks, TraceLabels
from linkpass.core.events import Event, FlowCompared, LabelsTraced, ResolveFailed, TraceFailed, UplinksResolved
from linkpass.core.settings import CoreSettings
from linkpass.wire import bpf, icmp, probe
from linkpass.wire.frame import ACK, ETHERNET_BYTES, RST, TCP, UDP, Headers, Template

MAX_HOPS: Final = 8
TRIES: Final = 3
ANSWER_S: Final = 0.060
"""How long to wait for answers after the last packet of a try."""
BURST_S: Final = 0.005
MAX_FLOWS: Final = 4

_IPV6_FLOWINFO_SEND: Final = 33
_IPV6_FLOWLABEL_MGR: Final = 32
_IPV6_HOPLIMIT: Final = 52
_ICMP6_FILTER: Final = 1
_ICMP4_FILTER: Final = 1
_SOL_RAW: Final = 255


class FlowKey(Protocol):
    """A live TCP connection of the job; the addresses as text, `label` 0 when it is not known."""

    @property
    def src(self) -> str: ...
    @property
    def dst(self) -> str: ...
    @property
    def sport(self) -> int: ...
    @property
    def dport(self) -> int: ...
    @property
    def label(self) -> int: ...


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


class _Batch:
    """Questions that wait for answers together."""

    def __init__(self, dst: bytes, needed: set[Question]) -> None:
        self.dst, self.needed = dst, needed
        self.answers: dict[Question, str] = {}
        self.complete = asyncio.Event()


class TraceEdge:
    """Sockets are made in the network namespace of the thread that calls `open` and `set_uplink`.

    `names`: address -> node name, for the addresses that nodes answer with; an unknown address stands for itself.
    `packets_per_s` bounds all that the edge sends."""

    def __init__(
        self,
        settings: CoreSettings,
        emit: Callable[[Event], None],
        names: Mapping[str, str],
        packets_per_s: int = 2000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._emit, self._names, self._clock = settings, emit, names, clock
        self._gap_s = 1 / packets_per_s
        self._own = ipaddress.ip_address(settings.address).packed
        self._protocol = TCP if settings.probing.protocol == "tcp" else UDP
        self._uplinks: dict[str, _Uplink] = {}
        self._hears: socket.socket | None = None
        self._routed: socket.socket | None = None
        self._leased: set[tuple[bytes, int]] = set()
        self._waiting: dict[int, tuple[_Batch, Question]] = {}
        self._token = 0
        self._next_s = 0.0
        self._hops: dict[tuple[bytes, str], int] = {}
        self.sent = 0
        self.answered = 0

    # life
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
        self._hears.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        if six:
            passed = 1 << icmp.ICMP6_UNREACHABLE | 1 << icmp.ICMP6_TIME_EXCEEDED
            mask = struct.pack("=8I", 0xFFFFFFFF & ~passed, *[0xFFFFFFFF] * 7)
            self._hears.setsockopt(socket.IPPROTO_ICMPV6, _ICMP6_FILTER, mask)
        else:
            passed = 1 << icmp.ICMP4_UNREACHABLE | 1 << icmp.ICMP4_TIME_EXCEEDED
            self._hears.setsockopt(_SOL_RAW, _ICMP4_FILTER, struct.pack("=I", 0xFFFFFFFF & ~passed))
        asyncio.get_running_loop().add_reader(self._hears, self._on_answer)

    def close(self) -> None:
        """Safe to call twice; traces in progress end with what they have."""
        for name in list(self._uplinks):
            self.drop_uplink(name)
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
        if known is not None and (known.ifindex, known.mac) != (ifindex, mac):
            self.drop_uplink(name)
            known = None
        if known is not None:
            known.gateway_mac = gateway_mac
            return
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
        known = self._uplinks.pop(name, None)
        if known is not None:
            known.socket.close()

    # commands
    async def trace(self, command: TraceLabels) -> None:
        """Emits LabelsTraced or TraceFailed."""
        dst = ipaddress.ip_address(command.peer).packed
        try:
            hops = await self._trace(dst, command.uplink, command.labels)
        except UnanswerableError as why:
            self._emit(TraceFailed(cmd_id=command.cmd_id, peer=command.peer, uplink=command.uplink, why=str(why)))
        else:
            self._emit(LabelsTraced(cmd_id=command.cmd_id, peer=command.peer, uplink=command.uplink, hops=hops))

    async def resolve(self, command: ResolveUplinks) -> None:
        """Which uplink the kernel's own routes pick for each label: by the first hop that answers a routed packet.

        Emits UplinksResolved (labels whose first hop stayed mute are left out) or ResolveFailed."""
        dst = ipaddress.ip_address(command.peer).packed
        try:
            uplink_of = await self._resolve(dst, command.labels)
        except UnanswerableError as why:
            self._emit(ResolveFailed(cmd_id=command.cmd_id, peer=command.peer, why=str(why)))
        else:
            self._emit(UplinksResolved(cmd_id=command.cmd_id, peer=command.peer, uplink_of=uplink_of))

    async def compare(self, command: CompareFlows, flows: Iterable[FlowKey]) -> None:
        """Emits one FlowCompared for each of up to MAX_FLOWS flows; one without a verdict when there is no flow."""
        dst = ipaddress.ip_address(command.peer).packed
        own = self._settings.address  # a flow from another address of this host takes other paths
        chosen = [f for f in flows if f.dst == command.peer and f.src == own][:MAX_FLOWS]
        for flow in chosen:
            try:
                agrees, detail = await self._compare(dst, flow)
            except UnanswerableError as why:
                agrees, detail = None, str(why)
            text = f"[{flow.src}]:{flow.sport} > [{flow.dst}]:{flow.dport}"
            self._emit(
                FlowCompared(
                    cmd_id=command.cmd_id, peer=command.peer, label=flow.label, flow=text, agrees=agrees, detail=detail
                )
            )
        if not chosen:
            self._emit(
                FlowCompared(
                    cmd_id=command.cmd_id, peer=command.peer, label=0, flow="", agrees=None, detail="no flow to compare"
                )
            )

    # how
    async def _trace(self, dst: bytes, uplink: str, labels: Sequence[int]) -> dict[int, tuple[str | None, ...]]:
        port = self._settings.probing.port
        length = await self._length(dst, uplink, labels)
        while True:
            questions = [Question(uplink, label, hop, port, port) for label in labels for hop in range(1, length + 1)]
            beyond = [Question(uplink, label, length + 1, port, port) for label in labels[:1]]
            answers = await self._ask(dst, questions, beyond)
            last = any(q.hop == length for q in answers)
            if not answers:
                raise UnanswerableError(f"no hop answers over {uplink}")
            if last and not any(q.hop > length for q in answers):
                break
            shown = await self._count_hops(dst, uplink, labels)
            if shown == length:
                break
            length = shown
        return {
            label: tuple(
                self._name(answers.get(Question(uplink, label, hop, port, port))) for hop in range(1, length + 1)
            )
            for label in labels
        }

    def _name(self, address: str | None) -> str | None:
        return None if address is None else self._names.get(address, address)

    async def _length(self, dst: bytes, uplink: str, labels: Sequence[int]) -> int:
        known = self._hops.get((dst, uplink))
        return known or await self._count_hops(dst, uplink, labels)

    async def _count_hops(self, dst: bytes, uplink: str, labels: Sequence[int]) -> int:
        """The farthest hop that answers two labels' packets; those few may go as far as the host."""
        port = self._settings.probing.port
        for _ in range(TRIES):
            questions = [
                Question(uplink, label, hop, port, port) for label in labels[:2] for hop in range(1, MAX_HOPS + 1)
            ]
            answers = await self._ask(dst, questions, tries=1)
            if answers:
                self._hops[dst, uplink] = max(q.hop for q in answers)
                return self._hops[dst, uplink]
        raise UnanswerableError(f"no hop answers over {uplink}")

    async def _resolve(self, dst: bytes, labels: Sequence[int]) -> dict[int, str]:
        port = self._settings.probing.port
        names = [name for name, known in self._uplinks.items() if known.gateway_mac]
        if not names or not labels:
            raise UnanswerableError("no usable uplink" if labels else "no labels")
        pinned = [Question(name, labels[0], 1, port, port) for name in names]
        routed = [Question("", label, 1, port, port) for label in labels]
        answers = await self._ask(dst, pinned + routed)
        uplink_at: dict[str, str] = {}
        for question in pinned:
            first = answers.get(question)
            if first is not None:
                if first in uplink_at:
                    both = f"{uplink_at[first]} and {question.uplink}"
                    raise UnanswerableError(
                        f"{both} have the same first hop ({self._name(first)}): answers do not tell"
                    )
                uplink_at[first] = question.uplink
        found = {q.label: uplink_at[answers[q]] for q in routed if q in answers and answers[q] in uplink_at}
        if not found:
            raise UnanswerableError("no first hop answers")
        return found

    async def _compare(self, dst: bytes, flow: FlowKey) -> tuple[bool | None, str]:
        port = self._settings.probing.port
        compared = 0
        for uplink in [name for name, known in self._uplinks.items() if known.gateway_mac]:
            length = await self._length(dst, uplink, (flow.label,))
            hops = range(1, length + 1)
            probes = [Question(uplink, flow.label, hop, port, port) for hop in hops]
            copies = [Question(uplink, flow.label, hop, flow.sport, flow.dport, True) for hop in hops]
            answers = await self._ask(dst, probes + copies)
            for ours, theirs in zip(probes, copies, strict=True):
                a, b = self._name(answers.get(ours)), self._name(answers.get(theirs))
                if a is not None and b is not None:
                    compared += 1
                    if a != b:
                        return False, f"{uplink}, hop {ours.hop}: probes pass {a}, the flow {b}"
        return (True, f"{compared} hops agree") if compared else (None, "no hop answered both")

    async def _ask(
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
        if question.uplink and (known is None or not known.gateway_mac):
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
                dscp=self._settings.probing.dscp,
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
                if known is None:
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
        six = len(self._own) == 16
        if self._routed is None:
            out = socket.socket(socket.AF_INET6 if six else socket.AF_INET, socket.SOCK_RAW, self._protocol)
            self._routed = out
            out.setblocking(False)
            nothing = bpf.Filter(bpf.nothing())
            out.setsockopt(socket.SOL_SOCKET, bpf.SO_ATTACH_FILTER, nothing.fprog)
            if six:
                out.setsockopt(socket.IPPROTO_IPV6, _IPV6_FLOWINFO_SEND, 1)
            out.bind((self._settings.address, 0))
        where = socket.inet_ntop(socket.AF_INET6 if six else socket.AF_INET, headers.dst)
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
