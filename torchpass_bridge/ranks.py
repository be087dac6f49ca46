"""Keeps a rank of a job that may be stopped: starts its script, and again, from the job's latest snapshot, when the job
was stopped and all its hosts are its own.

While the job trains a rank is never started again: another member has it by then, or will. When none of its ranks is
heard any more (the power was gone) all launchers start theirs, unless the one of before lives on this very host; the
coordinator lets a new run begin once all of them are there. If a rank of before is heard again, the new ones end.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from torchpass_bridge.exits import OVER, SAVED
from torchpass_bridge.launching import AGAIN_S, Watched, run
from torchpass_bridge.spare import SOUND_S, after
from torchpass_bridge.store.records import Records, StoreAway
from torchpass_bridge.wire import Job, Loan

GRACE_S = 5.0
"""For the script to end by itself when its job was stopped."""
LATEST = "latest"


class Rank:
    """`tell`: for people, a line at a time."""

    def __init__(
        self,
        records: Records,
        job: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        tell: Callable[[str], None],
    ) -> None:
        self._records, self._name, self._command, self._tell = records, job, list(command), tell
        self._environment = {"TORCHPASS_RESTORE": LATEST, **environment}
        self._host = environment.get("TORCHPASS_HOST") or socket.gethostname()
        self._rank = int(environment["RANK"])
        self._job: Job | None = None
        self._loans: dict[str, Loan] = {}
        self._begun = False
        self._watched = Watched()

    async def run(self) -> int:
        """Until the job is over, the rank has left this host in good order, or the script is refused: exit status."""
        await self._look()
        async with asyncio.TaskGroup() as tasks:
            beside = [tasks.create_task(work()) for work in (self._watch_job, self._watch_loans)]
            code = await self._keep()
            for task in beside:
                task.cancel()
        return code

    async def _keep(self) -> int:
        failures = 0
        while True:
            await self._until_free()
            if self._begun and self._job is not None and self._job.ended == "finished":
                self._tell(f"{self._name} has finished")
                return OVER
            began_s = time.monotonic()
            try:
                code = await self._once()
            except OSError as error:
                self._tell(f"{self._command[0]}: {error.strerror}")
                return 127
            self._environment["TORCHPASS_RESTORE"] = LATEST
            if code is None:
                continue
            if code == SAVED:
                self._tell(f"{self._name} was stopped with a snapshot, and goes on from there")
                failures = 0
                continue
            lived_s = time.monotonic() - began_s
            further = after(code, lived_s, failures)
            failures = failures + 1 if lived_s < SOUND_S else 0
            if further.wait_s is None:
                self._tell(f"not started again: {further.why}")
                return further.code
            self._tell(f"it ended with {code}; started again when {self._name} begins anew")
            await asyncio.sleep(further.wait_s)

    async def _until_free(self) -> None:
        """Its job does not run, and all its hosts are its own."""
        said = ""

        def so() -> bool:
            nonlocal said
            lent = self._called_or_lent()
            words = f"{lent[0].host} is {lent[0].state} ({lent[0].called_by})" if lent else f"{self._name} trains"
            if (lent or self._runs()) and words != said:
                said = words
                self._tell(f"waits: {words}")
            return not lent and not self._runs()

        await self._watched.until(so)

    async def _once(self) -> int | None:
        """The script's exit status. None: it was ended, for a host is lent and its job does not run, or the run of
        before is heard again."""
        script = asyncio.ensure_future(run(self._command, self._environment))
        beside = asyncio.ensure_future(self._until_not_wanted())
        try:
            await asyncio.wait({script, beside}, return_when=asyncio.FIRST_COMPLETED)
            if script.done():
                return script.result()
            self._tell(f"it is ended: {beside.result()}")
            return None
        finally:
            for task in (script, beside):
                task.cancel()
            await asyncio.gather(script, beside, return_exceptions=True)

    async def _until_not_wanted(self) -> str:
        """Why the script is to end."""
        before = self._job if self._job is not None and self._job.unheard_unix_s else None

        def why() -> str:
            if not self._runs() and any(loan.state == "lent" for loan in self._called_or_lent()):
                return "a host of its job is lent"
            job = self._job
            if before and job and not job.over and job.generation == before.generation:
                return f"ranks of {self._name} are heard again"
            return ""

        while True:
            await self._watched.until(lambda: bool(why()))
            await asyncio.sleep(GRACE_S)
            if found := why():
                return found

    def _runs(self) -> bool:
        """Its rank is held, as far as can be known here."""
        job = self._job
        if job is None or job.ended:
            return False
        if not job.unheard_unix_s:
            return True
        held = job.members[self._rank] if self._rank < job.world else None
        return held is not None and held.host == self._host and _lives(held.pid, self._name)

    def _called_or_lent(self) -> list[Loan]:
        return [loan for loan in self._loans.values() if loan.lender == self._name and loan.state != "offered"]

    async def _look(self) -> None:
        while True:
            try:
                held = await self._records.job(self._name)
                self._loans = {name: one.value for name, one in (await self._records.loans()).items()}
            except StoreAway:
                await asyncio.sleep(AGAIN_S)
            else:
                self._job = held.value if held else None
                return

    async def _watch_job(self) -> None:
        async for held in self._records.watch_job(self._name):
            self._job = held.value
            self._begun = self._begun or not held.value.ended
            self._watched.change()

    async def _watch_loans(self) -> None:
        async for loans in self._records.watch_loans():
            self._loans = {name: one.value for name, one in loans.items()}
            self._watched.change()


def _lives(pid: int, job: str) -> bool:
    """Whether a process of that job has this number, and not another one that was started since."""
    try:
        told = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except FileNotFoundError:
        return False
    except OSError:  # another user's: it may be the one
        return True
    return f"TORCHPASS_JOB={job}".encode() in told
