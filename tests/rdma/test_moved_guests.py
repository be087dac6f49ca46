"""A running program's queue pair leaves a drained rail by another address, with a daemon in each of two emulated hosts.

Rail-only addresses: neither a label nor a route leads from one rail's address over the other rail."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from small_fabrics import RAILS

from lab.daemons import DaemonSpec
from lab.faults import parse as parse_fault
from lab.netns.lab import NetnsLab
from lab.qemu import rails
from lab.qemu.daemons import GuestDaemons
from lab.qemu.guest import Guest
from lab.qemu.hosts import talking
from lab.rdma_job import RdmaJob
from topology.sources.containerlab import parse

pytestmark = pytest.mark.guests
HOSTS = ("host1", "host2")
READY_S = 180.0
PATIENCE_S = 60.0
TOOL = Path(__file__).with_name("guest_tool.py")
ROOT = Path(__file__).parents[2]


def until(true: Callable[[], Any], what: Callable[[], object]) -> Any:
    """What came true; `what` says afterwards what there was instead."""
    end_s = time.monotonic() + PATIENCE_S
    while not (found := true()):
        assert time.monotonic() < end_s, what()
        time.sleep(0.1)
    return found


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NetnsLab]:
    folder = tmp_path_factory.mktemp("moved") / "lab"
    made = NetnsLab(parse(RAILS, "rails.clab.yml"), name=f"tm{os.getpid()}", run_dir=folder, guests=HOSTS)
    try:
        made.up()
        yield made
    finally:
        made.down()


@pytest.fixture(scope="module")
def guests(lab: NetnsLab) -> Iterator[dict[str, Guest]]:
    with talking(lab, "host1") as one, talking(lab, "host2") as two:
        both = {"host1": one, "host2": two}
        rails.lay(lab, both)
        yield both


@pytest.fixture(scope="module")
def daemons(lab: NetnsLab, guests: dict[str, Guest]) -> Iterator[GuestDaemons]:
    steer = {"live_qps": True, "patience_s": 5.0}
    with GuestDaemons(lab, guests, DaemonSpec(extra={"rdma.steer": steer})) as made:
        made.start().wait_ready(READY_S)
        made.wait_settled(READY_S)
        yield made


@pytest.fixture
def job(lab: NetnsLab, guests: dict[str, Guest]) -> Iterator[RdmaJob]:
    made = RdmaJob(guests["host1"], guests["host2"], rails.address(lab, "host2", "eth1"), timeout=15)
    try:
        yield made.start()
    finally:
        made.close()


def flow_of(daemons: GuestDaemons, host: str) -> dict[str, Any]:
    """The only RDMA flow of a host whose addresses are known."""
    return until(
        lambda: next((one for one in daemons.view(host)["rdma"]["flows"] if one["own"] and one["peer"]), None),
        lambda: f"{host} knows no flow: {daemons.view(host)['rdma']}",
    )  # type: ignore[no-any-return]


def moved_on(daemons: GuestDaemons, host: str, before: dict[str, Any]) -> dict[str, Any] | None:
    """Its flow, once it has other addresses."""
    flow = flow_of(daemons, host)
    return flow if flow["own"] != before["own"] and flow["peer"] != before["peer"] else None


def test_a_drain_takes_a_running_program_to_the_other_rail(lab: NetnsLab, daemons: GuestDaemons, job: RdmaJob) -> None:
    before = {host: flow_of(daemons, host) for host in HOSTS}
    assert before["host1"]["own"] == rails.address(lab, "host1", "eth1")
    port = "rxe: takes no other UDP source port while it runs"
    rungs = {"label": "", "route": "only eth1 leads to its peer", "planned": "", "port": port}
    # The flow may be known before the device under it is, or the place of its queue pair.
    until(lambda: flow_of(daemons, "host1")["rungs"] == rungs, lambda: flow_of(daemons, "host1"))
    since_s = time.monotonic()
    daemons.post("host1", "/drain", link="eth1")

    def moved() -> bool:
        return sum("to other addresses" in entry.what for entry in daemons.journal(since_s)) == len(HOSTS)

    until(moved, lambda: "\n".join(f"{e.host} {e.what}: {e.why}" for e in daemons.journal(since_s)))
    # What a trace notes meanwhile belongs to no story.
    with_cause = [entry for entry in daemons.journal(since_s) if entry.host == "host1" and entry.cause]
    assert len({entry.cause for entry in with_cause}) == 1, "one story from the order to the move"
    after = {
        host: until(
            lambda host=host: moved_on(daemons, host, before[host]),
            lambda host=host: f"{host} shows the old: {daemons.view(host)['rdma']}",
        )
        for host in HOSTS
    }
    assert (after["host1"]["own"], after["host1"]["peer"]) == (after["host2"]["peer"], after["host2"]["own"])
    fault = lab.fault(parse_fault("blackhole:host1-leaf1", lab.fabric))
    try:
        time.sleep(3.0)
        assert job.alive
    finally:
        fault.undo()
    result = job.stop()
    assert result.whole
    daemons.post("host1", "/undrain", link="eth1")


def test_a_stop_of_the_daemons_leaves_the_program_running(lab: NetnsLab, daemons: GuestDaemons, job: RdmaJob) -> None:
    """Their routes and next hops go from under it. A route that it has kept must not be used after them."""
    flow_of(daemons, "host1")
    daemons.stop(60.0)
    time.sleep(3.0)
    assert job.alive
    assert job.stop().whole
    for host in HOSTS:
        daemons.start_one(host)
    daemons.wait_ready(READY_S)


def test_what_a_dead_daemon_has_left_standing_goes_on(
    lab: NetnsLab, guests: dict[str, Guest], daemons: GuestDaemons, job: RdmaJob
) -> None:
    """A queue pair that was stopped, and written down, by a daemon that is no more: `cleanup` lets it go on."""
    flow = flow_of(daemons, "host1")
    daemons.kill("host1")
    folder = daemons.inside("host1", "")
    argv = [sys.executable, str(TOOL), "stop", str(flow["pid"]), str(folder)]
    assert json.loads(guests["host1"].run(argv, timeout_s=120, env={"PYTHONPATH": str(ROOT)}).out) == "SQD"
    clean = [sys.executable, "-c", "from linkpass.cli import main; main()", "cleanup", "--config"]
    done = guests["host1"].run([*clean, str(folder / "linkpass.toml")], timeout_s=120, env={"PYTHONPATH": str(ROOT)})
    assert "put 1 queue pair(s) back" in done.out, done.err
    assert job.alive
    result = job.stop()
    assert result.whole
    assert max(pause.seconds for pause in job.pauses()) > 1.0, "it was never stopped"
    daemons.start_one("host1")
    daemons.wait_ready(READY_S)
