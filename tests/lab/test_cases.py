"""Where a fabric is broken: on what carries the job's bytes, and not twice in a row."""

from __future__ import annotations

import random

import pytest

from lab.cases import BULK_RATIO, CASES, candidates, choose, fault_of
from lab.errors import LabError
from topology.model import Fabric

BULK, ACKS = 40e6, 2e6
RATES = {
    "host1>leaf1": BULK, "leaf1>spine2": BULK, "spine2>leaf3": BULK, "leaf3>host4": BULK,
    "host4>leaf4": ACKS, "leaf4>spine1": ACKS, "spine1>leaf1": ACKS, "leaf1>host1": ACKS,
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_place_carries_the_jobs_bytes(leaf_spine: Fabric, name: str) -> None:
    case = CASES[name]
    chance = random.Random(1)
    found = candidates(case, leaf_spine, RATES)
    for _ in range(20):
        place = choose(case, leaf_spine, RATES, chance)
        assert found[place.where] >= BULK_RATIO * max(found.values()) > 0
        assert place.broken
        assert all(leaf_spine.link_of(direction) for direction in place.broken)


@pytest.mark.parametrize("name", [name for name in CASES if name != "carrier"])
def test_no_link_is_broken_twice_in_a_row_while_another_carries(leaf_spine: Fabric, name: str) -> None:
    chance = random.Random(2)
    last = ""
    for _ in range(20):
        place = choose(CASES[name], leaf_spine, RATES, chance, last)
        assert place.link != last
        last = place.link


def test_the_only_link_that_carries_is_broken_again(leaf_spine: Fabric) -> None:
    place = choose(CASES["carrier"], leaf_spine, RATES, random.Random(0), "host1-leaf1")
    assert (place.link, place.host) == ("host1-leaf1", "host1")  # no other carries the job both ways


def test_the_same_seed_chooses_the_same_links(leaf_spine: Fabric) -> None:
    def chosen(seed: int) -> list[str]:
        chance = random.Random(seed)
        return [choose(CASES["blackhole-oneway"], leaf_spine, RATES, chance).where for _ in range(10)]

    assert chosen(3) == chosen(3)
    assert set(chosen(3)) == {"leaf1>spine2", "spine2>leaf3"}


def test_a_job_that_stands_still_is_said(leaf_spine: Fabric) -> None:
    with pytest.raises(LabError, match="no leaf-spine link carries"):
        choose(CASES["flap"], leaf_spine, {}, random.Random(0))


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("carrier", {"carrier:host1-leaf1"}),
        ("blackhole-both", {"blackhole:leaf1-spine2", "blackhole:leaf3-spine2"}),
        ("blackhole-oneway", {"blackhole:leaf1>spine2", "blackhole:spine2>leaf3"}),
        ("bucket", {"bucket:leaf1>spine2:3/4", "bucket:spine2>leaf3:3/4"}),
        ("loss-5pct", {"loss:leaf1-spine2:5%", "loss:leaf3-spine2:5%"}),
        ("flap", {"flap:leaf1-spine2:2hz", "flap:leaf3-spine2:2hz"}),
        ("rate-cut", {"rate:leaf1-spine2:5mbit", "rate:leaf3-spine2:5mbit"}),
        ("largepackets", {"large:leaf1>spine2:1000", "large:spine2>leaf3:1000"}),
        ("spine-dead", {"dead:spine2"}),
    ],
)
def test_the_fault_of_a_case(leaf_spine: Fabric, name: str, texts: set[str]) -> None:
    chance = random.Random(0)
    places = [choose(CASES[name], leaf_spine, RATES, chance) for _ in range(20)]
    assert {str(fault_of(CASES[name], place, leaf_spine, bucket=3)) for place in places} == texts


def test_a_drain_is_an_order_where_somebody_takes_orders(leaf_spine: Fabric) -> None:
    place = choose(CASES["drain"], leaf_spine, {"host2>leaf1": BULK}, random.Random(0))
    assert place.host == "host2"
    assert fault_of(CASES["drain"], place, leaf_spine) is None
    assert str(fault_of(CASES["drain"], place, leaf_spine, orders=False)) == "carrier:host2-leaf1"
