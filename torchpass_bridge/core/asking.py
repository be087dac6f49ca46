"""Requests: to move what is on a host away, because somebody wants it, or because the host fails."""

from __future__ import annotations

import msgspec

from torchpass_bridge.core import loans, saving, spares
from torchpass_bridge.core.scene import Action, Put, Reply, Scene
from torchpass_bridge.wire import Answer, Ask, Incident, Job

HOUR_S = 3600.0
MAX_WAITING = 64

_replace = msgspec.structs.replace


def refuse_all(scene: Scene, why: str) -> list[Action]:
    asks, scene.asks = scene.asks, []
    return [Reply(ask, Answer(False, why)) for ask in asks]


def take(scene: Scene, unix_s: float) -> tuple[list[Action], Job, str]:
    """Answers, the record with what is taken in, and why the incident is cancelled (mostly empty).

    An ask is answered with yes only once the record has it: it is found there, and answered, in the next call."""
    job = scene.job
    actions: list[Action] = []
    left = []
    cancelled = ""
    for ask in scene.asks:
        if ask.what in ("snapshot", "stop"):
            answer, job = _save(scene, job, ask, unix_s)
            if answer is None:
                left.append(ask)
            else:
                actions.append(Reply(ask, answer))
            continue
        if ask.what == "withdraw":
            kept = tuple(w for w in job.waiting if w.host != ask.host)
            too_late = _too_late(job, ask)
            if kept == job.waiting and too_late:
                done = ask.id in scene.taking_back
                actions.append(Reply(ask, Answer(done, "taken back" if done else too_late)))
                continue
            job = _replace(job, waiting=kept)
            if not too_late:
                cancelled = ask.cause or "what was said of the host is taken back"
            scene.taking_back.add(ask.id)
            left.append(ask)
            continue
        if any(w.host == ask.host and w.accelerator == ask.accelerator for w in scene.job.waiting):
            actions.append(Reply(ask, Answer(True, "its turn comes")))
            continue
        ranks = ranks_on(job, ask)
        if not ranks:
            actions.append(Reply(ask, Answer(False, f"no rank of {job.name} is on {place(ask)}")))
            continue
        incident = scene.job.incident
        if incident is not None and set(ranks) <= set(incident.leaving):
            actions.append(Reply(ask, Answer(True, f"under way ({incident.phase})")))
            continue
        why = _refused(scene, ask, unix_s)
        if why:
            actions.append(Reply(ask, Answer(False, why)))
            continue
        if not any(w.id == ask.id for w in job.waiting):
            job = _replace(job, waiting=(*job.waiting, ask))
        left.append(ask)
    scene.asks = left
    return actions, job, cancelled


def _save(scene: Scene, job: Job, ask: Ask, unix_s: float) -> tuple[Answer | None, Job]:
    """The answer, None: once the record has it; and the record."""
    under_way = scene.job.saving
    if under_way is not None and (under_way.last or ask.what == "snapshot"):
        return Answer(True, f"snapshot {under_way.number} is under way"), job
    why = saving.ready(job)
    if why:
        return Answer(False, why), job
    if scene.job.saving is None and job.saving is None:
        job = saving.begin(job, ask, unix_s)
    return None, job  # also while another one is taken: an end comes after it


def next_waiting(scene: Scene, now_s: float, unix_s: float) -> list[Action]:
    """The first of the waiting requests begins that spares can be had for. One that they cannot be had for waits, holds
    up nobody else, and begins when its time is up: then it is cancelled with the reason, as an incident of its own."""
    job = scene.job
    for number, ask in enumerate(job.waiting):
        before, after = job.waiting[:number], job.waiting[number + 1 :]
        ranks = ranks_on(job, ask)
        if not ranks:
            return [Put(_replace(job, waiting=(*before, *after)))]
        made = Incident(
            number=job.incidents + 1, kind="planned", leaving=ranks, hosts=(ask.host,),
            cause=ask.cause or f"asked to leave {ask.host}",
            evidence=ask.evidence, trigger=ask.trigger, failing=ask.what == "failed",
            began_unix_s=unix_s, phase_unix_s=(("requested", unix_s),),
        )  # fmt: skip
        why, waited_s = _short(scene, made, now_s), now_s - scene.waits_since_s(ask, now_s)
        if why and waited_s < scene.limits.planned_wait_s:
            if ask.waits or waited_s <= scene.limits.overdue_s:  # who was never heard yet may speak in a moment
                continue
            return [Put(_replace(job, waiting=(*before, _replace(ask, waits=why), *after)))]
        moved = tuple(at for at in job.moved_unix_s if unix_s - at < HOUR_S)
        counted = moved if ask.unlimited else (*moved, unix_s)
        job = _replace(saving.interrupted(job), waiting=(*before, *after), moved_unix_s=counted)
        return [Put(_replace(job, incident=made, incidents=made.number))]
    return []


def _short(scene: Scene, incident: Incident, now_s: float) -> str:
    """Why there are not spares enough, and no hosts to be called for; empty: there are."""
    missing = len(incident.leaving) - sum(not s.claimed_by for s in spares.usable(scene, incident, now_s))
    if missing <= 0 or any(loans.call(scene, incident, missing, now_s)):
        return ""
    return spares.none_fits(scene)


def put_back(job: Job, incident: Incident) -> tuple[Ask, ...]:
    """A planned migration that a crash interrupts has its turn again afterwards, for what is still there."""
    hosts = sorted({(job.members[r].host, job.members[r].accelerator) for r in incident.leaving})
    asks = tuple(
        Ask(
            id=f"again-{incident.number}-{number}", what="migrate", host=host, accelerator=accelerator,
            cause=incident.cause, evidence=incident.evidence, unlimited=True, trigger=incident.trigger,
        )
        for number, (host, accelerator) in enumerate(hosts)
    )  # fmt: skip
    return (*asks, *job.waiting)[:MAX_WAITING]


def ranks_on(job: Job, ask: Ask) -> tuple[int, ...]:
    return tuple(
        rank
        for rank, m in enumerate(job.members)
        if m.host == ask.host and (not ask.accelerator or m.accelerator == ask.accelerator)
    )


def place(ask: Ask) -> str:
    return f"{ask.host}, accelerator {ask.accelerator}" if ask.accelerator else ask.host


def _refused(scene: Scene, ask: Ask, unix_s: float) -> str:
    if len(scene.job.waiting) >= MAX_WAITING:
        return f"{MAX_WAITING} requests are waiting already"
    if ask.unlimited:
        return ""
    lately = sum(unix_s - at < HOUR_S for at in scene.job.moved_unix_s)
    queued = sum(not w.unlimited for w in scene.job.waiting)
    if lately + queued >= scene.limits.per_hour:
        return f"{lately + queued} migrations within the last hour, which is the limit; an operator may still ask"
    return ""


def _too_late(job: Job, ask: Ask) -> str:
    """Why the present incident is not taken back; empty when it is: nobody has lost anything by then."""
    incident = job.incident
    if incident is None or ask.host not in incident.hosts:
        return f"nothing about {ask.host} is under way"
    if incident.kind == "crash":
        return "its ranks are gone, and are fenced: too late"
    return "its ranks have moved: too late" if incident.phase == "resuming" else ""
