"""Daemons that disagree about a host: what one says, or many, never harms a host that is heard."""

from __future__ import annotations

import itertools

from host_parliament import ADDRESSES, HOSTS, Parliament
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from linkpass.core import events as ev

hosts = st.sampled_from(HOSTS)
pairs = st.sampled_from([frozenset(pair) for pair in itertools.combinations(HOSTS, 2)])
texts = st.sampled_from([*ADDRESSES.values(), "fd00:ff::99", "", "kernel log: hard lockup"])
lies = st.tuples(
    st.sampled_from(["failing", "ailing", "well", "missing", "heard", "goodbye", "drain", "port_down"]),
    texts, hosts, st.integers(0, 10**6), st.floats(-10, 10_000),
)  # fmt: skip


@settings(max_examples=max(12, settings().max_examples // 3))
@given(
    dead=st.frozensets(hosts, max_size=2),
    cut=st.frozensets(pairs, max_size=4),
    liars=st.frozensets(hosts, max_size=3),
    made_up=st.lists(lies, max_size=12),
)
def test_no_word_harms_a_host_that_is_heard(
    dead: frozenset[str],
    cut: frozenset[frozenset[str]],
    liars: frozenset[str],
    made_up: list[tuple[ev.NoticeKind, str, str, int, float]],
) -> None:
    assume(len(dead) < 3)
    house = Parliament(dead, cut, liars)
    house.lies = [
        (speaker, to, ev.Notice(kind=kind, link=text, origin=origin, seq=seq, ttl_s=ttl_s))
        for speaker in sorted(liars - dead)
        for kind, text, origin, seq, ttl_s in made_up
        for to in HOSTS
        if to != speaker
    ]
    house.run(6.0)
    honest = [name for name in house.living if name not in liars]
    for judge, judged in house.given_up(house.living):
        assert not house.hears(judge, judged), f"{judge} gave up {judged}, which it hears"
    for judge, judged in house.given_up(honest):
        if judged in dead:
            continue
        voters = [name for name in house.living if name not in (judge, judged) and house.hears(judge, name)]
        hear = [name for name in voters if name in honest and house.hears(name, judged)]
        assert len(hear) < 1 + len(voters) - len(hear), f"{judge} gave up {judged}, which {hear} hear"


def test_two_that_do_not_hear_each_other_and_are_heard_by_all_others_are_both_kept() -> None:
    house = Parliament(frozenset(), frozenset({frozenset(("host1", "host4"))}), frozenset())
    house.run(12.0)
    assert house.given_up(HOSTS) == set()
    told = [line for name in ("host1", "host4") for line in house.sims[name].told()]
    assert sum("stays silent here, and is not given up" in line for line in told) == 2


def test_a_dead_host_is_given_up_by_all_though_one_says_that_it_hears_it() -> None:
    house = Parliament(frozenset({"host4"}), frozenset(), frozenset({"host2"}))
    house.lies = [
        ("host2", to, ev.Notice(kind="heard", link=ADDRESSES["host4"], origin="host2", seq=number, ttl_s=5.0))
        for number, to in enumerate(HOSTS)
        if to != "host2"
    ]
    house.run(5.0)
    others = [name for name in HOSTS if name not in ("host4", "host2")]
    assert house.given_up(others) == {(name, "host4") for name in others}
