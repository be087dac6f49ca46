"""Jobs under FSDP2 and HSDP whose ranks move, die and freeze end with the bits of undisturbed stock ones."""

from __future__ import annotations

import asyncio
import random
import signal
from pathlib import Path
from typing import Any

import pytest
from running_job import RunningJob, run_stock, same

from torchpass_bridge.exits import FENCED, OVER

pytestmark = pytest.mark.e2e

WORLD = 4
FSDP = {"steps": 40, "replicate": 1}
HSDP = {"steps": 40, "replicate": 2}

Told = list[dict[str, Any]]


@pytest.fixture(scope="module")
def fsdp(tmp_path_factory: pytest.TempPathFactory) -> Told:
    return run_stock(tmp_path_factory.mktemp("fsdp"), WORLD, FSDP)


@pytest.fixture(scope="module")
def hsdp(tmp_path_factory: pytest.TempPathFactory) -> Told:
    return run_stock(tmp_path_factory.mktemp("hsdp"), WORLD, HSDP)


def running(folder: Path, plan: dict[str, Any], spares: int = 1, **told: str) -> RunningJob:
    return RunningJob(folder, "j", WORLD, spares, {"sleep_s": 0.01, **plan}, told)


async def test_without_faults(tmp_path: Path, fsdp: Told, hsdp: Told) -> None:
    assert len({t["hash"] for t in fsdp}) == WORLD
    assert len({t["hash"] for t in hsdp}) == WORLD // 2
    for plan, undisturbed in ((FSDP, fsdp), (HSDP, hsdp)):
        async with running(tmp_path / str(plan["replicate"]), plan, spares=0) as job:
            same(await job.finished(), undisturbed)
            assert await job.entries() == []


@pytest.mark.parametrize("plan", [FSDP, HSDP], ids=["fsdp", "hsdp"])
async def test_a_planned_move(tmp_path: Path, request: pytest.FixtureRequest, plan: dict[str, Any]) -> None:
    undisturbed = request.getfixturevalue("fsdp" if plan is FSDP else "hsdp")
    async with running(tmp_path, plan) as job:
        await job.until_spares(1)
        await job.until_step(10)
        assert (await job.ask("migrate", "h2")).taken
        same(await job.finished(), undisturbed)
        assert [m.host for m in job.job.members] == ["h0", "h1", "s0", "h3"]  # type: ignore[union-attr]
        assert await job.code("h2") == OVER
        (entry,) = await job.entries()
        assert (entry.kind, entry.outcome, entry.steps_lost) == ("planned", "moved", 0)
        print(f"pause {entry.pause_s * 1e3:.0f} ms")


@pytest.mark.parametrize("seed", range(4))
async def test_a_rank_is_killed_at_some_moment_and_its_part_comes_from_its_buddy(
    tmp_path: Path, fsdp: Told, seed: int
) -> None:
    chance = random.Random(seed)
    victim = f"h{chance.randrange(WORLD)}"
    async with running(tmp_path, FSDP) as job:
        await job.until_spares(1)
        await job.until_step(chance.randint(2, 25))
        await asyncio.sleep(chance.uniform(0.0, 0.04))
        job.signal(victim, signal.SIGKILL)
        same(await job.finished(), fsdp)
        (entry,) = await job.entries()
        assert (entry.kind, entry.outcome, entry.ranks) == ("crash", "moved", (int(victim[1:]),))
        assert entry.steps_lost <= 1
        print(f"seed {seed}: {victim}, pause {entry.pause_s * 1e3:.0f} ms, lost {entry.steps_lost}")


async def test_a_step_that_some_had_applied_is_taken_back(tmp_path: Path) -> None:
    """Rank 1 dies after its optimizer's step, as 0 and 2 have done theirs, while 3 has not. Of rank 1's part there is
    only what it was before: 0 and 2 go back, and the step is done again."""
    plan = {**FSDP, "late_collective": True, "early_for": 3}
    undisturbed = run_stock(tmp_path / "stock", WORLD, plan)
    folder = tmp_path / "job"
    async with running(folder, {**plan, "dies": [1, 15]}) as job:
        same(await job.finished(), undisturbed)
        (entry,) = await job.entries()
        assert (entry.outcome, entry.steps_lost) == ("moved", 1)
    told = {host: (folder / f"{host}.log").read_text() for host in ("h0", "h2", "h3", "s0")}
    assert [host for host, words in told.items() if "the state after step 14 taken back" in words] == ["h0", "h2"]
    assert [host for host, words in told.items() if "the state after step 14 taken over" in words] == ["s0"]


async def test_a_frozen_rank_is_replaced_and_ends_when_it_thaws(tmp_path: Path, fsdp: Told) -> None:
    async with running(tmp_path, FSDP) as job:
        await job.until_spares(1)
        await job.until_step(12)
        job.signal("h1", signal.SIGSTOP)
        await job.until(lambda record: record.generation == 2, "the next generation")
        job.signal("h1", signal.SIGCONT)
        assert await job.code("h1") == FENCED
        same(await job.finished(), fsdp)


async def test_one_after_the_other(tmp_path: Path, fsdp: Told) -> None:
    """The second one is killed by whose buddy the first one's place was taken, or whose copies went with it."""
    async with running(tmp_path, FSDP, spares=2) as job:
        await job.until_spares(2)
        await job.until_step(8)
        assert (await job.ask("migrate", "h2")).taken
        await job.until(lambda record: record.generation == 2, "the next generation")
        job.signal("h1", signal.SIGKILL)
        same(await job.finished(), fsdp)
        assert [entry.outcome for entry in await job.entries()] == ["moved", "moved"]


@pytest.mark.parametrize("seed", range(2))
async def test_without_buddies_a_part_comes_from_its_replica(tmp_path: Path, hsdp: Told, seed: int) -> None:
    chance = random.Random(seed)
    async with running(tmp_path, HSDP, TORCHPASS_BUDDY="0") as job:
        await job.until_spares(1)
        await job.until_step(chance.randint(2, 25))
        await asyncio.sleep(chance.uniform(0.0, 0.04))
        job.signal(f"h{chance.randrange(WORLD)}", signal.SIGKILL)
        same(await job.finished(), hsdp)


async def test_without_buddies_and_replicas_a_part_is_lost_with_its_rank(tmp_path: Path) -> None:
    async with running(tmp_path, {**FSDP, "steps": 1000}, TORCHPASS_BUDDY="0") as job:
        await job.until_spares(1)
        await job.until_step(10)
        job.signal("h1", signal.SIGKILL)
        await job.until(lambda record: bool(record.ended), "the end")
        assert job.job is not None
        assert job.job.ended == "lost"
        (entry,) = await job.entries()
        assert entry.outcome == "lost"
        assert "part 1 at no step" in entry.why
