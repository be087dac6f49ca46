"""The benches end to end, as small as they get: that they measure, not what."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.bench import balance, reroute, rest, shape
from lab.bench.shape import Times
from lab.netns import state
from topology.model import Fabric

pytestmark = [pytest.mark.netns, pytest.mark.e2e]


def silent(what: str, done: float) -> None:
    del what, done


def test_reroute(leaf_spine: Fabric, tmp_path: Path) -> None:
    setups = (reroute.TUNED, reroute.KERNEL_TIMERS)
    plan = reroute.Plan(n=1, rows=("carrier-out", "carrier-in", "bucket", "drain"), setups=setups, least=1)
    bench = reroute.run(leaf_spine, plan, silent, name="tbreroute", folder=tmp_path / "lab")
    assert shape.decode(shape.encode(bench)) == bench
    rows = {row.case: row for row in bench.rows}
    for case in plan.rows:
        assert rows[case].metrics["weights_identical"] is True
        assert rows[case].metrics["steps_lost"] == 0
        assert isinstance(rows[case].metrics["reroute_ms"], Times)
        assert rows[case].metrics["moves"]
        assert rows[case].without["kernel-timers"]["weights_identical"] is True
        assert rows[case].without["kernel-timers"]["moves"] == 0
    assert "tbreroute" not in state.labs()


def test_rest(leaf_spine: Fabric, tmp_path: Path) -> None:
    plan = rest.Plan(n=1, stress_s=2.0, calm_s=2.0)
    bench = rest.run(leaf_spine, plan, silent, name="tbrest", folder=tmp_path / "lab")
    metrics = bench.rows[0].metrics
    assert metrics.keys() == {"cpu_ratio", "rss_bytes", "start_s", "false_moves"}
    assert metrics["false_moves"] == 0
    assert bench.rows[1].case == "info-with-job"


def test_balance(leaf_spine: Fabric, tmp_path: Path) -> None:
    bench = balance.run(
        leaf_spine, balance.Plan(1, rows=("flows-64",)), silent, name="tbbalance", folder=tmp_path / "lab"
    )
    (row,) = bench.rows
    assert set(row.info["places"]) == {"host>leaf", "leaf>host", "leaf>spine", "spine>leaf"}
    for metrics in (row.metrics, row.without["kernel"]):
        ratio = metrics["max_mean_ratio"]
        assert isinstance(ratio, float)
        assert 1.0 <= ratio < 8.0
