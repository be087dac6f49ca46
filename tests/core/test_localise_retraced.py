"""What a localiser keeps when paths are traced anew: evidence of paths that go as they went, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from diagnosis_fabric import EACH, Observed, small
from hypothesis import given
from hypothesis import strategies as st

from linkpass.core.diagnosis.elements import Elements
from linkpass.core.diagnosis.localise import Localiser, Window, certain
from linkpass.core.diagnosis.paths import Paths
from linkpass.core.diagnosis.verdict import Hint
from topology.model import Fabric

FABRIC = small()
OBSERVED = Observed(FABRIC)
COUNT = len(OBSERVED.routes)
FAULTS = ({"leaf1>spine1": 1.0}, {"spine2": 0.05}, {"host3": 1.0, "leaf2-spine3": 0.05})


def chosen(window: Window, rows: np.ndarray) -> Window:
    """A window of some of the paths, in that order."""
    queued = None if window.queued is None else window.queued[rows]
    return Window(window.span_s, window.sent[rows], window.lost[rows], queued, window.hints)


def paths_of(elements: Elements, rows: np.ndarray, holes: np.ndarray | None = None) -> Paths:
    directions = elements.numbers([OBSERVED.routes[row] for row in rows])
    mute = np.zeros(len(rows), dtype=bool) if holes is None else holes
    directions[mute, 1:] = -1
    return Paths(elements, directions, holes=mute, large=OBSERVED.large[rows])


def told(localiser: Localiser, window: Window) -> list[tuple[str, float, float, bool]]:
    said = localiser.window(window)
    return [(one.element, round(one.nats, 6), round(one.since_s, 6), one.certain) for one in said]


@given(st.sampled_from(FAULTS), st.randoms(use_true_random=False))
def test_in_another_order_and_with_other_numbers_nothing_is_lost(faults: dict[str, float], chance: object) -> None:
    links, order = [*FABRIC.links], [*range(COUNT)]
    chance.shuffle(links)  # type: ignore[attr-defined]
    chance.shuffle(order)  # type: ignore[attr-defined]
    rows = np.array(order)
    queued = OBSERVED.crossing("spine3>leaf1")
    first = OBSERVED.window(faults, sent=20.0, span_s=0.5, queued=queued, hints=(Hint("host3", 3.0, "it is slow"),))
    then = OBSERVED.window(faults, sent=20.0, span_s=0.5, queued=queued)
    stays = OBSERVED.localiser()
    stays.window(first)
    goes = stays.with_paths(paths_of(Elements(Fabric("other", FABRIC.nodes, links)), rows), rows)
    for _ in range(3):
        assert sorted(told(stays, then)) == sorted(told(goes, chosen(then, rows)))


def test_what_was_lost_on_another_way_accuses_nobody_on_this_one() -> None:
    localiser = OBSERVED.localiser()
    localiser.window(OBSERVED.window({"leaf1>spine1": 1.0}))
    there, twins = OBSERVED.crossing("leaf1>spine1"), OBSERVED.crossing("leaf1>spine2")
    rows = np.arange(COUNT)
    rows[there] = [next(twin for twin in twins if _ends(twin) == _ends(row)) for row in there]
    moved = localiser.with_paths(paths_of(OBSERVED.elements, rows), np.arange(COUNT))
    quiet = OBSERVED.window({}, sent=1.0, span_s=0.01)
    assert [one.element for one in localiser.window(quiet)] == ["leaf1>spine1"]
    assert moved.window(quiet) == ()


def _ends(row: int) -> tuple[str, str]:
    return OBSERVED.routes[row][0], OBSERVED.routes[row][-1]


def test_paths_that_are_gone_are_forgotten_and_new_ones_begin_with_nothing() -> None:
    localiser = OBSERVED.localiser()
    localiser.window(OBSERVED.window({"leaf1>spine1": 1.0}))
    failing = OBSERVED.crossing("leaf1>spine1")
    others = np.setdiff1d(np.arange(COUNT), failing)
    nothing = Window(0.01, np.zeros(len(others)), np.zeros(len(others)))
    assert localiser.with_paths(paths_of(OBSERVED.elements, others), others).window(nothing) == ()
    rows = np.arange(COUNT)
    as_new = np.where(np.isin(rows, failing), -1, rows)
    again = localiser.with_paths(paths_of(OBSERVED.elements, rows), as_new)
    assert again.window(Window(0.01, np.zeros(COUNT), np.zeros(COUNT))) == ()
    (verdict,) = certain(again.window(OBSERVED.window({"leaf1>spine1": 1.0}, sent=3.0, span_s=0.03)))
    assert verdict.element == "leaf1>spine1" and verdict.since_s == 0.0


def test_a_trace_that_fails_once_costs_no_evidence() -> None:
    """A hop was mute, or answers now: as far as both traces know, the path goes as it went."""
    rows, failing = np.arange(COUNT), OBSERVED.crossing("leaf1>spine1")
    mute = np.isin(rows, failing)
    localiser = OBSERVED.localiser()
    localiser.window(OBSERVED.window({"leaf1>spine1": 1.0}))
    nothing = Window(0.01, np.zeros(COUNT), np.zeros(COUNT))
    holed = localiser.with_paths(paths_of(OBSERVED.elements, rows, mute), rows)
    assert holed.window(nothing) == ()
    whole = holed.with_paths(paths_of(OBSERVED.elements, rows), rows)
    assert [one.element for one in certain(whole.window(nothing))] == ["leaf1>spine1"]


@pytest.mark.parametrize("kept", [True, False])
def test_a_suspicion_keeps_its_age_by_element_where_its_path_is_gone(kept: bool) -> None:
    localiser = OBSERVED.localiser()
    failing = OBSERVED.crossing("leaf1>spine1")
    window = OBSERVED.window({"leaf1>spine1": 0.05}, sent=20.0, span_s=0.3)
    for _ in range(2):
        (before,) = localiser.window(window)
    assert before.element == "leaf1>spine1" and before.since_s == pytest.approx(0.3)
    rows = np.arange(COUNT) if kept else np.setdiff1d(np.arange(COUNT), failing[:EACH])
    (after,) = localiser.with_paths(paths_of(OBSERVED.elements, rows), rows).window(chosen(window, rows))
    assert after.element == before.element
    assert after.since_s == pytest.approx(before.since_s + 0.3)


def test_hints_about_elements_that_are_gone_are_forgotten_and_the_others_grow_old() -> None:
    localiser = OBSERVED.localiser()
    hints = (Hint("host1:eth1", 6.0, "symbol errors"), Hint("host6", 6.0, "it hangs"))
    localiser.window(OBSERVED.window({}, hints=hints))
    links = [link for link in FABRIC.links if "host6" not in (link.a.node, link.b.node)]
    nodes = [node for node in FABRIC.nodes if node.name != "host6"]
    rows = np.array([row for row, route in enumerate(OBSERVED.routes) if not any("host6" in way for way in route)])
    moved = localiser.with_paths(paths_of(Elements(Fabric("less", nodes, links)), rows), rows)
    failing = chosen(OBSERVED.window({"host1:eth1": 1.0}), rows)
    (verdict,) = certain(moved.window(failing))
    assert verdict.suspects == ("host1:eth1",) and "symbol errors" in verdict.evidence
    for _ in range(12):
        (verdict,) = certain(moved.window(failing))
    assert len(verdict.suspects) == 2


def test_a_path_on_which_nobody_looked_for_a_queue_speaks_against_none() -> None:
    localiser = OBSERVED.localiser()
    crowded = OBSERVED.crossing("spine1>leaf3")
    for _ in range(20):
        said = localiser.window(OBSERVED.window({}, queued=crowded))
    rows = np.arange(COUNT)
    was = np.where(np.isin(rows, crowded[::2]), -1, rows)
    moved = localiser.with_paths(paths_of(OBSERVED.elements, rows), was)
    (verdict,) = moved.window(OBSERVED.window({}, queued=crowded))
    assert (verdict.kind, verdict.element, verdict.certain) == ("congestion", "spine1>leaf3", True)
    assert verdict.since_s == pytest.approx(said[0].since_s + 1.0)
