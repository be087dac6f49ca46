"""What the search relies on: sums over odd paths, bounds that bound, differences that add up, and a way back."""

from __future__ import annotations

import numpy as np
from diagnosis_fabric import Observed, small
from hypothesis import given, settings
from hypothesis import strategies as st

from linkpass.core.diagnosis.explained import Explained
from linkpass.core.diagnosis.localise import Settings
from linkpass.core.diagnosis.model import fit
from linkpass.core.diagnosis.paths import Paths
from linkpass.core.diagnosis.search import Search, costs

OBSERVED = Observed(small())
COUNT = len(OBSERVED.routes)
NAMES = [*OBSERVED.elements.names]
HEALTHY = np.full(COUNT, 8e-5)
COST = costs(OBSERVED.paths, Settings().cost_nats)


def drawn(faults: dict[str, float], seed: int) -> Search:
    """Losses of these faults and of noise, in paths that carry much and little."""
    chance = np.random.default_rng(seed)
    kept = 1 - OBSERVED.window(faults).lost / 100.0
    sent = chance.choice([20.0, 200.0, 50_000.0], COUNT)
    lost = chance.binomial(sent.astype(int), np.clip(1 - kept * (1 - HEALTHY), 0, 1)).astype(float)
    return Search(OBSERVED.paths, sent, lost, HEALTHY, COST)


several = st.dictionaries(st.sampled_from(NAMES), st.sampled_from([1.0, 0.1, 0.02]), min_size=1, max_size=4)


def test_a_path_that_comes_to_a_node_twice_or_out_of_nowhere_counts_once() -> None:
    elements = OBSERVED.elements
    number = elements.index
    odd = [
        ["host1>leaf1", "leaf1>spine1", "spine1>leaf1", "leaf1>spine2"],  # leaf1 twice
        ["host1>leaf1", "spine2>leaf3", "leaf3>host4"],  # a step is missing
        ["spine1>leaf1"],
    ]
    paths = Paths(elements, elements.numbers(odd))
    weights = np.array([1.0, 10.0, 100.0])
    sums = paths.sums(weights)
    assert sums[number["leaf1"]] == 111.0
    assert sums[number["spine1"]] == 101.0
    assert sums[number["spine2"]] == 11.0
    assert sums[number["host1"]] == 11.0
    assert np.array_equal(sums, paths.sums(weights, np.arange(3)))
    rows, _ = paths.crossing(np.array([number["leaf1"]]))
    assert rows.tolist() == [0, 1, 2]


def test_one_flow_does_not_outweigh_the_paths_that_lose_everything() -> None:
    """Eight paths of a bucket are dead; one flow over the same direction loses little, for another reason."""
    n, k = np.full(40, 68.0), np.zeros(40)
    k[:8] = 68.0
    n[39], k[39] = 150_000.0, 450.0
    found = fit(n, k, np.full(40, 8e-5), np.zeros(40, dtype=bool), np.array([0, 40]), np.array([True]))
    assert found.scope[0] == 1
    assert found.ratio[0] > 0.99
    assert 0.15 < found.share[0] < 0.25


@settings(max_examples=25)
@given(several, st.integers(0, 2**32))
def test_no_element_gains_more_than_its_bound_whatever_is_blamed(faults: dict[str, float], seed: int) -> None:
    search = drawn(faults, seed)
    every = np.arange(len(NAMES))
    for _ in range(5):
        explained = search.explained
        over = explained.fit(every).nats - COST > np.maximum(explained.bounds, 0.0) + 1e-6
        assert not over.any(), [NAMES[element] for element in every[over]]
        found = search.best()
        if found is None:
            break
        search._add(found)


@settings(max_examples=25)
@given(several, st.integers(0, 2**32))
def test_what_is_kept_by_difference_is_what_is_counted_anew_and_has_a_way_back(
    faults: dict[str, float], seed: int
) -> None:
    search = drawn(faults, seed)
    search.run()
    n, k, r = search.n, search.k, search.explained.r
    nats = (k * np.log(r / HEALTHY) + (n - k) * (np.log1p(-r) - np.log1p(-HEALTHY))).sum()
    assert np.isclose(search.explained.nats, nats, rtol=1e-9, atol=1e-6)
    search.explained.back_to(0)
    fresh = Explained(OBSERVED.paths, n, k, HEALTHY, COST)
    assert np.array_equal(search.explained.r, fresh.r)
    assert np.array_equal(search.explained.bounds, fresh.bounds)
    assert search.explained.nats == 0.0
