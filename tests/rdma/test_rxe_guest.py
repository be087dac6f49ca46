"""The `rdma` package against a real verbs device: soft-RoCE in two guests, an unmodified `ib_write_bw` between them."""

from __future__ import annotations

import errno
import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from guest_pair import Pair, Side

from rdma.mlx5 import refusal

pytestmark = pytest.mark.guests
LONG_S = 600
"""A program runs for so long if nobody ends it: a question to it takes far less on the slowest machine."""
PATIENCE_S = 120.0


@dataclass
class Running:
    server: int
    client: int


@contextmanager
def writing(pair: Pair) -> Iterator[Running]:
    """`ib_write_bw` from a to b, over the IPv6 GIDs."""
    there, here = pair.b.gid_index(pair.b.v6), pair.a.gid_index(pair.a.v6)
    words = ["ib_write_bw", "-d", "rxe0", "-F", "-D", str(LONG_S), "-s", "16384", "-u", "14"]
    server = pair.b.guest.spawn([*words, "-x", str(there)], "server")
    until(lambda: ":18515 " in pair.b.guest.sh("ss -Htln; true"))
    client = pair.a.guest.spawn([*words, "-x", str(here), pair.b.v4], "client")
    try:
        until(lambda: all(len(connected(side)) == 1 for side in (pair.a, pair.b)))
        yield Running(server, client)
    finally:
        for side, pid in ((pair.a, client), (pair.b, server)):
            if side.guest.wait(pid, 0) is None:
                side.guest.signal(pid, 9)
                side.guest.wait(pid, 5)


def until(true: Callable[[], bool], seconds: float = PATIENCE_S) -> None:
    end_s = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end_s
        time.sleep(0.05)


def ended(side: Side, pid: int) -> int | None:
    """Its status, once it has been told that its time is over: what its own alarms tell it, at three moments."""
    for _ in range(round(PATIENCE_S)):
        side.guest.signal(pid, signal.SIGALRM)
        if (status := side.guest.wait(pid, 1.0)) is not None:
            return status
    return None


def connected(side: Side) -> list[dict[str, Any]]:
    """As the `rdma` program tells it: a second opinion, and under emulation quicker than a start of Python."""
    listed = json.loads(side.guest.run(["rdma", "-j", "resource", "show", "qp"]).out)
    return [qp for qp in listed if qp["type"] == "RC" and qp["state"] in ("RTR", "RTS")]


def test_the_device_is_soft_roce_on_its_network_device(pair: Pair) -> None:
    (device,) = pair.a.tool("devices")
    assert (device["name"], device["driver"], device["netdevs"], device["pci"]) == ("rxe0", "rdma_rxe", ["eth0"], "")
    (port,) = device["ports"]
    assert (port["protocol"], port["state"], port["phys_state"]) == ("RoCE", "ACTIVE", "LinkUp")
    gids = {gid["gid"]: gid for gid in port["gids"]}
    for address in (pair.a.v6, f"::ffff:{pair.a.v4}"):
        assert (gids[address]["type"], gids[address]["netdev"]) == ("RoCE v2", "eth0")


def test_without_a_program_only_the_kernel_has_queue_pairs(pair: Pair) -> None:
    assert [(qp["type"], qp["pid"], qp["owner"]) for qp in pair.a.tool("queue-pairs")] == [("GSI", 0, "ib_core")]


def test_what_its_network_device_does_not_count_is_unknown(pair: Pair) -> None:
    """Debian's kernel has no device that counts pauses or repaired bits: its configuration lacks netdevsim."""
    (look,) = pair.a.tool("ethernet").values()
    assert (look["device"], look["driver"], look["totals"], look["window"]["counted"]) == ("eth0", "virtio_net", {}, {})
    assert {part: why["detail"] for part, why in look["unknown"].items()} == {
        "pause": "the driver does not tell it",
        "fec": "the driver does not tell it",
        "statistics": "the driver counts none of it",
        "driver": "nothing is known of the statistics of virtio_net",
    }
    assert look["module"] == {"why": "missing", "detail": "the driver does not tell it"}
    assert pair.a.guest.run(["modprobe", "-n", "netdevsim"], check=False).rc != 0


def test_a_writing_program_is_seen_from_outside(pair: Pair) -> None:
    with writing(pair) as running:
        (there,) = connected(pair.b)
        seen = pair.a.tool("watch", running.client, 20)
        said = pair.a.tool("port", running.client, "/run/by-hand")
        assert ended(pair.a, running.client) == 0
        assert pair.b.guest.wait(running.server, PATIENCE_S) == 0
    (flow,) = seen["last"]
    qp = flow["qp"]
    assert (qp["pid"], there["pid"], flow["program"]) == (running.client, running.server, "ib_write_bw")
    assert (qp["rqpn"], there["rqpn"]) == (there["lqpn"], qp["lqpn"])
    assert qp["sq_psn"] != seen["first"][0]["qp"]["sq_psn"]
    assert (flow["to"]["to"]["gid"], flow["to"]["to"]["sgid_index"]) == (pair.b.v6, pair.a.gid_index(pair.a.v6))
    assert (flow["to"]["dest_qpn"], flow["to"]["state"], flow["to"]["timeout"]) == (there["lqpn"], "RTS", 14)
    assert flow["place"] is not None
    assert (flow["deadline"]["least_s"], flow["why"]) == (None, "")  # perftest tries seven times: for ever on rxe

    (before,), (after,) = seen["before"], seen["after"]
    assert before["is"]["min_rnr_timer"] != 20
    assert (after["is"]["min_rnr_timer"], after["is"]["state"]) == (20, "RTS")

    # What is for mlx5 alone: the kernel knows the call's form and refuses it, we refuse it before.
    assert said == {
        "as mlx5": f"port {0xC123}: {refusal(errno.EINVAL, bytes(16))}",
        "as rxe": errno.EPROTONOSUPPORT,
        "after": "RTS",
        "by hand": "rxe: takes no other UDP source port while it runs",
    }

    counted = seen["counters"]
    assert counted["strange"] == []
    assert counted["counted"]["rdma_sent_packets"] > 0
    assert counted["counted"]["rdma_received_packets"] > 0
    assert counted["counted"]["retries_exceeded"] == 0
    assert len(seen["still"]) == 1
