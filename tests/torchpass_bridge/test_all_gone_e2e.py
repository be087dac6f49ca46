"""All ranks of a job are lost at once: it goes on from its latest snapshot once all of them are started anew."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from commands import told, torchpass
from kept_ranks import Preemptible
from running_job import LIMITS, run_stock, same

pytestmark = pytest.mark.e2e

WORLD = 2
PLAN = {"steps": 60}


async def test_after_a_power_failure_the_launchers_begin_with_the_latest_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One launcher has lived on; the other one is started anew, by the system."""
    monkeypatch.setattr("running_job.LIMITS", type(LIMITS)(silent_s=1.5, gone_s=0.4, lost_s=4.0))
    undisturbed = run_stock(tmp_path / "stock", WORLD, PLAN)
    shared = {"TORCHPASS_SNAPSHOTS": str(tmp_path / "snapshots")}
    async with Preemptible(tmp_path / "job", "j", WORLD, 0, {**PLAN, "sleep_s": 0.05}, shared) as job:
        await job.until_step(5)
        result = await torchpass("snapshot", "j", "--json", store=job.store)
        assert result.exit_code == 0, result.output
        saved = told(result)["snapshot"]["step"]
        assert job.job is not None
        gone = [member.pid for member in job.job.members]
        for pid in (job.processes["a1"].pid, *gone):
            os.kill(pid, signal.SIGKILL)
        job.processes["a1"].join()
        await job.until(lambda record: record.unheard_unix_s > 0, "nobody of it is heard")
        assert not job.job.ended
        job.start("h1", RANK="1")
        await job.until(lambda record: record.generation == 2, "a new run")
        same(await job.finished(), undisturbed)
        (entry,) = await job.entries()
        assert (entry.outcome, entry.ranks, entry.cause) == ("lost", (0, 1), "none of its ranks was heard any more")
        assert not {member.pid for member in job.job.members} & set(gone)
    assert f"{saved} steps applied" in (tmp_path / "job" / "a1.log").read_text()
