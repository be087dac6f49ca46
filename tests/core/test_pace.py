"""Naming the rank that all others wait for: jobs in lock-step on paper, every host with its own looks and words."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pace_sim import LOOK_S, PaceSim, Sock, address, noisy, ring, tree

from linkpass.core.events import PaceClaim, PaceTold
from linkpass.core.pace import MOST_CLAIMS, PaceMeter
from linkpass.core.settings import Stragglers

COMPUTE_S = 0.1


def slow_from(base: Callable[[int, int], float], who: int, first: int, by_s: float) -> Callable[[int, int], float]:
    return lambda step, rank: base(step, rank) + (by_s if rank == who and step >= first else 0.0)


@settings(deadline=None, max_examples=10)
@example(ranks=3, who=1, late=15.0, seed=1, one_way=False)
@example(ranks=4, who=0, late=15.0, seed=2, one_way=True)
@given(
    ranks=st.integers(3, 6), who=st.integers(0, 8), late=st.floats(0.5, 4.0), seed=st.integers(0, 1000),
    one_way=st.booleans(),
)  # fmt: skip
def test_in_a_ring_the_late_rank_is_named_within_20_steps_and_nobody_else(
    ranks: int, who: int, late: float, seed: int, one_way: bool
) -> None:
    who %= ranks
    computes = slow_from(noisy(seed, COMPUTE_S, 0.002), who, 12, late * COMPUTE_S)
    sim = PaceSim(ranks, computes, partial(ring, one_way=one_way)).run(12)
    assert not sim.first_named
    sim.run(20)
    assert set(sim.first_named) == {f"host{who + 1}"}
    assert sim.named() == {f"host{who + 1} compute"}


@settings(deadline=None, max_examples=10)
@given(ranks=st.integers(2, 6), spread_s=st.floats(0.0001, 0.012), seed=st.integers(0, 1000), tall=st.booleans())
def test_in_a_healthy_job_with_noise_nobody_is_named(ranks: int, spread_s: float, seed: int, tall: bool) -> None:
    sim = PaceSim(ranks, noisy(seed, COMPUTE_S, spread_s), tree if tall else ring).run(80)
    assert not sim.first_named


@settings(deadline=None, max_examples=10)
@given(ranks=st.integers(5, 9), seed=st.integers(0, 1000), data=st.data())
def test_in_a_tree_nobody_but_the_late_rank_is_named(ranks: int, seed: int, data: st.DataObject) -> None:
    """The root, to which all others have written, is; of ranks below their parents look as late as they."""
    who = data.draw(st.integers(0, ranks - 1))
    computes = slow_from(noisy(seed, COMPUTE_S, 0.002), who, 12, COMPUTE_S)
    sim = PaceSim(ranks, computes, tree).run(32)
    assert set(sim.first_named) <= {f"host{who + 1}"}
    assert who or sim.first_named


def test_one_that_keeps_up_again_is_acquitted() -> None:
    base = noisy(1, COMPUTE_S, 0.002)
    sim = PaceSim(4, lambda step, rank: base(step, rank) + (0.08 if rank == 2 and 12 <= step < 40 else 0.0)).run(40)
    assert sim.named() == {"host3 compute"}
    sim.run(20)
    assert sim.named() == set()
    told = [c.what for c in sim.hosts[0].tray.commands]  # type: ignore[attr-defined]
    assert told == ["straggler fd00:ff::3: all others wait for it to compute", "fd00:ff::3 holds the others up no more"]
    assert len({c.cause for c in sim.hosts[0].tray.commands}) == 1


def test_a_rank_that_is_late_now_and_then_is_not_named() -> None:
    """One step in four: a checkpoint, an evaluation."""
    base = noisy(2, COMPUTE_S, 0.002)
    sim = PaceSim(4, lambda step, rank: base(step, rank) + (0.2 if rank == 0 and step % 4 == 0 else 0.0)).run(200)
    assert not sim.first_named


def test_two_that_are_equally_late_are_both_named_and_the_less_late_is_not() -> None:
    base = noisy(3, COMPUTE_S, 0.001)
    late = {1: 0.1, 4: 0.1}
    sim = PaceSim(6, lambda step, rank: base(step, rank) + late.get(rank, 0.0)).run(30)
    assert set(sim.first_named) == {"host2", "host5"}
    late = {1: 0.15, 4: 0.04}
    sim = PaceSim(6, lambda step, rank: base(step, rank) + late.get(rank, 0.0)).run(40)
    assert sim.named() == {"host2 compute"}


@pytest.mark.parametrize("claimed", ["late", "awaits", "slow", "unread"])
def test_a_lying_daemon_accuses_itself_at_most(claimed: str) -> None:
    """Host 1 says whatever it can of host 2 (and, of itself, that it is late)."""

    def lies(rank: int, told: PaceTold) -> PaceTold:
        if rank:
            return told
        about = "" if claimed == "late" else address(1)
        return msgspec.structs.replace(told, claims=(PaceClaim(claimed, about, told.claims[0].units,  # type: ignore[arg-type]
                                                               told.claims[0].units, 0.09, 0.1),))  # fmt: skip

    sim = PaceSim(4, noisy(4, COMPUTE_S, 0.002))
    sim.lies = lies
    sim.run(100)
    assert not sim.first_named


def test_a_straggler_whose_daemon_denies_it_or_is_silent() -> None:
    """Against its word nobody is named; where it says nothing two witnesses are enough."""
    computes = slow_from(noisy(5, COMPUTE_S, 0.002), 2, 0, 0.08)
    sim = PaceSim(4, computes)
    sim.lies = lambda rank, told: (
        msgspec.structs.replace(told, claims=tuple(msgspec.structs.replace(c, hits=0) for c in told.claims))
        if rank == 2 else told
    )  # fmt: skip
    assert "host3 compute" not in {
        f"host{int(one.host[-1])} {one.cause}"
        for host in sim.run(40).hosts if host.rank != 2 for one in host.world.stragglers.values()
    }  # fmt: skip
    sim = PaceSim(4, computes)
    sim.silent = {2}
    sim.run(40)
    assert sim.named() == {"host3 compute"}


def test_claims_are_bounded_and_say_nothing_before_the_period_is_known() -> None:
    meter = PaceMeter(Stragglers(enabled=True))
    assert meter.claims() == () and meter.period_s is None
    hand = ByHand()
    peers = [f"h{number}" for number in range(2, 20)]
    for _ in range(2):
        hand.both(**dict.fromkeys(peers, 50))
    for _ in range(12):
        hand.look(8)
        hand.look(6, **dict.fromkeys(peers, -50))
        hand.look(**dict.fromkeys(peers, 50))
    assert len(hand.meter.claims()) == MOST_CLAIMS and hand.meter.units > 10
    assert hand.meter.hits > MOST_CLAIMS


# one host by hand


class ByHand:
    """One host's looks at its connections."""

    def __init__(self) -> None:
        self.meter = PaceMeter(Stragglers(enabled=True))
        self.now_s = 10.0
        self.socks: dict[str, Sock] = {}

    def look(self, count: int = 1, **moved: int) -> None:
        """`h2=5` came from h2, `h2=-5` was written to it; in the first of `count` looks."""
        for _ in range(count):
            self.now_s += LOOK_S
            for name, size in moved.items():
                sock = self.socks.setdefault(name, Sock(len(self.socks), name))
                if size > 0:
                    sock.received_bytes, sock.received_at_s = sock.received_bytes + size, self.now_s
                else:
                    sock.written_bytes, sock.sent_at_s = sock.written_bytes - size, self.now_s
            moved = {}
            self.meter.look(self.now_s, [sock.frozen(self.now_s) for sock in self.socks.values()], LOOK_S)

    def both(self, **sizes: int) -> None:
        self.look(**sizes)
        self.look(**{name: -size for name, size in sizes.items()})

    def claim(self, kind: str, about: str = "") -> tuple[int, int]:
        for claim in self.meter.claims():
            if (claim.kind, claim.about) == (kind, about):
                return claim.units, claim.hits
        return 0, 0


@pytest.fixture
def hand() -> ByHand:
    made = ByHand()
    made.both(h2=50, h3=50)
    for _ in range(8):  # healthy steps, so that the period is known
        made.look(8)
        made.both(h2=50, h3=50)
    return made


def test_who_opens_and_is_answered_late_awaits(hand: ByHand) -> None:
    hand.look(8)
    hand.look(h2=-50)
    hand.look(6)
    hand.look(h2=50)
    hand.look(8)
    assert hand.claim("awaits", "h2")[1] == 1 and hand.claim("late")[1] == 0


def test_who_answers_late_is_late_from_the_last_opening_on(hand: ByHand) -> None:
    hand.look(8)
    hand.look(3, h2=50)
    hand.look(5, h3=50)
    hand.look(h2=-50)
    assert hand.claim("late")[1] == 1
    lag_s = next(claim.lag_s for claim in hand.meter.claims() if claim.kind == "late")
    assert 0.03 <= lag_s <= 0.05


def test_who_waits_for_somebody_is_not_late_for_others(hand: ByHand) -> None:
    hand.look(8)
    hand.look(3, h2=-50)
    hand.look(9, h3=50)
    hand.look(h2=50, h3=-50)
    assert hand.claim("late")[1] == 0 and hand.claim("awaits", "h2")[1] == 1


def test_what_was_sent_again_says_nothing_of_the_peer(hand: ByHand) -> None:
    hand.look(8)
    hand.look(h2=-50)
    hand.socks["h2"].retransmitted += 1
    before = hand.claim("awaits", "h2")
    hand.look(20)
    hand.look(h2=50)
    assert hand.claim("awaits", "h2") == before


def test_looks_that_come_late_see_less_and_never_more(hand: ByHand) -> None:
    hand.look(8)
    hand.look(h2=50)
    hand.now_s += 0.2
    hand.look(h2=-50)  # when in these 0.2 s it was written is not known
    assert hand.claim("late")[1] == 0
    hand.look(8)
    hand.now_s += 2.0  # nothing is known of so long a time
    hand.look(h2=50)
    hand.look(8)
    hand.look(h2=-50)
    assert hand.claim("late")[1] == 0


@pytest.mark.parametrize(("blocked", "kind"), [(0.0, "slow"), (1.0, "unread")])
def test_data_that_stands_is_slow_or_unread(hand: ByHand, blocked: float, kind: str) -> None:
    hand.look(8)
    for _ in range(6):
        hand.socks["h2"].queued_bytes = 20_000
        hand.socks["h2"].blocked_s += blocked * LOOK_S
        hand.look(h2=-50)
    hand.socks["h2"].queued_bytes = 0
    hand.look(8)
    hand.look(h2=-50)
    assert hand.claim(kind, "h2")[1] == 1
    assert hand.claim({"slow": "unread", "unread": "slow"}[kind], "h2")[1] == 0


def test_a_segment_that_waits_for_its_acknowledgement_is_no_queue(hand: ByHand) -> None:
    hand.socks["h2"].queued_bytes = 56  # an opening word, acknowledged after 40 ms
    hand.look(20)
    hand.look(h2=-50)
    assert hand.claim("slow", "h2")[1] == 0


def test_where_a_job_changes_its_pace_how_long_a_step_takes_is_learnt_anew(hand: ByHand) -> None:
    """Another job on the same connections: its pauses are no steps of the one before."""
    for _ in range(8):
        hand.look(300)
        hand.both(h2=50, h3=50)
    slow_s = hand.meter.period_s
    for _ in range(600):
        hand.look(7)
        hand.both(h2=50, h3=50)
    assert slow_s is not None and slow_s > 2.5
    assert hand.meter.period_s == pytest.approx(9 * LOOK_S, rel=0.2)


def test_peers_that_are_gone_are_forgotten(hand: ByHand) -> None:
    hand.meter.forget(["h2", "h9"])
    assert hand.meter.peers == ("h3",)
