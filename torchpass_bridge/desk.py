"""One job of a coordinator: what is heard of it, when `core.coordinate` has to decide, and what is written then.

What is decided is written against the revisions that it was decided on. What another coordinator was faster with is
looked at, and decided again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from torchpass_bridge.core import closing
from torchpass_bridge.core.coordinate import decide, unheard_by_all
from torchpass_bridge.core.founding import found, fresh
from torchpass_bridge.core.scene import Call, Claim, Close, Drop, Forget, Free, Limits, Put, Refuse, Reply, Scene
from torchpass_bridge.store.records import Conflict, Held, Records, StoreAway
from torchpass_bridge.store.records import Reply as SendAnswer
from torchpass_bridge.wire import Answer, Ask, Job, Loan, Member, Spare, Status

TICK_S = 0.05
"""Between two decisions while something is under way."""
REST_S = 1.0
"""The same when nothing is, at most; nobody's silence is noticed later than its limit and a tick."""
LATE_S = 0.25
"""Woken so late, this process stood still: what came meanwhile is heard before anything is decided."""
SEAT_SILENT_S = 10.0
"""A seat whose holder is not heard for so long, before its job has begun, is cleared: it can be taken again."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Clock:
    """`now_s`: monotonic; `unix_s`: for the ledger."""

    now_s: Callable[[], float]
    unix_s: Callable[[], float]


@dataclass(eq=False)
class Picture:
    """What the store has, as far as watched: shared by the desks of one coordinator."""

    spares: dict[str, Held[Spare]] = field(default_factory=dict)
    loans: dict[str, Held[Loan]] = field(default_factory=dict)
    seats: dict[tuple[str, int], Held[Member]] = field(default_factory=dict)
    jobs: dict[str, Held[Job]] = field(default_factory=dict)


class Desk:
    """One job. `run` ends only by cancellation."""

    def __init__(
        self, name: str, records: Records, picture: Picture, clock: Clock, limits: Limits, key: bytes = b""
    ) -> None:
        self.name = name
        self.scene: Scene | None = None
        self._records = records
        self._picture = picture
        self._clock = clock
        self._limits = limits
        self._key = key
        self._revision = 0
        self._replies: dict[str, SendAnswer] = {}
        self._asks: list[Ask] = []
        self._heard_s: dict[str, float] = {}
        self._began_s = clock.now_s()
        self._epoch = records.epoch
        self._wake = asyncio.Event()
        self._said = ""

    @property
    def job(self) -> Job | None:
        return self.scene.job if self.scene else None

    def wake(self) -> None:
        """The picture has changed."""
        held = self._picture.jobs.get(self.name)
        if held is not None:
            self._take(held)
        self._wake.set()

    def forget(self) -> None:
        """Begin anew, as another process would."""
        self.scene, self._revision = None, 0
        self._asks.clear()
        self._replies.clear()
        self.wake()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._hear())
            tasks.create_task(self._listen())
            tasks.create_task(self._decide())

    # what comes in
    async def _hear(self) -> None:
        async with self._records.hearing(self.name, self._heard):
            await asyncio.get_running_loop().create_future()  # until this is cancelled

    def _heard(self, status: Status) -> None:
        now_s = self._clock.now_s()
        self._heard_s[status.member] = now_s
        if self.scene is None or (self.scene.hear(status, now_s) and (self._busy(self.scene) or _matters(status))):
            self._wake.set()

    async def _listen(self) -> None:
        async for ask, reply in self._records.asks(self.name):
            if ask.id not in self._replies:
                self._asks.append(ask)
            self._replies[ask.id] = reply
            self._wake.set()

    def _take(self, held: Held[Job]) -> None:
        """The job's record, from the watcher or from an own write; older ones than the latest are left out."""
        if held.revision <= self._revision:
            return
        now_s, old = self._clock.now_s(), self.scene
        self._revision = held.revision
        if old is None or (old.job.over and not held.value.ended and held.value.generation > old.job.generation):
            self.scene = Scene(held.value, self._limits, now_s, self._key)
        else:
            if held.value.generation != old.job.generation:
                self._prune(old, held.value, now_s)
            old.see_job(held.value, now_s)
        self._tell(held.value)

    def _prune(self, scene: Scene, job: Job, now_s: float) -> None:
        """Who has left is not remembered: ids are never used again."""
        gone = [member_id for member_id, at_s in self._heard_s.items() if now_s - at_s > SEAT_SILENT_S]
        for member_id in gone:
            if job.rank_of(member_id) is None and member_id not in self._picture.spares | self._picture.loans:
                del self._heard_s[member_id]
                scene.heard.pop(member_id, None)

    def _look(self) -> None:
        """What is decided on: the picture, and what was asked."""
        if self._epoch != self._records.epoch:
            # What was asked before is asked again by those who still want it.
            self._epoch = self._records.epoch
            self._asks.clear()
            self._replies.clear()
            if self.scene is not None:
                self.scene.asks.clear()
                self.scene.listen_anew(self._clock.now_s())
        if self.scene is not None:
            spares = {name: held.value for name, held in self._picture.spares.items()}
            self.scene.see_spares(spares, self._clock.now_s())
            loans = {name: held.value for name, held in self._picture.loans.items()}
            self.scene.see_loans(loans, self._clock.now_s())
            self.scene.asks += self._asks
            self._asks = []

    # what is decided
    async def _decide(self) -> None:
        while True:
            wait_s = self._due_s()
            before_s = self._clock.now_s()
            try:
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            if self._clock.now_s() - before_s > wait_s + LATE_S:
                await asyncio.sleep(TICK_S)
            if not self._records.up:
                await asyncio.sleep(TICK_S)
                continue
            self._look()
            try:
                await self._turn()
            except StoreAway as error:
                _log.warning("job %s: %s", self.name, error)
            except Conflict:
                await self._catch_up()

    async def _turn(self) -> None:
        if self.scene is None or self.scene.job.over:
            await self._begin()
        if self.scene is None:
            for ask in self._asks:
                await self._answer(ask, Answer(False, f"{self.name} has not begun yet"))
            self._asks = []
            return
        # What is watched goes on while this writes: each write names what was seen when it was decided.
        revision, spares, loans = self._revision, dict(self._picture.spares), dict(self._picture.loans)
        actions = decide(self.scene, self._clock.now_s(), self._clock.unix_s())
        given = [
            self._give(action, spares[action.spare.member.id].revision)
            for action in actions
            if isinstance(action, Claim | Free | Refuse | Drop) and action.spare.member.id in spares
        ]
        given += [
            self._lend(action, loans[action.loan.id].revision)
            for action in actions
            if isinstance(action, Call | Forget) and action.loan.id in loans
        ]
        if given:
            await asyncio.gather(*given)
        for action in actions:
            if isinstance(action, Reply):
                await self._answer(action.ask, action.answer)
            elif isinstance(action, Put):
                await self._put(action.job, revision)
            elif isinstance(action, Close):
                await self._records.write_entry(action.entry)
                await self._put(action.job, revision)

    async def _give(self, action: Claim | Free | Refuse | Drop, expected: int) -> None:
        """A spare's record. When somebody else wrote it, that comes by the watcher."""
        member_id = action.spare.member.id
        try:
            if isinstance(action, Drop):
                await self._records.drop_spare(action.spare, expected)
                self._picture.spares.pop(member_id, None)
            else:
                revision = await self._records.put_spare(action.spare, expected)
                if self._picture.spares.get(member_id, Held(action.spare, 0)).revision < revision:
                    self._picture.spares[member_id] = Held(action.spare, revision)
        except Conflict:
            return
        self._wake.set()

    async def _lend(self, action: Call | Forget, expected: int) -> None:
        """A loan's record, in the same way."""
        loan_id = action.loan.id
        try:
            if isinstance(action, Forget):
                await self._records.drop_loan(loan_id, expected)
                self._picture.loans.pop(loan_id, None)
            else:
                revision = await self._records.put_loan(action.loan, expected)
                if self._picture.loans.get(loan_id, Held(action.loan, 0)).revision < revision:
                    self._picture.loans[loan_id] = Held(action.loan, revision)
        except Conflict:
            return
        self._wake.set()

    async def _put(self, job: Job, expected: int) -> None:
        self._take(Held(job, await self._records.put_job(job, expected)))
        self._wake.set()

    async def _catch_up(self) -> None:
        """Another one wrote the record: it is read before anything is decided again."""
        try:
            held = await self._records.job(self.name)
        except StoreAway:
            return
        if held is not None:
            self._take(held)
        self._wake.set()

    async def _answer(self, ask: Ask, answer: Answer) -> None:
        reply = self._replies.pop(ask.id, None)
        if reply is not None:
            await reply(answer)

    # its beginning
    async def _begin(self) -> None:
        """Found the job when all its ranks are there and are heard; clear the seats of those that are not."""
        now_s, old, revision = self._clock.now_s(), self.job, self._revision
        taken = {rank: held for (job, rank), held in self._picture.seats.items() if job == self.name}
        here = fresh({rank: held.value for rank, held in taken.items()}, old)
        for rank, member in list(here.items()):
            heard_s = self._heard_s.get(member.id)
            if now_s - max(heard_s or 0.0, self._began_s) > SEAT_SILENT_S:
                _log.warning(
                    "job %s: rank %d on %s is not heard before the job has begun: its seat is free again",
                    self.name, rank, member.host,
                )  # fmt: skip
                await self._records.clear_seat(self.name, rank, taken[rank].revision)
                self._picture.seats.pop((self.name, rank), None)
            if heard_s is None or now_s - heard_s > self._limits.silent_s:
                del here[rank]
        job = found(self.name, here, old)
        if job is None:
            return
        scene = self.scene
        if scene is not None and not scene.job.ended:
            if not unheard_by_all(scene, now_s):
                return
            await self._records.write_entry(closing.lost_at_once(scene, self._clock.unix_s()))
        await self._put(job, revision)

    # when to decide next
    def _busy(self, scene: Scene) -> bool:
        job = scene.job
        turns = any(not ask.waits for ask in job.waiting)  # those that wait for a spare are looked at when one comes
        return bool(not job.ended and (job.incident or job.saving or turns or scene.asks or self._asks))

    def _due_s(self) -> float:
        """How long nothing needs to be decided unless something comes."""
        scene = self.scene
        if scene is None or scene.job.over:
            seats = {rank: held.value for (job, rank), held in self._picture.seats.items() if job == self.name}
            return TICK_S if fresh(seats, self.job) else REST_S
        if self._busy(scene) or any((s := scene.status(m)) and _matters(s) for m in scene.job.members):
            return TICK_S
        now_s, limit_s = self._clock.now_s(), self._limits.silent_s
        heard = (h.at_s if (h := scene.heard.get(m.id)) else scene.began_s for m in scene.job.members)
        due_s = max(min(heard, default=now_s), scene.began_s) + limit_s - now_s
        return min(max(due_s, TICK_S), REST_S)

    def _tell(self, job: Job) -> None:
        """One line for people when something else is so."""
        incident = job.incident
        said = f"ended: {job.ended} {job.why}".strip() if job.ended else f"generation {job.generation}"
        if job.unheard_unix_s and not job.ended:
            said += ", none of its members is heard"
        if incident:
            said += f", incident {incident.number} ({incident.kind}: {incident.cause}): {incident.phase}"
        if not incident and not job.ended:
            said += "".join(f"; to leave {ask.host} waits for a spare: {ask.waits}" for ask in job.waiting if ask.waits)
        if said != self._said:
            self._said = said
            _log.info("job %s: %s", self.name, said)


def _matters(status: Status) -> bool:
    """Something that is not seen in a job that is well."""
    return status.doing in ("stopped", "left") or status.peer_gone or bool(status.trouble)
