"""A desk for tests of the control socket and the command line: a view in the daemon's shape, a real journal, and what
was asked of it. The socket, the HTTP and the journal's files are real; only the daemon behind them is not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from linkpass.core.commands import Record
from linkpass.core.events import DrainRequested, Event
from linkpass.edges.control import ControlEdge, RefusedError
from linkpass.edges.journal import Entry, JournalEdge
from linkpass.edges.metrics import exposition

PEERS = ("fd00:ff::2", "fd00:ff::3")


def path_row(
    peer: str, uplink: str, label: int, evidence: str, hops: Sequence[str | None], **more: Any
) -> dict[str, Any]:
    row = {"peer": peer, "uplink": uplink, "label": label, "hops": list(hops), "evidence": evidence, "loss_ratio": 0.0}
    return {**row, "rtt_s": 0.0002, "age_s": 0.01, "in_use": True, **more}


def sample_view() -> dict[str, Any]:
    """Everything a view can hold, with good, bad and unknown in each place."""
    return {
        "host": "host1",
        "address": "fd00:ff::1",
        "mode": "act",
        "version": "0.1.0",
        "started_s": 100.0,
        "uptime_s": 3725.0,
        "rungs": {"1": {"armed": True, "why": "labels steer"}, "2": {"armed": False, "why": "no next-hop objects"}},
        "uplinks": [
            {
                "name": "eth1", "usable": True, "state": "up", "why": "", "speed_bps": 10_000_000_000, "penalty": 0.0,
                "suppressed_until_s": None, "overrun": "",
            },
            {
                "name": "eth2", "usable": False, "state": "held", "why": "no carrier", "speed_bps": 0,
                "penalty": 1720.5, "suppressed_until_s": 3900.0, "overrun": "12 MB dropped in a second",
            },
        ],
        "peers": [
            {
                "address": PEERS[0], "name": "host2", "active": True, "evidence": {"good": 6, "blackhole": 2},
                "silent": False, "stale_s": 0.01, "labels": [0x2345] * 16, "slow": "it lets probes wait 45 ms",
                "steerable": {"rung1": True, "rung2": False, "why": "no next-hop objects"},
            },
            {
                "address": PEERS[1], "name": "", "active": False, "evidence": {}, "silent": True, "stale_s": None,
                "silence": "given up", "said": "kernel log: hard lockup",
                "labels": [], "steerable": {"rung1": False, "rung2": False, "why": "silent"},
            },
        ],
        "links": [
            {"id": "host1>leaf1", "state": "up", "why": "", "penalty": 0.0, "drained": False, "moved_at_s": None},
            {
                "id": "leaf1>spine1", "state": "down", "why": "blackhole on 2 of 2 paths [eth1]", "penalty": 1000.0,
                "drained": False, "moved_at_s": 3700.0, "cause": "host1-1",
            },
            {
                "id": "leaf1>spine2", "state": "up", "why": "asked for", "penalty": 0.0, "drained": True,
                "moved_at_s": None,
            },
        ],
        "paths": [
            path_row(PEERS[0], "eth1", 0x2345, "good", ["leaf1", "spine2", "leaf3"]),
            path_row(PEERS[0], "eth1", 0x1111, "blackhole", ["leaf1", "spine1", "leaf3"], in_use=False, loss_ratio=1.0),
            path_row(PEERS[1], "eth2", 0x9, "unknown", ["leaf2", None], rtt_s=0.0, in_use=False, age_s=None),
        ],
        "netns": [
            {
                "name": "", "inode": 4026531840, "connections": 3, "pids": [1, 2, 3, 4, 5, 6, 7, 8], "steerable": True,
                "why": "",
            },
            {
                "name": "pod1", "inode": 4026532000, "connections": 1, "pids": [99], "steerable": False,
                "why": "not in netns",
            },
        ],
        "probes": {
            "sent": 1000, "heard": 990, "refused": {"bad_mac": 3, "truncated": 1, "replayed": 0},
            "budget_packets_per_s": 2000, "lost": 12, "late": 1, "unsent": 4, "daemon_late": 2, "overflows": 0,
            "stretch": 1.2,
        },
        "steering": [
            {
                "object": "group all", "desired": ["eth1"], "programmed": ["eth1", "eth2"], "tries": 3,
                "stood_down": True, "why": "systemd-networkd removed it",
            },
            {
                "object": f"labels {PEERS[0]}", "desired": [0x2345] * 16, "programmed": [0x2345] * 16, "tries": 0,
                "stood_down": False, "why": "",
            },
        ],
        "host_evidence": [
            {
                "source": "kernel log", "accelerator": "0000:3b:00.0", "what": "Xid 79", "severity": "fatal",
                "why": "the GPU has fallen off the bus", "since_s": 3600.0, "cause": "host1-2", "handed_over": True,
            },
            {
                "source": "kernel log", "accelerator": "", "what": "Xid 13", "severity": "info", "why": "a program",
                "since_s": 3600.0, "cause": "host1-3", "handed_over": False,
            },
        ],
        "host_sources": [
            {
                "source": "kernel log", "state": "read", "why": "", "age_s": None,
                "figures": [{"part": "", "name": "records", "value": 12}],
            },
            {
                "source": "sensors", "state": "read", "why": "no EDAC driver is loaded", "age_s": 2.0,
                "figures": [{"part": "acpitz (thermal_zone0)", "name": "temperature_c", "value": 41.5}],
            },
            {"source": "nvml", "state": "absent", "why": "NVML is not installed", "age_s": None, "figures": []},
            {"source": "dcgm", "state": "off", "why": "health.dcgm is empty", "age_s": None, "figures": []},
        ],
        "traces": [
            {
                "uplink": "eth1", "kind": "limited", "hop": 2, "nodes": ["spine1"], "peers": 2, "since_s": 3600.0,
                "what": "answers to traces are limited at hop 2 over eth1", "why": "spine1 gives 6 answers at once",
            },
        ],
        "notes": ["probes to fd00:ff::3 are filtered: nft add rule inet filter input tcp dport 3785 accept"],
        "verdicts": ["link leaf1>spine1"],
        "stragglers": [
            {
                "host": PEERS[0], "name": "host2", "cause": "compute", "rank": 4, "lag_s": 0.05, "period_s": 0.2,
                "ago_s": 3.0, "why": "its own host saw others open 50 of 200 ms before it", "story": "host1-2",
            },
        ],
        "pace": {
            "connections": 2, "interval_s": 0.01, "looks": 900, "cpu_s": 0.05, "steps": 70, "period_s": 0.2,
            "claims": [], "error": "",
        },
        "first_verdict_s": 0.4,
        "moves": 4,
        "cpu_s": 12.5,
        "rss_bytes": 50_000_000,
    }  # fmt: skip


def record(cause: str, what: str, why: str = "because", element: str = "", **more: Any) -> Record:
    return Record(cmd_id=1, cause=cause, what=what, why=why, element=element, **more)


class Desk:
    """The faces of a daemon that has seen one incident."""

    def __init__(self, folder: Path) -> None:
        self.now = sample_view()
        self.submitted: list[Event] = []
        self.came: list[tuple[int, int]] = []
        self.book = JournalEdge(folder)
        self.more_links: tuple[str, ...] = ()
        self.broken = False

    def open(self) -> None:
        self.book.open()
        wall = "2026-01-01T00:00:00.000Z"
        self.book.write(
            record("host1-1", "leaf1>spine1 is down", "blackhole", "leaf1>spine1", level="warning"), 5.0, wall
        )
        self.book.write(record("host1-1", "moved 8 labels", "they crossed it", rung=1), 5.0315, wall)
        self.book.write(record("host1-2", "leaf1-spine2 is drained", "asked for", "leaf1-spine2"), 9.0, wall)

    def view(self) -> Mapping[str, Any]:
        if self.broken:
            raise ZeroDivisionError("nobody expected this")
        return self.now

    async def namespaces(self) -> Sequence[Any]:
        rows: Sequence[Any] = self.now.get("netns", ())
        return rows

    def paths(self) -> Sequence[Any]:
        return list(self.now["paths"])

    def why(self, name: str) -> Sequence[Entry]:
        return self.book.why(name)

    def causes(self) -> Sequence[str]:
        return self.book.causes()

    def journal(self, since: int) -> Sequence[Entry]:
        return self.book.since(since)

    def links(self) -> Iterable[str]:
        return self.more_links

    def metrics(self) -> bytes:
        return exposition(self.view)

    def arrived(self, rank: int, step: int) -> bool:
        self.came.append((rank, step))
        return rank != 9

    async def submit(self, event: Event) -> Mapping[str, Any]:
        if isinstance(event, DrainRequested) and event.link == "host1-leaf1":
            raise RefusedError("host1-leaf1 is the last path", "repair eth2 first")
        self.submitted.append(event)
        return {"cause": "host1-3"}


@contextmanager
def serving(path: Path, desk: Desk) -> Iterator[None]:
    """Serve a desk on a unix socket from a thread with a loop of its own."""
    ready, loop = threading.Event(), asyncio.new_event_loop()
    end = asyncio.Event()
    failures: list[BaseException] = []

    async def serve() -> None:
        try:
            async with ControlEdge(path, desk):
                ready.set()
                await end.wait()
        except Exception as error:
            failures.append(error)
            ready.set()
            raise

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    desk.open()
    thread.start()
    try:
        assert ready.wait(20)
        assert not failures
        yield
    finally:
        loop.call_soon_threadsafe(end.set)
        thread.join(20)
        loop.close()
        desk.book.close()
