"""Our routes among others': never out of an uplink that the route below lacks, put back whoever took them, alone."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator

import pytest
from kernel_lab import (
    BOTH,
    GATEWAY4,
    GATEWAY6,
    HOST6,
    OWN_PROTOCOL,
    PEER6,
    PREFIX4,
    PREFIX6,
    KernelLab,
    inside,
    ip,
)

from linkpass.edges.kernel import routes
from linkpass.edges.kernel.routes import ALL, RouteEdge, Way
from linkpass.edges.kernel.sock import KernelRefusedError

pytestmark = pytest.mark.netns
ONE6, ONE4 = "fd00:ff::50/124", "10.255.0.64/28"
"""Inside the prefixes, and reachable over one uplink only."""


@pytest.fixture
def edge(lab: KernelLab) -> Iterator[RouteEdge]:
    made = RouteEdge([PREFIX6, PREFIX4], metric=76)
    made.open()
    made.set_ways({name: Way(lab.index(name), GATEWAY4[name], GATEWAY6[name]) for name in BOTH})
    yield made
    made.close()


def ours() -> dict[str, set[str]]:
    """Destination -> devices, of our routes."""
    found = {}
    for family in ("-4", "-6"):
        for route in json.loads(ip(family, "-j", "route", "show", "proto", str(OWN_PROTOCOL))):
            hops = route.get("nexthops") or [route]
            found[route["dst"]] = {hop["dev"] for hop in hops}
    return found


def ids() -> set[int]:
    return {hop["id"] for hop in json.loads(ip("-j", "nexthop", "show"))}


def others() -> list[str]:
    shown = (ip("-4", "-o", "route") + ip("-6", "-o", "route")).splitlines()
    return [line for line in shown if f"proto {OWN_PROTOCOL}" not in line]


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end, "the kernel did not get there in time"
        time.sleep(0.005)


def lost_carrier(lab: KernelLab, device: str) -> None:
    lab.carrier(device, on=False)
    until(lambda: "LOWER_UP" not in ip("link", "show", device))


# never out of an uplink that the route below does not have
@pytest.fixture
def narrow(lab: KernelLab) -> None:
    ip("-6", "route", "add", ONE6, "via", GATEWAY6["eth1"], "dev", "eth1")
    ip("-4", "route", "add", ONE4, "metric", "1024", "via", GATEWAY4["eth1"], "dev", "eth1")


@pytest.mark.usefixtures("narrow")
def test_a_route_over_one_uplink_is_covered_over_that_one_alone(edge: RouteEdge) -> None:
    before = others()
    edge.set_group(ALL, BOTH)
    assert ours() == {PREFIX6: {*BOTH}, PREFIX4: {*BOTH}, ONE6: {"eth1"}, ONE4: {"eth1"}}
    edge.set_group(ALL, ("eth1",))
    assert ours() == {PREFIX6: {"eth1"}, PREFIX4: {"eth1"}, ONE6: {"eth1"}, ONE4: {"eth1"}}
    assert others() == before
    edge.withdraw_all()
    assert ours() == {} and ids() == set() and others() == before


@pytest.mark.usefixtures("narrow")
def test_where_no_chosen_uplink_leads_the_kernel_decides(edge: RouteEdge) -> None:
    edge.set_group(ALL, BOTH)
    edge.set_group(ALL, ("eth2",))
    assert ours() == {PREFIX6: {"eth2"}, PREFIX4: {"eth2"}}
    assert "dev eth1" in ip("route", "get", "fd00:ff::51") and "dev eth1" in ip("route", "get", "10.255.0.65")
    edge.set_group(ALL, BOTH)
    assert ours()[ONE6] == ours()[ONE4] == {"eth1"}


@pytest.mark.usefixtures("narrow")
def test_a_peer_s_route_leads_where_the_longest_route_to_it_leads(edge: RouteEdge) -> None:
    edge.set_group("fd00:ff::51", BOTH)
    assert ours() == {"fd00:ff::51": {"eth1"}}
    with pytest.raises(KernelRefusedError, match="no route of the kernel"):
        edge.set_group("fd00:ff::52", ("eth2",))


def test_an_uplink_that_leaves_the_route_below_leaves_ours_and_comes_back_with_it(
    lab: KernelLab, edge: RouteEdge
) -> None:
    """And its routes are never without a way in between: the group is replaced, not made anew."""
    edge.set_group(ALL, BOTH)
    made = ids()
    ip("-6", "route", "replace", PREFIX6, "src", HOST6, "metric", "1024", "via", GATEWAY6["eth2"], "dev", "eth2")
    edge.refresh()
    assert ours() == {PREFIX6: {"eth2"}, PREFIX4: {*BOTH}} and ids() < made
    lab.restore_routes()
    edge.refresh()
    assert ours() == {PREFIX6: {*BOTH}, PREFIX4: {*BOTH}}


def test_a_route_below_that_moves_to_another_uplink_takes_ours_along_without_a_gap(edge: RouteEdge) -> None:
    ip("-6", "route", "add", ONE6, "via", GATEWAY6["eth1"], "dev", "eth1")
    ip("-6", "route", "add", "fd00:ff::60/124", "via", GATEWAY6["eth2"], "dev", "eth2")
    edge.set_group(ALL, BOTH)
    assert ours()[ONE6] == {"eth1"} and ours()["fd00:ff::60/124"] == {"eth2"}
    ip("-6", "route", "replace", ONE6, "via", GATEWAY6["eth2"], "dev", "eth2")
    edge.refresh()
    assert ours()[ONE6] == {"eth2"} and ours()["fd00:ff::60/124"] == {"eth2"}


def test_an_uplink_that_the_operator_has_named_leads_everywhere(lab: KernelLab, edge: RouteEdge) -> None:
    ip("-6", "route", "replace", PREFIX6, "src", HOST6, "metric", "1024", "via", GATEWAY6["eth1"], "dev", "eth1")
    edge.set_ways(
        {
            "eth1": Way(lab.index("eth1"), GATEWAY4["eth1"], GATEWAY6["eth1"]),
            "eth2": Way(lab.index("eth2"), "", GATEWAY6["eth2"], everywhere=True),
        }
    )
    edge.set_group(ALL, BOTH)
    assert ours()[PREFIX6] == {*BOTH}


def test_where_only_the_default_route_leads_to_a_prefix_the_prefix_is_covered_and_no_more(edge: RouteEdge) -> None:
    ip("-6", "route", "del", PREFIX6)
    hops = [word for device in BOTH for word in ("nexthop", "via", GATEWAY6[device], "dev", device)]
    ip("-6", "route", "add", "default", "metric", "5", *hops)
    edge.set_group(ALL, ("eth2",))
    assert ours() == {PREFIX6: {"eth2"}, PREFIX4: {"eth2"}}


def test_a_prefix_that_is_not_to_be_reached_stays_so(edge: RouteEdge) -> None:
    ip("-6", "route", "del", PREFIX6)
    ip("-6", "route", "add", "unreachable", PREFIX6)
    ip("-6", "route", "add", "default", "via", GATEWAY6["eth1"], "dev", "eth1")
    edge.set_group(ALL, BOTH)
    assert PREFIX6 not in ours()


# one peer's end is nobody else's business
def test_withdrawing_a_peer_leaves_the_others_lookups_alone(edge: RouteEdge) -> None:
    """The kernel keeps ready-made routes per next hop and CPU; a removed route's must not answer for others."""
    edge.set_group(ALL, BOTH)
    edge.set_group(PEER6, BOTH)
    edge.set_group("fd00:ff::3", BOTH)
    peers = (PEER6, "fd00:ff::3", "fd00:ff::9")
    for peer in peers:
        edge.uplink_of(peer, HOST6, range(1, 65))
    edge.withdraw(PEER6)
    for _ in range(50):  # on whatever CPU the question is asked
        for peer in peers:
            assert set(edge.uplink_of(peer, HOST6, range(1, 65))) == set(range(1, 65))


def test_a_route_that_somebody_else_removed_does_not_silence_its_neighbours(edge: RouteEdge) -> None:
    ip("-6", "route", "add", "fd00:ff::70/124", "src", HOST6, *_hops6())
    edge.set_group(ALL, BOTH)
    for peer in ("fd00:ff::71", "fd00:ff::9"):
        edge.uplink_of(peer, HOST6, range(1, 65))
    ip("-6", "route", "del", "fd00:ff::70/124", "proto", str(OWN_PROTOCOL))
    for _ in range(20):
        assert set(edge.uplink_of("fd00:ff::9", HOST6, range(1, 65))) == set(range(1, 65))


def _hops6() -> list[str]:
    return [word for device in BOTH for word in ("nexthop", "via", GATEWAY6[device], "dev", device)]


def test_traffic_does_not_notice_a_peer_s_withdrawal(lab: KernelLab, edge: RouteEdge) -> None:
    """A connection and single packets, to the peer itself and past it, before, between and after."""
    with inside(lab.router):
        server = socket.create_server((PEER6, 9000), family=socket.AF_INET6)
        sink = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        sink.bind((PEER6, 9001))
        sink.settimeout(30)
    edge.set_group(ALL, BOTH)
    with server, sink, socket.create_connection((PEER6, 9000), source_address=(HOST6, 0)) as client:
        accepted, _ = server.accept()
        with accepted, socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as loose:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            loose.bind((HOST6, 0))
            for turn in range(60):
                edge.set_group(PEER6, (BOTH[turn % 2],)) if turn % 2 else edge.withdraw(PEER6)
                client.sendall(b"x")
                assert accepted.recv(1) == b"x"
                loose.sendto(b"y", (PEER6, 9001))
                assert sink.recv(1) == b"y"
            assert client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)[2] == 0  # no retransmission


def test_groups_share_no_next_hop(edge: RouteEdge) -> None:
    edge.set_group(ALL, BOTH)
    edge.set_group(PEER6, BOTH)
    members = [
        member["id"] for hop in json.loads(ip("-j", "nexthop", "show")) if "group" in hop for member in hop["group"]
    ]
    assert len(members) == len(set(members)) == 6


# put back
@pytest.mark.parametrize("family", ["-6", "-4"])
@pytest.mark.parametrize("what", ["route", "group", "hop", "everything"])
def test_setting_the_group_puts_back_whatever_somebody_took(edge: RouteEdge, what: str, family: str) -> None:
    """Nobody has told the edge."""
    edge.set_group(ALL, BOTH)
    prefix = PREFIX6 if family == "-6" else PREFIX4
    if what in ("route", "everything"):
        ip(family, "route", "del", prefix, "proto", str(OWN_PROTOCOL))
    if what in ("group", "everything"):
        for group in [hop["id"] for hop in json.loads(ip("-j", "nexthop", "show")) if "group" in hop]:
            ip("nexthop", "del", "id", str(group))
    if what in ("hop", "everything"):
        for hop in [hop["id"] for hop in json.loads(ip("-j", "nexthop", "show")) if "group" not in hop]:
            ip("nexthop", "del", "id", str(hop))
    edge.set_group(ALL, ("eth2",))
    assert ours() == {PREFIX6: {"eth2"}, PREFIX4: {"eth2"}}
    edge.set_group(ALL, BOTH)
    assert ours() == {PREFIX6: {*BOTH}, PREFIX4: {*BOTH}}


def test_the_fast_way_is_one_datagram_a_family(edge: RouteEdge) -> None:
    edge.set_group(ALL, BOTH)
    before = edge._socket._seq
    edge.set_group(ALL, ("eth1",))
    edge.set_group(ALL, BOTH)
    # two bundles, each the group's replacement and its only route
    assert edge._socket._seq - before == 2 * 2 * 2


def test_after_carrier_loss_others_routes_are_not_read(
    lab: KernelLab, edge: RouteEdge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there are a hundred thousand of them that would take seconds."""
    edge.set_group(ALL, BOTH)
    monkeypatch.setattr(edge, "covered", lambda: pytest.fail("others' routes were read"))
    edge.set_group(ALL, ("eth1",))
    lost_carrier(lab, "eth1")
    edge.set_group(ALL, ("eth2",))
    assert ours() == {PREFIX6: {"eth2"}, PREFIX4: {"eth2"}}
    lab.carrier("eth1", on=True)
    until(lambda: "LOWER_UP" in ip("link", "show", "eth1"))
    edge.set_group(ALL, BOTH)
    assert ours() == {PREFIX6: {*BOTH}, PREFIX4: {*BOTH}}


@pytest.mark.parametrize("prefix", [PREFIX6, PREFIX4])
def test_a_route_put_in_ours_place_is_never_edited(edge: RouteEdge, prefix: str) -> None:
    """What somebody else has put there with our metric is his; ours lies over it or leaves it be."""
    six = ":" in prefix
    edge.set_group(ALL, BOTH)
    family, gateway = ("-6", GATEWAY6) if six else ("-4", GATEWAY4)
    ip(family, "route", "replace", prefix, "metric", "76", "via", gateway["eth1"], "dev", "eth1")
    his = others()
    edge.set_group(ALL, ("eth2",))
    edge.refresh()
    assert others() == his
    edge.withdraw_all()
    assert ours() == {} and others() == his


def test_what_somebody_took_and_nobody_asked_for_again_is_given_up_whole(edge: RouteEdge) -> None:
    """Half of a group would go on steering for ever: nobody moves it any more."""
    edge.set_group(ALL, ("eth2",))
    edge.set_group(PEER6, ("eth1",))
    ip("-6", "route", "del", PREFIX6, "proto", str(OWN_PROTOCOL))
    edge.forget(ALL)
    edge.refresh()
    assert ours() == {PEER6: {"eth1"}}
    edge.set_group(ALL, ("eth2",))
    assert ours() == {PEER6: {"eth1"}, PREFIX6: {"eth2"}, PREFIX4: {"eth2"}}


def test_a_refresh_goes_on_without_an_uplink_that_has_no_carrier(lab: KernelLab, edge: RouteEdge) -> None:
    edge.set_group(ALL, BOTH)
    lost_carrier(lab, "eth1")
    ip("-6", "route", "del", PREFIX6, "proto", str(OWN_PROTOCOL))
    edge.refresh()
    assert ours() == {PREFIX6: {"eth2"}, PREFIX4: {"eth2"}}


def test_the_next_daemon_takes_over_without_a_gap_and_without_a_sweep(lab: KernelLab, edge: RouteEdge) -> None:
    edge.set_group(ALL, ("eth1",))
    first = ids()
    later = RouteEdge([PREFIX6, PREFIX4], metric=76)
    later.open()
    later.set_ways({name: Way(lab.index(name), GATEWAY4[name], GATEWAY6[name]) for name in BOTH})
    later.set_group(ALL, ("eth2",))
    assert ours() == {PREFIX6: {"eth2"}, PREFIX4: {"eth2"}}
    assert first < ids()  # an id of the earlier run is not taken, whatever it stands for
    later.withdraw_all()
    assert ours() == {} and ids() == first
    later.sweep()
    assert ids() == set()
    later.close()


# ids
def test_ids_come_from_our_range_and_are_used_again(edge: RouteEdge, monkeypatch: pytest.MonkeyPatch) -> None:
    """A range of twelve: enough for what lies at a time, not for all that was ever laid."""
    monkeypatch.setattr(routes, "LAST_ID", routes.FIRST_ID + 11)
    edge.set_group(ALL, BOTH)
    for number in range(2, 12):
        edge.set_group(f"fd00:ff::{number:x}", BOTH)
        assert all(routes.FIRST_ID <= ident <= routes.FIRST_ID + 11 for ident in ids()) and len(ids()) == 9
        edge.withdraw(f"fd00:ff::{number:x}")
    edge.set_group(PEER6, BOTH)
    edge.set_group("fd00:ff::3", BOTH)
    with pytest.raises(KernelRefusedError, match="all ids"):
        edge.set_group("fd00:ff::4", BOTH)
    edge.withdraw("fd00:ff::3")
    edge.set_group("fd00:ff::4", BOTH)
    assert len(ids()) == 12


def test_peers_of_one_crc_do_not_share_anything(edge: RouteEdge) -> None:
    """crc32 of these two is the same modulo 0x3ffe."""
    edge.set_group("fd00:ff::3e", ("eth1",))
    edge.set_group("fd00:ff::42", ("eth2",))
    assert ours() == {"fd00:ff::3e": {"eth1"}, "fd00:ff::42": {"eth2"}}


def test_it_is_told_when_routes_come_and_when_the_last_goes(edge: RouteEdge) -> None:
    told: list[bool] = []
    edge.on_laid = told.append
    edge.set_group(PEER6, BOTH)
    edge.set_group(ALL, BOTH)
    edge.set_group(ALL, ("eth1",))
    edge.withdraw(ALL)
    assert told == [True]
    edge.withdraw_all()
    assert told == [True, False]
