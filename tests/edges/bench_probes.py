"""What probing costs, measured in the small fabric: `python tests/edges/bench_probes.py [ROUNDS]`.

Throughput: a bulk TCP flow h1 -> h2, with the receive rings of both hosts hooked in and not, in turns of a quarter of a
second, and in the same way with and without probes at the shipped rate. What else the machine does falls on both
alike; the median of the ratios of neighbouring turns is printed, with its standard error. On two cores the probes'
own processor time (both hosts', and the switches') is taken from the flow's. CPU: processor time per host.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import resource
import socket
import statistics
import sys
import time
from collections.abc import Callable
from multiprocessing.synchronize import Event

import probe_lab as lab

from linkpass.core.commands import ProbeTarget, SetProbes
from linkpass.core.settings import CoreSettings
from linkpass.edges.probes import ProbeEdge
from linkpass.edges.probes.ports import Ring
from linkpass.wire import bpf, frame

TURN_S = 0.25
UNUSED_ETHERTYPE = 0x88B5


def sink(port: int, ready: Event) -> None:
    with lab.inside("h2"):
        listener = socket.create_server((lab.HOSTS["h2"], port), family=socket.AF_INET6)
    ready.set()
    connection, _ = listener.accept()
    buffer = bytearray(1 << 18)
    while connection.recv_into(buffer):
        pass


def edges(fabric: lab.Fabric, paths: int) -> tuple[ProbeEdge, ProbeEdge]:
    made = []
    for name in ("h1", "h2"):
        edge = ProbeEdge(CoreSettings(host=name, address=lab.HOSTS[name]), b"bench", lambda event: None)
        edge.open()
        with lab.inside(name):
            for uplink in ("eth1", "eth2"):
                at = (name, uplink)
                edge.set_uplink(uplink, fabric.ifindex[at], fabric.mac[at], fabric.gateway_mac(*at))
        made.append(edge)
    plan((made[0], made[1]), paths)
    return made[0], made[1]


def plan(pair: tuple[ProbeEdge, ProbeEdge], paths: int) -> None:
    for edge, peer in zip(pair, ("h2", "h1"), strict=True):
        targets = [ProbeTarget(lab.HOSTS[peer], f"eth{1 + n % 2}", n // 2, 0.01) for n in range(paths)]
        edge.set_probes(SetProbes(cmd_id=1, cause="bench", targets=tuple(targets)))


def prober(fabric: lab.Fabric, go: Event, stop: Event) -> None:
    """Both hosts' daemons; they probe while `go` is set."""

    async def run() -> None:
        pair = edges(fabric, 0)
        probing = False
        while not stop.is_set():
            await asyncio.sleep(0.005)
            if go.is_set() != probing:
                probing = not probing
                plan(pair, 18 if probing else 0)
        for edge in pair:
            edge.close()

    asyncio.run(run())


def rings() -> list[Ring]:
    """What an idle daemon hooks into the receive path of both hosts."""
    made = []
    for name in ("h1", "h2"):
        with lab.inside(name):
            for uplink in ("eth1", "eth2"):
                made.append(Ring(uplink, bpf.probes(16, frame.TCP, 3785), frame.ETH_P_IPV6, 64))
    return made


def per_packet(fabric: lab.Fabric, rounds: int, hook: Callable[[bool], None]) -> None:
    """Processor time of a packet that the host receives, with the rings hooked in and not: less noisy than a rate.

    The packets are the job's size and protocol and die at the host's stack; two hops of veth are in it."""
    with lab.inside("h1"):
        out = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        out.bind(("eth2", 0))
    ends = [socket.inet_pton(socket.AF_INET6, lab.HOSTS[name]) for name in ("h1", "h2")]
    macs = fabric.mac["h1", "eth2"], fabric.gateway_mac("h1", "eth2")
    data = frame.Template(frame.Headers(*macs, *ends, frame.TCP, 40000, 9)).frame(bytes(1400))
    used: dict[bool, list[float]] = {True: [], False: []}
    for number in range(4 * rounds):
        hook(on := bool(number % 2))
        begun_ns = time.thread_time_ns()
        for _ in range(2000):
            out.send(data)
        used[on].append((time.thread_time_ns() - begun_ns) / 2000)
    out.close()
    off, on_ns = (statistics.quantiles(used[on], n=10)[0] for on in (False, True))  # the least disturbed turns
    more = on_ns - off
    print(
        f"a received packet: {off:.0f} ns of two hops and the stack, {more:+.0f} ns with the ring ({more / off:+.1%})"
    )


def throughput(fabric: lab.Fabric, rounds: int) -> None:
    ready, go, stop = (multiprocessing.Event() for _ in range(3))
    receiver = multiprocessing.Process(target=sink, args=(7001, ready))
    receiver.start()
    ready.wait()
    with lab.inside("h1"):
        sender = socket.create_connection((lab.HOSTS["h2"], 7001), source_address=(lab.HOSTS["h1"], 0))
    data = bytes(1 << 18)

    def turn() -> float:
        begun_s, sent = time.monotonic(), 0
        while time.monotonic() - begun_s < TURN_S:
            sent += sender.send(data)
        return sent / (time.monotonic() - begun_s)

    def compare(what: str, switch: Callable[[bool], None]) -> None:
        ratios = []
        for number in range(rounds):
            rates = {}
            for on in (False, True) if number % 2 else (True, False):
                switch(on)
                time.sleep(0.02)
                rates[on] = turn()
            ratios.append(rates[True] / rates[False])
        error = 1.25 * statistics.stdev(ratios) / rounds**0.5
        print(f"throughput with {what}: {statistics.median(ratios):.3f} +- {error:.3f} of that without (n={rounds})")

    hooked = rings()

    def hook(on: bool) -> None:
        for ring in hooked:
            ring.socket.bind((ring.name, frame.ETH_P_IPV6 if on else UNUSED_ETHERTYPE))

    turn()
    compare("the receive rings alone", hook)
    per_packet(fabric, rounds, hook)
    for ring in hooked:
        ring.close()
    worker = multiprocessing.Process(target=prober, args=(fabric, go, stop))
    worker.start()
    compare("1,800 probes/s each way", lambda on: go.set() if on else go.clear())
    stop.set()
    worker.join()
    sender.close()
    receiver.join()


async def processor(fabric: lab.Fabric) -> None:
    for paths in (2, 18):
        one, two = edges(fabric, paths)
        await asyncio.sleep(1.0)
        used, begun_s, sent = resource.getrusage(resource.RUSAGE_SELF), time.monotonic(), one.stats.sent
        await asyncio.sleep(5.0)
        now, took_s = resource.getrusage(resource.RUSAGE_SELF), time.monotonic() - begun_s
        cpu = (now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime) / took_s / 2
        print(f"{(one.stats.sent - sent) / took_s:.0f} probes/s each way: {cpu:.1%} of a core per host")
        one.close()
        two.close()


def main() -> None:
    fabric = lab.Fabric()
    fabric.up()
    try:
        print(f"kernel {os.uname().release}, {os.cpu_count()} cores")
        asyncio.run(processor(fabric))
        throughput(fabric, int(sys.argv[1]) if len(sys.argv) > 1 else 40)
    finally:
        fabric.down()


if __name__ == "__main__":
    main()
