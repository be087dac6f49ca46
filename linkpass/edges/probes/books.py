"""What sending, hearing and the schedule share."""

from __future__ import annotations

import ipaddress
import math
import secrets
from collections.abc import Callable
from typing import Final

from linkpass.core.settings import CoreSettings
from linkpass.edges.probes.budget import Bucket
from linkpass.edges.probes.lateness import Lateness
from linkpass.edges.probes.paths import SentPath
from linkpass.edges.probes.peers import Peer
from linkpass.edges.probes.ports import Port, TunnelPort
from linkpass.edges.probes.snapshot import ProbeStats
from linkpass.wire.frame import TCP, UDP
from linkpass.wire.probe import RocePlace
from linkpass.wire.vxlan import End

ATTENTIVE_S: Final = 0.5
"""A peer that asks has a suspect path: for this long its packets wake the loop."""


class Books:
    """Peers, ports and counters of one probe edge."""

    def __init__(self, settings: CoreSettings) -> None:
        self.settings = settings
        self.own = ipaddress.ip_address(settings.address).packed
        self.protocol = TCP if settings.probing.protocol == "tcp" else UDP
        self.stats = ProbeStats()
        self.boot = 0
        self.epoch = 0
        """Changes when a receive ring of ours overflowed: what we report then cannot be compared with before."""
        self.peers: dict[bytes, Peer] = {}
        self.ports: dict[str, Port] = {}
        self.tunnels: dict[int, TunnelPort] = {}
        """By source port, which is the label of the paths through it."""
        self.end: End | None = None
        """Where packets are taken out of tunnels here; None: nothing is said of it."""
        self.on_end: Callable[[Peer, End | None], None] | None = None
        """Hears where a peer takes packets out of tunnels; None: nowhere."""
        self.hot: dict[Peer, float] = {}
        """Peers with a suspect path: when their next extra probes are due."""
        self.lossy: set[Peer] = set()
        """Peers whose windows the core is told."""
        self.owed: set[Peer] = set()
        """Peers heard since they last got a report."""
        self.attentive_until_s = -math.inf
        self.host_budget = Bucket(settings.probing.max_packets_per_s)
        self.link_budgets: dict[str, Bucket] = {}
        self.late, self.roce_late = Lateness(), Lateness()
        """Of this host itself: of its reports, and of its asking by datagrams of RoCE."""
        self.on_roce: Callable[[Peer, list[RocePlace]], None] | None = None
        """Hears where a peer answers datagrams of RoCE."""
        self.on_pace: Callable[[Peer, list[tuple[int, bytes]]], None] | None = None
        """Hears what a peer says of the pace of the job."""

    def draw_boot(self) -> None:
        self.boot = secrets.randbits(32) | 1

    def peer(self, packed: bytes) -> Peer:
        """ValueError for an address of the other family."""
        known = self.peers.get(packed)
        if known is None:
            if len(packed) != len(self.own):
                address = ipaddress.ip_address(packed)
                raise ValueError(f"peer {address}: not of the family of {self.settings.address}, this host's address")
            known = self.peers[packed] = Peer(str(ipaddress.ip_address(packed)), packed, self.own)
        return known

    def in_tunnel(self, label: int) -> bool:
        """Whether a path with this label leads through a tunnel: IPv4 has no other labels."""
        return bool(label) and len(self.own) == 4

    def usable(self) -> set[str]:
        return {name for name, port in self.ports.items() if port.ready}

    def best(self, peer: Peer, per_uplink: int = 1) -> list[SentPath]:
        return peer.best_paths(self.usable(), per_uplink)

    def forget_templates(self, uplink: str) -> None:
        """The link addresses of an uplink have changed."""
        for peer in self.peers.values():
            for path in peer.paths.values():
                if path.uplink == uplink:
                    path.template = None
            for place in [p for p in peer.loose_templates if p[0] == uplink]:
                del peer.loose_templates[place]
