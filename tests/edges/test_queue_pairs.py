"""The edge that watches queue pairs: whom it calls active, which flows it tells the core of, what it shows."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from at_once import AtOnce
from rich.console import Console

from linkpass.cli import rdma_tables
from linkpass.core.events import Event, FlowGoes, FlowStands, PeerPatience
from linkpass.edges import queue_pairs
from linkpass.edges.metrics import exposition
from linkpass.edges.queue_pairs import Looked, QueuePairEdge, Watch
from rdma.deadline import deadline
from rdma.flows import Flow, Place
from rdma.nldev import QpState, QueuePair
from rdma.resent import LATELY_S, Sends, Went
from rdma.steering import Setting
from rdma.uverbs import Address, Queried

HERE = Setting(
    labels="", routes="", vrf="vrf0", device={"rxe0": ("vrf0",)}, live_qps="rdma.steer.live_qps is off",
    ways=lambda _: ("eth1", "eth2"), kernel="6.12.1",
)  # fmt: skip
PEER = "fd00:ff::2"
NO_PORT = "rxe: takes no other UDP source port while it runs"
NAME = f"writer (pid {os.getpid()}), queue pair 17 of rxe0"


def flow(
    *, silent_s: float | None = 0.0, posted: int | None = None, gid: str | None = PEER, retries: int = 6,
    state: QpState = "RTS", received_s: float | None = 9.0, again: bool = False,
) -> Flow:  # fmt: skip
    qp = QueuePair("rxe0", 1, 17, 18, "RC", state, 0, 0, os.getpid())
    to = None if gid is None else Queried(Address(gid, 1), 18, 0, 0, state, 1024, False, 0, 1, 14, retries, 7)
    return Flow(
        qp, "writer", 1, to, Place(0, 1) if to else None, deadline(14, retries, "rxe") if to else None,
        silent_s, received_s, posted, again, "" if to else "not permitted",
    )  # fmt: skip


class Shown(Watch):
    """It sees what it is given."""

    def __init__(self) -> None:
        super().__init__(Path("/nonexistent"))
        self.now = Looked([], {"rxe0": "rxe"}, "", 0.001)
        self.asked: list[tuple[float, list[tuple[str, int | None]]]] = []
        self.failure: Exception | None = None

    def look(self, now_s: float, again: Iterable[tuple[str, int | None]], how: tuple[int, os.sched_param]) -> Looked:
        self.asked.append((now_s, list(again)))
        if self.failure is not None:
            raise self.failure
        return self.now


class Bench:
    """The edge with a table that shows what it is given, each look of which is done when it has been asked for."""

    def __init__(self) -> None:
        self.said: list[Event] = []
        self.watch = Shown()
        self.edge = QueuePairEdge(self.said.append, Path("/nonexistent"), AtOnce(), self.watch)
        self.now_s = 100.0

    def see(self, *flows: Flow, **other: Any) -> list[Event]:
        self.watch.now = msgspec.structs.replace(self.watch.now, flows=list(flows), **other)
        self.said.clear()
        self.now_s += queue_pairs.LOOK_S
        self.edge.poll(self.now_s)
        looking, self.edge._looking = self.edge._looking, None
        assert looking is not None
        self.edge._take(looking, self.now_s)
        return [event for event in self.said if not isinstance(event, PeerPatience)]

    def patience(self, *flows: Flow) -> list[Event]:
        self.see(*flows)
        return [event for event in self.said if isinstance(event, PeerPatience)]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_flow_that_stands_is_told_of_and_told_again_until_it_goes(bench: Bench) -> None:
    assert bench.see(flow()) == []
    assert bench.see(flow(silent_s=0.2, posted=3)) == []
    (told,) = bench.see(flow(silent_s=0.4, posted=3))
    assert isinstance(told, FlowStands)
    assert (told.peer, told.flow, told.silent_s) == (PEER, NAME, 0.4)
    assert told.left_s == pytest.approx(7 * 4.096e-6 * 2**14 - 0.4)
    assert bench.see(flow(silent_s=0.6, posted=3)) == []
    assert len(bench.see(flow(silent_s=1.0, posted=3)) + bench.see(flow(silent_s=1.2, posted=3))) == 1
    assert bench.see(flow()) == [FlowGoes(peer=PEER, flow=NAME)]
    assert bench.see(flow()) == []


def test_a_flow_that_ends_while_it_stands_goes(bench: Bench) -> None:
    bench.see(flow(silent_s=0.4, posted=3))
    assert bench.see() == [FlowGoes(peer=PEER, flow=NAME, ended=True)]
    assert bench.see() == []


@pytest.mark.parametrize(
    "idle",
    [
        lambda: flow(silent_s=9.0),
        lambda: flow(silent_s=9.0, posted=0, again=True),
        lambda: flow(silent_s=9.0, posted=1, state="RTR"),
        lambda: flow(silent_s=9.0, posted=1, gid=None),
        lambda: flow(silent_s=None, posted=1),
    ],
)
def test_what_waits_for_nothing_or_is_not_known_is_not_told_of(bench: Bench, idle: Callable[[], Flow]) -> None:
    assert bench.see(idle()) == bench.see(idle()) == []


def test_one_that_sends_again_stands_where_nobody_can_look_into_its_queue(bench: Bench) -> None:
    (told,) = bench.see(flow(silent_s=0.4, again=True, retries=7))
    assert isinstance(told, FlowStands) and told.left_s is None  # rxe with seven retries never gives up


def test_peers_are_active_and_their_data_advances_in_either_direction(bench: Bench) -> None:
    bench.see(flow(silent_s=9.0, received_s=9.0), flow(gid="::ffff:10.255.0.3", received_s=0.0, silent_s=9.0))
    assert bench.edge.take_peers() == {PEER: False, "10.255.0.3": True}
    assert bench.edge.take_peers() == {PEER: False, "10.255.0.3": False}
    bench.see(flow(gid=None))
    assert bench.edge.take_peers() == {PEER: False, "10.255.0.3": False}
    assert bench.edge.take_peers() == {}


def test_the_least_patience_of_a_peers_transports_is_told_when_it_changes(bench: Bench) -> None:
    one, hasty = flow(), flow(retries=1)
    (told,) = bench.patience(one)
    assert told == PeerPatience(peer=PEER, least_s=pytest.approx(7 * 4.096e-6 * 2**14))
    assert bench.patience(one) == []
    assert bench.patience(one, hasty) == [PeerPatience(peer=PEER, least_s=pytest.approx(2 * 4.096e-6 * 2**14))]
    assert bench.patience(flow(retries=7)) == [PeerPatience(peer=PEER, least_s=None)]  # it never gives up
    assert bench.patience(flow(gid=None)) == []


def test_what_is_shown_says_what_moves_a_flow_and_why_nothing_else_does(bench: Bench) -> None:
    bench.see(flow(silent_s=0.4, posted=3), flow(gid="::ffff:10.255.0.3", retries=7), flow(gid=None))
    six, four, unknown = bench.edge.snapshot(HERE)
    assert (six["stands"], six["peer"], six["posted"]) == (True, PEER, 3)
    assert (six["sgid_index"], six["flow_label"], six["udp_port"]) == (1, 0, 0xC000 | 17 * 18)
    assert unknown["udp_port"] is None
    assert six["left_s"] == pytest.approx(six["gives_up_after_s"] - 0.4)
    assert six["rungs"] == {"label": "", "route": "", "planned": "rdma.steer.live_qps is off", "port": NO_PORT}
    assert (four["never_gives_up"], four["gives_up_after_s"], four["left_s"]) == (True, None, None)
    assert four["rungs"]["label"] == "IPv4 has no flow label: use the IPv6 GID"
    assert unknown["rungs"]["label"] == "not permitted" and unknown["peer"] == ""
    (rail, _, _) = bench.edge.snapshot(msgspec.structs.replace(HERE, ways=lambda _: ("eth1",)))
    assert rail["rungs"]["route"] == "only eth1 leads to its peer"
    plain = msgspec.structs.replace(HERE, labels="mode is observe", vrf="", device={"rxe0": ("eth0",)}, live_qps="")
    (elsewhere, _, _) = bench.edge.snapshot(plain)
    assert elsewhere["rungs"] == {
        "label": "mode is observe", "route": "it lies on eth0: under a VRF it would follow the routes", "planned": "",
        "port": NO_PORT,
    }  # fmt: skip


def went(again: int | None, *, of: Flow | None = None, own: str = "fd00:ff::1", **more: Any) -> Flow:
    told = Went(100.0, 40, again, by="" if again is None else "device", **more)
    return msgspec.structs.replace(of or flow(), own=own, went=told)


def test_what_flows_sent_again_is_handed_over_once(bench: Bench) -> None:
    bench.see(went(2))
    bench.see(went(None))
    bench.see(went(1))
    assert bench.edge.take_sent() == [Sends(NAME, "fd00:ff::1", PEER, 18, 100.0, 80, 3, False)]
    assert bench.edge.take_sent() == []
    for unknown in (went(None), went(2, of=flow(gid=None)), went(2, own="")):  # not known, or not where from and to
        bench.see(unknown)
        assert bench.edge.take_sent() == []
    bench.see(went(2))
    bench.see()
    assert bench.edge.take_sent() == []  # it has ended


def test_who_wants_to_know_hears_of_peers_to_which_something_was_sent_again(bench: Bench) -> None:
    heard: list[str] = []
    bench.edge.on_again.add(heard.append)
    bench.see(went(0), went(None), flow())
    assert heard == []
    bench.see(went(1), went(2), went(0))
    assert heard == [PEER]


def test_what_was_sent_again_lately_is_shown_and_what_is_not_known(bench: Bench) -> None:
    def shown() -> tuple[int | None, bool, str]:
        (row,) = bench.edge.snapshot(HERE)
        return row["sent_again"], row["sent_again_least"], row["sent_again_by"]

    bench.see(flow())
    assert shown() == (None, False, "")
    bench.see(went(2))
    bench.see(went(1, least=True))
    assert shown() == (3, True, "device")
    bench.now_s += LATELY_S
    bench.see(flow())
    assert shown() == (None, False, "")


@pytest.mark.parametrize(("again", "least", "text"), [(None, False, "?"), (3, False, "3"), (3, True, "3 or more")])
def test_the_table_says_what_is_the_least_and_what_is_not_known(
    bench: Bench, *, again: int | None, least: bool, text: str
) -> None:
    bench.see(went(again, least=least))
    console = Console(width=400, file=io.StringIO())
    view = {"rdma": {"flows": bench.edge.snapshot(HERE)}}
    console.print(rdma_tables.flows(view, everything=True))
    assert isinstance(console.file, io.StringIO)
    (heads,) = [line for line in console.file.getvalue().splitlines() if "sent again" in line]
    (row,) = [line for line in console.file.getvalue().splitlines() if "rxe0 17" in line]
    assert row[heads.index("sent again") :].startswith(f"{text}  ")


def test_flows_are_counted_for_prometheus(bench: Bench) -> None:
    bench.see(flow(silent_s=0.4, posted=3), flow(), flow(gid=None))
    text = exposition(lambda: {"rdma": {"devices": [], "flows": bench.edge.snapshot(HERE)}}).decode()
    assert 'linkpass_rdma_flows{device="rxe0"} 3.0' in text
    assert 'linkpass_rdma_flows_standing{device="rxe0"} 1.0' in text
    assert 'linkpass_rdma_flows_stopped{device="rxe0"} 0.0' in text
    rows = [{**row, "state": "SQD"} for row in bench.edge.snapshot(HERE)[:2]]
    text = exposition(lambda: {"rdma": {"devices": [], "flows": rows}}).decode()
    assert 'linkpass_rdma_flows_stopped{device="rxe0"} 2.0' in text


def test_a_host_without_rdma_has_one_line_to_say() -> None:
    edge = QueuePairEdge(lambda _: None, Path("/nonexistent"), AtOnce())
    assert (edge.why, edge.age_s(1.0)) == ("not looked at yet", None)
    edge.poll(1.0)
    edge.poll(1.1)
    assert edge.snapshot(HERE) == [] and edge.take_peers() == {}
    assert edge.why == "" or "RDMA" in edge.why
    edge.close()


def test_a_look_that_hangs_in_a_driver_is_not_waited_for() -> None:
    let_go, begun = threading.Event(), threading.Event()

    class Hanging(Shown):
        def look(self, *of: Any) -> Looked:
            begun.set()
            let_go.wait(10)
            return super().look(*of)

    watch, thread = Hanging(), ThreadPoolExecutor(1)
    edge = QueuePairEdge(lambda _: None, Path("/nonexistent"), thread, watch)
    watch.now = msgspec.structs.replace(watch.now, flows=[flow()])
    assert edge.poll(1.0) == edge.poll(1.1) == queue_pairs.TAKE_S
    assert [edge.poll(2.0 + step) for step in range(5)] == [queue_pairs.LOOK_S] * 5
    assert begun.wait(10)
    edge.ask_again("rxe0", 17)  # while the thread is at work: it is told with the next look
    let_go.set()
    thread.submit(int).result(10)
    edge.poll(9.0)
    assert (edge.flows, edge.age_s(9.0)) == ((flow(),), 8.0)
    thread.submit(int).result(10)
    assert watch.asked == [(1.0, []), (9.0, [("rxe0", 17)])]
    edge.close()
    thread.shutdown(wait=True)


def test_looks_take_a_fifth_of_the_time_at_most(bench: Bench) -> None:
    bench.see(took_s=0.1)
    before = len(bench.watch.asked)
    begun_s = bench.now_s
    pauses = []
    while len(bench.watch.asked) == before:
        pauses.append(bench.edge.poll(bench.now_s))
        bench.now_s += pauses[-1]
    assert bench.watch.asked[-1][0] - begun_s == pytest.approx(0.5)
    assert max(pauses) == queue_pairs.LOOK_S  # as often as before it is asked whether there is something to do
    bench.edge.poll(bench.now_s)
    bench.edge.ask_again("rxe0")
    bench.edge.poll(bench.now_s)
    assert bench.watch.asked[-1][1] == [("rxe0", None)], "who has another address is looked at as soon as may be"


def test_without_rdma_it_is_looked_for_now_and_then(bench: Bench) -> None:
    bench.see(is_open=False, why="this kernel has no RDMA (module ib_core is not loaded)")
    bench.watch.asked.clear()
    begun_s = bench.now_s
    while not bench.watch.asked:
        bench.now_s += bench.edge.poll(bench.now_s)
    assert bench.watch.asked[0][0] - begun_s == pytest.approx(queue_pairs.OPEN_AGAIN_S)


def test_what_nobody_has_thought_of_does_not_end_the_looking(bench: Bench) -> None:
    bench.see(flow())
    bench.watch.failure = UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
    for _ in range(3):
        assert bench.see() == []
    assert bench.edge.why.startswith("RDMA flows are not looked at: UnicodeDecodeError: ")
    assert bench.edge.failures == 3 and len(bench.edge.lines()) == 1
    assert bench.edge.flows == (flow(),), "what was seen before is still shown, with its age"
    assert bench.edge.age_s(bench.now_s) == pytest.approx(3 * queue_pairs.LOOK_S)
    bench.watch.failure = None
    bench.see(flow())
    assert (bench.edge.why, bench.edge.age_s(bench.now_s), bench.edge.lines()) == ("", 0.0, [])


def test_a_flow_that_is_not_seen_for_a_while_is_not_told_to_have_ended(bench: Bench) -> None:
    """Its device's list broke off: it is shown without what is not known, and says so."""
    bench.see(flow(silent_s=0.4, posted=3))
    unseen = msgspec.structs.replace(flow(silent_s=None, received_s=None), why="broke off")
    assert bench.see(unseen, why="broke off") == []
    (row,) = bench.edge.snapshot(HERE)
    assert (row["silent_s"], row["stands"], row["why"], bench.edge.why) == (None, False, "broke off", "broke off")
    assert PEER in bench.edge.take_peers()
    assert bench.see(flow()) == [FlowGoes(peer=PEER, flow=NAME)]


def test_one_whose_address_is_another_now_does_not_stand_with_its_old_peer(bench: Bench) -> None:
    bench.see(flow(silent_s=0.4, posted=3))
    assert bench.see(flow(gid=None)) == []
    goes, stands = bench.see(flow(silent_s=0.4, posted=3, gid="fd00:ff::3"))
    assert goes == FlowGoes(peer=PEER, flow=NAME)
    assert isinstance(stands, FlowStands) and stands.peer == "fd00:ff::3"


def test_peers_of_handles_that_are_not_certain_are_active(bench: Bench) -> None:
    bench.see(msgspec.structs.replace(flow(gid=None, received_s=0.0), may_be=(PEER, "fd00:ff::3")))
    assert bench.edge.take_peers() == {PEER: True, "fd00:ff::3": True}
    assert bench.edge.flows[0].peer == ""


def test_one_whose_program_cannot_be_found_has_no_number_for_it(bench: Bench) -> None:
    nobody = flow(gid=None)
    bench.see(msgspec.structs.replace(nobody, program="", qp=msgspec.structs.replace(nobody.qp, pid=0)))
    (row,) = bench.edge.snapshot(HERE)
    assert (row["name"], row["pid"]) == ("a program that is not known, queue pair 17 of rxe0", None)
