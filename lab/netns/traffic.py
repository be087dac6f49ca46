"""What the lab's links and hosts count, read from the kernel."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lab.addressing import Plan
from lab.netns.session import Session

RTM_GETSTATS = 94
_IFLA_STATS_LINK_64 = 1


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


def read_counters(session: Session, index: Mapping[str, int], lab: Plan, at_s: float) -> Counters:
    """One dump of the wire namespace (include/uapi/linux/if_link.h, struct rtnl_link_stats64).

    What a wire device receives came from its node; what it sends goes to that node."""
    stats: dict[int, tuple[int, int, int, int]] = {}
    for body in session.dump(RTM_GETSTATS, struct.pack("=BxxxII", 0, 0, 1 << _IFLA_STATS_LINK_64 - 1)):
        (number,) = struct.unpack_from("=I", body, 4)
        length, kind = struct.unpack_from("=HH", body, 12)
        if kind & 0x3FFF == _IFLA_STATS_LINK_64 and length >= 36:
            stats[number] = struct.unpack_from("=QQQQ", body, 16)
    found = {}
    for wire in lab.wires:
        for direction, (near, far) in zip((wire.forward, wire.backward), wire.both_ways(), strict=True):
            received, sent = stats[index[near.wire_device]], stats[index[far.wire_device]]
            found[direction] = Count(received[0], received[2], sent[1], sent[3])
    return Counters(at_s, found)


def retransmitted_segments() -> int:
    """Tcp RetransSegs of the calling thread's namespace, IPv4 and IPv6 together (RFC 4022 tcpRetransSegs)."""
    # Not /proc/net/snmp: that is the namespace of the process's first thread.
    lines = [line.split() for line in Path("/proc/thread-self/net/snmp").read_text().splitlines() if line[:4] == "Tcp:"]
    return int(dict(zip(*lines, strict=True))["RetransSegs"])
