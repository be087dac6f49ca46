"""A fault of linkpass itself in one part of the daemon: it is logged once, counted, and the others go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from linkpass.app import process
from linkpass.app.agent import Agent
from linkpass.app.namespace import Namespace
from linkpass.app.process import Daemon
from linkpass.config import Config
from linkpass.config.model import Health, Journal
from linkpass.core import commands as cmd
from linkpass.core import events as ev
from linkpass.core.machine import Core
from linkpass.core.settings import CoreSettings
from linkpass.driver import Driver
from linkpass.edges import moves, tcp_timers
from linkpass.edges.notify import Notifier
from linkpass.edges.probes import ProbeEdge
from linkpass.edges.undo import UndoJournal
from linkpass.faults import Faults


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    monkeypatch.setattr(process, "TICK_S", 0.0)
    made = Daemon(
        Config(journal=Journal(dir=str(tmp_path)), health=Health(kernel_log=False, sensors=False, nvml=False))
    )
    yield made
    made._agents.clear()


def agent(daemon: Daemon, poll: Callable[[], None], close: Callable[[], None] = lambda: None) -> Agent:
    made = Agent(
        daemon.config,
        Namespace(),
        clock=daemon._clock,
        journal=daemon._journal,
        names={},
        spawn=daemon._spawn,
        timers=None,
    )
    made.poll, made.close = lambda: iter(poll, None), close  # type: ignore[method-assign]
    daemon._agents.append(made)
    return made


def broken() -> Any:
    raise KeyError("not foreseen")


async def test_an_agents_turn_that_fails_ends_neither_the_daemon_nor_the_turns_of_the_others(daemon: Daemon) -> None:
    turns: list[str] = []
    agent(daemon, broken)
    agent(daemon, lambda: turns.append("second agent"))
    daemon._visit = broken  # type: ignore[method-assign]
    daemon._rdma.poll = broken  # type: ignore[method-assign]
    with capture_logs() as logs:
        for _ in range(3):
            await daemon._tick(asyncio.Event(), Notifier())
    assert turns == ["second agent"] * 3
    assert sorted(one["doing"] for one in logs) == [
        "a turn of RDMA",
        "a turn of an agent",
        "looking for network namespaces",
    ]
    assert all(one["exc_info"] for one in logs)
    assert daemon.faults == 9
    assert "9 command(s) or turn(s) met a fault of linkpass itself" in "".join(daemon._all_notes())


async def test_work_in_the_background_that_fails_ends_nothing_else(daemon: Daemon) -> None:
    done: list[str] = []

    async def fails() -> None:
        broken()

    async def goes_on() -> None:
        await asyncio.sleep(0)
        done.append("yes")

    with capture_logs():
        async with asyncio.TaskGroup() as tasks:
            daemon._tasks = tasks
            daemon._spawn(fails())
            daemon._spawn(goes_on())
    assert (done, daemon._faults.count) == (["yes"], 1)


def test_every_agent_hands_its_traffic_back_whatever_another_meets(daemon: Daemon) -> None:
    closed: list[str] = []
    agent(daemon, lambda: None, broken)
    agent(daemon, lambda: None, lambda: closed.append("second agent"))
    with capture_logs():
        daemon._close()
    assert closed == ["second agent"]


def test_one_part_of_an_agents_turn_keeps_no_other_from_its_work(daemon: Daemon) -> None:
    made = Agent(
        daemon.config, Namespace(), clock=daemon._clock, journal=daemon._journal, names={}, spawn=daemon._spawn,
        timers=None, also_active=broken,
    )  # fmt: skip
    done: list[str] = []

    class Sockets:
        def poll(self, now_s: float, active: object) -> None: ...

    made._sockets = Sockets()  # type: ignore[assignment]
    made._watch.resolve_gateways = lambda: done.append("gateways")  # type: ignore[method-assign]
    with capture_logs():
        assert sum(1 for _ in made.poll()) > 1
        made._try(broken)
    assert (done, made.faults) == (["gateways"], 2)


async def test_probing_goes_on_after_a_fault_in_one_part_of_a_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = CoreSettings(host="host1", address="fd00:ff::1")
    probes = ProbeEdge(settings, b"k" * 32, lambda event: None, lambda: 5.0)
    probes._loop = asyncio.get_running_loop()
    answered: list[float] = []
    monkeypatch.setattr(probes._listener, "drain", broken)
    monkeypatch.setattr(probes._sender, "answer", answered.append)
    with capture_logs() as logs:
        for turn in (1, 2):
            probes._tick()
            assert probes._timer is not None and probes._timer.when() > probes._loop.time()
            assert (answered, probes.faults) == ([5.0] * turn, turn)
        probes._on_packet()  # what belongs to it is waited for
        assert probes._gathering is not None
        probes._read()
    assert len(logs) == 1 and probes.faults == 3
    assert probes._gathering is None and probes._watching, "the next packet wakes the loop"
    probes._timer.cancel()


def test_a_start_goes_on_over_undo_entries_that_nobody_can_read(tmp_path: Path) -> None:
    undo = UndoJournal(tmp_path)
    undo.open()
    undo.note(moves.KIND, [{"target": "not one", "decided": 0}, {"decided": 1}])
    undo.note(tcp_timers.KIND, [{"pid": 1, "option": "many"}])
    undo.close()
    daemon = Daemon(msgspec.structs.replace(Config(), mode="act", journal=Journal(dir=str(tmp_path))))
    daemon._open_timers()
    kept = [note for note in daemon._all_notes() if "cannot be read, nor undone" in note]
    assert [moves.KIND in note for note in kept] == [True, True, False]
    assert daemon._faults.count == 0
    daemon._close()
    assert undo.path.read_bytes().count(b"\n") == 3, "kept for a version that can"


def test_each_kind_is_logged_once_and_every_one_is_counted() -> None:
    faults = Faults()
    with capture_logs() as logs:
        for text in ("one", "two"):
            with faults.caught("counting"):
                raise ValueError(text)
        with faults.caught("counting"):
            broken()
        with faults.caught("something else"):
            broken()
    assert (faults.count, len(logs)) == (4, 3)
    assert faults.last == "something else: KeyError: 'not foreseen'"
    with pytest.raises(asyncio.CancelledError), faults.caught("an end"):
        raise asyncio.CancelledError
    assert faults.count == 4


class Talkative(Core):
    """Has more to say of one event than a drain of a hundred peers."""

    def handle(self, event: ev.Event, now_s: float) -> list[cmd.Command]:
        if not isinstance(event, ev.DrainRequested):
            return []
        return [cmd.Record(cmd_id=n, cause="host1-1", what=f"word {n}", why="asked for") for n in range(300)]

    def next_deadline_s(self) -> float | None:
        return None


async def test_an_operator_is_told_all_that_he_caused_however_much_it_is(daemon: Daemon) -> None:
    made = agent(daemon, lambda: None)

    def tell(word: cmd.Record, said_s: float) -> None:
        daemon._journal.write(word, said_s, "2026-01-01T00:00:00.000Z")

    made.driver = Driver(Talkative(CoreSettings(host="host1", address="fd00:ff::1")), {}, lambda: 5.0, tell=tell)
    made.driver.open()
    answer = await daemon.submit(ev.DrainRequested(link="eth1"))
    made.driver.close()
    assert [entry["what"] for entry in answer["entries"]] == [f"word {n}" for n in range(300)]
    assert answer["cause"] == "host1-1"
