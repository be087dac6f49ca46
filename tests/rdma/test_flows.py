"""Joining the kernel's queue pairs with a program's handles, and telling progress from its absence."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdma.borrowed import start_ticks
from rdma.flows import FlowTable, Place, ahead, match
from rdma.nldev import Nldev, QpState, QueuePair
from rdma.uverbs import Address, Queried

TO = Address("fd00:ff::2", 1)


def qp(lqpn: int, rqpn: int | None, state: QpState = "RTS", psn: int = 0, pid: int = 0) -> QueuePair:
    return QueuePair("rxe0", 1, lqpn, rqpn, "RC", state, psn, 0, pid or os.getpid())


def seen(dest: int, state: QpState = "RTS") -> Queried:
    return Queried(TO, dest, 0, 0, state, 1024, False, 0, 1, 14, 6, 7)


def test_queue_pairs_are_known_by_their_peer() -> None:
    places = {Place(0, 4): seen(70), Place(0, 9): seen(71), Place(1, 4): seen(72, "RTR")}
    assert match([qp(17, 71), qp(18, 72, "RTR"), qp(19, 70)], places) == {
        17: Place(0, 9), 18: Place(1, 4), 19: Place(0, 4),
    }  # fmt: skip


def test_two_that_look_the_same_are_none() -> None:
    """Two peers may give their queue pairs the same number."""
    assert match([qp(17, 70), qp(18, 70)], {Place(0, 1): seen(70), Place(0, 2): seen(70)}) == {}
    assert match([qp(17, 70)], {Place(0, 1): seen(70), Place(0, 2): seen(70)}) == {}
    assert match([qp(17, 70), qp(18, 70)], {Place(0, 1): seen(70)}) == {}


def test_what_has_moved_on_since_is_not_known() -> None:
    assert match([qp(17, 70, "SQD")], {Place(0, 1): seen(70, "RTS")}) == {}
    assert match([qp(17, None)], {Place(0, 1): seen(0)}) == {}


@given(st.integers(0, 2**24 - 1), st.integers(-(2**23) + 1, 2**23 - 1))
def test_sequence_numbers_wrap(psn: int, step: int) -> None:
    assert ahead(psn, (psn + step) % 2**24) == step


class Told(Nldev):
    """A kernel that tells what it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.now: list[QueuePair] = []

    def queue_pairs(self) -> list[QueuePair]:
        return self.now


def test_a_flow_that_stands_still_is_silent_for_longer_and_longer(tmp_path: Path) -> None:
    kernel = Told()
    table = FlowTable(kernel, tmp_path)
    told = []
    for at_s, psn in ((0.0, 2**24 - 2), (1.0, 3), (2.0, 3), (3.0, 1), (4.0, 3), (5.0, 4)):
        kernel.now = [qp(17, 70, psn=psn)]
        (flow,) = table.look(at_s)
        told.append(flow.silent_s)
    assert told == [None, 0.0, 1.0, 2.0, 3.0, 0.0]
    assert flow.started == start_ticks(os.getpid())
    assert flow.to is None
    assert flow.why == "rxe0: its driver has no uverbs interface that is known here"


@pytest.mark.parametrize(
    "other",
    [
        QueuePair("rxe0", 1, 1, None, "GSI", "RTS", None, None, 0, "ib_core"),
        QueuePair("rxe0", 1, 18, None, "UD", "RTS", 0, None, os.getpid()),
        QueuePair("rxe0", 1, 19, None, "RC", "INIT", 0, 0, os.getpid()),
        QueuePair("rxe0", 1, 20, 7, "RC", "RTS", 0, 0, 2**22 - 1),
    ],
    ids=["the kernel's own", "without a connection", "not connected yet", "of a process that is gone"],
)
def test_only_connections_of_programs_are_flows(tmp_path: Path, other: QueuePair) -> None:
    kernel = Told()
    kernel.now = [other]
    assert FlowTable(kernel, tmp_path).look(0.0) == []
