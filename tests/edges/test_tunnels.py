"""Entropy tunnels in a real kernel: each is one known path, flows are dealt over them, and nothing is left behind."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from roomy_fabric import (
    FIRST_PORT,
    LINK_BYTES,
    PACKET_BYTES,
    UDP_PORT,
    VNI,
    Seen,
    ip,
    make_room,
    roomy,
    say,
    talking,
    ways,
)  # fmt: skip

from lab.capture import Capture, Flow
from lab.netns.lab import NetnsLab
from linkpass.core import commands as cmd
from linkpass.core import events as ev
from linkpass.core.settings import CoreSettings
from linkpass.edges.kernel.labels import BUCKETS
from linkpass.edges.kernel.marks import MarkEdge
from linkpass.edges.kernel.tunnels import END_NAME, NoTunnelsError, TunnelEdge, sweep_tunnels
from linkpass.edges.traces import TraceEdge
from linkpass.wire.vxlan import OVERHEAD_BYTES, End

pytestmark = pytest.mark.netns
END = End(UDP_PORT, VNI)
HERE, THERE = "host1", "host3"


@pytest.fixture(scope="module")
def fabric(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NetnsLab]:
    made = roomy(tmp_path_factory.mktemp("lab"))
    try:
        made.up()
        make_room(made)
        yield made
    finally:
        made.down()


class Bench:
    def __init__(self, lab: NetnsLab, stack: ExitStack) -> None:
        self.lab, self._stack = lab, stack
        self.seen = Seen(lab)
        stack.callback(self.seen.close)
        self.own, self.peer = lab.address(HERE, 4), lab.address(THERE, 4)

    def tunnels(self, host: str = HERE, per_uplink: int = 4) -> TunnelEdge:
        """A host's tunnels, led to the other host."""
        made = self.edge(host, per_uplink)
        made.set_ways(ways(self.lab, host), PACKET_BYTES)
        made.set_peer(self.peer if host == HERE else self.own, END)
        return made

    def edge(self, host: str = HERE, per_uplink: int = 4, end: End = END) -> TunnelEdge:
        made = TunnelEdge(self.lab.address(host, 4), end, first_port=FIRST_PORT, per_uplink=per_uplink)
        with self.lab.in_netns(host):
            made.open()
        self._stack.callback(self._end, host, made)
        return made

    def _end(self, host: str, made: TunnelEdge) -> None:
        made.close()
        with self.lab.in_netns(host):
            sweep_tunnels()

    def marks(self, host: str = HERE, timeout_s: float = 60) -> MarkEdge:
        made = MarkEdge(probe_port=3785, timeout_s=timeout_s)
        with self.lab.in_netns(host):
            made.open()
        self._stack.callback(made.close)
        return made

    def on(self, host: str, *words: str) -> str:
        with self.lab.in_netns(host):
            return ip(*words)


def left(lab: NetnsLab, host: str = HERE) -> list[str]:
    """Everything in a host that could be of tunnels."""
    with lab.in_netns(host):
        tables = subprocess.run(["nft", "list", "tables"], check=True, capture_output=True, text=True).stdout
        found = [*tables.splitlines(), *ip("-4", "rule").splitlines()]
        found += ip("-4", "route", "show", "table", "all", "proto", "76").splitlines()
        found += [link["ifname"] for link in json.loads(ip("-j", "link", "show", "type", "vxlan"))]
    return found


@pytest.fixture
def bench(fabric: NetnsLab) -> Iterator[Bench]:
    with ExitStack() as stack:
        before = left(fabric)
        yield Bench(fabric, stack)
    assert left(fabric) == before


def test_a_live_connection_goes_through_any_tunnel_and_each_is_one_path_over_its_uplink(bench: Bench) -> None:
    tunnels, marks = bench.tunnels(), bench.marks()
    bench.tunnels(THERE)
    leaf = {"eth1": "leaf1", "eth2": "leaf2"}
    spines = set()
    with talking(bench.lab, HERE, THERE) as (ours, theirs):
        say(ours, theirs)
        assert bench.seen.route(bench.own)[1] == {0}
        for port, tunnel in tunnels.tunnels.items():
            marks.set_labels(bench.peer, (port,) * BUCKETS)
            routes = []
            for _ in range(2):
                say(ours, theirs, b"x" * 20_000)
                switches, ports = bench.seen.route(bench.own)
                assert ports == {port}
                assert len(switches) == 3 and leaf[tunnel.uplink] in switches
                routes.append(switches)
            assert routes[0] == routes[1]
            spines |= {name for name in switches if name.startswith("spine")}
        marks.set_labels(bench.peer, ())
        say(ours, theirs)
        assert bench.seen.route(bench.own)[1] == {0}
    assert {one.uplink for one in tunnels.tunnels.values()} == {"eth1", "eth2"}
    assert spines == {"spine1", "spine2"}


def test_flows_are_dealt_over_tunnels_and_others_marks_are_left_alone(bench: Bench) -> None:
    tunnels, marks = bench.tunnels(), bench.marks()
    bench.tunnels(THERE)
    ports = sorted(tunnels.tunnels)
    marks.set_labels(bench.peer, tuple(ports * 2))
    used = set()
    for _ in range(40):
        with talking(bench.lab, HERE, THERE) as (ours, theirs):
            bench.seen.take(bench.own)
            say(ours, theirs)
            (port,) = bench.seen.route(bench.own)[1]
            say(ours, theirs)
            assert bench.seen.route(bench.own)[1] == {port}
            used.add(port)
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, 7)
            say(ours, theirs)
            assert bench.seen.route(bench.own)[1] == {0}
    assert used <= set(ports) and len(used) >= len(ports) - 2


def test_without_a_daemon_the_marks_expire_and_the_kernel_s_routes_carry_on(bench: Bench) -> None:
    tunnels, marks = bench.tunnels(), bench.marks(timeout_s=2.0)
    bench.tunnels(THERE)
    marks.set_labels(bench.peer, (min(tunnels.tunnels),) * BUCKETS)
    with talking(bench.lab, HERE, THERE) as (ours, theirs):
        ports: set[int] = {min(tunnels.tunnels)}
        seen = []
        while ports != {0}:
            say(ours, theirs)
            ports = bench.seen.route(bench.own)[1]
            seen.append(ports)
        assert {min(tunnels.tunnels)} in seen


def test_nothing_that_does_not_fit_is_put_into_a_tunnel(bench: Bench) -> None:
    edge = bench.edge()
    narrow = {
        name: way._replace(mtu=PACKET_BYTES) if name == "eth1" else way for name, way in ways(bench.lab, HERE).items()
    }
    edge.set_ways(narrow, PACKET_BYTES)
    edge.set_peer(bench.peer, END)
    assert set(edge.reach(bench.peer).values()) == {"eth2"}
    assert edge.refused == {
        "eth1": "no tunnels over eth1: its MTU is 1500, and the job's packets of up to 1500 bytes would need 1550: "
        "raise it there and in the fabric, or give the job's routes an mtu of 1450"
    }
    kept = dict(edge.tunnels)
    edge.set_ways(ways(bench.lab, HERE), PACKET_BYTES)
    assert set(edge.reach(bench.peer).values()) == {"eth1", "eth2"} and edge.refused == {}
    assert kept.items() <= edge.tunnels.items()  # what was there is as it was
    edge.set_ways(ways(bench.lab, HERE), LINK_BYTES - OVERHEAD_BYTES + 1)
    assert edge.reach(bench.peer) == {} and sorted(edge.refused) == ["eth1", "eth2"]


def test_full_packets_pass_unbroken_and_the_connection_keeps_their_size(bench: Bench) -> None:
    """The route's own limit (1500) is not taken for one of the outer packets, which have 1550."""
    tunnels, marks = bench.tunnels(), bench.marks()
    bench.tunnels(THERE)
    marks.set_labels(bench.peer, (min(tunnels.tunnels),) * BUCKETS)
    with talking(bench.lab, HERE, THERE) as (ours, theirs):
        say(ours, theirs, b"x" * 500_000)
        assert ours.getsockopt(socket.IPPROTO_IP, 14) == PACKET_BYTES  # IP_MTU
        info = ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
        assert int.from_bytes(info[16:20], sys.byteorder) == PACKET_BYTES - 52  # tcpi_snd_mss, with time stamps
    assert "FragCreates 0" in fragments(bench, HERE)


def test_an_uplink_that_was_down_leads_as_before(bench: Bench) -> None:
    """The kernel forgets the routes over a device that is set down, and without the outer packets' own the job's limit
    would be theirs."""
    tunnels, marks = bench.tunnels(), bench.marks()
    bench.tunnels(THERE)
    marks.set_labels(bench.peer, (min(tunnels.tunnels),) * BUCKETS)
    with talking(bench.lab, HERE, THERE) as (ours, theirs):
        say(ours, theirs)
        with bench.lab.in_netns(HERE):
            Path("/proc/sys/net/ipv6/conf/eth1/keep_addr_on_down").write_text("1")
        bench.on(HERE, "link", "set", "eth1", "down")
        tunnels.set_ways(ways(bench.lab, HERE), PACKET_BYTES)
        bench.on(HERE, "link", "set", "eth1", "up")
        bench.lab.repair_routes(HERE)
        make_room(bench.lab)
        tunnels.set_ways(ways(bench.lab, HERE), PACKET_BYTES)
        bench.seen.take(bench.own)
        say(ours, theirs, b"x" * 500_000)
        assert bench.seen.route(bench.own)[1] == {min(tunnels.tunnels)}
        assert ours.getsockopt(socket.IPPROTO_IP, 14) == PACKET_BYTES


def fragments(bench: Bench, host: str) -> str:
    with bench.lab.in_netns(host):
        names, values = [
            line.split()[1:]
            for line in Path("/proc/thread-self/net/snmp").read_text().splitlines()
            if line.startswith("Ip:")
        ]
    return " ".join(f"{name} {value}" for name, value in zip(names, values, strict=True))


def test_a_strict_reverse_path_filter_at_the_receiver_is_no_obstacle(bench: Bench) -> None:
    with bench.lab.in_netns(THERE):
        setting = Path("/proc/sys/net/ipv4/conf/all/rp_filter")
        setting.write_text("1")
        try:
            tunnels, marks = bench.tunnels(), bench.marks()
            with bench.lab.in_netns(THERE):
                bench.tunnels(THERE)
            assert setting.read_text() == "1\n"
            marks.set_labels(bench.peer, tuple(sorted(tunnels.tunnels)) * 2)
            for _ in range(8):
                with talking(bench.lab, HERE, THERE) as (ours, theirs):
                    say(ours, theirs)
        finally:
            with bench.lab.in_netns(THERE):
                setting.write_text("0")


def test_a_killed_daemon_s_end_stays_for_its_peers_and_all_is_swept_by_cleanup(bench: Bench) -> None:
    plain = {name: tuple(way) for name, way in ways(bench.lab, HERE).items()}
    code = f"""
import os, signal
from linkpass.edges.kernel.marks import MarkEdge
from linkpass.edges.kernel.tunnels import TunnelEdge, TunnelWay
from linkpass.wire.vxlan import End
edge = TunnelEdge({bench.own!r}, End({UDP_PORT}, {VNI}), first_port={FIRST_PORT}, per_uplink=4)
edge.open()
edge.set_ways({{name: TunnelWay(*way) for name, way in {plain!r}.items()}}, {PACKET_BYTES})
edge.set_peer({bench.peer!r}, End({UDP_PORT}, {VNI}))
marks = MarkEdge(probe_port=3785)
marks.open()
marks.set_labels({bench.peer!r}, ({FIRST_PORT},) * 16)
os.kill(os.getpid(), signal.SIGKILL)
"""
    bench.on(HERE, "link", "add", "others", "type", "vxlan", "id", "7", "dstport", "4789", "dev", "eth1")
    bench.tunnels(THERE)
    with bench.lab.in_netns(HERE):
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    with talking(bench.lab, HERE, THERE) as (ours, theirs):
        bench.seen.take(bench.own)
        say(ours, theirs)
        assert bench.seen.route(bench.own)[1] == {FIRST_PORT}  # a crash leaves traffic flowing as it was
        end = bench.on(HERE, "link", "show", END_NAME)
        fewer = bench.tunnels(per_uplink=2)
        assert bench.on(HERE, "link", "show", END_NAME) == end
        assert len(fewer.tunnels) == 4
        marks = bench.marks()
        say(ours, theirs)
        assert bench.seen.route(bench.own)[1] == {0}
        marks.set_labels(bench.peer, (FIRST_PORT + 3,) * BUCKETS)
        say(ours, theirs)
        assert bench.seen.route(bench.own)[1] == {FIRST_PORT + 3}
        with bench.lab.in_netns(HERE):
            done = sweep_tunnels()
            assert sorted(done) == sorted(
                ["nftables table ip linkpass", f"tunnel device {END_NAME}"]
                + [f"rule for mark {0x4C500000 + port:#x}" for port in fewer.tunnels]
                + [f"tunnel device linkpass-{port}" for port in fewer.tunnels]
            )
            assert sweep_tunnels() == []
        say(ours, theirs)
        assert bench.seen.route(bench.own)[1] == {0}
    assert "others" in left(bench.lab)
    bench.on(HERE, "link", "del", "others")


def test_a_port_that_others_use_is_refused_by_name(bench: Bench) -> None:
    bench.on(HERE, "link", "add", "others", "type", "vxlan", "id", "7", "dstport", str(UDP_PORT), "dev", "eth1")
    try:
        with pytest.raises(NoTunnelsError, match=f"UDP port {UDP_PORT} is that of the VXLAN device others: choose"):
            bench.edge()
    finally:
        bench.on(HERE, "link", "del", "others")
    with bench.lab.in_netns(HERE), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("", UDP_PORT))
        with pytest.raises(NoTunnelsError, match=rf"UDP port {UDP_PORT} is in use here \(ss -ulnp"):
            bench.edge()


async def until(true: Callable[[], bool]) -> None:
    for _ in range(3000):
        if true():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("waited in vain")


REMOVALS = (
    "link del linkpass-{port}",
    "link set linkpass-{port} down",
    "rule del fwmark {mark}",
    "neigh del {peer} dev linkpass-{port}",
    "route flush table {mark}",
)


@pytest.mark.parametrize("what", REMOVALS)
async def test_what_others_remove_is_told_and_made_again(bench: Bench, what: str) -> None:
    lost: list[tuple[set[int], str]] = []
    edge = TunnelEdge(
        bench.own, END, first_port=FIRST_PORT, per_uplink=2, on_lost=lambda ports, by: lost.append((ports, by))
    )
    bench.tunnels(THERE)
    marks = bench.marks()
    with bench.lab.in_netns(HERE):
        edge.open()
    try:
        edge.set_ways(ways(bench.lab, HERE), PACKET_BYTES)
        edge.set_peer(bench.peer, END)
        port = FIRST_PORT + 1
        marks.set_labels(bench.peer, (port,) * BUCKETS)
        with talking(bench.lab, HERE, THERE) as (ours, theirs):
            await asyncio.sleep(0.05)
            assert lost == []
            bench.on(HERE, *what.format(port=port, mark=0x4C500000 | port, peer=bench.peer).split())
            await until(lambda: bool(lost))
            assert {port} == set().union(*(ports for ports, _ in lost))
            if not what.startswith("link"):
                assert all(by.startswith(("a process that has ended", "ip (pid")) for _, by in lost)
            assert marks.using({port}) == [bench.peer]
            marks.set_labels(bench.peer, ())
            say(ours, theirs)
            assert edge.mend()
            marks.set_labels(bench.peer, (port,) * BUCKETS)
            bench.seen.take(bench.own)
            say(ours, theirs)
            assert bench.seen.route(bench.own)[1] == {port}
            await asyncio.sleep(0.05)
            told = len(lost)
            await asyncio.sleep(0.05)
            assert len(lost) == told and not edge.mend()  # our own doing is nobody's removal
    finally:
        edge.close()
        with bench.lab.in_netns(HERE):
            sweep_tunnels()


async def test_traces_find_the_way_that_the_data_takes(bench: Bench) -> None:
    tunnels, marks = bench.tunnels(), bench.marks()
    bench.tunnels(THERE)
    told: list[ev.Event] = []
    edge = TraceEdge(CoreSettings(host=HERE, address=bench.own), told.append, bench.lab.names)
    edge.ask_ends_of(lambda peer: END if peer == bench.peer else None)
    with bench.lab.in_netns(HERE):
        edge.open()
        for name, way in ways(bench.lab, HERE).items():
            wire = next(wire for wire in bench.lab.plan.wires_of(HERE) if wire.end(HERE).device == name)
            near, far = wire.both_ways()[wire.b.node == HERE]
            edge.set_uplink(
                name, way.device, bytes.fromhex(near.mac.replace(":", "")), bytes.fromhex(far.mac.replace(":", ""))
            )
    try:
        for uplink in ("eth1", "eth2"):
            labels = tuple(port for port, one in tunnels.tunnels.items() if one.uplink == uplink)
            await edge.trace(cmd.TraceLabels(cmd_id=1, cause="", peer=bench.peer, uplink=uplink, labels=labels))
        other = cmd.TraceLabels(
            cmd_id=2, cause="", peer=bench.lab.address("host4", 4), uplink="eth1", labels=(FIRST_PORT,)
        )
        await edge.trace(other)
    finally:
        edge.close()
    assert isinstance(told[-1], ev.TraceFailed) and "it has no end of the tunnels" in told[-1].why
    traced = {label: hops for one in told if isinstance(one, ev.LabelsTraced) for label, hops in one.hops.items()}
    assert traced.keys() == tunnels.tunnels.keys()
    with talking(bench.lab, HERE, THERE) as (ours, theirs):
        for port in tunnels.tunnels:
            marks.set_labels(bench.peer, (port,) * BUCKETS)
            bench.seen.take(bench.own)
            say(ours, theirs)
            assert bench.seen.route(bench.own)[0] == set(traced[port])
    assert len(set(traced.values())) >= 4


def test_the_lab_s_capture_follows_a_connection_into_a_tunnel(bench: Bench) -> None:
    tunnels, marks = bench.tunnels(), bench.marks()
    bench.tunnels(THERE)
    port = max(tunnels.tunnels)
    with Capture.of(bench.lab) as capture, talking(bench.lab, HERE, THERE) as (ours, theirs):
        capture.watch()
        say(ours, theirs)
        marks.set_labels(bench.peer, (port,) * BUCKETS)
        say(ours, theirs)
        flow = Flow(*ours.getsockname(), *ours.getpeername())
        seen = [one for one in capture.take().seen if one.flow == flow]
    assert [one.label for one in seen if one.direction.startswith(HERE)] == [0, port]
    assert len([one for one in seen if one.label == port]) == 4  # host, leaf, spine, leaf
