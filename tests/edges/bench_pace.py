"""What looking at the job's sockets costs: `python tests/edges/bench_pace.py [SOCKETS] [SECONDS]`.

A host with so many connections that all carry data in steps; processor time of the looks by the thread's own clock, at
the shipped settings (1 % of a core) and without a limit."""

from __future__ import annotations

import asyncio
import sys
from contextlib import ExitStack, closing

from two_uplinks import OTHER6, OWN6, PEER6, PREFIX6, TwoUplinks

from linkpass.core.settings import Stragglers
from linkpass.edges.pace import PaceEdge
from linkpass.edges.sockets import SocketEdge


async def measure(two: TwoUplinks, count: int, seconds: float, settings: Stragglers) -> dict[str, float]:
    with ExitStack() as stack:
        servers = [stack.enter_context(two.server(peer)) for peer in (PEER6, OTHER6)]
        ours = [stack.enter_context(two.connect(servers[n % 2])) for n in range(count)]
        theirs = [stack.enter_context(servers[n % 2].accept()[0]) for n in range(count)]
        table = stack.enter_context(closing(SocketEdge(lambda _: None, [PREFIX6], OWN6, lambda *_: None)))
        edge = stack.enter_context(closing(PaceEdge(settings, lambda _: None, lambda *_: 0)))
        with two.on_host():
            table.open()
            edge.open()
        loop = asyncio.get_running_loop()
        for _ in range(2):
            table.poll(0.0)
            edge.follow(table.connections())
            for sock in (*ours, *theirs):
                sock.sendall(b"x" * 100)
        table.poll(0.0)
        edge.follow(table.connections())
        await asyncio.sleep(1.0)
        begun_s, cpu_s, looks = loop.time(), edge.cpu_s, edge.looks
        while loop.time() < begun_s + seconds:
            for sock in (*ours, *theirs):
                sock.sendall(b"x" * 100)
                sock.recv(1 << 16)
            await asyncio.sleep(0.1)
        span_s = loop.time() - begun_s
        spent_s, done = edge.cpu_s - cpu_s, edge.looks - looks
        return {
            "connections": edge.view()["connections"], "cpu_ratio": spent_s / span_s, "looks_per_s": done / span_s,
            "look_us": 1e6 * spent_s / max(1, done), "interval_ms": edge.interval_s * 1e3,
        }  # fmt: skip


def main() -> None:
    counts = [int(sys.argv[1])] if len(sys.argv) > 1 else [2, 8, 64]
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 5.0
    two = TwoUplinks("b")
    two.down()
    try:
        two.up()
        for count in counts:
            for name, ratio in (("shipped", 0.01), ("unlimited", 1.0)):
                row = asyncio.run(measure(two, count, seconds, Stragglers(enabled=True, cpu_ratio=ratio)))
                print(f"{count:4} sockets {name:10}", {key: round(value, 5) for key, value in row.items()}, flush=True)
    finally:
        two.down()


if __name__ == "__main__":
    main()
