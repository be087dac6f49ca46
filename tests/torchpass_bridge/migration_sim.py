"""A job, its spares, coordinators and a store in one process, in ticks of 10 ms: everything that can go wrong between
the records, the statuses and the collectives, without sockets.

A collective needs all members of one group; whoever is released from one that was complete may have applied the step
or not, as with a real one. State is the number of optimizer steps that were applied to it, and which run of the last
one: a step that is done again makes another state. Of sharded state each rank keeps copies (`sharded_sim`).
"""

from __future__ import annotations

import random

import msgspec
from sharded_sim import Copies
from sim_desks import BEAT, TICK_S, Desk, Store
from sim_members import FIT, Keeper, Process, follow

from torchpass_bridge.core.duty import Duty, duty
from torchpass_bridge.core.scene import Limits
from torchpass_bridge.wire import Answer, Ask, Fit, Job, Loan, Member, Spare, Status


class World:
    def __init__(
        self, seed: int, ranks: int = 4, spares: int = 2, steps: int = 60, desks: int = 2,
        limits: Limits | None = None, shards: int = 1, buddies: bool = True,
    ) -> None:  # fmt: skip
        self.chance = random.Random(seed)
        self.limits = limits or Limits(spare_wait_s=3.0, planned_wait_s=1.0, phase_s=3.0)
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
        if self.tick % BEAT == 0:
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
            follow(self, p, todo)
        if self.tick < p.mute_until:
            return
        now = (p.doing, p.step, p.built, p.holds, p.group, p.saved, p.published, p.unsaved)
        if before != now or (self.tick + p.member.pid) % BEAT == 0:
            for desk in self.desks:
                self.pending.append((self.tick + self.chance.randint(0, 3), desk, p.status()))

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
