"""A program whose uplink loses its carrier, between two emulated hosts: soft-RoCE ends it at once, though it would send
again for ever; with a daemon in act mode it goes on when the cable is back.

Its neighbour is permanent: else the kernel forgets it with the carrier and asks for it first, and most packets wait for
that instead of being refused."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from guest_pair import ROOT, Pair

from lab.daemons import PROGRAM
from lab.qemu.daemons import FIRST
from lab.rdma_job import RdmaJob

pytestmark = pytest.mark.guests
PATIENCE_S = 120.0
READY_S = 240.0
SOCKET = "/run/linkpass.sock"
NEVER_GIVES_UP = 7
"""Retries: soft-RoCE counts these for ever."""
TABLE = "table netdev linkpass"
CONFIG = f"""
mode = "act"
host = "guest-a"
address = "fd00:a::1"
prefixes = ["fd00:a::/64"]
[[uplinks]]
name = "eth0"
gateway6 = "fd00:a::2"
[auth]
key_file = "/share/key"
[control]
socket = "{SOCKET}"
[metrics]
listen = ""
[journal]
dir = "/share"
"""


def until(true: Callable[[], bool], seconds: float = PATIENCE_S) -> None:
    end_s = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end_s
        time.sleep(0.1)


def refused(pair: Pair) -> int:
    """Packets that the sender's uplink would not take."""
    return int(pair.a.guest.sh("cat /sys/class/net/eth0/statistics/tx_dropped"))


def tables(pair: Pair) -> str:
    return pair.a.guest.sh("nft list tables")


@contextmanager
def running(pair: Pair) -> Iterator[RdmaJob]:
    mac = pair.b.guest.sh("cat /sys/class/net/eth0/address").strip()
    pair.a.guest.sh(f"ip neigh replace {pair.b.v6} lladdr {mac} dev eth0 nud permanent")
    job = RdmaJob(pair.a.guest, pair.b.guest, pair.b.v6, rate=100.0, retries=NEVER_GIVES_UP)
    try:
        yield job.start()
    finally:
        job.close()


@contextmanager
def cable_out(pair: Pair) -> Iterator[None]:
    pair.a.guest.set_link("eth0", up=False)
    try:
        yield
    finally:
        pair.a.guest.set_link("eth0", up=True)


@pytest.fixture(scope="module")
def daemon(pair: Pair) -> Iterator[int]:
    guest = pair.a.guest
    (guest.share / "key").write_text("0123456789abcdef0123456789abcdef")
    (guest.share / "linkpass.toml").write_text(CONFIG)
    argv = [*FIRST, *PROGRAM, "run", "--config", "/share/linkpass.toml"]
    pid = guest.spawn(argv, "daemon", env={"PYTHONPATH": str(ROOT)})
    try:
        until(lambda: bool(guest.sh(f"ls {SOCKET} || true")), READY_S)
        yield pid
    finally:
        guest.signal(pid, 9)
        guest.wait(pid, 60)


def test_without_linkpass_the_first_packet_that_is_refused_ends_the_program(pair: Pair) -> None:
    before = refused(pair)
    with running(pair) as job:
        with cable_out(pair):
            until(lambda: not job.alive)
        result = job.stop()
    assert refused(pair) > before
    assert result.error in ("WR_FLUSH_ERR (5)", "LOC_QP_OP_ERR (2)")


def test_with_linkpass_the_program_goes_on_when_the_carrier_is_back(pair: Pair, daemon: int) -> None:
    with running(pair) as job:
        until(lambda: TABLE in tables(pair))  # the daemon has seen the program
        before = refused(pair)
        with cable_out(pair):
            until(lambda: refused(pair) > before or not job.alive)
        assert job.alive
        until(lambda: bool(job.pauses()) or not job.alive)  # a pause is told when it has ended
        result = job.stop()
    assert result.whole
    pair.a.guest.signal(daemon, 15)
    assert pair.a.guest.wait(daemon, PATIENCE_S) == 0
    assert TABLE not in tables(pair)
