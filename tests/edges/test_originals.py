"""Which of the kernel's routes count: pure."""

from __future__ import annotations

import ipaddress

import pytest

from linkpass.edges.kernel.originals import LESS_SPECIFIC, Network, contains, families, originals
from linkpass.edges.kernel.routes import preferred
from linkpass.wire.rtnl import AF_INET, AF_INET6, Hop, Route

PREFIXES: list[Network] = [ipaddress.ip_network("fd00:ff::/64"), ipaddress.ip_network("10.255.0.0/24")]


def route(destination: str, metric: int = 0, *, protocol: int = 4, kind: int = 1) -> Route:
    family = AF_INET6 if ":" in destination else AF_INET
    return Route(destination, family, metric, protocol=protocol, kind=kind, hops=(Hop(3, "fe80::1"),))


def found(*routes: Route) -> list[tuple[str, int]]:
    return [(one.destination, one.metric) for one in originals(routes, PREFIXES, 76)]


def test_routes_inside_the_prefixes_count_the_longest_first() -> None:
    six, longer, four, other = (
        route("fd00:ff::/64"),
        route("fd00:ff::8/125"),
        route("10.255.0.0/24"),
        route("fd00:aa::/64"),
    )
    assert found(six, other, four, longer) == [("fd00:ff::8/125", 0), ("fd00:ff::/64", 0), ("10.255.0.0/24", 0)]


@pytest.mark.parametrize("turned", [False, True])
def test_of_a_destination_the_most_preferred_counts_and_no_metric_is_1024_in_ipv6(turned: bool) -> None:
    six = [route("fd00:ff::/64"), route("fd00:ff::/64", 500), route("fd00:ff::/64", 2000)]
    four = [route("10.255.0.0/24", 5), route("10.255.0.0/24")]
    if turned:
        six, four = six[::-1], four[::-1]
    assert found(*six, *four) == [("fd00:ff::/64", 500), ("10.255.0.0/24", 0)]


def test_ours_and_other_families_do_not_count() -> None:
    label = Route("0.0.16.0/20", 28, hops=(Hop(3, "fe80::1"),))
    assert found(route("fd00:ff::/64", 76, protocol=76), label) == []


def test_a_prefix_without_a_route_of_its_own_is_reached_over_the_longest_around_it() -> None:
    assert found(route("::/0"), route("fd00::/16", 7), route("fd00:ff::5/128")) == [
        ("fd00:ff::5/128", 0),
        ("fd00:ff::/64", LESS_SPECIFIC),
    ]


def test_what_is_not_to_be_reached_is_not_reached_over_what_is_around_it() -> None:
    assert found(route("::/0"), route("fd00::/16", kind=7)) == []
    assert found(route("::/0"), route("fd00:ff::/64", kind=6)) == []


def test_ours_is_preferred_by_metric_or_by_length() -> None:
    assert preferred(route("fd00:ff::/64"), 76) == ["fd00:ff::/64"]
    assert preferred(route("10.255.0.0/24"), 76) == ["10.255.0.0/25", "10.255.0.128/25"]
    assert preferred(route("fd00:ff::/64", 76), 76) == ["fd00:ff::/65", "fd00:ff:0:0:8000::/65"]
    assert preferred(route("fd00:ff::5/128", 10), 76) == []


def test_networks_of_different_families_contain_nothing_of_each_other() -> None:
    six, four = PREFIXES
    assert contains(six, six) and not contains(six, four) and not contains(four, six)
    assert families(PREFIXES) == [AF_INET, AF_INET6] and families([six]) == [AF_INET6]
