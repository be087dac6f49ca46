"""When the transport gives up, and what drivers allow."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdma import drivers
from rdma.deadline import deadline


@pytest.mark.parametrize(
    ("timeout", "retries", "seconds"),
    [(14, 6, 0.4698), (17, 6, 3.7581), (12, 3, 0.0671), (14, 7, 0.5369), (31, 7, 70368.744), (1, 0, 8.192e-6)],
)
def test_the_least_time_is_every_try_once(timeout: int, retries: int, seconds: float) -> None:
    assert deadline(timeout, retries, "mlx5").least_s == pytest.approx(seconds, rel=1e-3)


def test_what_never_gives_up_has_no_deadline() -> None:
    assert deadline(0, 3, "mlx5").least_s == math.inf
    assert deadline(14, 7, "rxe").least_s == math.inf
    assert deadline(14, 6, "rxe").least_s < 1


@given(st.integers(1, 31), st.integers(0, 7), st.sampled_from([*drivers.DRIVERS, "other"]), st.floats(0, 1e6))
def test_time_left_runs_down_and_ends_at_zero(timeout: int, retries: int, driver: str, silent_s: float) -> None:
    one = deadline(timeout, retries, driver)
    assert 0 <= one.left_s(silent_s) <= one.least_s
    assert one.note


@pytest.mark.parametrize(("timeout", "retries"), [(-1, 0), (32, 0), (0, -1), (0, 8)])
def test_what_no_query_tells_is_refused(timeout: int, retries: int) -> None:
    with pytest.raises(ValueError, match="timeout"):
        deadline(timeout, retries, "mlx5")


def test_what_no_table_allows_is_not_known() -> None:
    assert drivers.of("brand_new") is drivers.UNKNOWN
    assert drivers.of("mlx5").drain_move == "no"
    assert drivers.of("rxe").drain_move == "tried"
    assert {one.drain_move for name, one in drivers.DRIVERS.items() if name != "rxe"} <= {"no", "not known"}
    assert all(one.why and one.source for one in drivers.DRIVERS.values())
