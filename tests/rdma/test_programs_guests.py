"""Unmodified RDMA programs of four kinds between two emulated hosts, while a link of the fabric swallows everything for
good: without linkpass they stand, with a daemon in each host all of them finish.

`rping` sets up its connection with rdma_cm, over soft-RoCE on the only uplink; the ways differ beyond it. All four send
again for ever (7 retries on soft-RoCE): without linkpass they neither go on nor give up. perftest's TCP connection
is IPv4, which has no label to be moved by: it is kept off the link that fails, as a network of its own would keep it.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from small_fabrics import SPINES

from lab.capture import Capture
from lab.daemons import DaemonSpec
from lab.faults import parse as parse_fault
from lab.netns.lab import NetnsLab
from lab.qemu.daemons import GuestDaemons
from lab.qemu.guest import Guest
from lab.qemu.hosts import RXE, talking
from lab.rdma_job import way_of
from topology.sources.containerlab import parse

pytestmark = pytest.mark.guests
HOSTS = ("host1", "host2")
READY_S = 180.0
MESSAGES, PER_S = 400, 50
PINGS = 500
LOOK_S = 1.0
STANDS_S = 2.0 * MESSAGES / PER_S
"""Long after all would have ended on a good fabric."""
PATIENCE_S = 90.0
PERFTEST = ("ib_write_bw", "ib_send_bw", "ib_read_bw")


@dataclass
class Program:
    """A server in host2 and a client in host1."""

    name: str
    server: int
    client: int


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NetnsLab]:
    folder = tmp_path_factory.mktemp("programs") / "lab"
    made = NetnsLab(parse(SPINES, "spines.clab.yml"), name=f"tp{os.getpid()}", run_dir=folder, guests=HOSTS)
    try:
        made.up()
        yield made
    finally:
        made.down()


@pytest.fixture(scope="module")
def guests(lab: NetnsLab) -> Iterator[dict[str, Guest]]:
    with talking(lab, "host1") as one, talking(lab, "host2") as two:
        yield {"host1": one, "host2": two}


def gid_index(guest: Guest, address: str) -> str:
    """perftest wants it by number."""
    text = socket.inet_pton(socket.AF_INET6, address).hex(":", 2)
    folder = f"/sys/class/infiniband/{RXE}/ports/1/gids"
    return guest.sh(f"cd {folder}; for i in 0 1 2 3 4 5 6 7; do grep -q ^{text}$ $i && echo $i; done; true").strip()


@contextmanager
def running(lab: NetnsLab, guests: dict[str, Guest]) -> Iterator[list[Program]]:
    """All four, with messages on their way."""
    one, two = guests["host1"], guests["host2"]
    nice = ["nice", "-n", "10"]
    started = []
    for number, name in enumerate((*PERFTEST, "rping")):
        here, there = lab.address("host1"), lab.address("host2")
        if name == "rping":
            server = ["rping", "-s", "-a", there, "-V", "-C", str(PINGS)]
            client = ["rping", "-c", "-a", there, "-I", here, "-V", "-C", str(PINGS)]
        else:
            common = [
                name, "-F", "-d", RXE, "-s", "4096", "-t", "4", "-n", str(MESSAGES), "-p", str(18515 + number),
                f"--rate_limit={PER_S}", "--rate_units=p", "--rate_limit_type=SW", "--burst_size=1",
            ]  # fmt: skip
            server = [*common, "-x", gid_index(two, there)]
            client = [*common, "-x", gid_index(one, here), lab.address("host2", 4)]
        tag = f"{name}-{time.monotonic_ns()}"
        pid = two.spawn([*nice, *server], f"{tag}-server")
        started.append((name, pid, client, tag))
    until_s = time.monotonic() + PATIENCE_S
    while len(listening := two.sh("ss -Htln; true").split(":1851")) <= len(PERFTEST):  # who comes too soon tries once
        assert time.monotonic() < until_s, listening
        time.sleep(0.1)
    time.sleep(LOOK_S)  # rping's listens where no socket is seen
    programs = [Program(name, pid, one.spawn([*nice, *client], f"{tag}-client")) for name, pid, client, tag in started]
    try:
        yield programs
    finally:
        for program in programs:
            for guest, pid in ((one, program.client), (two, program.server)):
                if guest.wait(pid, 0) is None:
                    guest.signal(pid, 9)
                    guest.wait(pid, 10)


def about_to_fail(lab: NetnsLab) -> str:
    """The link from leaf1 to a spine that most RoCE packets from host1 take now; IPv4 takes the other."""
    with Capture.of(lab, socket.IPPROTO_UDP) as capture:
        capture.watch()
        time.sleep(LOOK_S)
        capture.pause()
        way = way_of(capture.take(), lab.address("host1"), lab.address("host2"))
    spine = next(direction for direction in way if direction.startswith("leaf1>spine")).partition(">")[2]
    other = "spine2" if spine == "spine1" else "spine1"
    for leaf, host in (("leaf1", "host2"), ("leaf2", "host1")):
        ways = (way for wire in lab.plan.wires_of(leaf) for way in wire.both_ways())
        gateway = next(far.v4 for near, far in ways if (near.node, far.node) == (leaf, other))
        route = ["ip", "route", "replace", f"{lab.address(host, 4)}/32", "via", gateway]
        subprocess.run(["ip", "netns", "exec", lab.namespace(leaf), *route], check=True)
    return f"leaf1-{spine}"


def alive(programs: list[Program], guest: Guest) -> list[str]:
    return [program.name for program in programs if guest.wait(program.client, 0) is None]


def test_without_linkpass_all_of_them_stand(lab: NetnsLab, guests: dict[str, Guest]) -> None:
    with running(lab, guests) as programs:
        link = about_to_fail(lab)
        assert alive(programs, guests["host1"]) == [*PERFTEST, "rping"], "one ended before the fault"
        fault = lab.fault(parse_fault(f"blackhole:{link}", lab.fabric))
        try:
            time.sleep(STANDS_S)
            assert alive(programs, guests["host1"]) == [*PERFTEST, "rping"]
        finally:
            fault.undo()


def test_with_linkpass_all_of_them_finish(lab: NetnsLab, guests: dict[str, Guest]) -> None:
    with GuestDaemons(lab, guests, DaemonSpec()) as daemons:
        daemons.start().wait_ready(READY_S)
        daemons.wait_settled(READY_S)
        with running(lab, guests) as programs:
            link = about_to_fail(lab)
            assert alive(programs, guests["host1"]) == [*PERFTEST, "rping"], "one ended before the fault"
            fault = lab.fault(parse_fault(f"blackhole:{link}", lab.fabric))
            try:
                for program in programs:
                    for host, pid in (("host1", program.client), ("host2", program.server)):
                        assert guests[host].wait(pid, PATIENCE_S) == 0, f"{program.name} on {host}"
            finally:
                fault.undo()
        moved = [entry for entry in daemons.journal() if entry.is_move and entry.rung == 1]
        assert moved, "nothing was moved by label"
