"""Two ends agree on a move, whatever is lost, late, repeated or broken: never one with the new address alone."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rdma.moving import TABLE, Command, Do, Ended, Kind, Move, Patience, Role, Say, answer_unknown

WORK_S = 0.003
PATIENCE = Patience(whole_s=1.0, again_s=0.05, doubt_s=30.0)


class Two:
    """Both ends, the words between them and the queue pairs' addresses."""

    def __init__(
        self,
        *,
        lose: Callable[[Role, str], bool] = lambda end, word: False,
        fail: Callable[[Role, str], bool] = lambda end, work: False,
        slow_s: float = 0.0,
        chance: int = 0,
    ) -> None:
        self.now_s = 0.0
        self.ends: dict[Role, Move] = {"asker": Move("asker", 0.0, PATIENCE), "asked": Move("asked", 0.0, PATIENCE)}
        self.address: dict[Role, str] = {"asker": "old", "asked": "old"}
        self.running: dict[Role, bool] = {"asker": True, "asked": True}
        self.log: list[str] = []
        self._lose, self._fail, self._slow_s = lose, fail, slow_s
        self._chance = random.Random(chance)
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._number = itertools.count()

    def run(self, until_s: float = 40.0) -> Two:
        if self.ends["asker"].state == "new":
            self._take("asker", self.ends["asker"].begin(0.0))
        while self.now_s < until_s:
            wanted = [(d, r) for r, one in self.ends.items() if (d := one.next_deadline_s()) is not None]
            next_s = min([d for d, _ in wanted] + [at for at, _, _ in self._heap], default=until_s)
            if next_s >= until_s:
                break
            self.now_s = max(self.now_s, next_s)
            if self._heap and self._heap[0][0] <= self.now_s:
                heapq.heappop(self._heap)[2]()
                continue
            for deadline_s, role in wanted:
                if deadline_s <= self.now_s:
                    self._take(role, self.ends[role].time_is(self.now_s))
        return self

    def _take(self, role: Role, commands: list[Command]) -> None:
        other: Role = "asked" if role == "asker" else "asker"
        for command in commands:
            if isinstance(command, Say):
                self.log.append(f"{role} says {command.kind}")
                if not self._lose(role, command.kind):
                    kind: Kind = command.kind
                    self._later(self._chance.random() * self._slow_s + 0.001, lambda kind=kind: self._hear(other, kind))
            elif isinstance(command, Do):
                self._later(WORK_S, lambda work=command.work: self._work(role, work))
            else:
                self.log.append(f"{role} {command.outcome}")

    def _later(self, delay_s: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (self.now_s + delay_s, next(self._number), what))

    def _hear(self, role: Role, kind: Kind) -> None:
        self._take(role, self.ends[role].heard(kind, self.now_s))

    def _work(self, role: Role, work: str) -> None:
        ok = not self._fail(role, work)
        if ok:
            if work == "stop":
                self.running[role] = False
            if work in ("address", "back"):
                assert not self.running[role] or work == "back", "an address was changed under way"
                self.address[role] = "new" if work == "address" else "old"
            if work in ("resume", "back"):
                self.running[role] = True
        self._take(role, self.ends[role].done(work, self.now_s, ok=ok, why="refused"))  # type: ignore[arg-type]

    def outcome(self) -> set[str]:
        return {one.ended.outcome if one.ended else one.state for one in self.ends.values()}


def test_both_ends_move() -> None:
    two = Two().run()
    assert two.outcome() == {"moved"}
    assert set(two.address.values()) == {"new"}
    assert all(two.running.values())
    assert two.log == [
        "asker says ask", "asked says drained", "asker says address", "asked says addressed", "asker says go",
        "asker moved", "asked moved",
    ]  # fmt: skip


@pytest.mark.parametrize("end", ["asker", "asked"])
@pytest.mark.parametrize("work", ["stop", "address"])
def test_what_fails_before_the_decision_leaves_both_as_they_were(end: str, work: str) -> None:
    two = Two(fail=lambda role, what: (role, what) == (end, work)).run()
    assert two.outcome() == {"kept"}
    assert set(two.address.values()) == {"old"}
    assert all(two.running.values())


@pytest.mark.parametrize("word", ["ask", "drained", "address", "addressed", "go"])
def test_a_word_that_is_lost_is_said_again(word: str) -> None:
    lost = []

    def lose(end: Role, kind: str) -> bool:
        if kind == word and not lost:
            lost.append(kind)
            return True
        return False

    two = Two(lose=lose).run()
    assert lost == [word]
    assert two.outcome() == {"moved"}
    assert set(two.address.values()) == {"new"}


def test_a_peer_that_never_answers_costs_a_second() -> None:
    two = Two(lose=lambda end, kind: end == "asked").run()
    assert two.outcome() == {"kept"}
    assert set(two.address.values()) == {"old"}
    assert all(two.running.values())


def test_an_end_in_doubt_waits_for_the_decision_and_then_goes_back() -> None:
    """Its asker's daemon has died: nobody will ever say."""
    two = Two(lose=lambda end, kind: kind in ("go", "back"))
    two.run(20.0)
    assert two.ends["asked"].state == "addressed"
    assert two.log.count("asked says addressed") > 100
    two.run(40.0)
    assert two.ends["asked"].ended == Ended("kept", "nobody said what was decided")


def test_an_asker_that_was_started_anew_takes_its_peer_back() -> None:
    two = Two(lose=lambda end, kind: kind == "go").run(0.5)
    assert two.ends["asked"].state == "addressed"
    (word,) = answer_unknown("addressed")
    assert word == Say("back")
    assert two.ends["asked"].heard("back", 0.5) == [Say("back"), Do("back")]


@given(st.integers(0, 2**32), st.floats(0, 0.6), st.floats(0, 0.3))
@settings(deadline=None)
def test_never_one_end_alone(seed: int, lost_ratio: float, slow_s: float) -> None:
    """Words are lost, slow and out of order, for as long as doubt lasts and no longer."""
    chance = random.Random(seed)
    two = Two(lose=lambda end, kind: chance.random() < lost_ratio, slow_s=slow_s, chance=seed).run(29.0)
    assert two.outcome() in ({"moved"}, {"kept"}), two.log[-20:]
    assert len(set(two.address.values())) == 1
    assert all(two.running.values())


@given(st.integers(0, 2**32), st.floats(0, 0.5))
@settings(deadline=None)
def test_never_one_end_alone_though_work_fails(seed: int, failed_ratio: float) -> None:
    chance = random.Random(seed)
    may_fail = ("stop", "address")
    two = Two(fail=lambda end, work: work in may_fail and chance.random() < failed_ratio, slow_s=0.1, chance=seed).run(
        29.0
    )
    assert two.outcome() in ({"moved"}, {"kept"}), two.log[-20:]
    assert len(set(two.address.values())) == 1
    assert all(two.running.values())


def test_the_table_names_every_state_of_both_roles() -> None:
    states = {"new", "stopping", "drained", "addressing", "addressed", "resuming"}
    assert set(TABLE) == {(r, s) for r in ("asker", "asked") for s in states} | {("asker", "deciding")}


def test_only_the_asker_begins_and_only_once() -> None:
    asked, asker = Move("asked", 0.0), Move("asker", 0.0)
    asker.begin(0.0)
    for move in (asked, asker):
        with pytest.raises(RuntimeError, match="does not begin"):
            move.begin(0.0)
