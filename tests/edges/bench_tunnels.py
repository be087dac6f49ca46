"""Figures of entropy tunnels between two namespaces with one wire (veth), run by hand:

    python tests/edges/bench_tunnels.py [RUNS]

One TCP connection at full speed, in and out of a tunnel in turn, with the devices' offloads and without, at two packet
sizes; what making tunnels, leading them to peers and dealing flows costs; a packet a tenth of a millisecond, and how
long after the order the first one is in another tunnel."""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from lab.netns import namespace, offload
from linkpass.edges.kernel.marks import MarkEdge
from linkpass.edges.kernel.tunnels import TunnelEdge, TunnelWay
from linkpass.wire.vxlan import End

NAMES = [f"tb-{os.getpid()}-{side}" for side in "ab"]
ADDRESS = ("10.252.0.1", "10.252.0.2")
LINK = ("10.252.1.0", "10.252.1.1")
END = End(3787, 0x4C50)
FIRST = 52000
RUN_S = 1.0


def ip(side: int, *lines: str) -> None:
    subprocess.run(["ip", "-n", NAMES[side], "-batch", "-"], input="\n".join(lines), text=True, check=True)


def build(link_bytes: int, packet_bytes: int) -> None:
    for name in NAMES:
        os.close(namespace.create(name))
    ip(0, "link add e type veth peer name e netns " + NAMES[1])
    for side in (0, 1):
        ip(
            side, "link set lo up", f"link set e mtu {link_bytes} up", f"addr add {ADDRESS[side]}/32 dev lo",
            f"addr add {LINK[side]}/31 dev e",
        )  # fmt: skip
    for side in (0, 1):
        ip(side, f"route add {ADDRESS[1 - side]}/32 via {LINK[1 - side]} src {ADDRESS[side]} mtu {packet_bytes}")


def edges(side: int, link_bytes: int, packet_bytes: int) -> tuple[TunnelEdge, MarkEdge, list[float]]:
    with namespace.inside(NAMES[side]):
        tunnels = TunnelEdge(ADDRESS[side], END, first_port=FIRST, per_uplink=8)
        marks = MarkEdge(probe_port=3785)
        begun = time.perf_counter()
        tunnels.open()
        opened = time.perf_counter()
        tunnels.set_ways({"e": TunnelWay(socket.if_nametoindex("e"), link_bytes, LINK[1 - side])}, packet_bytes)
        made = time.perf_counter()
        tunnels.set_peer(ADDRESS[1 - side], END)
        led = time.perf_counter()
        marks.open()
    return tunnels, marks, [opened - begun, made - opened, led - made]


def stream() -> tuple[Callable[[float], float], Callable[[], None]]:
    """A connection from side 0 to side 1; `measure(s)` gives bits/s that arrived."""
    with namespace.inside(NAMES[1]):
        server = socket.create_server((ADDRESS[1], 0))
    with namespace.inside(NAMES[0]):
        ours = socket.create_connection(server.getsockname(), 5, (ADDRESS[0], 0))
    theirs = server.accept()[0]
    got, over = [0], threading.Event()

    def read() -> None:
        buffer = bytearray(1 << 20)
        while size := theirs.recv_into(buffer):
            got[0] += size

    def write() -> None:
        data = bytes(1 << 20)
        while not over.is_set():
            ours.sendall(data)
        ours.shutdown(socket.SHUT_WR)

    threads = [threading.Thread(target=read), threading.Thread(target=write)]
    for thread in threads:
        thread.start()

    def measure(span_s: float) -> float:
        before, begun = got[0], time.perf_counter()
        time.sleep(span_s)
        return (got[0] - before) * 8 / (time.perf_counter() - begun)

    def end() -> None:
        over.set()
        for thread in threads:
            thread.join()
        for one in (ours, theirs, server):
            one.close()

    return measure, end


def throughput(link_bytes: int, packet_bytes: int, runs: int, *, offloads: bool) -> None:
    build(link_bytes, packet_bytes)
    try:
        made = [edges(side, link_bytes, packet_bytes) for side in (0, 1)]
        if not offloads:
            for name in NAMES:
                with namespace.inside(name):
                    offload.switch_off(device for _, device in socket.if_nameindex() if device != "lo")
        measure, end = stream()
        marks = made[0][1]
        rates: dict[str, list[float]] = {"out": [], "in": []}
        for run in range(2 * runs):
            way = ("out", "in")[run % 2]
            marks.set_labels(ADDRESS[1], (FIRST,) * 16 if way == "in" else ())
            time.sleep(0.1)
            rates[way].append(measure(RUN_S))
        end()
        pairs = [b / a for a, b in zip(rates["out"], rates["in"], strict=True)]
        print(
            f"packets of {packet_bytes}, offloads {'on' if offloads else 'off'}: "
            f"out {statistics.mean(rates['out']) / 1e9:.2f} Gbit/s, "
            f"in {statistics.mean(rates['in']) / 1e9:.2f} Gbit/s, ratio {statistics.mean(pairs):.3f}"
            f" +- {statistics.stdev(pairs):.3f} (n = {runs})"
        )
        for tunnels, marks, _ in made:
            marks.close()
            tunnels.sweep()
            tunnels.close()
    finally:
        for name in NAMES:
            namespace.remove(name)


def costs() -> None:
    build(1600, 1500)
    try:
        (tunnels, marks, took), _ = (edges(side, 1600, 1500) for side in (0, 1))
        print("open {:.1f} ms, 8 tunnels {:.1f} ms, one peer {:.2f} ms".format(*(1e3 * one for one in took)))
        begun = time.perf_counter()
        for number in range(1000):
            tunnels.set_peer(f"10.252.{2 + number // 250}.{number % 250}", END)
        print(f"1000 more peers: {1e3 * (time.perf_counter() - begun) / 1000:.2f} ms each")
        spans = []
        for number in range(2000):
            begun = time.perf_counter()
            marks.set_labels(ADDRESS[1], tuple(FIRST + (bucket + number) % 8 for bucket in range(16)))
            spans.append(1e6 * (time.perf_counter() - begun))
        spans.sort()
        print(f"16 buckets replaced: {spans[1000]:.0f} us p50, {spans[1980]:.0f} us p99")
        first_packets(marks)
    finally:
        for name in NAMES:
            namespace.remove(name)


def first_packets(marks: MarkEdge) -> None:
    """UDP would do as well, but TCP is what is marked: a writer that sends a byte each 0.1 ms."""
    with namespace.inside(NAMES[1]):
        seen = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0)
        seen.bind(("e", 0x0800))
    end = trickle()
    waits = []
    for number in range(500):
        port = FIRST + number % 8
        begun = time.perf_counter()
        marks.set_labels(ADDRESS[1], (port,) * 16)
        while True:
            data, where = seen.recvfrom(64)
            if where[2] != 4 and data[9] == 17 and int.from_bytes(data[20:22], "big") == port:
                break
        waits.append(1e3 * (time.perf_counter() - begun))
    end()
    waits.sort()
    print(f"order to first packet in the new tunnel: {waits[250]:.2f} ms p50, {waits[495]:.2f} ms p99")


def trickle() -> Callable[[], None]:
    """A connection with a byte each 0.1 ms; what ends it."""
    with namespace.inside(NAMES[1]):
        server = socket.create_server((ADDRESS[1], 0))
    with namespace.inside(NAMES[0]):
        ours = socket.create_connection(server.getsockname(), 5, (ADDRESS[0], 0))
    theirs = server.accept()[0]
    ours.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    over = threading.Event()

    def write() -> None:
        while not over.is_set():
            ours.send(b"x")
            time.sleep(0.0001)

    def read() -> None:
        while theirs.recv(1 << 16):
            pass

    threads = [threading.Thread(target=write), threading.Thread(target=read)]
    for thread in threads:
        thread.start()

    def end() -> None:
        over.set()
        threads[0].join()
        ours.shutdown(socket.SHUT_WR)
        threads[1].join()
        for one in (ours, theirs, server):
            one.close()

    return end


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    costs()
    for sizes in ((1600, 1500), (9050, 9000)):
        for on in (True, False):
            throughput(*sizes, count, offloads=on)
