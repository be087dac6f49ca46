"""How often a queue pair went back to send again: who is believed, and what is not known."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Mapping
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdma.flows import FlowTable
from rdma.nldev import Bound, Listing, Nldev, QpState, QueuePair
from rdma.resent import LATELY_S, OF_HARDWARE_PER_S, Lately, Number, Resent, Sum, Totals, Went, advance, only_one
from rdma.roce.psn import JUMP, ROUND
from rdma.sysfs import Unknown

SOFT, HARD = ("rxe0", 17), ("mlx5_0", 17)
PER_S = 4e6


def qp(psn: int | None, at: Number = SOFT, *, rqpn: int = 70, state: QpState = "RTS", pid: int = 7) -> QueuePair:
    return QueuePair(at[0], 1, at[1], rqpn, "RC", state, psn, 0, pid)


# the number
@given(st.integers(0, ROUND - 1), st.integers(-JUMP, 800_000))
def test_a_number_goes_round_and_back(psn: int, step: int) -> None:
    assert advance(psn, (psn + step) % ROUND, 0.2, PER_S) == step


@given(st.integers(0, ROUND - 1), st.integers(800_001, ROUND - JUMP - 1))
def test_what_is_further_than_anybody_sends_is_another_connection(psn: int, step: int) -> None:
    assert advance(psn, (psn + step) % ROUND, 0.2, PER_S) is None


@pytest.mark.parametrize(
    ("before", "after", "seconds", "most_per_s"),
    [(None, 5, 0.2, PER_S), (5, None, 0.2, PER_S), (5, 9, 5.0, PER_S), (5, 9, 0.3, OF_HARDWARE_PER_S)],
    ids=["not told", "not told now", "looked at too seldom", "too fast for the looks"],
)
def test_what_may_have_gone_round_is_not_known(
    before: int | None, after: int | None, seconds: float, most_per_s: float
) -> None:
    assert advance(before, after, seconds, most_per_s) is None


class Table:
    """Looks a fifth of a second apart."""

    def __init__(self) -> None:
        self.resent = Resent()
        self.now_s = 100.0

    def soft(
        self, *pairs: QueuePair, retries: int | None = 0, not_ready: int = 0, idle: Collection[Number] = ()
    ) -> dict[Number, Went]:
        self.now_s += 0.2
        by = {(one.device, one.lqpn): one for one in pairs}
        totals = Totals(Unknown("missing") if retries is None else retries, not_ready)
        only = only_one(pairs, idle)
        return self.resent.look(self.now_s, by, {"rxe0": "rxe"}, {"rxe0": totals}, only, {})

    def hard(self, psn: int, *counters: Bound, asked: bool = True, pid: int = 7) -> Went | None:
        self.now_s += 0.2
        bound: Mapping[str, Collection[Bound]] = {"mlx5_0": counters} if asked else {}
        found = self.resent.look(self.now_s, {HARD: qp(psn, HARD, pid=pid)}, {"mlx5_0": "mlx5"}, {}, {}, bound)
        return found.get(HARD)


@pytest.fixture
def table() -> Table:
    return Table()


def said(went: Went | None) -> tuple[int | None, int | None, bool, str]:
    assert went is not None
    return went.sent, went.again, went.least, went.by


# soft-RoCE
def test_a_devices_retries_are_those_of_the_only_one_that_sends(table: Table) -> None:
    assert table.soft(qp(ROUND - 5), retries=3) == {}
    assert said(table.soft(qp(15), retries=5)[SOFT]) == (20, 2, False, "device")
    assert said(table.soft(qp(10), retries=6)[SOFT]) == (0, 1, False, "device")
    assert said(table.soft(qp(40), retries=6)[SOFT]) == (30, 0, False, "device")


OTHER = ("rxe0", 18)


@pytest.mark.parametrize(
    ("other", "idle", "known"),
    [
        (qp(9, OTHER), False, False),
        (qp(9, OTHER), True, True),
        (qp(9, OTHER, state="RTR"), False, True),
        (qp(9, OTHER, state="SQD"), False, False),
        (msgspec.structs.replace(qp(9, OTHER), type="UD"), False, True),
        (msgspec.structs.replace(qp(9, OTHER), device="rxe1"), False, True),
    ],
    ids=["sends too", "has nothing posted", "merely answers", "drains", "datagrams", "another device"],
)
def test_of_several_that_may_have_sent_again_it_is_not_known_which(
    table: Table, other: QueuePair, *, idle: bool, known: bool
) -> None:
    none = [OTHER] if idle else []
    table.soft(qp(0), other, idle=none)
    went = table.soft(qp(20), other, retries=2, idle=none)[SOFT]
    assert said(went) == ((20, 2, False, "device") if known else (20, None, False, ""))


def test_one_that_has_begun_or_ended_sending_meanwhile_may_be_the_one(table: Table) -> None:
    table.soft(qp(0), qp(9, OTHER))
    assert table.soft(qp(20), retries=2)[SOFT].again is None
    table.soft(qp(20), retries=2)
    assert table.soft(qp(40), qp(9, OTHER), retries=3)[SOFT].again is None


def test_a_number_that_is_back_is_one_at_least(table: Table) -> None:
    table.soft(qp(3), qp(9, OTHER))
    found = table.soft(qp(ROUND - 2), qp(30, OTHER), retries=4)
    assert said(found[SOFT]) == (0, 1, True, "number")
    assert said(found[OTHER]) == (21, None, False, "")


def test_where_the_device_counted_nothing_nobody_sent_again(table: Table) -> None:
    table.soft(qp(3), qp(9, OTHER))
    assert [said(one) for one in table.soft(qp(4), qp(9, OTHER)).values()] == [
        (1, 0, False, "device"), (0, 0, False, "device"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("retries", "not_ready"), [(9, 1), (2, 0), (None, 0)], ids=["peer not ready", "a new device", "not counted"]
)
def test_what_says_nothing_of_losses_is_not_known(table: Table, retries: int | None, not_ready: int) -> None:
    """A receiver without a buffer makes it go back, too."""
    table.soft(qp(30), retries=5)
    assert said(table.soft(qp(20), retries=retries, not_ready=not_ready)[SOFT]) == (0, None, False, "")


@pytest.mark.parametrize(
    "now", [qp(3, rqpn=71), qp(3, pid=8), qp(3, state="SQD"), qp(ROUND // 2)],
    ids=["another peer", "another program", "stopped", "connected anew"],
)  # fmt: skip
def test_a_number_that_is_used_again_is_another_queue_pair(table: Table, now: QueuePair) -> None:
    table.soft(qp(5))
    assert table.soft(now, retries=1) == {}


# counters that are bound
def bound(
    seq: int = 0, timeouts: int = 0, not_ready: int = 0, *, number: int = 5, pairs: tuple[int, ...] = (17,)
) -> Bound:
    counted = {
        "packet_seq_err": seq, "local_ack_timeout_err": timeouts, "rnr_nak_retry_err": not_ready, "out_of_sequence": 8,
    }  # fmt: skip
    return Bound("mlx5_0", 1, number, pairs, counted)


def test_a_counter_that_is_bound_to_it_alone_tells_exactly(table: Table) -> None:
    assert table.hard(0, bound(10, 1)) is None
    assert table.hard(1000, asked=False) is None
    assert said(table.hard(3000, bound(12, 4))) == (3000, 5, False, "counter")
    assert said(table.hard(3500, bound(12, 4))) == (500, 0, False, "counter")
    table.now_s += 0.2  # it may have gone round meanwhile: what was sent is not known, what was sent again is
    table.hard(4000, asked=False)
    assert said(table.hard(4100, bound(13, 4))) == (None, 1, False, "counter")
    assert said(table.hard(4200, bound(13, 4))) == (100, 0, False, "counter")


@pytest.mark.parametrize(
    "now",
    [
        (), (bound(9, pairs=(17, 18)),), (bound(9), bound(9, number=6)), (bound(9, number=6),), (bound(2),),
        (Bound("mlx5_0", 1, 5, (17,), {"packet_seq_err": 9}),),
    ],
    ids=["none", "shared", "two", "another one", "begun anew", "not all is counted"],
)  # fmt: skip
def test_any_other_counter_tells_nothing(table: Table, now: tuple[Bound, ...]) -> None:
    table.hard(0, bound(5))
    assert table.hard(1000, *now) is None


def test_a_peer_that_was_not_ready_hides_what_was_lost(table: Table) -> None:
    table.hard(0, bound(5))
    assert said(table.hard(1000, bound(9, not_ready=2))) == (1000, None, False, "")


def test_a_counter_of_the_queue_pair_before_is_not_this_ones(table: Table) -> None:
    table.hard(0, bound(5))
    assert table.hard(10, bound(9), pid=8) is None
    assert said(table.hard(20, bound(9), pid=8)) == (10, 0, False, "counter")


def test_how_hardware_goes_back_is_not_known(table: Table) -> None:
    """What mlx5 calls `next_send_psn` when it sends again is not known here."""
    table.hard(100)
    assert table.hard(50) is None


# sums
def summed(*wents: Went) -> tuple[int, int, bool] | None:
    total = Sum()
    for went in wents:
        total.add(went)
    return total.told()


def test_sums_know_what_is_exact_what_is_the_least_and_what_is_nothing() -> None:
    exact, silent = Went(5.0, 100, 2, by="device"), Went(3.0, 70)
    back = Went(4.0, 0, 1, least=True, by="number")
    assert summed() is summed(silent) is summed(Went(1.0, None, 4, by="counter")) is None
    assert summed(exact, silent, exact) == (200, 4, False)
    assert summed(silent, back, silent) == (140, 1, True)
    assert summed(back) == (1, 1, True)
    assert summed(exact, back, silent) == (170, 3, True)
    total = Sum()
    assert total.since_s == math.inf
    total.add(exact)
    total.add(silent)
    assert total.since_s == 3.0


def test_what_is_shown_is_of_the_last_seconds() -> None:
    lately = Lately()
    assert lately.told() == (None, False, "")
    lately.add(Went(0.0, 10), 0.0)
    assert lately.told() == (None, False, "")
    lately.add(Went(0.0, 10, 3, by="device"), 1.0)
    lately.add(Went(0.0, 0, 1, least=True, by="number"), 2.0)
    assert lately.told() == (4, True, "number")
    lately.add(None, 1.0 + LATELY_S)
    assert lately.told() == (1, True, "number")
    lately.add(Went(0.0, 10), 2.0 + LATELY_S)
    assert lately.told() == (None, False, "")


# with the kernel's list
class Told(Nldev):
    def __init__(self) -> None:
        super().__init__()
        self.now: list[QueuePair] = []
        self.counters: list[Bound] | None = []
        self.asked = 0

    def listing(self) -> Listing:
        return Listing(self.now, {})

    def bound(self, device: str) -> list[Bound] | None:
        self.asked += 1
        return self.counters


class Family(FlowTable):
    def family(self, device: str) -> str:
        return device.rstrip("0").rstrip("_")


def test_the_flows_of_a_soft_device_know_what_it_counts(tmp_path: Path) -> None:
    files = tmp_path / "class/infiniband/rxe0/ports/1/hw_counters"
    files.mkdir(parents=True)
    kernel = Told()
    table = Family(kernel, tmp_path)
    told = []
    for at_s, psn, retries in ((0.0, 10, 4), (0.2, 30, 4), (0.4, 25, 5)):
        (files / "completer_retry_err").write_text(f"{retries}\n")
        (files / "rcvd_rnr_err").write_text("0\n")
        kernel.now = [qp(psn, pid=os.getpid())]
        (flow,) = table.look(at_s)
        told.append(flow.went)
    assert told == [None, Went(0.0, 20, 0, by="device"), Went(0.2, 0, 1, by="device")]
    assert kernel.asked == 0, "soft-RoCE binds none"


def test_bound_counters_are_asked_for_once_a_second_and_never_made(tmp_path: Path) -> None:
    kernel = Told()
    table = Family(kernel, tmp_path)
    told = []
    for step in range(11):
        kernel.counters = [bound(step)]
        kernel.now = [qp(100 * step, HARD, pid=os.getpid())]
        (flow,) = table.look(step / 5)
        told.append(flow.went)
    assert kernel.asked == 3
    assert [went for went in told if went is not None] == [
        Went(0.0, 500, 5, by="counter"), Went(1.0, 500, 5, by="counter"),
    ]  # fmt: skip
    kernel.counters = None
    assert table.look(4.0)[0].went is None
