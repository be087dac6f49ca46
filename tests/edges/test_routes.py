"""Rung 2 on the real kernel: our routes lie over others', and go without a trace."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator

import pytest
from kernel_lab import (
    BOTH,
    GATEWAY4,
    GATEWAY6,
    HOST4,
    HOST6,
    KERNEL_METRIC,
    OWN_PROTOCOL,
    PEER6,
    PREFIX4,
    PREFIX6,
    KernelLab,
    ip,
)

from linkpass.edges.kernel.routes import ALL, RouteEdge, Way
from linkpass.edges.kernel.sock import KernelRefusedError, NotPermittedError

pytestmark = pytest.mark.netns


@pytest.fixture
def edge(lab: KernelLab) -> Iterator[RouteEdge]:
    made = RouteEdge([PREFIX6, PREFIX4], metric=76)
    made.open()
    made.set_ways({name: Way(lab.index(name), GATEWAY4[name], GATEWAY6[name]) for name in BOTH})
    yield made
    made.close()


def ours() -> str:
    return "".join(ip(family, "route", "show", "proto", str(OWN_PROTOCOL)) for family in ("-4", "-6"))


def others() -> str:
    """Everybody else's routes and next hops, as the `ip` program prints them."""
    lines = (ip("-6", "route", "show") + ip("-4", "route", "show")).split("\n")
    kept, skip = [], False
    for line in lines:
        if not line.startswith("\t"):
            skip = f"proto {OWN_PROTOCOL}" in line
        if not skip:
            kept.append(line)
    return "\n".join(kept)


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end, "the kernel did not get there in time"
        time.sleep(0.005)


def test_others_routes_are_left_alone_and_uncovered_again(edge: RouteEdge) -> None:
    before = others()
    edge.set_group(ALL, BOTH)
    assert "fd00:ff::/64" in ours()
    assert others() == before
    edge.set_group(ALL, ("eth2",))
    assert others() == before
    edge.withdraw_all()
    assert ours() == ""
    assert f"proto {OWN_PROTOCOL}" not in ip("nexthop", "show")
    assert others() == before


def test_a_group_moves_all_its_routes(edge: RouteEdge) -> None:
    edge.set_group(ALL, BOTH)
    for uplinks in (("eth1",), ("eth2",), BOTH):
        edge.set_group(ALL, uplinks)
        for destination in ("fd00:ff::9", "10.255.0.9"):
            taken = {
                ip("route", "get", destination, *extra).split(" dev ")[1].split()[0]
                for extra in [()] + [("sport", str(port), "dport", "9", "ipproto", "6") for port in range(1, 60)]
            }
            assert taken <= set(uplinks)


def test_it_knows_what_it_can_choose_from(edge: RouteEdge) -> None:
    """Of an address that one uplink alone leads to, that one, though the prefix is reached over both."""
    ip("-6", "route", "add", "fd00:ff::77/128", "via", GATEWAY6["eth1"], "dev", "eth1")
    edge.set_group(ALL, BOTH)
    for address in ("fd00:ff::9", "10.255.0.9"):
        assert edge.ways_to(address) == BOTH
    assert edge.ways_to("fd00:ff::77") == ("eth1",)
    assert edge.ways_to("fd00:aa::1") == ()
    edge.withdraw_all()
    assert edge.ways_to("fd00:ff::9") == ()


def test_what_takes_no_notice_of_labels_takes_one_uplink(edge: RouteEdge) -> None:
    edge.set_group(ALL, BOTH)
    uplink = edge.blind_uplink(PEER6, "fd00:ff::1")
    assert {edge.blind_uplink(PEER6, "fd00:ff::1") for _ in range(20)} == {uplink} <= set(BOTH)
    for only in BOTH:
        edge.set_group(ALL, (only,))
        assert edge.blind_uplink(PEER6, "fd00:ff::1") == only


def test_a_vrf_that_is_not_there_is_named(lab: KernelLab) -> None:
    missing = RouteEdge([PREFIX6], metric=76, vrf="vrf7")
    with pytest.raises(KernelRefusedError, match=r"routes\.vrf: there is no VRF device vrf7 here"):
        missing.open()
    missing.close()


def test_one_peer_can_be_steered_apart(edge: RouteEdge) -> None:
    edge.set_group(ALL, BOTH)
    edge.set_group(PEER6, ("eth2",))
    for label in range(1, 30):
        assert edge.uplink_of(PEER6, "fd00:ff::1", [label]) == {label: "eth2"}
    assert set(edge.uplink_of("fd00:ff::9", "fd00:ff::1", range(1, 60)).values()) == set(BOTH)
    edge.set_group(PEER6, ())
    assert f"{PEER6} " not in ours() and PREFIX6 in ours()


def test_the_ipv6_routes_die_with_the_daemon(edge: RouteEdge) -> None:
    edge.set_group(ALL, BOTH)
    edge.refresh()
    assert re.search(r"expires (5\d|60)sec", ours())


def test_expired_routes_uncover_the_kernels_own(lab: KernelLab) -> None:
    edge = RouteEdge([PREFIX6], metric=76, expires_s=1)
    edge.open()
    edge.set_ways({name: Way(lab.index(name), "", GATEWAY6[name]) for name in BOTH})
    edge.set_group(ALL, ("eth2",))
    assert "metric 76" in ip("-6", "route", "get", PEER6)
    edge.close()
    until(lambda: f"metric {KERNEL_METRIC}" in ip("-6", "route", "get", PEER6))


def test_carrier_loss_deletes_our_next_hop_and_set_group_brings_it_back(lab: KernelLab, edge: RouteEdge) -> None:
    edge.set_group(ALL, BOTH)
    lab.carrier("eth1", on=False)
    until(lambda: f"via {GATEWAY6['eth1']}" not in ip("nexthop", "show", "proto", str(OWN_PROTOCOL)))
    edge.set_group(ALL, ("eth2",))
    assert GATEWAY6["eth1"] not in ours() and GATEWAY6["eth2"] in ours()
    lab.carrier("eth1", on=True)
    until(lambda: "LOWER_UP" in ip("link", "show", "eth1"))
    lab.restore_routes()
    edge.set_group(ALL, BOTH)
    assert GATEWAY6["eth1"] in ours() and GATEWAY6["eth2"] in ours()


def test_an_uplink_without_carrier_is_a_typed_failure_that_leaves_the_rest(lab: KernelLab, edge: RouteEdge) -> None:
    edge.set_group(ALL, BOTH)
    lab.carrier("eth1", on=False)
    until(lambda: "eth1" not in ours())
    with pytest.raises(KernelRefusedError, match="eth1"):
        edge.set_group(ALL, BOTH)
    assert GATEWAY6["eth2"] in ours()


def test_refresh_puts_back_a_route_that_somebody_deleted(edge: RouteEdge) -> None:
    edge.set_group(ALL, BOTH)
    ip("-6", "route", "del", PREFIX6, "proto", str(OWN_PROTOCOL), "metric", "76")
    assert PREFIX6 not in ours()
    edge.refresh()
    assert PREFIX6 in ours()


def test_a_route_that_came_later_is_covered_at_the_next_refresh(edge: RouteEdge) -> None:
    edge.set_group(ALL, BOTH)
    ip("-6", "route", "add", "fd00:ff::40/124", "via", GATEWAY6["eth1"], "dev", "eth1")
    edge.refresh()
    assert "fd00:ff::40/124" in ours()
    ip("-6", "route", "del", "fd00:ff::40/124", "metric", str(KERNEL_METRIC))
    edge.refresh()
    assert "fd00:ff::40/124" not in ours()


def test_the_least_retransmission_timeout_is_on_every_route(lab: KernelLab) -> None:
    edge = RouteEdge([PREFIX6, PREFIX4], metric=76, rto_min_ms=5)
    edge.open()
    edge.set_ways({name: Way(lab.index(name), GATEWAY4[name], GATEWAY6[name]) for name in BOTH})
    edge.set_group(ALL, BOTH)
    routes = [line for line in ours().splitlines() if not line.startswith("\t")]
    assert routes and all("rto_min lock 5ms" in line for line in routes)
    edge.close()


def test_sweep_after_a_kill(lab: KernelLab) -> None:
    """A daemon that dies by SIGKILL leaves marked things behind; the next one removes exactly those."""
    before = others()
    ways = [(name, lab.index(name), GATEWAY4[name], GATEWAY6[name]) for name in BOTH]
    program = textwrap.dedent(f"""
        import signal
        from linkpass.edges.kernel.routes import RouteEdge, Way
        edge = RouteEdge(["{PREFIX6}", "{PREFIX4}"], metric=76)
        edge.open()
        edge.set_ways({{name: Way(*way) for name, *way in {ways}}})
        edge.set_group("all", {BOTH})
        edge.set_group("{PEER6}", ("eth1",))
        print("steering", flush=True)
        signal.pause()
    """)
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as daemon:
        assert daemon.stdout is not None and daemon.stdout.readline() == "steering\n"
        daemon.send_signal(signal.SIGKILL)
    assert ours() != ""
    edge = RouteEdge([PREFIX6, PREFIX4], metric=76)
    edge.open()
    assert any("next hop" in line for line in edge.sweep())
    assert edge.sweep() == []
    edge.close()
    assert ours() == "" and f"proto {OWN_PROTOCOL}" not in ip("nexthop", "show")
    assert others() == before


def test_without_the_privilege_the_error_says_so(lab: KernelLab) -> None:
    """In a child, because a dropped privilege cannot be had back."""
    index, gateway = lab.index("eth1"), GATEWAY6["eth1"]
    program = textwrap.dedent(f"""
        import os
        from linkpass.edges.kernel.routes import RouteEdge, Way
        from linkpass.edges.kernel.sock import NotPermittedError
        os.setuid(65534)
        edge = RouteEdge(["{PREFIX6}"], metric=76)
        edge.open()
        edge.set_ways({{"eth1": Way({index}, "", "{gateway}")}})
        try:
            edge.set_group("all", ("eth1",))
        except NotPermittedError as error:
            print(error)
        edge.close()
    """)
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "CAP_NET_ADMIN" in run.stdout
    assert issubclass(NotPermittedError, KernelRefusedError)
    assert ours() == ""
    assert os.getuid() == 0


def test_it_tells_over_which_uplinks_a_group_leads(lab: KernelLab, edge: RouteEdge) -> None:
    """A routing daemon may need a moment to bring a way back: until then the group leads over fewer than asked for."""
    told: list[tuple[str, tuple[str, ...]]] = []
    edge.on_leads = lambda group, uplinks: told.append((group, uplinks))
    edge.set_group(ALL, BOTH)
    assert told == [(ALL, BOTH)]
    edge.set_group(ALL, BOTH)
    edge.refresh()
    assert told == [(ALL, BOTH)]
    for family, prefix, gateway in (("-6", PREFIX6, GATEWAY6), ("-4", PREFIX4, GATEWAY4)):
        ip(family, "route", "replace", prefix, "metric", str(KERNEL_METRIC), "via", gateway["eth1"], "dev", "eth1")
    edge.refresh()
    assert told[1:] == [(ALL, ("eth1",))]
    edge.set_group(ALL, BOTH)
    assert told[2:] == []
    lab.restore_routes()
    edge.refresh()
    assert told[2:] == [(ALL, BOTH)]
    edge.set_group(ALL, ("eth2",))
    assert told[3:] == [(ALL, ("eth2",))]


@pytest.mark.parametrize(("family", "prefix"), [("-4", PREFIX4), ("-6", PREFIX6)])
def test_a_limit_on_packets_is_kept(edge: RouteEdge, lab: KernelLab, family: str, prefix: str) -> None:
    """A route of ours that lies over one with an `mtu` must not make packets larger."""

    def limit(mtu: int) -> None:
        lab.restore_routes()
        hops = [word for name in BOTH for word in ("nexthop", "via", (GATEWAY4 if family == "-4" else GATEWAY6)[name])]
        source = HOST4 if family == "-4" else HOST6
        ip(family, "route", "replace", prefix, "src", source, "metric", str(KERNEL_METRIC), "mtu", str(mtu), *hops)

    limit(1400)
    edge.set_group(ALL, BOTH)
    assert "mtu 1400" in ip(family, "route", "show", "proto", str(OWN_PROTOCOL))
    limit(1300)
    edge.refresh()
    shown = ip(family, "route", "show", "proto", str(OWN_PROTOCOL))
    assert "mtu 1300" in shown and "mtu 1400" not in shown
    assert edge.packet_bytes({lab.index(name): 1500 for name in BOTH}) == (1300 if family == "-4" else 1500)
    edge.withdraw_all()
