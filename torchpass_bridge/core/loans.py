"""Hosts of preemptible jobs: when they are called for, and when they go back.

    offered --> called --> lent --> offered
       ^          |
       '----------'  its lender cannot be stopped, or it is not wanted any more

A coordinator of the job that has it writes `called`, and takes that back; all else is its keeper's (`lending`), which
has the lender saved and stopped first. What is lent is a warm spare like any other, only the last one to be taken.
"""

from __future__ import annotations

import msgspec

from torchpass_bridge.core.scene import Action, Call, Forget, Put, Refuse, Scene
from torchpass_bridge.core.spares import GIVES_BACK, claim_of, usable
from torchpass_bridge.wire import GIVEN_BACK, Incident, Loan, proved

_replace = msgspec.structs.replace


def call(scene: Scene, incident: Incident, missing: int, now_s: float) -> tuple[list[Action], int]:
    """For so many ranks nothing else is left: what to do, and how many hosts are on their way."""
    if incident.trigger == GIVES_BACK:
        return [], 0
    coming = sum(_comes(scene, incident, loan, now_s) for loan in scene.loans.values())
    mine = claim_of(scene.job.name, incident.number)
    leaving = {scene.job.members[rank].host for rank in incident.leaving}
    stopped = {loan.lender for loan in scene.loans.values() if loan.state != "offered"}
    staying = {scene.job.members[rank].domain for rank in scene.staying()} - {""}
    ready = [
        loan for loan in scene.loans.values()
        if loan.job == scene.job.name and loan.state == "offered" and loan.called_by != mine and not loan.refused
        and loan.host not in leaving and not _untrue(scene, loan) and scene.kept(loan, now_s, scene.limits.silent_s)
    ]  # fmt: skip
    # As few jobs as can be are stopped. All coordinators choose alike, so that two of them call one host for one rank.
    ready.sort(key=lambda loan: (loan.lender not in stopped, loan.domain in staying, loan.id))
    wanted = ready[: max(missing - coming, 0)]
    if len(wanted) < missing - coming:
        return [], coming  # one alone would be of no use: its lender trains on
    return [Call(_replace(loan, state="called", called_by=mine, why="")) for loan in wanted], coming


def tidy(scene: Scene, now_s: float) -> list[Action]:
    """Calls that nobody waits for any more are taken back, and what nobody keeps is forgotten."""
    job, incident = scene.job, scene.job.incident
    wanted = claim_of(job.name, incident.number) if incident and incident.phase == "requested" else ""
    there = {spare.member.lent_from for spare in scene.spares.values()}
    if not job.ended:
        there.update(member.lent_from for member in job.members)
    actions: list[Action] = []
    for loan in scene.loans.values():
        if loan.job != job.name:
            continue
        if not scene.kept(loan, now_s, 10 * scene.limits.silent_s):
            # As long as a process of this job runs there the lender must not begin, whoever has started it.
            actions += [] if loan.name in there else [Forget(loan)]
        elif loan.state == "called" and loan.called_by != wanted:
            actions.append(Call(_replace(loan, state="offered", called_by="")))
    return actions


def give_back(scene: Scene, now_s: float, unix_s: float) -> list[Action]:
    """Nothing is under way, and nothing was for a while: one rank leaves the lent host that it is on, when a spare on
    a host of the job's own has been there for a while; and spares on lent hosts are not needed."""
    job, span_s = scene.job, scene.limits.give_back_s
    if job.saving is not None or now_s - scene.calm_since_s <= span_s:
        return []
    waits = [spare for spare in scene.spares.values() if now_s - scene.offered_s(spare) > span_s]
    lent = [
        spare for spare in waits
        if spare.job == job.name and spare.member.lent_from and not spare.claimed_by and not spare.refused
        and job.rank_of(spare.member.id) is None
    ]  # fmt: skip
    if lent:
        return [Refuse(_replace(spare, refused=GIVEN_BACK)) for spare in lent]
    rank = next((rank for rank, member in enumerate(job.members) if member.lent_from), None)
    if rank is None:
        return []
    member = job.members[rank]
    made = Incident(
        number=job.incidents + 1, kind="planned", leaving=(rank,), hosts=(member.host,),
        cause=f"{member.host} goes back to {member.lent_from.partition('/')[0]}, which has lent it",
        trigger=GIVES_BACK, began_unix_s=unix_s, phase_unix_s=(("requested", unix_s),),
    )  # fmt: skip
    if not any(spare in waits and not spare.claimed_by for spare in usable(scene, made, now_s)):
        return []
    return [Put(_replace(job, incident=made, incidents=made.number))]


def reasons(scene: Scene) -> list[str]:
    """Why loans were of no use, for people."""
    return [
        f"{loan.host}, lent by {loan.lender}: {why}"
        for loan in scene.loans.values()
        if loan.job == scene.job.name and (why := _untrue(scene, loan) or loan.refused or loan.why)
    ]


def _untrue(scene: Scene, loan: Loan) -> str:
    known = not scene.key or proved(scene.key, loan.job, loan.id, loan.proof)
    return "" if known else "it does not know the job's key"


def _comes(scene: Scene, incident: Incident, loan: Loan, now_s: float) -> bool:
    """It is called, or its spare is being started. Once that is offered and heard, it speaks for itself."""
    if loan.state == "offered" or loan.called_by != claim_of(scene.job.name, incident.number):
        return False
    spare = next((spare for spare in scene.spares.values() if spare.member.lent_from == loan.name), None)
    if spare is not None and (scene.status(spare.member) or scene.silent(spare.member, now_s, scene.limits.silent_s)):
        return False
    late = now_s - scene.called_s(loan) > scene.limits.lend_wait_s
    return not late and scene.kept(loan, now_s, 10 * scene.limits.silent_s)
