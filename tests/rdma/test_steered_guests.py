"""A daemon in each of two emulated hosts, and an RDMA program between them that survives what kills it without."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from lab.bench.rdma import RECEIVER, SENDER, Trial
from lab.daemons import DaemonSpec
from lab.netns.lab import NetnsLab
from lab.qemu.daemons import GuestDaemons
from lab.qemu.guest import Guest
from lab.qemu.hosts import RXE, VRF, talking
from lab.rdma_job import RdmaJob
from topology.sources.containerlab import parse

pytestmark = pytest.mark.guests
FILE = Path(__file__).parents[2] / "lab/leaf-spine.clab.yml"
TIMEOUT = 16
"""The program gives up after 1.9 s: an emulated processor takes a tenth of a second for what takes milliseconds, and on
a busy machine it stands still for most of a second now and then."""
READY_S = 180.0
SEEN_S = 60.0
JOBS = 3


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NetnsLab]:
    fabric = parse(FILE.read_text(encoding="utf-8"), str(FILE))
    folder = tmp_path_factory.mktemp("steered") / "lab"
    made = NetnsLab(fabric, name="tsg", run_dir=folder, guests=(SENDER, RECEIVER))
    try:
        made.up()
        yield made
    finally:
        made.down()


@pytest.fixture(scope="module")
def guests(lab: NetnsLab) -> Iterator[dict[str, Guest]]:
    with talking(lab, SENDER) as sender, talking(lab, RECEIVER) as receiver:
        yield {SENDER: sender, RECEIVER: receiver}


def test_without_linkpass_a_blackhole_ends_the_program(lab: NetnsLab, guests: dict[str, Guest]) -> None:
    with Trial(lab, guests, None, timeout=TIMEOUT) as trial:
        shot = trial.shoot("blackhole", 0)
        trial.end_program()
    assert not shot.survived
    (result,) = trial.results
    assert result.error == "RETRY_EXC_ERR (12)"


@pytest.fixture(scope="module")
def daemons(lab: NetnsLab, guests: dict[str, Guest]) -> Iterator[GuestDaemons]:
    with GuestDaemons(lab, guests, DaemonSpec()) as made:
        made.start().wait_ready(READY_S)
        made.wait_settled(READY_S)
        yield made


def test_the_flow_of_an_unmodified_program_is_shown(
    lab: NetnsLab, guests: dict[str, Guest], daemons: GuestDaemons
) -> None:
    job = RdmaJob(guests[SENDER], guests[RECEIVER], lab.address(RECEIVER)).start()
    try:
        until_s = time.monotonic() + SEEN_S
        port = "rxe: takes no other UDP source port while it runs"
        rungs = {"label": "", "route": "", "planned": "rdma.steer.live_qps is off", "port": port}
        # The flow may be known before the device under it is, or before all of the routes to its peer are.
        while True:
            seen = daemons.view(SENDER)["rdma"]
            if [(bool(one["peer"]), one["state"], one["rungs"]) for one in seen["flows"]] == [(True, "RTS", rungs)]:
                break
            assert time.monotonic() < until_s, seen
            time.sleep(0.2)
        (flow,) = seen["flows"]
        assert (flow["device"], flow["peer"]) == (RXE, lab.address(RECEIVER))
        assert flow["gives_up_after_s"] == pytest.approx(7 * 4.096e-6 * 2**14)
        (device,) = seen["devices"]
        assert device["netdevs"] == [VRF]
        until_s = time.monotonic() + SEEN_S
        while not any(
            peer["address"] == flow["peer"] and peer["active"] for peer in daemons.view(SENDER)["peers"]
        ):  # the kernel's socket table knows nothing of it
            assert time.monotonic() < until_s
            time.sleep(0.2)
        while "netdev linkpass" not in guests[SENDER].sh("nft list tables"):  # a lost carrier will not end it at once
            assert time.monotonic() < until_s
            time.sleep(0.2)
    finally:
        job.stop()


def test_the_program_takes_a_path_that_is_watched(
    lab: NetnsLab, guests: dict[str, Guest], daemons: GuestDaemons
) -> None:
    """Which uplink a relabelled packet takes, some kernels do not tell: not those of the guests."""
    peer = lab.address(RECEIVER)
    with Trial(lab, guests, daemons, timeout=TIMEOUT) as trial:
        for _ in range(JOBS):  # each with a queue pair of its own, and so with one label of several
            way = trial.way_of_program()
            paths = [path for path in daemons.view(SENDER)["paths"] if path["peer"] == peer and path["in_use"]]
            ways = [{f"{a}>{b}" for a, b in pairwise((SENDER, *path["hops"], RECEIVER))} for path in paths]
            assert any(set(way) >= one for one in ways), (way, paths)
            trial.end_program()


def told(daemons: GuestDaemons, begun_s: float, shot: object) -> str:
    """What the daemons have seen and done, for whoever has to find out why it was not enough."""
    story = [f"{e.now_s - begun_s:.3f} {e.host} {e.cause} {e.what}: {e.why}" for e in daemons.journal(begun_s)]
    views = [
        f"{host}: peers {view['peers']}\nsteering {view['steering']}\npaths {view['paths']}\nrdma {view['rdma']}"
        for host in (SENDER, RECEIVER)
        for view in [daemons.view(host)]
    ]
    return "\n".join([repr(shot), *story, *views])


@pytest.mark.parametrize(
    ("case", "number"), [("blackhole", 0), ("blackhole", 1), ("carrier", 0), ("drain", 0), ("drain", 1), ("drain", 2)]
)
def test_the_program_goes_on(
    lab: NetnsLab, guests: dict[str, Guest], daemons: GuestDaemons, case: str, number: int
) -> None:
    begun_s = time.monotonic()
    with Trial(lab, guests, daemons, timeout=TIMEOUT) as trial:
        shot = trial.shoot(case, number)
        trial.end_program()
    assert shot.survived, told(daemons, begun_s, shot)
    assert shot.reroute_s is not None, told(daemons, begun_s, shot)
    result = trial.results[-1]
    assert result.whole


def test_a_program_whose_peer_froze_is_named(lab: NetnsLab, guests: dict[str, Guest], daemons: GuestDaemons) -> None:
    with Trial(lab, guests, daemons, timeout=TIMEOUT) as trial:
        shot = trial.shoot("stalled-qp", 0)
        trial.end_program()
    assert shot.survived
    assert shot.said.endswith(f"to {RECEIVER} stands: host, not path")
    assert f"of {RXE}" in shot.said
    assert trial.results[-1].whole
