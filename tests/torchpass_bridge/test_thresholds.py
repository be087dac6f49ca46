"""Values that pass their limits: when that counts, and when it is over."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchpass_bridge.core.places import same_accelerator
from torchpass_bridge.core.thresholds import Limit, Threshold
from torchpass_bridge.readings import Hook, Nvml, Reading

LIMIT = Limit("temperature", raise_at=90.0, clear_at=80.0, stands_s=10.0, rests_s=60.0)


def changes(*readings: tuple[float, float | None]) -> list[tuple[float, str]]:
    threshold = Threshold(LIMIT)
    return [(at_s, change) for at_s, value in readings if (change := threshold.see(value, at_s))]


def test_a_value_counts_when_it_stands_and_is_over_when_it_rests() -> None:
    assert changes((0, 95.0), (5, 91.0), (9, 90.0), (10, 90.0), (20, 79.0), (79, 79.0), (80, 79.0)) == [
        (10, "raised"), (80, "cleared"),
    ]  # fmt: skip


def test_one_reading_below_begins_the_time_anew() -> None:
    assert changes((0, 95.0), (9, 89.0), (10, 95.0), (19, 95.0), (20, 95.0)) == [(20, "raised")]


def test_between_the_limits_nothing_changes() -> None:
    assert changes((0, 95.0), (10, 95.0), (20, 85.0), (500, 85.0), (501, 95.0), (600, 95.0)) == [(10, "raised")]


def test_what_cannot_be_read_is_neither() -> None:
    assert changes((0, None), (100, None)) == []
    assert changes((0, 95.0), (5, None), (10, 95.0)) == [(10, "raised")]
    assert Threshold(LIMIT).words() == "temperature not read, limit 90 for 10 s"


@given(st.lists(st.tuples(st.floats(0.1, 30.0), st.one_of(st.none(), st.floats(60, 110)))))
def test_it_never_changes_twice_within_the_times_that_are_asked(steps: list[tuple[float, float | None]]) -> None:
    threshold, now_s, last_s, was = Threshold(LIMIT), 0.0, float("-inf"), False
    for step_s, value in steps:
        now_s += step_s
        change = threshold.see(value, now_s)
        if change:
            assert threshold.raised is not was
            was = threshold.raised
            assert now_s - last_s >= (LIMIT.stands_s if was else LIMIT.rests_s)
            last_s = now_s


def hook(tmp_path: Path, script: str) -> Reading:
    program = tmp_path / "check"
    program.write_text(f"#!{sys.executable}\n{script}")
    program.chmod(0o755)
    return Hook((str(program),)).read()[0]


@pytest.mark.gpu
def test_a_gpu_is_read() -> None:
    readings = Nvml().read()
    assert {"temperature_c", "ecc", "xid"} == {reading.what for reading in readings}
    temperatures = [reading.value for reading in readings if reading.what == "temperature_c"]
    assert temperatures and all(value is None or 0 < value < 120 for value in temperatures)
    assert all(same_accelerator(reading.accelerator, reading.accelerator.lower()) for reading in readings)


def test_a_program_says_well_or_leave_and_anything_else_is_not_known(tmp_path: Path) -> None:
    assert hook(tmp_path, "print('all well')") == Reading("hook", 0.0, "", "all well")
    leave = 'import sys\nprint(\'{"accelerator": "0000:3b:00.0", "why": "too hot"}\')\nsys.exit(1)'
    assert hook(tmp_path, leave) == Reading("hook", 1.0, "0000:3b:00.0", "too hot")
    assert hook(tmp_path, "import sys\nsys.exit(2)").value is None
    assert Hook(("/no/such/program",)).read()[0].value is None
