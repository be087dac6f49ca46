"""What the probe edge tells people and metrics."""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from linkpass.core.events import Evidence
from linkpass.edges.probes.peers import Peer


class ProbeStats(msgspec.Struct):
    """Counters since start. `refused_*`: packets that came to our port and were not taken."""

    sent: int = 0
    sent_extra: int = 0
    """Of `sent`: to confirm a suspicion."""
    sent_answers: int = 0
    """Of `sent`: reports out of turn and notices."""
    heard: int = 0
    lost: int = 0
    lost_to_queues: int = 0
    """Of `lost`: while a queue was long on the path, so that they are no evidence."""
    late: int = 0
    """Reported as heard after having been counted as lost."""
    unsent: int = 0
    """Not sent because the uplink was not usable or refused the packet: not losses."""
    refused_truncated: int = 0
    refused_version: int = 0
    refused_mac: int = 0
    refused_malformed: int = 0
    refused_replay: int = 0
    refused_boot: int = 0
    refused_address: int = 0
    """Addressed to somebody else."""
    traces: int = 0
    """Packets of traces that came too far."""
    overflows: int = 0
    """Times that our own receive ring overflowed; peers are told to count anew."""
    daemon_late: int = 0
    stretch: float = 1.0
    """By what the intervals are longer than asked for, to keep the packet limits."""
    over_limit_paths: int = 0
    """Paths that are not probed because a peer can have no more of them."""


class PathView(msgspec.Struct, frozen=True):
    peer: str
    uplink: str
    label: int
    evidence: Evidence
    why: str
    loss_ratio: float
    rtt_s: float
    """0 before the first answer."""
    rtt_floor_s: float
    queueing_s: float
    """One-way delay from here to the peer above its floor, as the peer last reported it."""
    answered_age_s: float | None
    """How long ago the newest probe was sent that the peer has reported as heard: how stale the path is."""
    sent: int
    settled: int
    """Probes whose fate the peer has reported; `lost` of them did not arrive."""
    lost: int
    interval_s: float
    large_bytes: int
    """Size of its large probes as IP packets; 0: it has none. None settled: none has ever arrived, and they are not
    judged (the path's MTU is smaller than the uplink's)."""
    large_sent: int
    large_settled: int
    large_lost: int


class PeerView(msgspec.Struct, frozen=True):
    peer: str
    planned: bool
    silent: bool
    heard_age_s: float | None
    paths: int


class Snapshot(msgspec.Struct, frozen=True):
    peers: tuple[PeerView, ...]
    paths: tuple[PathView, ...]
    stats: ProbeStats
    boot: int
    """The number that this run of the daemon goes by in its packets; 0 before `open`."""


def snapshot_of(peers: Iterable[Peer], stats: ProbeStats, boot: int, now_s: float) -> Snapshot:
    views = []
    paths = []
    for peer in peers:
        heard_age_s = now_s - peer.last_heard_s if peer.last_heard_s > -math.inf else None
        views.append(PeerView(peer.address, bool(peer.paths), peer.silent, heard_age_s, len(peer.by_key)))
        for path in peer.by_key.values():
            verdict, twin = path.opinion(), path.twin
            answered_s = path.sent_at(path.acked)
            paths.append(
                PathView(
                    peer=peer.address,
                    uplink=path.uplink,
                    label=path.label,
                    evidence=verdict.evidence,
                    why=verdict.why,
                    loss_ratio=path.loss_ratio,
                    rtt_s=path.rtt_s,
                    rtt_floor_s=path.rtt_floor.value if path.rtt_s else 0.0,
                    queueing_s=path.queueing_s,
                    answered_age_s=now_s - answered_s if answered_s > -math.inf else None,
                    sent=path.sent,
                    settled=path.settled,
                    lost=path.lost,
                    interval_s=path.interval_s,
                    large_bytes=twin.size_bytes if twin is not None else 0,
                    large_sent=twin.sent if twin is not None else 0,
                    large_settled=twin.settled if twin is not None else 0,
                    large_lost=twin.lost if twin is not None else 0,
                )
            )
    return Snapshot(tuple(views), tuple(paths), msgspec.structs.replace(stats), boot)
