"""The pure choices one by one: who is blamed, what is chosen, how it is spread, and small books."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ways import A, B, C, D, E, path

from linkpass.core.blame import explain
from linkpass.core.decide import ORDER, Option, fill, moved_share, select
from linkpass.core.desired import Wish
from linkpass.core.paths import links_of, pool_of, spread

HOSTS = frozenset({"h1", "h2", "h3", "h4"})


# blame
def test_nothing_failing_blames_nobody() -> None:
    assert explain([], [A, B], HOSTS) == []


def test_one_link_on_all_failing_paths() -> None:
    (verdict,) = explain([A, E], [B, C, D], HOSTS)
    assert (verdict.kind, verdict.links) == ("link", ("l1>s1",))


def test_links_that_cannot_be_told_apart_are_named_together() -> None:
    (verdict,) = explain([path("h1", "l1", "h2")], [], HOSTS)
    assert (verdict.kind, verdict.name) == ("link", "h1>l1 or l1>h2")


def test_a_switch_that_only_failing_paths_cross() -> None:
    (verdict,) = explain([A, C], [B, D], HOSTS)
    assert (verdict.kind, verdict.name) == ("switch", "s1")
    assert set(verdict.links) == {"l1>s1", "s1>l3", "l2>s1", "s1>l4"}


def test_a_host_all_of_whose_links_fail_is_the_host() -> None:
    failing = [path("h1", "l1", "s1", "l3", "h3"), path("h1", "l2", "s2", "l4", "h3")]
    good = [path("h1", "l1", "s1", "l3", "h4"), path("h1", "l2", "s2", "l4", "h4")]
    (verdict,) = explain(failing, good, HOSTS)
    assert (verdict.kind, verdict.name) == ("host", "h3")


def test_own_host_is_never_the_culprit() -> None:
    verdicts = explain([path("h1", "l1", "h2"), path("h1", "l2", "h4")], [], HOSTS)
    assert all(verdict.name != "h1" for verdict in verdicts)


def test_what_good_paths_cover_is_a_partial_fault() -> None:
    (verdict,) = explain([A], [A, B], HOSTS)
    assert (verdict.kind, verdict.links) == ("path", ())


def test_two_faults_take_two_links_and_a_bucket_beside_them_is_told_apart() -> None:
    failing = [path("h1", "l1", "a"), path("h1", "l1", "b"), path("h1", "l2", "c"), path("h1", "l2", "d")]
    good = [path("h1", "l1", "x"), path("h1", "l2", "y"), path("h1", "l1", "b"), path("h1", "l1", "z")]
    verdicts = explain([*failing, path("h1", "l1", "z")], good, HOSTS)
    assert [verdict.kind for verdict in verdicts] == ["path", "link", "link", "link"]
    assert {link for verdict in verdicts for link in verdict.links} == {"l1>a", "l2>c", "l2>d"}


directions = st.lists(st.sampled_from("abcdef"), min_size=2, max_size=5, unique=True).map(
    lambda nodes: path("h1", *nodes, "h2")
)


@given(st.lists(directions, max_size=8), st.lists(directions, max_size=8))
def test_no_link_of_a_good_path_is_ever_blamed(failing: list[tuple[str, ...]], good: list[tuple[str, ...]]) -> None:
    verdicts = explain(failing, good, HOSTS)
    blamed = {link for verdict in verdicts for link in verdict.links}
    assert not blamed & {link for one in good for link in one}
    assert blamed <= {link for one in failing for link in one}
    assert bool(verdicts) == bool(failing)


# choosing
def options(*grades: str) -> list[Option]:
    return [Option(number, grade, why=grade) for number, grade in enumerate(grades)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("grades", "chosen"),
    [
        ([], []),
        (["good", "good"], [0, 1]),
        (["good", "hard", "hard", "hard"], [0]),
        (["good", "earning", "unproven", "hard"], [0]),
        (["good", "good", "soft", "soft"], [0, 1]),
        (["good", "soft", "soft", "soft"], [0, 3]),
        (["good", "soft", "hard", "hard"], [0]),
        (["good", "soft", "soft", "hard"], [0, 2]),
        (["hard", "hard"], [0, 1]),
        (["soft", "hard", "unproven"], [0]),
        (["unproven", "hard"], [0]),
        (["earning", "soft"], [0]),
    ],
)
def test_what_is_chosen_of_which_grades(grades: list[str], chosen: list[int]) -> None:
    found, why = select(options(*grades), 0.5)
    assert [option.name for option in found] == chosen
    assert why


def test_the_cap_is_told_and_takes_the_costliest_first_and_what_carries_last() -> None:
    some = [
        Option(0, "good"),
        Option(1, "soft", "lossy", 0.05),
        Option(2, "soft", "lossy", 0.2),
        Option(3, "soft", "x"),
    ]
    found, why = select(some, 0.5)
    assert [option.name for option in found] == [0, 3]
    assert "1 kept although x: at most 50% may be moved at once" in why
    equals = [Option(0, "good"), *(Option(n, "soft", "x", 0.051, carries=n == 1) for n in (1, 2, 3))]
    assert [option.name for option in select(equals, 0.5)[0]] == [0, 1]


def test_of_bad_ones_the_cheapest_stay() -> None:
    some = [Option(0, "soft", cost=0.30), Option(1, "soft", cost=0.05), Option(2, "soft", cost=0.055)]
    assert [option.name for option in select(some, 0.5)[0]] == [1, 2]


grades = st.lists(st.sampled_from(list(ORDER)), min_size=1, max_size=12)


@given(grades, st.floats(0, 1))
def test_something_is_always_chosen_and_soft_ones_keep_their_share(which: list[str], ratio: float) -> None:
    found, _ = select(options(*which), ratio)
    assert found
    kinds = [option.grade for option in found]
    if "good" in which:
        assert set(kinds) <= {"good", "soft"}
        works = which.count("good") + which.count("soft")
        assert works - len(found) <= ratio * works
    else:
        assert set(kinds) == {min(which, key=lambda grade: ORDER[grade])}  # type: ignore[index]


@given(st.lists(st.integers(1, 12), max_size=16), st.lists(st.integers(1, 12), min_size=1, max_size=12, unique=True))
def test_buckets_are_spread_evenly_and_moved_no_more_than_need_be(current: list[int], wanted: list[int]) -> None:
    found = fill(current, wanted, 16)
    assert len(found) == 16 and set(found) <= set(wanted)
    shares = [found.count(label) for label in wanted]
    assert max(shares) - min(shares) <= 1
    assert fill(found, wanted, 16) == found
    kept = sum(a == b for a, b in zip(current, found, strict=False))
    share, extra = divmod(16, len(wanted))
    could = sorted((current.count(label) for label in wanted), reverse=True)
    assert kept == sum(min(count, share + (place < extra)) for place, count in enumerate(could))


def test_shares_moved() -> None:
    assert moved_share((), ()) == 0.0
    assert moved_share((), (1,)) == 1.0
    assert moved_share((1, 2), (1, 3)) == 0.5
    assert fill((), (), 16) == ()


# books
def test_a_label_pool_is_the_same_at_every_start_and_never_zero() -> None:
    assert pool_of("a", "b", 64) == pool_of("a", "b", 64)
    assert len(set(pool_of("a", "b", 5000))) == 5000
    assert all(0 < label <= 0xFFFF for label in pool_of("a", "b", 5000))
    assert pool_of("a", "b", 8) != pool_of("b", "a", 8)


def test_a_mute_hop_breaks_the_chain() -> None:
    assert links_of("h1", ("l1", None, "l3"), "h3") == ("h1>l1", "l3>h3")
    assert links_of("h1", (), "h3") == ("h1>h3",)


def test_labels_are_taken_from_the_classes_in_turn() -> None:
    keys = [[("e", 10 * row + place) for place in range(5)] for row in range(3)]
    assert spread(keys, 8) == (("e", 0), ("e", 10), ("e", 20), ("e", 1), ("e", 11), ("e", 21))
    assert spread(keys, 2) == (("e", 0), ("e", 10))
    assert spread([], 8) == ()


def test_a_wish_ignores_outcomes_that_are_not_its_own() -> None:
    wish = Wish("group all")
    assert not wish.pending and wish.due_at_s is None
    assert wish.want(("a",), "c", "w") and not wish.want(("a",), "c", "w")
    wish.send(7, 1.0)
    assert not wish.pending and wish.due_at_s == 6.0
    assert not wish.done(6) and not wish.failed(6, 2.0)
    assert wish.failed(7, 2.0) and wish.due_at_s == 2.05
    wish.send(8, 2.05)
    assert wish.done(8) and wish.programmed == ("a",) and wish.due_at_s is None
