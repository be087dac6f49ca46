"""Localisation: every element of a small fabric by its own kind, several at once, in part, and whom nothing accuses."""

from __future__ import annotations

import itertools
import subprocess
import sys

import numpy as np
import pytest
from diagnosis_fabric import EACH, Observed, small, suspects
from hypothesis import given, settings
from hypothesis import strategies as st

from linkpass.core.diagnosis.localise import Localiser, Settings, Window, certain
from linkpass.core.diagnosis.search import Search, costs
from linkpass.core.diagnosis.verdict import Hint
from topology.model import Fabric, Link, Node

FABRIC = small()
OBSERVED = Observed(FABRIC)
DIRECTIONS = [direction for link in FABRIC.links for direction in link.directions()]
BETWEEN = [link.id for link in FABRIC.links if link.a.node.startswith("leaf")]
NODES = [node.name for node in FABRIC.nodes]


@pytest.mark.parametrize("loss", [1.0, 0.05])
@pytest.mark.parametrize("element", [*DIRECTIONS, *BETWEEN, *NODES])
def test_every_element_is_named_alone_and_for_what_it_is(element: str, loss: float) -> None:
    (verdict,) = OBSERVED.told({element: loss})
    assert verdict.element == element
    assert verdict.others == ()
    assert verdict.scope == "whole" and verdict.confidence > 0.99
    kind = "direction" if ">" in element else "link" if "-" in element else FABRIC.node(element).role
    assert verdict.kind == kind
    assert verdict.loss_ratio == pytest.approx(loss, rel=0.9) or loss == 1.0


@pytest.mark.parametrize("port", ["host1:eth1", "host4:eth2"])
def test_a_nic_and_its_link_are_one_class_until_evidence_tells_them_apart(port: str) -> None:
    link = next(link.id for link in FABRIC.links if port in (link.a.id, link.b.id))
    (verdict,) = OBSERVED.told({port: 1.0})
    assert set(verdict.suspects) == {port, link}
    for element in (port, link):
        hint = Hint(element, 6.0, "symbol errors")
        (verdict,) = OBSERVED.told({port: 1.0}, hints=(hint,))
        assert verdict.suspects == (element,)
        assert "symbol errors" in verdict.evidence


def test_hints_alone_accuse_nobody_and_grow_old() -> None:
    localiser = OBSERVED.localiser()
    hint = Hint("host1:eth1", 6.0, "its driver reports a fatal event")
    assert localiser.window(OBSERVED.window({}, hints=(hint,))) == ()
    for _ in range(20):
        localiser.window(OBSERVED.window({}))
    said = certain(localiser.window(OBSERVED.window({"host1:eth1": 1.0})))
    assert len(said[0].suspects) == 2


@pytest.mark.parametrize(
    "faults",
    [
        {"leaf1": 1.0, "leaf4-spine2": 1.0},
        {"host1": 0.05, "spine2": 0.05, "leaf3>spine1": 1.0},
        {"host2": 1.0, "host5": 0.05, "leaf2-spine3": 0.05},
        {"leaf1-spine1": 1.0, "leaf2-spine3": 1.0, "leaf3>spine2": 0.05},
        {"spine1": 1.0, "host3": 0.05, "spine3>leaf2": 0.05, "host6": 1.0},
    ],
)
def test_several_at_once(faults: dict[str, float]) -> None:
    said = OBSERVED.told(faults, windows=3)
    assert suspects(said) == {frozenset((element,)) for element in faults}


def test_the_smallest_explanation_wins() -> None:
    """Five bad paths through one leaf are one bad leaf; all links of one host are a host."""
    leaf = OBSERVED.told({link.id: 1.0 for link in FABRIC.links_of("leaf2")})
    assert [(one.kind, one.element) for one in leaf] == [("switch", "leaf2")]
    host = OBSERVED.told({link.id: 1.0 for link in FABRIC.links_of("host3")})
    assert [(one.kind, one.element) for one in host] == [("host", "host3")]
    both_ways = OBSERVED.told({"leaf1>spine2": 0.05, "spine2>leaf1": 0.05})
    assert [(one.kind, one.element) for one in both_ways] == [("link", "leaf1-spine2")]


def test_one_bucket_of_a_direction() -> None:
    bucket = OBSERVED.crossing("leaf1>spine1")[1::5]
    (verdict,) = OBSERVED.told({"leaf1>spine1": 1.0}, only=bucket)
    assert (verdict.element, verdict.scope) == ("leaf1>spine1", "partial")
    assert 0.1 < verdict.share < 0.4
    assert any("a part of its paths only" in words for words in verdict.evidence)


def test_large_packets_only() -> None:
    large = np.flatnonzero(OBSERVED.large).tolist()
    (verdict,) = OBSERVED.told({"spine2>leaf3": 1.0}, only=large)
    assert (verdict.element, verdict.scope) == ("spine2>leaf3", "large")
    assert any("large packets only" in words for words in verdict.evidence)


def test_one_bad_path_names_nobody_at_once_and_then_all_that_it_may_be() -> None:
    localiser = OBSERVED.localiser()
    row = OBSERVED.crossing("leaf1>spine1")[0]
    window = OBSERVED.window({"leaf1>spine1": 1.0}, only=[row], span_s=0.5)
    assert certain(localiser.window(window)) == ()
    for _ in range(3):
        said = certain(localiser.window(window))
    (verdict,) = said
    assert set(verdict.suspects) == set(OBSERVED.routes[row])
    assert verdict.scope == "partial"


def test_a_hard_fault_is_named_in_its_first_window_whatever_was_before() -> None:
    localiser = OBSERVED.localiser()
    for _ in range(20):
        localiser.window(OBSERVED.window({}, sent=1000.0))
    said = certain(localiser.window(OBSERVED.window({"spine1": 1.0}, sent=3.0, span_s=0.03)))
    assert [one.element for one in said] == ["spine1"]


def test_one_lost_packet_is_not_a_silent_path() -> None:
    localiser = OBSERVED.localiser()
    row = OBSERVED.crossing("spine1")[0]
    assert localiser.window(OBSERVED.window({"spine1": 1.0}, sent=1.0, span_s=0.01, only=[row])) == ()
    assert localiser.window(OBSERVED.window({}, sent=1.0, span_s=0.01)) == ()
    assert certain(localiser.window(OBSERVED.window({}, sent=100.0))) == ()


def test_what_is_over_is_forgotten() -> None:
    localiser = OBSERVED.localiser()
    assert certain(localiser.window(OBSERVED.window({"leaf1-spine1": 1.0})))
    for _ in range(400):
        said = localiser.window(OBSERVED.window({}))
    assert said == ()


def test_weak_evidence_has_to_stand() -> None:
    patient = Settings(sure_nats=1e9, patience_s=1.5)
    localiser = OBSERVED.localiser(patient)
    window = OBSERVED.window({"spine1": 1.0})
    assert certain(localiser.window(window)) == () == certain(localiser.window(window))
    assert [one.element for one in certain(localiser.window(window))] == ["spine1"]


def test_congestion_is_not_failure() -> None:
    localiser = OBSERVED.localiser()
    crowded = OBSERVED.crossing("spine1>leaf3")
    for _ in range(20):
        said = localiser.window(OBSERVED.window({"spine1>leaf3": 0.02}, queued=crowded))
        assert certain(said) == ()
    (verdict,) = said
    assert (verdict.kind, verdict.element, verdict.certain) == ("congestion", "spine1>leaf3", True)
    for _ in range(60):
        assert certain(localiser.window(OBSERVED.window({}, queued=()))) == ()
    told = certain(localiser.window(OBSERVED.window({"host1": 1.0}, queued=crowded)))
    assert [one.element for one in told] == ["host1"]


def test_a_path_with_a_hole_accuses_nobody() -> None:
    failing = OBSERVED.crossing("leaf1>spine1")
    observed = Observed(FABRIC, holes=failing)
    assert observed.told({"leaf1>spine1": 1.0}) == ()
    few = Observed(FABRIC, holes=failing[:3])
    assert [one.element for one in few.told({"leaf1>spine1": 1.0})] == ["leaf1>spine1"]


def test_verdicts_say_what_was_seen_and_what_was_ruled_out() -> None:
    (verdict,) = OBSERVED.told({"leaf1>spine1": 1.0})
    count = len(OBSERVED.crossing("leaf1>spine1"))
    assert verdict.evidence[0].startswith(f"{count} of the {count} observed paths over it lose")
    assert any(words.startswith("leaf1: ") and "are clean" in words for words in verdict.ruled_out)
    assert not any(words.startswith("leaf1>spine1: ") for words in verdict.ruled_out)


# properties
def test_no_observation_no_verdict() -> None:
    nothing = np.zeros(len(OBSERVED.routes))
    assert Localiser(OBSERVED.paths).window(Window(1.0, nothing, nothing, nothing)) == ()
    assert OBSERVED.localiser().window(Window(1.0, nothing, nothing)) == ()


@given(st.integers(0, 2**32), st.floats(0, 2e-5), st.integers(1, 5000))
def test_healthy_noise_names_nothing(seed: int, ratio: float, sent: int) -> None:
    chance = np.random.default_rng(seed)
    localiser = Localiser(OBSERVED.paths)
    for _ in range(5):
        lost = chance.binomial(sent, 1 - (1 - ratio) ** OBSERVED.paths.lengths).astype(float)
        assert certain(localiser.window(Window(1.0, np.full(len(lost), float(sent)), lost))) == ()


@given(st.sets(st.sampled_from([*DIRECTIONS, *BETWEEN, *NODES]), min_size=1, max_size=3), st.randoms())
def test_names_and_their_order_change_nothing(faults: set[str], chance: object) -> None:
    shuffled = [*NODES]
    chance.shuffle(shuffled)  # type: ignore[attr-defined]
    name = {old: f"n{place}" for place, old in enumerate(shuffled)}

    def renamed(element: str) -> str:
        for sign in (">", "-", ":"):
            if sign in element:
                a, b = element.split(sign)
                return f"{name[a]}{sign}{name.get(b, b)}"
        return name[element]

    nodes = [Node(name[node.name], node.role, node.tier) for node in FABRIC.nodes]
    links = [Link(*(type(port)(name[port.node], port.name) for port in (link.a, link.b))) for link in FABRIC.links]
    chance.shuffle(links)  # type: ignore[attr-defined]
    other = Observed(Fabric("other", sorted(nodes, key=lambda node: node.name), links))
    place = _rows_by_route(other)
    ours = OBSERVED.window(dict.fromkeys(faults, 1.0))
    lost = np.zeros(len(ours.lost))
    for row, route in enumerate(OBSERVED.routes):
        twin = place[tuple(renamed(direction) for direction in route)][row % EACH]
        lost[twin] = ours.lost[row]
    said = certain(OBSERVED.localiser().window(ours))
    theirs = certain(other.localiser().window(Window(1.0, ours.sent, lost)))
    assert {frozenset(map(renamed, one.suspects)) for one in said} == suspects(theirs)


def _rows_by_route(observed: Observed) -> dict[tuple[str, ...], list[int]]:
    rows: dict[tuple[str, ...], list[int]] = {}
    for row, route in enumerate(observed.routes):
        rows.setdefault(tuple(route), []).append(row)
    return rows


@settings(max_examples=8)
@given(st.data())
def test_the_search_finds_what_all_pairs_of_elements_would(data: st.DataObject) -> None:
    observed = Observed(small(4))
    names = [*observed.elements.names]
    faults = data.draw(st.sets(st.sampled_from(names), min_size=1, max_size=2))
    loss = data.draw(st.sampled_from([1.0, 0.1]))
    window = observed.window(dict.fromkeys(faults, loss))
    healthy = np.full(len(window.sent), 8e-5)
    cost = costs(observed.paths, Settings().cost_nats)

    def fresh() -> Search:
        return Search(observed.paths, window.sent, window.lost, healthy, cost)

    search = fresh()
    search.run()
    found = search._objective()
    single = {name: _fitted(fresh(), [name]) for name in names}
    promising = sorted(names, key=lambda name: -single[name])[:16]
    pairs = [_fitted(fresh(), pair) for pair in itertools.permutations(promising, 2)]
    assert found >= max(*single.values(), *pairs) - 1.0


def _fitted(search: Search, names: object) -> float:
    for name in names:  # type: ignore[attr-defined]
        one = search._blame(search.paths.elements.index[name])
        if one.nats == -np.inf:
            return -np.inf
        search._add(one)
    return search._objective()


def test_the_daemon_starts_without_numpy() -> None:
    code = "import sys, linkpass.app, linkpass.core.machine; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
