"""What a move costs, with a model of 10 M parameters (113 MB of state): printed, not judged, for machines differ.

pytest -s tests/torchpass_bridge/bench_trainer.py
"""

from __future__ import annotations

import os
import signal
import statistics
from pathlib import Path

import pytest
from running_job import RunningJob, run_stock

from torchpass_bridge.wire import Entry

pytestmark = pytest.mark.e2e

WORLD = 4
BIG = {"steps": 100_000, "width": 1024, "layers": 9, "bucket_mb": 8.0}
MOVES = int(os.environ.get("TORCHPASS_MOVES", "2"))


def shown(kind: str, entries: list[Entry]) -> None:
    pauses_ms = sorted(1e3 * entry.pause_s for entry in entries)
    print(f"\n{kind}: pause ms p50 {statistics.median(pauses_ms):.0f}, max {pauses_ms[-1]:.0f}, n {len(pauses_ms)}, "
          f"load {os.getloadavg()[0]:.1f}")  # fmt: skip
    for entry in entries:
        entered = [(name, at_s - entry.began_unix_s) for name, at_s in entry.phase_unix_s]
        entered.append(("closed", entry.ended_unix_s - entry.began_unix_s))
        phases = ", ".join(f"{name} +{1e3 * at_s:.0f}" for name, at_s in entered)
        print(f"  {entry.pause_s * 1e3:.0f} ms ({phases})")


@pytest.mark.parametrize("kind", ["planned", "crash"])
async def test_what_a_move_costs(tmp_path: Path, kind: str) -> None:
    async with RunningJob(tmp_path, "j", WORLD, 1, BIG) as job:
        await job.until_step(3)
        for number in range(MOVES):
            spare = f"s{number}"
            await job.until_spares(1)
            host = job.job.members[number % WORLD].host  # type: ignore[union-attr]
            if kind == "planned":
                assert (await job.ask("migrate", host)).taken
            else:
                job.signal(host, signal.SIGKILL)
            await job.until(
                lambda record, spare=spare: record.incident is None and any(m.host == spare for m in record.members),  # type: ignore[misc]
                "the move",
            )
            job.heard.clear()
            job.start_spare(f"s{number + 1}")
            await job.until_spares(1)
        entries = [entry for entry in await job.entries() if entry.kind == kind]
        assert [entry.outcome for entry in entries] == ["moved"] * MOVES
        shown(kind, entries)


async def test_what_copies_of_parts_cost(tmp_path: Path) -> None:
    """Under FSDP2, in turns: copies that are left with buddies, copies that are not, and none (stock)."""
    plan = {"steps": 40, "width": 1024, "layers": 5, "replicate": 1}
    rows: dict[str, list[float]] = {"buddies": [], "no buddies": [], "stock": []}
    for turn in range(MOVES):
        rows["stock"].append(1e3 * run_stock(tmp_path / f"stock{turn}", WORLD, plan)[0]["step_s"])
        for name, buddies in (("buddies", "1"), ("no buddies", "0")):
            async with RunningJob(
                tmp_path / f"job{turn}{buddies}", "j", WORLD, 0, plan, {"TORCHPASS_BUDDY": buddies}
            ) as job:
                rows[name].append(1e3 * (await job.finished())[0]["step_s"])
    for name, found_ms in rows.items():
        print(f"\n{name}: step ms " + ", ".join(f"{ms:.1f}" for ms in found_ms) + f"; load {os.getloadavg()[0]:.1f}")
    assert all(len(found_ms) == MOVES for found_ms in rows.values())
