"""The copies of parts of a sharded state in the simulated job: made at each boundary, sent beside the step.

A rank waits with its optimizer's step until its buddy has what it began the step with, or cannot be reached. So ranks
are never more than two boundaries ahead of what is kept of any of them, and three copies of each are enough.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from migration_sim import World
    from sim_members import Process

    from torchpass_bridge.wire import Job, Member

KEPT = 3
STALL = 200
"""Ticks after which a buddy that does not answer is given up."""


@dataclass
class Parcel:
    sender: Process
    to: str
    part: int
    step: int
    run: int
    generation: int
    due: int
    until: int


class Copies:
    def __init__(self, world: World) -> None:
        self.world = world
        self.under_way: list[Parcel] = []
        self._entered: dict[str, tuple[int, int]] = {}
        """By member, the generation and the step at which it began there."""
        self._left: dict[str, tuple[str, int, int]] = {}
        """By member, with whom it has left what last."""

    def leave(self, p: Process, buddy: Member | None) -> None:
        """Its part as it is now is copied, and goes to its buddy."""
        world = self.world
        if world.shards == 1:
            return
        assert p.rank is not None
        part = p.rank % world.shards
        self._keep(p, part, p.step, p.run)
        if buddy is None:
            p.sent = p.step
        elif self._left.get(p.member.id) != (buddy.id, p.step, p.run):
            self._left[p.member.id] = (buddy.id, p.step, p.run)
            p.sent = min(p.sent, p.step - 1)
            due = world.tick + world.chance.randint(1, 15)
            self.under_way.append(Parcel(p, buddy.id, part, p.step, p.run, p.group[0], due, world.tick + STALL))

    def tick(self) -> None:
        world, left = self.world, []
        for parcel in self.under_way:
            holder, sender = world.processes[parcel.to], parcel.sender
            if not sender.alive and world.chance.random() < 0.1:
                continue  # lost with its sender; else what was under way arrives
            if world.tick < parcel.due or world.tick < sender.frozen_until:
                left.append(parcel)
            elif holder.alive and world.tick >= holder.frozen_until:
                since, step = self._entered.get(holder.member.id, (0, 0))
                if parcel.generation >= since or parcel.step <= step:  # else it is of what was done again since
                    self._keep(holder, parcel.part, parcel.step, parcel.run)
                sender.sent = max(sender.sent, parcel.step)
            elif not holder.alive or world.tick > parcel.until:
                sender.sent = max(sender.sent, parcel.step)
            else:
                left.append(parcel)
        self.under_way = left

    def entered(self, p: Process) -> None:
        """A generation: what is newer than its beginning is of steps that are done again."""
        self._entered[p.member.id] = (p.group[0], p.step)
        for part, step in list(p.keeps):
            if step > p.step:
                del p.keeps[part, step]

    def _keep(self, p: Process, part: int, step: int, run: int) -> None:
        p.keeps[part, step] = run
        for old in sorted(s for kept, s in p.keeps if kept == part)[:-KEPT]:
            del p.keeps[part, old]

    def check_lost(self, before: Job) -> None:
        """Nobody has given up what was there."""
        leaving = before.incident.leaving if before.incident else ()
        steps: list[set[int]] = [set() for _ in range(self.world.shards)]
        for rank, member in enumerate(before.members):
            p = self.world.processes[member.id]
            if rank not in leaving and p.alive:
                steps[rank % self.world.shards].add(p.step)
                for part, step in p.keeps:
                    steps[part].add(step)
        assert not set.intersection(*steps), "a step of which all parts were there"
