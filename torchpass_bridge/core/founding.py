"""How a job begins: by the seats that are taken, once all of them are. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from torchpass_bridge.wire import Job, Member

FENCED = 4096
"""Of ids that are kept from runs before: those that come back meet them."""


def fresh(seats: Mapping[int, Member], old: Job | None) -> dict[int, Member]:
    """Seats of processes that have not taken part yet: those of a run that has ended are its own."""
    return {rank: member for rank, member in sorted(seats.items()) if old is None or not old.knew(member.id)}


def found(name: str, seats: Mapping[int, Member], old: Job | None) -> Job | None:
    """The job's first record, or the one over a record `old` of a run that is over; None: it is not the time.

    When those that are there are not alike, it is a record that has ended, with the reason, for all to read. What the
    ledger and the generations count goes on, so that no number is used twice under one name."""
    if old is not None and not old.over:
        return None
    here = fresh(seats, old)
    if not here:
        return None
    world = min(member.fit.world for member in here.values())
    if len(here) < world:
        return None
    wrong = _wrong(here, world)
    return Job(
        name=name,
        world=len(here) if wrong else world,
        generation=(old.generation if old else 0) + 1,
        members=tuple(here.values()),
        fenced=(*old.fenced, *(m.id for m in old.members))[-FENCED:] if old else (),
        incidents=old.incidents + (not old.ended and old.incident is None) if old else 0,
        moved_unix_s=old.moved_unix_s if old else (),
        snapshots=old.snapshots if old else 0,
        saved=old.saved if old else (),
        ended="refused" if wrong else "",
        why=wrong,
    )


def _wrong(here: Mapping[int, Member], world: int) -> str:
    """Why those that are there can make no job; empty: they can."""
    first, reference, last = min(here), here[min(here)], max(here)
    if world < 1:
        return f"rank {first} on {reference.host} does not say of how many ranks the job is made"
    if world % reference.fit.shards:
        return f"{world} ranks cannot hold {reference.fit.shards} parts of the state equally often"
    for rank, member in here.items():
        if misfits := reference.fit.misfits(member.fit):
            return f"rank {rank} on {member.host} is not like rank {first} on {reference.host}: {misfits}"
        if member.begins != reference.begins:
            return (
                f"rank {rank} on {member.host} begins {_with(member)}, rank {first} on {reference.host} "
                f"{_with(reference)}"
            )
    if last >= world:
        return f"rank {last} on {here[last].host} does not exist in a job of {world} ranks"
    ids = [member.id for member in here.values()]
    return "two ranks are held under one id" if len(set(ids)) < len(ids) else ""


def _with(member: Member) -> str:
    return f"with snapshot {member.begins}" if member.begins else "without a snapshot"
