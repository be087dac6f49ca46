"""The migration machine: what to write next, given the job's record and what is heard.

    requested --> preparing --> quiescing --> moving --> resuming --> closed
        ^             |             |           |            |
        '-------------'-------------'-----------'            '--> a new incident
         somebody needed for it is gone, or does not get on: the next attempt

requested: spares are claimed, hosts of other jobs are called for (`loans`; after a crash the survivors are released
meanwhile) · preparing: all members of the next
group build it, planned: while training goes on · quiescing (planned only): all stop at the same applied step · moving:
whoever lacks state takes it over and verifies it · resuming: the record has the next generation; each goes on.

`decide` is level-triggered, as controllers of clusters are: it looks at what is so, not at what has happened, so a lost
message, a coordinator that dies after any line, or two that act at once cost time and nothing else. Of two that write,
the store takes one; the other sees the record it lost to and decides again. At most one write of the record is asked
for at a time.

Every edge of failure is one rule: `_losses` before everything else. What is never done: to give one rank to two
members (the record has one holder a rank, an id that left is fenced for good, and no member trains in a generation that
the record does not name it in), and to let somebody go on from state that was not verified.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from torchpass_bridge.core import asking, closing, loans, saving, sharing, spares
from torchpass_bridge.core.scene import Action, Put, Scene
from torchpass_bridge.wire import BEAT_S, Incident, Job, Member, Phase, Status

STANDING = ("stopped", "paused", "left")
"""Out of every collective."""

_replace = msgspec.structs.replace


def decide(scene: Scene, now_s: float, unix_s: float) -> list[Action]:
    """`now_s`: monotonic, of this coordinator; `unix_s`: for the ledger only."""
    job = scene.job
    actions: list[Action] = [*spares.tidy(scene, now_s), *loans.tidy(scene, now_s)]
    if job.ended:
        return actions + asking.refuse_all(scene, f"the job has ended ({job.ended})")
    if all((s := scene.status(m)) and s.doing == "left" for m in job.members):
        return [*actions, *closing.finish(scene, unix_s)]
    answers, job, cancelled = asking.take(scene, unix_s)
    actions += answers
    if cancelled:
        return [*actions, *closing.cancel(scene, cancelled, unix_s, job.waiting)]
    if job != scene.job:
        return [*actions, Put(job)]
    incident = job.incident
    lost = _losses(scene, now_s)
    if lost:
        return [*actions, *_crash(scene, lost, now_s, unix_s)]
    if incident is not None and incident.kind == "crash" and _nobody(scene, now_s):
        return [*actions, *closing.give_up(scene, "no member of the job is heard any more", unix_s, lost=True)]
    unheard = unheard_by_all(scene, now_s)
    if unheard != (job.unheard_unix_s > 0):
        since_unix_s = unix_s - scene.limits.lost_s if unheard else 0.0
        return [*actions, Put(_replace(job, unheard_unix_s=since_unix_s))]
    if incident is None:
        begun = _broken(scene, now_s, unix_s) or asking.next_waiting(scene, now_s, unix_s)
        begun = begun or saving.go_on(scene, now_s, unix_s)
        return [*actions, *(begun or loans.give_back(scene, now_s, unix_s))]
    return [*actions, *_PHASES[incident.phase](scene, incident, now_s, unix_s)]


# who is gone
def _losses(scene: Scene, now_s: float) -> dict[int, str]:
    """Ranks whose holders are gone now, and how that is known. Those known to leave after a crash are not new."""
    job, limits = scene.job, scene.limits
    incident = job.incident
    if scene.deaf(now_s):
        return {}
    gone = incident.leaving if incident and incident.kind == "crash" and incident.phase != "resuming" else ()
    found: dict[int, str] = {}
    said = [s for _, _, s in scene.by_rank(range(job.world)) if s]
    closed = incident is None and any(s.peer_gone and s.generation == job.generation for s in said)
    failed = {ask.host for ask in (*scene.asks, *job.waiting) if ask.what == "failed"}
    failed.update(incident.hosts if incident and incident.failing else ())
    for rank, member, status in scene.by_rank(range(job.world)):
        if rank in gone or scene.needed(member, now_s) or (incident is None and status and status.doing == "left"):
            continue
        if scene.silent(member, now_s, limits.silent_s):
            found[rank] = f"not heard for {limits.silent_s:g} s"
        elif member.host in failed and scene.silent(member, now_s, limits.overdue_s):
            found[rank] = "its host is said to have failed, and it is not heard"
        elif closed and scene.silent(member, now_s, limits.gone_s):
            found[rank] = f"another rank's connection was closed, and it is not heard for {limits.gone_s:g} s"
    # Somebody has to be left who is heard without doubt: else they may all train, cut off from the store.
    heard = any(
        rank not in gone and rank not in found and not scene.silent(member, now_s, limits.overdue_s)
        for rank, member in enumerate(job.members)
    )
    return found if heard else {}


def _nobody(scene: Scene, now_s: float) -> bool:
    """After a crash: none of those who could have the state is heard, for long, though spares are."""
    members = [scene.job.members[rank] for rank in scene.staying()]
    return not scene.deaf(now_s) and all(scene.silent(m, now_s, scene.limits.lost_s) for m in members)


def unheard_by_all(scene: Scene, now_s: float) -> bool:
    """Whether no member is heard, for long."""
    return all(scene.silent(member, now_s, scene.limits.lost_s) for member in scene.job.members)


def _crash(scene: Scene, lost: dict[int, str], now_s: float, unix_s: float) -> list[Action]:
    """A new incident, or the present one with more that leave. From `resuming` on the present one is over first."""
    job, incident = scene.job, scene.job.incident
    words = tuple(f"rank {rank} on {job.members[rank].host}: {why}" for rank, why in sorted(lost.items()))
    if incident is not None and incident.phase == "resuming":
        return closing.close(scene, "moved", "lost again before its next step was done", unix_s)
    fenced = job.fenced + tuple(job.members[rank].id for rank in sorted(lost))
    if incident is None or incident.kind == "planned":
        waiting = job.waiting if incident is None else asking.put_back(job, incident)
        kept = () if incident is None else tuple((r, m) for r, m in incident.claims if r in lost)
        made = Incident(
            number=job.incidents + 1 if incident is None else incident.number,
            kind="crash", leaving=tuple(sorted(lost)),
            hosts=_hosts(job, lost), cause=words[0], evidence=words, trigger="silence",
            attempt=incident.attempt + 1 if incident else 0, claims=kept, began_unix_s=unix_s,
            detection_s=max(now_s - scene.heard_at_s(job.members[rank]) for rank in lost),
            phase_unix_s=(("requested", unix_s),),
        )  # fmt: skip
        job = saving.interrupted(job)
        return [Put(_replace(job, incident=made, incidents=made.number, waiting=waiting, fenced=fenced))]
    leaving = tuple(sorted({*incident.leaving, *lost}))
    again = _again(_replace(incident, leaving=leaving, hosts=_hosts(job, leaving), evidence=incident.evidence + words))
    return [Put(_replace(saving.interrupted(job), incident=again, fenced=fenced))]


def _hosts(job: Job, ranks: Iterable[int]) -> tuple[str, ...]:
    return tuple(sorted({job.members[rank].host for rank in ranks}))


def _broken(scene: Scene, now_s: float, unix_s: float) -> list[Action]:
    """Members stand still, and everybody is alive: the group broke by itself, and is built anew with the same ones."""
    job, limits = scene.job, scene.limits
    still = [
        rank for rank, member, s in scene.by_rank(range(job.world))
        if s and s.doing == "stopped" and s.generation == job.generation
        and now_s - scene.heard[member.id].changed_s > limits.silent_s
    ]  # fmt: skip
    if not still:
        return []
    words = f"rank {still[0]}'s collective broke while every rank is alive"
    made = Incident(
        number=job.incidents + 1, kind="crash", leaving=(), hosts=(), cause=words, evidence=(words,),
        trigger="broken group",
        began_unix_s=unix_s, phase_unix_s=(("requested", unix_s),),
    )  # fmt: skip
    return [Put(_replace(saving.interrupted(job), incident=made, incidents=made.number))]


# the phases
def _requested(scene: Scene, incident: Incident, now_s: float, unix_s: float) -> list[Action]:
    """Until every rank that is left has somebody to take it."""
    claims, actions = spares.claim(scene, incident, now_s)
    if claims != incident.claims:
        return [Put(_replace(scene.job, incident=_replace(incident, claims=claims)))]
    if {rank for rank, _ in claims} == set(incident.leaving):
        return [_phase(scene.job, incident, "preparing", unix_s)]
    waited_s = now_s - scene.incident_since_s
    if actions or waited_s <= scene.limits.overdue_s:
        return actions
    called, coming = loans.call(scene, incident, len(incident.leaving) - len(claims), now_s)
    if called or coming:
        return called
    why = "; ".join((spares.none_fits(scene), *loans.reasons(scene)))
    if incident.kind == "planned":
        return closing.cancel(scene, why, unix_s)
    return _enough(scene, incident, why, unix_s) if waited_s > scene.limits.spare_wait_s else []


def _preparing(scene: Scene, incident: Incident, now_s: float, unix_s: float) -> list[Action]:
    """Until the next group stands; after a crash also until every survivor is out of the broken collective."""
    job = scene.job
    missing = spares.gone(scene, incident, now_s)
    if missing:
        return _without(scene, incident, missing, now_s, unix_s)
    late = [m for m in job.next_members() if not ((s := scene.status(m)) and s.built == job.next_group())]
    if incident.kind == "crash":
        late += [m for _, m, s in scene.by_rank(scene.staying()) if not (s and s.doing in STANDING)]
    if late:
        return _overdue(scene, incident, late, now_s, unix_s)
    if incident.kind == "planned":
        cut = scene.newest_step() + saving.margin(scene)
        return [_phase(job, _replace(incident, cut=cut), "quiescing", unix_s)]
    found, why = sharing.after_crash(scene)
    if found is None:
        if now_s - scene.phase_since_s < scene.limits.silent_s and scene.shards() > 1:
            return []  # a copy that was on its way when its rank died may still arrive
        return closing.give_up(scene, why, unix_s, lost=True)
    at_step, copies = found
    newest = max(incident.newest, scene.newest_step()) if scene.shards() > 1 else -1
    moving = _replace(incident, copies=copies, at_step=at_step, newest=newest)
    return [_phase(job, moving, "moving", unix_s)]


def _quiescing(scene: Scene, incident: Incident, now_s: float, unix_s: float) -> list[Action]:
    """Until all stand still at the cut. One that was past it before it heard of it is waited for at a later one."""
    job = scene.job
    missing = spares.gone(scene, incident, now_s)
    if missing:
        return _without(scene, incident, missing, now_s, unix_s)
    seen = list(scene.by_rank(range(job.world)))
    if scene.newest_step() > incident.cut:
        cut = scene.newest_step() + 2 * saving.margin(scene)
        return [Put(_replace(job, incident=_replace(incident, cut=cut)))]
    late = [m for _, m, s in seen if not (s and s.doing == "paused" and s.step == incident.cut)]
    if late:
        return _overdue(scene, incident, late, now_s, unix_s)
    return [_phase(job, _replace(incident, copies=sharing.planned(scene), at_step=incident.cut), "moving", unix_s)]


def _moving(scene: Scene, incident: Incident, now_s: float, unix_s: float) -> list[Action]:
    """Until all who lacked state hold what was verified. Then the next generation is the present one."""
    job, limits = scene.job, scene.limits
    missing = spares.gone(scene, incident, now_s)
    if missing:
        return _without(scene, incident, missing, now_s, unix_s)
    group = job.next_group()
    members = job.next_members()
    holding: list[tuple[int, str]] = []
    late: list[Member] = []
    for copy in incident.copies:
        status = scene.status(members[copy.to])
        if status and status.holds[:2] == group:
            holding.append((copy.to, status.holds[2]))
        else:
            late.append(members[copy.to])
    if late:
        return _overdue(scene, incident, late, now_s, unix_s)
    if incident.kind == "planned" and not sharing.safe(scene) and now_s - scene.phase_since_s < limits.phase_s / 4:
        return []  # copies that the one that leaves keeps of others go with it: they are made elsewhere first
    left = tuple(job.members[rank].id for rank in incident.leaving if job.members[rank].id not in job.fenced)
    done = _entered(_replace(incident, digests=tuple(holding)), "resuming", unix_s)
    return [
        Put(_replace(
            job, generation=group[0], attempt=group[1], members=members, fenced=job.fenced + left, incident=done
        ))
    ]  # fmt: skip


def _resuming(scene: Scene, incident: Incident, now_s: float, unix_s: float) -> list[Action]:
    """Until every member has done a step in the new generation. Who is lost meanwhile is `_losses`'."""
    job = scene.job
    late = [m for m in job.members if not _goes_on(scene.status(m), job, incident)]
    if not late:
        return closing.close(scene, "moved", "", unix_s)
    broken = any(s and s.doing == "stopped" and s.generation == job.generation for m in late if (s := scene.status(m)))
    if broken and now_s - scene.phase_since_s > scene.limits.silent_s:
        return closing.close(scene, "moved", "the new group broke before its first step was done", unix_s)
    return []


def _goes_on(status: Status | None, job: Job, incident: Incident) -> bool:
    return status is not None and (
        status.doing == "left" or (status.generation == job.generation and status.step > incident.at_step)
    )


def _saving(scene: Scene, incident: Incident, now_s: float, unix_s: float) -> list[Action]:
    """No spares, and the survivors write down what they have. Then the job is over, and can be restored."""
    job, under_way = scene.job, scene.job.saving
    if under_way is None or under_way.at_step < 0:
        return closing.give_up(scene, "its snapshot was not taken", unix_s)
    done, why = saving.progress(scene, under_way)
    if not why and now_s - scene.saving_since_s > scene.limits.save_s:
        why = f"not done within {scene.limits.save_s:g} s"
    if done and not under_way.parts:
        return [Put(_replace(job, saving=_replace(under_way, parts=done)))]
    if done or why:
        return closing.saved(scene, saving.ended(job, done[0][1] if done else "", why, unix_s), unix_s)
    return []


_PHASES = {
    "requested": _requested, "preparing": _preparing, "quiescing": _quiescing, "moving": _moving,
    "resuming": _resuming, "saving": _saving,
}  # fmt: skip


# ways back
def _without(scene: Scene, incident: Incident, missing: tuple[int, ...], now_s: float, unix_s: float) -> list[Action]:
    """The spares for these ranks are gone: others are sought, and the next group is built anew."""
    if _tired(scene, incident, now_s):
        return _enough(scene, incident, f"{incident.attempt + 1} attempts, the last one without its spare", unix_s)
    kept = tuple((rank, member) for rank, member in incident.claims if rank not in missing)
    shaky = (*incident.shaky, *(member.id for rank, member in incident.claims if rank in missing))
    return [Put(_replace(scene.job, incident=_again(_replace(incident, claims=kept, shaky=shaky))))]


def _tired(scene: Scene, incident: Incident, now_s: float) -> bool:
    """Many attempts, and over a time: two coordinators that disagree about a spare use attempts up in no time."""
    return incident.attempt + 1 >= scene.limits.attempts and now_s - scene.incident_since_s > scene.limits.spare_wait_s


def _overdue(scene: Scene, incident: Incident, late: list[Member], now_s: float, unix_s: float) -> list[Action]:
    """Somebody does not get on with the phase: a spare is replaced, planned: the job trains on as it was."""
    told = {m.id: s.trouble for m in late if (s := scene.status(m)) and s.trouble}
    waited_s = now_s - scene.phase_since_s
    # What is told in the first moment is of the attempt before: acted on, it would break off attempt after attempt.
    if waited_s < (BEAT_S if told else scene.limits.phase_s):
        return []
    slow = [m for m in late if m.id in told] or late
    ids = {m.id for m in slow}
    words = "; ".join(f"{m.id} on {m.host}: {told.get(m.id, f'not done with {incident.phase}')}" for m in slow)
    culprits = tuple(rank for rank, member in incident.claims if member.id in ids)
    # Of a group that does not come up nobody knows who keeps it from it: once more with the same ones, then without.
    if culprits and (told or len(culprits) == len(slow) or incident.attempt % 2):
        bad = (*incident.bad, *(m.id for m in slow if m.id in told))
        incident = _replace(incident, bad=bad, evidence=(*incident.evidence, words))
        return _without(scene, incident, culprits, now_s, unix_s)
    if incident.kind == "planned":
        return closing.cancel(scene, words, unix_s)
    if _tired(scene, incident, now_s):
        return _enough(scene, incident, words, unix_s)
    again = _again(_replace(incident, evidence=(*incident.evidence, words)))
    return [Put(_replace(scene.job, incident=again))]


def _enough(scene: Scene, incident: Incident, why: str, unix_s: float) -> list[Action]:
    if incident.kind == "planned":
        return closing.cancel(scene, why, unix_s)
    return saving.last_resort(scene, incident, why, unix_s) or closing.give_up(scene, why, unix_s)


def _again(incident: Incident) -> Incident:
    """Back to the start with another group. What was copied before counts for nothing: it names the old attempt."""
    return _replace(incident, phase="requested", attempt=incident.attempt + 1, cut=-1, copies=(), at_step=-1)


def _phase(job: Job, incident: Incident, phase: Phase, unix_s: float) -> Put:
    return Put(_replace(job, incident=_entered(incident, phase, unix_s)))


def _entered(incident: Incident, phase: Phase, unix_s: float) -> Incident:
    stamps = incident.phase_unix_s
    if phase not in dict(stamps):
        stamps = (*stamps, (phase, unix_s))
    return _replace(incident, phase=phase, phase_unix_s=stamps)
