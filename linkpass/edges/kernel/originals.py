"""Which of the kernel's own routes we go by: those that lead to the configured prefixes.

Both sides use this: the watch to find the uplinks, the route edge to find what its routes lie over and where they may
lead. Pure.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import replace

from linkpass.wire import rtnl

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
IP6_USUAL_METRIC = 1024
"""What IPv6 takes when a route is added without a metric (IP6_RT_PRIO_USER); IPv4 takes 0, and none is better."""

LESS_SPECIFIC = 0xFFFFFFFF
"""Any metric is better than that of a route to a larger network."""


def effective_metric(route: rtnl.Route) -> int:
    return route.metric or (IP6_USUAL_METRIC if route.family == rtnl.AF_INET6 else 0)


def originals(routes: Iterable[rtnl.Route], prefixes: Sequence[Network], own_protocol: int) -> list[rtnl.Route]:
    """Others' routes by which the prefixes are reached, the best of each destination, longest destinations first.

    A prefix for which there is no route of its own is reached over the longest one that contains it (often the default
    route): that one appears with the prefix as its destination, since no more than the prefix is ours to steer, and
    with the metric LESS_SPECIFIC."""
    best: dict[Network, rtnl.Route] = {}
    for route in routes:
        if route.protocol == own_protocol or route.family not in (rtnl.AF_INET, rtnl.AF_INET6):
            continue
        network = ipaddress.ip_network(route.destination)
        if not any(network.version == prefix.version and network.overlaps(prefix) for prefix in prefixes):
            continue
        known = best.get(network)
        if known is None or effective_metric(route) < effective_metric(known):
            best[network] = route
    longest_first = sorted(best, key=lambda network: -network.prefixlen)
    found: dict[Network, rtnl.Route] = {}
    for prefix in prefixes:
        found.update((network, best[network]) for network in longest_first if contains(prefix, network))
        if prefix not in found:
            over = next((network for network in longest_first if contains(network, prefix)), None)
            if over is not None:
                found[prefix] = replace(best[over], destination=str(prefix), metric=LESS_SPECIFIC)
    kept = [(network, route) for network, route in found.items() if route.kind == rtnl.TYPE_UNICAST]
    return [route for _, route in sorted(kept, key=lambda item: -item[0].prefixlen)]


def contains(outer: Network, inner: Network) -> bool:
    return outer.version == inner.version and outer.prefixlen <= inner.prefixlen and inner.network_address in outer


def families(prefixes: Iterable[Network]) -> list[int]:
    """The address families of the prefixes."""
    versions = {prefix.version for prefix in prefixes}
    return [family for family, version in ((rtnl.AF_INET, 4), (rtnl.AF_INET6, 6)) if version in versions]
