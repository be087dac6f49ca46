"""The books of RoCE datagrams, without a device: times told apart, losses settled, verdicts that need a witness."""

from __future__ import annotations

import ipaddress
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from linkpass.core.settings import CoreSettings, Detection
from linkpass.edges.metrics import exposition
from linkpass.edges.probes.books import Books
from linkpass.edges.probes.roce import NO_PORT, RoceFlow, RoceProbes
from linkpass.edges.probes.roce_books import Asked, Hearer, Key, Target, gid_of, gid_text
from linkpass.edges.probes.roce_ports import Sides
from linkpass.edges.probes.roce_told import Directory
from linkpass.edges.probes.sending import Sender
from linkpass.wire import probe

OWN, GID = (ipaddress.IPv6Address(f"fd00:ff::{n}").packed for n in (1, 3))
DETECTION = Detection(grace_s=0.0)
INTERVAL_S = 0.1


def target(traffic_class: int = 0, port: int = 1, sl: int = 0) -> Target:
    return Target(Key("rxe0", port, OWN, GID, traffic_class, sl), GID, "fd00:ff::3", 7, DETECTION, 0.0)


def ask(one: Target, at_s: float) -> None:
    """Its making takes 1 ms; the port's clock is another one."""
    one.record(Asked(at_s - 0.001, 1000.0 + at_s, one.seq + 1))


def answer(one: Target, seq: int, at_s: float, *, count: int = 0, dwell_s: float = 0.002) -> str | None:
    """It reaches the port at `at_s` and is read 3 ms later."""
    entry = probe.Heard(one.index, seq, count or seq, dwell_s=dwell_s)
    verdict = one.answer(entry, 1000.0 + at_s, at_s + 0.003)
    return verdict.evidence if verdict is not None else None


def test_network_and_both_hosts_are_told_apart() -> None:
    one = target()
    ask(one, 1.0)
    assert answer(one, 1, 1.010) == "good"
    assert one.rtt_s == pytest.approx(0.008)
    assert one.host_s == pytest.approx(0.004)
    assert one.peer_host_s == pytest.approx(0.002)


def test_a_device_that_says_when_a_datagram_left_is_believed() -> None:
    one = target()
    ask(one, 1.0)
    one.left(1, 1001.006)
    one.left(99, 5.0)  # of another one
    answer(one, 1, 1.010)
    assert one.rtt_s == pytest.approx(0.002)
    assert one.host_s == pytest.approx(0.010)


def test_answers_to_later_datagrams_settle_those_before_and_say_which_way_they_were_lost() -> None:
    one = target()
    for number in range(1, 6):
        ask(one, number * INTERVAL_S)
    answer(one, 1, 0.11)
    answer(one, 5, 0.51, count=3)  # 2 of the 3 between never came there; of one the answer was lost
    assert (one.sent, one.answered, one.lost, one.lost_there) == (5, 2, 3, 2)
    assert answer(one, 3, 0.52) is None and one.answered == 2  # too late
    assert answer(one, 5, 0.53) is None and one.answered == 2  # twice


def test_a_run_without_an_answer_counts_only_while_the_peer_is_heard() -> None:
    one = target()
    ask(one, 0.0)
    answer(one, 1, 0.01)
    for number in range(1, 5):
        ask(one, number * INTERVAL_S)
    assert one.overdue(1.0, INTERVAL_S, heard_s=0.05) == 0  # it may be the peer's daemon that runs late
    assert one.overdue(0.45, INTERVAL_S, heard_s=0.45) == 3
    assert one.overdue(1.0, INTERVAL_S, heard_s=0.99) == 4
    assert one.judge(1.0, 2) is None
    verdict = one.judge(1.0, 4)
    assert verdict is not None and verdict.evidence == "blackhole"
    assert "4 datagrams in a row" in one.why(4)
    for number in range(5, 9):
        ask(one, 1.0 + number * INTERVAL_S)
        last = answer(one, one.seq, 1.0 + number * INTERVAL_S + 0.01)
    assert last == "good" or one.detector.verdict.evidence == "good"


def test_what_was_never_answered_is_unknown_and_not_down() -> None:
    one = target()
    for number in range(10):
        ask(one, number * INTERVAL_S)
    assert one.judge(2.0, one.overdue(2.0, INTERVAL_S, 2.0)) is None
    assert (one.detector.verdict.evidence, one.why()) == ("unknown", "never answered")


def test_a_peer_that_answers_elsewhere_begins_anew() -> None:
    one = target()
    for number in range(4):
        ask(one, number * INTERVAL_S)
    one.count_anew()
    assert one.overdue(9.0, INTERVAL_S, 9.0) == 0
    assert answer(one, 2, 9.0) is None and one.lost == 0


def test_open_questions_are_bounded() -> None:
    one = target()
    for number in range(200):
        ask(one, number * INTERVAL_S)
    assert len(one.pending) == 64 and one.lost == 136


def test_names_say_what_makes_a_target() -> None:
    assert target().name == "rxe0 to fd00:ff::3"
    assert target(26 << 2, port=2, sl=3).name == "rxe0/2 to fd00:ff::3, DSCP 26, SL 3"
    mapped = gid_of(ipaddress.IPv4Address("10.9.0.1").packed)
    assert (gid_text(mapped), gid_of(GID)) == ("10.9.0.1", GID)


def test_a_question_is_heard_once() -> None:
    hearer = Hearer(boot=5)
    assert hearer.accept(7, 1) and not hearer.accept(7, 1)
    assert hearer.accept(7, 3) and hearer.accept(7, 2) and hearer.accept(8, 1)
    assert hearer.counts == {7: 3, 8: 1}


def directory(books: Books) -> Directory:
    sides = Sides(["fd00:ff::/64"], Path("/nonexistent"), lambda side: None)
    return Directory(books, Sender(books, probe.Signer(b"k"), lambda: 0.0), sides)


def test_what_a_peer_said_counts_while_its_daemon_is_the_same_one() -> None:
    books = Books(CoreSettings(host="host1", address="fd00:ff::1"))
    told, peer = directory(books), books.peer(GID)
    peer.adopt(11, 0)
    place = probe.RocePlace(GID, 17, 99)
    assert told.take(peer, [place], 1.0)
    assert not told.take(peer, [probe.RocePlace(GID, 18, 99)], 2.0)  # another number, the same addresses
    assert told.place(peer, GID) == probe.RocePlace(GID, 18, 99)
    assert told.peer_of(GID) is peer
    assert told.said_since(peer, 1.5) and not told.said_since(peer, 2.0)
    peer.adopt(12, 0)
    assert told.place(peer, GID) is None
    assert told.take(peer, [probe.RocePlace(bytes(16), 0, 0)], 3.0)  # it answers nowhere
    assert told.place(peer, GID) is None and told.peer_of(GID) is None


async def test_without_a_device_there_are_no_datagrams_and_one_line_says_so(tmp_path: Path) -> None:
    books = Books(CoreSettings(host="host1", address="fd00:ff::1"))
    signer = probe.Signer(b"k")
    made = RoceProbes(
        books, Sender(books, signer, lambda: 1.0), signer, lambda event: None, lambda: 1.0, ["fd00:ff::/64"], tmp_path
    )
    assert made.open() == [NO_PORT]
    made.set_flows([RoceFlow("mlx5_0", 1, 3, "fd00:ff::3", 104, 0)])
    made.reread("mlx5_0")
    assert (made.rows(), made.why) == ([], NO_PORT)
    made.close()


async def test_a_fault_in_one_turn_is_named_and_the_next_turn_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    books, signer = Books(CoreSettings(host="host1", address="fd00:ff::1")), probe.Signer(b"k")
    made = RoceProbes(
        books, Sender(books, signer, lambda: 1.0), signer, lambda event: None, lambda: 1.0, ["fd00:ff::/64"],
        Path("/nonexistent"),
    )  # fmt: skip
    looks: list[int] = []

    def broken() -> bool:
        looks.append(1)
        raise ValueError("not foreseen")

    made.open()
    monkeypatch.setattr(made._sides, "look_changed", broken)
    with capture_logs() as logs:
        for _ in range(3):
            made._look_s = 0.0
            made._tick()
            assert made._timer is not None and not made._timer.cancelled()
    assert (len(looks), made.faults) == (3, 3)
    assert made.why == "a fault of linkpass itself, looking at RDMA ports: ValueError: not foreseen"
    (line,) = logs
    assert line["exc_info"] and line["doing"] == "looking at RDMA ports"
    made.close()


async def test_a_target_that_cannot_be_asked_keeps_no_other_from_being_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    books, signer = Books(CoreSettings(host="host1", address="fd00:ff::1")), probe.Signer(b"k")
    made = RoceProbes(
        books, Sender(books, signer, lambda: 1.0), signer, lambda event: None, lambda: 1.0, ["fd00:ff::/64"],
        Path("/nonexistent"),
    )  # fmt: skip
    made.open()
    asked: list[int] = []

    def ask_one(one: Target, now_s: float) -> None:
        asked.append(one.key.sl)
        if one.key.sl == 0:
            raise KeyError(one.name)

    monkeypatch.setattr(made, "_probe", ask_one)
    for sl in (0, 1, 2):
        made._targets[Key("rxe0", 1, OWN, GID, 0, sl)] = target(sl=sl)
    made._tick()
    assert (asked, made.faults) == ([0, 1, 2], 1)
    assert all(one.due_s > 1.0 for one in made._targets.values())
    made.close()


def test_prometheus_counts_what_was_answered() -> None:
    row = {"name": "rxe0 to fd00:ff::3", "network_s": 0.25, "host_s": None, "peer_host_s": 0.5, "sent": 3, "lost": 1}
    text = exposition(lambda: {"rdma": {"datagrams": [row]}})
    for line in (
        b'linkpass_rdma_datagram_network_seconds{queue="rxe0 to fd00:ff::3"} 0.25',
        b'linkpass_rdma_datagram_peer_host_seconds{queue="rxe0 to fd00:ff::3"} 0.5',
        b'linkpass_rdma_datagrams_lost_total{queue="rxe0 to fd00:ff::3"} 1.0',
    ):
        assert line in text
    assert b"linkpass_rdma_datagram_host_seconds{" not in text
