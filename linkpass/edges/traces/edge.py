"""Which nodes a label leads over: hop-limited copies of the probes, and who answers that their time was exceeded.

A trace's packets have the protocol, addresses and ports of the probes and leave pinned to an uplink, so they take the
path that a probe with that label takes; those of a tunnel have its outer header, whose hop limit counts. They carry hop
limits short of the host: the number of hops is found first, with a few packets, as the farthest hop that answers.
Copies of a real flow's header carry its label and ports, and go where the flow goes; their hop limits end short of the
host. Should one arrive it does no harm: a receiver checks the checksum, which is wrong, and drops the segment before it
looks at the connection (RFC 9293, section 3.1, MUST-3); beside, it has ACK alone (no RST, SYN or FIN).

The answer quotes the packet (RFC 4443, section 3.3; RFC 1812, section 4.3.2.3), and with it a number of ours that says
which question it belongs to. One raw ICMP socket hears them all. Error queues of sockets (IP_RECVERR) take half of the
processor time (2.6 against 5.0 ms for 256 packets, with the switches' own: tests/edges/bench_traces.py), but their
packets leave by the kernel's routes, and a packet socket, whose do not, has none: docs/tracing.md. A hop that stays
mute after two more tries is None. What the answers show beside the hops (limits, other ways back, spraying) is told
with them: `telling`, `allowance`.
"""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol

from linkpass.core.commands import CompareFlows, ResolveUplinks, TraceFlows, TraceLabels
from linkpass.core.events import (
    Event,
    FlowCompared,
    FlowsTraced,
    FlowsUntraced,
    ResolveFailed,
    TraceFailed,
    UplinksResolved,
)  # fmt: skip
from linkpass.core.settings import CoreSettings
from linkpass.edges.traces.asking import Asker
from linkpass.edges.traces.names import Names
from linkpass.edges.traces.planned import Plan
from linkpass.edges.traces.sending import Question, UnanswerableError
from linkpass.edges.traces.tracer import Tracer
from linkpass.wire.frame import TCP, UDP
from linkpass.wire.vxlan import End

MAX_FLOWS: Final = 4
MANY: Final = 12
"""Labels that all take one of several uplinks are overlooked: chance does that once in 2^11 times."""


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

    `names`: address -> node name, for the addresses that nodes answer with; what is learnt of others beside is in the
    edge's own `names`, and an unknown address stands for itself.
    `plan`: what the fabric's file says. Traces over one uplink go one after the other."""

    def __init__(
        self,
        settings: CoreSettings,
        emit: Callable[[Event], None],
        names: Mapping[str, str],
        clock: Callable[[], float] = time.monotonic,
        vrf: str = "",
        plan: Plan | None = None,
    ) -> None:
        self._settings, self._emit = settings, emit
        self.names = Names(names)
        protocol = TCP if settings.probing.protocol == "tcp" else UDP
        own = ipaddress.ip_address(settings.address).packed
        self._asker = Asker(own, protocol, settings.probing.dscp, settings.tracing, clock, vrf)
        self._tracer = Tracer(self._asker, self.names, plan, settings.probing.port)
        self._busy: dict[str, asyncio.Lock] = {}
        self._waiting: set[tuple[str, str]] = set()
        self._blind = False
        """The kernel overlooks the label of a packet that it routes once more."""

    # life
    def open(self) -> None:
        """Needs a running loop. OSError when raw sockets are not permitted."""
        self._asker.open()

    def close(self) -> None:
        """Safe to call twice; traces in progress end with what they have."""
        self._asker.close()

    def set_uplink(self, name: str, ifindex: int, mac: bytes, gateway_mac: bytes = b"") -> None:
        """As of the probe edge: MACs are 6 bytes, b"" while the gateway's is not known."""
        self._asker.sender.set_uplink(name, ifindex, mac, gateway_mac)
        self.names.gateway(name, gateway_mac)

    def set_neighbour(self, name: str, gateway_mac: bytes) -> None:
        self._asker.sender.set_neighbour(name, gateway_mac)
        self.names.gateway(name, gateway_mac)

    def drop_uplink(self, name: str) -> None:
        """Nothing is sent over it until `set_uplink`."""
        self._asker.sender.drop_uplink(name)

    @property
    def sent(self) -> int:
        """Packets sent since the start."""
        return self._asker.sent

    @property
    def answered(self) -> int:
        return self._asker.answered

    def ask_ends_of(self, end_of: Callable[[str], End | None]) -> None:
        """Where hosts take packets out of tunnels (None: nowhere): traces of tunnels are addressed like their data."""
        self._asker.sender.end_of = lambda dst: end_of(str(ipaddress.ip_address(dst)))

    # commands
    async def trace(self, command: TraceLabels) -> None:
        """Emits LabelsTraced or TraceFailed; nothing while an earlier command for the same is waiting for its turn."""
        asked = command.peer, command.uplink
        if asked in self._waiting:
            return
        self._waiting.add(asked)
        try:
            async with self._busy.setdefault(command.uplink, asyncio.Lock()):
                traced = await self._tracer.trace(command)
        except UnanswerableError as why:
            self._emit(TraceFailed(cmd_id=command.cmd_id, peer=command.peer, uplink=command.uplink, why=str(why)))
        else:
            self._emit(traced)
        finally:
            self._waiting.discard(asked)

    async def resolve(self, command: ResolveUplinks, *, several: bool = True) -> None:
        """Which uplink the kernel's own routes pick for each label: by the first hop that answers a routed packet.
        `several`: they have more than one to pick from.

        Emits UplinksResolved (labels whose first hop stayed mute are left out) or ResolveFailed."""
        dst = ipaddress.ip_address(command.peer).packed
        try:
            uplink_of = await self._resolve(dst, command.labels)
            if len(set(uplink_of.values())) > 1:
                self._blind = False
            elif several and len(uplink_of) >= MANY:
                self._blind = self._asker.sender.rerouted
            if self._blind:
                uplink_of = dict.fromkeys(command.labels, next(iter(uplink_of.values())))
        except UnanswerableError as why:
            self._emit(ResolveFailed(cmd_id=command.cmd_id, peer=command.peer, why=str(why)))
        else:
            self._emit(
                UplinksResolved(cmd_id=command.cmd_id, peer=command.peer, uplink_of=uplink_of, blind=self._blind)
            )

    def relabelled(self) -> None:
        """The label edge's rules are there: what they change is routed once more, and so are routed questions."""
        self._asker.sender.rerouted = True

    async def trace_flows(self, command: TraceFlows) -> None:
        """Emits FlowsTraced or FlowsUntraced; nothing while an earlier command for the same is waiting for its turn."""
        asked = f"flows {command.peer}", command.uplink
        if asked in self._waiting:
            return
        self._waiting.add(asked)
        try:
            async with self._busy.setdefault(command.uplink, asyncio.Lock()):
                hops = await self._tracer.trace_flows(command)
        except UnanswerableError as why:
            self._emit(
                FlowsUntraced(cmd_id=command.cmd_id, peer=command.peer, uplink=command.uplink, why=str(why))
            )  # fmt: skip
        else:
            self._emit(FlowsTraced(cmd_id=command.cmd_id, peer=command.peer, uplink=command.uplink, hops=hops))
        finally:
            self._waiting.discard(asked)

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

    # the kernel's choice, and flows
    async def _resolve(self, dst: bytes, labels: Sequence[int]) -> dict[int, str]:
        names = self._asker.sender.ready()
        if not names or not labels:
            raise UnanswerableError("no usable uplink" if labels else "no labels")
        pinned = [self._tracer.question(name, labels[0], 1) for name in names]
        routed = [self._tracer.question("", label, 1) for label in labels]
        answers = await self._asker.ask(dst, pinned + routed)
        uplink_at: dict[str, str] = {}
        for question in pinned:
            first = answers.get(question)
            if first is not None:
                if first.who in uplink_at:
                    both = f"{uplink_at[first.who]} and {question.uplink}"
                    name = self.names.get(first.who, first.who)
                    raise UnanswerableError(f"{both} have the same first hop ({name}): answers do not tell")
                uplink_at[first.who] = question.uplink
        found = {q.label: uplink_at[answers[q].who] for q in routed if q in answers and answers[q].who in uplink_at}
        if not found:
            raise UnanswerableError("no first hop answers")
        return found

    async def _compare(self, dst: bytes, flow: FlowKey) -> tuple[bool | None, str]:
        compared = 0
        for uplink in self._asker.sender.ready():
            length = await self._tracer.length((dst, uplink), (flow.label,))
            hops = [hop for hop in range(1, length + 1) if not self._tracer.sprays(uplink, hop)]
            probes = [self._tracer.question(uplink, flow.label, hop) for hop in hops]
            copies = [Question(uplink, flow.label, hop, flow.sport, flow.dport, True) for hop in hops]
            answers = await self._asker.ask(dst, probes + copies)
            for ours, theirs in zip(probes, copies, strict=True):
                if ours not in answers or theirs not in answers:
                    continue
                a, b = (self.names.at(answers[one].who, uplink, ours.hop) for one in (ours, theirs))
                if a is not None and b is not None:
                    compared += 1
                    if a != b:
                        return False, f"{uplink}, hop {ours.hop}: probes pass {a}, the flow {b}"
        return (True, f"{compared} hops agree") if compared else (None, "no hop answered both")
