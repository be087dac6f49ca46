"""Members of a job and spares that follow their duty over a real store: each has a client of its own, as a process has.

What they do is the simulation's (`migration_sim`): a collective needs all members of a group; only the store, the
coordinators, the clock and the messages are real.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import msgspec
from migration_sim import World
from sharded_sim import Copies
from sim_members import FIT, Process, follow

from torchpass_bridge import wire
from torchpass_bridge.coordinator import Coordinator
from torchpass_bridge.core.duty import Duty, duty
from torchpass_bridge.core.scene import Limits
from torchpass_bridge.desk import Clock
from torchpass_bridge.store.records import Conflict, Records, StoreAway
from torchpass_bridge.wire import BEAT_S, Answer, Ask, Fit, Job, Member, Spare, Status

ROUND_S = 0.005
KEY = b"the job's key"
CLOCK = Clock(time.monotonic, lambda: time.clock_gettime(time.CLOCK_REALTIME))
LIMITS = Limits(silent_s=1.0, gone_s=0.4, spare_wait_s=2.0, planned_wait_s=2.0, phase_s=5.0)


def fit(ranks: int, **other: object) -> Fit:
    return Fit(**{**{name: getattr(FIT, name) for name in Fit.__struct_fields__}, "world": ranks, **other})  # type: ignore[arg-type]


class LiveWorld(World):
    """Only what the simulation's processes need of it; `jobs`: the record as each of them has seen it."""

    def __init__(self, url: str, ranks: int = 3, steps: int = 10**6, name: str = "j") -> None:
        self.chance = random.Random(1)
        self.tick = self.made = 0
        self.ranks, self.steps, self.url, self.name = ranks, steps, url, name
        self.processes: dict[str, Process] = {}
        self.completed, self.applied = {}, {}
        self.shards, self.runs, self.copies = 1, 0, Copies(self)
        self.parts, self.published = {}, {}
        self.jobs: dict[str, Job] = {}
        self.clients: dict[str, Records] = {}
        self._tasks: dict[str, list[asyncio.Task[None]]] = {}
        self._beat_s: dict[str, float] = {}
        self._said: dict[str, tuple[object, ...]] = {}
        self._pump: asyncio.Task[None] | None = None
        self.ended: dict[str, str] = {}
        """Why a process has ended, by its id."""

    async def start(self) -> None:
        for rank in range(self.ranks):
            await self.add_rank(rank)
        await self.start_rounds()

    async def start_rounds(self) -> None:
        self._pump = asyncio.ensure_future(self._rounds())

    async def add_rank(self, rank: int, fitting: Fit | None = None) -> Process:
        p = await self._add(f"h{rank}", fitting or fit(self.ranks))
        p.doing = "waiting"
        await self.clients[p.member.id].seat(self.name, rank, p.member)
        return p

    async def add_live_spare(
        self, host: str, fitting: Fit | None = None, key: bytes = KEY, lent_from: str = ""
    ) -> Process:
        p = await self._add(host, fitting or fit(self.ranks))
        p.member = msgspec.structs.replace(p.member, lent_from=lent_from)
        p.doing, p.own = "waiting", False
        proof = wire.prove(key, self.name, p.member.id)
        await self.clients[p.member.id].offer(Spare(p.member, self.name, proof))
        return p

    async def _add(self, host: str, fitting: Fit) -> Process:
        self.made += 1
        member_id = f"{host}-{self.made}"
        p = Process(Member(member_id, host, self.made, f"[fd00::{self.made}]:7", fitting, snapshots="/shared"))
        client = await Records.connect(self.url, member_id)
        self.processes[member_id], self.clients[member_id] = p, client
        self._tasks[member_id] = [
            asyncio.ensure_future(self._watch(member_id, client)),
            asyncio.ensure_future(self._watch_spare(p, client)),
        ]
        return p

    async def _watch(self, member_id: str, client: Records) -> None:
        async for held in client.watch_job(self.name):
            self.jobs[member_id] = held.value
            p = self.processes[member_id]
            if held.value.ended and held.value.knew(member_id):
                p.alive, self.ended[member_id] = False, held.value.ended + held.value.why

    async def _watch_spare(self, p: Process, client: Records) -> None:
        async for spares in client.watch_spares():
            held = spares.get(p.member.id)
            if held is not None and held.value.refused:
                p.alive, self.ended[p.member.id] = False, held.value.refused

    async def _rounds(self) -> None:
        while True:
            self.tick += 1
            order = [p for p in self.processes.values() if p.alive and self.tick >= p.frozen_until]
            self.chance.shuffle(order)
            for p in order:
                self.act(p)
            self.collectives()
            now_s = time.monotonic()
            for p in order:
                member_id = p.member.id
                said = (
                    p.doing, p.step, p.built, p.holds, p.group, p.peer_gone, p.saved, p.published, p.unsaved
                )  # fmt: skip
                if said != self._said.get(member_id) or now_s - self._beat_s.get(member_id, 0.0) >= BEAT_S:
                    self._said[member_id], self._beat_s[member_id] = said, now_s
                    status: Status = p.status()
                    self.clients[member_id].say(self.name, status)
            await asyncio.sleep(ROUND_S)

    def act(self, p: Process) -> None:
        job = self.jobs.get(p.member.id)
        todo = duty(job, p.member.id) if job else Duty()
        if todo.fenced:
            p.alive, self.ended[p.member.id] = False, "fenced"
        elif todo.rank is not None and not todo.ended:
            if p.group == (0, 0) and job and p.member in job.members and not job.incident:
                p.built = todo.group
                p.own = True
            p.rank = todo.rank
            follow(self, p, todo)

    async def die(self, *dying: Process) -> None:
        """As by SIGKILL: nothing more is said, and its connections close. Several: between two steps, for a step that
        only the dead have applied is in flight, and not lost; the simulation cannot tell these."""
        for p in dying:
            p.in_step = p.in_step and len(dying) == 1
            self.kill(p)
        for p in dying:
            await self._close(p.member.id)

    async def _close(self, member_id: str) -> None:
        for task in self._tasks.pop(member_id, []):
            task.cancel()
        await self.clients[member_id].close()

    async def stop(self) -> None:
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.gather(self._pump, return_exceptions=True)
            if not self._pump.cancelled() and (error := self._pump.exception()) is not None:
                raise error
        for member_id in list(self._tasks):
            await self._close(member_id)

    def sound(self) -> None:
        """No rank fell out of step, and every step that was applied was applied once, by one group."""
        assert self.completed
        assert sorted(self.completed) == list(range(max(self.completed) + 1))
        for p in self.processes.values():
            assert p.applied == p.step


class Desks:
    """Coordinators that can be killed and begun."""

    def __init__(self, url: str, limits: Limits = LIMITS, key: bytes = KEY) -> None:
        self.url, self.limits, self.key = url, limits, key
        self.all: list[tuple[asyncio.Task[None], Records, Coordinator]] = []

    async def begin(self) -> Coordinator:
        records = await Records.connect(self.url, "coordinator")
        made = Coordinator(records, CLOCK, limits=self.limits, key=lambda job: self.key)
        self.all.append((asyncio.ensure_future(made.run()), records, made))
        return made

    async def kill(self, number: int = 0) -> None:
        task, records, _ = self.all.pop(number)
        task.cancel()
        await records.close()
        await asyncio.gather(task, return_exceptions=True)

    async def stop(self) -> None:
        for task, _, _ in self.all:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error
        while self.all:
            await self.kill()


@asynccontextmanager
async def running(url: str, ranks: int = 3, spares: int = 2, desks: int = 1) -> AsyncIterator[tuple[LiveWorld, Desks]]:
    """A job that trains, its spares, and its coordinators."""
    world, coordinators = LiveWorld(url, ranks), Desks(url)
    try:
        for _ in range(desks):
            await coordinators.begin()
        for number in range(spares):
            await world.add_live_spare(f"s{number}")
        await world.start()
        await until(lambda: steps(world) > 3, "the job trains")
        yield world, coordinators
        world.sound()
    finally:
        await coordinators.stop()
        await world.stop()


def steps(world: LiveWorld) -> int:
    return max(world.completed, default=0)


async def until(true: Callable[[], bool | Awaitable[bool]], what: str, timeout_s: float = 60.0) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                answer = true()
                if answer if isinstance(answer, bool) else await answer:
                    return
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"it did not come to this: {what}") from None


async def ask(records: Records, what: str, host: str, **other: object) -> Answer:
    made = Ask(f"{what}-{host}-{random.random()}".replace(".", ""), what, host, **other)  # type: ignore[arg-type]
    return await records.ask("j", made, 5.0)


async def job_of(records: Records, name: str = "j") -> Job:
    """Once the store answers."""
    while True:
        try:
            held = await records.job(name)
        except StoreAway:
            continue
        assert held is not None
        return held.value


__all__ = ["KEY", "Conflict", "Desks", "LiveWorld", "ask", "fit", "job_of", "running", "steps", "until"]
