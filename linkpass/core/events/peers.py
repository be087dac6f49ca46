"""Peers, and what they say."""

from __future__ import annotations

from typing import Literal

import msgspec

from linkpass.core.events.base import Event

NoticeKind = Literal[
    "port_down", "port_up", "drain", "undrain", "goodbye", "suspect", "failing", "ailing", "well", "missing", "heard"
]
"""`goodbye`: the daemon stops in good order (an empty link); its silence is no verdict. `suspect`: its diagnosis names
what stands in `link`, there also a node. `failing`, `ailing`, `well`: what a host says of itself (`link`: its words).
`missing`, `heard`: whether the speaker hears a host, or exchanges data with it (`link`: its address)."""


class PeerKnown(Event, frozen=True):
    """A host that may be talked to: configured, in the fabric's file, or heard with a valid signature."""

    peer: str
    name: str = ""


class PeersActive(Event, frozen=True):
    """The peers this host has established connections with now (from the kernel's socket table)."""

    peers: tuple[str, ...]


class PeerSilent(Event, frozen=True):
    """Nothing at all has been heard from a peer on any path for `silent_s`, though it was heard before."""

    peer: str
    silent_s: float


class PeerBack(Event, frozen=True):
    """A silent peer is heard again."""

    peer: str


class PeerData(Event, frozen=True):
    """Whether the job's data to a peer still advances (acknowledged bytes of its sockets); sent on a change.

    `stands`: how it stands, as far as the kernel's sockets tell: `shut`: the peer's kernel answers that nobody reads
    (its window is shut); `unacked`: it acknowledges nothing, however often it is sent again; empty: not known."""

    peer: str
    flows: bool
    stands: Literal["", "shut", "unacked"] = ""


class PeerFiltered(Event, frozen=True):
    """Every probe to a peer fails while its data flows: somebody filters probes (`rule` would let them through), or
    `why` says what else it is."""

    peer: str
    rule: str
    why: str = ""


class PeerPatience(Event, frozen=True):
    """The least time after which a transport gives up what it has sent to a peer (`rdma.deadline`), over all RDMA flows
    to it; None: none gives up, or none is known. Sent on a change."""

    peer: str
    least_s: float | None


class PeerTunnels(Event, frozen=True):
    """The entropy tunnels that lead to an IPv4 peer: source port -> uplink. Empty: none (any more), and `why`."""

    peer: str
    uplink_of: dict[int, str]
    why: str = ""


class Notice(msgspec.Struct, frozen=True):
    """A peer's word. `link` is `node>node` (one direction) or `node-node` (both)."""

    kind: NoticeKind
    link: str
    origin: str
    seq: int
    ttl_s: float


class NoticeHeard(Event, frozen=True):
    peer: str
    notice: Notice


class NoticeAcked(Event, frozen=True):
    cmd_id: int
    peer: str
