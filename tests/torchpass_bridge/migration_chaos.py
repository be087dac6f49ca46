"""Faults at random moments, over a simulated job. Somebody who has the state is always left, and a spare."""

from __future__ import annotations

import random

from migration_sim import World
from sim_members import Process

from torchpass_bridge.core.places import keeper_of
from torchpass_bridge.core.scene import Limits

LENDING = Limits(spare_wait_s=3.0, planned_wait_s=1.0, phase_s=3.0, lend_wait_s=6.0, give_back_s=0.2)

FAULTS = (
    "kill", "kill", "two", "freeze", "mute", "migrate", "withdraw", "failed", "spare", "desk", "late desk", "store",
    "snapshot",
)  # fmt: skip


def well(world: World) -> list[Process]:
    """Members that nothing is the matter with."""
    return [
        p
        for m in world.job.members
        if (p := world.processes[m.id]).alive
        and world.tick >= p.frozen_until
        and world.tick >= p.mute_until
        and m.id not in world.job.fenced
    ]


def settled(world: World) -> bool:
    """Nothing is under way, and each part of a sharded state is where it would outlive its rank."""
    job, here = world.job, [world.processes[m.id] for m in world.job.members]
    safe = all(
        (keeper := keeper_of(job.members, rank)) is None
        or any((rank % world.shards, step) in world.processes[keeper.id].keeps for step in (p.step, p.step - 1))
        for rank, p in enumerate(here)
    )  # fmt: skip
    return bool(job.ended) or (job.incident is None and len(well(world)) == job.world and safe)


def chaos(
    seed: int, faults: int = 8, spares: int = 4, steps: int = 150, *, lent: bool = False, shards: int = 1,
    buddies: bool = True, singly: bool = False,
) -> World:  # fmt: skip
    """`lent`: what makes up for a loss are hosts of other jobs, of which each keeper may die, too. `singly`: no rank is
    hurt before the copies are in their places again that the one before has cost."""
    limits = LENDING if lent else None
    world = World(seed, spares=spares, steps=steps, limits=limits, shards=shards, buddies=buddies)
    for number in range(4 if lent else 0):
        world.add_loan(f"l{number}", f"low{number % 3}", stop_ticks=10 + 10 * number)
    chance = random.Random(seed * 7 + 1)
    for number in range(faults):
        world.run(chance.randint(1, 60))
        if world.job.ended:
            break
        if lent and number % 3 == 2:
            world.add_spare(f"own{number}")  # a host of its own is repaired
        what = chance.choice([fault for fault in FAULTS if fault != "two" or not singly])
        hurt = {"kill": 1, "two": 2, "freeze": 1, "mute": 1}.get(what, 0)
        while hurt and singly and not settled(world):
            world.run(1)
        candidates = well(world)
        if hurt and len(candidates) > hurt:
            dying = chance.sample(candidates, hurt)
            for process in dying:
                # Two between two steps: else one that alone has the newest step may be among them.
                process.in_step = process.in_step and len(dying) == 1
                if lent:
                    world.add_loan(f"n{number}{process.rank}", refuses=chance.choice(("", "", "it does not want to")))
                    chance.choice(list(world.keepers.values())[4:]).alive = chance.random() < 0.8
                else:
                    world.add_spare(f"n{number}")
                until = world.tick + chance.randint(5, 300)
                if what == "freeze":
                    process.frozen_until = until
                elif what == "mute":
                    process.mute_until = until
                else:
                    world.kill(process)
        elif what in ("migrate", "withdraw", "failed"):
            world.ask(what, chance.choice(world.job.members).host, f"a{number}")
        elif what == "snapshot":
            world.ask(what, "", f"a{number}")
        elif what == "spare":
            waiting = [world.processes[name] for name in world.store.spares if world.processes[name].alive]
            if waiting:
                world.kill(chance.choice(waiting))
                world.add_spare(f"n{number}")
        elif what == "desk":
            desk = chance.choice(world.desks)
            desk.restart()
            desk.dead_until = world.tick + chance.randint(5, 100)
        elif what == "late desk":
            chance.choice(world.desks).dead_until = world.tick + chance.randint(5, 300)
        elif what == "store":
            world.store.away = True
            world.run(chance.randint(1, 100))
            world.store.away = False
    world.run(6000)
    return world
