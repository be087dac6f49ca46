"""The job on this machine's loopback: the same weights every time, an agreed end, a clear word when a rank dies."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.errors import LabError
from lab.job import Job, JobSpec, Loopback, undisturbed
from lab.steps import RankLog, steps_lost, weights_identical

SPEC = JobSpec(steps=60, hash_every=20)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> list[RankLog]:
    return undisturbed(tmp_path_factory.mktemp("first"), 2, SPEC)


def test_every_rank_does_every_step_and_learns(first: list[RankLog]) -> None:
    for log in first:
        assert len(log.ends_s) == log.done == 60
        assert sorted(log.hashes) == [20, 40, 60]
        assert all(a <= b for a, b in zip(log.starts_s, log.ends_s, strict=True))
        assert sum(log.losses[-10:]) < sum(log.losses[:10])
    assert steps_lost(first) == 0
    assert first[0].hashes == first[1].hashes


def test_a_second_run_that_ends_elsewhere_has_the_same_weights(first: list[RankLog], tmp_path: Path) -> None:
    """Bit for bit, at every step where both looked: also when the run is ended early by its stop file."""
    longer = JobSpec(steps=100_000, hash_every=20)
    with Job(Loopback(), ["a", "b"], tmp_path, longer) as job:
        job.start().wait_steps(1)
        ended_at = job.stop(multiple_of=20)
        assert ended_at % 20 == 0 and ended_at < 100_000
        assert [log.done for log in job.ranks] == [ended_at, ended_at]
        assert weights_identical(job.ranks, first) is True
        assert job.median_step_s() > 0


def test_another_seed_has_other_weights(first: list[RankLog], tmp_path: Path) -> None:
    other = undisturbed(tmp_path, 2, JobSpec(steps=20, hash_every=20, seed=1))
    assert weights_identical(other, first) is False


def test_a_rank_that_dies_is_named(tmp_path: Path) -> None:
    with Job(Loopback(), ["a", "b"], tmp_path, JobSpec(steps=100_000)) as job:
        job.start().wait_steps(1)
        job.processes[1].kill()
        with pytest.raises(LabError, match=r"rank [01] on [ab] died"):
            job.wait_steps(100_000)


def test_a_wrong_option_is_told_in_the_ranks_own_words(tmp_path: Path) -> None:
    spec = JobSpec(extra=("--data", str(tmp_path / "none")))
    with Job(Loopback(), ["a"], tmp_path, spec) as job, pytest.raises(LabError, match=r"rank 0 on a died .*none"):
        job.start().wait_steps(1)
