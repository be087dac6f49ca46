"""Rows of the reroute bench made from injections, and their targets."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lab.bench import reroute
from lab.bench.reroute import BASELINES, KERNEL, KERNEL_TIMERS, PLAIN, ROWS, RTO_MIN, TUNED, UNTUNED, Found, Plan
from lab.bench.shape import Bench, Machine, Row, Times, check, missed
from lab.capture import Reroute
from lab.cases import CASES
from lab.injection import Injection
from lab.steps import RankLog, Stall

SAME = [RankLog(0, hashes={50: "a", 100: "b"})]
OTHER = [RankLog(0, hashes={50: "a", 100: "c"})]

GOOD = Injection(
    case="carrier", fault="carrier:host1-leaf1", link="host1-leaf1", injected_at_s=10.0, undone_at_s=13.0, job=0,
    affected=3, moved=3, reroute_s=0.002, out=Reroute(2, 2, 0.002, 0.003), into=Reroute(1, 1, 0.008, 0.008),
    rerouted_s=0.008, off_link_s=0.0, stall=Stall(0.05, 0, 9.99, 10.05), stalls=1, median_step_s=0.01, step_ratio=1.1,
    steps_lost=0, moves=2, all_moves=8, packets_on_bad_link=0, retransmissions=4, return_s=None, back_stall_s=None,
    recovered=True,
)  # fmt: skip
STUCK = replace(GOOD, moved=0, reroute_s=None, out=Reroute(2, 0, None, None), into=Reroute(1, 0, None, None),
                rerouted_s=None, off_link_s=None, stall=Stall(3.2, 0, 9.99, 13.2), moves=0, all_moves=0)  # fmt: skip


def of(case: str, one: Injection = GOOD) -> Injection:
    return replace(one, case=case)


def all_rows(ours: Injection = GOOD, theirs: Injection = STUCK, plan: Plan | None = None) -> dict[str, Row]:
    plan = plan or Plan(n=2)
    found = {}
    for setup in plan.setups:
        one = theirs if setup in BASELINES else ours
        injections = [of(case, one) for case in plan.cases for _ in range(plan.count(setup, case))]
        found[setup.name] = Found(injections, [SAME], [(0.004, 1)] if setup is TUNED else [])
    return {row.case: row for row in reroute.rows(plan, found, SAME)}


def bench(rows: dict[str, Row]) -> Bench:
    return check(Bench("reroute", "abc", Machine("A processor", 2, "Linux 6.18"), 0, tuple(rows.values())))


def test_every_row_of_the_table_is_there_with_all_columns() -> None:
    rows = all_rows()
    assert set(rows) == {*ROWS, "info-no-realtime", "info-undisturbed"}
    for case in ROWS:
        metrics = rows[case].metrics
        assert {"reroute_ms", "stall_ms", "steps_lost", "weights_identical", "moves"} <= metrics.keys()
        assert rows[case].without.keys() == {"kernel", "kernel-timers"}
        for theirs in rows[case].without.values():
            assert {"reroute_ms", "stall_ms", "steps_lost", "weights_identical", "moves"} <= theirs.keys()
    assert {"stall_untuned_ms", "stall_rtomin_ms"} <= rows["bucket"].metrics.keys()
    assert rows["flap"].metrics["packets_on_bad_link"] == 0
    assert rows["drain"].metrics["retransmissions"] == 8
    assert rows["rate-cut"].metrics["step_ratio"] == rows["rate-cut"].metrics["worst_step_ratio"] == 1.1
    bench(rows)


def test_the_two_sides_of_a_lost_carrier() -> None:
    rows = all_rows()
    assert rows["carrier-out"].metrics["reroute_ms"] == Times(2.0, 2.0, 2.0, 2.0)
    assert rows["carrier-in"].metrics["reroute_ms"] == Times(8.0, 8.0, 8.0, 8.0)
    assert rows["carrier-out"].n == rows["carrier-in"].n == 2


def test_who_finds_no_other_way_counts_with_the_whole_fault() -> None:
    assert all_rows()["bucket"].without["kernel"]["reroute_ms"] == Times(3000.0, 3000.0, 3000.0, 3000.0)
    assert all_rows()["bucket"].info["kernel_endless"] == 3


def test_one_job_with_other_weights_shows_in_its_row() -> None:
    plan = Plan(n=1, rows=("bucket", "drain"))
    found = {
        TUNED.name: Found([of("bucket"), replace(of("drain"), job=1)], [SAME, OTHER], [(0.0, 0)]),
        KERNEL.name: Found([of("bucket"), of("drain")], [SAME]),
        KERNEL_TIMERS.name: Found([of("bucket"), of("drain")], [SAME]),
    }
    rows = {row.case: row for row in reroute.rows(plan, found, SAME)}
    assert rows["bucket"].metrics["weights_identical"] is True
    assert rows["drain"].metrics["weights_identical"] is False


def test_targets_and_who_is_behind() -> None:
    fine = bench(all_rows())
    assert missed(fine, reroute.targets(fine)) == ["drain: stall_ms is 50, wanted max ≤ 20",
                                                   "drain: retransmissions is 8, wanted 0"]  # fmt: skip
    assert reroute.behind(fine) == []
    slow = bench(all_rows(STUCK, GOOD))
    assert any(line.startswith("flap: stall_ms") for line in missed(slow, reroute.targets(slow)))
    assert "bucket: stall_ms p99 3200 with linkpass, 50 with kernel" in reroute.behind(slow)


@pytest.mark.parametrize(("n", "baseline", "column"), [(1, 3, 1), (10, 3, 2), (30, 10, 6)])
def test_how_many_injections(n: int, baseline: int, column: int) -> None:
    plan = Plan(n=n)
    for case in plan.cases:
        assert plan.count(TUNED, case) == n
        assert plan.count(KERNEL, case) == plan.count(KERNEL_TIMERS, case) == baseline
        other = case not in ("flap", "drain", "rate-cut")
        assert plan.count(UNTUNED, case) == column * other
        assert plan.count(RTO_MIN, case) == max(1, n // 10) * other
        assert bool(plan.count(PLAIN, case)) == (case == "blackhole-both")
    assert set(plan.cases) == set(CASES) - {"spine-dead"}
