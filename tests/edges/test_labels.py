"""Rung 1 on the real kernel: what the wire carries while labels are replaced, expire or are missing."""

from __future__ import annotations

import signal
import socket
import struct
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from kernel_lab import FAR_END, HOST6, PEER6, KernelLab, inside

from linkpass.edges.kernel.labels import BUCKETS, LabelEdge
from linkpass.edges.kernel.nft import NoNftError

pytestmark = pytest.mark.netns
OTHER6 = "fd00:ff::7"
PORT, PROBE_PORT = 9000, 3785
FLOWINFO_SEND = 33


class Wire:
    """Flow labels of UDP packets as the router's ends of both links receive them."""

    def __init__(self, lab: KernelLab) -> None:
        with inside(lab.router):
            self._sockets = [socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0) for _ in FAR_END]
            for sock, device in zip(self._sockets, FAR_END.values(), strict=True):
                sock.setsockopt(socket.SOL_SOCKET, 33, 1 << 24)  # SO_RCVBUFFORCE
                sock.bind((device, 0x86DD))
                sock.setblocking(False)

    def labels(self, port: int = PORT, destination: str = PEER6, *, count: int = 0) -> Counter[int]:
        """What has arrived since the last call, for a destination and port; at least so many are waited for, since
        a busy kernel hands them over a moment later."""
        found = self._arrived(port, destination)
        end = time.monotonic() + 30
        while found.total() < count:
            assert time.monotonic() < end, f"{count} packets are waited for: {found}"
            time.sleep(0.002)
            found += self._arrived(port, destination)
        return found

    def _arrived(self, port: int, destination: str) -> Counter[int]:
        found: Counter[int] = Counter()
        wanted = socket.inet_pton(socket.AF_INET6, destination)
        for sock in self._sockets:
            while True:
                try:
                    packet = sock.recv(64)
                except BlockingIOError:
                    break
                if packet[6] == 17 and packet[24:40] == wanted and packet[42:44] == struct.pack("!H", port):
                    found[struct.unpack_from("!I", packet)[0] & 0xFFFFF] += 1
        return found

    def close(self) -> None:
        for sock in self._sockets:
            sock.close()


@pytest.fixture
def wire(lab: KernelLab) -> Iterator[Wire]:
    made = Wire(lab)
    yield made
    made.close()


@pytest.fixture
def sender(lab: KernelLab) -> Iterator[socket.socket]:
    """A UDP socket of the job that says its flow label with each packet."""
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:
        sock.bind((HOST6, 0))
        sock.setsockopt(socket.IPPROTO_IPV6, FLOWINFO_SEND, 1)
        yield sock


@pytest.fixture
def edge(lab: KernelLab) -> Iterator[LabelEdge]:
    made = LabelEdge(probe_port=PROBE_PORT, protocols=("udp",))
    made.open()
    yield made
    made.close()


def send(sender: socket.socket, labels: range, *, port: int = PORT, to: str = PEER6) -> None:
    for label in labels:
        sender.sendto(b"x", (to, port, label, 0))


def ruleset() -> str:
    return subprocess.run(["nft", "list", "ruleset"], check=True, capture_output=True, text=True).stdout


def test_every_bucket_gets_its_label_and_a_flow_stays_in_one(
    edge: LabelEdge, wire: Wire, sender: socket.socket
) -> None:
    ours = tuple(range(0x1000, 0x1000 + BUCKETS))
    edge.set_labels(PEER6, ours)
    send(sender, range(1, 400))
    assert set(wire.labels(count=399)) == set(ours)
    send(sender, range(5, 6))
    send(sender, range(5, 6))
    assert list(wire.labels(count=2).values()) == [2]


def test_a_peer_that_is_not_in_the_map_keeps_its_label_to_the_bit(
    edge: LabelEdge, wire: Wire, sender: socket.socket
) -> None:
    """The high four bits too: the lookup that fails must end the rule before either write."""
    edge.set_labels(PEER6, (0x1234,) * BUCKETS)
    mine = range(0xF0000, 0xF0000 + 60)
    send(sender, mine, to=OTHER6)
    assert set(wire.labels(destination=OTHER6, count=len(mine))) == set(mine)


def test_the_high_bits_are_cleared_where_the_label_is_ours(edge: LabelEdge, wire: Wire, sender: socket.socket) -> None:
    edge.set_labels(PEER6, (0x1234,) * BUCKETS)
    send(sender, range(0xF0000, 0xF0000 + 60))
    assert set(wire.labels(count=60)) == {0x1234}


def test_probes_and_other_protocols_pass_untouched(edge: LabelEdge, wire: Wire, sender: socket.socket) -> None:
    edge.set_labels(PEER6, (0x1234,) * BUCKETS)
    send(sender, range(0x70001, 0x70010), port=PROBE_PORT)
    assert set(wire.labels(PROBE_PORT, count=15)) == set(range(0x70001, 0x70010))


def test_tcp_alone_is_rewritten_by_default(lab: KernelLab, wire: Wire, sender: socket.socket) -> None:
    edge = LabelEdge(probe_port=PROBE_PORT)
    edge.open()
    edge.set_labels(PEER6, (0x1234,) * BUCKETS)
    send(sender, range(0x70001, 0x70010))
    assert set(wire.labels(count=15)) == set(range(0x70001, 0x70010))
    edge.close()


def test_no_foreign_label_during_thousands_of_replacements(edge: LabelEdge, wire: Wire, sender: socket.socket) -> None:
    seen: Counter[int] = Counter()
    edge.set_labels(PEER6, (0x1001,) * BUCKETS)
    for turn in range(3000):
        send(sender, range(0xF0000 + turn, 0xF0000 + turn + 3))
        edge.set_labels(PEER6, (0x1001 + turn % 2,) * BUCKETS)
        if turn % 200 == 0:
            edge.refresh()
            seen += wire.labels()
    seen += wire.labels(count=9000 - seen.total())
    assert set(seen) == {0x1001, 0x1002}
    assert sum(seen.values()) == 9000


def test_no_foreign_label_while_another_thread_of_execution_sends(lab: KernelLab, edge: LabelEdge, wire: Wire) -> None:
    """The sender is a process of its own, so that packets meet replacements half-way."""
    program = textwrap.dedent(f"""
        import socket
        sock = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        sock.bind(("{HOST6}", 0))
        sock.setsockopt(41, {FLOWINFO_SEND}, 1)
        for turn in range(20000):
            sock.sendto(b"x", ("{PEER6}", {PORT}, 0xF0000 + turn, 0))
    """)
    edge.set_labels(PEER6, (0x1001,) * BUCKETS)
    seen: Counter[int] = Counter()
    turn = 0
    with subprocess.Popen([sys.executable, "-c", program]) as sending:
        while sending.poll() is None:
            edge.set_labels(PEER6, (0x1001 + turn % 2,) * BUCKETS)
            turn += 1
            if turn % 50 == 0:
                seen += wire.labels()
    assert sending.returncode == 0
    seen += wire.labels()
    assert set(seen) <= {0x1001, 0x1002} and sum(seen.values()) > 10000
    assert turn > 100


def test_a_live_tcp_connection_moves_with_its_next_packet(lab: KernelLab) -> None:
    """Same socket, no retransmission: only the label on the wire is another."""
    edge = LabelEdge(probe_port=PROBE_PORT)
    edge.open()
    with inside(lab.router):
        server = socket.create_server((PEER6, PORT), family=socket.AF_INET6)
        watch = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x86DD))
    with server, watch, socket.create_connection((PEER6, PORT), source_address=(HOST6, 0)) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        accepted, _ = server.accept()
        with accepted:
            for label in (0x1111, 0x2222, 0x1111):
                edge.set_labels(PEER6, (label,) * BUCKETS)
                _drain(watch)
                client.sendall(b"x")
                assert accepted.recv(1) == b"x"
                assert _data_labels(watch) == {label}
            retransmits = client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)[2]
            assert retransmits == 0
    edge.close()


def _drain(watch: socket.socket) -> None:
    watch.setblocking(False)
    try:
        while True:
            watch.recv(64)
    except BlockingIOError:
        return


def _data_labels(watch: socket.socket) -> set[int]:
    """Labels of TCP segments to the peer's port that carry data."""
    found = set()
    wanted = socket.inet_pton(socket.AF_INET6, PEER6)
    try:
        while True:
            packet = watch.recv(200)
            if packet[6] != 6 or packet[24:40] != wanted or packet[42:44] != struct.pack("!H", PORT):
                continue
            if struct.unpack_from("!H", packet, 4)[0] > (packet[52] >> 4) * 4:
                found.add(struct.unpack_from("!I", packet)[0] & 0xFFFFF)
    except BlockingIOError:
        return found


def test_withdrawn_labels_leave_the_flow_to_the_kernel(edge: LabelEdge, wire: Wire, sender: socket.socket) -> None:
    edge.set_labels(PEER6, (0x1234,) * BUCKETS)
    edge.set_labels(OTHER6, (0x4321,) * BUCKETS)
    edge.set_labels(PEER6, ())
    send(sender, range(0x70001, 0x70010))
    send(sender, range(0x70001, 0x70010), to=OTHER6)
    assert set(wire.labels(count=15)) == set(range(0x70001, 0x70010))
    send(sender, range(0x70001, 0x70010), to=OTHER6)
    assert set(wire.labels(destination=OTHER6, count=1)) == {0x4321}


def test_labels_of_a_dead_daemon_expire(lab: KernelLab, wire: Wire, sender: socket.socket) -> None:
    """SIGKILL: nobody refreshes, the table stays, and after the timeout the kernel's own label is on the wire again."""
    program = textwrap.dedent(f"""
        import signal
        from linkpass.edges.kernel.labels import LabelEdge
        edge = LabelEdge(probe_port={PROBE_PORT}, protocols=("udp",), timeout_s=3.0)
        edge.open()
        edge.set_labels("{PEER6}", (0x1234,) * {BUCKETS})
        print("labelled", flush=True)
        signal.pause()
    """)
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as daemon:
        assert daemon.stdout is not None and daemon.stdout.readline() == "labelled\n"
        send(sender, range(0x70001, 0x70002))
        daemon.send_signal(signal.SIGKILL)
    assert set(wire.labels(count=1)) == {0x1234}
    end = time.monotonic() + 30
    while True:
        send(sender, range(0x70001, 0x70002))
        if set(wire.labels()) == {0x70001}:
            break
        assert time.monotonic() < end
        time.sleep(0.05)
    edge = LabelEdge(probe_port=PROBE_PORT)
    assert edge.sweep() == ["nftables table ip6 linkpass"]
    assert edge.sweep() == []
    assert ruleset() == ""


def test_refreshed_labels_outlive_their_timeout(lab: KernelLab, wire: Wire, sender: socket.socket) -> None:
    edge = LabelEdge(probe_port=PROBE_PORT, protocols=("udp",), timeout_s=1.0)
    edge.open()
    edge.set_labels(PEER6, (0x1234,) * BUCKETS)
    end = time.monotonic() + 2.5
    while time.monotonic() < end:
        edge.refresh()
        send(sender, range(0x70001, 0x70020))
    assert set(wire.labels()) == {0x1234}
    edge.close()


def test_labels_that_expired_while_we_slept_are_written_anew(lab: KernelLab, wire: Wire, sender: socket.socket) -> None:
    edge = LabelEdge(probe_port=PROBE_PORT, protocols=("udp",), timeout_s=1.0)
    edge.open()
    edge.set_labels(PEER6, (0x1234,) * BUCKETS)
    end = time.monotonic() + 30
    while set(wire.labels()) != {0x70001}:
        assert time.monotonic() < end
        send(sender, range(0x70001, 0x70002))
        time.sleep(0.02)
    edge.set_labels(PEER6, (0x4321,) * BUCKETS)
    wire.labels()
    send(sender, range(0x70001, 0x70002))
    assert set(wire.labels(count=1)) == {0x4321}
    edge.close()


def test_without_auto_labels_flows_are_told_apart_by_their_ports(
    lab: KernelLab, wire: Wire, sender: socket.socket
) -> None:
    setting = Path("/proc/sys/net/ipv6/auto_flowlabels")
    setting.write_text("0")
    edge = LabelEdge(probe_port=PROBE_PORT, protocols=("udp",))
    edge.open()
    ours = tuple(range(0x1000, 0x1000 + BUCKETS))
    edge.set_labels(PEER6, ours)
    for _ in range(100):
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as flow:
            flow.bind((HOST6, 0))
            flow.sendto(b"x", (PEER6, PORT))
    assert len(set(wire.labels(count=100))) > BUCKETS // 2
    edge.close()


def test_a_table_that_somebody_removed_is_made_anew_with_everything_in_it(
    edge: LabelEdge, wire: Wire, sender: socket.socket
) -> None:
    edge.set_labels(OTHER6, (0x1234,) * BUCKETS)
    subprocess.run(["nft", "delete", "table", "ip6", "linkpass"], check=True)
    edge.set_labels(PEER6, (0x4321,) * BUCKETS)
    send(sender, range(0x70001, 0x70005))
    assert set(wire.labels(count=4)) == {0x4321}
    subprocess.run(["nft", "delete", "table", "ip6", "linkpass"], check=True)
    edge.set_labels(PEER6, ())
    send(sender, range(0x70001, 0x70005))
    assert set(wire.labels(count=4)) == set(range(0x70001, 0x70005))


def test_the_protocol_that_is_probed_is_the_one_that_is_moved(
    lab: KernelLab, wire: Wire, sender: socket.socket
) -> None:
    edge = LabelEdge(probe_port=PROBE_PORT, protocols=("udp",))
    edge.open()
    edge.set_labels(PEER6, (0x1234,) * BUCKETS)
    send(sender, range(0x70001, 0x70010))
    assert set(wire.labels(count=15)) == {0x1234}
    with inside(lab.router):
        server = socket.create_server((PEER6, PORT), family=socket.AF_INET6)
        watch = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x86DD))
    with server, watch, socket.create_connection((PEER6, PORT), source_address=(HOST6, 0)) as client:
        accepted, _ = server.accept()
        with accepted:
            _drain(watch)
            client.sendall(b"x")
            assert accepted.recv(1) == b"x"
            assert 0x1234 not in _data_labels(watch)
    edge.close()


@pytest.mark.parametrize("setting", ["0", "2"])
def test_where_flows_have_no_labels_of_their_own_tcp_is_told_apart_by_ports(lab: KernelLab, setting: str) -> None:
    """2 leaves it to each socket to ask for labels; hardly any does."""
    Path("/proc/sys/net/ipv6/auto_flowlabels").write_text(setting)
    edge = LabelEdge(probe_port=PROBE_PORT)
    edge.open()
    edge.set_labels(PEER6, tuple(range(0x1000, 0x1000 + BUCKETS)))
    with inside(lab.router):
        server = socket.create_server((PEER6, PORT), family=socket.AF_INET6)
        watch = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x86DD))
    seen: set[int] = set()
    with server, watch:
        for _ in range(60):
            with socket.create_connection((PEER6, PORT), source_address=(HOST6, 0)) as client:
                accepted, _ = server.accept()
                with accepted:
                    client.sendall(b"x")
                    assert accepted.recv(1) == b"x"
        watch.setblocking(False)
        seen = _data_labels(watch)
    assert seen <= set(range(0x1000, 0x1000 + BUCKETS)) and len(seen) > BUCKETS // 2
    edge.close()


def test_a_thousand_peers_are_refreshed_and_written_anew(lab: KernelLab, wire: Wire, sender: socket.socket) -> None:
    """More than fits into one netlink attribute, and into a socket's usual buffer."""
    edge = LabelEdge(probe_port=PROBE_PORT, protocols=("udp",))
    edge.open()
    for number in range(1000):
        edge.set_labels(f"fd00:ff::1:{number:x}", (0x1234,) * BUCKETS)
    edge.set_labels(PEER6, (0x4321,) * BUCKETS)
    edge.refresh()
    subprocess.run(["nft", "flush", "map", "ip6", "linkpass", "labels"], check=True)
    edge.refresh()
    send(sender, range(0x70001, 0x70005))
    assert set(wire.labels(count=4)) == {0x4321}
    edge.close()


def test_without_nft_the_error_says_what_to_install(lab: KernelLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *_arguments, **_more: None)
    with pytest.raises(NoNftError, match="nftables"):
        LabelEdge(probe_port=PROBE_PORT).open()


def test_other_tables_are_left_alone(lab: KernelLab) -> None:
    subprocess.run(["nft", "-f", "-"], input="table ip6 theirs {\n}\n", text=True, check=True)
    edge = LabelEdge(probe_port=PROBE_PORT)
    edge.open()
    edge.set_labels(PEER6, (1,) * BUCKETS)
    edge.close()
    assert ruleset().split() == ["table", "ip6", "theirs", "{", "}"]
