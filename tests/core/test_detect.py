"""The tests of the probes' verdicts: what they say, and how often they are wrong, counted with fixed seeds."""

from __future__ import annotations

import math
import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from linkpass.core.detect import LossRun, PathDetector, PooledLoss, StandingQueue, WindowedMin
from linkpass.core.settings import Detection

SETTINGS = Detection()


# the floor
@given(st.lists(st.tuples(st.floats(0, 3), st.floats(-5, 5)), min_size=1, max_size=60))
def test_the_floor_is_a_minimum_of_one_to_two_spans(steps: list[tuple[float, float]]) -> None:
    floor, now_s, seen = WindowedMin(10.0), 0.0, list[tuple[float, float]]()
    assert floor.value == math.inf
    for gap_s, value in steps:
        now_s += gap_s
        seen.append((now_s, value))
        got = floor.add(now_s, value)
        assert got == floor.value <= value
        assert got <= min(v for at_s, v in seen if now_s - at_s < 10.0 - 1e-9 and at_s >= now_s - 10.0) or any(
            v == got for at_s, v in seen
        )
        assert got in {v for at_s, v in seen if now_s - at_s <= 20.0 + 3.0}  # a span begins with a value: plus one gap


def test_the_floor_forgets_after_two_spans() -> None:
    floor = WindowedMin(1.0)
    floor.add(0.0, 1.0)
    assert floor.add(1.5, 5.0) == 1.0
    assert floor.add(2.6, 5.0) == 5.0
    floor.add(2.7, 3.0)
    assert floor.add(9.0, 7.0) == 7.0  # nothing was heard for more than two spans


# blackhole
def test_a_run_of_three_is_a_blackhole_and_three_heard_in_a_row_end_it() -> None:
    run = LossRun(SETTINGS)
    assert [run.update(1, 0, 0), run.update(0, 0, 1), run.update(0, 0, 2), run.update(0, 0, 3)] == [
        False, False, False, True,
    ]  # fmt: skip
    assert run.update(0, 0, 9)
    assert run.update(10, 9, 0)  # heard again: the report settles the lost ones
    assert run.update(2, 0, 0)
    assert run.update(1, 1, 0)  # one is lost: from the start again
    assert run.update(2, 0, 0)
    assert not run.update(1, 0, 0)


def test_false_runs_at_a_base_loss_come_as_often_as_stated() -> None:
    """At 2 % base loss a run of three begins at a given probe with 0.02**3: 8 in a million."""
    rng = random.Random(1)
    probes, false, missing = 1_000_000, 0, 0
    lost = rng.choices((True, False), weights=(0.02, 0.98), k=probes)
    for is_lost in lost:
        missing = missing + 1 if is_lost else 0
        false += missing == SETTINGS.blackhole_losses
    expected = probes * 0.02**3
    assert abs(false - expected) < 4 * math.sqrt(expected)


# loss ratio
def simulate(rng: random.Random, ratio: float, most: int) -> int | None:
    """Probes until the alarm; None when there is none."""
    test = PooledLoss(SETTINGS)
    for number in range(1, most + 1):
        if test.update(1, int(rng.random() < ratio)):
            return number
    return None


@pytest.mark.parametrize(("ratio", "stated"), [(0.03, 161), (0.05, 85), (0.2, 18)])
def test_delays_to_detection_are_as_stated(ratio: float, stated: int) -> None:
    rng = random.Random(2)
    delays = sorted(simulate(rng, ratio, 100_000) or 0 for _ in range(600))
    assert delays[0] > 0
    mean = sum(delays) / len(delays)
    assert 0.8 * stated < mean < 1.35 * stated  # the overshoot beyond the threshold comes on top
    assert delays[int(len(delays) * 0.99)] < 6 * stated


def test_false_alarms_at_the_healthy_loss_come_as_often_as_stated() -> None:
    """One in 16 million probes at `ok`: 300 million are tried, by drawing the gaps between losses."""
    rng, test, probes, alarms = random.Random(3), PooledLoss(SETTINGS), 0, 0
    while probes < 300_000_000:
        gap = int(math.log(1 - rng.random()) / math.log(1 - SETTINGS.loss_ok_ratio))
        probes += gap + 1
        test.update(gap, 0)
        if test.update(1, 1):
            alarms += 1
            test.reset()
    assert 8 <= alarms <= 32


def test_pooled_windows_agree_with_single_probes() -> None:
    """Windows of 1,000 probes at the healthy loss raise no alarm, at 5 % they do at once."""
    rng, test = random.Random(4), PooledLoss(SETTINGS)
    for _ in range(500):
        assert not test.update(1000, sum(rng.random() < SETTINGS.loss_ok_ratio for _ in range(1000)))
    assert test.update(1000, 50)
    assert not test.idle


def test_the_alarm_is_lifted_by_about_400_clean_probes_and_reset_at_once() -> None:
    test = PooledLoss(SETTINGS)
    assert test.idle
    assert not test.update(1, 1)
    assert not test.idle
    assert test.update(5, 5)
    needed = next(number for number in range(1, 2000) if not test.update(1, 0))
    assert 380 < needed < 430
    test.update(5, 5)
    assert test.on
    test.reset()
    assert test.idle


def test_a_loss_while_lossy_lengthens_it() -> None:
    test = PooledLoss(SETTINGS)
    test.update(10, 10)
    assert test.on
    assert test.update(390, 0)
    assert test.update(1, 1)
    assert test.update(100, 0)


@pytest.mark.parametrize(("ok", "bad"), [(0.0, 0.03), (0.03, 0.03), (0.05, 0.03), (0.1, 1.0)])
def test_hypotheses_must_differ(ok: float, bad: float) -> None:
    with pytest.raises(ValueError, match="expected 0 < ok < bad < 1"):
        PooledLoss(msgspec.structs.replace(SETTINGS, loss_ok_ratio=ok, loss_bad_ratio=bad))


# queueing
LATE, IN_TIME, STEP_S = 0.05, 0.001, 0.0625


def feed(queue: StandingQueue, begun_s: float, windows: int, delays_s: tuple[float, ...]) -> float:
    """Windows of that many delays; each is closed by the first delay of the next."""
    for window in range(windows):
        for number, delay_s in enumerate(delays_s):
            queue.update(begun_s + window * STEP_S + number * 0.01, delay_s)
    return begun_s + windows * STEP_S


def test_a_queue_that_stands_is_found_and_its_end_too() -> None:
    queue = StandingQueue(SETTINGS)
    now_s = feed(queue, 0.0, SETTINGS.queueing_windows, (LATE, LATE, IN_TIME))
    assert not queue.on
    now_s = feed(queue, now_s, 1, (LATE,))
    assert queue.on
    assert not queue.idle
    now_s = feed(queue, now_s, SETTINGS.queueing_windows, (LATE, IN_TIME))  # the first of them closes a late one
    assert queue.on
    feed(queue, now_s, 4, (IN_TIME,))
    assert not queue.on
    assert queue.idle


def test_a_queue_that_drains_at_every_step_of_a_job_stands_all_the_same() -> None:
    queue, now_s = StandingQueue(SETTINGS), 0.0
    for _ in range(3):
        now_s = feed(queue, now_s, 4, (LATE, LATE))
        now_s = feed(queue, now_s, 1, (IN_TIME, IN_TIME))
    assert queue.on
    for _ in range(20):
        now_s = feed(queue, now_s, 4, (LATE, LATE))
        now_s = feed(queue, now_s, 1, (IN_TIME, IN_TIME))
        assert queue.on


def test_bursts_are_no_standing_queue() -> None:
    queue, now_s = StandingQueue(SETTINGS), 0.0
    for _ in range(100):
        now_s = feed(queue, now_s, 2, (LATE, LATE, IN_TIME))
        now_s = feed(queue, now_s, 2, (LATE, IN_TIME, IN_TIME))
        assert not queue.on
    feed(queue, now_s, 6, (IN_TIME,))
    assert queue.idle


def test_silence_is_no_window() -> None:
    queue = StandingQueue(SETTINGS)
    for number in range(SETTINGS.queueing_windows):
        queue.update(100.0 * number, LATE)
    assert not queue.on


def test_a_queue_is_long_while_most_of_the_latest_delays_are_late() -> None:
    queue = StandingQueue(SETTINGS)
    seen = []
    for number, delay_s in enumerate((LATE, LATE, LATE, IN_TIME, LATE, IN_TIME, LATE, LATE, LATE)):
        queue.update(number * 0.01, delay_s)
        seen.append(queue.long_at(number * 0.01))
    assert seen == [False, False, True, True, True, False, False, True, True]
    assert not queue.long_at(0.09 + StandingQueue.STALE_S)


# a path
def judged() -> PathDetector:
    """A path that has answered and whose grace is over."""
    detector = PathDetector(SETTINGS, now_s=0.0)
    verdict = detector.update(0.1, 1, 0, 0, 0.0)
    assert verdict is not None
    assert verdict.evidence == "good"
    assert detector.update(1.0, 1, 0, 0, 0.0) is None
    assert detector.calm
    return detector


def test_a_path_that_never_answered_stays_unknown() -> None:
    detector = PathDetector(SETTINGS, now_s=0.0)
    for number in range(100):
        assert detector.update(float(number), 0, 0, 3, None) is None
        assert detector.update(float(number), 2, 2, 0, None) is None
    assert detector.verdict.evidence == "unknown"
    assert not detector.calm


def test_nothing_is_judged_in_the_grace_after_the_start() -> None:
    detector = PathDetector(SETTINGS, now_s=0.0)
    detector.update(0.1, 1, 0, 0, 0.0)
    assert detector.update(0.2, 50, 50, 3, 0.5) is None
    assert detector.update(0.2, 0, 0, 30, 0.5) is None
    assert detector.verdict.evidence == "good"


def test_blackhole_and_back() -> None:
    detector = judged()
    assert detector.update(1.1, 0, 0, 2, None) is None
    verdict = detector.update(1.2, 0, 0, 3, None)
    assert verdict is not None
    assert verdict.evidence == "blackhole"
    assert not detector.calm
    assert detector.update(1.3, 0, 0, 9, None) is None
    assert detector.update(4.0, 300, 299, 0, 0.0) is None
    verdict = detector.update(4.1, 3, 0, 0, 0.0)
    assert verdict is not None
    assert verdict.evidence == "good"  # the run's losses are the run's: the path is not called lossy
    assert detector.loss_ratio == 0.0
    assert detector.calm


def test_lossy_says_about_how_much() -> None:
    detector, rng, now_s = judged(), random.Random(5), 1.0
    verdict = None
    while verdict is None:
        now_s += 0.01
        verdict = detector.update(now_s, 1, int(rng.random() < 0.2), 0, 0.0)
    assert verdict.evidence == "lossy"
    assert "%" in verdict.why
    assert detector.loss_ratio > 0.01


def test_quiet_reports_count_in_the_ratio() -> None:
    loud, quiet = judged(), judged()
    for _ in range(50):
        loud.update(2.0, 2, 0, 0, 0.0)
        quiet.quiet(2)
    for detector in (loud, quiet):
        detector.update(3.0, 1, 1, 0, None)
    assert quiet.loss_ratio == pytest.approx(loss_after(101), rel=0.2)
    assert loud.verdict == quiet.verdict
    assert not quiet.calm


def loss_after(probes: int) -> float:
    keep = (1 - 1 / PathDetector.RATIO_MEMORY) ** probes
    return (1 - keep) / probes


def queued() -> tuple[PathDetector, float]:
    """A path on which a queue stands, and the time."""
    detector, now_s = judged(), 1.0
    verdict = None
    for _ in range(60):
        now_s += 0.01
        verdict = detector.update(now_s, 1, 0, 0, LATE) or verdict
    assert verdict is not None
    assert verdict.evidence == "queueing"
    return detector, now_s


def test_losses_in_a_full_queue_are_no_evidence() -> None:
    detector, now_s = queued()
    for _ in range(50):
        now_s += 0.01
        assert detector.update(now_s, 4, 3, 0, LATE) is None
        assert detector.aside == 3
    assert detector.loss_ratio == 0.0
    for _ in range(3):
        now_s += 0.01
        assert detector.update(now_s, 1, 0, 0, IN_TIME) is None
    verdict = detector.update(now_s, 9, 9, 0, IN_TIME)
    assert verdict is not None
    assert verdict.evidence == "lossy"
    assert detector.aside == 0


def late_path(loss: float, seconds: float = 30.0) -> set[str]:
    """What is said of a path on which every probe that arrives comes late, whatever makes it late."""
    detector, now_s = queued()
    said, missing = set(), 0
    rng = random.Random(5)
    for _ in range(round(seconds / 0.01)):
        now_s += 0.01
        if rng.random() < loss:
            missing += 1
            verdict = detector.update(now_s, 0, 0, missing, None)
        else:
            verdict = detector.update(now_s, 1 + missing, missing, 0, LATE)
            missing = 0
        said.update([verdict.evidence] if verdict is not None else [])
    return said


@pytest.mark.parametrize("loss", [0.3, 0.5, 0.8])
def test_a_path_that_loses_more_than_queues_do_fails_however_late_it_is(loss: float) -> None:
    assert late_path(loss) & {"lossy", "blackhole"}


@pytest.mark.parametrize("loss", [0.0, 0.02, 0.1])
def test_a_path_that_loses_what_queues_do_is_none_that_fails(loss: float) -> None:
    assert late_path(loss) == set()


def test_losses_beside_delays_are_set_aside_before_a_queue_is_found_to_stand() -> None:
    detector = judged()
    for number in range(3):
        detector.update(1.0 + number * 0.01, 1, 0, 0, LATE)
    assert detector.verdict.evidence == "good"
    assert detector.update(1.04, 8, 7, 0, LATE) is None
    assert detector.update(1.05, 0, 0, 5, None) is None
    assert detector.verdict.evidence == "good"


def test_a_run_that_arrives_late_after_all_was_a_queue() -> None:
    detector = judged()
    verdict = detector.update(1.1, 0, 0, 3, None)
    assert verdict is not None
    assert verdict.evidence == "blackhole"
    verdict = detector.update(1.16, 6, 1, 0, LATE)
    assert verdict is not None
    assert verdict.evidence == "queueing"
    assert detector.aside == 1
    assert detector.loss_ratio == 0.0


@pytest.mark.parametrize(("sent", "lost", "queueing_s"), [(20, 18, LATE), (6, 1, IN_TIME)])
def test_a_run_of_which_most_is_lost_or_nothing_is_late_was_none(sent: int, lost: int, queueing_s: float) -> None:
    detector = judged()
    detector.update(1.1, 0, 0, 3, None)
    assert detector.update(1.3, sent, lost, 0, queueing_s) is None
    assert detector.verdict.evidence == "blackhole"


def test_an_outage_is_none_the_less_one_when_the_second_report_after_it_is_late() -> None:
    detector = judged()
    detector.update(1.1, 0, 0, 3, None)
    assert detector.update(2.1, 101, 100, 0, LATE) is None
    assert detector.update(2.11, 1, 0, 0, LATE) is None
    assert detector.verdict.evidence == "blackhole"


def test_a_queue_that_lets_nothing_through_is_a_blackhole() -> None:
    detector, now_s = queued()
    assert detector.update(now_s + 0.1, 0, 0, 9, None) is None
    assert detector.update(now_s + PathDetector.FULL_S - 0.01, 0, 0, 29, None) is None
    verdict = detector.update(now_s + PathDetector.FULL_S, 0, 0, 30, None)
    assert verdict is not None
    assert verdict.evidence == "blackhole"


def test_large_probes_ask_the_small_ones_whether_there_is_a_queue() -> None:
    detector = judged()
    assert detector.update(1.1, 9, 9, 3, None, queued=True) is None
    assert detector.aside == 9
    verdict = detector.update(1.2, 0, 0, 3, None)
    assert verdict is not None
    assert verdict.evidence == "blackhole"


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 5), st.floats(0, 1)), max_size=60))
def test_verdicts_change_only_when_they_are_told(reports: list[tuple[int, int, int, float]]) -> None:
    detector, now_s, shown = PathDetector(SETTINGS, 0.0), 0.0, "unknown"
    for sent, lost, missing, queueing_s in reports:
        now_s += 0.1
        verdict = detector.update(now_s, sent, min(sent, lost), missing, queueing_s)
        if verdict is not None:
            assert verdict.evidence != shown
            shown = verdict.evidence
        assert detector.verdict.evidence == shown
        assert not (detector.calm and (shown != "good" or missing >= SETTINGS.blackhole_losses))


def test_what_is_judged_by_runs_alone_is_never_lossy_and_good_again_after_a_few() -> None:
    """Large probes: what a ratio of losses says they would take back after hundreds only, a minute and more."""
    for ratios in (True, False):
        detector = PathDetector(Detection(grace_s=0.0), 0.0, ratios=ratios)
        detector.update(0.0, 1, 0, 0, None)
        for step in range(1, 200):
            detector.update(step * 0.2, 2, int(step % 10 == 0), 0, None)
        assert detector.verdict.evidence == ("lossy" if ratios else "good")
        detector.update(50.0, 0, 0, 3, None)
        assert detector.verdict.evidence == "blackhole"
    for step in range(3):
        detector.update(51.0 + step, 1, 0, 0, None)
    assert detector.verdict.evidence == "good"


# paths that are probed to tell suspects apart
def test_only_a_path_that_is_asked_for_an_answer_is_a_blackhole_without_one() -> None:
    at_once, later = PathDetector(SETTINGS, 0.0, at_once=True), PathDetector(SETTINGS, 0.0)
    for missing in range(SETTINGS.blackhole_losses):
        assert at_once.update(0.01, 0, 0, missing, None) is None and at_once.verdict.evidence == "unknown"
    told = at_once.update(0.04, 0, 0, SETTINGS.blackhole_losses, None)
    assert told is not None and told.evidence == "blackhole"
    assert later.update(0.04, 0, 0, SETTINGS.blackhole_losses, None) is None
    at_once.update(0.05, 4, 3, 0, None)
    told = at_once.update(0.06, SETTINGS.blackhole_losses, 0, 0, None)
    assert told is not None and told.evidence == "good"
