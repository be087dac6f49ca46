"""A real job in real processes: ranks, spares, a store and a coordinator, each "host" a name of its own.

The processes are forked from one that has imported torch already: a start costs 50 ms instead of two seconds.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import job_script

from torchpass_bridge.coordinator import Coordinator
from torchpass_bridge.core.scene import Limits
from torchpass_bridge.desk import Clock
from torchpass_bridge.store.records import Records
from torchpass_bridge.store.server import Server
from torchpass_bridge.wire import Answer, Ask, Entry, Job, Status

KEY = "a key that the whole job knows"
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["__main__", "job_script", "torch._dynamo"])
"""Each would load these for itself else: pytest, as its parent's program, and what torch's first optimizer asks for."""

PATIENCE_S = 120.0
LIMITS = Limits(silent_s=1.5, gone_s=0.4)
"""Wider than they are: the machine that runs the tests may be busy with others, and silence of a second is no death."""


class RunningJob:
    """`world` ranks on hosts h0, h1, …; spares on hosts s0, s1, …; all in `folder`."""

    def __init__(
        self, folder: Path, name: str, world: int, spares: int, plan: dict[str, Any],
        told: dict[str, str] | None = None, beside: RunningJob | None = None,
    ) -> None:  # fmt: skip
        """`told`: to all processes, by their environment; `beside`: another one, whose store it has."""
        self.folder, self.name, self.world, self.plan, self.told = folder, name, world, plan, told or {}
        self._spares = spares
        self.processes: dict[str, Any] = {}
        self.records: Records
        self.job: Job | None = None
        self.heard: dict[str, Status] = {}
        self._beside = beside
        self._server = beside._server if beside else Server(folder / "store")
        self._tasks: list[asyncio.Task[None]] = []
        self._changed = asyncio.Event()

    async def __aenter__(self) -> RunningJob:
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self._beside:
            await self._server.start()
        self.records = await Records.connect(self._server.url, "test")
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(work()) for work in (self._watch, self._listen)]
        self._coordinator = loop.create_task(self._coordinate())
        for rank in range(self.world):
            self.start(f"h{rank}", RANK=str(rank))
        for number in range(self._spares):
            self.start_spare(f"s{number}")
        return self

    async def __aexit__(self, *_: object) -> None:
        for process in self.processes.values():
            if process.is_alive():
                process.kill()
            process.join()
        for task in (*self._tasks, self._coordinator):
            task.cancel()
        await asyncio.gather(*self._tasks, self._coordinator, return_exceptions=True)
        await self.records.close()
        if not self._beside:
            await self._server.stop()

    @property
    def store(self) -> str:
        return self._server.url

    # processes
    async def _coordinate(self) -> None:
        clock = Clock(time.monotonic, time.time)  # noqa: TID251 (the ledger's)
        await Coordinator(self.records, clock, (self.name,), LIMITS, key=lambda job: KEY.encode()).run()

    async def new_coordinator(self, after_s: float) -> None:
        """The one there was dies with all that it knew; another one comes."""
        self._coordinator.cancel()
        await asyncio.gather(self._coordinator, return_exceptions=True)
        await asyncio.sleep(after_s)
        self._coordinator = asyncio.get_running_loop().create_task(self._coordinate())

    async def restart_store(self) -> None:
        await self._server.kill()
        await self._server.start()

    def environment(self, host: str, **told: str) -> dict[str, str]:
        """What a process on a host is told."""
        return {
            "TORCHPASS_STORE": self._server.url, "TORCHPASS_JOB": self.name, "TORCHPASS_KEY": KEY,
            "TORCHPASS_HOST": host, "WORLD_SIZE": str(self.world), "PLAN": json.dumps(self.plan), **self.told,
            **told,
        }  # fmt: skip

    def start(self, host: str, **told: str) -> None:
        arguments = (self.environment(host, **told), self.folder / f"{host}.json")
        process = _context.Process(target=job_script.protected, args=arguments)
        process.start()
        self.processes[host] = process

    def start_spare(self, host: str, **told: str) -> None:
        self.start(host, TORCHPASS_SPARE="1", **told)

    def signal(self, host: str, what: signal.Signals) -> None:
        os.kill(self.processes[host].pid, what)

    async def code(self, host: str) -> int:
        """Its exit status, once it has ended."""
        await self._until(lambda: not self.processes[host].is_alive(), f"{host} to end")
        self.processes[host].join()
        return int(self.processes[host].exitcode)

    # what is so
    async def _watch(self) -> None:
        async for held in self.records.watch_job(self.name):
            self.job = held.value
            self._changed.set()

    async def _listen(self) -> None:
        async for status in self.records.statuses(self.name):
            self.heard[status.member] = status
            self._changed.set()

    async def _until(self, is_so: Callable[[], bool], what: str) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not is_so():
                    self._changed.clear()
                    try:
                        async with asyncio.timeout(0.02):
                            await self._changed.wait()
                    except TimeoutError:
                        pass
        except TimeoutError:
            raise AssertionError(f"waited {PATIENCE_S:g} s for {what}\n{self.story()}") from None

    def story(self) -> str:
        """For a test that fails."""
        logs = [f"--- {path.name}\n{path.read_text()[-3000:]}" for path in sorted(self.folder.glob("*.log"))]
        return "\n".join([repr(self.job), *map(repr, self.heard.values()), *logs])

    async def until_step(self, step: int) -> None:
        await self._until(
            lambda: any(s.step >= step and s.doing != "waiting" for s in self.heard.values()), f"step {step}"
        )

    async def until_spares(self, count: int) -> None:
        """So many wait, and are offered: free ones."""
        free: set[str] = set()
        await self._until(
            lambda: sum(s.doing == "waiting" for s in self.heard.values()) >= count, f"{count} spares that wait"
        )
        async with asyncio.timeout(PATIENCE_S):
            while len(free) < count:
                held = await self.records.spares()
                free = {name for name, one in held.items() if not one.value.claimed_by}
                await asyncio.sleep(0.05)
        await self._until(
            lambda: sum(name in free for name, s in self.heard.items() if s.doing == "waiting") >= count,
            "their statuses",
        )

    async def until(self, is_so: Callable[[Job], bool], what: str) -> None:
        await self._until(lambda: self.job is not None and is_so(self.job), what)

    async def ask(self, what: str, host: str, number: int = 0) -> Answer:
        ask = Ask(f"t-{what}-{host}-{number}", what, host, unlimited=True)  # type: ignore[arg-type]
        return await self.records.ask(self.name, ask, 5.0)

    def holder(self, host: str) -> str:
        """The id of the member on a host."""
        assert self.job is not None
        found = [*self.job.members, *(m for _, m in (self.job.incident.claims if self.job.incident else ()))]
        return next(m.id for m in found if m.host == host)

    async def finished(self) -> list[dict[str, Any]]:
        """By rank, what each told at its end."""
        await self.until(lambda job: bool(job.ended), "the job to end")
        assert self.job is not None
        assert self.job.ended == "finished", self.story()
        hosts = [m.host for m in self.job.members]
        for host in hosts:
            assert await self.code(host) == 0, f"{host}\n{self.story()}"
        told = [json.loads((self.folder / f"{host}.json").read_text()) for host in hosts]
        assert [t["rank"] for t in told] == list(range(self.world))
        return told

    async def entries(self) -> list[Entry]:
        return await self.records.entries(0.0, self.name)


def run_stock(folder: Path, world: int, plan: dict[str, Any]) -> list[dict[str, Any]]:
    """The same script without torchpass, undisturbed."""
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for rank in range(world):
        environment = {"RANK": str(rank), "WORLD_SIZE": str(world), "PLAN": json.dumps(plan)}
        made.append(_context.Process(target=job_script.stock, args=(environment, folder / f"{rank}.json")))
    for process in made:
        process.start()
    for process in made:
        process.join(PATIENCE_S)
        assert process.exitcode == 0
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(world)]


def same(told: list[dict[str, Any]], undisturbed: list[dict[str, Any]]) -> None:
    """To the last bit: weights, optimizer and scheduler (each rank's part of them), and each rank's generators and
    position in the data."""
    assert [t["hash"] for t in told] == [t["hash"] for t in undisturbed]
    assert [t["own"] for t in told] == [t["own"] for t in undisturbed]
