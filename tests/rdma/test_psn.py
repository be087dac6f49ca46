"""Sequence numbers against a plain set, and streams in which just what was planted must be found."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from rdma.roce.explain import Explainer
from rdma.roce.packet import Packet
from rdma.roce.psn import HALF, JUMP, ROUND, Came, Seen, distance
from rdma.roce.report import Flow

STARTS = st.integers(0, ROUND - 1) | st.integers(ROUND - 40, ROUND - 1)


@given(STARTS, st.integers(-HALF, HALF - 1))
def test_distance_is_the_shorter_way_round(start: int, way: int) -> None:
    assert distance((start + way) % ROUND, start) == way


@settings(deadline=None)
@given(STARTS, st.lists(st.tuples(st.integers(0, 60), st.integers(1, 5)), min_size=1, max_size=60))
def test_it_knows_what_a_set_knows(start: int, packets: list[tuple[int, int]]) -> None:
    seen, model = Seen(), set[int]()
    for offset, count in packets:
        came = seen.add((start + offset) % ROUND, count)
        if model:
            top, was = max(model) + 1, offset in model
            expected = Came.NEXT if offset == top else Came.AHEAD if offset > top else Came.AGAIN if was else Came.LATE
        else:
            expected = Came.FIRST
        assert came is expected
        model |= set(range(offset, offset + count))
        low, high = min(model), max(model) + 1
        assert seen.first is not None
        assert (seen.next - seen.first, seen.missing(seen.first, seen.next)) == (high - low, high - low - len(model))
        assert seen.holes == sorted(seen.holes) and all(a < b for a, b in seen.holes)


def test_a_jump_changes_nothing_until_it_is_believed() -> None:
    seen = Seen()
    seen.add(10)
    assert seen.add(10 + JUMP + 2) is Came.ELSEWHERE and (seen.first, seen.next) == (10, 11)
    seen.begin(500)
    assert seen.add(501) is Came.NEXT


def test_a_stream_may_wrap_as_often_as_it_likes() -> None:
    seen, psn = Seen(), 0
    for _ in range(3 * ROUND // JUMP):
        seen.add(psn % ROUND, JUMP)
        psn += JUMP
    assert seen.missing(0, psn) == 0 and seen.next == 3 * ROUND
    assert seen.add((psn - 5) % ROUND) is Came.AGAIN


def packets(start: int, order: list[int], *, answer: bool = False) -> list[Packet]:
    """In that order, a millisecond apart, 10 bytes each; `answer`: the last but one word is the other end's."""
    sent = [
        Packet(n / 1000, "a", "b", 50000, 4, 7, (start + offset) % ROUND, 10, icrc=bytes(4), icrc_ok=True)
        for n, offset in enumerate(order)
    ]
    if answer:
        last = (start + max(order)) % ROUND
        sent.append(Packet(len(order) / 1000, "b", "a", 50000, 17, 9, last, 0, icrc_ok=True, syndrome=0))
    return sent


def flow_of(sent: list[Packet]) -> Flow:
    explainer = Explainer()
    for one in sent:
        explainer.add(one)
    return explainer.report().flows[0]


@settings(deadline=None)
@given(STARTS, st.integers(1, 50), st.lists(st.tuples(st.integers(0, 49), st.integers(0, 49)), max_size=20))
def test_what_is_sent_again_is_counted(start: int, count: int, again: list[tuple[int, int]]) -> None:
    """Each planted packet repeats one that was sent before it."""
    order, planted = [], 0
    for n in range(count):
        order.append(n)
        for after, what in again:
            if after == n and what <= n:
                order.append(what)
                planted += 1
    flow = flow_of(packets(start, order, answer=True))
    assert (flow.sent_again, flow.sent_again_unseen, flow.out_of_order, flow.missing) == (planted, 0, 0, 0)
    assert (flow.payload_bytes, flow.repeated_bytes) == (10 * count, 10 * planted)
    assert flow.gave_up is not True and flow.sender_qpn == 9


@settings(deadline=None)
@given(STARTS, st.lists(st.integers(0, 40), min_size=1, max_size=80))
def test_a_shuffled_and_doubled_stream(start: int, order: list[int]) -> None:
    """Whatever the order: each packet came new or again, and what never came between the ends is missing."""
    flow = flow_of(packets(start, order))
    distinct = set(order)
    assert flow.sent_again == len(order) - len(distinct)
    assert flow.missing == max(distinct) - min(distinct) + 1 - len(distinct)
    assert flow.payload_bytes == 10 * len(distinct)
    assert flow.sent_again_unseen + flow.out_of_order <= len(distinct)


@settings(deadline=None)
@given(STARTS, st.permutations(range(12)))
def test_a_shuffled_stream_alone_is_only_out_of_order(start: int, order: list[int]) -> None:
    flow = flow_of(packets(start, order))
    late = sum(any(before > what for before in order[:n]) for n, what in enumerate(order))
    assert (flow.out_of_order, flow.sent_again, flow.sent_again_unseen) == (late, 0, 0)


def test_memory_is_bounded_however_long_the_stream() -> None:
    """Every second packet is lost, and every label is another one: what is kept has an end."""
    explainer = Explainer()
    for n in range(30_000):
        explainer.add(Packet(n / 1000, "a", "b", 50000, 4, 7, 2 * n % ROUND, 10, label=n, icrc_ok=None))
    report = explainer.report()
    (flow,) = report.flows
    assert flow.missing == 29_999
    assert len(flow.ways) == 20 and flow.moves == 29_999 and len(report.findings) == 40
