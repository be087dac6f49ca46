"""Two daemons in emulated hosts ask each other through their soft-RoCE devices, and notice what only RoCE suffers."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lab.bench.rdma import RECEIVER, SENDER
from lab.daemons import DaemonSpec
from lab.faults import parse as parse_fault
from lab.netns.lab import NetnsLab
from lab.qemu.daemons import GuestDaemons
from lab.qemu.guest import Guest
from lab.qemu.hosts import RXE, VRF, talking, tap_name
from lab.rdma_job import RdmaJob
from topology.sources.containerlab import parse

pytestmark = pytest.mark.guests
FILE = Path(__file__).parents[2] / "lab/leaf-spine.clab.yml"
READY_S = 180.0
PATIENCE_S = 60.0
SPEC = DaemonSpec(
    mode="observe",
    extra={"probing": {"protocol": "verbs", "interval_s": 0.1, "verbs_interval_s": 0.3, "dscp": 26}},
)  # fmt: skip


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NetnsLab]:
    fabric = parse(FILE.read_text(encoding="utf-8"), str(FILE))
    made = NetnsLab(
        fabric, name="trd", run_dir=tmp_path_factory.mktemp("datagrams") / "lab", guests=(SENDER, RECEIVER)
    )  # fmt: skip
    try:
        made.up()
        yield made
    finally:
        made.down()


@pytest.fixture(scope="module")
def guests(lab: NetnsLab) -> Iterator[dict[str, Guest]]:
    with talking(lab, SENDER) as sender, talking(lab, RECEIVER) as receiver:
        yield {SENDER: sender, RECEIVER: receiver}


@pytest.fixture(scope="module")
def daemons(lab: NetnsLab, guests: dict[str, Guest]) -> Iterator[GuestDaemons]:
    with GuestDaemons(lab, guests, SPEC, hosts=(SENDER, RECEIVER)) as made:
        made.start().wait_ready(READY_S)
        yield made


def until(true: Callable[[], bool], what: Callable[[], object] = str) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < end_s, what()
        time.sleep(0.2)


def row(daemons: GuestDaemons, host: str, peer: str) -> dict[str, Any]:
    found = [one for one in daemons.view(host)["rdma"]["datagrams"] if one["peer"] == peer]
    return found[0] if len(found) == 1 else {"evidence": f"{len(found)} rows"}


def told_apart(seen: dict[str, Any]) -> bool:
    """Of an answer that no host has held up: one that stood still for a second tells of that second."""
    return all(0 < (seen.get(part) or 0.0) < 1.0 for part in ("network_s", "peer_host_s", "host_s"))


def good(daemons: GuestDaemons, host: str, peer: str) -> bool:
    return bool(row(daemons, host, peer)["evidence"] == "good")


def paths_are_good(daemons: GuestDaemons, peer: str) -> bool:
    """At one moment: an emulated host that stood still for a while has answered late, and is suspected that long."""
    paths = [path for path in daemons.view(SENDER)["paths"] if path["peer"] == peer]
    return bool(paths) and all(path["evidence"] == "good" for path in paths)


def said(daemons: GuestDaemons, host: str, words: str, since_s: float) -> bool:
    return any(words in entry.what and entry.host == host for entry in daemons.journal(since_s))


def index_of(daemons: GuestDaemons, host: str, address: str) -> int | None:
    (device,) = daemons.view(host)["rdma"]["devices"]
    return next((one["index"] for one in device["ports"][0]["gids"] if one["gid"] == address), None)


@contextmanager
def roce_dropped(lab: NetnsLab, host: str) -> Iterator[None]:
    """What the host sends to RoCE's port is dropped behind its cards; all else passes."""
    ports = [wire.end(host).device for wire in lab.plan.wires_of(host)]
    chains = "\n".join(
        f'chain c{n} {{ type filter hook ingress device "{tap_name(port)}" priority -10; udp dport 4791 drop; }}'
        for n, port in enumerate(ports)
    )
    with lab.in_netns(host):
        subprocess.run(["nft", "-f", "-"], input=f"table netdev cut {{\n{chains}\n}}\n", text=True, check=True)
    try:
        yield
    finally:
        with lab.in_netns(host):
            subprocess.run(["nft", "delete", "table", "netdev", "cut"], check=True)


def test_both_daemons_see_each_other_through_their_devices(lab: NetnsLab, daemons: GuestDaemons) -> None:
    """What the network took is less than all that passed, and what the peer took is told apart."""
    for host, peer in ((SENDER, lab.address(RECEIVER)), (RECEIVER, lab.address(SENDER))):
        until(lambda host=host, peer=peer: good(daemons, host, peer), lambda host=host: daemons.view(host)["rdma"])
        until(
            lambda host=host, peer=peer: told_apart(row(daemons, host, peer)),
            lambda host=host: daemons.view(host)["rdma"],
        )
        seen = row(daemons, host, peer)
        assert (seen["device"], seen["gid"], seen["traffic_class"], seen["stamped"]) == (RXE, peer, 26 << 2, False)
        probes = daemons.view(host)["probes"]
        assert probes["refused"]["mac"] == probes["refused"]["malformed"] == 0
    until(lambda: paths_are_good(daemons, lab.address(RECEIVER)), lambda: daemons.view(SENDER)["paths"])


def test_what_only_roce_suffers_is_named_and_moves_nothing(lab: NetnsLab, daemons: GuestDaemons) -> None:
    peer = lab.address(RECEIVER)
    until(lambda: good(daemons, SENDER, peer))
    begun_s = time.monotonic()
    with roce_dropped(lab, SENDER):
        words = f"blackhole of RoCE datagrams from {RXE} to {peer}, DSCP 26 ({RECEIVER})"
        until(lambda: said(daemons, SENDER, words, begun_s), lambda: daemons.journal(begun_s))
        until(lambda: paths_are_good(daemons, peer), lambda: daemons.view(SENDER)["paths"])
    until(lambda: said(daemons, SENDER, f"RoCE datagrams from {RXE} to {peer}, DSCP 26 ({RECEIVER}) get", begun_s))
    assert not [entry for entry in daemons.journal(begun_s) if "moved" in entry.what]


def test_a_blackhole_on_their_way_is_noticed(lab: NetnsLab, daemons: GuestDaemons) -> None:
    """A daemon that only observes moves nothing: one of the two uplinks carries them all the time."""
    peer = lab.address(RECEIVER)
    until(lambda: good(daemons, SENDER, peer))
    noticed = False
    for wire in lab.plan.wires_of(SENDER):
        begun_s = time.monotonic()
        link = f"{SENDER}-{wire.b.node if wire.a.node == SENDER else wire.a.node}"
        fault = lab.fault(parse_fault(f"blackhole:{link}", lab.fabric))
        try:
            end_s = time.monotonic() + PATIENCE_S
            while not noticed and time.monotonic() < end_s:
                noticed = said(daemons, SENDER, "blackhole of RoCE datagrams", begun_s)
                time.sleep(0.2)
        finally:
            fault.undo()
        until(lambda: good(daemons, SENDER, peer))
    assert noticed


def test_a_peer_whose_daemon_is_new_is_asked_again_where_it_answers(lab: NetnsLab, daemons: GuestDaemons) -> None:
    peer = lab.address(RECEIVER)
    until(lambda: good(daemons, SENDER, peer))
    begun_s = time.monotonic()
    daemons.processes[RECEIVER].send_signal(15)
    assert daemons.processes[RECEIVER].wait(PATIENCE_S) == 0
    daemons.start_one(RECEIVER)
    answered = row(daemons, SENDER, peer)["answered"]
    until(lambda: row(daemons, SENDER, peer).get("answered", 0) > answered + 3, lambda: daemons.view(SENDER)["rdma"])
    assert not said(daemons, SENDER, "blackhole of RoCE datagrams", begun_s)


def test_an_address_at_another_index_is_asked_from_there(
    lab: NetnsLab, guests: dict[str, Guest], daemons: GuestDaemons
) -> None:
    peer, own = lab.address(RECEIVER), lab.address(SENDER)
    until(lambda: good(daemons, SENDER, peer))
    before = index_of(daemons, SENDER, own)
    guests[SENDER].sh(f"ip addr del {own}/128 dev {VRF}")
    until(lambda: index_of(daemons, SENDER, own) is None)
    guests[SENDER].sh(f"ip addr add fd00:ff::98/128 dev {VRF} nodad")  # takes the row that is free now
    until(lambda: index_of(daemons, SENDER, "fd00:ff::98") == before)
    guests[SENDER].sh(f"ip addr add {own}/128 dev {VRF} nodad")
    until(lambda: index_of(daemons, SENDER, own) not in (None, before))
    until(lambda: row(daemons, SENDER, peer).get("answered", 0) > 3, lambda: daemons.view(SENDER)["rdma"])
    until(lambda: good(daemons, RECEIVER, own))


def test_a_device_that_goes_and_comes_back_answers_from_another_queue_pair(
    lab: NetnsLab, guests: dict[str, Guest], daemons: GuestDaemons
) -> None:
    peer, own = lab.address(RECEIVER), lab.address(SENDER)
    until(lambda: good(daemons, SENDER, peer) and good(daemons, RECEIVER, own))
    guests[RECEIVER].run(["rdma", "link", "del", RXE], timeout_s=30)
    until(lambda: not daemons.view(RECEIVER)["rdma"]["datagrams"])
    guests[RECEIVER].sh(f"rdma link add {RXE} type rxe netdev {VRF}")
    until(lambda: good(daemons, RECEIVER, own), lambda: daemons.view(RECEIVER)["rdma"])
    answered = row(daemons, SENDER, peer)["answered"]
    until(lambda: row(daemons, SENDER, peer).get("answered", 0) > answered + 3, lambda: daemons.view(SENDER)["rdma"])


def test_a_flow_of_the_job_is_asked_about_in_its_own_class(
    lab: NetnsLab, guests: dict[str, Guest], daemons: GuestDaemons
) -> None:
    job = RdmaJob(guests[SENDER], guests[RECEIVER], lab.address(RECEIVER)).start()
    try:
        until(lambda: row(daemons, SENDER, lab.address(RECEIVER)).get("traffic_class") == 0)
        until(lambda: good(daemons, SENDER, lab.address(RECEIVER)))
        begun_s = time.monotonic()
        guests[SENDER].sh(f"ip addr add fd00:ff::99/128 dev {VRF} nodad")  # what its own index stands for is read again
        until(lambda: said(daemons, SENDER, f"RDMA port {RXE}/1 GID_CHANGE", begun_s))
        until(lambda: [one["peer"] for one in daemons.view(SENDER)["rdma"]["flows"]] == [lab.address(RECEIVER)])
        until(lambda: row(daemons, SENDER, lab.address(RECEIVER)).get("traffic_class") == 0)
    finally:
        assert job.stop().whole
