"""How the bench judges what daemons have written down: pure, on made-up journals."""

from __future__ import annotations

import random
from itertools import permutations
from pathlib import Path

import pytest

import lab
from lab.bench import naming
from lab.bench.naming import CASES, DECOYS, judge
from lab.daemons import Entry
from lab.faults import parse
from linkpass.config.fabric_file import cables_of, read_file
from topology.model import Fabric


@pytest.fixture(scope="module")
def fabric() -> Fabric:
    file = Path(lab.__file__).with_name("leaf-spine.clab.yml")
    return cables_of(file, read_file(file)).fabric


def entries(*said: tuple[float, str]) -> list[Entry]:
    return [Entry(n, at_s, "c", f"verdict {what}", "", host="host1") for n, (at_s, what) in enumerate(said)]


def test_no_case_is_called_like_a_part_of_another() -> None:
    assert not [(a, b) for a, b in permutations(CASES, 2) if a in b]


@pytest.mark.parametrize("case", CASES)
def test_each_case_draws_faults_of_the_fabric_and_of_its_kind(fabric: Fabric, case: str) -> None:
    chance = random.Random(1)
    for _ in range(50):
        text = naming._place(CASES[case].fault, fabric, chance)
        faults = [parse(one, fabric) for one in text.split("+")]
        failed = [fault.where for fault in faults if fault.kind not in DECOYS]
        assert failed and failed[-1] == faults[-1].where  # the last is what time is counted from
        ends = [set(fault.where.replace(">", "-").split("-")) for fault in faults]
        assert len(ends) == 1 or ends[0].isdisjoint(ends[1])


def test_named_is_when_all_that_failed_has_been(fabric: Fabric) -> None:
    said = entries(
        (1.1, "direction: leaf1>spine1 lets nothing through"), (1.3, "direction: spine2>leaf3 lets nothing through"),
        (1.4, "direction: leaf1>spine1 holds no longer"),
    )  # fmt: skip
    held = {"direction leaf1>spine1", "direction spine2>leaf3"}
    found = judge("two", ["leaf1>spine1", "spine2>leaf3"], fabric, said, held, 1.0)
    assert (found.named_s, found.wrong, found.held) == (pytest.approx(0.3), [], "direction")
    assert judge("two", ["leaf1>spine1", "spine2>leaf3"], fabric, said[:1], held, 1.0).named_s is None


@pytest.mark.parametrize(
    ("failed", "said", "right"),
    [
        ("leaf1-spine1", "direction: leaf1>spine1 lets nothing through", True),
        ("leaf1>spine1", "link: leaf1-spine1 lets nothing through", False),
        ("leaf1>spine1", "switch: leaf1 (or leaf1>spine1: not told apart) lets nothing through", True),
        ("host1-leaf1", "nic: host1:eth1 lets nothing through", True),
        ("spine1", "link: leaf1-spine1 lets nothing through", None),
        ("spine1", "switch: spine2 lets nothing through", False),
    ],
)
def test_a_name_is_right_or_wrong_or_too_small(fabric: Fabric, failed: str, said: str, right: bool | None) -> None:
    found = judge("x", [failed], fabric, entries((1.5, said)), set(), 1.0)
    assert (found.named_s is not None, bool(found.wrong)) == (right is True, right is False)


def test_a_congested_decoy_that_is_accused_is_wrong_and_one_that_is_said_to_be_full_is_not(fabric: Fabric) -> None:
    said = entries((1.2, "congestion: leaf2>spine2 is overloaded"), (1.2, "direction: leaf2>spine2 loses 3.0%"))
    found = judge("x", ["leaf1>spine1"], fabric, said, set(), 1.0)
    assert found.wrong == ["verdict direction: leaf2>spine2 loses 3.0%"]
