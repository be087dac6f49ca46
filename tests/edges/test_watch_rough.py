"""The watch in rough times: queues that overflow, bridges, renamed devices, gateways that move, hands that replace."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
from kernel_lab import BOTH, GATEWAY4, GATEWAY6, OWN_PROTOCOL, PEER6, PREFIX4, PREFIX6, KernelLab, inside, ip

from linkpass.core.events import Event, SteeringLost, UplinkGone, UplinkState
from linkpass.edges.kernel import watch
from linkpass.edges.kernel.remover import Removers
from linkpass.edges.kernel.routes import ALL, RouteEdge, Way
from linkpass.edges.kernel.sock import KernelRefusedError, RequestSocket
from linkpass.edges.kernel.watch import UplinkInfo, WatchEdge
from linkpass.wire import rtnl

pytestmark = pytest.mark.netns


class Watched:
    """A watch and a route edge, wired as in the daemon, and all that they tell in the order of its telling."""

    def __init__(self) -> None:
        self.told: list[Event | UplinkInfo] = []
        self.routes = RouteEdge([PREFIX6, PREFIX4], metric=76)
        self.edge = WatchEdge(
            [PREFIX6, PREFIX4],
            self.told.append,
            self.told.append,
            own_port_ids=lambda: {self.routes.port_id},
            owners=self.routes.owners,
        )

    async def __aenter__(self) -> Watched:
        self.routes.open()
        self.edge.open()
        infos = self.edge.uplinks.values()
        self.routes.set_ways({info.name: Way(info.index, info.gateway4, info.gateway6) for info in infos})
        return self

    async def __aexit__(self, *_: object) -> None:
        self.edge.close()
        self.routes.close()

    def usable(self, uplink: str) -> list[bool]:
        return [event.usable for event in self.told if isinstance(event, UplinkState) and event.uplink == uplink]

    def lost(self) -> list[SteeringLost]:
        return [event for event in self.told if isinstance(event, SteeringLost)]


async def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end, "it did not come true"
        await asyncio.sleep(0.002)


def wait(true: Callable[[], bool]) -> None:
    """Without letting the watch read."""
    end = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end, "it did not come true"


def batch(lines: list[str]) -> None:
    subprocess.run(["ip", "-batch", "-"], input="\n".join(lines), text=True, check=True)


async def test_what_was_queued_before_an_overflow_does_not_undo_the_reading_after_it(
    lab: KernelLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The carrier's return is queued, its loss is dropped: the link is dead, whatever the queue says."""
    monkeypatch.setattr(watch, "RECEIVE_BYTES", 16384)
    async with Watched() as watched:
        lab.carrier("eth1", on=False)
        await until(lambda: watched.usable("eth1")[-1] is False)
        lab.carrier("eth1", on=True)
        wait(lambda: "LOWER_UP" in ip("link", "show", "eth1"))
        batch(
            [
                f"neigh add fd00:1:2::{n:x} lladdr 02:00:00:00:00:01 dev eth2 nud permanent"
                for n in range(0x1000, 0x1200)
            ]
        )
        lab.carrier("eth1", on=False)
        wait(lambda: "LOWER_UP" not in ip("link", "show", "eth1"))
        watched.told.clear()
        await until(lambda: watched.edge.overflows > 0)
        await asyncio.sleep(watch.SETTLE_S * 3)
        assert not watched.edge.uplinks["eth1"].usable
        assert True not in watched.usable("eth1")
        lab.carrier("eth1", on=True)  # and the kernel goes on telling
        await until(lambda: watched.usable("eth1")[-1:] == [True])


async def test_a_flood_that_does_not_end_is_no_reason_to_stop_reading(
    lab: KernelLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "RECEIVE_BYTES", 8192)
    async with Watched() as watched:
        flood = asyncio.get_running_loop().run_in_executor(None, _flood, lab.host)
        lab.carrier("eth1", on=False)
        await until(lambda: not watched.edge.uplinks["eth1"].usable)
        lab.carrier("eth1", on=True)
        await until(lambda: watched.edge.uplinks["eth1"].usable)
        await flood
        await until(lambda: watched.edge.uplinks["eth1"].usable and watched.edge.uplinks["eth2"].usable)
        assert watched.edge.overflows > 0


def _flood(host: str) -> None:
    lines = []
    for _ in range(40):
        numbers = range(0x1000, 0x1100)
        lines += [f"neigh replace fd00:1:2::{n:x} lladdr 02:00:00:00:00:01 dev eth2 nud permanent" for n in numbers]
        lines += [f"neigh del fd00:1:2::{n:x} dev eth2" for n in numbers]
    subprocess.run(["ip", "-n", host, "-batch", "-"], input="\n".join(lines), text=True, check=True)


async def test_what_was_lost_in_an_overflow_is_put_back_by_a_refresh(
    lab: KernelLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "RECEIVE_BYTES", 8192)
    async with Watched() as watched:
        watched.routes.set_group(ALL, BOTH)
        watched.edge.on_routes = watched.routes.refresh
        batch(
            [
                f"neigh add fd00:1:2::{n:x} lladdr 02:00:00:00:00:01 dev eth2 nud permanent"
                for n in range(0x1000, 0x1200)
            ]
        )
        ip("-6", "route", "del", PREFIX6, "proto", str(OWN_PROTOCOL))
        await until(lambda: "proto 76" in ip("-6", "route", "show", PREFIX6))
        assert watched.edge.overflows > 0


async def test_leaving_a_bridge_is_not_the_end_of_a_device(lab: KernelLab) -> None:
    async with Watched() as watched:
        ip("link", "add", "br0", "type", "bridge")
        ip("link", "set", "eth1", "master", "br0")
        ip("link", "set", "eth1", "nomaster")
        ip("link", "add", "probe0", "type", "veth", "peer", "name", "probe1")  # told after it
        await asyncio.sleep(watch.SETTLE_S * 2)
        assert UplinkGone(uplink="eth1") not in watched.told
        assert watched.edge.uplinks["eth1"].present and watched.edge.uplinks["eth1"].usable


async def test_a_device_that_gets_another_name_is_gone_under_the_old_one(lab: KernelLab) -> None:
    async with Watched() as watched:
        ip("link", "set", "eth1", "down")
        ip("link", "set", "eth1", "name", "rail0")
        ip("link", "set", "rail0", "up")
        ip("addr", "add", "fd00:1:1::1/64", "dev", "rail0", "nodad")
        await until(lambda: UplinkGone(uplink="eth1") in watched.told)
        ip("-6", "route", "replace", PREFIX6, "metric", "1024", "via", GATEWAY6["eth1"], "dev", "rail0")
        await until(lambda: watched.usable("rail0")[-1:] == [True])


async def test_the_core_hears_of_a_lost_carrier_before_other_edges_do_anything(lab: KernelLab) -> None:
    """And of a carrier that is back only when they are ready."""
    async with Watched() as watched:
        watched.told.clear()
        decided: list[int] = []
        emit = watched.told.append
        watched.edge._emit = lambda event: (  # as the driver does: what follows from an event is done a turn later
            emit(event),
            asyncio.get_running_loop().call_soon(lambda: decided.append(len(watched.told))),
        )[0]
        lab.carrier("eth1", on=False)
        await until(lambda: len(watched.told) >= 2)
        assert isinstance(watched.told[0], UplinkState) and isinstance(watched.told[1], UplinkInfo)
        assert decided == [1]
        watched.told.clear()
        lab.carrier("eth1", on=True)
        await until(lambda: True in watched.usable("eth1"))
        assert isinstance(watched.told[0], UplinkInfo) and watched.told[0].usable


async def test_a_gateway_that_has_moved_to_another_machine_is_found_again(lab: KernelLab) -> None:
    """Nothing is sent to it, so the kernel has no reason of its own to look: the entry is stale for ever."""
    async with Watched() as watched:
        watched.edge.resolve_gateways()
        await until(lambda: all(i.gateway6_mac and i.gateway4_mac for i in watched.edge.uplinks.values()))
        with inside(lab.router):
            ip("link", "set", "dev", "a", "address", "02:00:00:00:00:aa")
        for gateway in (GATEWAY6["eth1"], GATEWAY4["eth1"]):
            mac = ip("neigh", "show", gateway, "dev", "eth1").split("lladdr ")[1].split()[0]
            ip("neigh", "replace", gateway, "lladdr", mac, "dev", "eth1", "nud", "stale")
        new = bytes.fromhex("0200000000aa")
        end = time.monotonic() + 30
        while {watched.edge.uplinks["eth1"].gateway6_mac, watched.edge.uplinks["eth1"].gateway4_mac} != {new}:
            assert time.monotonic() < end
            watched.edge.resolve_gateways()
            await asyncio.sleep(0.1)


async def test_a_confirmed_gateway_is_not_asked_for(lab: KernelLab, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Watched() as watched:
        watched.edge.resolve_gateways()
        await until(lambda: all(i.gateway6_mac and i.gateway4_mac for i in watched.edge.uplinks.values()))
        for device in BOTH:
            for gateway in (GATEWAY6[device], GATEWAY4[device]):
                mac = ip("neigh", "show", gateway, "dev", device).split("lladdr ")[1].split()[0]
                ip("neigh", "replace", gateway, "lladdr", mac, "dev", device, "nud", "reachable")
        await until(lambda: not watched.edge._known.unconfirmed)
        before = watched.edge._requests._seq
        watched.edge.resolve_gateways()
        assert watched.edge._requests._seq == before


async def test_neighbours_that_are_no_gateways_are_not_kept(lab: KernelLab) -> None:
    async with Watched() as watched:
        batch(
            [
                f"neigh add fd00:1:2::{n:x} lladdr 02:00:00:00:00:01 dev eth2 nud permanent"
                for n in range(0x1000, 0x1100)
            ]
        )
        await asyncio.sleep(0.05)
        assert len(watched.edge._known.neighbours) <= 4


async def test_of_two_gateways_on_a_device_the_more_specific_route_s_counts(lab: KernelLab) -> None:
    ip("-6", "route", "add", "default", "via", "fd00:1:1::99", "dev", "eth1")
    async with Watched() as watched:
        assert watched.edge.uplinks["eth1"].gateway6 == GATEWAY6["eth1"]
        assert set(watched.edge.uplinks) == set(BOTH)


async def test_a_management_port_with_the_default_route_is_no_uplink(lab: KernelLab) -> None:
    ip("link", "add", "mgmt0", "type", "veth", "peer", "name", "mgmt1")
    ip("link", "set", "mgmt0", "up")
    ip("link", "set", "mgmt1", "up")
    ip("addr", "add", "192.0.2.1/24", "dev", "mgmt0")
    ip("-4", "route", "add", "default", "via", "192.0.2.254", "dev", "mgmt0")
    async with Watched() as watched:
        assert set(watched.edge.uplinks) == set(BOTH)


async def test_where_only_a_default_route_leads_to_the_prefix_its_devices_are_the_uplinks(lab: KernelLab) -> None:
    ip("-6", "route", "del", PREFIX6)
    hops = [word for device in BOTH for word in ("nexthop", "via", GATEWAY6[device], "dev", device)]
    ip("-6", "route", "add", "default", *hops)
    async with Watched() as watched:
        assert {name: info.gateway6 for name, info in watched.edge.uplinks.items()} == GATEWAY6


async def test_a_management_port_is_an_uplink_no_longer_once_the_fabric_s_routes_are_there(lab: KernelLab) -> None:
    """The daemon is started before the routing daemon; and when the fabric's routes go again, it stays with them."""
    ip("-6", "route", "del", PREFIX6)
    ip("-4", "route", "del", PREFIX4)
    ip("link", "add", "mgmt0", "type", "veth", "peer", "name", "mgmt1")
    ip("link", "set", "mgmt0", "up")
    ip("link", "set", "mgmt1", "up")
    ip("addr", "add", "192.0.2.1/24", "dev", "mgmt0")
    ip("-4", "route", "add", "default", "via", "192.0.2.254", "dev", "mgmt0")
    async with Watched() as watched:
        assert set(watched.edge.uplinks) == {"mgmt0"}
        lab.restore_routes()
        await until(lambda: set(watched.edge.uplinks) == set(BOTH))
        assert UplinkGone(uplink="mgmt0") in watched.told
        ip("-6", "route", "del", PREFIX6)
        ip("-4", "route", "del", PREFIX4)
        await asyncio.sleep(watch.SETTLE_S * 2)
        assert set(watched.edge.uplinks) == set(BOTH)


# who removed it
async def test_whoever_removes_ours_is_found_by_the_socket_not_by_a_number(lab: KernelLab) -> None:
    """The second netlink socket of a process does not have the process id as its port."""
    program = f"""
import socket, sys
from linkpass.wire import rtnl
first = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
first.bind((0, 0))
second = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
second.bind((0, 0))
body = rtnl.route("{PREFIX6}", protocol={OWN_PROTOCOL}, metric=76)
second.send(rtnl.message(rtnl.RTM_DELROUTE, rtnl.F_REQUEST, 1, body))
print(second.getsockname()[0], flush=True)
sys.stdin.readline()
"""
    async with Watched() as watched:
        watched.routes.set_group(ALL, BOTH)
        with _started(program) as other:
            port = int(other.stdout.readline())  # type: ignore[union-attr]
            await until(lambda: bool(watched.lost()))
            assert port != other.pid
            other.stdin.write("\n")  # type: ignore[union-attr]
        (lost,) = watched.lost()
        assert lost == SteeringLost(what="group all", by=f"{_comm()} (pid {other.pid}) (route {PREFIX6})")


def _started(program: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", program], stdin=-1, stdout=-1, text=True)


def _comm() -> str:
    return os.path.basename(sys.executable)[:15]


async def test_a_remover_that_has_ended_is_said_to_have_ended(lab: KernelLab) -> None:
    async with Watched() as watched:
        watched.routes.set_group(ALL, BOTH)
        ip("-6", "route", "del", PREFIX6, "proto", str(OWN_PROTOCOL))
        await until(lambda: bool(watched.lost()))
        assert watched.lost()[0].by.startswith("a process that has ended (netlink port ")


def test_a_socket_of_our_own_is_found(lab: KernelLab) -> None:
    removers = Removers()
    removers.open()
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as sock:
        sock.bind((0, 0))
        assert f"(pid {os.getpid()})" in removers.name(sock.getsockname()[0])
    removers.close()


@pytest.mark.parametrize(("group", "prefix"), [(ALL, PREFIX6), (ALL, PREFIX4), (PEER6, f"{PEER6}/128")])
async def test_a_route_of_ours_that_somebody_replaced_is_lost(lab: KernelLab, group: str, prefix: str) -> None:
    async with Watched() as watched:
        watched.routes.set_group(group, BOTH)
        gateway = (GATEWAY6 if ":" in prefix else GATEWAY4)["eth1"]
        words = ("-6" if ":" in prefix else "-4", "route")
        ip(*words, "replace", prefix, "metric", "76", "via", gateway, "dev", "eth1")
        await until(lambda: bool(watched.lost()))
        assert {lost.what for lost in watched.lost()} == {f"group {group}"}
        assert f"(route {prefix} replaced)" in watched.lost()[0].by


async def test_others_replacing_their_own_routes_take_nothing_from_us(lab: KernelLab) -> None:
    async with Watched() as watched:
        watched.routes.set_group(ALL, BOTH)
        lab.restore_routes()
        ip("-6", "route", "add", "fd00:ff::9/128", "metric", "76", "via", GATEWAY6["eth1"], "dev", "eth1")
        ip("-6", "route", "replace", "fd00:ff::9/128", "metric", "76", "via", GATEWAY6["eth2"], "dev", "eth2")
        await asyncio.sleep(watch.SETTLE_S * 2)
        assert watched.lost() == []


@pytest.mark.parametrize("object_", ["route", "group", "hop", "changed group"])
async def test_the_loss_names_the_group_that_was_hit(lab: KernelLab, object_: str) -> None:
    async with Watched() as watched:
        watched.routes.set_group(ALL, BOTH)
        watched.routes.set_group(PEER6, BOTH)
        nhid = ip("-6", "route", "show", PEER6, "proto", str(OWN_PROTOCOL)).split("nhid ")[1].split()[0]
        members = ip("nexthop", "show", "id", nhid).split("group ")[1].split()[0].split("/")
        if object_ == "route":
            ip("-6", "route", "del", PEER6, "proto", str(OWN_PROTOCOL))
        elif object_ == "group":
            ip("nexthop", "del", "id", nhid)
        elif object_ == "hop":
            ip("nexthop", "del", "id", members[0])
        else:
            ip("nexthop", "replace", "id", nhid, "group", members[0])
        await until(lambda: bool(watched.lost()))
        assert {lost.what for lost in watched.lost()} == {f"group {PEER6}"}


# strict checking
def test_a_question_that_the_kernel_does_not_know_is_refused_not_overlooked(lab: KernelLab) -> None:
    """As a kernel before 6.14 treats the flow label: here with an attribute that no kernel takes in this question."""
    sock = RequestSocket()
    sock.open()
    body = rtnl.route_lookup(PEER6, label=5)
    assert rtnl.parse_route(sock.ask(rtnl.RTM_GETROUTE, body, "route").body).hops
    with pytest.raises(KernelRefusedError):
        sock.ask(rtnl.RTM_GETROUTE, body + rtnl.nla(20, b"\0"), "route")  # RTA_PREF
    sock.close()


def test_dumps_work_under_strict_checking_and_are_narrowed_by_the_kernel(lab: KernelLab) -> None:
    sock = RequestSocket()
    sock.open()
    names = {rtnl.parse_link(answer.body).name for answer in sock.dump(rtnl.RTM_GETLINK)}
    assert {"lo", *BOTH} <= names
    assert len(sock.dump(rtnl.RTM_GETADDR)) >= 6
    sock.dump(rtnl.RTM_GETNEIGH)
    sock.dump(rtnl.RTM_GETNEXTHOP)
    everything = sock.dump(rtnl.RTM_GETROUTE)
    main = sock.dump(rtnl.RTM_GETROUTE, rtnl.AF_INET6, table=rtnl.TABLE_MAIN)
    assert {rtnl.parse_route(answer.body).table for answer in main} == {rtnl.TABLE_MAIN} and len(main) < len(everything)
    assert sock.dump(rtnl.RTM_GETROUTE, rtnl.AF_INET6, table=rtnl.TABLE_MAIN, protocol=OWN_PROTOCOL) == []
    ip("-6", "route", "add", "fd00:77::/64", "table", "1000", "via", GATEWAY6["eth1"], "dev", "eth1")
    assert [route.destination for route in sock.routes(rtnl.AF_INET6, table=1000)] == ["fd00:77::/64"]
    sock.close()


async def test_following_others_routes_does_not_keep_itself_going(lab: KernelLab) -> None:
    """What a refresh does in the kernel is told, too, and must not be taken for others' doing."""
    async with Watched() as watched:
        calls: list[float] = []

        def follow() -> None:
            calls.append(time.monotonic())
            watched.routes.refresh()

        watched.edge.on_routes = follow
        watched.routes.set_group(ALL, BOTH)
        watched.routes.set_group(PEER6, BOTH)
        lab.restore_routes()
        await until(lambda: bool(calls))
        watched.routes.withdraw(PEER6)
        await asyncio.sleep(watch.SETTLE_S * 2)
        settled = len(calls)
        await asyncio.sleep(watch.SETTLE_S * 6)
        assert len(calls) == settled <= 4
        lab.carrier("eth1", on=False)
        await until(lambda: not watched.edge.uplinks["eth1"].usable)
        await asyncio.sleep(watch.SETTLE_S * 3)
        settled = len(calls)
        await asyncio.sleep(watch.SETTLE_S * 6)
        assert len(calls) == settled


async def test_a_flapping_hand_is_met_by_each_setting(lab: KernelLab) -> None:
    """Removed again and again, as a network manager does that cleans up: told each time, and put back each time."""
    async with Watched() as watched:
        watched.routes.set_group(ALL, BOTH)
        for turn in range(5):
            watched.told.clear()
            ip("-6", "route", "del", PREFIX6, "proto", str(OWN_PROTOCOL))
            await until(lambda: bool(watched.lost()))
            watched.routes.forget(ALL)
            watched.routes.set_group(ALL, (BOTH[turn % 2],))
            assert f"dev {BOTH[turn % 2]}" in ip("-6", "route", "get", PEER6)
