"""Keeps a loan: a host on which a preemptible job runs, for when another job needs a spare and has none.

Nothing of the other job runs here before it is called for. Then the lender is asked to stop with a snapshot, and once
it has, the other job's script is started as a spare. When that has ended the host is offered again, by which the lender
may go on (`ranks`).
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import msgspec

from torchpass_bridge.asking import ANSWER_S
from torchpass_bridge.core.founding import fresh
from torchpass_bridge.exits import FENCED, OVER, REFUSED, SAVED
from torchpass_bridge.launching import AGAIN_S, Watched, run
from torchpass_bridge.spare import MAX_WAIT_S, SOUND_S
from torchpass_bridge.store.records import Conflict, Held, NoCoordinator, Records, StoreAway
from torchpass_bridge.wire import BEAT_S, GIVEN_BACK, Ask, Job, Loan, Status

BEGINS_S = 0.5
"""Between two looks at a lender that is about to begin: it can be stopped when it has."""
MOST_REST_S = 3600.0

_replace = msgspec.structs.replace


class Lending:
    """`command`: the script of the job that gets the host; `tell`: for people, a line at a time."""

    def __init__(
        self,
        records: Records,
        loan: Loan,
        command: Sequence[str],
        environment: Mapping[str, str],
        tell: Callable[[str], None],
    ) -> None:
        self._records, self._command, self._tell = records, list(command), tell
        self._environment = {**environment, "TORCHPASS_SPARE": "1", "TORCHPASS_LENT_FROM": loan.name}
        self._loan = loan
        """As this process has written it, or will, when the store has none."""
        self._held = Held(loan, 0)
        self._offering = True
        self._begun = self._over = False
        self._watched = Watched()

    async def run(self) -> int:
        """Until the job is over that it is for, its script is refused, or this is cancelled. The exit status."""
        try:
            async with asyncio.TaskGroup() as tasks:
                beside = [tasks.create_task(work()) for work in (self._beat, self._watch, self._watch_job)]
                code = await self._serve()
                for task in beside:
                    task.cancel()
            return code
        finally:
            self._offering = False
            await self._withdraw()

    async def _serve(self) -> int:
        failures = 0
        while True:
            await self._watched.until(lambda: self._over or bool(self._refused) or self._state == "called")
            if self._over or self._refused:
                self._tell(f"no loan any more: {self._refused or f'{self._loan.job} has finished'}")
                return OVER
            self._tell(f"{self._held.value.called_by} needs this host: {self._loan.lender} is asked to stop")
            why = await self._freed()
            if why or not await self._write("lent"):
                self._tell(f"not lent: {why or 'it is not needed any more'}")
                if why:
                    await self._write("offered", why)
                continue
            began_s = time.monotonic()
            try:
                code = await run(self._command, self._environment)
            except OSError as error:
                self._tell(f"{self._command[0]}: {error.strerror}")
                return 127
            if code == REFUSED and not await self._given_back():
                self._tell(f"no loan any more: the script was refused by {self._loan.job}, and would be again")
                return REFUSED
            failures = 0 if time.monotonic() - began_s >= SOUND_S else failures
            if code in (OVER, FENCED, SAVED, REFUSED):
                self._tell(f"given back to {self._loan.lender}")
                await self._write("offered")
            else:
                await self._rest(code, failures)
                failures += 1

    @property
    def _refused(self) -> str:
        return self._held.value.refused

    @property
    def _state(self) -> str:
        return self._held.value.state

    # the lender
    async def _freed(self) -> str:
        """Once nothing of the lender runs: why not; empty: it is so, or nobody wants to know any more."""
        stopping = asyncio.ensure_future(self._stopped())
        unwanted = asyncio.ensure_future(self._watched.until(lambda: self._state != "called"))
        try:
            await asyncio.wait({stopping, unwanted}, return_when=asyncio.FIRST_COMPLETED)
            return stopping.result() if stopping.done() else ""
        finally:
            for task in (stopping, unwanted):
                task.cancel()
            await asyncio.gather(stopping, unwanted, return_exceptions=True)

    async def _stopped(self) -> str:
        lender = self._loan.lender
        while True:
            try:
                if (job := await self._job()) is None or job.ended:
                    if not fresh(await self._records.seats(lender), job):
                        return ""
                    await asyncio.sleep(BEGINS_S)
                    continue
                ask = Ask(secrets.token_hex(8), "stop", "", cause=f"{self._loan.host} is lent to {self._loan.job}")
                answer = await self._records.ask(lender, ask, 10 * ANSWER_S)
                if answer.taken:
                    return await self._saved()
                if (job := await self._job()) is not None and not job.ended:
                    return answer.why
            except StoreAway:
                await asyncio.sleep(AGAIN_S)
            except NoCoordinator as error:
                return str(error)

    async def _saved(self) -> str:
        """The job ends with its snapshot, or trains on without."""
        async for held in self._records.watch_job(self._loan.lender):
            job = held.value
            if job.ended:
                return ""
            if job.saving is None:
                return job.saved[-1].why if job.saved else "it trains on"
        raise AssertionError("a watcher does not end")

    async def _job(self) -> Job | None:
        held = await self._records.job(self._loan.lender)
        return held.value if held else None

    # the loan's record
    async def _write(self, state: Literal["offered", "lent"], why: str = "") -> bool:
        """False: it was to be lent, and the call was taken back."""
        while True:
            try:
                held = await self._records.loan(self._loan.id)
                if state == "lent" and (held is None or held.value.state == "offered"):
                    return False
                self._loan = _replace(held.value if held else self._loan, state=state, why=why)
                revision = await self._records.put_loan(self._loan, held.revision if held else 0)
                self._take(Held(self._loan, revision))
                return True
            except StoreAway:
                await asyncio.sleep(AGAIN_S)
            except Conflict:
                pass

    def _take(self, held: Held[Loan]) -> None:
        if held.revision > self._held.revision:
            self._held = held
            self._watched.change()

    async def _rest(self, code: int, failures: int) -> None:
        """Something is wrong with the script here, or with the host: the lender has it for a while."""
        how = f"signal {-code}" if code < 0 else f"status {code}"
        wait_s = min(MAX_WAIT_S * 2.0**failures, MOST_REST_S)
        self._tell(f"the script ended with {how}; given back to {self._loan.lender}, offered again in {wait_s:g} s")
        self._loan = _replace(self._loan, state="offered", why=f"its script ended with {how}")
        self._offering = False
        await self._withdraw()
        await asyncio.sleep(wait_s)
        self._offering = True
        await self._offer()

    async def _offer(self) -> None:
        while self._offering:
            try:
                self._take(Held(self._loan, await self._records.put_loan(self._loan, 0)))
                return
            except Conflict:
                return
            except StoreAway:
                await asyncio.sleep(AGAIN_S)

    async def _withdraw(self) -> None:
        try:
            await self._records.drop_loan(self._loan.id, None)
        except StoreAway as error:
            self._tell(f"the loan is left to be forgotten: {error}")

    async def _given_back(self) -> bool:
        """Whether its spare was refused because it is not needed any more."""
        while True:
            try:
                spares = [held.value for held in (await self._records.spares()).values()]
                return any(s.member.lent_from == self._loan.name and s.refused == GIVEN_BACK for s in spares)
            except StoreAway:
                await asyncio.sleep(AGAIN_S)

    # beside
    async def _watch(self) -> None:
        """A coordinator that has not heard of it for long forgets it: then it is offered again."""
        async for loans in self._records.watch_loans():
            if (held := loans.get(self._loan.id)) is not None:
                self._take(held)
            else:
                await self._offer()

    async def _watch_job(self) -> None:
        async for held in self._records.watch_job(self._loan.job):
            self._begun = self._begun or not held.value.ended
            self._over = self._begun and held.value.ended == "finished"
            self._watched.change()

    async def _beat(self) -> None:
        sequence = 0
        while True:
            sequence += 1
            self._records.say(self._loan.job, Status(self._loan.id, sequence, "waiting"))
            await asyncio.sleep(BEAT_S)
