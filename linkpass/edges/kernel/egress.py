"""Soft-RoCE's queue pairs outlive the loss of their uplink's carrier.

From Linux 6.10 on ("RDMA/rxe: Get rid of pkt resend on err", rxe_requester in rxe_req.c) a queue pair is in error at
once when sending a packet brings back anything but 0, whatever its timeout and retries. A device without carrier brings
back NET_XMIT_CN: the kernel gives it a queue that drops all (dev_deactivate, net/sched/sch_generic.c), and only then
tells of the carrier and deletes next hops; who has kept a route over one of these leaves it a grace period later
(nexthop_free_rcu). Whatever is sent in between is fatal, and nobody who hears of the carrier can be quick enough.

So while soft-RoCE is in use what leaves for RoCE's port is forwarded, at its uplink's egress, to that uplink
(nft_fwd_netdev): the sender hears that it was taken, and a drop is a loss like any other, that is sent again. A packet
comes by twice, and has a mark meanwhile by which it is known. A packet that somebody else has marked is left alone.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping

from linkpass.edges.kernel import nft
from linkpass.wire.frame import ROCE_PORT

TABLE = "linkpass"
MARK = 0x4C510000
FATAL_SINCE = (6, 10)
AGAIN_S, TRIES = 60.0, 3
"""A table that could not be made is tried again: a host that is short of time keeps nft waiting."""


class EgressEdge:
    """Owns the table `netdev linkpass` of the thread's namespace. It has no say in which way a packet takes, so it does
    not expire; the next start, `cleanup` or the guardian removes what was left behind. Whoever else removes it has
    removed it until a device changes or the daemon is started anew."""

    def __init__(self, *, release: str = "", table: str = TABLE) -> None:
        """`release`: uname(1)'s of this kernel, unless another is given."""
        self._release = release or os.uname().release
        self._table = table
        self._made: dict[str, int] = {}
        """Devices, and their indexes, as they were when it was last tried."""
        self._failed = 0
        self._again_s = math.inf

    def keep(self, devices: Mapping[str, int], now_s: float) -> str:
        """Let the table be at these devices' egress (name -> index). A line about what was done, or why it could not
        be; empty when there is nothing new."""
        if not devices or not is_fatal(self._release) or (devices == self._made and now_s < self._again_s):
            return ""
        if devices != self._made:
            self._failed = 0
        self._made, self._again_s = dict(devices), math.inf
        names = ", ".join(sorted(devices))
        needed = "what keeps the loss of a carrier from ending soft-RoCE's queue pairs"
        try:
            nft.run(self._rules(sorted(devices)), needed, f"the table at the egress of {names}")
        except nft.NoNftError as error:
            self._failed += 1
            if self._failed < TRIES:
                self._again_s = now_s + AGAIN_S
            return f"a loss of carrier ends soft-RoCE's queue pairs: {error}" if self._failed == 1 else ""
        return f"a loss of carrier of {names} does not end soft-RoCE's queue pairs: nftables table netdev {self._table}"

    def sweep(self) -> list[str]:
        """Remove our table, whoever made it; what was removed, in words."""
        self._made, self._again_s = {}, math.inf
        try:
            nft.run(f"delete table netdev {self._table}", "its removal", "the removal")
        except nft.NoNftError:
            return []  # there is none; without nft none was made
        return [f"nftables table netdev {self._table}"]

    def _rules(self, names: list[str]) -> str:
        devices = ", ".join(f'"{name}"' for name in names)
        return f"""add table netdev {self._table}
delete table netdev {self._table}
table netdev {self._table} {{
  chain roce {{
    type filter hook egress devices = {{ {devices} }} priority 0; policy accept;
    meta l4proto != udp accept
    udp dport {ROCE_PORT} meta mark {MARK:#x} meta mark set 0 accept
    udp dport {ROCE_PORT} meta mark 0 meta mark set {MARK:#x} fwd to meta oif
  }}
}}
"""


def is_fatal(release: str) -> bool:
    """Whether this kernel's soft-RoCE takes a packet that was not sent for the end of its queue pair."""
    numbers = re.match(r"(\d+)\.(\d+)", release)
    return numbers is not None and (int(numbers[1]), int(numbers[2])) >= FATAL_SINCE
