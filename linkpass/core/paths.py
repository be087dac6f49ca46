"""What the core knows of its peers and of the paths to them.

A path is (peer, uplink, label); its hops were traced, never assumed. Paths of one peer with the same uplink and the
same hops form a class: the fabric offers that many ways. The labels in use are spread over the classes, and every
label in use is probed with its own label, because a gray failure may hit one hash bucket of a link and spare the
rest.

IPv6 has flow labels. The label of an IPv4 peer is the source port of an entropy tunnel, which leads over one uplink
whatever the kernel's hash picks; 0 is the way outside of tunnels, which is probed beside and carries flows when no
tunnel does.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from linkpass.core.element import Element
from linkpass.core.events import Evidence
from linkpass.core.host_state import HostState
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
    failed_as: Evidence = "blackhole"
    """What its latest failure was; outlasts the evidence, which silence takes away."""
    loss_ratio: float = 0.0
    rtt_s: float = 0.0
    queueing_s: float = 0.0
    """Delay above its floor, as last told."""
    wavers: bool = False
    """Probes are late half of the time: neither with a queue nor without."""
    large_only: bool = False
    """Only large packets fail."""
    links: tuple[str, ...] = ()
    sent: float = 0.0
    lost: float = 0.0
    counted_at_s: float = 0.0

    @property
    def key(self) -> Key:
        return self.uplink, self.label

    def count(self, sent: float, lost: float, now_s: float) -> None:
        """Add a window's counts to sums that halve every RECENT_S."""
        fade = 0.5 ** (max(0.0, now_s - self.counted_at_s) / RECENT_S)
        self.sent, self.lost, self.counted_at_s = self.sent * fade + sent, self.lost * fade + lost, now_s

    @property
    def answers(self) -> bool:
        """Probes get through, if not all."""
        return self.evidence in ("good", "queueing", "lossy")

    def forget_evidence(self, now_s: float) -> None:
        """It is no longer probed: what was known of it grows stale, and what it was about to earn is not earned."""
        self.evidence, self.loss_ratio, self.sent, self.lost = "unknown", 0.0, 0.0, 0.0
        if self.element.state in ("watch", "held"):
            self.element.feed("quiet", now_s, why="not probed")

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
    patience_s: float | None = None
    """After which the first transport of an RDMA flow to it gives up; None: none does."""
    data_flows: bool | None = None
    disarmed: str = ""
    pool: tuple[int, ...] = ()
    tunnels: dict[int, str] = field(default_factory=dict)
    """Of an IPv4 peer: source port -> uplink."""
    why_no_tunnels: str = ""
    paths: dict[Key, Path] = field(default_factory=dict)
    uplink_of: dict[int, str] = field(default_factory=dict)
    """label -> uplink that the kernel picks when every uplink takes part."""
    effective: dict[int, str] = field(default_factory=dict)
    """The same for the uplinks that take part now."""
    members: frozenset[str] = frozenset()
    """Uplinks that took part when `uplink_of` was asked for."""
    traced_at_s: dict[str, float] = field(default_factory=dict)
    trace_due_s: dict[str, float] = field(default_factory=dict)
    """Uplinks over which nodes still owe answers -> when to ask on."""
    changed: set[str] = field(default_factory=set)
    """Uplinks over which paths have failed or come back since they were traced."""
    ways: dict[str, frozenset[Hops]] = field(default_factory=dict)
    """Uplink -> the ways that its labels lead, as far as they were traced."""
    planned: dict[str, int] = field(default_factory=dict)
    """Uplink -> ways that the fabric's file has over it."""
    sprayed: dict[str, str] = field(default_factory=dict)
    """Uplink -> why no label chooses a way over it, empty: packets keep to their ways."""
    blunt: dict[str, str] = field(default_factory=dict)
    """Uplinks over which labels choose no way, though there are several -> why."""
    asked: dict[str, float] = field(default_factory=dict)
    """What is being asked (`trace eth1`, `resolve`, `compare`) -> until when no second question is put."""
    compared_at_s: float | None = None
    cause: str = ""
    """Causal id of its present silence."""
    judge_at_s: float | None = None
    """When to say what its silence means; None: said, or not silent."""
    escalated: bool = False
    left_at_s: float = float("-inf")
    """When its daemon last said goodbye."""
    left: bool = False
    """Its present silence began with a goodbye."""
    flowed_at_s: float = float("-inf")
    """When its data was last known to advance."""
    outlived: bool = False
    """Its data flowed on through this silence: the daemon is silent, not the host."""
    host: HostState = field(default_factory=HostState)
    """What is known of the host itself, apart from its paths."""
    in_use: tuple[Key, ...] = ()
    labels: tuple[int, ...] = ()
    away: dict[int, str] = field(default_factory=dict)
    """Labels that decisions have taken flows from -> the cause: the way back belongs to the same story."""
    window_at_s: float = float("-inf")
    """When a window of losses came last."""
    spread_at_s: float | None = None
    """When the first labels are chosen although some paths have not answered."""
    resolve_due: bool = False
    """Uplinks have joined or left since `effective` was learnt: the kernel picks anew."""
    answers_from: int = 0
    """Answers to questions with a lower id were given before that change."""
    said: dict[str, str] = field(default_factory=dict)
    """Troubles in the journal already: told again only when they change."""

    def title(self) -> str:
        return self.name or self.address

    @property
    def hashed(self) -> bool:
        """The kernel's own hash picks the uplink of each label: those are flow labels."""
        return ":" in self.address

    @property
    def labelled(self) -> bool:
        """IPv6 has flow labels, and IPv4 tunnels where there are some; without, one path an uplink, under label 0."""
        return self.hashed or bool(self.tunnels)

    def probed_from(self, address: str) -> bool:
        """Whether probes and words can go there from a host's address: not from one family to the other."""
        return self.hashed == (":" in address)

    def labels_over(self, uplink: str) -> tuple[int, ...]:
        """The labels that may lead over an uplink."""
        return self.pool if self.hashed else tuple(label for label in self.pool if self.tunnels[label] == uplink)

    def leads(self, uplink: str, label: int) -> bool:
        """Whether a flow under that label on the wire takes the path that is probed with it. IPv4 flows outside of
        tunnels have ports of their own, by which the fabric may part them from probes."""
        return self.hashed and (uplink, label) in self.in_use

    @property
    def useless(self) -> str:
        """Why no label changes anything: those in use all take one uplink, and choose no way beyond it."""
        over = {uplink for uplink, _ in self.in_use}
        return self.blunt.get(over.pop(), "") if len(over) == 1 else ""

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
            peer = self.peers[address] = Peer(address)
            if peer.hashed:
                peer.pool = pool_of(self.settings.address, address, self.settings.limits.trace_pool)
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

    def rename(self, peer: Peer, name: str) -> None:
        """A peer's name has become known, and is the end of its paths' last links."""
        if name and name != peer.name:
            peer.name = name
            for path in peer.paths.values():
                if path.hops is not None:
                    path.links = links_of(self.settings.host, path.hops, name)

    def choose(self, peer: Peer, uplinks: Iterable[str]) -> bool:
        """Choose the labels in use over the classes of paths that the kernel's own hash can reach; True on a change.

        A label counts for the uplink that the hash picks for it when all uplinks are members. What is in use stays in
        use while it can: a label that carries flows is not given up for an equal one."""
        members = set(uplinks)
        plain = () if peer.hashed else tuple((member, 0) for member in sorted(members))
        for member, _ in plain:
            if (member, 0) not in peer.paths:
                self.set_hops(peer, member, 0, (None,))
        classes: dict[tuple[str, Hops], list[Key]] = {}
        for label in peer.pool:
            uplink = peer.uplink_of.get(label)
            path = peer.paths.get((uplink, label)) if uplink in members and uplink is not None else None
            if path is not None and path.hops is not None:
                classes.setdefault((path.uplink, path.hops), []).append(path.key)
        for (uplink, _), keys in classes.items():
            keys.sort(key=lambda key: (key not in peer.in_use, key[1] not in peer.labels))
            if uplink in peer.blunt:  # more labels would be no alternatives
                del keys[1:]
        chosen = plain + spread(list(classes.values()), self.settings.limits.labels_per_peer)
        if chosen == peer.in_use:
            return False
        peer.in_use = chosen
        return True

    def in_use(self) -> Iterator[Path]:
        """All paths in use, also those to peers that are silent."""
        for peer in self.peers.values():
            for key in peer.in_use:
                yield peer.paths[key]

    def probed(self) -> Iterator[Path]:
        """All paths in use to peers that are heard: those of which evidence is of this moment."""
        for peer in self.peers.values():
            if peer.silent_since_s is None:
                yield from peer.used()

    def witnesses(self) -> list[Path]:
        """Paths with evidence of which the freshest kind there is: those to peers this host talks to are probed fast,
        those to others slowly and would speak of the past; those to silent peers are a memory."""
        known = [path for path in self.in_use() if path.evidence != "unknown"]
        heard = [path for path in known if self.peers[path.peer].silent_since_s is None]
        active = [path for path in heard if self.peers[path.peer].active]
        return active or heard or known

    def first_hop(self, uplink: str) -> str | None:
        """The name of the node at the other end of an uplink, as traces have shown it."""
        for peer in self.peers.values():
            for path in peer.paths.values():
                if path.uplink == uplink and path.hops and path.hops[0] is not None:
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
