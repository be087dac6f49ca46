"""Paths: where labels lead, and what probes say of them."""

from __future__ import annotations

from typing import Literal

import msgspec

from linkpass.core.events.base import Event

Evidence = Literal["good", "blackhole", "lossy", "queueing", "unknown"]
"""What probes say of one direction of one path. `unknown`: never answered, or not judged; it is not `down`."""

FAILING: tuple[Evidence, ...] = ("blackhole", "lossy")

TraceNoteKind = Literal["limited", "mute", "asymmetric", "unnumbered", "sprayed", "one_way"]
"""`limited`: a node answers a part of the questions. `mute`: a hop never answers. `asymmetric`: answers come back
another way. `unnumbered`: an address names no link. `sprayed`: packets of one flow go different ways. `one_way`: all
labels lead one way, though there are several."""


class TraceNote(msgspec.Struct, frozen=True):
    """What a trace has found out about the answers to it. `hop`: where, the neighbour being 1; `nodes`: whose answers,
    as far as they are named; `why`: what was seen."""

    kind: TraceNoteKind
    hop: int
    why: str
    nodes: tuple[str, ...] = ()


class LabelsTraced(Event, frozen=True):
    """Hop-limited traces of labels over one uplink: label -> names of the nodes in order, None where a hop was mute,
    not asked, or gave an answer that names no node.

    Neither the host itself nor the peer is in the list. `planned`: over how many equal-cost ways the fabric's file
    leads there, 0: it does not say. `again_s`: some nodes limit their answers, and have more after this time."""

    cmd_id: int
    peer: str
    uplink: str
    hops: dict[int, tuple[str | None, ...]]
    notes: tuple[TraceNote, ...] = ()
    planned: int = 0
    again_s: float | None = None


class TraceFailed(Event, frozen=True):
    cmd_id: int
    peer: str
    uplink: str
    why: str


class UplinksResolved(Event, frozen=True):
    """Which uplink the kernel's own hash picks for each label now. `blind`: it does not look at labels, and what is
    relabelled all takes one uplink."""

    cmd_id: int
    peer: str
    uplink_of: dict[int, str]
    blind: bool = False


class ResolveFailed(Event, frozen=True):
    cmd_id: int
    peer: str
    why: str


class PathEvidence(Event, frozen=True):
    """The probes' opinion of the direction from this host over one path has changed."""

    peer: str
    uplink: str
    label: int
    evidence: Evidence
    loss_ratio: float = 0.0
    rtt_s: float = 0.0
    queueing_s: float = 0.0
    """One-way delay above its floor at this moment."""
    wavers: bool = False
    """Probes are late half of the time: no queue stands, and yet the path is not without."""
    large_only: bool = False
    """It is large packets that fail; small ones get through."""
    why: str = ""


class RoceEvidence(Event, frozen=True):
    """The opinion of datagrams through an RDMA device's own queue, there and back, has changed. `rtt_s`: in the network
    alone; `host_s`, `peer_host_s`: what the two hosts took to send, answer and read them."""

    device: str
    peer: str
    name: str
    evidence: Evidence
    loss_ratio: float = 0.0
    rtt_s: float = 0.0
    host_s: float = 0.0
    peer_host_s: float = 0.0
    why: str = ""


class PathCount(msgspec.Struct, frozen=True, array_like=True):
    """Probes sent and lost over one path in a window."""

    uplink: str
    label: int
    sent: int
    lost: int


class PathWindow(Event, frozen=True):
    """A window's counts of all paths to a peer. Sent only while losses are about, so that quiet time costs nothing."""

    peer: str
    counts: tuple[PathCount, ...]
