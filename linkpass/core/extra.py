"""Paths that are probed for a moment beside those in use, to tell suspects apart (`linkpass.core.diagnosis.asking`).

They are no choice for traffic: what their probes say is for the diagnosis alone, moves nothing and is not written down.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from linkpass.core.commands import ProbeTarget
from linkpass.core.events import FAILING, PathEvidence
from linkpass.core.paths import Peer
from linkpass.core.world import World

SLOWER: Final = 2.0
"""By what their intervals are longer than those of the paths in use: they share one limit, and a first lost probe is
confirmed by more than the plan has."""


def take(world: World, event: PathEvidence) -> bool:
    """Take the opinion of such a path; False if it is none."""
    key = event.peer, event.uplink, event.label
    path = world.table.find(*key)
    if key not in world.extra or path is None or path.key in world.table.peer(event.peer).in_use:
        return False
    path.evidence, path.loss_ratio, path.rtt_s = event.evidence, event.loss_ratio, event.rtt_s
    path.queueing_s, path.large_only = event.queueing_s, event.large_only
    return True


def targets(world: World, peer: Peer, interval_s: float, now_s: float) -> Iterator[ProbeTarget]:
    """The plan's part to one peer. What has come into use meanwhile is an extra path no longer: what its probes have
    said until now is news of it."""
    for key in [key for key in world.extra if key[0] == peer.address]:
        path = world.table.find(*key)
        if path is None or path.key in peer.in_use:
            del world.extra[key]
            if path is not None and path.evidence != "unknown":
                fails = path.evidence in FAILING
                path.element.feed("bad" if fails else "good", now_s, why="probed before it came into use")
        else:
            yield ProbeTarget(*key, SLOWER * interval_s, telling=True)
