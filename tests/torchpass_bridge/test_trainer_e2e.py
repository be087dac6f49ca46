"""A job whose hosts move, die and freeze ends with the same bits as an undisturbed one without torchpass."""

from __future__ import annotations

import asyncio
import random
import signal
from pathlib import Path
from typing import Any

import pytest
from running_job import RunningJob, run_stock, same

from torchpass_bridge.exits import FENCED, OVER, REFUSED

pytestmark = pytest.mark.e2e

WORLD = 4
PLAN = {"steps": 40}

Told = list[dict[str, Any]]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Told:
    """Stock DDP."""
    return run_stock(tmp_path_factory.mktemp("stock"), WORLD, PLAN)


def running(folder: Path, spares: int = 1, world: int = WORLD, **plan: Any) -> RunningJob:
    return RunningJob(folder, "j", world, spares, {**PLAN, "sleep_s": 0.01, **plan})


async def test_without_faults(tmp_path: Path, undisturbed: Told) -> None:
    assert len({t["hash"] for t in undisturbed}) == 1
    assert len({t["own"] for t in undisturbed}) == WORLD
    async with running(tmp_path, spares=0) as job:
        same(await job.finished(), undisturbed)
        assert await job.entries() == []


async def test_a_planned_move(tmp_path: Path, undisturbed: Told) -> None:
    async with running(tmp_path) as job:
        await job.until_spares(1)
        await job.until_step(10)
        assert (await job.ask("migrate", "h2")).taken
        told = await job.finished()
        same(told, undisturbed)
        assert [m.host for m in job.job.members] == ["h0", "h1", "s0", "h3"]  # type: ignore[union-attr]
        assert await job.code("h2") == OVER
        (entry,) = await job.entries()
        assert (entry.kind, entry.outcome, entry.steps_lost) == ("planned", "moved", 0)
        print(f"pause {entry.pause_s * 1e3:.0f} ms")


async def test_a_planned_move_waits_for_a_spare_that_is_being_prepared(tmp_path: Path, undisturbed: Told) -> None:
    async with running(tmp_path, spares=0, sleep_s=0.15) as job:
        await job.until_step(3)
        assert (await job.ask("migrate", "h2")).taken
        await job.until(lambda record: any(ask.waits for ask in record.waiting), "the move to wait")
        job.start_spare("s0")
        same(await job.finished(), undisturbed)
        assert [m.host for m in job.job.members] == ["h0", "h1", "s0", "h3"]  # type: ignore[union-attr]
        (entry,) = await job.entries()
        assert (entry.kind, entry.outcome, entry.steps_lost) == ("planned", "moved", 0)


@pytest.mark.parametrize("seed", range(4))
async def test_a_rank_is_killed_at_some_moment(tmp_path: Path, undisturbed: Told, seed: int) -> None:
    chance = random.Random(seed)
    victim = f"h{chance.randrange(WORLD)}"
    async with running(tmp_path) as job:
        await job.until_spares(1)
        await job.until_step(chance.randint(1, 25))
        await asyncio.sleep(chance.uniform(0.0, 0.04))
        job.signal(victim, signal.SIGKILL)
        same(await job.finished(), undisturbed)
        (entry,) = await job.entries()
        assert (entry.kind, entry.outcome, entry.ranks) == ("crash", "moved", (int(victim[1:]),))
        print(f"seed {seed}: {victim}, pause {entry.pause_s * 1e3:.0f} ms")


async def test_a_rank_is_killed_in_the_very_first_step(tmp_path: Path, undisturbed: Told) -> None:
    async with running(tmp_path) as job:
        await job.until(lambda record: record.generation == 1, "the job to begin")
        job.signal("h0", signal.SIGKILL)
        same(await job.finished(), undisturbed)


async def test_two_at_once_and_a_collective_after_the_optimizers_step(tmp_path: Path) -> None:
    plan = {**PLAN, "late_collective": True}
    undisturbed = run_stock(tmp_path / "stock", WORLD, plan)
    async with running(tmp_path / "job", spares=2, late_collective=True) as job:
        await job.until_spares(2)
        await job.until_step(15)
        job.signal("h1", signal.SIGKILL)
        job.signal("h3", signal.SIGKILL)
        same(await job.finished(), undisturbed)


async def test_some_had_applied_the_step_and_others_had_not(tmp_path: Path) -> None:
    """Rank 1 dies after its optimizer's step, while rank 3 waits for it before its own, and ranks 0 and 2 after theirs.

    So 0 and 2 have the state and lack the rest of the step; 3 lacks the step; of 1 is known what it had before it."""
    plan = {**PLAN, "late_collective": True, "early_for": 3}
    undisturbed = run_stock(tmp_path / "stock", WORLD, plan)
    folder = tmp_path / "job"
    async with running(folder, **plan, dies=[1, 15]) as job:
        same(await job.finished(), undisturbed)
    told = {host: (folder / f"{host}.log").read_text() for host in ("h0", "h2", "h3", "s0")}
    assert all("step 15: done alone" in words for words in told.values()), told
    assert [host for host, words in told.items() if "the state after step 15 taken over" in words] == ["h3", "s0"]


async def test_a_frozen_rank_is_replaced_and_ends_when_it_thaws(tmp_path: Path, undisturbed: Told) -> None:
    async with running(tmp_path) as job:
        await job.until_spares(1)
        await job.until_step(12)
        job.signal("h1", signal.SIGSTOP)
        await job.until(lambda record: record.generation == 2, "the next generation")
        job.signal("h1", signal.SIGCONT)
        assert await job.code("h1") == FENCED
        same(await job.finished(), undisturbed)
        assert not (tmp_path / "h1.json").exists()


async def test_a_spare_is_killed_while_it_takes_the_state(tmp_path: Path, undisturbed: Told) -> None:
    async with running(tmp_path, spares=2) as job:
        await job.until_spares(2)
        await job.until_step(10)
        job.signal("h2", signal.SIGKILL)
        await job.until(lambda record: record.incident is not None and bool(record.incident.claims), "a claim")
        first = next(host for host in ("s0", "s1") if _claimed(job, host))
        await job.until(
            lambda record: record.incident is not None and record.incident.phase in ("preparing", "moving"), "the copy"
        )
        job.signal(first, signal.SIGKILL)
        same(await job.finished(), undisturbed)
        assert first not in [m.host for m in job.job.members]  # type: ignore[union-attr]
        (entry,) = await job.entries()
        assert entry.attempts > 1


def _claimed(job: RunningJob, host: str) -> bool:
    assert job.job is not None
    assert job.job.incident is not None
    return any(member.host == host for _, member in job.job.incident.claims)


async def test_a_spare_that_does_not_fit_is_refused_and_the_job_trains_on(tmp_path: Path, undisturbed: Told) -> None:
    async with running(tmp_path, spares=0) as job:
        job.start_spare("s0", PLAN='{"steps": 40, "dropout": 0.2}')
        await job.until_step(5)
        assert await job.code("s0") == REFUSED
        assert "model" in (tmp_path / "s0.log").read_text()
        same(await job.finished(), undisturbed)
        assert await job.entries() == []
