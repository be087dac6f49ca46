"""One rank of a real job is throttled, or its network: it is named for that within 20 steps, and nobody else ever."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager

import pytest
from pace_rig import PaceRig
from rig import PATIENCE_S, says

from lab.throttle import throttled

pytestmark = [pytest.mark.netns, pytest.mark.e2e]

SOON_STEPS = 20


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PaceRig]:
    with PaceRig(tmp_path_factory.mktemp("rig")) as made:
        yield made


def test_in_a_healthy_job_nobody_is_named(rig: PaceRig) -> None:
    rig.goes_on(100)
    assert rig.names(0.0) == []
    pace = rig.daemons.view("host1")["pace"]
    assert pace["steps"] > 50 and pace["connections"] == 2 and pace["error"] == ""
    assert pace["period_s"] == pytest.approx(rig.job.median_step_s(), rel=0.2)


@pytest.mark.parametrize(
    ("rank", "cause"), [(0, "compute"), (2, "compute"), (1, "network"), (3, "network")]
)  # fmt: skip
def test_a_straggler_is_named_for_its_cause_within_20_steps_and_nobody_else(
    rig: PaceRig, rank: int, cause: str
) -> None:
    rig.nobody()
    host = rig.hosts[rank]
    since_s = time.monotonic()
    fault: AbstractContextManager[None] = rig.slowed(rank) if cause == "compute" else rig.narrowed(host)
    with fault:
        first = rig.wait_told(since_s, says(rf"^straggler {host}: .*{cause}"), "somebody names it")
        assert min(rig.steps_until(first, since_s)) <= SOON_STEPS
        rig.wait_told(since_s, says(rf"^straggler {host}: "), "all name it", rig.hosts, 3 * PATIENCE_S)
        rig.goes_on(10)
        named: set[str] = set()

        def anybody() -> bool:  # a rank that all others stood still with is acquitted for a moment
            named.update(rig.named_now())
            return bool(named)

        rig.wait("it is named now", anybody)
        assert named == {f"{host} {cause}"}
    assert all(entry.what.startswith(f"straggler {host}: ") for entry in rig.names(since_s))
    rig.wait_told(since_s, says(rf"^{host} holds the others up no more"), "all acquit it", rig.hosts, 3 * PATIENCE_S)


def test_for_a_rank_that_is_stopped_at_any_moment_nobody_else_is_blamed(rig: PaceRig) -> None:
    """From outside, and in the middle of a collective, too, where it has come and others wait all the same: that takes
    longer to tell, and may not be told."""
    rig.nobody()
    since_s = time.monotonic()
    with throttled(rig.job.processes[1].pid, 0.7, 0.3):
        rig.goes_on(40)
    assert rig.job.median_step_s(since_s) > 0.2
    assert {entry.what.split(":")[0] for entry in rig.names(since_s)} <= {"straggler host2"}


def test_it_is_told_in_words_and_as_a_metric(rig: PaceRig) -> None:
    rig.nobody()
    since_s = time.monotonic()
    with rig.slowed(3):
        rig.wait_told(since_s, says(r"^straggler host4: "), "all name it", rig.hosts, 3 * PATIENCE_S)
        status = rig.cli("host1", "status").output
        assert "straggler host4 (compute): each step waits" in status
        (row,) = json.loads(rig.cli("host1", "status", "--json").output)["stragglers"]
        assert 0.03 < row["lag_s"] < row["period_s"] and row["rank"] == -1
        story = rig.cli("host1", "why", "host4").output
        assert "all others wait for it to compute" in story and "its own host sees others open" in story
        _, metrics = rig.daemons.request("host1", "GET", "/metrics")
        assert b'linkpass_straggler{cause="compute",host="host4"} 1.0' in metrics


def test_the_trainers_word_names_the_rank(rig: PaceRig) -> None:
    """Ranks tell their daemons when they come to a step; here the test tells it for them."""
    rig.nobody()
    since_s = time.monotonic()

    def arrive(rank: int, step: int) -> None:
        body = json.dumps({"rank": rank, "step": step})
        status, _ = rig.daemons.request(rig.hosts[rank], "POST", "/arrived", body)
        assert status == 200

    for step in range(30):
        for rank in (0, 1, 3):
            arrive(rank, step)
        time.sleep(0.15)  # the late one computes
        arrive(2, step)
    rig.wait_told(since_s, says(r"^straggler host3 \(rank 2\): "), "all name it", rig.hosts)
    assert {entry.what.split(":")[0] for entry in rig.names(since_s)} == {"straggler host3 (rank 2)"}


def test_nothing_was_moved_and_nothing_lost(rig: PaceRig) -> None:
    stories = {(entry.host, entry.cause) for entry in rig.names(0.0)}
    told = [entry for entry in rig.told(0.0, lambda entry: True) if (entry.host, entry.cause) in stories]
    assert len(told) > len(stories) > 8
    assert all(entry.rung == 0 and "moved" not in entry.what for entry in told)
    assert all(rig.daemons.view(host)["faults"] == 0 for host in rig.hosts)
    rig.job.stop()
