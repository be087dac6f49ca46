"""Who gives state to whom, and at which step all go on.

With `shards` parts, rank r holds part r % shards. Parts of different steps are no state, so all go on with the newest
step at which every part can be had: from a rank that holds the part and stands there, or from a copy that somebody who
is left keeps of it, from an earlier boundary. With one part that is the newest step of any rank, and nobody goes back.
"""

from __future__ import annotations

import msgspec

from torchpass_bridge.core.places import keeper_of
from torchpass_bridge.core.scene import Scene
from torchpass_bridge.wire import Copy


class Had(msgspec.Struct):
    """One part at one step. `live`: ranks whose state it is; `kept`: those that keep a copy of it."""

    live: tuple[int, ...] = ()
    kept: tuple[int, ...] = ()


Parts = list[dict[int, Had]]
"""By part and step."""


def planned(scene: Scene) -> tuple[Copy, ...]:
    """All stand at one step: from those that stay and hold the same part, else from the one that leaves."""
    incident, shards, staying = scene.job.incident, scene.shards(), scene.staying()
    assert incident is not None
    return tuple(
        Copy(to=rank, sources=tuple(r for r in staying if r % shards == rank % shards) or (rank,), own=rank)
        for rank in incident.leaving
    )


def newest(scene: Scene) -> tuple[int, tuple[Had, ...], str]:
    """The newest step of which those that stay have all parts, and who has each. -1: there is none, and why."""
    parts = _had(scene)
    if not any(parts):
        return -1, (), "no member is left that holds the job's state"
    common = set(parts[0]).intersection(*parts[1:])
    if not common:
        return -1, (), f"no step is left of which all parts of the state are there: {_words(parts)}"
    return max(common), tuple(part[max(common)] for part in parts), ""


def after_crash(scene: Scene) -> tuple[tuple[int, tuple[Copy, ...]] | None, str]:
    """The step to go on from, and what has to be taken for it. None: there is none, and why."""
    at_step, parts, why = newest(scene)
    if why:
        return None, why
    copies = []
    for rank in range(scene.job.world):
        found = parts[rank % len(parts)]
        if rank in found.live:
            continue
        if rank in found.kept:
            copies.append(Copy(to=rank, sources=(rank,), kept=True))
        else:
            copies.append(Copy(to=rank, sources=found.live or found.kept, kept=not found.live))
    return (at_step, tuple(copies)), ""


def safe(scene: Scene) -> bool:
    """Whether each part is in two places at the step that all go on with, once those that leave are gone."""
    job = scene.job
    assert job.incident is not None
    at_step, after = job.incident.at_step, job.next_members()
    for rank in range(job.world):
        keeper = keeper_of(after, rank)
        status = scene.status(keeper) if keeper is not None else None
        if keeper is not None and (status is None or (rank % scene.shards(), at_step) not in status.keeps):
            return False
    return True


def _had(scene: Scene) -> Parts:
    """By those that stay."""
    shards = scene.shards()
    parts: Parts = [{} for _ in range(shards)]
    for rank, _, status in scene.by_rank(scene.staying()):
        if status is None:
            continue
        if status.step >= 0:
            found = parts[rank % shards].setdefault(status.step, Had())
            found.live = (*found.live, rank)
        for part, step in status.keeps:
            if 0 <= part < shards and step >= 0:
                found = parts[part].setdefault(step, Had())
                found.kept = (*found.kept, rank)
    return parts


def _words(parts: Parts) -> str:
    return "; ".join(
        f"part {number} at " + (", ".join(str(step) for step in sorted(steps)) or "no step")
        for number, steps in enumerate(parts)
    )
