"""Rung 1 on the wire beside rung 2, while it is refreshed, flushed by others, killed, or cannot be had."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest
from two_uplinks import OTHER6, OWN6, PEER6, PREFIX6, UPLINKS, TwoUplinks

from linkpass.edges.kernel.labels import BUCKETS, LabelEdge
from linkpass.edges.kernel.nft import NoNftError
from linkpass.edges.kernel.routes import ALL, RouteEdge, Way

pytestmark = pytest.mark.netns
PROBE_PORT = 3785
DATA_PORT = 7000
SOL_PACKET, PACKET_STATISTICS = 263, 6


class Wire:
    """Flow labels of the TCP and UDP packets that arrive at the peers, in the order of their arrival."""

    def __init__(self, two: TwoUplinks) -> None:
        self._two = two
        self.seen: list[tuple[str, int, int, int]] = []
        """(device, destination port, flow label, first 32 bits' traffic class)"""
        with two.on_far():
            self._sock = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x86DD))
        self._sock.setsockopt(socket.SOL_SOCKET, 33, 32 << 20)
        self._sock.settimeout(5)

    def close(self) -> None:
        self._sock.close()

    def _take(self) -> tuple[str, int, int, int] | None:
        data, where = self._sock.recvfrom(64)
        if len(data) < 44 or data[6] not in (6, 17) or where[2] == 4 or not where[0].startswith("p"):
            return None
        word = int.from_bytes(data[:4], "big")
        return where[0], int.from_bytes(data[42:44], "big"), word & 0xFFFFF, word >> 20 & 0xFF

    def drain(self) -> list[tuple[str, int, int, int]]:
        """All that has arrived by now."""
        self._sock.settimeout(0)
        found = []
        try:
            while True:
                packet = self._take()
                if packet is not None:
                    found.append(packet)
        except BlockingIOError:
            return found
        finally:
            self._sock.settimeout(5)

    def labels(self, port: int) -> list[int]:
        return [label for _, to, label, _ in self.drain() if to == port]

    def arrived(self, port: int) -> list[tuple[str, int, int, int]]:
        """What is sent to a port, once something has come: a busy kernel hands it over a moment later."""
        end = time.monotonic() + 30
        while not (found := [one for one in self.drain() if one[1] == port]):
            assert time.monotonic() < end, f"nothing came to port {port}"
            time.sleep(0.002)
        return found


class Bench:
    def __init__(self, two: TwoUplinks, stack: ExitStack) -> None:
        self.two, self._stack = two, stack
        self.wire = Wire(two)
        stack.callback(self.wire.close)
        with two.on_host():
            self.udp = stack.enter_context(socket.socket(socket.AF_INET6, socket.SOCK_DGRAM))
        self.udp.bind((OWN6, 0))
        self.udp.setsockopt(socket.IPPROTO_IPV6, 33, 1)  # IPV6_FLOWINFO_SEND: the label comes with the address

    def edge(self, timeout_s: float = 60, protocols: tuple[str, ...] = ("tcp", "udp")) -> LabelEdge:
        """By default UDP is steered as well, because its labels can be chosen packet by packet."""
        made = LabelEdge(probe_port=PROBE_PORT, protocols=protocols, timeout_s=timeout_s)
        with self.two.on_host():
            made.open()
        self._stack.callback(made.close)
        return made

    def send(self, label: int, peer: str = PEER6, port: int = DATA_PORT) -> None:
        self.udp.sendto(b"x", (peer, port, label, 0))

    def sent(self, label: int, peer: str = PEER6, port: int = DATA_PORT) -> int:
        """The label on the wire of a packet whose own label is `label`."""
        self.wire.drain()
        self.send(label, peer, port)
        ((_, _, seen, _),) = self.wire.arrived(port)
        return seen

    def nft(self, *words: str) -> str:
        with self.two.on_host():
            return subprocess.run(["nft", *words], check=True, capture_output=True, text=True).stdout


@pytest.fixture
def bench(two: TwoUplinks) -> Iterator[Bench]:
    with ExitStack() as stack:
        yield Bench(two, stack)


OURS = tuple(range(0x1001, 0x1001 + BUCKETS))
OTHERS = tuple(range(0x2001, 0x2001 + BUCKETS))


def test_every_bucket_s_label_is_on_the_wire_and_nothing_else_is_changed(bench: Bench) -> None:
    edge = bench.edge()
    edge.set_labels(PEER6, OURS)
    seen = Counter(bench.sent(label) for label in range(0xF0001, 0xF0001 + 300))
    assert set(seen) == set(OURS)  # 16 bits; the four above them are 0
    assert max(seen.values()) < 300 / BUCKETS * 3  # and spread
    assert bench.sent(0xF0005) == bench.sent(0xF0005)  # a flow stays in its bucket
    bench.udp.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, 0xB8)
    bench.send(0xF0001)
    ((_, _, label, traffic_class),) = bench.wire.arrived(DATA_PORT)
    assert label in OURS and traffic_class == 0xB8


@contextmanager
def traffic(bench: Bench) -> Iterator[Callable[[], Counter[int]]]:
    """Packets of 200 flows without a pause; the call ends them and counts the labels seen."""
    over = threading.Event()
    seen: Counter[int] = Counter()

    def send() -> None:
        number = 0
        while not over.is_set():
            bench.send(0xF0001 + number % 200)
            number += 1

    def watch() -> None:
        while not over.is_set():
            seen.update(bench.wire.labels(DATA_PORT))

    threads = [threading.Thread(target=send), threading.Thread(target=watch)]

    def end() -> Counter[int]:
        over.set()
        for thread in threads:
            thread.join()
        seen.update(bench.wire.labels(DATA_PORT))
        return seen

    for thread in threads:
        thread.start()
    try:
        yield end
    finally:
        end()


def test_refreshing_leaves_no_gap(bench: Bench) -> None:
    edge = bench.edge()
    edge.set_labels(PEER6, OURS)
    for number in range(3, 20):
        edge.set_labels(f"fd02:ff::{number:x}", OTHERS)
    with traffic(bench) as end:
        for _ in range(150):
            edge.refresh()
        seen = end()
    assert sum(seen.values()) > 300 and set(seen) <= set(OURS)


@pytest.mark.parametrize("what", ["refresh", "replace"])
def test_a_flushed_map_is_written_anew(bench: Bench, what: str) -> None:
    edge = bench.edge()
    edge.set_labels(PEER6, OURS)
    edge.set_labels(OTHER6, OTHERS)
    bench.nft("flush", "map", "ip6", "linkpass", "labels")
    if what == "refresh":
        edge.refresh()
        assert bench.sent(0xABCDE) in OURS
    else:
        edge.set_labels(PEER6, OTHERS)
        assert bench.sent(0xABCDE) in OTHERS
    assert bench.sent(0xABCDE, OTHER6) in OTHERS


def test_a_killed_daemon_s_table_is_replaced_by_the_next_and_swept_by_cleanup(bench: Bench) -> None:
    code = f"""
import os, signal
from linkpass.edges.kernel.labels import LabelEdge
edge = LabelEdge(probe_port={PROBE_PORT}, protocols=("tcp", "udp"))
edge.open()
edge.set_labels({PEER6!r}, {OURS!r})
os.kill(os.getpid(), signal.SIGKILL)
"""
    for end in ("next", "cleanup"):
        with bench.two.on_host():
            assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
        assert bench.sent(0xABCDE) in OURS  # a crash leaves traffic flowing as it was
        if end == "next":
            edge = bench.edge()
            assert bench.sent(0xABCDE) == 0xABCDE
            edge.set_labels(PEER6, OTHERS)
            assert bench.sent(0xABCDE) in OTHERS
            edge.close()
        else:
            with bench.two.on_host():
                cleaner = LabelEdge(probe_port=PROBE_PORT)
                assert cleaner.sweep() == ["nftables table ip6 linkpass"]
                assert cleaner.sweep() == []
    assert bench.nft("list", "ruleset") == ""


def test_the_label_chooses_the_uplink_that_the_kernel_names(bench: Bench) -> None:
    """Rungs 1 and 2 together: the second lookup after the rewrite takes the uplink that `uplink_of` has foretold."""
    two = bench.two
    links = {link["ifname"]: link["ifindex"] for link in json.loads(two.show(two.host, "-j", "link"))}
    routes = RouteEdge((PREFIX6,), metric=76)
    with two.on_host():
        routes.open()
    routes.set_ways({name: Way(links[name], gateway6=f"fd02:1:{n}::b") for n, name in enumerate(UPLINKS, 1)})
    routes.set_group(ALL, UPLINKS)
    foretold = routes.uplink_of(PEER6, OWN6, range(1, 41))
    assert set(foretold.values()) == set(UPLINKS)
    edge = bench.edge(protocols=("tcp",))
    with two.server() as server, two.connect(server) as ours, server.accept()[0] as theirs:
        port = server.getsockname()[1]
        for label, uplink in foretold.items():
            edge.set_labels(PEER6, (label,) * BUCKETS)
            bench.wire.drain()
            ours.sendall(b"x")
            assert theirs.recv(1) == b"x"
            seen = {(device, on_wire) for device, to, on_wire, _ in bench.wire.drain() if to == port}
            assert seen == {(f"p{UPLINKS.index(uplink) + 1}", label)}
    routes.close()


def test_without_nft_rung_1_is_off_and_says_what_to_install(bench: Bench, tmp_path: object) -> None:
    hide = " && ".join(f"mount --bind {tmp_path} {folder}" for folder in ("/usr/sbin",))
    code = """
from linkpass.edges.kernel.labels import LabelEdge
from linkpass.edges.kernel.nft import NoNftError
try:
    LabelEdge(probe_port=3785).open()
except NoNftError as error:
    print("off:", error)
"""
    with bench.two.on_host():
        done = subprocess.run(
            ["unshare", "-m", "sh", "-c", f'{hide} && exec "$0" -c "$1"', sys.executable, code],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert done.stdout == "off: rung 1 needs the program nft: install the package nftables\n", done.stderr


def test_without_the_right_it_is_a_typed_error(bench: Bench) -> None:
    code = """
import os
from linkpass.edges.kernel.labels import LabelEdge
from linkpass.edges.kernel.nft import NoNftError
os.setgid(65534); os.setuid(65534)
try:
    LabelEdge(probe_port=3785).open()
except NoNftError as error:
    print("off:", error)
"""
    with bench.two.on_host():
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("off:") and "not permitted" in done.stdout, done.stderr
    assert issubclass(NoNftError, RuntimeError) and os.geteuid() == 0
    assert bench.nft("list", "ruleset") == ""
