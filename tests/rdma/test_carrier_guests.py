"""A program whose uplink loses its carrier, between two emulated hosts: soft-RoCE ends it at once, though it would send
again for ever; with linkpass's table at the uplink's egress it goes on when the cable is back.

That a daemon lays the table is in `test_steered_guests.py`. The neighbour is permanent here: else the kernel forgets it
with the carrier and asks for it first, and most packets wait for that instead of being refused."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from guest_pair import Pair

from lab.rdma_job import RdmaJob

pytestmark = pytest.mark.guests
PATIENCE_S = 120.0
NEVER_GIVES_UP = 7
"""Retries: soft-RoCE counts these for ever."""
KEEP = "EgressEdge().keep({'eth0': socket.if_nametoindex('eth0')}, 0.0)"
SWEEP = "EgressEdge().sweep()"


def until(true: Callable[[], bool]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < end_s
        time.sleep(0.1)


def refused(pair: Pair) -> int:
    """Packets that the sender's uplink would not take."""
    return int(pair.a.guest.sh("cat /sys/class/net/eth0/statistics/tx_dropped"))


def edge(pair: Pair, call: str) -> str:
    """What the edge says in the sending guest."""
    program = f"import socket; from linkpass.edges.kernel.egress import EgressEdge; print({call})"
    return pair.a.python("-c", program).strip()


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


def test_without_the_table_the_first_packet_that_is_refused_ends_the_program(pair: Pair) -> None:
    before = refused(pair)
    with running(pair) as job:
        with cable_out(pair):
            until(lambda: not job.alive)
        result = job.stop()
    assert refused(pair) > before
    assert result.error in ("WR_FLUSH_ERR (5)", "LOC_QP_OP_ERR (2)")


def test_with_the_table_the_program_goes_on_when_the_carrier_is_back(pair: Pair) -> None:
    assert "does not end" in edge(pair, KEEP)
    with running(pair) as job:
        before, pauses = refused(pair), len(job.pauses())
        with cable_out(pair):
            until(lambda: refused(pair) > before or not job.alive)
        assert job.alive
        until(lambda: len(job.pauses()) > pauses or not job.alive)  # a pause is told when it has ended
        result = job.stop()
    assert result.whole
    assert edge(pair, SWEEP) == "['nftables table netdev linkpass']"
