"""The ways of real TCP connections, traced by copies of their headers, beside those that their segments really go."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import probe_lab as lab
import pytest
from trace_rig import order, traced, tracing

from linkpass.core import commands as cmd
from linkpass.core import events as ev
from linkpass.edges.tap import Tap
from linkpass.edges.traces import Question
from linkpass.wire import frame

pytestmark = pytest.mark.netns

STREAMS = 32
PIECE, PIECES = b"0123456789abcdef" * 64, 10
TOTAL_RETRANS_AT, DSACK_AT = 100, 216
"""tcpi_total_retrans, tcpi_dsack_dups in struct tcp_info (include/uapi/linux/tcp.h)."""
SWITCHES = ("l1", "s1", "s2", "x1")
FROM_H1 = {"l1": "h", "s1": "l1", "s2": "l1", "x1": "h1"}
"""Of each switch the device to which h1's segments come."""


@dataclass
class Streams:
    """Connections from h1 to h2, and what each has been sent."""

    pairs: list[tuple[socket.socket, socket.socket]]
    sent: int = 0

    def send(self, pieces: int = PIECES) -> None:
        """All send, and the other end has it, bit for bit."""
        for client, taken in self.pairs:
            for _ in range(pieces):
                client.sendall(PIECE)
                got = b""
                while len(got) < len(PIECE):
                    got += taken.recv(len(PIECE) - len(got))
                assert got == PIECE

    def sent_again(self) -> int:
        """Segments that either end has sent again, or had twice."""
        found = 0
        for one in [end for pair in self.pairs for end in pair]:
            info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
            found += sum(struct.unpack_from("=I", info, at)[0] for at in (TOTAL_RETRANS_AT, DSACK_AT))
        return found


@contextlib.contextmanager
def streams(own: str, peer: str) -> Iterator[Streams]:
    with ExitStack() as stack:
        family = socket.AF_INET6 if ":" in peer else socket.AF_INET
        with lab.inside("h2"):
            server = stack.enter_context(socket.create_server((peer, 0), family=family))
        pairs = []
        for _ in range(STREAMS):
            with lab.inside("h1"):
                client = socket.create_connection(server.getsockname()[:2], 5, source_address=(own, 0))
            pairs.append((stack.enter_context(client), stack.enter_context(server.accept()[0])))
        yield Streams(pairs)


def seen_at_switches(flowing: Streams) -> dict[ev.FlowAt, set[str]]:
    """Where each connection's segments with data pass, by what the switches hear."""
    with ExitStack() as stack:
        taps = {}
        for node in SWITCHES:
            with lab.inside(node):
                taps[node] = stack.enter_context(Tap({FROM_H1[node]: node}, incoming=True).open())
        flowing.send()
        uplink, label, at = {}, {}, {}
        for node, tap in taps.items():
            for one in tap.frames(0.2):
                packet = frame.parse(one.data)
                if packet is None or packet.protocol != frame.TCP or len(packet.payload) < len(PIECE):
                    continue
                ports = packet.sport, packet.dport
                at.setdefault(ports, set()).add(node)
                if node in ("l1", "x1"):
                    uplink[ports] = {"l1": "eth1", "x1": "eth2"}[node]
                    label.setdefault(ports, set()).add(packet.label if len(packet.src) == 16 else 0)
    return {ev.FlowAt(uplink[ports], *label[ports], *ports): nodes for ports, nodes in at.items()}


def bad_checksums(node: str) -> int:
    """TcpInCsumErrors: segments that were dropped for their checksum."""
    with lab.inside(node), open("/proc/thread-self/net/snmp") as file:
        names, values = [line.split() for line in file if line.startswith("Tcp:")]
    return int(values[names.index("InCsumErrors")])


FIVE_TUPLE, LABEL_TOO = 0x37, 0x3F
"""Fields of policy 3 (Documentation/networking/ip-sysctl.rst). Policy 1 hashes the same in packets that a cable has
brought; those of a veth still bear the number that their socket was dealt, and policy 1 takes that for the hash."""


@contextlib.contextmanager
def hashing_ports(family: int, *nodes: str, fields: int = FIVE_TUPLE) -> Iterator[None]:
    name = f"ipv{family}__fib_multipath_hash"
    for node in nodes:
        lab.sysctl(node, **{f"{name}_fields": fields, f"{name}_policy": 3})
    try:
        yield
    finally:
        for node in nodes:
            lab.sysctl(node, **{f"{name}_policy": 0})


@pytest.mark.parametrize(("family", "fields"), [(6, 0), (6, FIVE_TUPLE), (6, LABEL_TOO), (4, FIVE_TUPLE)])
async def test_the_traced_way_is_the_one_that_the_flow_goes_and_the_flow_notices_nothing(
    fabric: lab.Fabric, family: int, fields: int
) -> None:
    """IPv6 under the kernel's own labels, in a fabric that hashes labels, ports, or both; IPv4 in one that hashes
    ports. The host itself deals its flows out by ports."""
    hosts = lab.HOSTS if family == 6 else lab.HOSTS4
    own, peer = hosts["h1"], hosts["h2"]
    by_fields = hashing_ports(family, "l1", "l2", fields=fields) if fields else contextlib.nullcontext()
    with hashing_ports(family, "h1"), by_fields, streams(own, peer) as flowing:
        really = seen_at_switches(flowing)
        assert len(really) == STREAMS and {nodes & {"s1", "s2"} == {"s1"} for nodes in really.values()} == {True, False}
        dropped = bad_checksums("h2")
        async with tracing(fabric, own) as (edge, told):
            for uplink in ("eth1", "eth2"):
                await traced(edge, told, order(uplink, peer, (1, 2) if family == 6 else (0,)))
                flows = tuple(flow for flow in really if flow.uplink == uplink)
                sent = edge.sent
                await edge.trace_flows(cmd.TraceFlows(cmd_id=3, cause="t", peer=peer, uplink=uplink, flows=flows))
                assert edge.sent - sent <= 3 * len(flows)  # a packet a hop
                event = told[-1]
                assert isinstance(event, ev.FlowsTraced) and [flow for flow, _ in event.hops] == list(flows)
                for flow, hops in event.hops:
                    expected = {*really[flow]} | ({"l2"} if uplink == "eth1" else set())
                    assert None not in hops and set(hops) == expected and hops[0] in ("l1", "x1")
        assert bad_checksums("h2") == dropped  # none has come so far
        assert seen_at_switches(flowing) == really
        assert flowing.sent_again() == 0


@pytest.mark.parametrize("family", [6, 4])
async def test_a_copy_that_comes_as_far_as_the_host_is_dropped_before_the_connection(
    fabric: lab.Fabric, family: int
) -> None:
    hosts = lab.HOSTS if family == 6 else lab.HOSTS4
    own, peer = hosts["h1"], hosts["h2"]
    with streams(own, peer) as flowing:
        really = seen_at_switches(flowing)
        dropped = bad_checksums("h2")
        async with tracing(fabric, own) as (edge, _):
            for flow in really:
                far = Question(flow.uplink, flow.label, 64, flow.sport, flow.dport, copy=True)
                assert await edge._asker.ask(socket.inet_pton(
                    socket.AF_INET6 if family == 6 else socket.AF_INET, peer), [far], 1) == {}  # fmt: skip
        assert bad_checksums("h2") == dropped + STREAMS
        flowing.send()
        assert flowing.sent_again() == 0


async def test_what_sprays_or_never_answers_leaves_a_gap(fabric: lab.Fabric) -> None:
    own, peer = lab.HOSTS["h1"], lab.HOSTS["h2"]
    flows = tuple(ev.FlowAt("eth1", 70000 + number, 40000 + number, 5000) for number in range(12))
    async with tracing(fabric, own) as (edge, told):
        await traced(edge, told, order())
        lab.nft("s1", "icmpv6 type time-exceeded drop", hook="output")
        try:
            await edge.trace_flows(cmd.TraceFlows(cmd_id=3, cause="t", peer=peer, uplink="eth1", flows=flows))
        finally:
            lab.nft("s1", "")
        event = told[-1]
        assert isinstance(event, ev.FlowsTraced)
        assert {hops for _, hops in event.hops} == {("l1", None, "l2"), ("l1", "s2", "l2")}


async def test_what_cannot_be_traced_is_told_with_its_reason(fabric: lab.Fabric) -> None:
    flows = (ev.FlowAt("eth9", 7, 1, 2),)
    async with tracing(fabric) as (edge, told):
        await edge.trace_flows(
            cmd.TraceFlows(cmd_id=3, cause="t", peer=lab.HOSTS["h2"], uplink="eth9", flows=flows)
        )  # fmt: skip
        assert told == [ev.FlowsUntraced(cmd_id=3, peer=lab.HOSTS["h2"], uplink="eth9", why="eth9 is not usable")]


async def test_what_has_the_probes_ports_is_traced_as_a_probe(fabric: lab.Fabric) -> None:
    """So it takes the way of the probes whatever their protocol is."""
    own, peer = lab.HOSTS4["h1"], lab.HOSTS4["h2"]
    with hashing_ports(4, "l1"):
        async with tracing(fabric, own, protocol="udp") as (edge, told):
            probes = await traced(edge, told, order("eth1", peer, (0,)))
            flow = ev.FlowAt("eth1", 0, 3785, 3785)
            await edge.trace_flows(cmd.TraceFlows(cmd_id=3, cause="t", peer=peer, uplink="eth1", flows=(flow,)))
            event = told[-1]
            assert isinstance(event, ev.FlowsTraced) and event.hops == ((flow, probes.hops[0]),)
