"""Hosts as guests behind the lab's switches: a fabric of two hosts and two rails, with soft-RoCE on both uplinks."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner
from small_fabrics import RAILS

from lab.errors import LabError
from lab.faults import parse as parse_fault
from lab.netns.lab import NetnsLab
from lab.netns.processes import state_letter
from lab.qemu.guest import Guest
from lab.qemu.hosts import RXE, VRF, guest_of
from linkpass.cli import cli
from topology.sources.containerlab import parse

pytestmark = pytest.mark.guests
PATIENCE_S = 120.0


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NetnsLab]:
    folder = tmp_path_factory.mktemp("rails") / "lab"
    made = NetnsLab(parse(RAILS, "rails.clab.yml"), name=f"tq{os.getpid()}", run_dir=folder, guests=("host1", "host2"))
    try:
        made.up()
        yield made
    finally:
        made.down()


@contextmanager
def inside(lab: NetnsLab, host: str) -> Iterator[Guest]:
    guest = guest_of(lab, host).connect()
    try:
        yield guest
    finally:
        guest.close()


def until(true: Callable[[], bool]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < end_s
        time.sleep(0.05)


def test_guests_reach_one_another_over_either_uplink(lab: NetnsLab) -> None:
    with inside(lab, "host1") as one:
        for address in (lab.address("host2"), lab.address("host2", 4)):
            one.run(["busybox", "ping", "-c", "1", "-W", "60", "-I", VRF, address], timeout_s=90)
        for leaf in ("leaf1", "leaf2"):
            one.run(["busybox", "ping", "-c", "1", "-W", "60", "-I", VRF, lab.address(leaf)], timeout_s=90)
        wanted = [(RXE, "ACTIVE", VRF)]

        def links() -> list[tuple[str, str, str]]:
            found = json.loads(one.run(["rdma", "-j", "link"]).out)
            return [(link["ifname"], link["state"], link["netdev"]) for link in found]

        until(lambda: links() == wanted)


def reached(guest: Guest, address: str) -> bool:
    return guest.run(["busybox", "ping", "-c", "1", "-W", "5", "-I", VRF, address], check=False).rc == 0


def test_a_cable_that_is_pulled_is_pulled_inside_too(lab: NetnsLab) -> None:
    def carriers() -> str:
        with inside(lab, "host1") as one:
            return one.sh("cat /sys/class/net/eth1/carrier /sys/class/net/eth2/carrier").replace("\n", "")

    until(lambda: carriers() == "11")
    fault = lab.fault(parse_fault("carrier:host1-leaf1", lab.fabric))
    until(lambda: carriers() == "01")
    with inside(lab, "host1") as one:
        until(lambda: reached(one, lab.address("leaf2")))  # the routes follow a moment later
    fault.undo()
    until(lambda: carriers() == "11")
    with inside(lab, "host1") as one:
        for leaf in ("leaf1", "leaf2"):
            until(lambda leaf=leaf: reached(one, lab.address(leaf)))


def test_commands_reach_a_guest(lab: NetnsLab) -> None:
    done = CliRunner().invoke(cli, ["lab", "exec", lab.name, "host2", "--", "hostname"])
    assert (done.exit_code, done.output) == (0, "host2\n")
    done = CliRunner().invoke(cli, ["lab", "exec", lab.name, "host2", "--", "sh", "-c", "echo no >&2; exit 3"])
    assert done.exit_code == 3
    assert "no" in done.output
    assert CliRunner().invoke(cli, ["lab", "exec", lab.name, "host2"]).exit_code == 2


def test_a_frozen_host_is_a_frozen_guest(lab: NetnsLab) -> None:
    (qemu,) = [one for one in lab.processes("host2") if "qemu" in one.argv[0]]
    fault = lab.fault(parse_fault("freeze:host2", lab.fabric))
    until(lambda: state_letter(qemu.pid) == "T")  # a process stops at its next chance
    with inside(lab, "host1") as one:
        assert one.run(["busybox", "ping", "-c", "1", "-W", "1", "-I", VRF, lab.address("host2")], check=False).rc == 1
    fault.undo()
    with inside(lab, "host1") as one:
        until(
            lambda: (
                one.run(["busybox", "ping", "-c", "1", "-W", "2", "-I", VRF, lab.address("host2")], check=False).rc == 0
            )
        )


def test_a_guest_that_does_not_come_up_says_why(tmp_path: Path) -> None:
    guest = Guest("nobody", tmp_path)
    with pytest.raises(LabError, match="did not come up"):
        guest.connect(0.1)


def test_what_is_down_is_gone(tmp_path: Path) -> None:
    made = NetnsLab(parse(RAILS, "rails.clab.yml"), name=f"tqd{os.getpid()}", run_dir=tmp_path, guests=("host1",))
    made.up()
    (qemu,) = [one for one in made.processes("host1") if "qemu" in one.argv[0]]
    made.down()
    assert state_letter(qemu.pid) in ("", "Z")
