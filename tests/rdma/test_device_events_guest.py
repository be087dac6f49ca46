"""A daemon in an emulated host hears what its soft-RoCE device says: the cable, the address, the device itself."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from guest_pair import ROOT, Pair, a_pair

from lab.daemons import PROGRAM
from lab.qemu.guest import Guest

pytestmark = pytest.mark.guests
SOCKET = "/run/linkpass.sock"
PATIENCE_S = 120.0
CONFIG = f"""
mode = "observe"
host = "guest-a"
address = "fd00:a::1"
prefixes = ["fd00:a::/64"]
[[uplinks]]
name = "eth0"
gateway6 = "fd00:a::2"
[auth]
key_file = "/share/key"
[control]
socket = "{SOCKET}"
[metrics]
listen = ""
[journal]
dir = "/share"
[recorder]
file = "/share/recording.jsonl"
"""


class Daemon:
    def __init__(self, guest: Guest) -> None:
        self.guest = guest
        (guest.share / "key").write_text("0123456789abcdef0123456789abcdef")
        (guest.share / "linkpass.toml").write_text(CONFIG)
        argv = [*PROGRAM, "run", "--config", "/share/linkpass.toml"]
        self.pid = guest.spawn(argv, "log", env={"PYTHONPATH": str(ROOT)})
        until(lambda: bool(guest.sh(f"ls {SOCKET} || true")))

    def ask(self, url: str) -> Any:
        status, body = self.guest.http(SOCKET, "GET", url)
        assert status == 200
        return json.loads(body)

    def said(self, element: str = "rxe0/1") -> list[str]:
        """The journal's lines about a port."""
        text = (self.guest.share / "journal.jsonl").read_text()
        lines = text[: text.rfind("\n") + 1].splitlines()  # the last one may be half written
        return [f"{one['what']}: {one['why']}" for line in lines if (one := json.loads(line))["element"] == element]

    def linkpass(self, *words: str) -> str:
        argv = [*PROGRAM, *words, "--config", "/share/linkpass.toml"]
        return self.guest.run(argv, timeout_s=120, env={"PYTHONPATH": str(ROOT)}).out


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Its own: Linux 6.1's soft-RoCE spoils memory under load once its device was removed and made anew."""
    with a_pair(tmp_path_factory.mktemp("events")) as made:
        yield made


@pytest.fixture(scope="module")
def daemon(pair: Pair) -> Iterator[Daemon]:
    made = Daemon(pair.a.guest)
    try:
        until(lambda: uplink(made)["usable"])
        yield made
    finally:
        pair.a.guest.signal(made.pid, 15)
        assert pair.a.guest.wait(made.pid, 60) == 0


def until(true: Callable[[], bool]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < end_s
        time.sleep(0.1)


def uplink(daemon: Daemon) -> dict[str, Any]:
    found = [one for one in daemon.ask("/status")["uplinks"] if one["name"] == "eth0"]
    return found[0] if found else {"usable": False}


def index_of(daemon: Daemon, gid: str) -> int | None:
    (device,) = daemon.ask("/status")["rdma"]["devices"]
    return next((one["index"] for one in device["ports"][0]["gids"] if one["gid"] == gid), None)


def heard(daemon: Daemon) -> bool:
    devices = daemon.ask("/status")["rdma"]["devices"]
    return [port["heard"] for device in devices for port in device["ports"]] == [True]


def test_a_pulled_cable_is_a_port_in_error_and_one_story(pair: Pair, daemon: Daemon) -> None:
    pair.a.guest.set_link("eth0", up=False)
    until(lambda: "RDMA port rxe0/1 is in error: PORT_ERR on eth0" in daemon.said())
    until(lambda: uplink(daemon).get("state") == "down")  # told by another part of the kernel
    pair.a.guest.set_link("eth0", up=True)
    until(lambda: "RDMA port rxe0/1 is active: PORT_ACTIVE on eth0" in daemon.said())
    until(lambda: uplink(daemon).get("state") == "up")
    story = daemon.linkpass("why", "rxe0/1")
    assert "is in error" in story and "is active" in story


def test_an_address_that_comes_back_elsewhere_is_read_again(pair: Pair, daemon: Daemon) -> None:
    guest, address = pair.a.guest, pair.a.v6
    until(lambda: index_of(daemon, address) is not None)
    before = index_of(daemon, address)
    guest.sh(f"ip addr del {address}/64 dev eth0")
    until(lambda: any("GID_CHANGE" in line and f"{address} (RoCE v2) is gone" in line for line in daemon.said()))
    until(lambda: index_of(daemon, address) is None)
    guest.sh("ip addr add fd00:a::77/64 dev eth0 nodad")  # takes the row that is free now
    until(lambda: index_of(daemon, "fd00:a::77") == before)
    guest.sh(f"ip addr add {address}/64 dev eth0 nodad")
    until(lambda: index_of(daemon, address) not in (None, before))
    after = index_of(daemon, address)
    until(lambda: any(f"{address} (RoCE v2) is new at index {after}" in line for line in daemon.said()))


def test_a_device_that_is_removed_is_let_go_and_taken_up_again(pair: Pair, daemon: Daemon) -> None:
    """An open context keeps soft-RoCE's device from going."""
    guest = pair.a.guest
    guest.run(["rdma", "link", "del", "rxe0"], timeout_s=30)
    until(lambda: any("is gone" in line for line in daemon.said("rxe0")))
    until(lambda: not heard(daemon))
    guest.sh("rdma link add rxe0 type rxe netdev eth0")
    until(lambda: heard(daemon))
    mark = len(daemon.said())
    guest.sh("ip link set eth0 down")
    until(lambda: any("PORT_ERR" in line for line in daemon.said()[mark:]))
    guest.sh("ip link set eth0 up")
    until(lambda: any("PORT_ACTIVE" in line for line in daemon.said()[mark:]))


def test_the_recording_replays(pair: Pair, daemon: Daemon) -> None:
    argv = [sys.executable, *PROGRAM[1:], "replay", "/share/recording.jsonl"]
    done = pair.a.guest.run(argv, timeout_s=120, check=False, env={"PYTHONPATH": str(ROOT)})
    assert done.rc == 0, done
    assert '"PORT_ERR"' in (pair.a.guest.share / "recording.jsonl").read_text()
