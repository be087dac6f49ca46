"""What is read from a job's logs: steps, gaps, stalls, hashes."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.steps import RankLog, longest_stall, median_step_s, step_ratio, steps_lost, weights_identical


def log_of(ends_s: list[float], rank: int = 0, first: int = 0) -> RankLog:
    log = RankLog(rank)
    for step, end_s in enumerate(ends_s, first):
        log.feed(b'{"step": %d, "start_s": %f, "end_s": %f, "loss": 4.5}\n' % (step, end_s - 0.005, end_s))
    return log


def test_a_whole_log() -> None:
    log = RankLog(2)
    log.feed(b'{"rank": 2, "world": 4, "pid": 71, "parameters": 900, "preset": "bench", "seed": 0, "at_s": 9.5}\n')
    log.feed(b'{"step": 0, "start_s": 9.6, "end_s": 9.7, "loss": 4.85}\n{"step": 1, "hash": "aa"}\n')
    log.feed(b'{"done": 1, "sha256": "aa"}\n')
    assert (log.ready_s, log.parameters, log.pid) == (9.5, 900, 71)
    assert (log.starts_s, log.ends_s, log.losses, log.lost) == ([9.6], [9.7], [4.85], 0)
    assert (log.hashes, log.done) == ({1: "aa"}, 1)


@given(st.integers(1, 40))
def test_a_log_read_in_pieces_is_the_same_log(size: int) -> None:
    data = b"".join(b'{"step": %d, "start_s": %d.0, "end_s": %d.5, "loss": 4.5}\n' % (n, n, n) for n in range(6))
    log = RankLog(0)
    for start in range(0, len(data), size):
        log.feed(data[start : start + size])
    assert log.ends_s == [n + 0.5 for n in range(6)]
    assert log.lost == 0


def test_something_else_in_the_log_is_an_error() -> None:
    with pytest.raises(msgspec.DecodeError):
        RankLog(0).feed(b"Traceback (most recent call last):\n")


def test_the_longest_gap_of_any_rank_counts_beyond_the_median() -> None:
    quick = [n * 0.01 for n in range(100)]
    held = [at if at < 0.5 else at + 0.3 for at in quick]
    logs = [log_of(quick), log_of(held, rank=1)]
    median = median_step_s(logs)
    assert median == pytest.approx(0.01)
    stall = longest_stall(logs, 0.4, 0.6, median)
    assert stall.rank == 1
    assert stall.seconds == pytest.approx(0.3)
    assert (stall.at_s, stall.until_s) == (pytest.approx(0.49), pytest.approx(0.8))


def test_a_gap_counts_when_it_only_reaches_into_the_window() -> None:
    logs = [log_of([0.0, 0.01, 1.0, 1.01])]
    assert longest_stall(logs, 0.5, 0.6, 0.01).seconds == pytest.approx(0.98)
    assert longest_stall(logs, 1.0, 1.2, 0.01).seconds == pytest.approx(0.0)


def test_a_rank_that_has_not_come_back_counts_up_to_now() -> None:
    logs = [log_of([0.0, 0.01, 0.02])]
    assert longest_stall(logs, 0.02, 1.0, 0.01).seconds == 0
    stall = longest_stall(logs, 0.02, 1.0, 0.01, now_s=2.0)
    assert stall.open and stall.seconds == pytest.approx(1.97)


def test_a_rank_that_is_done_does_not_stall() -> None:
    log = log_of([0.0, 0.01, 0.02])
    log.feed(b'{"done": 3, "sha256": "aa"}\n')
    assert longest_stall([log], 0.02, 1.0, 0.01, now_s=2.0).seconds == 0


def test_no_median_without_steps() -> None:
    with pytest.raises(ValueError, match="two steps"):
        median_step_s([log_of([1.0])])


def test_steps_are_compared_before_and_during() -> None:
    quick, slow = RankLog(0, ends_s=[1.0, 1.1, 1.2, 2.0, 2.3, 2.6]), RankLog(1, ends_s=[1.0, 1.1, 1.2, 2.0, 2.3])
    assert step_ratio([quick, slow], (1.0, 1.5), (2.0, 3.0)) == pytest.approx(3.0)
    assert step_ratio([quick, slow], (1.0, 1.5), (2.5, 4.5)) == pytest.approx(20.0)  # none: one that took it all
    with pytest.raises(ValueError, match="two steps"):
        step_ratio([quick, slow], (0.0, 0.5), (2.0, 3.0))


def test_steps_lost_counts_gaps_repeats_and_the_dead() -> None:
    assert steps_lost([log_of([1.0, 1.1])]) == 0
    assert steps_lost([log_of([1.0, 1.1], first=2)]) == 2
    repeated = log_of([1.0, 1.1])
    repeated.feed(b'{"step": 1, "start_s": 1.2, "end_s": 1.3, "loss": 4.5}\n')
    assert steps_lost([repeated]) == 1
    dead = log_of([1.0])
    dead.feed(b'{"error": "RuntimeError: Connection reset by peer", "at_s": 2.0}\n')
    assert steps_lost([dead]) == 1


def hashed(**values: str) -> RankLog:
    log = RankLog(0)
    log.hashes = {int(step[1:]): value for step, value in values.items()}
    return log


def test_weights_are_compared_where_both_runs_looked() -> None:
    reference = [hashed(s50="a", s100="b", s150="c")]
    assert weights_identical([hashed(s50="a", s100="b")], reference) is True
    assert weights_identical([hashed(s50="a", s100="x")], reference) is False
    assert weights_identical([hashed(s50="x", s100="b")], reference, since_step=100) is True
    assert weights_identical([hashed(s70="a")], reference) is None
    assert weights_identical([hashed(s50="a")], reference, since_step=51) is None


def test_ranks_that_disagree_among_themselves_are_no_reference() -> None:
    assert weights_identical([hashed(s50="a")], [hashed(s50="a"), hashed(s50="b")]) is False
