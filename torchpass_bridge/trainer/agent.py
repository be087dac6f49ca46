"""The thread beside the training thread: it watches the job's record, and says what this member is doing.

The training thread reads one attribute in a healthy step (`attention`) and writes one (`said.step`). What the record
asks for that is not the training thread's own, the agent does at once: it lets it go from a broken group's collectives,
and has the next group built.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
import time
from collections.abc import Coroutine
from typing import Any

import msgspec
import torch

from torchpass_bridge.core.duty import Duty, duty
from torchpass_bridge.core.places import buddy_of, keeper_of
from torchpass_bridge.store.records import Conflict, Records, StoreAway
from torchpass_bridge.trainer.aside import Aside
from torchpass_bridge.trainer.buddy import Buddy
from torchpass_bridge.trainer.building import Building
from torchpass_bridge.trainer.groups import Grid, Group
from torchpass_bridge.trainer.settings import Settings
from torchpass_bridge.wire import Doing, Job, Member, Spare, Status, prove

SEAT_S = 2.0
"""Between two looks at this process's seat, until the job begins."""

FIRST_S = 2.0

_log = logging.getLogger(__name__)


class Said(msgspec.Struct):
    """What the next status says. Changed by `Agent.tell`; `step` also directly, in a healthy step."""

    doing: Doing = "training"
    generation: int = 0
    step: int = 0
    built: tuple[int, int] = (0, 0)
    holds: tuple[int, int, str] = (0, 0, "")
    trouble: str = ""
    peer_gone: bool = False
    pause_s: float = 0.0
    saved: tuple[int, int, str] = (0, 0, "")
    published: tuple[int, int, str] = (0, 0, "")
    unsaved: tuple[int, int, str] = (0, 0, "")
    keeps: tuple[tuple[int, int], ...] = ()


class Agent:
    """`attention`: there is something else to do than to train on in the present group.

    `present`: the group that is trained in; `next`: one that stands, for later. Changes are waited for with `wait`."""

    def __init__(self, settings: Settings, buddy: Buddy) -> None:
        self.settings = settings
        self.attention = True
        self.duty = Duty()
        self.job: Job | None = None
        self.said = Said(doing="training" if settings.rank is not None else "waiting")
        self.present: Group | None = None
        self.next: Group | None = None
        self.failure: BaseException | None = None
        self.refused = ""
        """Why it can never take a rank."""
        self.member: Member | None = None
        self.device = torch.device("cpu")
        """Of the tensors that the groups are for."""
        self.grid: Grid | None = None
        """Of the mesh, if it has two dimensions."""
        self.shards = 1
        self.keeper: Member | None = None
        """Who keeps copies of this rank's part of a sharded state."""
        self._buddy = buddy
        self._building: Building | None = None
        self._changed = threading.Condition()
        self._version = 0
        self._begun = False
        self._sequence = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._due: asyncio.TimerHandle | None = None
        """The next status."""
        self._over: asyncio.Event | None = None
        self._up: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._thread = Aside("agent", self._run)

    # called by the training thread
    def start(self) -> None:
        """Once the store has answered. StoreAway."""
        self._thread.start()
        self._up.result()

    def stop(self) -> None:
        if self._loop is not None and self._over is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._over.set)
            self._thread.join(2.0)

    def enlist(self, member: Member, first: bytes) -> None:
        """As the holder of its rank, or as a spare. `first`: what belongs to it alone, as `leave_first` keeps it.

        `store.records.Taken` when the rank has a holder."""
        self.member = member
        self.call(self._enlist(member, first)).result()

    def leave_first(self, data: bytes) -> concurrent.futures.Future[None]:
        """What belongs to this rank alone when this member begins with it: until a buddy has something newer."""
        return self.call(self._records.scratch_set(self._first_key(self.settings.id), data))

    def first_of(self, member_id: str) -> bytes | None:
        """What another one left so; None too when the store does not answer."""
        try:
            found: bytes | None = self.call(self._records.scratch_get(self._first_key(member_id))).result(FIRST_S)
        except (StoreAway, TimeoutError) as error:
            _log.warning("what %s began with is not known: %s", member_id, error)
            return None
        return found

    def _first_key(self, member_id: str) -> str:
        return f"{self.settings.job}-first.{member_id}"

    def tell(self, **news: Any) -> None:
        """Say at once what has changed."""
        with self._changed:
            for name, value in news.items():
                setattr(self.said, name, value)
        self._say_soon()

    def version(self) -> int:
        return self._version

    def wait(self, seen: int, timeout_s: float | None = None) -> None:
        """Until something has changed since version `seen`."""
        with self._changed:
            self._changed.wait_for(lambda: self._version != seen, timeout_s)

    def enter(self, group: Group) -> Group | None:
        """`group` is the present one from now on; the one before is given back."""
        with self._changed:
            old, self.present, self.next = self.present, group, None
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._look)
        return old

    def call(self, asked: Coroutine[Any, Any, Any]) -> concurrent.futures.Future[Any]:
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(asked, self._loop)

    # its own thread
    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:  # noqa: BLE001 (told to the training thread, which raises it)
            self.failure = error
            if not self._up.done():
                self._up.set_exception(error)
            self._notify(attention=True)

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        async with await Records.connect(self.settings.store, self.settings.id) as records:
            self._records = records
            self._building = Building(self.settings, records, self.call, self._built, self._not_built)
            self._up.set_result(None)
            self._say()
            async with asyncio.TaskGroup() as tasks:
                stay = self._stay_offered if self.settings.rank is None else self._stay_seated
                running = [tasks.create_task(work()) for work in (self._watch, stay)]
                await self._over.wait()
                if self._due is not None:
                    self._due.cancel()
                for task in running:
                    task.cancel()

    async def _watch(self) -> None:
        async for held in self._records.watch_job(self.settings.job):
            self.job = held.value
            self._look()

    def _look(self) -> None:
        """What the record asks for now."""
        job = self.job
        if job is None or not self._concerns(job):
            return
        found = duty(job, self.settings.id)
        present = self.present
        lost = found.fenced or found.ended in ("stopped", "lost")
        if present is not None and (lost or (found.release and found.group == present.key)):
            present.release()
        with self._changed:
            if self.next is not None and self.next.key not in (found.build, found.group):
                self.next = None  # what it was built for was cancelled
        if self._building is not None:
            self._building.device, self._building.grid = self.device, self.grid
            if self._building.aim(found, present, self.next) and self.said.trouble:
                self.tell(trouble="")  # that was of an attempt before
        if found.rank is not None and found.group[0]:
            rank = job.rank_of(self.settings.id)
            self._buddy.to(buddy_of(job.members, rank) if rank is not None else None)
            self.keeper = keeper_of(job.members, rank) if rank is not None else None
        calm = (
            present is not None and not lost and not found.ended and found.group == present.key and not found.release
            and found.pause_at < 0 and found.build is None and found.save is None
        )  # fmt: skip
        self.duty = found
        self._notify(attention=not calm)

    def _concerns(self, job: Job) -> bool:
        """A record of this run, rather than of an ended one of the same name."""
        me = self.settings.id
        known = me in job.fenced or job.rank_of(me) is not None
        self._begun = self._begun or known or (self.settings.rank is None and not job.ended)
        return self._begun

    def _built(self, group: Group) -> None:
        """In the building thread."""
        with self._changed:
            self.next = group
        self.tell(built=group.key, trouble="")
        self._notify()

    def _not_built(self, why: str) -> None:
        self.tell(trouble=why)
        self._notify()

    def _notify(self, *, attention: bool | None = None) -> None:
        with self._changed:
            if attention is not None:
                self.attention = attention
            self._version += 1
            self._changed.notify_all()

    # what is said
    def _say_soon(self) -> None:
        if self._loop is not None and self._due is not None:
            self._loop.call_soon_threadsafe(self._say)

    def _say(self) -> None:
        """Now, and at the next beat. A timer of the loop and nothing else: a task that waits for an event, or for its
        time to be up, costs a healthy rank several times as much.

        Beats are at whole multiples of their length by the clock of the day, so at the same moments in all ranks: what
        takes a processor from all of them at once costs a job that goes in step as little as if it were one, and store
        and coordinators wake once for all."""
        assert self._loop is not None
        if self._due is not None:
            self._due.cancel()
        beat_s = self.settings.times.beat_s
        self._due = self._loop.call_later(beat_s - time.clock_gettime(time.CLOCK_REALTIME) % beat_s, self._say)
        if self.member is not None:
            self._records.say(self.settings.job, self._status())

    def _status(self) -> Status:
        with self._changed:
            said = msgspec.structs.asdict(self.said)
            self._sequence += 1
            return Status(member=self.settings.id, sequence=self._sequence, **said)

    # its place
    async def _enlist(self, member: Member, first: bytes) -> None:
        while True:
            try:
                if self.settings.rank is not None:
                    await self._records.scratch_set(self._first_key(member.id), first)
                    await self._records.seat(self.settings.job, self.settings.rank, member)
                else:
                    await self._records.offer(self._spare(member))
                break
            except StoreAway as error:
                _log.warning("%s: asked again", error)
                await asyncio.sleep(0.2)
        self._say_soon()

    async def _stay_seated(self) -> None:
        """Until the job begins: a coordinator that has not heard it for long clears its seat."""
        while not self._begun:
            await asyncio.sleep(SEAT_S)
            if self.member is not None and self.settings.rank is not None and not self._begun:
                try:
                    await self._records.seat(self.settings.job, self.settings.rank, self.member)
                except StoreAway as error:
                    _log.warning("%s: asked again", error)

    def _spare(self, member: Member) -> Spare:
        settings = self.settings
        return Spare(member, settings.job, prove(settings.key, settings.job, member.id))

    async def _stay_offered(self) -> None:
        """A coordinator that has not heard it for long takes it for gone, and forgets it."""
        async for spares in self._records.watch_spares():
            job, member = self.job, self.member
            if member is not None and member.id in spares and spares[member.id].value.refused:
                self.refused = spares[member.id].value.refused
                self._notify()
            if member is None or member.id in spares or (job and (job.ended or job.rank_of(member.id) is not None)):
                continue
            if self.duty.rank is None and not self.duty.fenced:
                try:
                    await self._records.offer(self._spare(member))
                except (StoreAway, Conflict) as error:
                    _log.warning("not offered as a spare: %s", error)
