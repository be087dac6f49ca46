"""A coordinator: watches jobs in the store, lets `core.coordinate` decide, and writes what it decided.

Any number of them may run, anywhere: what each knows beyond the store comes again with the next beat of the members,
and of two that write, the store takes one. A job that is well costs it the reading of its members' statuses, and
nothing of the job waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TypeVar

from torchpass_bridge.core.founding import fresh
from torchpass_bridge.core.scene import Limits
from torchpass_bridge.desk import Clock, Desk, Picture
from torchpass_bridge.store.records import ALL, Held, Records
from torchpass_bridge.wire import Entry, Loan, Spare

AGAIN_S = 1.0
"""After something unforeseen at a desk."""

_log = logging.getLogger(__name__)

T = TypeVar("T", Spare, Loan)


class Coordinator:
    """All desks over one store. `jobs` empty: every job of it."""

    def __init__(
        self,
        records: Records,
        clock: Clock,
        jobs: tuple[str, ...] = (),
        limits: Limits | None = None,
        key: Callable[[str], bytes] = lambda job: b"",
    ) -> None:
        """`key`: of each job by its name."""
        self.desks: dict[str, Desk] = {}
        self.picture = Picture()
        self.entries: dict[tuple[str, int], Entry] = {}
        """The ledger, by job and number."""
        self._records = records
        self._clock = clock
        self._jobs = jobs
        self._limits = limits or Limits()
        self._key = key
        self._running: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for name in self._jobs:
                self._open(name, tasks)
            for name in self._jobs or (ALL,):
                tasks.create_task(self._watch_jobs(name, tasks))
                tasks.create_task(self._watch_seats(name, tasks))
            tasks.create_task(self._watch_spares(tasks))
            tasks.create_task(self._watch_loans(tasks))
            tasks.create_task(self._watch_entries())

    async def _watch_jobs(self, job: str, tasks: asyncio.TaskGroup) -> None:
        async for held in self._records.watch_job(job):
            name = held.value.name
            known = self.picture.jobs.get(name)
            if known is None or known.revision < held.revision:
                self.picture.jobs[name] = held
                self._arrange(name, tasks)

    async def _watch_seats(self, job: str, tasks: asyncio.TaskGroup) -> None:
        async for seats in self._records.watch_seats(job):
            others = {seat: held for seat, held in self.picture.seats.items() if job not in (ALL, seat[0])}
            names = {name for name, _ in (*seats, *self.picture.seats.keys() - others.keys())}
            self.picture.seats = {**others, **seats}
            for name in names:
                self._arrange(name, tasks)

    async def _watch_spares(self, tasks: asyncio.TaskGroup) -> None:
        async for spares in self._records.watch_spares():
            names = {held.value.job for known in (spares, self.picture.spares) for held in known.values()}
            self.picture.spares = _newest(spares, self.picture.spares)
            for name in names:
                self._arrange(name, tasks)

    async def _watch_loans(self, tasks: asyncio.TaskGroup) -> None:
        async for loans in self._records.watch_loans():
            names = {held.value.job for known in (loans, self.picture.loans) for held in known.values()}
            self.picture.loans = _newest(loans, self.picture.loans)
            for name in names:
                self._arrange(name, tasks)

    async def _watch_entries(self) -> None:
        async for entries in self._records.watch_entries():
            self.entries.update({(entry.job, entry.number): entry for entry in entries})

    def _arrange(self, name: str, tasks: asyncio.TaskGroup) -> None:
        """A desk for each job that needs one, and none for the others."""
        if self._jobs and name not in self._jobs:
            return
        if self._needed(name):
            self._open(name, tasks)
            self.desks[name].wake()
        elif name in self.desks and name not in self._jobs:
            del self.desks[name]
            self._running.pop(name).cancel()

    def _open(self, name: str, tasks: asyncio.TaskGroup) -> None:
        if name not in self.desks:
            desk = Desk(name, self._records, self.picture, self._clock, self._limits, self._key(name))
            self.desks[name] = desk
            self._running[name] = tasks.create_task(self._keep(desk))

    async def _keep(self, desk: Desk) -> None:
        """What is wrong with one job must not end the watching of all: its desk begins anew, as after a restart."""
        while True:
            try:
                await desk.run()
            except* Exception:  # noqa: BLE001 - whatever it is, it is told with its story
                _log.exception("job %s: its desk begins anew", desk.name)
            await asyncio.sleep(AGAIN_S)
            desk.forget()

    def _needed(self, name: str) -> bool:
        held = self.picture.jobs.get(name)
        seats = {rank: seat.value for (job, rank), seat in self.picture.seats.items() if job == name}
        offered = any(spare.value.job == name for spare in self.picture.spares.values())
        offered |= any(loan.value.job == name for loan in self.picture.loans.values())
        old = held.value if held else None
        return bool((old and not old.ended) or fresh(seats, old) or offered)


def _newest(news: dict[str, Held[T]], known: dict[str, Held[T]]) -> dict[str, Held[T]]:
    """An own write may be newer than what was on its way."""
    return {name: held if (old := known.get(name)) is None or old.revision <= held.revision else old
            for name, held in news.items()}  # fmt: skip
