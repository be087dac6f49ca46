"""Traces against real switches: namespaces with equal-cost routes."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from typing import NamedTuple

import probe_lab as lab
import pytest
from trace_rig import LABELS, order, tracing

from linkpass.core import commands as cmd
from linkpass.core import events as ev
from linkpass.core.settings import Probing, Tracing
from linkpass.edges.kernel.labels import LabelEdge
from linkpass.wire import probe

pytestmark = pytest.mark.netns
ETH_P_ALL = 3


class Flow(NamedTuple):
    src: str
    dst: str
    sport: int
    dport: int
    label: int


@pytest.mark.parametrize("protocol", ["tcp", "udp"])
async def test_a_trace_finds_both_paths_of_the_diamond_and_the_short_way(fabric: lab.Fabric, protocol: str) -> None:
    async with tracing(fabric, protocol=protocol) as (edge, told):
        await edge.trace(order())
        await edge.trace(order("eth2"))
        await edge.trace(order())
        first, second, again = told
        assert isinstance(first, ev.LabelsTraced)
        assert set(first.hops.values()) == {("l1", "s1", "l2"), ("l1", "s2", "l2")}
        assert set(first.hops) == set(LABELS)
        assert isinstance(second, ev.LabelsTraced)
        assert set(second.hops.values()) == {("x1",)}
        assert again == first
        assert edge.answered <= edge.sent


async def test_ipv4_has_one_path_an_uplink_and_labels_only_in_tunnels(fabric: lab.Fabric) -> None:
    async with tracing(fabric, lab.HOSTS4["h1"]) as (edge, told):
        await edge.trace(order(peer=lab.HOSTS4["h2"], labels=(0,)))
        await edge.trace(order(peer=lab.HOSTS4["h2"]))
        traced, refused = told
        assert isinstance(traced, ev.LabelsTraced) and traced.hops.keys() == {0}
        assert traced.hops[0] in {("l1", "s1", "l2"), ("l1", "s2", "l2")}
        assert isinstance(refused, ev.TraceFailed) and refused.why == "it has no end of the tunnels any more"


async def test_a_mute_hop_is_none_and_so_is_what_lies_behind_a_broken_one(fabric: lab.Fabric) -> None:
    async with tracing(fabric) as (edge, told):
        lab.nft("s1", "icmpv6 type time-exceeded drop", hook="output")
        try:
            await edge.trace(order())
        finally:
            lab.nft("s1", "")
        lab.nft("s2", 'iifname "l1" drop')
        try:
            await edge.trace(order())
        finally:
            lab.nft("s2", "")
        mute, broken = told
        assert isinstance(mute, ev.LabelsTraced)
        assert set(mute.hops.values()) == {("l1", None, "l2"), ("l1", "s2", "l2")}
        assert isinstance(broken, ev.LabelsTraced)
        assert set(broken.hops.values()) == {("l1", "s1", "l2"), ("l1", "s2", None)}  # it answers before it drops


async def test_what_cannot_be_traced_fails_with_a_reason(fabric: lab.Fabric) -> None:
    async with tracing(fabric) as (edge, told):
        await edge.trace(order("eth9"))
        edge.drop_uplink("eth1")
        await edge.trace(order())
        edge.set_uplink("eth1", fabric.ifindex["h1", "eth1"], fabric.mac["h1", "eth1"], bytes(6))
        await edge.trace(order())
        edge.set_neighbour("eth1", b"")
        await edge.trace(order())
        assert [(e.cmd_id, e.uplink, e.why) for e in told if isinstance(e, ev.TraceFailed)] == [
            (7, "eth9", "eth9 is not usable"),
            (7, "eth1", "eth1 is not usable"),
            (7, "eth1", "no hop answers over eth1"),
            (7, "eth1", "eth1 is not usable"),
        ]


async def test_a_few_packets_reach_the_host_and_say_what_they_are(fabric: lab.Fabric) -> None:
    with lab.inside("h2"):
        tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x86DD))
    with tap:
        tap.setblocking(False)
        async with tracing(fabric) as (edge, _):
            await edge.trace(order())
        came = []
        with contextlib.suppress(BlockingIOError):
            while True:
                came.append(tap.recv(2048))
    arrived = [frame for frame in came if frame[20] == 6]
    assert 0 < len(arrived) <= 2 * 5 + 1  # two labels' hops 4 to 8, and one more when all was asked
    for frame in arrived:
        # a peer's daemon counts them apart
        assert probe.decode(probe.Signer(b"k"), frame[22:54], frame[74:]) is probe.Refusal.TRACE


async def test_the_kernels_own_choice_of_an_uplink_is_resolved(fabric: lab.Fabric) -> None:
    peer = lab.HOSTS["h2"]
    async with tracing(fabric) as (edge, told):
        await edge.resolve(cmd.ResolveUplinks(cmd_id=8, cause="t", peer=peer, labels=LABELS))
        (resolved,) = told
        assert isinstance(resolved, ev.UplinksResolved)
        assert set(resolved.uplink_of) == set(LABELS)
        assert set(resolved.uplink_of.values()) == {"eth1", "eth2"}
        # a socket that holds a label for itself makes the kernel refuse all others, unless they are leased
        with lab.inside("h1"):
            holder = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        with holder:
            request = socket.inet_pton(socket.AF_INET6, peer) + struct.pack("!I", 0x778)
            holder.setsockopt(socket.IPPROTO_IPV6, 32, request + struct.pack("=BBHHHI", 0, 1, 1, 0, 0, 0))
            await edge.resolve(cmd.ResolveUplinks(cmd_id=9, cause="t", peer=peer, labels=LABELS))
        again = told[1]
        assert isinstance(again, ev.UplinksResolved)
        assert again.uplink_of == resolved.uplink_of


def on_the_wire(peer: str) -> dict[int, set[str]]:
    """By which uplinks packets of each label leave h1, of many flows to a peer."""
    seen: dict[int, set[str]] = {}
    with lab.inside("h1"):
        wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        flows = [socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) for _ in range(400)]
    with wire:
        for flow in flows:
            with flow:
                flow.bind((lab.HOSTS["h1"], 0))
                flow.sendto(b"x", (peer, 9))
        wire.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                frame, (device, _, kind, *_) = wire.recvfrom(2048)
                if kind == socket.PACKET_OUTGOING and frame[12:14] == b"\x86\xdd" and frame[20] == socket.IPPROTO_UDP:
                    seen.setdefault(int.from_bytes(frame[15:18], "big") & 0xFFFFF, set()).add(device)
    return seen


async def test_what_is_relabelled_leaves_where_a_question_is_routed_that_was_changed_too(fabric: lab.Fabric) -> None:
    """Kernels before 6.14 cannot be asked; the choice of some of them follows the label all the same."""
    peer = lab.HOSTS["h2"]
    async with tracing(fabric, protocol="udp") as (edge, told):
        with lab.inside("h1"):
            labels = LabelEdge(probe_port=Probing().port, protocols=("udp",))
            labels.open()
        try:
            labels.set_labels(peer, (*LABELS, *LABELS[:4]))
            seen = on_the_wire(peer)
            edge.relabelled()
            await edge.resolve(cmd.ResolveUplinks(cmd_id=8, cause="t", peer=peer, labels=LABELS))
        finally:
            labels.close()
        (resolved,) = told
        assert isinstance(resolved, ev.UplinksResolved)
        assert seen == {label: {uplink} for label, uplink in resolved.uplink_of.items()}
        assert resolved.blind == (len(set(resolved.uplink_of.values())) == 1)


async def test_resolving_fails_with_a_reason(fabric: lab.Fabric) -> None:
    async with tracing(fabric) as (edge, told):
        peer = lab.HOSTS["h2"]
        await edge.resolve(cmd.ResolveUplinks(cmd_id=1, cause="t", peer=peer, labels=()))
        edge.drop_uplink("eth1")
        edge.drop_uplink("eth2")
        await edge.resolve(cmd.ResolveUplinks(cmd_id=2, cause="t", peer=peer, labels=LABELS))
        assert told == [
            ev.ResolveFailed(cmd_id=1, peer=peer, why="no labels"),
            ev.ResolveFailed(cmd_id=2, peer=peer, why="no usable uplink"),
        ]


def flows() -> list[Flow]:
    own, peer = lab.HOSTS["h1"], lab.HOSTS["h2"]
    return [Flow(own, peer, 40000 + n, 5000, n) for n in range(1, 5)] + [Flow("fd01::99", peer, 1, 2, 3)]


async def test_copies_of_flows_take_the_path_of_their_label(fabric: lab.Fabric) -> None:
    async with tracing(fabric) as (edge, told):
        await edge.compare(cmd.CompareFlows(cmd_id=3, cause="t", peer=lab.HOSTS["h2"]), flows())
        assert [e.agrees for e in told if isinstance(e, ev.FlowCompared)] == [True] * 4


async def test_a_switch_that_hashes_ports_is_found_out(fabric: lab.Fabric) -> None:
    async with tracing(fabric) as (edge, told):
        lab.sysctl("l1", ipv6__fib_multipath_hash_policy=1)
        try:
            for shift in (0, 100, 200):
                moved = [flow._replace(sport=flow.sport + shift) for flow in flows()]
                await edge.compare(cmd.CompareFlows(cmd_id=3, cause="t", peer=lab.HOSTS["h2"]), moved)
        finally:
            lab.sysctl("l1", ipv6__fib_multipath_hash_policy=0)
        verdicts = [e for e in told if isinstance(e, ev.FlowCompared)]
        assert {e.agrees for e in verdicts} >= {False}
        wrong = next(e for e in verdicts if e.agrees is False)
        assert wrong.detail.startswith("eth1, hop 2: probes pass s")
        assert wrong.flow.startswith("[fd01:ff::1]:40")


async def test_without_a_flow_or_an_answer_there_is_no_verdict(fabric: lab.Fabric) -> None:
    async with tracing(fabric) as (edge, told):
        order_ = cmd.CompareFlows(cmd_id=3, cause="t", peer=lab.HOSTS["h2"])
        await edge.compare(order_, [])
        edge.set_neighbour("eth1", bytes(6))
        await edge.compare(order_, flows()[:1])
        assert [(e.agrees, e.detail) for e in told if isinstance(e, ev.FlowCompared)] == [
            (None, "no flow to compare"),
            (None, "no hop answers over eth1"),
        ]


async def test_the_copies_never_look_like_data(fabric: lab.Fabric) -> None:
    """On the wire between host and first switch: hop limits short of the host, ACK alone, a wrong checksum."""
    from linkpass.wire import frame

    with lab.inside("l1"):
        tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x86DD))
    with tap:
        tap.setblocking(False)
        async with tracing(fabric) as (edge, _):
            await edge.compare(cmd.CompareFlows(cmd_id=3, cause="t", peer=lab.HOSTS["h2"]), flows()[:1])
        packets = []
        with contextlib.suppress(BlockingIOError):
            while True:
                packets.append(frame.parse(tap.recv(2048)))
    copies = [p for p in packets if p is not None and p.dport == 5000]
    assert {p.hop_limit for p in copies} >= {1, 2, 3}
    for packet in copies:
        assert packet.flags == frame.ACK
        assert not packet.checksum_ok
        assert packet.hop_limit <= 3
        assert packet.label == 1


async def test_pacing_bounds_the_rate(fabric: lab.Fabric) -> None:
    async with tracing(fabric, pace=Tracing(packets_per_s=200)) as (edge, told):
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        await edge.trace(order("eth2", labels=tuple(range(40))))
        assert edge.sent / (loop.time() - begun_s) < 220
        assert isinstance(told[0], ev.LabelsTraced)


async def test_a_burst_finds_what_a_slow_trace_finds(fabric: lab.Fabric) -> None:
    async with tracing(fabric) as (edge, told):
        await edge.trace(order(urgent=True))
        await edge.trace(order())
        fast, slow = told
        assert isinstance(fast, ev.LabelsTraced) and isinstance(slow, ev.LabelsTraced)
        assert fast.hops == slow.hops


async def test_labels_that_leave_elsewhere_are_left_out(fabric: lab.Fabric) -> None:
    async with tracing(fabric) as (edge, told):
        edge.drop_uplink("eth2")
        await edge.resolve(cmd.ResolveUplinks(cmd_id=5, cause="t", peer=lab.HOSTS["h2"], labels=LABELS))
        (partly,) = told
        assert isinstance(partly, ev.UplinksResolved)
        assert set(partly.uplink_of.values()) == {"eth1"}
        assert 0 < len(partly.uplink_of) < len(LABELS)
