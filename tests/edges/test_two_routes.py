"""Rung 2 where it is hard: groups that the kernel took, others who remove ours, live connections, many peers."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
from two_uplinks import OTHER6, OWN6, PEER4, PEER6, PREFIX4, PREFIX6, UPLINKS, TwoUplinks

from linkpass.edges.kernel.routes import ALL, FIRST_ID, LAST_ID, PROTOCOL, RouteEdge, Way
from linkpass.edges.kernel.sock import KernelRefusedError

pytestmark = pytest.mark.netns
METRIC = 76


def ways(two: TwoUplinks) -> dict[str, Way]:
    links = {link["ifname"]: link["ifindex"] for link in json.loads(two.show(two.host, "-j", "link"))}
    return {
        name: Way(links[name], gateway4=f"10.125.{n}.1", gateway6=f"fd02:1:{n}::b") for n, name in enumerate(UPLINKS, 1)
    }


class Bench:
    """The host's routes as `ip` shows them, and an edge of ours."""

    def __init__(self, two: TwoUplinks) -> None:
        self.two = two
        self.edge = self.make()

    def make(self, **options: int) -> RouteEdge:
        edge = RouteEdge((PREFIX6, PREFIX4), metric=METRIC, **options)
        with self.two.on_host():
            edge.open()
        edge.set_ways(ways(self.two))
        return edge

    def lines(self, *, ours: bool, family: str = "") -> list[str]:
        """Routes and next hops, one a line; ours or all others."""
        shown = []
        for words in (("-6", "-d", "route"), ("-4", "-d", "route"), ("-d", "nexthop")):
            if family and words[0] != family:
                continue
            for line in self.two.show(self.two.host, *words).replace("\n\t", " ").splitlines():
                if (f"proto {PROTOCOL} " in line + " ") == ours:
                    shown.append(line)
        return shown

    def leads(self, peer: str) -> str:
        """The uplink of the kernel's choice to a peer, if our route is what makes it; else `own`."""
        (route,) = json.loads(self.two.show(self.two.host, "-j", "route", "get", peer, "fibmatch"))
        if route.get("protocol") != str(PROTOCOL):
            return "own"
        (chosen,) = json.loads(self.two.show(self.two.host, "-j", "route", "get", peer))
        return str(chosen["dev"])

    def lost_carrier(self, uplink: str) -> None:
        self.two.carrier(uplink, up=False)
        until_s = time.monotonic() + 30
        while "NO-CARRIER" not in self.two.show(self.two.host, "link", "show", uplink):
            assert time.monotonic() < until_s

    def regained_carrier(self, uplink: str) -> None:
        self.two.carrier(uplink, up=True)
        self.two.settled()


@pytest.fixture
def bench(two: TwoUplinks) -> Iterator[Bench]:
    made = Bench(two)
    try:
        yield made
    finally:
        made.edge.close()


def test_a_live_connection_moves_with_its_next_packet(bench: Bench) -> None:
    two = bench.two

    def sent(uplink: str) -> int:
        (link,) = json.loads(two.show(two.host, "-j", "-s", "link", "show", uplink))
        return int(link["stats64"]["tx"]["bytes"])

    with two.server() as server, two.connect(server) as ours, server.accept()[0] as theirs:
        for uplink in (*UPLINKS, *UPLINKS):
            bench.edge.set_group(ALL, (uplink,))
            before = {name: sent(name) for name in UPLINKS}
            ours.sendall(b"x" * 100_000)
            left = 100_000
            while left:
                left -= len(theirs.recv(left))
            grown = {name: sent(name) - before[name] for name in UPLINKS}
            assert grown.pop(uplink) > 100_000 and sum(grown.values()) < 50_000


def test_an_empty_group_withdraws(bench: Bench) -> None:
    bench.edge.set_group(ALL, UPLINKS)
    bench.edge.set_group(ALL, ())
    assert bench.leads(PEER6) == bench.leads(PEER4) == "own"
    bench.edge.set_group(ALL, ("eth2",))
    assert bench.leads(PEER6) == "eth2"


@pytest.mark.parametrize("first", [UPLINKS, ("eth1",)])
def test_carrier_loss_takes_our_next_hop_and_the_group_is_made_anew(bench: Bench, first: tuple[str, ...]) -> None:
    """With a group over the lost uplink alone the kernel deletes group and routes, too."""
    bench.edge.set_group(ALL, UPLINKS)
    bench.edge.set_group(ALL, first)
    bench.lost_carrier("eth1")
    assert all("dev eth1" not in line for line in bench.lines(ours=True))
    bench.edge.set_group(ALL, ("eth2",))
    assert bench.leads(PEER6) == bench.leads(PEER4) == "eth2"
    bench.regained_carrier("eth1")
    bench.edge.set_group(ALL, UPLINKS)
    assert any("dev eth1" in line and "dev eth2" in line for line in bench.lines(ours=True, family="-6"))
    bench.edge.set_group(ALL, ("eth1",))
    assert bench.leads(PEER6) == bench.leads(PEER4) == "eth1"


def test_a_carrier_that_flaps_unseen_is_no_obstacle(bench: Bench) -> None:
    bench.edge.set_group(ALL, ("eth1",))
    bench.lost_carrier("eth1")
    bench.regained_carrier("eth1")
    assert bench.lines(ours=True) == []
    bench.edge.set_group(ALL, ("eth1",))
    assert bench.leads(PEER6) == bench.leads(PEER4) == "eth1"


def test_a_gateway_that_changes_is_followed(bench: Bench) -> None:
    bench.edge.set_group(ALL, ("eth1",))
    bench.two.ip(bench.two.far, "addr add fd02:1:1::c/64 dev p1 nodad")
    others = "nexthop via fd02:1:1::c dev eth1 nexthop via fd02:1:2::b dev eth2"
    bench.two.ip(bench.two.host, f"route replace {PREFIX6} metric 1024 src {OWN6} {others}")
    bench.edge.refresh()
    assert "fd02:1:1::c dev eth1" in "".join(bench.lines(ours=True, family="-6"))
    assert "fd02:1:1::b" not in "".join(bench.lines(ours=True))


def test_a_refresh_does_not_fight_whoever_removes_ours(bench: Bench) -> None:
    """How often something is put back is the core's to decide."""
    bench.edge.set_group(ALL, ("eth2",))
    bench.two.ip(bench.two.host, f"route del {PREFIX6} metric {METRIC}")
    bench.edge.forget()
    bench.edge.refresh()
    assert bench.leads(PEER6) == bench.leads(PEER4) == "own" and bench.lines(ours=True) == []
    bench.edge.set_group(ALL, ("eth1",))
    assert bench.leads(PEER6) == bench.leads(PEER4) == "eth1"
    bench.edge.forget()
    bench.edge.withdraw_all()
    assert bench.lines(ours=True) == []


def test_one_refused_group_does_not_let_the_others_expire(bench: Bench) -> None:
    short = bench.make(expires_s=30)
    short.set_group(PEER6, ("eth1",))
    short.set_group(OTHER6, ("eth2",))
    bench.lost_carrier("eth1")
    bench.two.ip(bench.two.host, f"route del {OTHER6}/128 metric {METRIC}")
    with pytest.raises(KernelRefusedError, match="eth1"):
        short.refresh()
    assert bench.leads(OTHER6) == "eth2"
    short.close()


def test_after_somebody_removed_the_group_it_is_made_anew(bench: Bench) -> None:
    bench.edge.set_group(ALL, UPLINKS)
    bench.two.ip(bench.two.host, *(f"nexthop del id {i}" for i in group_ids(bench)))
    assert bench.leads(PEER6) == "own"
    bench.edge.set_group(ALL, ("eth1",))
    assert bench.leads(PEER6) == bench.leads(PEER4) == "eth1"


def group_ids(bench: Bench) -> list[int]:
    return [hop["id"] for hop in json.loads(bench.two.show(bench.two.host, "-j", "nexthop")) if "group" in hop]


def test_routes_that_are_more_preferred_stay_in_force(bench: Bench) -> None:
    bench.two.ip(bench.two.host, f"route add {OTHER6}/128 metric 10 via fd02:1:1::b dev eth1")
    bench.edge.set_group(ALL, ("eth2",))
    assert bench.leads(OTHER6) == "own" and bench.leads(PEER6) == "eth2"


def test_routes_on_next_hop_objects_of_others_are_covered_too(bench: Bench) -> None:
    index = {name: way.index for name, way in ways(bench.two).items()}
    assert index
    bench.two.ip(
        bench.two.host,
        f"route del {PREFIX6}",
        "nexthop add id 11 via fd02:1:1::b dev eth1",
        "nexthop add id 12 via fd02:1:2::b dev eth2",
        "nexthop add id 20 group 11/12",
        f"route add {PREFIX6} metric 1024 src {OWN6} nhid 20",
    )
    before = bench.lines(ours=False)
    bench.edge.set_group(ALL, ("eth2",))
    assert bench.leads(PEER6) == "eth2" and bench.lines(ours=False) == before
    bench.lost_carrier("eth1")
    bench.edge.set_group(ALL, ("eth2",))
    bench.edge.withdraw_all()
    assert bench.leads(PEER6) == "own"


def test_a_daemon_takes_over_what_a_killed_one_left_steering(bench: Bench) -> None:
    bench.edge.set_group(ALL, ("eth1",))
    later = bench.make()
    later.set_group(ALL, ("eth2",))
    assert bench.leads(PEER6) == bench.leads(PEER4) == "eth2"
    later.withdraw_all()
    assert bench.leads(PEER6) == "own"
    later.sweep()
    assert bench.lines(ours=True) == []
    later.close()


def test_ids_stay_in_our_range(bench: Bench) -> None:
    bench.edge.set_group(ALL, UPLINKS)
    for number in range(2, 40):
        bench.edge.set_group(f"fd02:ff::{number:x}", UPLINKS)
    ids = [hop["id"] for hop in json.loads(bench.two.show(bench.two.host, "-j", "nexthop"))]
    assert len(ids) == len(set(ids)) == (2 + 38) * 3 and all(FIRST_ID <= identity <= LAST_ID for identity in ids)


def test_labels_choose_an_uplink_and_the_kernel_says_which(bench: Bench) -> None:
    bench.edge.set_group(ALL, UPLINKS)
    found = bench.edge.uplink_of(PEER6, OWN6, range(1, 129))
    assert set(found) == set(range(1, 129)) and set(found.values()) == set(UPLINKS)
    bench.edge.set_group(ALL, ("eth2",))
    assert set(bench.edge.uplink_of(PEER6, OWN6, range(1, 20)).values()) == {"eth2"}
