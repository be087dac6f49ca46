"""Joining the kernel's queue pairs with a program's handles, and telling progress from its absence."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdma import flows
from rdma.asking import SAME, Place, Seen, ask, match
from rdma.borrowed import start_ticks
from rdma.flows import NOT_FOUND, FlowTable, ahead
from rdma.nldev import Listing, Nldev, QpState, QueuePair
from rdma.uverbs import Address, GidEntry, Queried

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


THREADED = """
import sys, threading
def wait():
    print(threading.get_native_id(), flush=True)
    sys.stdin.readline()
    print("ended", flush=True)
thread = threading.Thread(target=wait)
thread.start()
thread.join()
sys.stdin.read()
"""


@pytest.fixture
def threaded() -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process, and the number of its second thread, which ends after a line."""
    with subprocess.Popen([sys.executable, "-c", THREADED], stdin=-1, stdout=-1, text=True, bufsize=1) as process:
        assert process.stdout is not None
        yield process, int(process.stdout.readline())
        process.kill()


def end_thread(process: subprocess.Popen[str], thread: int) -> None:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    process.stdout.readline()
    while Path(f"/proc/{process.pid}/task/{thread}").exists():
        os.sched_yield()


class Told(Nldev):
    """A kernel that tells what it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.now: list[QueuePair] = []

        self.unknown: dict[str, str] = {}

    def listing(self) -> Listing:
        return Listing(self.now, self.unknown)


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


class Table(FlowTable):
    """Whose programs' files tell what they are told to, and how often they were asked."""

    def __init__(self, kernel: Nldev) -> None:
        super().__init__(kernel, Path("/nonexistent"))
        self.seen: Seen | OSError = Seen({})
        self.asked: list[int] = []

    def query(self, device: str, pid: int, started: int) -> Seen:
        self.asked.append(pid)
        if isinstance(self.seen, OSError):
            raise self.seen
        return self.seen

    def family(self, device: str) -> str:
        return "rxe"


def test_a_second_threads_queue_pair_is_its_process_and_stays_so(threaded: tuple[subprocess.Popen[str], int]) -> None:
    """NCCL's are made by its proxy thread. The kernel names the thread, and nobody once that has ended."""
    process, thread = threaded
    kernel = Told()
    table = Table(kernel)
    table.seen = Seen({Place(0, 4): seen(70)})
    kernel.now = [qp(17, 70, pid=thread)]
    (flow,) = table.look(0.0)
    assert (flow.qp.pid, flow.started) == (process.pid, start_ticks(process.pid))
    assert flow.program and (flow.place, table.asked) == (Place(0, 4), [process.pid])
    end_thread(process, thread)
    (gone,) = table.look(1.0)  # listed a moment before it ended
    kernel.now = [msgspec.structs.replace(kernel.now[0], pid=0)]
    (after,) = table.look(2.0)
    assert gone.name == after.name == flow.name and (after.place, after.why) == (Place(0, 4), "")
    assert FlowTable(kernel, Path("/nonexistent")).look(0.0)[0].why == NOT_FOUND
    process.kill()
    process.wait()
    kernel.now = []
    assert table.look(3.0) == []


def test_whose_thread_has_ended_is_known_by_its_protection_domain() -> None:
    kernel = Told()
    here = msgspec.structs.replace(qp(17, 70), domain=3)
    kernel.now = [
        here,
        msgspec.structs.replace(here, lqpn=18, pid=0),
        msgspec.structs.replace(here, lqpn=19, pid=0, domain=4),
    ]
    by = {flow.qp.lqpn: flow for flow in Table(kernel).look(0.0)}
    assert {number: flow.qp.pid for number, flow in by.items()} == {17: os.getpid(), 18: os.getpid(), 19: 0}
    assert by[19].why == NOT_FOUND and by[19].silent_s is None
    assert by[19].name == "a program that is not known, queue pair 19 of rxe0"


def test_a_device_whose_list_broke_off_keeps_its_flows(tmp_path: Path) -> None:
    kernel = Told()
    table = Table(kernel)
    table.seen = Seen({Place(0, 4): seen(70), Place(0, 5): seen(71)})
    other = msgspec.structs.replace(qp(17, 80), device="rxe1")
    kernel.now = [qp(17, 70), qp(18, 71), other]
    table.look(0.0)
    kernel.now, kernel.unknown = [qp(17, 70, psn=5), other], {"rxe0": "it broke off"}
    flows = {(flow.qp.device, flow.qp.lqpn): flow for flow in table.look(1.0)}
    assert len(flows) == 3 and table.unknown == {"rxe0": "it broke off"}
    assert (flows["rxe0", 17].silent_s, flows["rxe0", 17].why) == (0.0, "")
    unseen = flows["rxe0", 18]
    assert (unseen.why, unseen.peer, unseen.silent_s, unseen.received_s, unseen.stands) == (
        "it broke off", TO.gid, None, None, False,
    )  # fmt: skip
    kernel.now, kernel.unknown = [qp(17, 70), qp(18, 71, psn=1), other], {}
    back = {(flow.qp.device, flow.qp.lqpn): flow for flow in table.look(2.0)}
    assert (back["rxe0", 18].silent_s, back["rxe0", 18].why) == (0.0, "")
    kernel.now = [other]
    assert [flow.qp.device for flow in table.look(3.0)] == ["rxe1"], "listed whole, what is missing has ended"


def test_one_handle_that_does_not_answer_hides_no_other() -> None:
    def query(fd: int, handle: int, driver_id: int) -> Queried:
        if handle == 5:
            raise OSError(errno.EINVAL, "Invalid argument")  # a DCT of mlx5, or one that was destroyed
        return seen(70 + handle)

    def handles(fd: int, driver_id: int) -> list[int]:
        if fd == 9:
            raise OSError(errno.ENODEV, "No such device")
        return [4, 5, 6]

    def gids(fd: int, driver_id: int) -> list[GidEntry]:
        raise OSError(errno.EOPNOTSUPP, "before Linux 5.10")

    told = ask([8, 9], 1, handles, query, gids)
    assert told == Seen({Place(0, 4): seen(74), Place(0, 6): seen(76)}, (), "Invalid argument")


def test_what_was_not_found_is_asked_for_again_after_growing_pauses() -> None:
    kernel = Told()
    kernel.now = [qp(17, 70)]
    table = Table(kernel)
    table.seen = OSError(errno.EPERM, "Operation not permitted")
    asked_s = []
    for at_s in range(400):
        before = len(table.asked)
        (flow,) = table.look(at_s / 2)
        asked_s += [at_s / 2] * (len(table.asked) - before)
        assert flow.why.endswith("Operation not permitted")
    assert asked_s == [0.0, 1.0, 3.0, 7.0, 15.0, 31.0, 63.0, 123.0, 183.0]
    table.seen = Seen({Place(0, 4): seen(70)})
    (flow,) = table.look(243.0)
    assert (flow.why, flow.place) == ("", Place(0, 4))


def test_a_state_that_changed_between_the_two_lists_is_found_a_second_later() -> None:
    kernel = Told()
    kernel.now = [qp(17, 70, "RTR")]
    table = Table(kernel)
    table.seen = Seen({Place(0, 4): seen(70, "RTS")})
    (flow,) = table.look(0.0)
    assert flow.place is None and flow.why and flow.why != SAME
    assert flow.peers == (TO.gid,)
    kernel.now = [qp(17, 70, "RTS")]
    (flow,) = table.look(1.0)
    assert (flow.place, flow.why, flow.may_be) == (Place(0, 4), "", ())


def test_where_handles_are_ambiguous_all_their_peers_are_told() -> None:
    kernel = Told()
    kernel.now = [qp(17, 70), qp(18, 70)]
    table = Table(kernel)
    other = msgspec.structs.replace(seen(70), to=Address("::ffff:10.0.0.9", 1))
    table.seen = Seen({Place(0, 4): seen(70), Place(0, 5): other, Place(0, 6): seen(99)})
    for flow in table.look(0.0):
        assert (flow.why, flow.peer, flow.peers) == (SAME, "", ("10.0.0.9", TO.gid))


def test_a_timeout_that_there_is_not_is_unknown_and_no_end() -> None:
    kernel = Told()
    kernel.now = [qp(17, 70)]
    table = Table(kernel)
    table.seen = Seen({Place(0, 4): msgspec.structs.replace(seen(70), retry_count=9)})
    (flow,) = table.look(0.0)
    assert (flow.deadline, flow.place) == (None, Place(0, 4))
    assert flow.why == "its driver tells timeout 14 and 9 retries, which there are not"


def test_only_a_program_with_one_queue_pair_is_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several it could not be told which queue is whose: hundreds must not each go through their program's maps."""
    looked: list[int] = []

    def outstanding(pid: int, device: str, queue_pairs: int) -> int:
        looked.append(pid)
        return 3

    monkeypatch.setattr(flows, "outstanding", outstanding)
    kernel = Told()
    table = Table(kernel)
    kernel.now = [qp(number, number + 100) for number in range(50)]
    assert [table.look(at_s) for at_s in (0.0, 1.0)] and looked == []
    kernel.now = kernel.now[:1]
    (flow,) = table.look(2.0)
    assert (looked, flow.posted, flow.stands) == ([os.getpid()], 3, True)
