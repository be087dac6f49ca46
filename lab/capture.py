"""Which link carried which flow when: measured in the fabric, by no component under test.

One packet socket in the wire namespace sees every packet that arrives from a node, before any fault can drop it: on
the wire device of link end `a` arrive the packets that node `a` sent. Its filter is a BPF program which keeps for each
(device, flow, flow label, slot of 16.8 ms) the kernel's monotonic time of the first and the last packet and their
count, and lets nothing through to the socket: no copy, no wake-up, nothing to read while the job runs. `take()` empties
the map.
Measured cost: 0.2 µs for each packet on each link while it watches (570,000 packets/s: -13 %), half while it is paused.

Source: packet(7); net/core/dev.c `__netif_receive_skb_core` (taps run before tc and nft ingress).
"""

from __future__ import annotations

import ipaddress
import socket
import struct
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING

from lab import bpf
from lab.bpf import Jump
from lab.errors import LabError
from lab.netns import namespace
from linkpass.wire.vxlan import OVERHEAD_BYTES

if TYPE_CHECKING:
    from lab.netns.lab import NetnsLab

PROBE_PORT = 3785
"""Not the job's: probes are TCP segments too."""

TUNNEL_PORT = 3787
"""UDP. What is in an entropy tunnel counts as its flow; the outer source port stands for the label."""

TRACE_BITS = 5
"""Nor are packets with a hop limit below 2^5: a daemon's traces are copies of the job's headers."""

SLOT_BITS = 24
"""A slot lasts 2^24 ns: first and last times are exact, counts between two moments to within a slot at either end."""

_KEY = struct.Struct("=II16s16s2s2sI")
_VALUE = struct.Struct("=QQQQ")
_ETH_P_ALL, _SOL_PACKET, _PACKET_IGNORE_OUTGOING, _SO_ATTACH_BPF = 3, 263, 23, 50
_ENTRIES = 1 << 17
_LABEL_MASK = 0xFFFFF
"""Of the first word of an IPv6 header (RFC 8200 section 3)."""


@dataclass(frozen=True, slots=True, order=True)
class Flow:
    """One direction of a connection: addresses as text, ports as numbers."""

    source: str
    source_port: int
    target: str
    target_port: int


@dataclass(frozen=True, slots=True)
class Sighting:
    """A flow on one direction of a link, within a slot."""

    direction: str
    flow: Flow
    first_s: float
    last_s: float
    packets: int
    size_bytes: int
    label: int = 0
    """The flow label that these packets carried (IPv6), or the source port of their tunnel (IPv4)."""


@dataclass(frozen=True, slots=True)
class Reroute:
    """How the flows of a broken direction went on. Times in seconds after the injection.

    `first_s`: the first packet of any affected flow on a direction where that flow was not before; None: none was.
    `last_s`: the same moment of the flow that took longest. `moved` of `affected` flows were seen elsewhere."""

    affected: int
    moved: int
    first_s: float | None
    last_s: float | None


@dataclass(slots=True)
class Sightings:
    """What a capture has seen, and the questions that benches ask."""

    seen: list[Sighting] = field(default_factory=list)

    def add(self, more: Sightings) -> None:
        """What was seen after this."""
        self.seen += more.seen

    def flows_on(self, directions: Collection[str], since_s: float, until_s: float) -> set[Flow]:
        return {s.flow for s in self._within(directions, since_s, until_s)}

    def packets_on(
        self, directions: Collection[str], since_s: float, until_s: float, only: Collection[Flow] | None = None
    ) -> int:
        """Packets in the slots that lie within; a slot cut by an end counts if its first packet lies within."""
        found = (s for s in self.seen if s.direction in directions and since_s <= s.first_s < until_s)
        return sum(s.packets for s in found if only is None or s.flow in only)

    def bytes_on(self, directions: Collection[str], since_s: float, until_s: float) -> int:
        return sum(s.size_bytes for s in self.seen if s.direction in directions and since_s <= s.first_s < until_s)

    def rates(self, over_s: float) -> dict[str, float]:
        """The job's bits/s on each direction that it used, when this was seen in `over_s` seconds."""
        found: dict[str, float] = {}
        for s in self.seen:
            found[s.direction] = found.get(s.direction, 0.0) + s.size_bytes * 8 / over_s
        return found

    def last_on(
        self, directions: Collection[str], since_s: float, until_s: float, only: Collection[Flow] | None = None
    ) -> float | None:
        """The moment of the last packet of the job (`only`: of these flows) on these directions."""
        found = (s for s in self._within(directions, since_s, until_s) if only is None or s.flow in only)
        return max((min(s.last_s, until_s) for s in found), default=None)

    def reroute(
        self,
        broken: Collection[str],
        at_s: float,
        until_s: float,
        *,
        before_s: float = 0.2,
        only: Collection[Flow] | None = None,
    ) -> Reroute:
        """Follow the flows seen on the broken directions in the `before_s` before the injection at `at_s`.

        `only` narrows them further (to those of one ECMP bucket). A flow has moved when it appears on a direction
        that did not carry it before: another uplink, or another spine's links."""
        affected = self.flows_on(broken, at_s - before_s, at_s)
        if only is not None:
            affected &= set(only)
        before: dict[Flow, set[str]] = {flow: set() for flow in affected}
        for s in self.seen:
            if s.flow in before and s.first_s < at_s and s.last_s >= at_s - before_s:
                before[s.flow].add(s.direction)
        found: dict[Flow, float] = {}
        for s in self.seen:
            if s.flow not in affected or s.direction in broken or s.direction in before[s.flow]:
                continue
            if at_s <= s.first_s < until_s:
                found[s.flow] = min(found.get(s.flow, s.first_s), s.first_s)
        times = sorted(moment - at_s for moment in found.values())
        return Reroute(len(affected), len(found), times[0] if times else None, times[-1] if times else None)

    def _within(self, directions: Collection[str], since_s: float, until_s: float) -> Iterable[Sighting]:
        return (s for s in self.seen if s.direction in directions and s.last_s >= since_s and s.first_s < until_s)


class Capture:
    """A tap on all wire devices of a lab. `directions`: wire device -> the direction whose packets arrive there.

    `open()` needs root. Watching costs nothing while it is paused: `watch()` starts, `pause()` stops, `take()` gives
    what was seen since the last call."""

    def __init__(self, wire: int | str, directions: Mapping[str, str], protocol: int = socket.IPPROTO_TCP) -> None:
        self._wire = wire
        self._protocol = protocol
        self._names = dict(directions)
        self._direction_of: dict[int, str] = {}
        self._socket: socket.socket | None = None
        self._gate: bpf.Map | None = None
        self._flows: bpf.Map | None = None
        self._addresses: dict[bytes, str] = {}

    @classmethod
    def of(cls, lab: NetnsLab, protocol: int = socket.IPPROTO_TCP) -> Capture:
        """A tap on every direction of a lab that is up. `protocol`: that of the job (RoCE has UDP)."""
        ports = {d: lab.wire_port(d) for link in lab.fabric.links for d in link.directions()}
        wire = next(iter(ports.values())).namespace
        return cls(wire, {port.device: direction for direction, port in ports.items()}, protocol)

    def open(self) -> Capture:
        """Raises LabError when the kernel or the privileges lack something, or a device is missing."""
        self._gate = bpf.array_map("lab_gate", 4)
        self._flows = bpf.hash_map("lab_flows", _KEY.size, _VALUE.size, _ENTRIES)
        program = bpf.load_filter(bpf.assemble(_program(self._gate.fd, self._flows.fd, self._protocol)), "lab_capture")
        with namespace.inside(self._wire):
            present = {name: index for index, name in socket.if_nameindex()}
            missing = self._names.keys() - present.keys()
            if missing:
                raise LabError(f"the wire namespace has no device {sorted(missing)[0]}", "build the lab again")
            self._direction_of = {present[name]: direction for name, direction in self._names.items()}
            kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC
            self._socket = socket.socket(socket.AF_PACKET, kind, socket.htons(_ETH_P_ALL))
        with _closing_descriptor(program):
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_BPF, program)
        self._socket.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
        return self

    def close(self) -> None:
        for thing in (self._socket, self._flows, self._gate):
            if thing is not None:
                thing.close()
        self._socket = self._flows = self._gate = None

    def __enter__(self) -> Capture:
        try:
            return self.open()
        except BaseException:
            self.close()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def watch(self) -> None:
        """Forget what an earlier watch left behind and look from now on."""
        self._maps[0].set(bytes(4), struct.pack("=I", 0))
        for _entry in self._maps[1].take():
            pass
        self._maps[0].set(bytes(4), struct.pack("=I", 1))

    def pause(self) -> None:
        self._maps[0].set(bytes(4), struct.pack("=I", 0))

    def take(self) -> Sightings:
        """Everything seen since `watch()` or the last `take()`. A watch of many seconds should take every few."""
        found: list[Sighting] = []
        for key, value in self._maps[1].take():
            index, _slot, source, target, source_port, target_port, first_word = _KEY.unpack(key)
            direction = self._direction_of.get(index)
            if direction is None:
                continue
            first_ns, last_ns, packets, size = _VALUE.unpack(value)
            flow = Flow(
                self._text(source), int.from_bytes(source_port, "big"),
                self._text(target), int.from_bytes(target_port, "big"),
            )  # fmt: skip
            label = socket.ntohl(first_word) & _LABEL_MASK
            found.append(Sighting(direction, flow, first_ns / 1e9, last_ns / 1e9, packets, size, label))
        found.sort(key=lambda sighting: sighting.first_s)
        return Sightings(found)

    @property
    def _maps(self) -> tuple[bpf.Map, bpf.Map]:
        if self._gate is None or self._flows is None:
            raise RuntimeError("Capture.open() was not called")
        return self._gate, self._flows

    def _text(self, address: bytes) -> str:
        text = self._addresses.get(address)
        if text is None:
            value = ipaddress.IPv6Address(address)
            text = self._addresses[address] = str(value.ipv4_mapped or value)
        return text


class _closing_descriptor:  # noqa: N801 - reads as a statement, like contextlib.closing
    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __enter__(self) -> int:
        return self._fd

    def __exit__(self, *_exc: object) -> None:
        socket.close(self._fd)


def _program(gate: int, flows: int, protocol: int) -> list[bpf.Step]:
    """The filter. Frame: the key at -48, the value at -80, the gate's index at -88."""
    key, value, index = -48, -80, -88
    source, target, ports = key + 8, key + 24, key + 40
    probe = socket.htons(PROBE_PORT)

    def read(offset: int, place: int, size: int) -> list[bpf.Step]:
        return [
            bpf.move(1, 6),
            bpf.constant(2, offset),
            bpf.move(3, 10),
            bpf.add(3, place),
            bpf.constant(4, size),
            bpf.call(bpf.SKB_LOAD_BYTES),
            Jump("out", "!=", 0, 0),
        ]

    def find(table: int, place: int) -> list[bpf.Step]:
        return [bpf.map_address(1, table), bpf.move(2, 10), bpf.add(2, place), bpf.call(bpf.MAP_LOOKUP)]

    mapped = socket.htonl(0xFFFF)  # the 12 bytes before an IPv4 address in its IPv6 form end with ff ff
    return [
        bpf.move(6, 1),
        bpf.store_constant(10, index, 0, 4),
        *find(gate, index),
        Jump("out", "==", 0, 0),
        bpf.load(1, 0, 0, 4),
        Jump("out", "==", 1, 0),
        bpf.packet(12, 2),
        Jump("v6", "==", 0, 0x86DD),
        Jump("out", "!=", 0, 0x0800),
        bpf.packet(14, 1),
        Jump("out", "!=", 0, 0x45),  # with options the ports lie elsewhere; no lab sends any
        bpf.packet(22, 1),
        bpf.shift_right(0, TRACE_BITS),
        Jump("out", "==", 0, 0),
        bpf.store_constant(10, source, 0, 8),
        bpf.store_constant(10, source + 8, mapped, 4),
        bpf.store_constant(10, target, 0, 8),
        bpf.store_constant(10, target + 8, mapped, 4),
        bpf.store_constant(10, ports + 4, 0, 4),
        bpf.packet(23, 1),
        Jump("v4", "!=", 0, socket.IPPROTO_UDP),
        bpf.packet(36, 2),
        Jump("v4", "!=", 0, TUNNEL_PORT),
        bpf.packet(23 + OVERHEAD_BYTES, 1),
        Jump("out", "!=", 0, protocol),
        *read(26 + OVERHEAD_BYTES, source + 12, 4),
        *read(30 + OVERHEAD_BYTES, target + 12, 4),
        *read(34 + OVERHEAD_BYTES, ports, 4),
        *read(34, ports + 6, 2),
        Jump("flow"),
        "v4",
        bpf.packet(23, 1),
        Jump("out", "!=", 0, protocol),
        *read(26, source + 12, 4),
        *read(30, target + 12, 4),
        *read(34, ports, 4),
        Jump("flow"),
        "v6",
        bpf.packet(20, 1),
        Jump("out", "!=", 0, protocol),
        bpf.packet(21, 1),
        bpf.shift_right(0, TRACE_BITS),
        Jump("out", "==", 0, 0),
        *read(14, ports + 4, 4),
        *read(22, source, 36),  # both addresses and, without extension headers, both ports follow one another
        "flow",
        bpf.load(1, 10, ports, 2),
        Jump("out", "==", 1, probe),
        bpf.load(1, 10, ports + 2, 2),
        Jump("out", "==", 1, probe),
        bpf.load(1, 6, 40, 4),  # __sk_buff.ifindex
        bpf.store(10, key, 1, 4),
        bpf.call(bpf.KTIME_GET_NS),
        bpf.move(7, 0),
        bpf.move(1, 7),
        bpf.shift_right(1, SLOT_BITS),
        bpf.store(10, key + 4, 1, 4),
        bpf.load(8, 6, 0, 4),  # __sk_buff.len
        *find(flows, key),
        Jump("count", "!=", 0, 0),
        bpf.store(10, value, 7, 8),
        bpf.store(10, value + 8, 7, 8),
        bpf.store_constant(10, value + 16, 1, 8),
        bpf.store(10, value + 24, 8, 8),
        bpf.map_address(1, flows),
        bpf.move(2, 10),
        bpf.add(2, key),
        bpf.move(3, 10),
        bpf.add(3, value),
        bpf.constant(4, 1),  # BPF_NOEXIST: the other core may have been faster
        bpf.call(bpf.MAP_UPDATE),
        Jump("out", "==", 0, 0),
        *find(flows, key),
        Jump("out", "==", 0, 0),
        "count",
        bpf.store(0, 8, 7, 8),
        bpf.constant(1, 1),
        bpf.atomic_add(0, 16, 1),
        bpf.atomic_add(0, 24, 8),
        "out",
        bpf.constant(0, 0),
        bpf.leave(),
    ]
