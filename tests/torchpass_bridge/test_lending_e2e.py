"""A host of a preemptible job is lent to another one, and both end with the bits of jobs that were left alone."""

from __future__ import annotations

import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from commands import told, torchpass
from kept_ranks import SCRIPT, Launched, Preemptible
from running_job import LIMITS, RunningJob, run_stock, same

from torchpass_bridge import snapshot

pytestmark = pytest.mark.e2e

WORLD = 2
PLAN = {"steps": 150}

Told = list[dict[str, Any]]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Told:
    """Stock DDP; both jobs have the same steps to do."""
    return run_stock(tmp_path_factory.mktemp("stock"), WORLD, PLAN)


def lend(high: RunningJob, host: str) -> Launched:
    """A host of `low` may be had for `high`."""
    arguments = ("spare", "--lent-from", "low", "--", sys.executable, "-c", SCRIPT, str(high.folder / f"{host}.json"))
    return Launched(arguments, high.environment(host), high.folder / f"{host}.launcher.log")


@asynccontextmanager
async def running(folder: Path, **plan: Any) -> AsyncIterator[tuple[RunningJob, RunningJob]]:
    """The job that will need a host, and the one that has them; both train."""
    shared = {"TORCHPASS_SNAPSHOTS": str(folder / "snapshots")}
    async with Preemptible(folder / "low", "low", WORLD, 0, {**PLAN, "sleep_s": 0.1}, shared) as low:
        await low.until_step(5)
        async with RunningJob(folder / "high", "high", WORLD, 0, {**PLAN, **plan}, shared, low) as high:
            high.processes["a1"] = lend(high, "a1")
            async for loans in high.records.watch_loans():
                if loans:
                    break
            await high.until_step(10)
            yield high, low


async def state(job: RunningJob) -> str:
    found = told(await torchpass("status", job.name, "--json", store=job.store))["jobs"][0]["loans"]
    return str(found[0]["state"]) if found else ""


async def test_a_host_is_lent_when_a_rank_dies_and_the_other_job_goes_on_afterwards(
    tmp_path: Path, undisturbed: Told
) -> None:
    async with running(tmp_path, sleep_s=0.02) as (high, low):
        assert await state(high) == "offered"
        high.signal("h1", signal.SIGKILL)
        same(await high.finished(), undisturbed)
        assert high.job is not None
        assert [m.host for m in high.job.members] == ["h0", "a1"]
        assert high.job.members[1].lent_from.startswith("low/")
        (entry,) = await high.entries()
        assert (entry.kind, entry.outcome, entry.steps_lost) == ("crash", "moved", 0)
        print(f"lent after {entry.ended_unix_s - entry.began_unix_s:.1f} s")
        same(await low.finished(), undisturbed)
        assert low.job is not None
        assert (low.job.generation, low.job.saved[-1].number) == (2, 1)
        manifest = snapshot.read(Path(low.job.saved[-1].path))
        assert 10 < manifest.step < PLAN["steps"]
        assert manifest.cause == "a1 is lent to high"
        assert await low.entries() == []


async def test_it_goes_back_while_the_job_trains_when_that_has_a_spare_of_its_own(
    tmp_path: Path, undisturbed: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = type(LIMITS)(silent_s=1.5, gone_s=0.4, give_back_s=1.0)
    monkeypatch.setattr("running_job.LIMITS", limits)
    async with running(tmp_path, sleep_s=0.15) as (high, low):
        high.signal("h1", signal.SIGKILL)
        await high.until(lambda job: job.generation == 2 and not job.incident, "its rank is on the lent host")
        high.start_spare("s0")
        await low.until(lambda job: job.generation == 2, "the other job goes on")
        assert high.job is not None
        assert not high.job.ended
        same(await high.finished(), undisturbed)
        assert [m.host for m in high.job.members] == ["h0", "s0"]
        crash, back = await high.entries()
        assert (back.trigger, back.outcome, back.hosts) == ("lending", "moved", ("a1",))
        print(f"pause {crash.pause_s:.2f} s for want of a host, {back.pause_s * 1e3:.0f} ms when it goes back")
        same(await low.finished(), undisturbed)
