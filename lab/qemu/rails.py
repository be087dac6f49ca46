"""Addresses of their own for the rails of guests: each is reached over one uplink of its host alone.

The lab's own addresses are reached over all uplinks, so routes move what is sent to them. On a rail-only fabric an
address belongs to a NIC: there a running queue pair leaves a rail by changing its address, or not at all.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping

from lab.addressing import forwarding
from lab.netns.lab import NetnsLab
from lab.qemu.guest import Guest
from lab.qemu.hosts import VRF, VRF_TABLE


def address(lab: NetnsLab, host: str, device: str) -> str:
    """A host's address on the rail of one of its uplinks."""
    head, _, last = lab.address(host).rpartition("::")
    return f"{head}::{lab.uplinks(host).index(device) + 1:x}:{last}"


def lay(lab: NetnsLab, guests: Mapping[str, Guest]) -> None:
    """Addresses and routes on the guests, and on the switches between them: the rail's own switch, one hop away from
    each. Meant for fabrics whose hosts hang on the same switch with the same uplink."""
    for host, guest in guests.items():
        lines = []
        gateways = {hop.device: hop.gateway for hop in forwarding(lab.fabric, lab.plan, host).hops if hop.family == 6}
        for link in lab.fabric.links_of(host):
            device = link.port(host).name
            own = address(lab, host, device)
            lines.append(f"ip -6 addr add {own}/128 dev {VRF} nodad")
            lines += [
                f"ip -6 route add {address(lab, other, device)}/128 via {gateways[device]} dev {device} src {own}"
                f" table {VRF_TABLE}"
                for other in guests.keys() - {host}
            ]
            _on_switch(lab.namespace(link.peer(host).node), own, lab.address(host))
        guest.sh("; ".join(lines))


def _on_switch(switch: str, own: str, main: str) -> None:
    """The same way as to the host's main address."""
    ip = ["ip", "netns", "exec", switch, "ip", "-6", "route"]
    way = subprocess.run([*ip, "get", main], check=True, capture_output=True, text=True).stdout.split()
    subprocess.run(
        [*ip, "add", f"{own}/128", "via", way[way.index("via") + 1], "dev", way[way.index("dev") + 1]], check=True
    )
