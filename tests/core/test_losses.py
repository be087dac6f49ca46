"""Which directions lose packets, by the counts of the paths that cross them."""

from __future__ import annotations

import random

import pytest
from ways import A, B, C, D, E, path

from linkpass.core.losses import Count, lossy_links

FABRIC = [
    *(path("h1", up, spine, down, host)
      for host in ("h3", "h4") for up in ("l1", "l2") for spine in ("s1", "s2") for down in ("l3", "l4")),
    path("h1", "l1", "h2"), path("h1", "l2", "h2"),
]  # fmt: skip
"""All shortest ways of a host of the leaf-spine fabric to the three others."""
LINKS = sorted({link for links in FABRIC for link in links})


def named(*counts: Count) -> list[str]:
    return lossy_links(counts, 0.001, 0.03, 12.0)


def test_the_link_that_all_lossy_paths_share_is_named() -> None:
    counts = [Count(A, 100, 6), Count(E, 100, 6), Count(B, 100, 0), Count(C, 100, 0), Count(D, 100, 0)]
    assert named(*counts) == ["l1>s1"]


def test_what_the_same_paths_cross_is_named_together_and_then_the_next() -> None:
    two = [Count(path("h1", "l1", "a"), 100, 9), Count(path("h1", "l2", "b"), 100, 8)]
    assert named(*two) == ["h1>l1", "l1>a", "h1>l2", "l2>b"]


def test_nobody_is_named_while_another_explains_it_nearly_as_well() -> None:
    assert named(Count(("h1>l1", "l1>s1", "s1>l3"), 60, 6), Count(("h1>l1", "l1>s1", "s1>l4"), 60, 1)) == []


def test_few_losses_name_nobody() -> None:
    assert named(Count(A, 100, 2)) == []
    assert named() == []


def test_one_bucket_of_all_its_links_names_none_of_them() -> None:
    assert named(Count(A, 100, 9), Count(A, 100, 0)) == []


def test_two_faults_are_not_laid_at_the_door_of_what_they_share() -> None:
    assert "h1>l1" not in named(Count(A, 100, 4), Count(B, 100, 4), Count(path("h1", "l1", "h2"), 100, 0))
    one = [Count(links, 40, 8 * sum(fault in links for fault in ("l1>s1", "l3>h3"))) for links in FABRIC]
    assert set(named(*one)) <= {"l1>s1", "l3>h3"}


@pytest.mark.parametrize("ratio", [0.01, 0.05, 0.2])
@pytest.mark.parametrize("faults", [1, 2])
def test_what_is_named_first_is_what_fails(faults: int, ratio: float) -> None:
    """Of one fault the name is right in 98 of 100, of two at once in 85; named are most within 5 s."""
    chance = random.Random(f"{faults} {ratio}")
    right = wrong = 0
    for number in range(40):
        bad = [LINKS[number % len(LINKS)]] if faults == 1 else chance.sample(LINKS, 2)
        first = until_named(chance, bad, ratio)
        right += bool(first) and not set(first).isdisjoint(bad)
        wrong += bool(first) and set(first).isdisjoint(bad)
    assert wrong <= (1 if faults == 1 else 6), (right, wrong)
    assert right >= (24 if ratio == 0.01 else 33), (right, wrong)


def until_named(chance: random.Random, bad: list[str], ratio: float) -> list[str]:
    """Windows of 50 ms, sums that halve each second, four times the probes on a path for half a second after a loss."""
    sent, lost, hot = ([0.0] * len(FABRIC) for _ in range(3))
    for window in range(100):
        for n, links in enumerate(FABRIC):
            probes = 20 if hot[n] > window else 5
            ways = sum(fault in links for fault in bad)
            gone = sum(chance.random() < 1 - (1 - ratio) ** ways for _ in range(probes)) if ways else 0
            if gone:
                hot[n] = window + 10
            sent[n], lost[n] = sent[n] * 0.5**0.05 + probes, lost[n] * 0.5**0.05 + gone
        if first := named(*(Count(links, sent[n], lost[n]) for n, links in enumerate(FABRIC))):
            return first
    return []
