"""Random events in a job of real processes: whatever comes, it ends with the bits of an undisturbed one, be it after a
restore, where there was no spare left."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from running_job import RunningJob

from torchpass_bridge.core.places import buddy_of, keeper_of
from torchpass_bridge.store.records import NoCoordinator, StoreAway
from torchpass_bridge.wire import Entry, Job

EVENTS = ("kill", "freeze", "migrate", "spare killed", "coordinator killed", "store restarted", "two killed")
WORLD, SPARES = 4, 2
PLAN: dict[str, Any] = {"steps": 200, "sleep_s": 0.02}


@dataclass
class Story:
    """`events`: those that happened. `restored`: how often it went on from a snapshot, for want of a spare."""

    events: list[str] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    restored: int = 0
    told: list[dict[str, Any]] = field(default_factory=list)


async def chaos(folder: Path, seed: int, events: int, *, bare: bool = False, plan: Mapping[str, Any] = PLAN) -> Story:
    """`events` in one job. `bare`: spares that are used up are not replaced."""
    chance, story, told = random.Random(seed), Story(), {"TORCHPASS_SNAPSHOTS": str(folder / "shared")}
    while True:
        run = RunningJob(folder / f"run{story.restored}", "j", WORLD, SPARES, dict(plan), told)
        async with run as job:
            await job.until_spares(SPARES)
            await job.until(lambda record: not record.ended, "the job to begin")
            await job.until_step(1)
            made = SPARES
            while len(story.events) < events and job.job is not None and not job.job.ended:
                await asyncio.sleep(chance.uniform(0.0, 0.6))
                if job.job.ended:
                    break
                before = job.job.generation
                what = chance.choice(EVENTS)
                story.events.append(await strike(job, what, chance))
                if what in ("kill", "freeze", "two killed"):
                    await job.until(lambda record, before=before: _seen(record, before), "a coordinator to see it")  # type: ignore[misc]
                # A rank and the buddy that keeps what is its own, or its part of the state, are not lost together: the
                # guarantee leaves that out.
                await job.until(lambda record: _calm(record), "the end of what has happened")
                for _ in range(0 if bare else SPARES - _warm(job)):
                    job.start_spare(f"s{made}")
                    made += 1
            await job.until(lambda record: bool(record.ended), "the job to end")
            story.entries += await job.entries()
            assert job.job is not None
            assert job.job.ended in ("finished", "stopped"), job.story()
            if job.job.ended == "finished":
                story.told = await job.finished()
                return story
            path = job.job.saved[-1].path
            assert path, job.story()
        story.restored += 1
        told["TORCHPASS_RESTORE"] = path


def _seen(record: Job, before: int) -> bool:
    return bool(record.ended) or record.incident is not None or record.generation > before


def _calm(record: Job) -> bool:
    return bool(record.ended) or (record.incident is None and not record.waiting)


def _warm(job: RunningJob) -> int:
    """Spares that live and hold no rank, whether they are ready yet or not."""
    assert job.job is not None
    holders = {member.host for member in job.job.members}
    return sum(name.startswith("s") and name not in holders and one.is_alive() for name, one in job.processes.items())


async def strike(job: RunningJob, what: str, chance: random.Random) -> str:
    """One event; some begin with a move, to happen within it."""
    assert job.job is not None
    host = chance.choice(job.job.members).host
    if what in ("kill", "freeze"):
        job.signal(host, signal.SIGKILL if what == "kill" else signal.SIGSTOP)
        return f"{what} {host}"
    if what == "two killed":
        rank = chance.randrange(WORLD)
        pair = [other for other in range(WORLD) if other != rank and not _neighbours(job.job, rank, other)]
        for one in (rank, *pair[:1]):
            job.signal(job.job.members[one].host, signal.SIGKILL)
        return f"ranks {(rank, *pair[:1])} killed"
    await _asked(job, host, chance)
    if what == "migrate":
        return f"{what} {host}"
    await asyncio.sleep(chance.uniform(0.0, 0.15))
    if what == "spare killed":
        holders = {member.host for member in job.job.members}
        spares: Sequence[str] = [
            name
            for name, one in job.processes.items()
            if name.startswith("s") and name not in holders and one.is_alive()
        ]
        claimed = [m.host for _, m in job.job.incident.claims if m.host in spares] if job.job.incident else []
        if claimed or spares:
            job.signal(chance.choice(claimed or spares), signal.SIGKILL)
    elif what == "coordinator killed":
        await job.new_coordinator(after_s=chance.uniform(0.0, 0.5))
    else:
        await job.restart_store()
    return f"{what} while {host} is left"


async def _asked(job: RunningJob, host: str, chance: random.Random) -> None:
    try:
        await job.ask("migrate", host, number=chance.randrange(10**6))
    except (NoCoordinator, StoreAway):
        pass


def _neighbours(job: Job, rank: int, other: int) -> bool:
    """Whether one keeps what belongs to the other, or its part of a sharded state."""
    members = job.members
    return any(
        keeper is not None and keeper.id == members[b].id
        for a, b in ((rank, other), (other, rank))
        for keeper in (buddy_of(members, a), keeper_of(members, a))
    )
