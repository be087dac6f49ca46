"""Watching the kernel where it is hard: our own routes, devices that come and go, a full buffer, who removes ours."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable

import pytest
from two_uplinks import OWN4, OWN6, PREFIX4, PREFIX6, UPLINKS, TwoUplinks

from linkpass.core.events import Event, SteeringLost, UplinkGone, UplinkState
from linkpass.edges.kernel.routes import ALL, RouteEdge, Way
from linkpass.edges.kernel.sock import RequestSocket
from linkpass.edges.kernel.watch import UplinkInfo, WatchEdge
from linkpass.wire import rtnl

pytestmark = pytest.mark.netns


class Bench:
    """A watch on the host, and everything that it says."""

    def __init__(self, two: TwoUplinks) -> None:
        self.two = two
        self.said: list[Event] = []
        self.infos: dict[str, UplinkInfo] = {}
        self.routes = RouteEdge((PREFIX6, PREFIX4), metric=76)
        self.watch = self.make((PREFIX6, PREFIX4))

    def make(self, prefixes: tuple[str, ...], configured: tuple[UplinkInfo, ...] = ()) -> WatchEdge:
        return WatchEdge(
            prefixes,
            self.said.append,
            lambda info: self.infos.__setitem__(info.name, info),
            configured=configured,
            own_port_ids=lambda: {self.routes.port_id},
        )

    def open(self) -> None:
        with self.two.on_host():
            self.routes.open()
            self.watch.open()

    def steer(self) -> None:
        self.routes.set_ways({i.name: Way(i.index, i.gateway4, i.gateway6) for i in self.infos.values()})
        self.routes.set_group(ALL, UPLINKS)

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while True:
                if holds():
                    return
                await asyncio.sleep(0.002)

    async def heard(self, event: Event) -> None:
        await self.until(lambda: event in self.said)

    async def quiet(self) -> None:
        """Everything that the kernel has said until now has been read: a later change of ours has come through."""
        mark = f"te{len(self.said)}x{os.urandom(2).hex()}"
        self.two.ip(self.two.host, f"link add {mark} type veth peer name {mark}p")
        known = self.watch._known
        await self.until(lambda: any(link.name == mark for link in known.links.values()))
        self.two.ip(self.two.host, f"link del {mark}")
        await self.until(lambda: self.watch._settling is None)


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def start(code: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.fixture
async def bench(two: TwoUplinks) -> AsyncIterator[Bench]:
    made = Bench(two)
    made.open()
    try:
        yield made
    finally:
        made.watch.close()
        made.routes.close()


def up(uplink: str) -> UplinkState:
    return UplinkState(uplink=uplink, usable=True, speed_bps=10_000_000_000)  # what the veth driver says


def down(uplink: str, why: str) -> UplinkState:
    return UplinkState(uplink=uplink, usable=False, why=why, speed_bps=10_000_000_000)


async def test_uplinks_are_where_the_kernel_s_own_routes_lead(bench: Bench) -> None:
    assert sorted(bench.said, key=lambda event: getattr(event, "uplink", "")) == [up("eth1"), up("eth2")]
    links = {link["ifname"]: link for link in json.loads(bench.two.show(bench.two.host, "-j", "link"))}
    assert set(bench.infos) == set(UPLINKS) == set(bench.watch.uplinks)
    for number, name in enumerate(UPLINKS, 1):
        info = bench.infos[name]
        assert (info.index, info.mtu) == (links[name]["ifindex"], 1500)
        assert info.mac.hex(":") == links[name]["address"]
        assert (info.gateway4, info.gateway6) == (f"10.125.{number}.1", f"fd02:1:{number}::b")
    assert bench.watch.own_address(rtnl.AF_INET6) == OWN6 and bench.watch.own_address(rtnl.AF_INET) == OWN4


async def test_our_own_routes_make_no_uplink(bench: Bench) -> None:
    """With the others' routes over one uplink only, ours over both do not count."""
    bench.steer()
    bench.two.ip(bench.two.host, f"route del {PREFIX6} metric 1024", f"route del {PREFIX4} metric 1024")
    bench.infos.clear()
    later = bench.make((PREFIX6, PREFIX4))
    with bench.two.on_host():
        later.open()
    assert bench.infos == {}
    later.close()


async def test_a_device_that_goes_away_and_comes_again(bench: Bench) -> None:
    bench.two.ip(bench.two.host, "link del eth1")
    await bench.heard(UplinkGone(uplink="eth1"))
    bench.said.clear()
    bench.two.ip(bench.two.host, f"link add eth1 up type veth peer name p1 netns {bench.two.far}")
    bench.two.ip(bench.two.far, "link set p1 up")
    await bench.heard(up("eth1"))
    index = json.loads(bench.two.show(bench.two.host, "-j", "link", "show", "eth1"))[0]["ifindex"]
    assert bench.infos["eth1"].index == index


async def test_a_new_name_is_a_device_gone(bench: Bench) -> None:
    bench.two.ip(bench.two.host, "link set eth1 down", "link set eth1 name ethx")
    await bench.heard(UplinkGone(uplink="eth1"))


async def test_after_an_overflow_everything_is_read_anew(bench: Bench) -> None:
    sock = bench.watch._socket
    assert sock is not None
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2304)
    # nothing is read meanwhile: this test does not give the loop a turn
    bench.two.ip(
        bench.two.host,
        *(f"neigh add fd02:1:2::{n:x} lladdr 02:00:00:00:00:01 dev eth2" for n in range(0x100, 0x180)),
        "link set eth1 down",
        *(f"neigh add fd02:1:2::{n:x} lladdr 02:00:00:00:00:01 dev eth2" for n in range(0x180, 0x200)),
    )
    await bench.heard(down("eth1", "administratively down"))
    assert bench.watch.overflows >= 1
    bench.two.ip(bench.two.host, "link set eth1 up")
    await bench.heard(up("eth1"))  # and it goes on listening


@pytest.mark.parametrize("what", ["route", "nexthop", "group"])
async def test_somebody_s_removal_of_ours_is_told_with_a_name(bench: Bench, what: str) -> None:
    bench.steer()
    await bench.quiet()
    hops = json.loads(bench.two.show(bench.two.host, "-j", "nexthop"))
    other = RequestSocket()
    with bench.two.on_host():
        other.open()
    if what == "route":
        other.change(rtnl.RTM_DELROUTE, rtnl.route(PREFIX6, protocol=76, metric=76), 0, "")
    else:
        identity = next(hop["id"] for hop in hops if ("group" in hop) == (what == "group"))
        other.change(rtnl.RTM_DELNEXTHOP, rtnl.next_hop_id(identity), 0, "")
    await bench.until(lambda: any(isinstance(event, SteeringLost) for event in bench.said))
    lost = next(event for event in bench.said if isinstance(event, SteeringLost))
    assert lost.what == f"group {ALL}"
    assert str(other.port_id) in lost.by or str(os.getpid()) in lost.by
    other.close()


async def test_the_remover_is_named_by_its_program(bench: Bench) -> None:
    bench.steer()
    code = f"""
import sys
from linkpass.edges.kernel.sock import RequestSocket
from linkpass.wire import rtnl
sock = RequestSocket()
sock.open()
sock.change(rtnl.RTM_DELROUTE, rtnl.route({PREFIX6!r}, protocol=76, metric=76), 0, "")
print(sock.port_id, flush=True)
sys.stdin.read()
"""
    with bench.two.on_host():
        remover = start(code)
    try:
        assert remover.stdout is not None and remover.stdin is not None
        assert int(remover.stdout.readline()) == remover.pid
        await bench.until(lambda: any(isinstance(event, SteeringLost) for event in bench.said))
        lost = next(event for event in bench.said if isinstance(event, SteeringLost))
        assert lost.by.startswith("python") and f"(pid {remover.pid})" in lost.by
    finally:
        remover.communicate()


async def test_a_new_gateway_is_told(bench: Bench) -> None:
    ways = "nexthop via fd02:1:1::c dev eth1 nexthop via fd02:1:2::b dev eth2"
    bench.two.ip(bench.two.host, f"route replace {PREFIX6} metric 1024 src {OWN6} {ways}")
    await bench.until(lambda: bench.infos["eth1"].gateway6 == "fd02:1:1::c")
    assert bench.infos["eth1"].gateway4 == "10.125.1.1"


async def test_it_watches_without_root(bench: Bench) -> None:
    code = f"""
import asyncio, os
from linkpass.edges.kernel.watch import WatchEdge
async def main():
    os.setgid(65534); os.setuid(65534)
    watch = WatchEdge(({PREFIX6!r},), print, lambda info: None)
    watch.open()
    watch.close()
asyncio.run(main())
"""
    with bench.two.on_host():
        done = run(code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("usable=True") == 2
