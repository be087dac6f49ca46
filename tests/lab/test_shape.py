"""The shape of bench results: types by name, percentiles that were measured, a table with targets."""

from __future__ import annotations

import io

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from lab.bench.shape import (
    Bench,
    Machine,
    Metrics,
    Row,
    ShapeError,
    Target,
    Times,
    check,
    commit,
    decode,
    encode,
    machine,
    percentiles,
    table,
)

GOOD: Metrics = {
    "reroute_ms": Times(37.0, 41.0, 42.0, 42.0),
    "steps_lost": 0,
    "weights_identical": True,
    "cpu_ratio": 0.031,
}


def bench(*rows: Row) -> Bench:
    return Bench("reroute", "abc", Machine("A processor", 2, "Linux 6.18"), 0, rows)


def test_a_bench_survives_its_json() -> None:
    whole = bench(Row("blackhole-both", 10, GOOD, {"kernel": GOOD}, {"links": ["leaf1-spine1"]}), Row("drain", 3, GOOD))
    assert decode(encode(whole)) == whole


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=300))
def test_percentiles_are_ordered_and_measured(values: list[float]) -> None:
    found = percentiles(values)
    rounded = {round(value, 3) for value in values}
    assert {found.p50, found.p95, found.p99, found.max} <= rounded
    assert found.p50 <= found.p95 <= found.p99 <= found.max == max(rounded)
    if len(values) < 100:
        assert found.p99 == found.max


def test_percentiles_of_a_hundred() -> None:
    assert percentiles(range(1, 101)) == Times(50, 95, 99, 100)


@pytest.mark.parametrize("values", [[], [1.0, float("inf")], [float("nan")]])
def test_no_percentiles_of_nothing(values: list[float]) -> None:
    with pytest.raises(ShapeError):
        percentiles(values)


@pytest.mark.parametrize(
    ("metrics", "complaint"),
    [
        ({"stall_ms": 3}, "stall_ms is 3, not a distribution"),
        ({"steps_lost": Times(0, 0, 0, 0)}, "not a count or a flag"),
        ({"steps_lost": 0.5}, "not a count or a flag"),
        ({"cpu_ratio": True}, "cpu_ratio is True, not a number"),
    ],
)
def test_a_metric_of_the_wrong_type_is_named(metrics: Metrics, complaint: str) -> None:
    with pytest.raises(ShapeError, match=complaint):
        check(bench(Row("drain", 3, metrics)))
    with pytest.raises(ShapeError, match=f"drain without kernel: .*{complaint}"):
        check(bench(Row("drain", 3, {}, {"kernel": metrics})))


def test_case_names_are_apart() -> None:
    with pytest.raises(ShapeError, match="'flap' is part of the name of case 'flap-carrier'"):
        check(bench(Row("flap", 1, {}), Row("flap-carrier", 1, {})))
    with pytest.raises(ShapeError, match="two rows"):
        check(bench(Row("flap", 1, {}), Row("flap", 1, {})))


def test_wrong_json_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        decode(b'{"bench": "x", "commit": "", "machine": {}, "seed": 0, "rows": []}')


def test_targets() -> None:
    assert Target("drain", "reroute_ms", "p99", "<=", 60).met(GOOD) is True
    assert Target("drain", "reroute_ms", "p99", "<=", 40).met(GOOD) is False
    assert Target("drain", "weights_identical", "", "==", 1).met(GOOD) is True
    assert Target("drain", "stall_ms", "p99", "<=", 40).met(GOOD) is None
    assert str(Target("drain", "reroute_ms", "p99", "<=", 60)) == "p99 ≤ 60"
    assert str(Target("drain", "weights_identical", "", "==", 1)) == "yes"


def test_the_table_shows_baselines_and_targets() -> None:
    out = io.StringIO()
    rows = bench(Row("drain", 3, GOOD, {"kernel": {"reroute_ms": Times(1700, 7000, 7500, 7500)}}))
    Console(file=out, width=160).print(table(rows, [Target("drain", "reroute_ms", "p99", "<=", 60)]))
    shown = out.getvalue()
    assert "without: kernel" in shown
    assert "37 / 42" in shown and "1700 / 7500" in shown and "p99 ≤ 60" in shown
    assert "yes" in shown and "0.031" in shown


def test_this_machine_and_commit() -> None:
    here = machine()
    assert here.cpu and here.cores > 0 and here.kernel.startswith("Linux")
    assert commit() == commit()
