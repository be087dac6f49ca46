"""What a trace takes, in the small fabric of real switches: `python tests/edges/bench_traces.py [ROUNDS]`.

Three ways to put 64 labels x 4 hop limits (256 packets, 192 answers): the edge's own (frames on a packet socket,
answers on a raw ICMP socket), a UDP socket with IPV6_RECVERR (labels and hop limits per packet), and for IPv4, where
the entropy is the source port, a socket for each of 64 ports with IP_RECVERR. Then whole traces of the edge: as a burst
and at the steady rate. Times are least / median / most.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import selectors
import socket
import statistics
import struct
import sys
import time
from collections.abc import Awaitable

import probe_lab as lab

from linkpass.core.commands import TraceLabels
from linkpass.core.events import Event, LabelsTraced
from linkpass.core.settings import CoreSettings, Tracing
from linkpass.edges.traces import TraceEdge
from linkpass.edges.traces.asking import Asker
from linkpass.edges.traces.sending import Question
from linkpass.wire.frame import TCP

LABELS = tuple(range(1, 65))
HOPS = (1, 2, 3, 4)
ANSWERS = len(LABELS) * 3
TIME_EXCEEDED = (3, 11)
FAST = Tracing(burst_packets=4096, burst_packets_per_s=1_000_000)
IPV6_RECVERR, IP_RECVERR, FLOWINFO_SEND, HOPLIMIT, ERRQUEUE = 25, 11, 33, 52, socket.MSG_ERRQUEUE


Times = tuple[list[float], list[int]]
"""Seconds, and answers, of each round."""


def told(what: str, times: Times, used_s: float) -> None:
    took_s, answers = times
    spread = " / ".join(f"{1e3 * one:.1f}" for one in (min(took_s), statistics.median(took_s), max(took_s)))
    print(
        f"{what}: {spread} ms, {statistics.median(answers):.0f} answers, {used_s / len(took_s) * 1e3:.1f} ms processor"
    )


async def own(fabric: lab.Fabric, rounds: int, tracing: Tracing) -> Times:
    """The edge's questions and answers alone, without what it makes of them."""
    source, peer = (ipaddress.ip_address(lab.HOSTS[name]).packed for name in ("h1", "h2"))
    times_s, answers = [], []
    asker = Asker(source, TCP, 0, tracing, time.monotonic)
    with lab.inside("h1"):
        asker.open()
        at = ("h1", "eth1")
        asker.sender.set_uplink("eth1", fabric.ifindex[at], fabric.mac[at], fabric.gateway_mac(*at))
    questions = [Question("eth1", label, hop, 3785, 3785) for label in LABELS for hop in HOPS]
    needed = [question for question in questions if question.hop < 4]
    for _ in range(rounds):
        await asyncio.sleep(0.3)  # the bucket fills again
        begun_s = time.monotonic()
        with asker.batch(peer) as batch:
            await asker.put(batch, needed, [question for question in questions if question.hop == 4], urgent=True)
        times_s.append(time.monotonic() - begun_s)
        answers.append(len(batch.answers))
    asker.close()
    return times_s, answers


def recverr6(rounds: int) -> Times:
    """One UDP socket: each packet has its label and hop limit, each error the offender."""
    times_s, found = [], []
    for _ in range(rounds):
        with lab.inside("h1"):
            out = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        with out:
            out.setblocking(False)
            out.bind((lab.HOSTS["h1"], 0))
            out.setsockopt(socket.IPPROTO_IPV6, FLOWINFO_SEND, 1)
            out.setsockopt(socket.IPPROTO_IPV6, IPV6_RECVERR, 1)
            out.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
            out.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"eth1\0")
            begun_s = time.monotonic()
            for label in LABELS:
                for hop in HOPS:
                    limit = (socket.IPPROTO_IPV6, HOPLIMIT, struct.pack("=i", hop))
                    send(out, label, hop, limit, (lab.HOSTS["h2"], 3785, label, 0))
            answers, last_s = drain({out: 0}, begun_s)
        times_s.append(last_s)
        found.append(answers)
    return times_s, found


def recverr4(rounds: int) -> Times:
    """A UDP socket for each source port, as IPv4's entropy asks for."""
    times_s, found = [], []
    for _ in range(rounds):
        begun_s = time.monotonic()
        socks = {}
        with lab.inside("h1"):
            for label in LABELS:
                out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
                out.setblocking(False)
                out.bind((lab.HOSTS4["h1"], 40000 + label))
                out.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 1)
                out.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"eth1\0")
                socks[out] = label
        for out, label in socks.items():
            for hop in HOPS:
                limit = (socket.IPPROTO_IP, socket.IP_TTL, struct.pack("=i", hop))
                send(out, label, hop, limit, (lab.HOSTS4["h2"], 3785))
        answers, last_s = drain(socks, begun_s)
        for out in socks:
            out.close()
        times_s.append(last_s)
        found.append(answers)
    return times_s, found


def send(out: socket.socket, label: int, hop: int, limit: tuple[int, int, bytes], place: tuple[object, ...]) -> None:
    """An error that has come meanwhile is told by the next send: put once more."""
    for _ in range(8):
        try:
            out.sendmsg([struct.pack("!II", label, hop)], [limit], 0, place)
            return
        except OSError:
            continue


def drain(socks: dict[socket.socket, int], begun_s: float) -> tuple[int, float]:
    """Errors until nothing comes for 50 ms: how many, and when the last came."""
    answers, last_s = 0, 0.0
    with selectors.DefaultSelector() as waiting:
        for sock in socks:
            waiting.register(sock, selectors.EVENT_READ)
        while answers < ANSWERS and waiting.select(0.05):
            for sock in socks:
                while True:
                    try:
                        _, errors, _, _ = sock.recvmsg(512, 512, ERRQUEUE)
                    except OSError:
                        break
                    if any(data[5] in TIME_EXCEEDED for _, _, data in errors):  # struct sock_extended_err: ee_type
                        answers += 1
                        last_s = time.monotonic() - begun_s
    return answers, last_s


async def traces(fabric: lab.Fabric, rounds: int, tracing: Tracing, *, urgent: bool, again: bool = False) -> Times:
    """Whole traces by a fresh edge: hops counted (not `again`), questions put, some of them twice, notes made."""
    times_s, sent = [], []
    for _ in range(rounds):
        events: list[Event] = []
        edge = TraceEdge(CoreSettings(host="h1", address=lab.HOSTS["h1"], tracing=tracing), events.append, {})
        with lab.inside("h1"):
            edge.open()
            at = ("h1", "eth1")
            edge.set_uplink("eth1", fabric.ifindex[at], fabric.mac[at], fabric.gateway_mac(*at))
        command = TraceLabels(cmd_id=1, cause="", peer=lab.HOSTS["h2"], uplink="eth1", labels=LABELS, urgent=urgent)
        if again:
            await edge.trace(command)
            await asyncio.sleep(0.3)
        begun_s, before = time.monotonic(), edge.answered
        await edge.trace(command)
        times_s.append(time.monotonic() - begun_s)
        sent.append(edge.answered - before)
        edge.close()
        assert isinstance(events[0], LabelsTraced)
    return times_s, sent


async def measure(fabric: lab.Fabric, rounds: int) -> None:
    async def row(what: str, work: Awaitable[Times]) -> None:
        begun_s = time.process_time()
        times = await work
        told(what, times, time.process_time() - begun_s)

    print(
        f"kernel {os.uname().release}, {os.cpu_count()} cores; 64 labels x 4 hop limits, {ANSWERS} answers at most; "
        f"n={rounds}"
    )
    await row("packet socket and raw ICMP, without a pause", own(fabric, rounds, FAST))
    await row("packet socket and raw ICMP, 20,000 packets/s", own(fabric, rounds, Tracing()))
    for what, way in (("IPV6_RECVERR, one UDP socket", recverr6), ("IP_RECVERR, 64 UDP sockets", recverr4)):
        begun_s = time.process_time()
        times = way(rounds)
        told(what, times, time.process_time() - begun_s)
    await row("a whole trace as a burst without a pause", traces(fabric, rounds, FAST, urgent=True))
    await row("a whole trace as a burst, as shipped", traces(fabric, rounds, Tracing(), urgent=True))
    await row("the same again, as after a failure", traces(fabric, rounds, Tracing(), urgent=True, again=True))
    await row("a whole trace at the steady rate", traces(fabric, rounds, Tracing(), urgent=False))


def main() -> None:
    fabric = lab.Fabric()
    fabric.up()
    try:
        asyncio.run(measure(fabric, int(sys.argv[1]) if len(sys.argv) > 1 else 30))
    finally:
        fabric.down()


if __name__ == "__main__":
    main()
