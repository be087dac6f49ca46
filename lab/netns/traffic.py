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


@dataclass(frozen=True, slots=True)
class SentAgain:
    """TCP segments that were sent again, and how many of them a job sends again when nothing is wrong.

    `needless`: tail loss probes (RFC 8985 section 7) whose segment had arrived, as the receiver's duplicate SACK says
    (RFC 2883). They are sent when an acknowledgement is later than two round trips, which on busy cores is often."""

    segments: int
    needless: int

    @property
    def needed(self) -> int:
        """Segments that were lost, or overtaken so far that they seemed to be."""
        return self.segments - self.needless


def sent_again() -> SentAgain:
    """Of the calling thread's namespace, IPv4 and IPv6 together (RetransSegs of RFC 4022; Linux's TcpExt counters)."""
    # Not /proc/net: that is the namespace of the process's first thread.
    basic, extended = _table("snmp", "Tcp:"), _table("netstat", "TcpExt:")
    probes = min(extended["TCPLossProbes"], extended["TCPDSACKRecv"])
    return SentAgain(basic["RetransSegs"], min(probes, basic["RetransSegs"]))


def _table(file: str, prefix: str) -> dict[str, int]:
    lines = Path("/proc/thread-self/net", file).read_text().splitlines()
    names, values = (line.split()[1:] for line in lines if line.startswith(prefix))
    return dict(zip(names, map(int, values), strict=True))
