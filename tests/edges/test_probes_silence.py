"""The probe edge against a real kernel: who is silent, stopped, started anew or late, and that no path is blamed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path

import probe_lab as lab
import pytest
from probe_hosts import KEY, PLAN, Host, pair

from linkpass.core import events as ev

pytestmark = [pytest.mark.netns, pytest.mark.usefixtures("healed")]


async def test_a_stopped_peer_is_silent_and_no_path_is_blamed(fabric: lab.Fabric, tmp_path: Path) -> None:
    """The peer is a process of its own, stopped for longer than its receive ring lasts."""
    one = Host(fabric, "h1").open()
    there = {
        "netns": f"/run/netns/{lab.PREFIX}h2",
        "address": lab.HOSTS["h2"],
        "peer": one.address,
        "plan": PLAN,
        "uplinks": {
            name: [fabric.ifindex["h2", name], fabric.mac["h2", name].hex(), fabric.gateway_mac("h2", name).hex()]
            for name in ("eth1", "eth2")
        },
        "key": KEY.hex(),
    }
    (tmp_path / "there.json").write_text(json.dumps(there))
    script = str(Path(__file__).with_name("probe_peer.py"))
    process = await asyncio.create_subprocess_exec(sys.executable, script, str(tmp_path / "there.json"))
    try:
        one.plan(lab.HOSTS["h2"])
        await one.good()
        for stopped_s in (0.6, 2.5):
            os.kill(process.pid, signal.SIGSTOP)
            await one.until(lambda: bool(one.all(ev.PeerSilent)))
            await asyncio.sleep(stopped_s)
            os.kill(process.pid, signal.SIGCONT)
            await one.until(lambda: bool(one.all(ev.PeerBack)))
            await asyncio.sleep(0.5)
            assert one.judged() == []
            assert set(one.evidence().values()) == {"good"}
            assert len(one.all(ev.PeerSilent)) == len(one.all(ev.PeerBack)) == 1
            one.told.clear()
        # and it still sees what is really broken
        lab.nft("x1", 'iifname "h1" drop')
        await one.until(lambda: one.evidence()["eth2", 21] == "blackhole")
        assert one.judged() == [("eth2", 21, "blackhole")]
    finally:
        process.kill()
        await process.wait()
        one.edge.close()


async def test_what_was_lost_while_the_peer_was_silent_is_no_paths(fabric: lab.Fabric) -> None:
    """All paths come back at one moment, whoever's probe is the first to get through then."""
    paths = tuple(("eth1", label) for label in range(11, 19))
    async with pair(fabric) as (one, two):
        for host, peer in ((one, two), (two, one)):
            host.plan(peer.address, paths)
        for host in (one, two):
            await host.good(paths)
        for _ in range(8):
            lab.nft("l1", f"ip6 daddr {{ {one.address}, {two.address} }} drop")
            for host in (one, two):
                await host.until(lambda host=host: bool(host.all(ev.PeerSilent)))  # type: ignore[misc]
            lab.nft("l1", "")
            for host in (one, two):
                await host.until(lambda host=host: bool(host.all(ev.PeerBack)))  # type: ignore[misc]
            await asyncio.sleep(0.1)
            for host in (one, two):
                assert host.judged() == []
                host.told.clear()


@pytest.mark.parametrize("fault", ["stopped before", "stopped after", "stepped forward", "stepped back"])
async def test_a_wall_clock_read_at_a_bad_moment_shows_no_queue(fabric: lab.Fabric, fault: str) -> None:
    """Frames are stamped with wall time, once translated wrongly: that must not be the floor of later delays."""
    async with pair(fabric) as (one, two):
        turns = iter([fault])

        def wall_s() -> float:
            turn = next(turns, "")
            if turn == "stopped before":
                time.sleep(0.1)
            now_s = time.clock_gettime(time.CLOCK_REALTIME)
            if turn == "stopped after":
                time.sleep(0.1)
            return now_s + {"stepped forward": 2.0, "stepped back": -2.0}.get(turn, 0.0)

        two.edge._listener._wall = wall_s
        await asyncio.sleep(1.6)
        assert next(turns, None) is None
        assert one.judged() == two.judged() == []
        lab.nft("s1", "drop")
        await one.until(lambda: "blackhole" in one.evidence().values())
        assert {evidence for _, _, evidence in one.judged()} == {"blackhole"}


async def test_our_own_lateness_blames_nobody(fabric: lab.Fabric) -> None:
    async with pair(fabric) as (one, two):
        for _ in range(3):
            time.sleep(0.4)  # noqa: ASYNC251  (both daemons starve: that is the point)
            await asyncio.sleep(0.1)
        long = [e for e in one.told if isinstance(e, ev.DaemonLate) and e.late_s > 0.3]
        assert len(long) >= 3  # the machine may stand still by itself, too
        assert one.edge.stats.daemon_late >= 3
        for host in (one, two):
            assert host.news() == []


async def test_who_always_runs_a_little_late_still_hears_a_silence(fabric: lab.Fabric) -> None:
    """A busy host's ticks come late all the time: that puts off its judgement of a peer, but not for ever."""
    async with pair(fabric) as (one, two):
        two.edge.close()
        before = one.edge.stats.daemon_late
        for _ in range(600):
            time.sleep(0.04)  # noqa: ASYNC251  (it starves: that is the point)
            await asyncio.sleep(0.03)
            if one.all(ev.PeerSilent):
                break
        assert one.edge.stats.daemon_late > before
        assert len(one.all(ev.PeerSilent)) == 1
        assert one.judged() == []


async def test_a_restarted_peer_costs_no_verdict_and_its_dead_path_is_found(fabric: lab.Fabric) -> None:
    async with pair(fabric) as (one, two):
        two.edge.close()
        lab.nft("x1", 'iifname "h1" drop')
        again = Host(fabric, "h2").open()
        try:
            again.plan(one.address)
            await one.until(lambda: one.evidence()["eth2", 21] == "blackhole")
            assert one.judged() == [("eth2", 21, "blackhole")]
        finally:
            again.edge.close()
