"""From claims to a name, in the core: causes, stories, what a name outlasts, and the trainer's word."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from playbook import Playbook, like, nothing

from linkpass.core.arrivals import MOST_STEPS, Arrivals
from linkpass.core.commands import Record, SetProbes
from linkpass.core.events import PaceClaim, PaceKind, PaceTold, PeerKnown, StepArrived
from linkpass.core.machine import Core
from linkpass.core.settings import CoreSettings, Stragglers
from linkpass.core.stragglers import STALE_S

ADDRESSES = tuple(f"fd00:ff::{number}" for number in range(1, 6))


class Claims:
    """What each host has claimed so far."""

    def __init__(self, book: Playbook) -> None:
        self.book = book
        self.units = 0
        self.hits: dict[tuple[int, PaceKind, int], int] = {}

    def steps(self, count: int, *hits: tuple[int, PaceKind, int], hosts: int = 4, lag_s: float = 0.05) -> Claims:
        """`(2, "awaits", 3)`: host 2 says that it awaits host 3, in each of `count` steps; told after each two."""
        for _ in range(count // 2):
            self.units += 2
            for key in hits:
                self.hits[key] = self.hits.get(key, 0) + 2
            for host in range(1, hosts + 1):
                late = self.hits.get((host, "late", host), 0)
                claims = [PaceClaim("late", "", self.units, late, lag_s, 0.1)]
                claims += [
                    PaceClaim(kind, ADDRESSES[about - 1], self.units, n, lag_s, 0.1)
                    for (who, kind, about), n in self.hits.items()
                    if who == host and kind != "late"
                ]
                peer = ADDRESSES[host - 1] if host > 1 else ""
                self.book >> PaceTold(peer=peer, claims=tuple(claims))
            self.book >> 0.2
        return self


@pytest.fixture
def book() -> Iterator[Playbook]:
    core = Core(CoreSettings(host="host1", address=ADDRESSES[0], stragglers=Stragglers(enabled=True)))
    made = Playbook(core, aside=(SetProbes,))
    for number, address in enumerate(ADDRESSES[1:], 2):
        made >> PeerKnown(peer=address, name=f"host{number}")
    made.forget()
    yield made
    made.close()


def shown(book: Playbook) -> list[tuple[str, str]]:
    return [(one.name, one.cause) for one in book.core.view(book.now_s).stragglers]


LATE3: tuple[tuple[int, PaceKind, int], ...] = ((3, "late", 3), (2, "awaits", 3), (4, "awaits", 3))


def test_a_late_rank_is_named_after_12_steps_with_its_evidence(book: Playbook) -> None:
    claims = Claims(book).steps(4)
    claims.steps(10, *LATE3)
    book << nothing
    claims.steps(2, *LATE3)
    book << like(Record, what="straggler host3: all others wait for it to compute", element="host3", level="warning",
                 why=lambda why: why.startswith("its own host sees others open 50 of 100 ms"))  # fmt: skip
    assert shown(book) == [("host3", "compute")]
    story = book.last(Record).cause
    claims.steps(4)
    book << nothing
    claims.steps(16)
    book << like(Record, what="host3 holds the others up no more", cause=story, element="host3")
    assert shown(book) == []


def test_a_name_does_not_outlast_the_words_that_it_rests_on(book: Playbook) -> None:
    Claims(book).steps(4).steps(14, *LATE3)
    book << like(Record, what="straggler host3: all others wait for it to compute")
    book >> STALE_S - 1
    book << nothing
    book >> 2.0
    book << like(Record, what="host3 holds the others up no more")


@pytest.mark.parametrize(
    "hits",
    [
        [(3, "late", 3)],
        [(2, "awaits", 3)],
        [(2, "awaits", 3), (4, "awaits", 3)],
        [(3, "late", 3), (2, "awaits", 4)],
        [(2, "slow", 3)],
        [(2, "unread", 3)],
    ],
    ids=["its own word alone", "one other's", "against its own", "of another", "one queue", "one window"],
)
def test_one_host_s_word_names_nobody(book: Playbook, hits: list[tuple[int, PaceKind, int]]) -> None:
    Claims(book).steps(4).steps(60, *hits)
    book << nothing


def test_one_of_its_neighbours_is_not_all_others(book: Playbook) -> None:
    """Host 4 has awaited it before now, and does not now."""
    claims = Claims(book).steps(4).steps(2, *LATE3).steps(10)
    claims.steps(40, (3, "late", 3), (2, "awaits", 3))
    book << nothing


def test_ranks_that_wait_for_one_another_in_turn_are_no_stragglers(book: Playbook) -> None:
    everyone: list[tuple[int, PaceKind, int]] = [(n, "late", n) for n in range(1, 5)]
    Claims(book).steps(4).steps(60, *everyone, *[(n, "awaits", n % 4 + 1) for n in range(1, 5)])
    book << nothing


def test_slow_ways_to_and_from_one_host_are_its_network(book: Playbook) -> None:
    """Meanwhile others look late, and wait: they wait for bytes."""
    late: list[tuple[int, PaceKind, int]] = [(1, "late", 1), (4, "awaits", 1)]
    Claims(book).steps(4).steps(14, (2, "slow", 3), (3, "slow", 4), *late)
    book << like(Record, what="straggler host3: all others wait for its network",
                 why="host2: data to host3 stands in its queue for 50 of 100 ms a step; "
                     "host3: data to host4 stands in its queue for 50 of 100 ms a step")  # fmt: skip


@pytest.mark.parametrize(
    "pairs", [[(3, 4)], [(2, 3), (3, 2)], [(1, 2), (3, 4)], [(1, 2), (2, 3), (3, 4), (4, 1)]],
    ids=["one way", "one pair", "apart", "all"],
)  # fmt: skip
def test_slow_ways_without_one_host_in_common_name_nobody(book: Playbook, pairs: list[tuple[int, int]]) -> None:
    Claims(book).steps(4).steps(60, *[(a, "slow", b) for a, b in pairs], *LATE3)
    book << nothing


def test_data_that_it_does_not_read(book: Playbook) -> None:
    Claims(book).steps(4).steps(14, (2, "unread", 3), (3, "late", 3))
    book << like(Record, what="straggler host3: all others wait for it to read",
                 why="host2: its window was closed for 50 of 100 ms a step")  # fmt: skip


def test_a_cause_that_changes_is_one_story(book: Playbook) -> None:
    claims = Claims(book).steps(4).steps(14, *LATE3)
    first = book.last(Record)
    claims.steps(20, (2, "slow", 3), (3, "slow", 4))
    assert [c.what for c in book.waiting if isinstance(c, Record) and c.cause == first.cause][:2] == [
        "straggler host3: all others wait for it to compute",
        "host3 holds the others up no more",
    ] or book.last(Record).what.endswith("its network")
    assert shown(book) == [("host3", "network")]
    book.forget()


def test_counts_that_begin_anew_prove_nothing(book: Playbook) -> None:
    """The daemons of witnesses are started again and again: a word of one that is new is not a hundred steps more."""
    for count in range(60, 0, -1):
        for host, kind, about in LATE3:
            claim = PaceClaim(kind, "" if host == about else ADDRESSES[about - 1], count, count, 0.05, 0.1)
            book >> PaceTold(peer=ADDRESSES[host - 1], claims=(claim,)) >> 0.1
    book << nothing


def test_a_name_that_nobody_knows_is_not_made_a_peer(book: Playbook) -> None:
    before = len(book.core.view(book.now_s).peers)
    stranger = PaceClaim("awaits", "fd00:ff::99", 10, 0, 0.05, 0.1)
    book >> PaceTold(peer=ADDRESSES[1], claims=(stranger,) * 3)
    for kind in ("awaits", "slow", "unread"):
        book >> PaceTold(peer=ADDRESSES[1], claims=tuple(
            PaceClaim(kind, f"fd00:ff::{n:x}", 10, 10, 0.05, 0.1) for n in range(0x100, 0x200)))  # fmt: skip
    assert len(book.core.view(book.now_s).peers) == before
    book << nothing


@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["late", "awaits", "slow", "unread"]), st.integers(0, 4),
                          st.integers(0, 50), st.integers(0, 50), st.floats(0, 5)), max_size=80))  # fmt: skip
def test_whatever_is_claimed_nothing_is_moved(told: list[tuple[int, PaceKind, int, int, int, float]]) -> None:
    book = Playbook(Core(CoreSettings(host="host1", address=ADDRESSES[0], mode="act")), aside=(SetProbes, Record))
    for who, kind, about, units, hits, after_s in told:
        claim = PaceClaim(kind, ADDRESSES[about], units, hits, 0.1, 0.1)
        book >> PaceTold(peer=ADDRESSES[who] if who else "", claims=(claim,)) >> after_s
    book << nothing
    book.close()


# the trainer's word


def steps(book: Playbook, count: int, late: dict[int, float], first: int = 0) -> int:
    """All of four ranks come to each step, rank n on host n + 1; a step takes 0.1 s."""
    for step in range(first, first + count):
        begun_s = book.now_s + 0.1
        for rank in sorted(range(4), key=lambda rank: late.get(rank, rank * 0.001)):
            at_s = begun_s + late.get(rank, rank * 0.001)
            book >> max(0.0, at_s - book.now_s)
            book >> StepArrived(peer=ADDRESSES[rank] if rank else "", rank=rank, step=step, at_s=at_s)
    return first + count


def test_the_rank_that_comes_last_by_its_own_word_is_named(book: Playbook) -> None:
    done = steps(book, 8, {})
    done = steps(book, 10, {2: 0.06}, done)
    book << nothing
    done = steps(book, 4, {2: 0.06}, done)
    book << like(Record, what="straggler host3 (rank 2): all others wait for it to compute", element="host3",
                 why=lambda why: why.startswith("it came last to each step, 57 of "))  # fmt: skip
    assert book.core.view(book.now_s).stragglers[0].rank == 2
    steps(book, 18, {}, done)
    book << like(Record, what="host3 holds the others up no more")


def test_a_trainer_that_falls_silent_leaves_no_name(book: Playbook) -> None:
    steps(book, 12, {}, steps(book, 8, {2: 0.06}))
    steps(book, 14, {2: 0.06}, 20)
    book << like(Record, what="straggler host3 (rank 2): all others wait for it to compute")
    book >> STALE_S + 1
    book << like(Record, what="host3 holds the others up no more")


def test_arrivals_are_bounded_and_a_rank_is_one_host_s() -> None:
    arrivals = Arrivals(Stragglers(), "a")
    for step in range(5 * MOST_STEPS):
        now_s = float(step)
        assert not arrivals.take("a", 0, step, now_s, now_s)
        assert not arrivals.take("b", 0, step, now_s, now_s)  # the rank is a's
        assert not arrivals.take("a", 1, step, now_s, now_s)  # two ranks are no measure of each other
    assert len(arrivals._came) <= MOST_STEPS + 1 and arrivals.ranks == 2 and arrivals.refused == 0
    assert not arrivals.take("c", 2, step + 1, now_s, now_s)  # it comes first, and never again
    assert arrivals.ranks == 3
    for step in itertools.count(5 * MOST_STEPS):
        now_s = float(step)
        arrivals.take("a", 0, step, now_s, now_s)
        if arrivals.ranks < 3:
            break
    assert not arrivals.take("a", 0, step - 1, now_s, now_s)  # a step that is over


def job(arrivals: Arrivals, first: int, count: int, begun_s: float, hosts: str = "abc") -> int:
    """A rank a host; how many steps were settled. A step takes 0.1 s."""
    return sum(
        arrivals.take(host, rank, step, at_s := begun_s + 0.1 * number + 0.001 * rank, at_s)
        for number, step in enumerate(range(first, first + count))
        for rank, host in enumerate(hosts)
    )


LIES = [(2**63, 0.0), (10**6, 0.0), (0, 0.0), (1020, 3600.0), (1020, 1e18), (1020, -1e18)]


@pytest.mark.parametrize("own", ["a", "z"], ids=["this host has a rank", "it has none"])
@pytest.mark.parametrize(("step", "ahead_s"), LIES)
def test_a_host_that_lies_about_step_or_time_spoils_nobody_elses_count(own: str, step: int, ahead_s: float) -> None:
    arrivals = Arrivals(Stragglers(), own)
    assert not arrivals.take("liar", 9, 2**63, 99.0, 99.0)  # it is the first to speak
    job(arrivals, 1000, 10, 100.0)
    before = arrivals.refused
    settled = 0
    for number in range(10, 60):
        now_s = 100.0 + 0.1 * number
        if number < 30:
            assert not arrivals.take("liar", 9, step, now_s + ahead_s, now_s)
        settled += job(arrivals, 1000 + number, 1, now_s)
    assert arrivals.refused - before == 20
    assert settled >= 29 and arrivals.heard_s <= now_s + 0.01
    assert set(range(3)) <= arrivals._seen.keys()


@pytest.mark.parametrize("own", ["a", "z"])
def test_a_job_that_goes_on_from_another_step_is_followed(own: str) -> None:
    arrivals = Arrivals(Stragglers(), own)
    assert job(arrivals, 1000, 20, 100.0) >= 18
    assert job(arrivals, 500_000, 20, 130.0) >= 15
    assert job(arrivals, 7, 20, 131.0 + 0.1 * 20) >= 15  # at once, without a pause
