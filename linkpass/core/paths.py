"""What the core knows of its peers and of the paths to them.

A path is (peer, uplink, label); its hops were traced, never assumed. Paths of one peer with the same uplink and the
same hops form a class: the fabric offers that many ways. The labels in use are spread over the classes, and every
label in use is probed with its own label, because a gray failure may hit one hash bucket of a link and spare the
rest.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from linkpass.core.element import Element
from linkpass.core.events import Evidence
from linkpass.core.settings import CoreSettings

RECENT_S = 1.0
"""Half-life of the loss counts: long enough to gather losses at 1 %, short enough to forget a fault that is over."""

Hops = tuple[str | None, ...]
Key = tuple[str, int]
"""(uplink, label) of a path to a peer."""


@dataclass(slots=True)
class Path:
    """One way to a peer. `hops` None: not traced yet."""

    peer: str
    uplink: str
    label: int
    element: Element
    hops: Hops | None = None
    evidence: Evidence = "unknown"
    loss_ratio: float = 0.0
    rtt_s: float = 0.0
    links: tuple[str, ...] = ()
    sent: float = 0.0
    lost: float = 0.0
    counted_at_s: float = 0.0

    @property
    def key(self) -> Key:
        return self.uplink, self.label

    def count(self, sent: int, lost: int, now_s: float) -> None:
        """Add a window's counts to sums that halve every RECENT_S."""
        fade = 0.5 ** (max(0.0, now_s - self.counted_at_s) / RECENT_S)
        self.sent, self.lost, self.counted_at_s = self.sent * fade + sent, self.lost * fade + lost, now_s

    def route(self) -> str:
        """The path for people: `eth1 leaf1 spine2 leaf3`."""
        return " ".join([self.uplink, *(hop or "?" for hop in self.hops or ())])


@dataclass(slots=True)
class Peer:
    address: str
    name: str = ""
    active: bool = False
    silent_since_s: float | None = None
    filtered: str = ""
    data_flows: bool | None = None
    disarmed: str = ""
    pool: tuple[int, ...] = ()
    paths: dict[Key, Path] = field(default_factory=dict)
    uplink_of: dict[int, str] = field(default_factory=dict)
    """label -> uplink that the kernel picks when every uplink takes part."""
    effective: dict[int, str] = field(default_factory=dict)
    """The same for the uplinks that take part now."""
    members: frozenset[str] = frozenset()
    """Uplinks that took part when `uplink_of` was asked for."""
    traced_at_s: dict[str, float] = field(default_factory=dict)
    asked: dict[str, float] = field(default_factory=dict)
    """What is being asked (`trace eth1`, `resolve`, `compare`) -> until when no second question is put."""
    compared_at_s: float | None = None
    cause: str = ""
    """Causal id of its present silence."""
    escalated: bool = False
    in_use: tuple[Key, ...] = ()
    labels: tuple[int, ...] = ()

    def title(self) -> str:
        return self.name or self.address

    @property
    def labelled(self) -> bool:
        """IPv6 has flow labels; an IPv4 peer has one path an uplink, under label 0."""
        return ":" in self.address

    def used(self) -> list[Path]:
        return [self.paths[key] for key in self.in_use]


def pool_of(host: str, peer: str, size: int) -> tuple[int, ...]:
    """`size` distinct 16-bit labels, never 0, the same at every start: steering survives a restart unchanged."""
    labels: dict[int, None] = {}
    turn = 0
    while len(labels) < size:
        label = zlib.crc32(f"{host}>{peer}#{turn}".encode()) & 0xFFFF
        turn += 1
        if label:
            labels[label] = None
    return tuple(labels)


def links_of(host: str, hops: Hops, peer: str) -> tuple[str, ...]:
    """The directions along a path, `a>b`. A mute hop breaks the chain: nothing is guessed across it."""
    nodes = (host, *hops, peer)
    return tuple(f"{a}>{b}" for a, b in itertools.pairwise(nodes) if a is not None and b is not None)


class PathTable:
    """All peers and paths of this host."""

    def __init__(self, settings: CoreSettings) -> None:
        self.settings = settings
        self.peers: dict[str, Peer] = {}

    def peer(self, address: str) -> Peer:
        """The peer, made when it is new."""
        peer = self.peers.get(address)
        if peer is None:
            pool = pool_of(self.settings.address, address, self.settings.limits.trace_pool)
            peer = self.peers[address] = Peer(address, pool=pool)
        return peer

    def find(self, address: str, uplink: str, label: int) -> Path | None:
        peer = self.peers.get(address)
        return peer.paths.get((uplink, label)) if peer else None

    def set_hops(self, peer: Peer, uplink: str, label: int, hops: Hops) -> None:
        path = peer.paths.get((uplink, label))
        if path is None:
            name = f"{peer.address} {uplink} {label:#06x}"
            path = Path(peer.address, uplink, label, Element(name, self.settings.damping))
            peer.paths[path.key] = path
        path.hops, path.links = hops, links_of(self.settings.host, hops, peer.title())

    def choose(self, peer: Peer, uplinks: Iterable[str]) -> bool:
        """Choose the labels in use over the classes of paths that the kernel's own hash can reach; True on a change.

        A label counts for the uplink that the hash picks for it when all uplinks are members."""
        members = set(uplinks)
        if not peer.labelled:
            for member in sorted(members):
                if (member, 0) not in peer.paths:
                    self.set_hops(peer, member, 0, (None,))
            chosen = tuple((member, 0) for member in sorted(members))
            changed, peer.in_use = chosen != peer.in_use, chosen
            return changed
        classes: dict[tuple[str, Hops], list[Key]] = {}
        for label in peer.pool:
            uplink = peer.uplink_of.get(label)
            path = peer.paths.get((uplink, label)) if uplink in members and uplink is not None else None
            if path is not None and path.hops is not None:
                classes.setdefault((path.uplink, path.hops), []).append(path.key)
        chosen = spread(list(classes.values()), self.settings.limits.labels_per_peer)
        if chosen == peer.in_use:
            return False
        peer.in_use = chosen
        return True

    def probed(self) -> Iterator[Path]:
        """All paths in use to peers that are heard."""
        for peer in self.peers.values():
            yield from peer.used()

    def first_hop(self, uplink: str) -> str | None:
        """The name of the node at the other end of an uplink, as traces have shown it."""
        for peer in self.peers.values():
            for path in peer.paths.values():
                if path.uplink == uplink and path.hops:
                    return path.hops[0]
                if path.uplink == uplink and path.hops == ():
                    return peer.title()
        return None


def spread(classes: list[list[Key]], most: int) -> tuple[Key, ...]:
    """Take keys from the classes in turn: one each, and again until `most`, or twice around when there are few classes.

    With few classes two labels each are enough: a lost bucket then still leaves another label on the same links."""
    rounds = max(len(keys) for keys in classes) if classes else 0
    want = min(most, 2 * len(classes)) if len(classes) < most else most
    chosen: list[Key] = []
    for turn in range(rounds):
        for keys in classes:
            if turn < len(keys) and len(chosen) < want:
                chosen.append(keys[turn])
    return tuple(chosen)
