"""IPv4 with entropy tunnels: real daemons and a real job, and a spine that swallows packets one way."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from rig import START_S, Rig, moved, says
from roomy_fabric import PREFIX4, Seen, make_room

from lab.daemons import DaemonSpec
from lab.job import Job, JobSpec
from linkpass.config.model import Tunnels

pytestmark = [pytest.mark.netns, pytest.mark.e2e]


class TunnelRig(Rig):
    """Job and daemons speak IPv4; links have room for tunnels."""

    def __init__(self, folder: Path) -> None:
        extra = {"tunnels": {"enabled": True}, "": {"prefixes": [PREFIX4]}}
        super().__init__(folder, DaemonSpec(family=4, tcp_timers=True, realtime=True, extra=extra))  # type: ignore[dict-item]
        self.job = Job(
            self.lab, self.hosts, folder / "job",
            JobSpec(steps=1_000_000, hash_every=50, family=4, extra=("--pause-s", "0.03")),
        )  # fmt: skip

    def __enter__(self) -> TunnelRig:
        try:
            self.lab.up()
            make_room(self.lab)
            self.job.start().wait_steps(20, START_S)
            self.start_daemons()
        except BaseException:
            self.close()
            raise
        return self

    def _spread(self, host: str) -> bool:
        view = self.daemons.view(host)
        tunnels = [path for path in view["paths"] if path["label"]]
        return bool(tunnels) and all(path["evidence"] == "good" and path["grade"] == "good" for path in tunnels)


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TunnelRig]:
    with TunnelRig(tmp_path_factory.mktemp("rig")) as made:
        yield made


def ports_of(rig: TunnelRig, seen: Seen, host: str) -> set[int]:
    """Outer source ports of what a host sends now to others; 0: outside of tunnels (probes beside are left out)."""
    seen.take(rig.lab.address(host, 4))
    rig.goes_on(3)
    return {port for _, port in seen.take(rig.lab.address(host, 4))}


def test_the_job_s_flows_are_in_tunnels_whose_ways_are_known(rig: TunnelRig) -> None:
    rig.calm()
    view = rig.daemons.view("host1")
    assert view["notes"] == []
    active = {peer["address"] for peer in view["peers"] if peer["active"]}
    paths = [path for path in view["paths"] if path["peer"] in active and path["label"]]
    assert paths and all(len(path["hops"]) in (1, 3) and None not in path["hops"] for path in paths)
    assert {path["uplink"] for path in paths} == {"eth1", "eth2"}
    used = {path["label"] for path in paths if path["in_use"]}
    with_tunnels = Seen(rig.lab)
    try:
        assert ports_of(rig, with_tunnels, "host1") & used
    finally:
        with_tunnels.close()
    assert used <= set(range(Tunnels().first_source_port, Tunnels().first_source_port + 16))


def test_a_spine_s_dead_direction_is_left_by_rung_1_alone(rig: TunnelRig) -> None:
    since_s = rig.calm()
    direction = rig.busiest(between=(1, 2))
    groups = {host: group_of(rig, host) for host in rig.hosts}
    with rig.broken(f"blackhole:{direction}"):
        entries = rig.wait_told(since_s, moved("away"), f"somebody moves traffic off {direction}")
        rig.wait_told(since_s, says(r"verified after the move$"), "somebody has verified the move")
        rig.wait_told(since_s, says(rf"^verdict link: {direction} lets"), "somebody names the link")
        rig.goes_on(20)
        assert {entry.rung for entry in rig.told(since_s, lambda entry: entry.is_move)} == {1}
        assert {host: group_of(rig, host) for host in rig.hosts} == groups
        assert rig.verdicts() == {direction}
    movers = {entry.host for entry in entries}
    rig.wait_told(since_s, moved("back"), "all who moved have moved back", movers, 60)
    rig.goes_on()


def group_of(rig: TunnelRig, host: str) -> list[str]:
    return next(one["programmed"] for one in rig.daemons.view(host)["steering"] if one["object"] == "group all")


def test_a_daemon_that_stops_takes_its_tunnels_along_and_its_peers_leave_them_first(rig: TunnelRig) -> None:
    since_s = rig.calm()
    rig.daemons.stop_one("host3", 60.0)
    others = [host for host in rig.hosts if host != "host3"]
    rig.wait_told(since_s, says(r"^no tunnel\(s\) lead to host3$"), "all others have heard", others)
    assert "linkpass" not in rig.in_host("host3", "ip", "link")
    assert "linkpass" not in rig.in_host("host3", "nft", "list", "tables")
    assert "76" not in rig.in_host("host3", "ip", "-4", "route", "show", "table", "all", "proto", "76")
    rig.goes_on(20)
    rig.daemons.start_one("host3")
    rig.daemons.wait_ready(START_S)
    started_s = time.monotonic()
    rig.wait_told(started_s - 5, says(r"^16 tunnel\(s\) lead to host3$"), "tunnels lead there again", others)
    rig.calm()
    rig.goes_on()


def test_a_killed_daemon_leaves_traffic_in_its_tunnels(rig: TunnelRig) -> None:
    since_s = rig.calm()
    rig.daemons.kill("host2")
    rig.goes_on(20)
    others = [host for host in rig.hosts if host != "host2"]
    rig.wait_told(since_s, says(r"^left the flows to host2 to the kernel$"), "they leave its tunnels in time")
    rig.goes_on(20)
    rig.daemons.start_one("host2")
    rig.daemons.wait_ready(START_S)
    rig.wait_told(since_s, says(r"^16 tunnel\(s\) lead to host2$"), "tunnels lead there again", others)
    rig.calm()


def test_the_weights_are_those_of_the_undisturbed_run(rig: TunnelRig) -> None:
    rig.calm()
    rig.end_with_the_same_weights()
