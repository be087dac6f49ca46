"""The clock's lateness, the service manager's socket (a real one), and the two renderings of logs."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from linkpass import log
from linkpass.edges.clock import Clock
from linkpass.edges.notify import Notifier


def test_lateness_is_counted_beyond_what_is_tolerated() -> None:
    clock = Clock(tolerated_s=10.0)
    assert clock.note_fired(clock.now_s() - 1.0) == 0.0
    assert clock.note_fired(clock.now_s() + 1.0) == 0.0
    late_s = clock.note_fired(clock.now_s() - 30.0)
    assert late_s >= 30.0
    assert (clock.late_count, clock.worst_late_s) == (1, late_s)


def test_the_clock_is_monotonic_and_tells_people_the_time_in_utc() -> None:
    clock = Clock()
    assert time.monotonic() - clock.now_s() <= 0.0
    assert abs(clock.now_ns() / 1e9 - clock.now_s()) < 60
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", clock.wall())


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[tuple[str, socket.socket]]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "notify"))
        receiver.setblocking(False)
        yield str(tmp_path / "notify"), receiver


def test_notifications(manager: tuple[str, socket.socket]) -> None:
    address, receiver = manager
    notifier = Notifier.from_environment({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "2000000"})
    assert notifier.watchdog_s == 2.0
    assert notifier.ready("observing\n2 uplinks")
    assert receiver.recv(1000) == f"READY=1\nMAINPID={os.getpid()}\nSTATUS=observing 2 uplinks".encode()
    assert notifier.watchdog()
    assert receiver.recv(1000) == b"WATCHDOG=1"
    assert notifier.status("8 peers")
    assert receiver.recv(1000) == b"STATUS=8 peers"
    assert notifier.stopping()
    assert receiver.recv(1000) == b"STOPPING=1"
    assert not notifier.status("  ")


def test_an_abstract_socket() -> None:
    name = f"linkpass-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(f"\0{name}")
        assert Notifier(f"@{name}").watchdog()
        assert receiver.recv(100) == b"WATCHDOG=1"


def test_without_a_manager_nothing_happens(tmp_path: Path) -> None:
    assert not Notifier.from_environment({}).ready()
    assert not Notifier(str(tmp_path / "gone")).watchdog()
    assert Notifier.from_environment({"WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"}).watchdog_s is None


@pytest.fixture
def quiet_again() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level
    structlog.reset_defaults()


@pytest.mark.usefixtures("quiet_again")
def test_logs_are_json_where_nobody_looks() -> None:
    out = io.StringIO()
    log.set_up(stream=out)
    structlog.get_logger().info("moved", cause="host1-1")
    structlog.get_logger().debug("not shown")
    logging.getLogger("aiohttp").warning("odd %s", "request")
    try:
        raise ValueError("inner")
    except ValueError:
        structlog.get_logger().exception("failed")
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [(line["event"], line["level"]) for line in lines] == [
        ("moved", "info"), ("odd request", "warning"), ("failed", "error"),
    ]  # fmt: skip
    assert lines[0]["cause"] == "host1-1"
    assert lines[0]["timestamp"].endswith("Z")
    assert "ValueError: inner" in lines[2]["exception"]


@pytest.mark.usefixtures("quiet_again")
def test_logs_are_text_for_people() -> None:
    out = io.StringIO()
    log.set_up(stream=out, console=True, level="debug")
    structlog.get_logger().debug("moved", cause="host1-1")
    assert re.search(r"\[debug +\] moved +cause=host1-1", out.getvalue())
    with pytest.raises(ValueError, match="log level 'loud': expected debug"):
        log.set_up(level="loud")
