"""Random events in real jobs. `TORCHPASS_EVENTS=100` asks for as many; a few are part of every run of the tests."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest
from job_chaos import PLAN, WORLD, Story, chaos
from running_job import run_stock

from torchpass_bridge.core.scene import Limits

pytestmark = pytest.mark.e2e

EVENTS = int(os.environ.get("TORCHPASS_EVENTS", "6"))
A_JOB = 3
SHARDED = {"replicate": 1}
SEED = int(os.environ.get("TORCHPASS_SEED", "0"))


@pytest.fixture(scope="module")
def bits(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, str]]:
    """By rank, those of an undisturbed run of stock DDP."""
    told = run_stock(tmp_path_factory.mktemp("stock"), WORLD, {**PLAN, "sleep_s": 0.0})
    return [(t["hash"], t["own"]) for t in told]


@pytest.fixture(scope="module")
def sharded_bits(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, str]]:
    """The same of stock FSDP2."""
    told = run_stock(tmp_path_factory.mktemp("stock"), WORLD, {**PLAN, **SHARDED, "sleep_s": 0.0})
    return [(t["hash"], t["own"]) for t in told]


def sound(story: Story, bits: list[tuple[str, str]], done_again: int = 0) -> None:
    """`done_again`: steps that one incident may cost."""
    assert [(t["hash"], t["own"]) for t in story.told] == bits, story.events
    assert all(entry.steps_lost <= done_again for entry in story.entries)
    assert story.entries
    spares = Counter(spare for entry in story.entries if entry.outcome == "moved" for spare in entry.spares)
    assert max(spares.values(), default=1) == 1, "a spare took two ranks"


@pytest.mark.parametrize("number", range(EVENTS // A_JOB))
async def test_any_events_leave_a_job_that_ends_with_the_same_bits(
    tmp_path: Path, bits: list[tuple[str, str]], number: int
) -> None:
    story = await chaos(tmp_path, SEED + number, A_JOB)
    assert len(story.events) == A_JOB
    print("; ".join(story.events), f"restored {story.restored} times")
    sound(story, bits)


@pytest.mark.parametrize("number", range(max(EVENTS // A_JOB // 2, 1)))
async def test_any_events_leave_a_sharded_job_that_ends_with_the_same_bits(
    tmp_path: Path, sharded_bits: list[tuple[str, str]], number: int
) -> None:
    """FSDP2 without replicas. All go back to the newest step of which somebody has each part."""
    story = await chaos(tmp_path, SEED + 1000 + number, A_JOB, plan={**PLAN, **SHARDED})
    print("; ".join(story.events), f"restored {story.restored} times")
    sound(story, sharded_bits, done_again=2)


async def test_when_spares_run_out_it_goes_on_from_a_snapshot(
    tmp_path: Path, bits: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("running_job.LIMITS", Limits(silent_s=1.5, gone_s=0.4, spare_wait_s=2.0))
    monkeypatch.setattr("job_chaos.EVENTS", ("kill", "freeze"))
    story = await chaos(tmp_path, SEED, 3, bare=True)
    assert story.restored == 1
    sound(story, bits)
