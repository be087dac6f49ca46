"""What the lab's links and hosts count, read from the kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pyroute2 import IPRoute

from lab.addressing import Plan
from lab.netns.connections import asking

_LINK_64 = 1 << 0
"""Which statistics to dump: IFLA_STATS_LINK_64 alone."""


@dataclass(frozen=True, slots=True)
class Count:
    """Packets and bytes of one direction: `packets` entered the wire at the sender, `delivered` left it towards the
    receiver. The difference was lost on the wire (or waits in a shaper)."""

    packets: int
    bytes: int
    delivered: int
    delivered_bytes: int


@dataclass(frozen=True, slots=True)
class Counters:
    """All directions of a lab at one moment (monotonic seconds)."""

    at_s: float
    directions: Mapping[str, Count]

    def since(self, before: Counters) -> Counters:
        """The difference to an earlier reading; `at_s` becomes the time between."""
        return Counters(
            self.at_s - before.at_s,
            {
                name: Count(
                    now.packets - then.packets,
                    now.bytes - then.bytes,
                    now.delivered - then.delivered,
                    now.delivered_bytes - then.delivered_bytes,
                )
                for name, now in self.directions.items()
                for then in (before.directions[name],)
            },
        )


def read_counters(route: IPRoute, index: Mapping[str, int], lab: Plan, at_s: float) -> Counters:
    """One dump of the wire namespace (include/uapi/linux/if_link.h, struct rtnl_link_stats64).

    What a wire device receives came from its node; what it sends goes to that node."""
    with asking("packet counters"):
        dump = route.stats("dump", filter_mask=_LINK_64)
    stats = {one["ifindex"]: one.get_attr("IFLA_STATS_LINK_64") for one in dump}
    found = {}
    for wire in lab.wires:
        for direction, (near, far) in zip((wire.forward, wire.backward), wire.both_ways(), strict=True):
            received, sent = stats[index[near.wire_device]], stats[index[far.wire_device]]
            found[direction] = Count(received["rx_packets"], received["rx_bytes"], sent["tx_packets"], sent["tx_bytes"])
    return Counters(at_s, found)


def retransmitted_segments() -> int:
    """Tcp RetransSegs of the calling thread's namespace, IPv4 and IPv6 together (RFC 4022 tcpRetransSegs)."""
    # Not /proc/net/snmp: that is the namespace of the process's first thread.
    lines = [line.split() for line in Path("/proc/thread-self/net/snmp").read_text().splitlines() if line[:4] == "Tcp:"]
    return int(dict(zip(*lines, strict=True))["RetransSegs"])
