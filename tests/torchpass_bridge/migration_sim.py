"""A job, its spares, coordinators and a store in one process, in ticks of 10 ms: everything that can go wrong between
the records, the statuses and the collectives, without sockets.

A collective needs all members of one group; whoever is released from one that was complete may have applied the step
or not, as with a real one. State is the number of optimizer steps that were applied to it, and which run of the last
one: a step that is done again makes another state. Of sharded state each rank keeps copies (`sharded_sim`).
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import msgspec
from sharded_sim import Copies

from torchpass_bridge.core.coordinate import decide
from torchpass_bridge.core.duty import Duty, Save, duty
from torchpass_bridge.core.places import keeper_of
from torchpass_bridge.core.scene import Call, Claim, Close, Drop, Forget, Free, Limits, Put, Refuse, Reply, Scene
from torchpass_bridge.wire import Answer, Ask, Entry, Fit, Job, Loan, Member, Spare, Status

TICK_S = 0.01
FIT = Fit(torch="2", device="cpu", model="m", optimizer="o", state_bytes=1, threads=1)


class Store:
    """Compare-and-set by revision; watchers see changes in order, each with its own delay."""

    def __init__(self) -> None:
        self.job: tuple[int, Job] | None = None
        self.spares: dict[str, tuple[int, Spare]] = {}
        self.loans: dict[str, tuple[int, Loan]] = {}
        self.entries: dict[int, Entry] = {}
        self.revision = 0
        self.away = False
        self.history: list[tuple[int, Job]] = []

    def put_job(self, job: Job, expected: int) -> bool:
        if self.away or (self.job[0] if self.job else 0) != expected:
            return False
        self.revision += 1
        self.job = (self.revision, job)
        self.history.append(self.job)
        return True

    def put_spare(self, spare: Spare, expected: int) -> bool:
        if self.away or self.spares.get(spare.member.id, (0,))[0] != expected:
            return False
        self.revision += 1
        self.spares[spare.member.id] = (self.revision, spare)
        return True

    def put_loan(self, loan: Loan, expected: int) -> bool:
        if self.away or self.loans.get(loan.id, (0,))[0] != expected:
            return False
        self.revision += 1
        self.loans[loan.id] = (self.revision, loan)
        return True


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


class Desk:
    """A coordinator: its own soft knowledge, and the revision that it decides on."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.scene: Scene | None = None
        self.revision = 0
        self.seen = 0
        self.dead_until = 0
        self.spare_revisions: dict[str, int] = {}
        self.loan_revisions: dict[str, int] = {}

    def restart(self) -> None:
        self.scene, self.seen = None, 0

    def tick(self) -> None:
        world, store = self.world, self.world.store
        now_s = world.tick * TICK_S
        if world.tick < self.dead_until:
            return
        while not store.away and self.seen < len(store.history) and (
            self.scene is None or world.chance.random() < 0.7
        ):  # fmt: skip
            self.revision, job = store.history[self.seen]
            self.seen += 1
            if self.scene is None:
                self.seen = len(store.history)
                self.revision, job = store.history[-1]
                self.scene = Scene(job, world.limits, now_s)
            self.scene.see_job(job, now_s)
        if self.scene is None:
            return
        if not store.away:
            self.scene.see_spares({name: spare for name, (_, spare) in store.spares.items()}, now_s)
            self.spare_revisions = {name: revision for name, (revision, _) in store.spares.items()}
            self.scene.see_loans({name: loan for name, (_, loan) in store.loans.items()}, now_s)
            self.loan_revisions = {name: revision for name, (revision, _) in store.loans.items()}
        for action in decide(self.scene, now_s, now_s):
            self.act(action)

    def act(self, action: object) -> None:
        store = self.world.store
        if isinstance(action, Put):
            self.world.check_job(action.job, store.put_job(action.job, self.revision))
        elif isinstance(action, Close):
            if not store.away:
                store.entries.setdefault(action.entry.number, action.entry)
                if self.world.chance.random() < 0.05:
                    self.dead_until = self.world.tick + 30  # between the two writes
                    self.restart()
                    return
            self.world.check_job(action.job, store.put_job(action.job, self.revision))
        elif isinstance(action, Call):
            store.put_loan(action.loan, self.loan_revisions.get(action.loan.id, 0))
        elif isinstance(action, Forget):
            if not store.away:
                store.loans.pop(action.loan.id, None)
        elif isinstance(action, Claim | Free | Refuse):
            name = action.spare.member.id
            store.put_spare(action.spare, self.spare_revisions.get(name, 0))
        elif isinstance(action, Drop):
            if not store.away:
                store.spares.pop(action.spare.member.id, None)
        elif isinstance(action, Reply):
            self.world.answers.setdefault(action.ask.id, action.answer)


class World:
    def __init__(
        self, seed: int, ranks: int = 4, spares: int = 2, steps: int = 60, desks: int = 2,
        limits: Limits | None = None, shards: int = 1, buddies: bool = True,
    ) -> None:  # fmt: skip
        self.chance = random.Random(seed)
        self.limits = limits or Limits(spare_wait_s=3.0, phase_s=3.0)
        self.tick = 0
        self.steps = steps
        self.ranks, self.shards = ranks, shards
        self.fit = msgspec.structs.replace(FIT, shards=shards, buddies=buddies and shards > 1)
        self.copies = Copies(self)
        self.runs = 0
        self.applied: dict[int, set[int]] = {}
        """By step, the runs of it that somebody applied."""
        self.store = Store()
        self.answers: dict[str, Answer] = {}
        self.processes: dict[str, Process] = {}
        self.keepers: dict[str, Keeper] = {}
        self.completed: dict[int, list[tuple[tuple[int, int], tuple[str, ...]]]] = {}
        """By step: the groups that completed it."""
        self.pending: list[tuple[int, Desk, Status]] = []
        self.parts: dict[tuple[int, int], dict[str, list[tuple[int, int, int]]]] = {}
        """By snapshot and attempt, of which part, step and run what each member wrote was."""
        self.published: dict[int, int] = {}
        """By snapshot, its step."""
        self.made = 0
        members = []
        for rank in range(ranks):
            process = self.process(f"h{rank}")
            process.rank, process.group, process.built = rank, (1, 0), (1, 0)
            members.append(process.member)
        self.store.put_job(Job("j", ranks, 1, tuple(members)), 0)
        for number in range(spares):
            self.add_spare(f"s{number}")
        self.desks = [Desk(self, f"d{number}") for number in range(desks)]

    def process(self, host: str, fit: Fit | None = None, lent_from: str = "") -> Process:
        self.made += 1
        name = f"{host}-{self.made}"
        member = Member(name, host, self.made, f"{host}:1", fit or self.fit, snapshots="/shared", lent_from=lent_from)
        made = Process(member)
        made.seen = len(self.store.history)
        self.processes[name] = made
        return made

    def add_spare(self, host: str, fit: Fit | None = None, lent_from: str = "") -> Process:
        made = self.process(host, fit, lent_from)
        made.doing, made.own = "waiting", False
        self.store.put_spare(Spare(made.member, "j"), 0)
        return made

    def add_loan(self, host: str, lender: str = "low", **told: object) -> Keeper:
        name = f"l-{host}"
        self.keepers[name] = made = Keeper(Loan(name, "j", lender, host), **told)  # type: ignore[arg-type]
        self.store.put_loan(made.loan, 0)
        return made

    @property
    def job(self) -> Job:
        assert self.store.job is not None
        return self.store.job[1]

    def rewrite(self, job: Job) -> None:
        """Before it begins: the record as a test wants it."""
        assert self.store.job is not None
        assert self.store.put_job(job, self.store.job[0])

    # what must always hold
    def check_job(self, job: Job, written: bool) -> None:
        if not written:
            return
        before = self.store.history[-2][1]
        ids = [m.id for m in job.members]
        assert len(set(ids)) == job.world, ids
        assert not set(ids) & set(job.fenced) or job.incident or job.ended, "a fenced member holds a rank"
        if job.incident is not None:
            claims = [m.id for _, m in job.incident.claims]
            assert len(set(claims)) == len(claims)
            assert not set(claims) & set(job.fenced)
            if job.generation > before.generation:
                assert job.generation == before.generation + 1
                for rank, member in enumerate(job.members):
                    process = self.processes[member.id]
                    assert member.id not in job.fenced
                    if process.alive:
                        assert process.applied == process.step == job.incident.at_step, (rank, process)
                alive = [p for m in job.members if (p := self.processes[m.id]).alive]
                assert len({p.run for p in alive}) <= 1, "states of different runs of a step"
                best = max((p.step for p in alive), default=0)
                assert best <= job.incident.at_step
        if job.ended == "lost":
            self.copies.check_lost(before)

    # one tick
    def run(self, ticks: int) -> None:
        for _ in range(ticks):
            self.tick += 1
            now_s = self.tick * TICK_S
            due = [item for item in self.pending if item[0] <= self.tick]
            self.pending = [item for item in self.pending if item[0] > self.tick]
            for _, desk, status in due:
                if desk.scene is not None and self.tick >= desk.dead_until and not self.store.away:
                    desk.scene.hear(status, now_s)
            order = [p for p in self.processes.values() if p.alive and self.tick >= p.frozen_until]
            self.chance.shuffle(order)
            for process in order:
                self.act(process)
            self.copies.tick()
            self.collectives()
            for keeper in self.keepers.values():
                if keeper.alive:
                    self.keep(keeper)
            for desk in self.desks:
                desk.tick()
            if self.job.ended:
                return

    def keep(self, k: Keeper) -> None:
        """What `lending.Keeper` does."""
        if self.tick % 10 == 0:
            k.sequence += 1
            for desk in self.desks:
                self.pending.append((self.tick, desk, Status(k.loan.id, k.sequence, "waiting")))
        revision, loan = self.store.loans.get(k.loan.id, (0, k.loan))
        if not revision:
            self.store.put_loan(loan, 0)
        elif loan.state == "offered":
            k.stopped_at = -1
        elif loan.state == "called" and k.refuses:
            loan = msgspec.structs.replace(loan, state="offered", why=k.refuses)
            self.store.put_loan(loan, revision)
        elif loan.state == "called" and k.stopped_at < 0:
            k.stopped_at = self.tick + k.stop_ticks
            k.called.append(loan.called_by)
        elif loan.state == "called" and self.tick >= k.stopped_at:
            loan = msgspec.structs.replace(loan, state="lent")
            if self.store.put_loan(loan, revision):
                k.spare = self.add_spare(loan.host, lent_from=loan.name)
        elif loan.state == "lent" and k.spare is not None:
            held = self.store.spares.get(k.spare.member.id)
            k.spare.alive = k.spare.alive and not (held and held[1].refused)
            if not k.spare.alive:
                loan = msgspec.structs.replace(loan, state="offered")
                self.store.put_loan(loan, revision)
        k.loan = loan

    def act(self, p: Process) -> None:
        history = self.store.history
        cut_off = self.store.away or self.tick < p.mute_until
        while not cut_off and p.seen < len(history) and self.chance.random() < 0.8:
            p.seen += 1
        p.duty = todo = duty(history[p.seen - 1][1], p.member.id) if p.seen else Duty()
        before = (p.doing, p.step, p.built, p.holds, p.group, p.saved, p.published, p.unsaved)
        if todo.fenced or todo.ended:
            p.alive = False
            return
        if todo.rank is not None:
            p.rank = todo.rank
            self.follow(p, todo)
        if self.tick < p.mute_until:
            return
        now = (p.doing, p.step, p.built, p.holds, p.group, p.saved, p.published, p.unsaved)
        if before != now or (self.tick + p.member.pid) % 10 == 0:
            for desk in self.desks:
                self.pending.append((self.tick + self.chance.randint(0, 3), desk, p.status()))

    def save(self, p: Process, save: Save) -> None:
        """A part is taken at its step, which ends at once; written some ticks later; published by one."""
        key = (save.number, save.attempt)
        stands = p.doing in ("stopped", "paused")
        there = p.step == save.at_step or (save.share is None and stands)
        if p.saved[:2] != key and p.unsaved[:2] != key and there and not p.in_step:
            p.saved, p.writing_until = (*key, ""), self.tick + self.chance.randint(1, 40)
            part = (p.rank or 0) % self.shards
            held = [(part, p.applied, p.run)] if save.share is not None else []
            held += [(kept, save.at_step, p.keeps[kept, save.at_step]) for kept in save.kept]
            self.parts.setdefault(key, {})[p.member.id] = held
        if p.saved == (*key, "") and self.tick >= p.writing_until:
            if p.disk:
                p.unsaved = (*key, p.disk)
            else:
                p.saved = (*key, f"digest of {p.member.id}")
        if save.publish and p.published[:2] != key:
            p.published = (*key, f"/shared/{save.number}")
            written = {one for held in self.parts[key].values() for one in held}
            assert {step for _, step, _ in written} == {save.at_step}, "tensors of different steps in one snapshot"
            assert len({run for _, _, run in written}) == 1, "tensors of different runs of a step in one snapshot"
            assert {part for part, _, _ in written} == set(range(self.shards)), "a part that nobody has written"
            assert len(save.publish) == len(self.parts[key]) and p.member.id in self.parts[key]
            self.published[save.number] = save.at_step

    def follow(self, p: Process, todo: Duty) -> None:
        p.giving = todo.give if p.doing != "training" and todo.give == p.step else -1
        p.building = todo.build
        if todo.leave is not None and p.doing != "training":
            self.copies.leave(p, todo.leave)
        if todo.build is not None and p.built != todo.build:
            others = [self.processes[m.id] for m in todo.build_members]
            if all(q.alive and self.tick >= q.frozen_until and q.building == todo.build for q in others):
                p.built = todo.build
        if p.reduced and (todo.release or p.sent >= p.step):
            self.apply(p, p.reduced)
        if todo.save is not None:
            self.save(p, todo.save)
        if todo.release and p.doing == "training":
            p.in_step = False
            p.doing = "stopped"
        if todo.group > p.group and p.built == todo.group and p.rank is not None:
            if todo.at_step >= 0 and p.step != todo.at_step:
                return  # it has not got what the others go on with
            p.group, p.doing, p.in_step, p.peer_gone = todo.group, "training", False, False
            self.copies.entered(p)
        if p.doing == "paused" and (todo.pause_at < 0 or todo.pause_at > p.step) and todo.group == p.group:
            p.doing = "training"
        if p.doing == "training" and todo.pause_at == p.step and not p.in_step:
            p.doing = "paused"
        if todo.take is not None and p.holds[:2] != todo.build and p.doing != "training":
            sources = [self.processes[m.id] for m in todo.take_from]
            part, kept = (p.rank or 0) % self.shards, todo.take.kept
            if all(
                q.alive and self.tick >= q.frozen_until
                and ((part, todo.at_step) in q.keeps if kept else q.giving == todo.at_step)
                for q in sources
            ):  # fmt: skip
                p.copying += 1
                if p.copying >= 5:
                    assert kept or {(q.applied, (q.rank or 0) % self.shards) for q in sources} == {(todo.at_step, part)}
                    (p.run,) = {q.keeps[part, todo.at_step] if kept else q.run for q in sources}
                    p.applied = p.step = todo.at_step
                    assert todo.build is not None
                    p.holds = (*todo.build, "d")
                    p.copying = 0
            else:
                p.copying = 0
        if p.doing == "training" and p.group == todo.group and not p.in_step:
            if p.step >= self.steps:
                p.doing = "left"
            elif self.chance.random() < 0.5:
                p.in_step = True
                self.copies.leave(p, keeper_of(todo.members, p.rank or 0))

    def collectives(self) -> None:
        """A step's collective is done once all members of a group are in the same step of it."""
        inside = [p for p in self.processes.values() if p.alive and p.in_step and p.doing == "training"]
        for group in {p.group for p in inside}:
            here = [p for p in inside if p.group == group]
            if len(here) < self.ranks or any(p.reduced for p in here) or self.chance.random() < 0.4:
                continue  # of those that have it, some wait for their copies to arrive
            assert len(here) == self.ranks and sorted(p.rank or 0 for p in here) == list(range(self.ranks))
            assert len({p.step for p in here}) == 1, [(p.member.id, p.step) for p in here]
            run = self.note(here[0].step, group, here)
            for p in here:
                assert p.applied == p.step
                if self.shards > 1:
                    p.reduced = run
                    continue
                if self.tick < p.frozen_until:
                    p.alive = p.alive and self.chance.random() < 0.5  # broken by the others' leaving, or done later
                self.apply(p, run)

    def apply(self, p: Process, run: int) -> None:
        self.applied.setdefault(p.step, set()).add(run)
        p.step += 1
        p.applied += 1
        p.run, p.reduced, p.in_step = run, 0, False

    def note(self, step: int, group: tuple[int, int], here: list[Process]) -> int:
        """A step is complete; its run. Never twice, unless state is sharded: somebody has applied it, and all go on
        from there."""
        again = step in self.completed and group != self.completed[step][0][0]
        assert not again or self.shards > 1, (step, group, self.completed[step])
        assert len({p.run for p in here}) == 1, "states of different runs of a step"
        self.completed.setdefault(step, []).append((group, tuple(p.member.id for p in here)))
        self.runs += 1
        return self.runs

    # faults
    def kill(self, p: Process) -> None:
        """Its neighbours find their connections closed. A step that is complete may be applied by some and not by
        others."""
        p.alive = False
        here = [q for q in self.processes.values() if q.alive and q.group == p.group and q.doing == "training"]
        inside = [q for q in here if q.in_step and not q.reduced]
        if p.in_step and not p.reduced and len(inside) == self.ranks - 1 and self.chance.random() < 0.5:
            some = [q for q in inside if self.chance.random() < 0.5]  # complete: some have got everything
            if some:
                run = self.note(p.step, p.group, [*inside, p])
                for q in some:
                    if self.shards > 1:
                        q.reduced = run
                    else:
                        self.apply(q, run)
        for q in inside[:2]:
            if q.in_step and not q.reduced:
                q.in_step, q.doing, q.peer_gone = False, "stopped", True

    def ask(self, what: str, host: str, name: str, unlimited: bool = True) -> None:
        ask = Ask(name, what, host, unlimited=unlimited)  # type: ignore[arg-type]
        desks = [desk.scene for desk in self.desks if desk.scene is not None and self.tick >= desk.dead_until]
        if desks:  # one of the coordinators gets it
            self.chance.choice(desks).asks.append(ask)

    def holder(self, rank: int) -> Process:
        return self.processes[self.job.members[rank].id]
