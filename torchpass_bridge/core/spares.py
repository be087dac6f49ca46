"""Which spare takes which rank, and what becomes of those that are not needed."""

from __future__ import annotations

import msgspec

from torchpass_bridge.core.scene import Action, Claim, Drop, Free, Refuse, Scene
from torchpass_bridge.wire import Incident, Member, Spare, proved

GIVES_BACK = "lending"
"""The trigger of a move by which a lent host goes back."""

_replace = msgspec.structs.replace


def claim_of(job: str, incident: int) -> str:
    return f"{job}/{incident}"


def claim(scene: Scene, incident: Incident, now_s: float) -> tuple[tuple[tuple[int, Member], ...], list[Action]]:
    """The claims as they are by now, and what to do for those that are missing."""
    taken = dict(incident.claims)
    used = {member.id for member in taken.values()}
    mine = claim_of(scene.job.name, incident.number)
    ready = [s for s in usable(scene, incident, now_s) if s.claimed_by in ("", mine) and s.member.id not in used]
    actions: list[Action] = []
    for rank in incident.leaving:
        if rank in taken or not ready:
            continue
        best = min(ready, key=lambda s: _cost(scene, incident, s, taken))
        ready.remove(best)
        if best.claimed_by == mine:
            taken[rank] = best.member
        else:
            actions.append(Claim(_replace(best, claimed_by=mine)))
    return tuple(sorted(taken.items(), key=lambda item: item[0])), actions


def gone(scene: Scene, incident: Incident, now_s: float) -> tuple[int, ...]:
    """Ranks whose spare is not heard any more, or has lost its claim."""
    mine = claim_of(scene.job.name, incident.number)
    found = []
    for rank, member in incident.claims:
        spare = scene.spares.get(member.id)
        if spare is None or spare.claimed_by != mine or scene.silent(member, now_s, scene.limits.silent_s):
            found.append(rank)
    return tuple(found)


def tidy(scene: Scene, now_s: float) -> list[Action]:
    """Free what is claimed for what is over, drop what is a member, was one, or is gone for long."""
    job = scene.job
    members = {member.id for member in job.members}
    incident = job.incident
    mine = claim_of(job.name, incident.number) if incident else ""
    kept = {member.id for _, member in incident.claims} if incident else set()
    actions: list[Action] = []
    for spare in scene.spares.values():
        if spare.job != job.name:
            continue
        member = spare.member
        why = unfit(scene, spare)
        if why and not spare.claimed_by and not spare.refused and not job.ended:
            actions.append(Refuse(_replace(spare, refused=why)))
        elif member.id in members or member.id in job.fenced or scene.silent(member, now_s, 10 * scene.limits.silent_s):
            actions.append(Drop(spare))
        elif spare.claimed_by.startswith(f"{job.name}/") and (
            spare.claimed_by != mine
            or (incident is not None and incident.phase != "requested" and member.id not in kept)
        ):
            actions.append(Free(_replace(spare, claimed_by="")))
    return actions


def unfit(scene: Scene, spare: Spare) -> str:
    """Why it will never take a rank of this job; empty: it can."""
    if spare.refused:
        return spare.refused
    if scene.key and not proved(scene.key, scene.job.name, spare.member.id, spare.proof):
        return "it does not know the job's key"
    return scene.job.members[0].fit.misfits(spare.member.fit) if scene.job.members else ""


def none_fits(scene: Scene) -> str:
    """Why no spare is taken, for people."""
    why = "; ".join(f"{name}: {why}" for name, why in sorted(scene.refused.items())) or "all are in use"
    if not scene.spares:
        why = f"none is offered for {scene.job.name} (start one with: torchpass spare)"
    return f"no spare fits: {why}"


def usable(scene: Scene, incident: Incident, now_s: float) -> list[Spare]:
    """Free ones and those claimed for the incident; why the others cannot be had is in `scene.refused`."""
    scene.refused.clear()
    leaving = {scene.job.members[rank].host for rank in incident.leaving}
    found = []
    for spare in scene.spares.values():
        member = spare.member
        why = ""
        if spare.job != scene.job.name:
            continue
        if spare.claimed_by and spare.claimed_by != claim_of(scene.job.name, incident.number):
            why = f"claimed by {spare.claimed_by}"
        elif unfit(scene, spare):
            why = unfit(scene, spare)
        elif member.id in scene.job.fenced:
            why = "fenced: it has left the job before"
        elif member.id in incident.bad:
            why = "it failed in this incident"
        elif member.host in leaving:
            why = f"on {member.host}, which is to be left"
        elif incident.trigger == GIVES_BACK and member.lent_from:
            why = "on a lent host itself"
        elif scene.silent(member, now_s, scene.limits.silent_s):
            why = "not heard"
        elif scene.status(member) is None:
            why = "not heard yet"
        if why:
            scene.refused[member.id] = why
        else:
            found.append(spare)
    return found


def _cost(
    scene: Scene, incident: Incident, spare: Spare, taken: dict[int, Member]
) -> tuple[bool, bool, bool, int, bool, str]:
    """Sound ones first, those claimed already before others, idle before lent, then where fewest of the job's members
    fail with it."""
    member = spare.member
    others = [scene.job.members[rank] for rank in scene.staying()] + list(taken.values())
    together = sum(m.host == member.host or (member.domain != "" and m.domain == member.domain) for m in others)
    failing = {scene.job.members[rank].domain for rank in incident.leaving} - {""}
    return (
        member.id in incident.shaky,
        not spare.claimed_by,
        bool(member.lent_from),
        together,
        member.domain in failing,
        member.id,
    )
