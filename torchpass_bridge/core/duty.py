"""What a member has to do now, by the job's record. Pure, and the same for whoever has seen nothing but the record."""

from __future__ import annotations

import msgspec

from torchpass_bridge.core.places import keeper_of
from torchpass_bridge.wire import Copy, Job, Member


class Save(msgspec.Struct, frozen=True):
    """A part of a snapshot. `share`: of the tensors that this rank holds, (which, of how many that hold the same ones);
    None: only what is known of ranks alone.

    `kept`: parts of a sharded state of which it writes the copies kept here. `missing`: ranks that do not write
    all that belongs to them alone, and the member that held each. `publish`: by rank, the digests of all parts, for who
    publishes them."""

    number: int
    attempt: int
    at_step: int
    cause: str
    share: tuple[int, int] | None
    kept: tuple[int, ...] = ()
    missing: tuple[tuple[int, str], ...] = ()
    publish: tuple[tuple[int, str], ...] = ()


class Duty(msgspec.Struct, frozen=True):
    """All of it, at once:

    - `fenced`: end; no rank is held any more, and none ever again under this id.
    - `ended`: how the job has ended; whoever holds state stores it first when that is "stopped".
    - `rank`: held now, or taken when the incident is over; None: a spare that waits.
    - `group`: (generation, attempt) of the group to train in. `members`: its members by rank.
    - `release`: leave the present group's collectives at once, and stand still.
    - `pause_at`: stand still when so many steps are applied. -1: train.
    - `build`: the group to build for the time after; None: leave the one that is being built. `build_members`: by rank.
    - `give`: let the state be read, at this step and by the members of `build`.
    - `take`: from whom to take state over; `take_from`: their members, `own_from`: whose own state too.
    - `leave`: with whom to leave a copy of the part of a sharded state that is held, so that it outlives the move.
    - `save`: the part of a snapshot to write.
    """

    fenced: bool = False
    ended: str = ""
    rank: int | None = None
    group: tuple[int, int] = (0, 0)
    members: tuple[Member, ...] = ()
    release: bool = False
    pause_at: int = -1
    build: tuple[int, int] | None = None
    build_members: tuple[Member, ...] = ()
    give: int = -1
    take: Copy | None = None
    take_from: tuple[Member, ...] = ()
    own_from: Member | None = None
    leave: Member | None = None
    at_step: int = -1
    """What is applied when the group of `group` or `build` begins; -1: as it is."""
    save: Save | None = None


def duty(job: Job, me: str) -> Duty:
    """`me`: the member's id."""
    if me in job.fenced:
        return Duty(fenced=True)
    rank, incident = job.rank_of(me), job.incident
    group = (job.generation, job.attempt)
    if job.ended:
        return Duty(ended=job.ended, rank=rank, group=group, members=job.members)
    if incident is None:
        if rank is None:
            return Duty()
        cut = job.saving.at_step if job.saving is not None and job.saving.last else -1
        return Duty(rank=rank, group=group, members=job.members, pause_at=cut, save=_save(job, rank))
    claimed = next((r for r, m in incident.claims if m.id == me), None)
    if rank is None and claimed is None:
        return Duty()
    held = rank if rank is not None else claimed
    if incident.phase == "resuming":
        return Duty(rank=rank, group=group, members=job.members, at_step=incident.at_step)
    crash = incident.kind == "crash"
    if incident.phase == "saving":
        save = _save(job, rank) if rank is not None and rank not in incident.leaving else None
        return Duty(rank=held, group=group, members=job.members, release=rank is not None, save=save)
    if incident.phase == "requested":
        return Duty(rank=held, group=group, members=job.members, release=crash and rank is not None)
    after = job.next_members()
    stays = claimed is not None or held not in incident.leaving
    moving = incident.phase == "moving"
    copy = next((c for c in incident.copies if c.to == held and after[c.to].id == me), None) if moving else None
    return Duty(
        rank=held,
        group=group,
        members=job.members,
        release=crash and rank is not None,
        pause_at=incident.cut if rank is not None and incident.phase in ("quiescing", "moving") else -1,
        build=job.next_group() if stays else None,
        build_members=after if stays else (),
        give=incident.at_step if moving and rank is not None else -1,
        take=copy,
        take_from=tuple(job.members[source] for source in copy.sources) if copy else (),
        own_from=job.members[copy.own] if copy and copy.own is not None else None,
        leave=keeper_of(after, rank) if moving and not crash and rank is not None else None,
        at_step=incident.at_step if moving else -1,
    )


def _save(job: Job, rank: int) -> Save | None:
    saving = job.saving
    if saving is None or saving.at_step < 0 or rank not in saving.writers:
        return None
    shards = job.members[0].fit.shards
    alike = [other for other in saving.tensors if other % shards == rank % shards]
    # With a sharded state those that hold no tensors may be ahead of the step.
    themselves = saving.writers if shards == 1 else saving.tensors
    return Save(
        number=saving.number,
        attempt=saving.attempt,
        at_step=saving.at_step,
        cause=saving.cause,
        share=(alike.index(rank), len(alike)) if rank in saving.tensors else None,
        kept=tuple(part for writer, part in saving.kept if writer == rank),
        missing=tuple((other, m.id) for other, m in enumerate(job.members) if other not in themselves),
        publish=saving.parts if rank == saving.writers[0] else (),
    )
