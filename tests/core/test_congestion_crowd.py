"""Many hosts move off the same link at once: they settle, nobody is worse off, nobody runs back and forth."""

from __future__ import annotations

import random

import pytest
from crowd_sim import CrowdSim
from hypothesis import given, settings
from hypothesis import strategies as st

from linkpass.core.settings import Limits

RACKS, PER_RACK, SPINES = 4, 3, 4
HOSTS = [f"host{number + 1}" for number in range(RACKS * PER_RACK)]


def crowd(seed: int, load: float) -> CrowdSim:
    """Each host sends to a host of the next rack and to two others, `load` of its two links in all."""
    chance = random.Random(seed)
    demand = {}
    for number, host in enumerate(HOSTS):
        following = HOSTS[(number + PER_RACK) % len(HOSTS)]
        others = chance.sample([name for name in HOSTS if name not in (host, following)], 2)
        for peer in (following, *others):
            demand[host, peer] = 2 * load / 3
    return CrowdSim(RACKS, PER_RACK, SPINES, demand)


def test_a_link_at_a_tenth_is_left_by_all_and_nothing_else_fills_up() -> None:
    sim = crowd(1, 0.25)
    assert sim.worst() < 1
    link = max((d for d in sim.load() if d.startswith("leaf") and "spine" in d), key=lambda d: sim.load()[d])
    sim.room[link] = 0.1
    kernel = sim.worst()
    assert kernel > 1
    sim.run(1.5)
    assert sim.worst() < 1, "in time"
    sim.run(6.0)
    assert sim.worst() < 1
    marks = sim.marks()
    sim.run(2.0)
    assert sum(sim.moves_since(marks).values()) == 0


def test_ways_back_get_rare() -> None:
    sim = crowd(2, 0.25)
    link = max((d for d in sim.load() if d.startswith("leaf") and "spine" in d), key=lambda d: sim.load()[d])
    sim.room[link] = 0.1
    busy_s = 0.0
    sim.run(8.0)
    for _ in range(240):
        sim.run(0.5)
        busy_s += 0.5 * (sim.worst() > 1)
    # Two minutes: ways back after 10 to 15 s, 20 to 30, 40 to 60, each of them a second or two of a queue at most.
    assert busy_s <= 12.0
    marks = sim.marks()
    sim.room[link] = 1.0
    sim.run(260.0)
    assert max(sim.moves_since(marks).values()) > 0
    assert all(not one.eased for host in sim.sims.values() for one in host.core.world.congestion.overloads)


@settings(max_examples=12)
@given(st.integers(0, 10_000), st.floats(0.05, 0.75), st.sampled_from([0.1, 0.3, 0.6]), st.integers(0, 1000))
def test_a_crowd_settles_and_is_never_worse_off_than_without(seed: int, load: float, room: float, which: int) -> None:
    sim = crowd(seed, load)
    cut = sorted(d for d in sim.load() if "spine" in d)
    sim.room[cut[which % len(cut)]] = room
    kernel = sim.worst()
    marks = sim.marks()
    sim.run(9.0)
    settled = sim.worst()
    assert settled <= max(kernel, 1.0) * 1.0001
    most = Limits().labels_per_peer
    for host, moved in sim.moves_since(marks).items():
        peers = sum(one == host for one, _ in sim.demand)
        assert moved <= most * peers, f"{host} moved {moved} times"
    marks = sim.marks()
    sim.run(60.0)
    for host, moved in sim.moves_since(marks).items():
        peers = sum(one == host for one, _ in sim.demand)
        assert moved <= 3 * 4 * peers, f"{host} goes back and forth: {moved}"


@pytest.mark.parametrize("seed", range(3))
def test_a_fabric_that_is_full_everywhere_is_left_alone(seed: int) -> None:
    sim = crowd(seed, 1.6)
    kernel = sim.worst()
    marks = sim.marks()
    sim.run(10.0)
    assert sim.worst() <= kernel * 1.0001
    assert sum(sim.moves_since(marks).values()) <= 2 * len(sim.demand)
