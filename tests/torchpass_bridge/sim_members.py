"""Members, spares and keepers of loans in the simulated job, and what a member does by its duty."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torchpass_bridge.core.duty import Duty, Save
from torchpass_bridge.core.places import keeper_of
from torchpass_bridge.wire import Fit, Loan, Member, Status

if TYPE_CHECKING:
    from migration_sim import World

FIT = Fit(torch="2", device="cpu", model="m", optimizer="o", state_bytes=1, threads=1)


@dataclass(eq=False)
class Keeper:
    """Keeps a loan: has the lender stopped when it is called, which takes `stop_ticks`, and starts a spare."""

    loan: Loan
    stop_ticks: int = 40
    refuses: str = ""
    """Why the lender cannot be stopped."""
    alive: bool = True
    sequence: int = 0
    stopped_at: int = -1
    spare: Process | None = None
    called: list[str] = field(default_factory=list)
    """By which incidents its lender was stopped."""


@dataclass(eq=False)
class Process:
    """A member or a spare. `seen`: how far it has watched the job's record."""

    member: Member
    rank: int | None = None
    group: tuple[int, int] = (0, 0)
    step: int = 0
    applied: int = 0
    """What its state is."""
    run: int = 0
    """The run of its last step."""
    reduced: int = 0
    """The run of the step that it is in, once the collective is done and its optimizer's step is still to come."""
    sent: int = -1
    """Up to which boundary its buddy has its part, or could not be reached."""
    keeps: dict[tuple[int, int], int] = field(default_factory=dict)
    """(part, step) -> run, of the copies that it keeps."""
    doing: str = "training"
    built: tuple[int, int] = (0, 0)
    building: tuple[int, int] | None = None
    holds: tuple[int, int, str] = (0, 0, "")
    peer_gone: bool = False
    alive: bool = True
    frozen_until: int = 0
    mute_until: int = 0
    """Cut off from the store and the coordinators; the fabric carries it all the same."""
    sequence: int = 0
    seen: int = 0
    in_step: bool = False
    giving: int = -1
    copying: int = 0
    own: bool = True
    """Whether it has what belongs to its rank alone."""
    saved: tuple[int, int, str] = (0, 0, "")
    published: tuple[int, int, str] = (0, 0, "")
    unsaved: tuple[int, int, str] = (0, 0, "")
    writing_until: int = 0
    disk: str = ""
    """What is wrong with it, when something is."""
    duty: Duty = field(default_factory=Duty)

    def status(self) -> Status:
        self.sequence += 1
        return Status(
            member=self.member.id, sequence=self.sequence, doing=self.doing, generation=self.group[0],  # type: ignore[arg-type]
            step=self.step, built=self.built, holds=self.holds, peer_gone=self.peer_gone, saved=self.saved,
            published=self.published, unsaved=self.unsaved, keeps=tuple(sorted(self.keeps)),
        )  # fmt: skip


def follow(world: World, p: Process, todo: Duty) -> None:
    p.giving = todo.give if p.doing != "training" and todo.give == p.step else -1
    p.building = todo.build
    if todo.leave is not None and p.doing != "training":
        world.copies.leave(p, todo.leave)
    if todo.build is not None and p.built != todo.build:
        others = [world.processes[m.id] for m in todo.build_members]
        if all(q.alive and world.tick >= q.frozen_until and q.building == todo.build for q in others):
            p.built = todo.build
    if p.reduced and (todo.release or p.sent >= p.step):
        world.apply(p, p.reduced)
    if todo.save is not None:
        save(world, p, todo.save)
    if todo.release and p.doing == "training":
        p.in_step = False
        p.doing = "stopped"
    if todo.group > p.group and p.built == todo.group and p.rank is not None:
        if todo.at_step >= 0 and p.step != todo.at_step:
            return  # it has not got what the others go on with
        p.group, p.doing, p.in_step, p.peer_gone = todo.group, "training", False, False
        world.copies.entered(p)
    if p.doing == "paused" and (todo.pause_at < 0 or todo.pause_at > p.step) and todo.group == p.group:
        p.doing = "training"
    if p.doing == "training" and todo.pause_at == p.step and not p.in_step:
        p.doing = "paused"
    if todo.take is not None and p.holds[:2] != todo.build and p.doing != "training":
        sources = [world.processes[m.id] for m in todo.take_from]
        part, kept = (p.rank or 0) % world.shards, todo.take.kept
        if all(
            q.alive and world.tick >= q.frozen_until
            and ((part, todo.at_step) in q.keeps if kept else q.giving == todo.at_step)
            for q in sources
        ):  # fmt: skip
            p.copying += 1
            if p.copying >= 5:
                assert kept or {(q.applied, (q.rank or 0) % world.shards) for q in sources} == {(todo.at_step, part)}
                (p.run,) = {q.keeps[part, todo.at_step] if kept else q.run for q in sources}
                p.applied = p.step = todo.at_step
                assert todo.build is not None
                p.holds = (*todo.build, "d")
                p.copying = 0
        else:
            p.copying = 0
    if p.doing == "training" and p.group == todo.group and not p.in_step:
        if p.step >= world.steps:
            p.doing = "left"
        elif world.chance.random() < 0.5:
            p.in_step = True
            world.copies.leave(p, keeper_of(todo.members, p.rank or 0))


def save(world: World, p: Process, wanted: Save) -> None:
    """A part is taken at its step, which ends at once; written some ticks later; published by one."""
    key = (wanted.number, wanted.attempt)
    stands = p.doing in ("stopped", "paused")
    there = p.step == wanted.at_step or (wanted.share is None and stands)
    if p.saved[:2] != key and p.unsaved[:2] != key and there and not p.in_step:
        p.saved, p.writing_until = (*key, ""), world.tick + world.chance.randint(1, 40)
        part = (p.rank or 0) % world.shards
        held = [(part, p.applied, p.run)] if wanted.share is not None else []
        held += [(kept, wanted.at_step, p.keeps[kept, wanted.at_step]) for kept in wanted.kept]
        world.parts.setdefault(key, {})[p.member.id] = held
    if p.saved == (*key, "") and world.tick >= p.writing_until:
        if p.disk:
            p.unsaved = (*key, p.disk)
        else:
            p.saved = (*key, f"digest of {p.member.id}")
    if wanted.publish and p.published[:2] != key:
        p.published = (*key, f"/shared/{wanted.number}")
        written = {one for held in world.parts[key].values() for one in held}
        assert {step for _, step, _ in written} == {wanted.at_step}, "tensors of different steps in one snapshot"
        assert len({run for _, _, run in written}) == 1, "tensors of different runs of a step in one snapshot"
        assert {part for part, _, _ in written} == set(range(world.shards)), "a part that nobody has written"
        assert len(wanted.publish) == len(world.parts[key]) and p.member.id in world.parts[key]
        world.published[wanted.number] = wanted.at_step
