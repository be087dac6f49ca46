"""The simulated store, and coordinators over it: each with its own soft knowledge, and its own delays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchpass_bridge.core.coordinate import decide
from torchpass_bridge.core.scene import Call, Claim, Close, Drop, Forget, Free, Put, Refuse, Reply, Scene
from torchpass_bridge.wire import BEAT_S, Entry, Job, Loan, Spare

if TYPE_CHECKING:
    from migration_sim import World

TICK_S = 0.01
BEAT = round(BEAT_S / TICK_S)
"""Ticks between two statuses."""


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
