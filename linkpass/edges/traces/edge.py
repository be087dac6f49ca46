"""Which nodes a label leads over: hop-limited copies of the probes, and who answers that their time was exceeded.

A trace's packets have the protocol, addresses and ports of the probes and leave pinned to an uplink, so they take the
path that a probe with that label takes. They carry hop limits short of the host: the number of hops is found first,
with a few packets, as the farthest hop that answers. Copies of a real flow's header carry its ports; with ACK alone
(no RST, SYN or FIN), a sequence number of ours and a wrong checksum they are dropped should one ever arrive.

The answer quotes the packet (RFC 4443, section 3.3; RFC 1812, section 4.3.2.3), and with it a number of ours that says
which question it belongs to. Everything is paced; a hop that stays mute after two more tries is None.
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol

from linkpass.core.commands import CompareFlows, ResolveUplinks, TraceLabels
from linkpass.core.events import Event, FlowCompared, LabelsTraced, ResolveFailed, TraceFailed, UplinksResolved
from linkpass.core.settings import CoreSettings
from linkpass.edges.traces.asking import TRIES, Asker, Question, UnanswerableError
from linkpass.wire.frame import TCP, UDP

MAX_HOPS: Final = 8
MAX_FLOWS: Final = 4


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
        vrf: str = "",
    ) -> None:
        self._settings, self._emit, self._names = settings, emit, names
        protocol = TCP if settings.probing.protocol == "tcp" else UDP
        own = ipaddress.ip_address(settings.address).packed
        self._asker = Asker(own, protocol, settings.probing.dscp, packets_per_s, clock, vrf)
        self._hops: dict[tuple[bytes, str], int] = {}

    # life
    def open(self) -> None:
        """Needs a running loop. OSError when raw sockets are not permitted."""
        self._asker.open()

    def close(self) -> None:
        """Safe to call twice; traces in progress end with what they have."""
        self._asker.close()

    def set_uplink(self, name: str, ifindex: int, mac: bytes, gateway_mac: bytes = b"") -> None:
        """As of the probe edge: MACs are 6 bytes, b"" while the gateway's is not known."""
        self._asker.set_uplink(name, ifindex, mac, gateway_mac)

    def set_neighbour(self, name: str, gateway_mac: bytes) -> None:
        self._asker.set_neighbour(name, gateway_mac)

    def drop_uplink(self, name: str) -> None:
        """Nothing is sent over it until `set_uplink`."""
        self._asker.drop_uplink(name)

    @property
    def sent(self) -> int:
        """Packets sent since the start."""
        return self._asker.sent

    @property
    def answered(self) -> int:
        return self._asker.answered

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
            answers = await self._asker.ask(dst, questions, beyond)
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
            answers = await self._asker.ask(dst, questions, tries=1)
            if answers:
                self._hops[dst, uplink] = max(q.hop for q in answers)
                return self._hops[dst, uplink]
        raise UnanswerableError(f"no hop answers over {uplink}")

    async def _resolve(self, dst: bytes, labels: Sequence[int]) -> dict[int, str]:
        port = self._settings.probing.port
        names = self._asker.ready()
        if not names or not labels:
            raise UnanswerableError("no usable uplink" if labels else "no labels")
        pinned = [Question(name, labels[0], 1, port, port) for name in names]
        routed = [Question("", label, 1, port, port) for label in labels]
        answers = await self._asker.ask(dst, pinned + routed)
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
        for uplink in self._asker.ready():
            length = await self._length(dst, uplink, (flow.label,))
            hops = range(1, length + 1)
            probes = [Question(uplink, flow.label, hop, port, port) for hop in hops]
            copies = [Question(uplink, flow.label, hop, flow.sport, flow.dport, True) for hop in hops]
            answers = await self._asker.ask(dst, probes + copies)
            for ours, theirs in zip(probes, copies, strict=True):
                a, b = self._name(answers.get(ours)), self._name(answers.get(theirs))
                if a is not None and b is not None:
                    compared += 1
                    if a != b:
                        return False, f"{uplink}, hop {ours.hop}: probes pass {a}, the flow {b}"
        return (True, f"{compared} hops agree") if compared else (None, "no hop answered both")
