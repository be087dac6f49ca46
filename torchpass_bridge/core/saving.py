"""A snapshot of the whole job: at one step boundary of all ranks, written beside training, published when all is there.

    asked --> a step is chosen --> all parts are taken and written --> published --> said in `Job.saved`
                   ^                        |
                   '------------------------'  somebody had passed the step already: a later one

An incident interrupts it: it begins anew afterwards, at another step. When a crash leaves more ranks without a holder
than there are spares, it is the last thing that the survivors do: they stand still anyway (`last_resort`).
"""

from __future__ import annotations

import math

import msgspec

from torchpass_bridge.core import sharing
from torchpass_bridge.core.scene import Action, Put, Scene
from torchpass_bridge.wire import Ask, Incident, Job, Member, Saved, Saving

KEPT = 4
"""Of how snapshots ended."""

MAX_DOUBLINGS = 4
"""Of the way to the step, when somebody had passed it."""

_replace = msgspec.structs.replace


def ready(job: Job) -> str:
    """Why no snapshot of it can be taken; empty: one can."""
    without = [rank for rank, member in enumerate(job.members) if not member.snapshots]
    if without:
        return (
            f"rank {without[0]} on {job.members[without[0]].host} knows no folder for snapshots: set "
            "TORCHPASS_SNAPSHOTS for all ranks and spares, to one that all hosts share"
        )
    return ""


def begin(job: Job, ask: Ask, unix_s: float) -> Job:
    made = Saving(
        number=job.snapshots + 1, cause=ask.cause or "asked for", last=ask.what == "stop", began_unix_s=unix_s
    )
    return _replace(job, saving=made, snapshots=made.number)


def interrupted(job: Job) -> Job:
    """An incident begins: what was written so far is of no use, for not all will write."""
    if job.saving is None:
        return job
    return _replace(job, saving=_again(job.saving))


def go_on(scene: Scene, now_s: float, unix_s: float) -> list[Action]:
    """The next write for a snapshot of a job that trains; none: it is waited for, or nothing is to be saved."""
    job, saving = scene.job, scene.job.saving
    if saving is None:
        return []
    if saving.at_step < 0:
        ranks = tuple(range(job.world))
        ahead = margin(scene) << min(saving.attempt, MAX_DOUBLINGS)
        chosen = _replace(saving, at_step=scene.newest_step() + ahead, writers=ranks, tensors=ranks)
        return [Put(_replace(job, saving=chosen))]
    passed = [
        rank for rank, _, s in scene.by_rank(saving.writers)
        if s and s.step > saving.at_step and s.saved[:2] != (saving.number, saving.attempt)
    ]  # fmt: skip
    if passed and saving.attempt + 1 >= scene.limits.attempts:
        why = f"rank {passed[0]} was past the step each time before it had heard of it"
        return [Put(ended(job, "", why, unix_s))]
    if passed:
        return [Put(_replace(job, saving=_again(saving)))]
    done, why = progress(scene, saving)
    if why or _late(scene, now_s):
        # An end that was asked for is not made without its snapshot: the job trains on.
        return [Put(ended(job, "", why or _slow(scene, saving), unix_s))]
    if not done:
        return []
    if not saving.parts:
        return [Put(_replace(job, saving=_replace(saving, parts=done)))]
    over = ended(job, done[0][1], "", unix_s)
    return [Put(stopped(over) if saving.last else over)]


def last_resort(scene: Scene, incident: Incident, why: str, unix_s: float) -> list[Action]:
    """After a crash that no spares can carry: those that are left save what they have, of a part whose rank is gone the
    copy that somebody keeps. None: they cannot."""
    job = scene.job
    alive = [rank for rank, m, s in scene.by_rank(scene.staying()) if s and s.step >= 0 and m.snapshots]
    at_step, parts, _ = sharing.newest(scene)
    if at_step < 0 or len(alive) < len(scene.staying()):
        return []
    made = Saving(
        number=job.snapshots + 1, cause=why, last=True, at_step=at_step, writers=tuple(alive),
        tensors=tuple(sorted(rank for found in parts for rank in found.live)),
        kept=tuple((found.kept[0], part) for part, found in enumerate(parts) if not found.live), began_unix_s=unix_s,
    )  # fmt: skip
    stamps = (*incident.phase_unix_s, ("saving", unix_s))
    saving = _replace(incident, phase="saving", phase_unix_s=stamps)
    return [Put(_replace(job, saving=made, snapshots=made.number, incident=saving))]


def progress(scene: Scene, saving: Saving) -> tuple[tuple[tuple[int, str], ...], str]:
    """By rank, the digests of all parts, or the first writer and the path; empty: not yet. And why it fails."""
    key = (saving.number, saving.attempt)
    seen = [(rank, m, s) for rank, m, s in scene.by_rank(saving.writers) if s]
    for rank, member, s in seen:
        if s.unsaved[:2] == key:
            return (), f"rank {rank} on {member.host}: {s.unsaved[2]}"
    if saving.parts:
        found = [(rank, s.published[2]) for rank, _, s in seen if s.published[:2] == key]
        return tuple(found), ""
    written = tuple((rank, s.saved[2]) for rank, _, s in seen if s.saved[:2] == key and s.saved[2])
    return (written if len(written) == len(saving.writers) else ()), ""


def ended(job: Job, path: str, why: str, unix_s: float) -> Job:
    saving = job.saving
    assert saving is not None
    saved = Saved(saving.number, saving.at_step, path, why, unix_s)
    return _replace(job, saving=None, saved=(*job.saved, saved)[-KEPT:])


def stopped(job: Job) -> Job:
    """The job ends, and can be gone on with."""
    latest = job.saved[-1]
    return _replace(job, ended="stopped", waiting=(), why=f"saved after step {latest.step - 1}: {latest.path}")


def margin(scene: Scene) -> int:
    """Steps from the newest known to the one at which all do something: two, for one may be begun by those who are
    ahead, and more when steps are so short that word would not reach everybody in time."""
    step_s = scene.step_s()
    return 2 + (math.ceil(scene.limits.cut_s / step_s) if step_s > 0 else 2)


def _again(saving: Saving) -> Saving:
    return _replace(saving, attempt=saving.attempt + 1, at_step=-1, writers=(), tensors=(), kept=(), parts=())


def _late(scene: Scene, now_s: float) -> bool:
    return now_s - scene.saving_since_s > scene.limits.save_s


def _slow(scene: Scene, saving: Saving) -> str:
    key = (saving.number, saving.attempt)
    late: list[Member] = [
        m for _, m, s in scene.by_rank(saving.writers) if not (s and s.saved[:2] == key and s.saved[2])
    ]
    who = ", ".join(f"{m.id} on {m.host}" for m in late) or "the one that publishes it"
    return f"not done within {scene.limits.save_s:g} s: {who}"
