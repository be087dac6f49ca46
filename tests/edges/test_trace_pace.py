"""How fast questions go and how many: pacing, nodes that limit their answers, and what is no such node. Time is a
number, nodes are token buckets.
"""

from __future__ import annotations

import itertools
import random

import pytest

from linkpass.core.settings import Tracing
from linkpass.edges.traces import telling
from linkpass.edges.traces.allowance import Allowances
from linkpass.edges.traces.asking import Answer
from linkpass.edges.traces.pace import LATE_S, Pace
from linkpass.edges.traces.sending import Question

WAY = (b"\0" * 16, "eth1")


def question(label: int, hop: int) -> Question:
    return Question("eth1", label, hop, 3785, 3785)


def every(labels: int, hops: int) -> list[Question]:
    return [question(label, hop) for label in range(labels) for hop in range(1, hops + 1)]


class Bucket:
    """A node that gives `burst` answers at once and `rate_per_s`."""

    def __init__(self, burst: int, rate_per_s: float) -> None:
        self.burst, self.rate_per_s, self.tokens, self.at_s = burst, rate_per_s, float(burst), 0.0

    def answers(self, now_s: float) -> bool:
        self.tokens = min(self.burst, self.tokens + (now_s - self.at_s) * self.rate_per_s)
        self.at_s = now_s
        if self.tokens < 1:
            return False
        self.tokens -= 1
        return True


# pace
@pytest.mark.parametrize("urgent", [True, False])
def test_the_rate_and_the_burst_are_bounds(urgent: bool) -> None:
    settings = Tracing(packets_per_s=1000, burst_packets=50, burst_packets_per_s=10000)
    pace, now_s, at = Pace(settings), 5.0, []
    for _ in range(300):
        wait_s = pace.wait_s(now_s, urgent=urgent)
        at.append(now_s + wait_s)
        if wait_s > 0.001:
            now_s += wait_s
    for number in (10, 100, 250):
        for first in range(0, 300 - number, 7):
            span_s = at[first + number] - at[first]
            assert number <= span_s * 1000 + 50 * urgent + 4
    assert min(b - a for a, b in itertools.pairwise(at)) >= 1 / 10000 - 1e-9
    assert (at[40] - at[0] < 0.006) == urgent


def test_what_was_not_used_comes_back() -> None:
    pace = Pace(Tracing(packets_per_s=1000, burst_packets=50, burst_packets_per_s=10000))
    for now_s in (1.0, 2.0):
        last_s = [pace.wait_s(now_s, urgent=True) for _ in range(50)][-1]
        assert last_s == pytest.approx(0.005 - LATE_S)
    pace = Pace(Tracing(packets_per_s=1000, burst_packets=0))
    assert [pace.wait_s(1.0, urgent=True) for _ in range(10)][-1] == pytest.approx(0.01 - LATE_S)


# recognising
def asked(labels: int, node: Bucket | None, *, loss: float, seed: int) -> dict[Question, Answer]:
    """One round of three hops, 2,000 questions a second; the second hop is a limited node, answers are lost
    anywhere."""
    dice, answers = random.Random(seed), {}
    for number, one in enumerate(every(labels, 3)):
        gives = node is None or one.hop != 2 or node.answers(number / 2000)
        if gives and dice.random() >= loss:
            answers[one] = Answer(f"n{one.hop}")
    return answers


@pytest.mark.parametrize(("burst", "rate_per_s"), [(6, 1), (10, 1), (1, 1), (3, 100), (5, 10), (10, 100)])
def test_token_buckets_are_recognised(burst: int, rate_per_s: float) -> None:
    for seed in range(20):
        answers = asked(32, Bucket(burst, rate_per_s), loss=0.0, seed=seed)
        assert telling.limiting(every(32, 3), answers) == [2]


def test_buckets_at_every_hop_are_recognised() -> None:
    answers = {}
    nodes = {hop: Bucket(6, 1) for hop in (1, 2, 3)}
    for number, one in enumerate(every(32, 3)):
        if nodes[one.hop].answers(number / 2000):
            answers[one] = Answer(f"n{one.hop}")
    assert telling.limiting(every(32, 3), answers) == [1, 2, 3]


def test_one_of_two_nodes_at_a_hop_is_enough() -> None:
    answers, node = {}, Bucket(4, 1)
    for number, one in enumerate(every(32, 3)):
        who = f"n{one.hop}" if one.hop != 2 else ("good", "slow")[one.label % 2]
        if who != "slow" or node.answers(number / 2000):
            answers[one] = Answer(who)
    assert telling.limiting(every(32, 3), answers) == [2]


@pytest.mark.parametrize("loss", [0.0, 0.01, 0.05, 0.2, 0.5, 0.9])
def test_losses_at_random_are_no_limit(loss: float) -> None:
    wrong = sum(bool(telling.limiting(every(32, 3), asked(32, None, loss=loss, seed=seed))) for seed in range(300))
    assert wrong <= 12, "some in a hundred rounds are suspected, and asked once more"


def test_a_mute_hop_is_no_limited_one() -> None:
    answers = {one: Answer(f"n{one.hop}") for one in every(32, 3) if one.hop != 2}
    assert telling.limiting(every(32, 3), answers) == []
    assert [note.hop for note in telling.mute(3, answers.keys(), ())] == [2]
    assert telling.mute(3, answers.keys(), {2}) == []


# learning what a node gives
@pytest.mark.parametrize(("burst", "rate_per_s"), [(6, 1.0), (1, 0.2), (20, 5.0), (3, 50.0)])
def test_all_labels_are_learnt_and_few_questions_are_wasted(burst: int, rate_per_s: float) -> None:
    node, allowances, now_s = Bucket(burst, rate_per_s), Allowances(), 0.0
    first = {one: Answer("n") for one in every(32, 2) if one.hop == 2 and node.answers(now_s)}
    allowances.found("n", len(first), now_s)
    allowances.saw(WAY, first, now_s)
    known, put = set(first), 0
    for _ in range(400):
        again_s = allowances.again_s(WAY, every(32, 2))
        if again_s is None:
            break
        now_s += again_s
        free, held = allowances.split(WAY, every(32, 2), now_s)
        assert {one.hop for one in free} == {1}
        answers = {one: Answer("n") for one in held if node.answers(now_s)}
        allowances.learn(WAY, held, answers)
        allowances.saw(WAY, answers, now_s)
        known |= set(answers)
        put += len(held)
    assert len(known) == 32
    assert put <= 2 * 32
    assert now_s <= 4 * 32 / rate_per_s + 60


def test_a_node_that_gives_enough_is_forgotten() -> None:
    allowances, now_s = Allowances(), 0.0
    allowances.found("n", 6, now_s)
    allowances.saw(WAY, {question(0, 2): Answer("n")}, now_s)
    for _ in range(40):
        now_s += 60
        _, held = allowances.split(WAY, every(64, 2), now_s)
        answers = {one: Answer("n") for one in held}
        allowances.learn(WAY, held, answers)
        allowances.saw(WAY, answers, now_s)
    assert allowances.notes(WAY, 2, {}) == []
    assert allowances.split(WAY, every(64, 2), now_s)[1] == []


def test_hosts_beyond_other_nodes_are_asked_freely() -> None:
    allowances, other = Allowances(), (b"\1" * 16, "eth1")
    allowances.found("n", 6, 0.0)
    allowances.saw(WAY, {question(0, 2): Answer("n")}, 0.0)
    allowances.saw(other, {question(0, 2): Answer("m")}, 0.0)
    assert allowances.split(other, every(8, 2), 1.0) == (every(8, 2), [])
    assert allowances.anywhere_at("eth1", 2) and not allowances.anywhere_at("eth2", 2)
    unknown = (b"\2" * 16, "eth1")
    assert allowances.at(unknown, 2) == ["n"] and allowances.at(unknown, 3) == [], "it may be the same node"


def test_a_neighbour_is_the_same_on_all_ways() -> None:
    allowances, other = Allowances(), (b"\1" * 16, "eth1")
    allowances.found("n", 6, 0.0)
    allowances.saw(WAY, {question(0, 1): Answer("n")}, 0.0)
    allowances.saw(other, {question(0, 2): Answer("m")}, 0.0)
    free, held = allowances.split(other, every(8, 2), 10.0)
    assert {one.hop for one in free} == {2} and len(held) == 2
    assert [note.nodes for note in allowances.notes(other, 2, {"n": "leaf1"})] == [("leaf1",)]


# names
def test_addresses_of_nobody() -> None:
    assert (
        telling.names_no_node("fe80::1") and telling.names_no_node("192.0.0.8") and telling.names_no_node("127.0.0.1")
    )
    assert not telling.names_no_node("fd00::1") and not telling.names_no_node("10.0.0.1")


def test_an_address_of_two_hops_in_a_row_names_neither() -> None:
    answers = {question(1, 1): Answer("a"), question(1, 2): Answer("b"), question(1, 3): Answer("b")}
    assert telling.shared(answers) == {2: {"b"}, 3: {"b"}}
    assert telling.shared({question(1, 1): Answer("a"), question(2, 2): Answer("a")}) == {}
