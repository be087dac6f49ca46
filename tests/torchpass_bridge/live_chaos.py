"""Random faults in a live job: whatever comes, and when, it goes on, and nothing that was applied is done again."""

from __future__ import annotations

import asyncio
import random

from live_members import ask, job_of, running, steps, until

from torchpass_bridge.store.records import NoCoordinator, Records, StoreAway
from torchpass_bridge.store.server import Server

EVENTS = ("kill", "freeze", "migrate", "kill spare", "kill coordinator", "restart store", "two at once")


async def chaos(server: Server, records: Records, seed: int, events: int) -> list[str]:
    """The events, each with how its incident ended."""
    chance = random.Random(seed)
    told = []
    async with running(server.url, spares=3, desks=2) as (world, desks):

        async def well() -> bool:
            return (await job_of(records)).incident is None and not (await job_of(records)).waiting

        for number in range(events):
            what = chance.choice(EVENTS)
            job = await job_of(records)
            ranks = chance.sample(range(job.world), 2)
            victims = [world.processes[job.members[rank].id] for rank in ranks]
            before = len(await records.entries(0.0))
            if what in ("kill", "two at once"):
                await world.die(*victims[: 2 if what == "two at once" else 1])
            elif what == "freeze":
                victims[0].frozen_until = 10**9
            elif what == "kill spare":
                await world.die(
                    chance.choice([p for p in world.processes.values() if p.doing == "waiting" and p.alive])
                )
                await _asked(records, victims[0].member.host)
            elif what in ("migrate", "kill coordinator", "restart store"):
                await _asked(records, victims[0].member.host)
            await asyncio.sleep(chance.uniform(0.0, 0.3))  # any phase may be the one in which it happens
            if what == "kill coordinator":
                await desks.kill(0)
                await desks.begin()
            elif what == "restart store":
                await server.kill()
                await server.start()
            await until(well, f"event {number} ({what}, seed {seed}) is over", 40.0)
            at = steps(world)
            await until(lambda at=at: steps(world) > at + 3, f"the job goes on after event {number} ({what})", 30.0)
            ended = [entry.outcome for entry in (await records.entries(0.0))[before:]]
            told.append(f"{what}: {', '.join(ended)}")
            job = await job_of(records)
            assert not job.ended, (job.why, told)
            free = [one for one in (await records.spares()).values() if not one.value.claimed_by]
            live = [one for one in free if world.processes[one.value.member.id].alive]
            for _ in range(3 - len(live)):
                await world.add_live_spare(f"x{world.made}")
            await until(
                lambda: all(p.sequence > 0 for p in world.processes.values() if p.alive), "new spares are heard"
            )
        ids = [m.id for m in (await job_of(records)).members]
        assert len(set(ids)) == 3
    return told


async def _asked(records: Records, host: str) -> None:
    try:
        assert (await ask(records, "migrate", host, unlimited=True)).taken
    except (NoCoordinator, StoreAway):
        pass
