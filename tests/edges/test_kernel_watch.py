"""Watching the real kernel: uplinks found, carrier loss told, overflow survived, foreign hands named."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import time
from collections.abc import Callable

import pytest
from kernel_lab import (
    BOTH,
    GATEWAY4,
    GATEWAY6,
    HOST4,
    HOST6,
    OWN_PROTOCOL,
    PREFIX4,
    PREFIX6,
    KernelLab,
    ip,
)

from linkpass.core.events import Event, SteeringLost, UplinkGone, UplinkState
from linkpass.edges.kernel import watch
from linkpass.edges.kernel.routes import ALL, RouteEdge, Way
from linkpass.edges.kernel.watch import UplinkInfo, WatchEdge
from linkpass.wire import rtnl

pytestmark = pytest.mark.netns


class Watched:
    """A watch, what it has told, and the route edge whose own changes it must not take for somebody else's."""

    def __init__(self, configured: tuple[UplinkInfo, ...] = ()) -> None:
        self.events: list[Event] = []
        self.told: list[UplinkInfo] = []
        self.routes = RouteEdge([PREFIX6, PREFIX4], metric=76)
        self.edge = WatchEdge(
            [PREFIX6, PREFIX4],
            self.events.append,
            self.told.append,
            configured=configured,
            own_port_ids=lambda: {self.routes.port_id},
        )

    async def __aenter__(self) -> Watched:
        self.routes.open()
        self.edge.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.edge.close()
        self.routes.close()

    def steer(self) -> None:
        infos = self.edge.uplinks.values()
        self.routes.set_ways({info.name: Way(info.index, info.gateway4, info.gateway6) for info in infos})
        self.routes.set_group(ALL, BOTH)

    def last_state(self, uplink: str) -> UplinkState:
        return [event for event in self.events if isinstance(event, UplinkState) and event.uplink == uplink][-1]

    def lost(self) -> list[SteeringLost]:
        return [event for event in self.events if isinstance(event, SteeringLost)]


async def until(true: Callable[[], bool]) -> None:
    """Let the loop run until it holds; the kernel needs a moment for some things."""
    end = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end, "it did not come true"
        await asyncio.sleep(0.002)


async def test_uplinks_are_found_from_the_routes_with_all_that_others_need(lab: KernelLab) -> None:
    async with Watched() as watched:
        assert set(watched.edge.uplinks) == set(BOTH)
        for name, info in watched.edge.uplinks.items():
            assert info.usable and info.why() == ""
            assert info.index == lab.index(name) and len(info.mac) == 6 and info.mtu == 1500
            assert (info.gateway6, info.gateway4) == (GATEWAY6[name], GATEWAY4[name])
            assert info.speed_bps == 10_000_000_000
        assert {event.uplink for event in watched.events if isinstance(event, UplinkState)} == set(BOTH)
        assert watched.edge.own_address(10) == HOST6
        assert watched.edge.own_address(2) == HOST4


async def test_next_hop_objects_show_the_uplinks_too(lab: KernelLab) -> None:
    ip("-6", "route", "del", PREFIX6)
    ip("-4", "route", "del", PREFIX4)
    for number, name in enumerate(BOTH, start=1):
        ip("nexthop", "add", "id", str(number), "via", GATEWAY6[name], "dev", name)
    ip("nexthop", "add", "id", "10", "group", "1/2")
    ip("-6", "route", "add", PREFIX6, "nhid", "10")
    async with Watched() as watched:
        assert {name: info.gateway6 for name, info in watched.edge.uplinks.items()} == GATEWAY6


async def test_a_configured_uplink_needs_no_route(lab: KernelLab) -> None:
    ip("-6", "route", "del", PREFIX6)
    ip("-4", "route", "del", PREFIX4)
    async with Watched((UplinkInfo("eth2", gateway6="fe80::1"),)) as watched:
        assert list(watched.edge.uplinks) == ["eth2"]
        assert watched.edge.uplinks["eth2"].usable
    async with Watched((UplinkInfo("eth2"),)) as watched:
        assert watched.last_state("eth2").why == "no gateway known"


async def test_gateways_are_resolved_by_asking_the_kernel(lab: KernelLab) -> None:
    async with Watched() as watched:
        watched.edge.resolve_gateways()
        await until(lambda: all(i.gateway6_mac and i.gateway4_mac for i in watched.edge.uplinks.values()))
        assert watched.told[-1] == watched.edge.uplinks[watched.told[-1].name]


async def test_carrier_loss_and_return_are_told_and_the_gateways_remembered(lab: KernelLab) -> None:
    async with Watched() as watched:
        lab.carrier("eth1", on=False)
        await until(lambda: not watched.last_state("eth1").usable)
        assert watched.last_state("eth1").why == "no carrier"
        assert watched.edge.uplinks["eth1"].gateway6 == GATEWAY6["eth1"]
        assert watched.edge.uplinks["eth2"].usable
        lab.carrier("eth1", on=True)
        await until(lambda: watched.last_state("eth1").usable)
        assert watched.edge.uplinks["eth1"].gateway6 == GATEWAY6["eth1"]


async def test_administratively_down_has_its_own_reason(lab: KernelLab) -> None:
    async with Watched() as watched:
        ip("link", "set", "eth1", "down")
        await until(lambda: not watched.last_state("eth1").usable)
        assert watched.last_state("eth1").why == "administratively down"


async def test_a_device_that_goes_is_told_once(lab: KernelLab) -> None:
    async with Watched() as watched:
        ip("link", "del", "eth1")
        await until(lambda: UplinkGone(uplink="eth1") in watched.events)
        await asyncio.sleep(watch.SETTLE_S * 2)
        assert watched.events.count(UplinkGone(uplink="eth1")) == 1


async def test_overflow_is_followed_by_a_full_reading(lab: KernelLab, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was dropped is found again: here a carrier that went while the socket was full."""
    monkeypatch.setattr(watch, "RECEIVE_BYTES", 16384)
    async with Watched() as watched:
        _flood()
        lab.carrier("eth1", on=False)
        while "LOWER_UP" in ip("link", "show", "eth1"):  # this loop is not running: nobody reads
            pass
        await until(lambda: watched.edge.overflows > 0)
        await until(lambda: not watched.last_state("eth1").usable)
        assert watched.edge.uplinks["eth2"].usable


def _flood() -> None:
    lines = [f"neigh add fd00:1:2::{0x1000 + n:x} lladdr 02:00:00:00:00:01 dev eth2 nud permanent" for n in range(300)]
    subprocess.run(["ip", "-batch", "-"], input="\n".join(lines), text=True, check=True)


async def test_our_own_changes_are_not_foreign(lab: KernelLab) -> None:
    async with Watched() as watched:
        watched.steer()
        watched.routes.refresh()
        watched.routes.set_group(ALL, ("eth1",))
        watched.routes.withdraw_all()
        await asyncio.sleep(watch.SETTLE_S * 2)
        assert watched.lost() == []


async def test_what_the_kernel_drops_with_the_carrier_is_not_foreign(lab: KernelLab) -> None:
    async with Watched() as watched:
        watched.steer()
        for name in BOTH:
            lab.carrier(name, on=False)
        await until(lambda: not any(watched.last_state(name).usable for name in BOTH))
        assert str(OWN_PROTOCOL) not in ip("nexthop", "show").split()
        await asyncio.sleep(watch.SETTLE_S * 2)
        assert watched.lost() == []


async def test_somebody_who_deletes_our_route_is_named(lab: KernelLab) -> None:
    async with Watched() as watched:
        watched.steer()
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as other:
            other.bind((0, 0))
            body = rtnl.route(PREFIX6, protocol=OWN_PROTOCOL, metric=76)
            other.send(rtnl.message(rtnl.RTM_DELROUTE, rtnl.F_REQUEST, 1, body))
            await until(lambda: bool(watched.lost()))
        (lost,) = watched.lost()
        assert lost.what == "group all"
        assert PREFIX6 in lost.by and f"(pid {os.getpid()})" in lost.by


async def test_somebody_who_deletes_our_next_hops_is_told(lab: KernelLab) -> None:
    async with Watched() as watched:
        watched.steer()
        for line in ip("nexthop", "show", "proto", str(OWN_PROTOCOL)).splitlines():
            if "group" not in line:
                ip("nexthop", "del", "id", line.split()[1])
        await until(lambda: bool(watched.lost()))
        assert {lost.what for lost in watched.lost()} == {"group all"}


async def test_settled_route_changes_are_told_once(lab: KernelLab) -> None:
    async with Watched() as watched:
        calls: list[None] = []
        watched.edge.on_routes = lambda: calls.append(None)
        for number in range(20):
            ip("-6", "route", "add", f"fd00:ff::{number + 16:x}/128", "via", GATEWAY6["eth1"], "dev", "eth1")
        await until(lambda: bool(calls))
        await asyncio.sleep(watch.SETTLE_S * 2)
        assert len(calls) <= 2
