"""How an incident ends, and what the ledger says of it."""

from __future__ import annotations

from typing import Literal

import msgspec

from torchpass_bridge.core.scene import Action, Close, Put, Scene
from torchpass_bridge.wire import Ask, Ended, Entry, Incident, Job, Outcome

_replace = msgspec.structs.replace


def close(
    scene: Scene,
    outcome: Outcome,
    why: str,
    unix_s: float,
    *,
    ended: Ended = "",
    waiting: tuple[Ask, ...] | None = None,
) -> list[Action]:
    """The entry, and the record without the incident. Everything that was done stays done."""
    job, incident = scene.job, scene.job.incident
    assert incident is not None
    kept = job.waiting if waiting is None else waiting
    entry = entry_of(scene, incident, outcome, why, unix_s)
    return [Close(entry, _replace(job, incident=None, ended=ended, waiting=kept, saving=None if ended else job.saving))]


def cancel(scene: Scene, why: str, unix_s: float, waiting: tuple[Ask, ...] | None = None) -> list[Action]:
    """A planned migration that has moved nobody: without an incident all go on in the group they have."""
    return close(scene, "cancelled", why, unix_s, waiting=waiting)


def give_up(scene: Scene, why: str, unix_s: float, *, lost: bool = False) -> list[Action]:
    """The ranks that are left cannot go on: the job ends, and has to be started again from a checkpoint."""
    how: Literal["stopped", "lost"] = "lost" if lost else "stopped"
    return close(scene, how, why, unix_s, ended=how)


def saved(scene: Scene, job: Job, unix_s: float) -> list[Action]:
    """The same with a snapshot, or with what kept it from being taken. `job`: the record that says so."""
    incident, latest = scene.job.incident, job.saved[-1]
    assert incident is not None
    cause = scene.job.saving.cause if scene.job.saving else ""
    words = f"saved after step {latest.step - 1}: {latest.path}" if latest.path else f"not saved: {latest.why}"
    entry = entry_of(scene, incident, "stopped", f"{cause}; {words}", unix_s)
    if latest.path:
        entry = _replace(entry, steps_lost=max(scene.newest_step() - latest.step, 0))
    return [Close(entry, _replace(job, incident=None, ended="stopped", why=words))]


def finish(scene: Scene, unix_s: float) -> list[Action]:
    """All members have done all their steps, whatever was under way."""
    incident = scene.job.incident
    if incident is None:
        return [Put(_replace(scene.job, waiting=(), saving=None, ended="finished"))]
    how: Outcome = "moved" if incident.phase == "resuming" else "cancelled"
    return close(scene, how, "the job has done its steps", unix_s, ended="finished", waiting=())


def lost_at_once(scene: Scene, unix_s: float) -> Entry:
    """Of a job that nobody of is heard, and that is started anew: what has become of it. Steps count as lost as far as
    this coordinator has heard of them."""
    job = scene.job
    incident = job.incident or Incident(
        number=job.incidents + 1, kind="crash", leaving=tuple(range(job.world)),
        hosts=tuple(sorted({member.host for member in job.members})), cause="none of its ranks was heard any more",
        evidence=(), trigger="silence", began_unix_s=job.unheard_unix_s,
    )  # fmt: skip
    return entry_of(scene, incident, "lost", "all its ranks were started anew", unix_s)


def entry_of(scene: Scene, incident: Incident, outcome: Outcome, why: str, unix_s: float) -> Entry:
    """What the ledger says of it."""
    job = scene.job
    moved = incident.phase == "resuming"
    statuses = [s for m in job.members if (s := scene.status(m))]
    return Entry(
        job=job.name,
        number=incident.number,
        kind=incident.kind,
        cause=incident.cause,
        evidence=incident.evidence,
        trigger=incident.trigger,
        ranks=incident.leaving,
        hosts=incident.hosts,
        spares=tuple(member.id for _, member in incident.claims),
        outcome=outcome,
        why=why,
        began_unix_s=incident.began_unix_s,
        ended_unix_s=unix_s,
        pause_s=max((s.pause_s for s in statuses if s.generation == job.generation), default=0.0) if moved else 0.0,
        steps_lost=_steps_lost(scene, incident, outcome),
        world=job.world,
        attempts=incident.attempt + 1,
        phase_unix_s=incident.phase_unix_s,
        detection_s=incident.detection_s,
    )


def _steps_lost(scene: Scene, incident: Incident, outcome: Outcome) -> int:
    """A rank that moves goes on with the next step, unless the state is sharded and some of its parts were a step
    behind. A job that ended goes on from its latest snapshot."""
    if outcome == "moved":
        return max(incident.newest - incident.at_step, 0)
    if outcome == "cancelled":
        return 0
    kept = max((saved.step for saved in scene.job.saved if saved.path), default=0)
    return max(scene.newest_step() - kept, 0)
