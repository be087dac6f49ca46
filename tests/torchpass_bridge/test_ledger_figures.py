"""What the ledger's figures are made of."""

from __future__ import annotations

import msgspec
import pytest

from torchpass_bridge.ledger import cause_of, line, span_s, summarise
from torchpass_bridge.wire import Entry, Kind, Outcome


def entry(
    outcome: Outcome = "moved", kind: Kind = "crash", pause_s: float = 0.5, steps_lost: int = 0, cause: str = "c",
    trigger: str = "silence",
) -> Entry:  # fmt: skip
    return Entry("j", 1, kind, cause, (), trigger, (0,), ("h7",), (), outcome, "", 0.0, 9.0, pause_s, steps_lost, 8, 1)


def test_the_share_is_of_what_moved_or_failed_and_cancelled_moves_are_neither() -> None:
    said = line([entry(), entry(steps_lost=2), entry("stopped"), entry("lost"), entry("cancelled", pause_s=0.0)])
    assert (said.incidents, said.moved, said.stopped, said.lost, said.cancelled) == (5, 2, 1, 1, 1)
    assert (said.resolved_ratio, said.steps_lost) == (0.25, 2)


def test_detection_is_told_of_what_was_detected() -> None:
    assert line([entry(kind="planned")]).detection_s is None
    found = [msgspec.structs.replace(entry(), detection_s=detection_s) for detection_s in (0.3, 0.0, 0.7)]
    assert line(found).detection_s == {"p50": 0.3, "p95": 0.7, "max": 0.7}


def test_without_anything_that_counts_there_is_no_share_rather_than_a_good_one() -> None:
    assert line([]).resolved_ratio is None and line([]).pause_s is None
    assert line([entry("cancelled", pause_s=0.0)]).resolved_ratio is None
    assert line([entry("stopped")]).pause_s is None


def test_every_accelerator_of_the_job_waits_for_a_pause() -> None:
    said = line([entry(pause_s=pause_s) for pause_s in (0.1, 0.2, 0.3, 2.0)])
    assert said.accelerator_s == pytest.approx(8 * 2.6)
    assert said.pause_s == {"p50": 0.2, "p95": 2.0, "max": 2.0}


def test_causes_of_a_kind_are_one() -> None:
    crash = "rank 3 on h7: not heard for 0.7 s"
    assert cause_of(entry(cause=crash)) == "not heard for N s"
    assert cause_of(entry(cause="asked to leave h7")) == "asked to leave HOST"
    assert cause_of(entry(cause="")) == "not said"
    said = summarise(
        [entry(cause=crash), entry(cause=crash.replace("3", "1")), entry(kind="planned", trigger="daemon")]
    )
    assert {name: one.incidents for name, one in said.by_cause.items()} == {"not heard for N s": 2, "c": 1}
    assert list(said.by_kind) == ["crash", "planned"] and said.by_trigger["daemon"].incidents == 1


@pytest.mark.parametrize(
    ("text", "wanted"), [("30d", 2592000.0), ("1.5 h", 5400.0), ("90min", 5400.0), ("2w", 1209600.0)]
)
def test_spans_of_time(text: str, wanted: float) -> None:
    assert span_s(text) == wanted


@pytest.mark.parametrize("text", ["", "30", "d", "30x", "-1d"])
def test_what_is_no_span_of_time(text: str) -> None:
    with pytest.raises(ValueError, match="no span of time"):
        span_s(text)
