"""A job that is saved and goes on elsewhere ends with the same bits as one that was left alone."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from commands import told, torchpass
from running_job import LIMITS, RunningJob, run_stock, same

from torchpass_bridge import snapshot
from torchpass_bridge.exits import REFUSED, SAVED

pytestmark = pytest.mark.e2e

WORLD, PLAN = 4, {"steps": 60}

Told = list[dict[str, Any]]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Told:
    """Stock DDP."""
    return run_stock(tmp_path_factory.mktemp("stock"), WORLD, PLAN)


def running(folder: Path, shared: Path, spares: int = 0, **told: str) -> RunningJob:
    return RunningJob(
        folder, "j", WORLD, spares, {**PLAN, "sleep_s": 0.02}, {"TORCHPASS_SNAPSHOTS": str(shared), **told}
    )


async def saved(job: RunningJob, *options: str) -> Path:
    result = await torchpass("snapshot", job.name, "--json", *options, store=job.store)
    assert result.exit_code == 0, result.output + job.story()
    return Path(told(result)["snapshot"]["path"])


async def stopped(job: RunningJob, hosts: tuple[str, ...]) -> Path:
    """The job has ended with a snapshot: where it is."""
    await job.until(lambda record: bool(record.ended), "the job to end")
    assert job.job is not None
    assert job.job.ended == "stopped", job.story()
    for host in hosts:
        assert await job.code(host) == SAVED
    return Path(job.job.saved[-1].path)


async def test_it_trains_on_while_it_is_saved_and_another_run_goes_on_from_there(
    tmp_path: Path, undisturbed: Told
) -> None:
    shared = tmp_path / "shared"
    async with running(tmp_path / "first", shared) as job:
        await job.until_step(10)
        first = await saved(job)
        second = await saved(job)
        same(await job.finished(), undisturbed)
        assert await job.entries() == []
        assert job.job is not None
        assert job.job.generation == 1
    steps = [snapshot.read(path).step for path in (first, second)]
    assert 10 < steps[0] < steps[1] < PLAN["steps"]
    for path in (first, second):
        async with running(tmp_path / path.name, shared, TORCHPASS_RESTORE=str(path)) as job:
            same(await job.finished(), undisturbed)
        assert f"begins with {path}" in (tmp_path / path.name / "h0.log").read_text()


async def test_it_is_stopped_with_a_snapshot_and_goes_on_with_the_latest(tmp_path: Path, undisturbed: Told) -> None:
    shared = tmp_path / "shared"
    async with running(tmp_path / "first", shared, spares=1, TORCHPASS_RESTORE="latest") as job:
        await job.until_step(10)
        path = await saved(job, "--stop")
        assert await stopped(job, ("h0", "h1", "h2", "h3", "s0")) == path
    async with running(tmp_path / "second", shared, spares=1, TORCHPASS_RESTORE="latest") as job:
        await job.until_spares(1)
        await job.until_step(snapshot.read(path).step + 5)
        job.signal("h2", signal.SIGKILL)  # who has begun so moves as others do
        same(await job.finished(), undisturbed)


@pytest.mark.parametrize("replicate", [1, 2])
async def test_each_part_of_a_sharded_state_is_saved_and_goes_back_to_the_rank_that_holds_it(
    tmp_path: Path, replicate: int
) -> None:
    """FSDP2, and HSDP: with two replicas each writes half of its part."""
    shared, plan = tmp_path / "shared", {**PLAN, "replicate": replicate}
    undisturbed = run_stock(tmp_path / "stock", WORLD, plan)
    told = {"TORCHPASS_SNAPSHOTS": str(shared), "TORCHPASS_RESTORE": "latest"}
    async with RunningJob(tmp_path / "first", "j", WORLD, 0, {**plan, "sleep_s": 0.02}, told) as job:
        await job.until_step(10)
        path = await saved(job, "--stop")
        await stopped(job, ("h0", "h1", "h2", "h3"))
    manifest = snapshot.read(path)
    shards = {part.rank: [told.shard for told in part.tensors] for part in manifest.parts}
    assert shards == {rank: [rank % (WORLD // replicate)] for rank in range(WORLD)}
    async with RunningJob(tmp_path / "second", "j", WORLD, 0, plan, told) as job:
        same(await job.finished(), undisturbed)
    assert f"begins with {path}" in (tmp_path / "second" / "h3.log").read_text()


@pytest.mark.parametrize("victims", [("h1",), ("h0", "h1")])
async def test_when_more_has_failed_than_spares_can_carry_the_job_is_saved(
    tmp_path: Path, undisturbed: Told, victims: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What belonged to the dead ranks alone comes from who had kept it; of two neighbours one's keeper is dead too."""
    monkeypatch.setattr("running_job.LIMITS", type(LIMITS)(silent_s=1.5, gone_s=0.4, spare_wait_s=1.0))
    shared = tmp_path / "shared"
    async with running(tmp_path / "first", shared) as job:
        await job.until_step(20)
        for victim in victims:
            job.signal(victim, signal.SIGKILL)
        path = await stopped(job, tuple(host for host in ("h0", "h1", "h2", "h3") if host not in victims))
        (entry,) = await job.entries()
        assert (entry.outcome, entry.ranks) == ("stopped", tuple(int(victim[1:]) for victim in victims))
        assert str(path) in entry.why
    manifest = snapshot.read(path)
    lost = [rank for rank in range(WORLD) if manifest.own_of(rank) is None]
    async with running(tmp_path / "second", shared, TORCHPASS_RESTORE=str(path)) as job:
        ended = await job.finished()
    assert len({t["hash"] for t in ended}) == 1
    if len(victims) == 1:
        assert lost == []
        same(ended, undisturbed)
    elif lost:
        assert "seeded anew" in (tmp_path / "second" / f"h{lost[0]}.log").read_text()
    else:
        same(ended, undisturbed)


@pytest.mark.parametrize("replicate", [1, 2])
async def test_a_part_whose_rank_is_gone_is_saved_by_its_buddy_or_by_its_replica(
    tmp_path: Path, replicate: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("running_job.LIMITS", type(LIMITS)(silent_s=1.5, gone_s=0.4, spare_wait_s=1.0))
    shared, plan = tmp_path / "shared", {**PLAN, "replicate": replicate}
    undisturbed = run_stock(tmp_path / "stock", WORLD, plan)
    told = {"TORCHPASS_SNAPSHOTS": str(shared)}
    async with RunningJob(tmp_path / "first", "j", WORLD, 0, {**plan, "sleep_s": 0.02}, told) as job:
        await job.until_step(20)
        job.signal("h1", signal.SIGKILL)
        path = await stopped(job, ("h0", "h2", "h3"))
    manifest = snapshot.read(path)
    written = sorted((held.shard, part.rank) for part in manifest.parts for held in part.tensors)
    assert {shard for shard, _ in written} == set(range(WORLD // replicate))
    assert 1 not in {rank for _, rank in written}
    note = manifest.own_of(1)
    assert note is not None
    assert manifest.step - 1 <= note.step <= manifest.step  # a step behind: its forward pass is done once more
    async with RunningJob(tmp_path / "second", "j", WORLD, 0, plan, {**told, "TORCHPASS_RESTORE": str(path)}) as job:
        same(await job.finished(), undisturbed)


async def test_what_cannot_be_gone_on_with_is_refused_with_the_reason(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    async with running(tmp_path / "first", shared) as job:
        await job.until_step(5)
        path = await saved(job, "--stop")
        await stopped(job, ("h0",))

    async def refused(name: str, words: str, path: Path = path, **told: str) -> None:
        folder = tmp_path / name
        async with RunningJob(folder, "j", 0, 0, PLAN, {"TORCHPASS_SNAPSHOTS": str(shared)}) as job:
            job.start("h0", RANK="0", TORCHPASS_RESTORE=str(path), **{"WORLD_SIZE": str(WORLD), **told})
            assert await job.code("h0") == REFUSED
        assert words in (folder / "h0.log").read_text()

    await refused("model", "laid out in another way", PLAN=json.dumps({**PLAN, "width": 32}))
    await refused("key", "do not carry the job's mark", TORCHPASS_KEY="another key of enough letters")
    await refused("world", "is of 4 ranks; this job has 5", WORLD_SIZE="5")
    await refused("none", "is no snapshot", path=tmp_path / "nothing")
    with next((path / "part-1").glob("*.distcp")).open("r+b") as file:
        file.seek(200)
        file.write(b"?")
    await refused("damaged", "is damaged")


async def test_ranks_that_begin_with_different_snapshots_make_no_job(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    async with running(tmp_path / "first", shared) as job:
        await job.until_step(5)
        path = await saved(job, "--stop")
        await stopped(job, ("h0",))
    async with RunningJob(tmp_path / "second", "j", 0, 0, PLAN, {"TORCHPASS_SNAPSHOTS": str(shared)}) as job:
        for rank in range(WORLD):
            told = {} if rank == 2 else {"TORCHPASS_RESTORE": str(path)}
            job.start(f"h{rank}", RANK=str(rank), WORLD_SIZE=str(WORLD), **told)
        await job.until(lambda record: record.ended == "refused", "the job to be refused")
        assert job.job is not None
        assert "begins without a snapshot" in job.job.why
