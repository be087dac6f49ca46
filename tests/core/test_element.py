"""The element's machine: every state with every input, and damping as a property."""

from __future__ import annotations

import math
from typing import get_args

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from linkpass.core.element import TRANSITIONS, Element, ImpossibleInputError, Input, State
from linkpass.core.settings import Damping

DAMPING = Damping()


def element_in(state: State) -> Element:
    """An element that has come into a state by its own way."""
    element = Element("leaf1>spine1", DAMPING)
    ways: dict[State, list[tuple[Input, float]]] = {
        "unknown": [],
        "up": [("good", 1.0)],
        "down": [("good", 1.0), ("bad", 2.0)],
        "watch": [("good", 1.0), ("bad", 2.0), ("good", 3.0)],
        "held": [("good", 1.0), ("bad", 2.0), ("good", 2.1), ("bad", 2.2), ("good", 2.3)],
    }
    for what, now_s in ways[state]:
        element.feed(what, now_s, why="on its way", cause="host1-1")
    if state == "held":
        element.tick(2.3 + DAMPING.observe_s)
    assert element.state == state
    return element


@pytest.mark.parametrize("what", get_args(Input))
@pytest.mark.parametrize("state", get_args(State))
def test_every_state_takes_every_input_as_declared_or_raises_with_its_story(state: State, what: Input) -> None:
    element = element_in(state)
    after = TRANSITIONS.get((state, what))
    if after is None:
        with pytest.raises(ImpossibleInputError, match=rf"leaf1>spine1: '{what}' in state '{state}'") as raised:
            element.feed(what, 10.0)
        assert state == "unknown" or "on its way" in str(raised.value)
        assert element.state == state
        return
    assert element.feed(what, 10.0, why="told") is (after != state)
    assert element.state == after
    if after != state:
        assert element.since_s == 10.0
        assert element.why == "told"
        assert f"{state}->{after}" in element.story[-1]
    assert (element.deadline_s is not None) == (after in ("watch", "held"))


def test_only_time_passes_floors() -> None:
    by_time = {(state, what) for state, what in TRANSITIONS if what in ("floor_passed", "decayed")}
    assert by_time == {("watch", "floor_passed"), ("held", "decayed")}


def test_bad_in_down_renews_the_reason_only() -> None:
    element = element_in("down")
    penalty = element.penalty
    assert not element.feed("bad", 5.0, why="something else")
    assert (element.why, element.penalty, element.since_s) == ("something else", penalty, 2.0)


def test_one_failure_waits_for_the_floor_only() -> None:
    element = element_in("watch")
    assert element.deadline_s == 3.0 + DAMPING.observe_s
    assert not element.tick(3.5)
    assert element.tick(4.0)
    assert (element.state, element.deadline_s) == ("up", None)


def test_two_failures_are_held_until_the_penalty_has_decayed() -> None:
    element = element_in("held")
    assert element.suppressed
    assert element.deadline_s is not None
    wait_s = element.deadline_s - 2.2
    assert wait_s == pytest.approx(DAMPING.half_life_s * math.log2(element.penalty / DAMPING.reuse), rel=1e-6)
    assert element.tick(element.deadline_s)
    assert element.state == "up" and not element.suppressed


def test_what_was_never_up_has_not_failed() -> None:
    element = Element("eth1", DAMPING)
    element.feed("bad", 1.0)
    assert (element.state, element.penalty) == ("down", 0.0)


def test_silence_earns_nothing_and_costs_nothing() -> None:
    for state in ("watch", "held"):
        element = element_in(state)
        penalty = element.penalty
        element.feed("quiet", 3.5)
        assert (element.state, element.penalty, element.deadline_s) == ("down", penalty, None)


def test_relapses_double_the_floor_up_to_its_ceiling_and_a_long_good_spell_forgets_them() -> None:
    element, now_s = element_in("up"), 10.0
    floors = []
    for _ in range(12):
        element.feed("bad", now_s)
        element.feed("good", now_s + 0.1)
        floors.append(element.observe_s())
        while element.state != "up":
            assert element.deadline_s is not None
            now_s = element.deadline_s
            element.tick(now_s)
        now_s += 1.0
    assert floors[:4] == [1.0, 2.0, 4.0, 8.0]
    assert floors[-1] == DAMPING.observe_max_s
    element.feed("bad", now_s + DAMPING.forget_s)
    assert element.observe_s() == DAMPING.observe_s


def test_clear_forgets_and_lets_up_what_is_good() -> None:
    for state, after in (("watch", "up"), ("held", "up"), ("down", "down"), ("up", "up")):
        element = element_in(state)
        element.feed("clear", 4.0)
        assert (element.state, element.penalty, element.suppressed, element.relapses) == (after, 0.0, False, 0)


@pytest.mark.parametrize("state", ["up", "watch", "held"])
def test_an_element_is_absolved_of_its_latest_failure_and_of_no_earlier_one(state: State) -> None:
    element = element_in(state)
    before = element.penalty, element.penalty_at_s, element.suppressed, element.relapses
    assert not element.absolve(9.0, "it did not fail")
    element.feed("bad", 10.0, why="seems to fail")
    assert element.penalty > before[0]
    assert element.absolve(10.1, "late, not dead")
    assert (element.penalty, element.penalty_at_s, element.suppressed, element.relapses) == before
    assert (element.state, element.why) == (state, "late, not dead")
    assert (element.deadline_s is None) is (state == "up")
    assert not element.absolve(10.2, "twice")


def test_what_has_failed_without_having_been_up_is_up_when_it_did_not() -> None:
    element = element_in("unknown")
    element.feed("bad", 1.0)
    assert element.absolve(1.1, "late, not dead")
    assert element.state == "up"


def test_the_story_stays_short() -> None:
    element = element_in("up")
    for turn in range(50):
        element.feed("bad" if turn % 2 else "good", 10.0 + turn)
    assert len(element.story) <= 12


dampings = st.builds(
    Damping,
    penalty=st.floats(1, 5000),
    suppress=st.floats(1, 5000),
    reuse=st.floats(1, 5000),
    ceiling=st.floats(1, 20000),
    half_life_s=st.floats(0.1, 600),
    observe_s=st.floats(0.01, 10),
    observe_max_s=st.floats(10, 600),
)
feeds = st.lists(st.tuples(st.sampled_from(["bad", "good", "quiet", "clear", "tick"]), st.floats(0, 50)), max_size=60)


@given(dampings, feeds)
def test_damping_is_bounded_and_always_lets_go(damping: Damping, story: list[tuple[Input, float]]) -> None:
    assume(damping.reuse <= damping.suppress <= damping.ceiling)
    element, now_s = Element("x", damping), 0.0
    for what, gap_s in story:
        now_s += gap_s
        element.tick(now_s)
        if what != "tick":  # type: ignore[comparison-overlap]
            element.feed(what, now_s)
        assert 0 <= element.penalty <= damping.ceiling
        assert 0 <= element.penalty_now(now_s) <= element.penalty
        assert element.observe_s() <= damping.observe_max_s
        if element.deadline_s is not None:
            assert math.isfinite(element.deadline_s) and element.deadline_s >= now_s
            assert element.state in ("watch", "held")
    element.feed("good", now_s)
    patience_s = damping.observe_max_s + damping.half_life_s * math.log2(damping.ceiling / damping.reuse) + 1
    turns = 0
    while element.state != "up":
        assert element.deadline_s is not None, f"{element.state} wants nothing and is not up"
        assert element.deadline_s <= now_s + patience_s
        element.tick(element.deadline_s)
        turns += 1
        assert turns < 5


@given(st.floats(0.2, 0.8), st.integers(4, 40), st.floats(0, 1000))
def test_a_flap_at_2_hz_never_comes_up_while_it_flaps(duty: float, flaps: int, start_s: float) -> None:
    element = Element("eth1", DAMPING)
    element.feed("good", start_s)
    for turn in range(flaps):
        at_s = start_s + 1 + turn * 0.5
        element.tick(at_s)
        assert turn == 0 or element.state != "up"
        element.feed("bad", at_s)
        element.tick(at_s + duty * 0.5)
        element.feed("good", at_s + duty * 0.5)
        assert element.state == "watch"
    last_s = start_s + 1 + flaps * 0.5
    element.tick(last_s + DAMPING.observe_s)
    assert element.state == "held"
    assert element.deadline_s is not None and element.deadline_s - last_s < 3 * DAMPING.half_life_s + 1
