"""Two daemons agree on new addresses and prove them before anything is stopped; whatever is lost, both ends agree."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rdma.move_desk import CHECKS, Desk, Do, Ends, Out, Pair, Send, Told
from rdma.moving import Patience
from rdma.words import Word, decode, encode

HERE, THERE = "fd00:a::1", "fd00:a::2"
NEW_HERE, NEW_THERE = "fd00:b::1", "fd00:b::2"
PATIENCE = Patience(whole_s=1.0, again_s=0.05, doubt_s=30.0)
ASKER = Ends("writer", "rxe0", 17, 71, HERE, THERE)
ASKED = Ends("reader", "rxe0", 71, 17, THERE, HERE)


class Ground:
    """A host with one flow. `new`: its own address to move to; `bad`: addresses of peers that it does not trust."""

    def __init__(self, ends: Ends, new: str, bad: Iterable[str] = (), find: str = "") -> None:
        self.ends, self.new, self.bad, self.why = ends, new, set(bad), find

    def find(self, own: str, peer: str, qpn: int, peer_qpn: int) -> Ends | str:
        known = (self.ends.own, self.ends.peer, self.ends.qpn, self.ends.peer_qpn)
        return self.why or (self.ends if known == (own, peer, qpn, peer_qpn) else "no such queue pair")

    def pair(self, ends: Ends, offered: tuple[str, ...]) -> Pair | str:
        found = [Pair(self.new, one) for one in offered if not self.refused(Pair(self.new, one))]
        return found[0] if found else "no other address would do"

    def refused(self, to: Pair) -> str:
        return f"{to.peer} is not trusted" if to.peer in self.bad else ""


class Wire:
    """Two desks, the words between them, and the addresses of the queue pair's ends. Words are encoded and decoded."""

    def __init__(
        self, asker: Ground | None = None, asked: Ground | None = None, *,
        lose: Callable[[Send], bool] = lambda send: False, fail: Callable[[str, str], bool] = lambda end, work: False,
        chance: int = 0,
    ) -> None:  # fmt: skip
        self.now_s = 0.0
        grounds = {"asker": asker or Ground(ASKER, NEW_HERE), "asked": asked or Ground(ASKED, NEW_THERE)}
        numbers = itertools.count(1)
        self.desks = {end: Desk(ground, lambda: next(numbers), PATIENCE) for end, ground in grounds.items()}
        self.at = {"asker": "old", "asked": "old"}
        self.running = {"asker": True, "asked": True}
        self.stopped: set[str] = set()
        self.gone: set[str] = set()
        self.decided = False
        self.sent: list[Send] = []
        self.told: dict[str, Told] = {}
        self._lose, self._fail, self._chance = lose, fail, random.Random(chance)
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._number = itertools.count()

    def run(self, until_s: float = 100.0) -> Wire:
        _, outs = self.desks["asker"].move(ASKER, (NEW_HERE,), 0.0)
        self._take("asker", outs)
        while True:
            wanted = [
                (at_s, end)
                for end, desk in self.desks.items()
                if end not in self.gone and (at_s := desk.next_deadline_s()) is not None
            ]
            next_s = min([at_s for at_s, _ in wanted] + [at_s for at_s, _, _ in self._heap], default=until_s)
            if next_s >= until_s:
                return self
            self.now_s = max(self.now_s, next_s)
            if self._heap and self._heap[0][0] <= self.now_s:
                heapq.heappop(self._heap)[2]()
                continue
            for at_s, end in wanted:
                if at_s <= self.now_s:
                    self._take(end, self.desks[end].time_is(self.now_s))

    def leave(self, end: str) -> None:
        """Its daemon ends in order: words are said, the queue pair goes on, nothing is heard any more."""
        self._take(end, list(self.desks[end].give_up(self.now_s)))
        if not self.running[end]:
            self.at[end], self.running[end] = self.at[end] if self.decided else "old", True
        self.gone.add(end)

    def _take(self, end: str, outs: list[Out]) -> None:
        if end in self.gone:
            return
        other = "asked" if end == "asker" else "asker"
        for out in outs:
            if isinstance(out, Send):
                self.sent.append(out)
                if not self._lose(out):
                    word = decode(encode(out.word))
                    assert word == out.word
                    self._later(0.001 + 0.01 * self._chance.random(), lambda o=out: self._hear(other, o))
            elif isinstance(out, Do) and out.work == "decide":  # on disk before anything else happens
                self.decided |= not self._fail(end, "decide")
                self._take(end, self.desks[end].done(out.move, "decide", self.now_s, ok=self.decided, why="disk full"))
            elif isinstance(out, Do):
                self._later(0.003, lambda o=out: self._work(end, o))
            else:
                assert end not in self.told
                self.told[end] = out

    def _later(self, delay_s: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (self.now_s + delay_s, next(self._number), what))

    def _hear(self, end: str, send: Send) -> None:
        if end in self.gone:
            return
        self._take(end, self.desks[end].heard(send.peer, send.own, send.word, self.now_s))

    def _work(self, end: str, do: Do) -> None:
        if end in self.gone:
            return
        ok = not self._fail(end, do.work)
        if ok:
            if do.work == "stop":
                self.running[end] = False
                self.stopped.add(end)
            if do.work == "address":
                assert not self.running[end], "an address was changed under way"
                wanted = Pair(NEW_HERE, NEW_THERE) if end == "asker" else Pair(NEW_THERE, NEW_HERE)
                assert do.to == wanted
                self.at[end] = "new"
            if do.work == "back":
                self.at[end] = "old"
            if do.work in ("resume", "back"):
                self.running[end] = True
        self._take(end, self.desks[end].done(do.move, do.work, self.now_s, ok=ok, why="refused"))


def test_both_ends_move_after_the_new_path_has_answered() -> None:
    wire = Wire().run()
    assert set(wire.at.values()) == {"new"}
    assert all(wire.running.values())
    assert {end: told.outcome for end, told in wire.told.items()} == {"asker": "moved", "asked": "moved"}
    kinds = [send.word.kind for send in wire.sent]
    assert kinds.index("checked") < kinds.index("ask")
    assert kinds.count("checked") == CHECKS
    over_new = [send for send in wire.sent if send.word.kind in ("check", "checked")]
    assert {send.own for send in over_new} == {NEW_HERE, NEW_THERE}
    assert 0 < wire.told["asker"].took_s < 0.2


@pytest.mark.parametrize(
    ("asker", "asked", "why"),
    [
        (None, Ground(ASKED, NEW_THERE, find="it only answers (state RTR)"), "the peer refuses: it only answers"),
        (None, Ground(ASKED, NEW_THERE, bad=[NEW_HERE]), "the peer refuses: no other address would do"),
        (Ground(ASKER, NEW_HERE, bad=[NEW_THERE]), None, "fd00:b::2 is not trusted"),
    ],
    ids=["cannot be stopped there", "asked trusts no path", "asker trusts no path"],
)
def test_what_is_refused_stops_nobody(asker: Ground | None, asked: Ground | None, why: str) -> None:
    wire = Wire(asker, asked).run()
    assert wire.told["asker"].outcome == "kept"
    assert wire.told["asker"].why.startswith(why)
    assert not wire.told["asker"].began
    assert not wire.stopped


@pytest.mark.parametrize(
    ("lost", "why"),
    [
        (lambda send: True, "the peer's daemon does not answer"),
        (lambda send: NEW_HERE in (send.own, send.peer), "the new path, fd00:b::1 to fd00:b::2, does not answer"),
        (lambda send: send.own == NEW_THERE, "the new path, fd00:b::1 to fd00:b::2, does not answer"),
    ],
    ids=["no daemon there", "new path dead", "new path dead one way"],
)
def test_a_path_that_does_not_answer_stops_nobody(lost: Callable[[Send], bool], why: str) -> None:
    wire = Wire(lose=lost).run()
    assert wire.told["asker"].why == why
    assert not wire.stopped


def test_a_new_path_that_dies_meanwhile_is_made_up_for_by_the_old_one() -> None:
    """Words of the move itself are said on both."""
    checked = []

    def lose(send: Send) -> bool:
        checked.append(send.word.kind)
        return checked.count("checked") >= CHECKS and send.word.kind != "checked" and send.own.startswith("fd00:b")

    wire = Wire(lose=lose).run()
    assert {told.outcome for told in wire.told.values()} == {"moved"}


@pytest.mark.parametrize("after_s", [0.02, 0.025, 0.03, 0.035, 0.04, 0.05, 0.06])
def test_an_asker_that_ends_says_so_and_its_peer_goes_back_at_once(after_s: float) -> None:
    """Or, from the decision on, both have moved."""
    wire = Wire()
    wire._later(after_s, lambda: wire.leave("asker"))
    wire.run()
    assert wire.running["asked"]
    assert len(set(wire.at.values())) == 1
    if "asked" in wire.told:
        assert wire.told["asked"].took_s < 0.5, "it waited for somebody who is gone"


@settings(max_examples=300)
@given(seed=st.integers(0, 2**32), loss=st.floats(0, 0.6), failing=st.sampled_from(["", "stop", "address", "decide"]))
def test_both_ends_agree_whatever_is_lost(seed: int, loss: float, failing: str) -> None:
    chance = random.Random(seed)
    wire = Wire(
        lose=lambda send: chance.random() < loss,
        fail=lambda end, work: work == failing and chance.random() < 0.5, chance=seed,
    ).run()  # fmt: skip
    assert all(wire.running.values()), "an end stands for ever"
    assert len(set(wire.at.values())) == 1, "one end alone"
    assert all(told.outcome == ("moved" if wire.at[end] == "new" else "kept") for end, told in wire.told.items())


def offered(asked: Desk, move: int = 7) -> None:
    """As far as three checks."""
    asked.heard(THERE, HERE, Word("prepare", move, asker_qpn=17, asked_qpn=71, gids=(NEW_HERE,)), 0.0)
    for step in range(CHECKS):
        assert asked.heard(NEW_THERE, NEW_HERE, Word("check", move, 41, step=step), 0.05)


def test_nothing_is_stopped_for_a_peer_that_has_not_tried_the_new_path() -> None:
    asked = Desk(Ground(ASKED, NEW_THERE), lambda: 41, PATIENCE)
    asked.heard(THERE, HERE, Word("prepare", 7, asker_qpn=17, asked_qpn=71, gids=(NEW_HERE,)), 0.0)
    asked.heard(NEW_THERE, NEW_HERE, Word("check", 7, 41, step=0), 0.05)
    assert asked.heard(NEW_THERE, NEW_HERE, Word("ask", 7, 41), 0.1) == []


def test_a_peer_that_asks_for_nothing_again_and_again_is_refused() -> None:
    asked = Desk(Ground(ASKED, NEW_THERE), lambda: 41, PATIENCE)
    offered(asked)
    asked.heard(NEW_THERE, NEW_HERE, Word("ask", 7, 41), 0.1)
    asked.done(7, "stop", 0.2, ok=True)
    asked.heard(NEW_THERE, NEW_HERE, Word("back", 7, 41), 0.3)
    asked.done(7, "back", 0.4, ok=True)
    word = Word("prepare", 8, asker_qpn=17, asked_qpn=71, gids=(NEW_HERE,))
    (told,) = asked.heard(THERE, HERE, word, 0.5)
    assert isinstance(told, Send) and told.word.why == "it was stopped for nothing a moment ago"
    (later,) = asked.heard(THERE, HERE, word, 6.0)
    assert isinstance(later, Send) and later.word.kind == "offer"


def test_a_decision_outlives_the_daemon_that_took_it() -> None:
    """A peer whose GO was lost asks a daemon that was started anew."""
    fresh = Desk(Ground(ASKER, NEW_HERE), lambda: 1, PATIENCE)
    fresh.recall(7, 41, ASKER, Pair(NEW_HERE, NEW_THERE), 0.0)
    for own, peer in ((NEW_HERE, NEW_THERE), (HERE, THERE)):
        outs = fresh.heard(own, peer, Word("addressed", 7, 41), 1.0)
        assert {out.word.kind for out in outs if isinstance(out, Send)} == {"go"}


@pytest.mark.parametrize("change", [{"nonce": 5}, {"move": 999}])
def test_words_of_another_move_stop_nobody(change: dict[str, int]) -> None:
    """What somebody has recorded, or made up without the offer's number."""
    asked = Desk(Ground(ASKED, NEW_THERE), lambda: 41, PATIENCE)
    offered(asked)
    word = Word("ask", change.get("move", 7), change.get("nonce", 41))
    assert not [out for out in asked.heard(NEW_THERE, NEW_HERE, word, 0.1) if isinstance(out, Do)]
    good = asked.heard(NEW_THERE, NEW_HERE, Word("ask", 7, 41), 0.1)
    assert [out.work for out in good if isinstance(out, Do)] == ["stop"]


def test_a_word_from_elsewhere_stops_nobody() -> None:
    asked = Desk(Ground(ASKED, NEW_THERE), lambda: 41, PATIENCE)
    asked.heard(THERE, HERE, Word("prepare", 7, asker_qpn=17, asked_qpn=71, gids=(NEW_HERE,)), 0.0)
    assert asked.heard(THERE, "fd00:a::9", Word("ask", 7, 41), 0.1) == []


def test_one_flow_is_moved_once_at_a_time() -> None:
    asked = Desk(Ground(ASKED, NEW_THERE), lambda: 41, PATIENCE)
    prepare = [Word("prepare", move, asker_qpn=17, asked_qpn=71, gids=(NEW_HERE,)) for move in (6, 7, 8)]
    (first,) = asked.heard(THERE, HERE, prepare[0], 0.0)
    assert asked.heard(THERE, HERE, prepare[0], 0.1) == [first], "asked again, the same answer"
    offered(asked)  # an offer that nobody has taken up is no obstacle
    asked.heard(NEW_THERE, NEW_HERE, Word("ask", 7, 41), 0.1)
    (refused,) = asked.heard(THERE, HERE, prepare[2], 0.2)
    assert isinstance(refused, Send) and refused.word.why == "it is being moved already"
    asker = Desk(Ground(ASKER, NEW_HERE), itertools.count(1).__next__, PATIENCE)
    asker.move(ASKER, (NEW_HERE,), 0.0)
    _, (told,) = asker.move(ASKER, (NEW_HERE,), 0.1)
    assert isinstance(told, Told) and told.why == "it is being moved already"


@pytest.mark.parametrize("gid", ["x", "fd00:b:0::2", "", "fd00::1%eth0", "10.0.0.256"])
def test_what_is_no_address_is_no_word(gid: str) -> None:
    assert decode(encode(Word("offer", 7, 41, gids=(gid, HERE)))) is None


@given(st.binary(max_size=300))
def test_bytes_that_are_no_word_are_nothing(data: bytes) -> None:
    assert decode(data) is None or encode(decode(data)) is not None  # type: ignore[arg-type]
