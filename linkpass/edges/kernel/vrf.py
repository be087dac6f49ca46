"""The VRF in which the fabric's devices and routes are, where the configuration names one (vrf(7), ip-link(8))."""

from __future__ import annotations

import errno
from dataclasses import dataclass

from linkpass.edges.kernel.sock import KernelRefusedError, RequestSocket
from linkpass.wire import rtnl


@dataclass(frozen=True, slots=True)
class Vrf:
    """`table`: where its routes lie. Without a VRF that is the main table, and `index` and `name` are empty."""

    table: int = rtnl.TABLE_MAIN
    index: int = 0
    name: str = ""


def find(sock: RequestSocket, name: str) -> Vrf:
    """The VRF of that name in the socket's namespace; of an empty name: none. Raises KernelRefusedError."""
    if not name:
        return Vrf()
    for answer in sock.dump(rtnl.RTM_GETLINK):
        link = rtnl.parse_link(answer.body)
        if link.name == name and link.vrf_table:
            return Vrf(link.vrf_table, link.index, name)
    raise KernelRefusedError(errno.ENODEV, f"routes.vrf: there is no VRF device {name} here (ip link show type vrf)")
