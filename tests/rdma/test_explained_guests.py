"""`linkpass capture explain` on packets of a real RDMA program between two soft-RoCE guests, on a wire that loses."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from guest_pair import Pair, Side

from lab.netns import namespace
from lab.rdma_job import RdmaJob
from linkpass.cli import cli
from linkpass.cli.capture import keeping
from linkpass.cli.explain import There
from linkpass.edges.tap import Tap
from linkpass.pcap import Frame

pytestmark = pytest.mark.guests
PATIENCE_S = 120.0
FROM_A = "udp dport 4791"


@dataclass
class Passed:
    """So far: RoCE packets, and of them negative acknowledgements that name a gap."""

    packets: int = 0
    gaps: int = 0


@contextmanager
def capturing(pair: Pair, file: Path) -> Iterator[Passed]:
    """Everything that passes the wire's end of the first guest, into a file."""
    enough, passed, there = threading.Event(), Passed(), There()

    def keep(tap: Tap) -> None:
        with keeping(file) as write:
            while not enough.is_set():
                for frame in tap.frames(0.1):
                    write(frame)
                    packet = there.take(Frame(frame.data, 1, frame.at_ns, "", False, 0))
                    passed.packets += packet is not None
                    passed.gaps += packet is not None and packet.nak == "PSN sequence error"

    with namespace.inside(pair.wire):
        tap = Tap({"tap-a": "tap-a"}).open()
    with tap:
        reader = threading.Thread(target=keep, args=(tap,))
        reader.start()
        try:
            yield passed
        finally:
            enough.set()
            reader.join()
        assert tap.missed() == 0


@contextmanager
def dropping(pair: Pair, what: str) -> Iterator[None]:
    """The wire loses what the first guest sends, behind the point of capture."""
    nft(pair, f"insert rule netdev wire a {what} drop")
    try:
        yield
    finally:
        nft(pair, 'flush chain netdev wire a\nadd rule netdev wire a fwd to "tap-b"')


def nft(pair: Pair, lines: str) -> None:
    with namespace.inside(pair.wire):
        subprocess.run(["nft", "-f", "-"], input=lines, text=True, check=True)


def until(true: Callable[[], bool]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < end_s
        time.sleep(0.05)


def queue_pair(side: Side) -> tuple[int, int]:
    """Own number and the peer's, as the kernel tells them, once there is one alone."""
    found: list[tuple[int, int]] = []

    def alone() -> bool:
        listed = json.loads(side.guest.run(["rdma", "-j", "resource", "show", "qp"]).out)
        found[:] = [(qp["lqpn"], qp["rqpn"]) for qp in listed if qp["type"] == "RC" and qp["state"] == "RTS"]
        return len(found) == 1

    until(alone)
    return found[0]


def flow(said: Any, source: str) -> Any:
    (one,) = [flow for flow in said["flows"] if flow["source"] == source]
    return one


def explained(file: Path) -> Any:
    result = CliRunner().invoke(cli, ["capture", "explain", str(file), "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def test_losses_and_a_short_blackhole_are_told(pair: Pair, tmp_path: Path) -> None:
    file = tmp_path / "lossy.pcap"
    with capturing(pair, file) as passed:
        job = RdmaJob(pair.a.guest, pair.b.guest, pair.b.v6, rate=50.0, retries=7).start()
        try:
            own, peer = queue_pair(pair.a)
            with dropping(pair, f"{FROM_A} numgen random mod 3 0"):
                until(lambda: passed.gaps > 0)
            with dropping(pair, FROM_A):
                time.sleep(0.5)  # for so long the wire is dead
            seen = passed.packets
            until(lambda: passed.packets > seen + 50)
            result = job.stop()
        finally:
            job.close()
    assert result.whole
    said = explained(file)
    there, back = flow(said, pair.a.v6), flow(said, pair.b.v6)
    assert (there["sender_qpn"], there["qpn"], there["transport"]) == (own, peer, "RC")
    assert (back["sender_qpn"], back["qpn"], back["target"]) == (peer, own, pair.a.v6)
    assert there["broken"] == there["unchecked"] == there["missing"] == back["broken"] == 0
    assert there["payload_bytes"] == 1024 * result.completed, "each message once, however often it was sent"
    assert there["sent_again"] > 0 and there["sent_again_unseen"] == there["out_of_order"] == 0
    assert there["repeated_bytes"] == 1024 * there["sent_again"]
    assert back["naks"]["PSN sequence error"] >= passed.gaps and there["naks"] == {}
    assert there["gave_up"] is False
    again = [one["says"] for one in said["findings"] if one["kind"] == "sent again"]
    assert any("no NAK seen: a timeout; progress after" in one for one in again)
    assert all("no progress" not in one for one in again)


def test_a_program_that_gives_up_is_told_over_ipv4(pair: Pair, tmp_path: Path) -> None:
    file = tmp_path / "dead.pcap"
    with capturing(pair, file):
        job = RdmaJob(pair.a.guest, pair.b.guest, pair.b.v4, rate=50.0, retries=3).start()
        try:
            own, peer = queue_pair(pair.a)
            with dropping(pair, FROM_A):
                until(lambda: not job.alive)
            result = job.stop()
            time.sleep(0.5)  # for the silence to be seen, by what comes after it
            pair.a.guest.run(["bash", "-c", f"echo > /dev/udp/{pair.b.v4}/9"])
        finally:
            job.close()
    assert result.error == "RETRY_EXC_ERR (12)"
    said = explained(file)
    there = flow(said, pair.a.v4)
    assert (there["sender_qpn"], there["qpn"], there["broken"]) == (own, peer, 0)
    assert there["ways"][0]["label"] is None
    assert there["gave_up"] is True
    (end,) = [one["says"] for one in said["findings"] if one["kind"] == "gave up"]
    assert "sent again 3 times without progress, then silence" in end
