"""The queues in front of uplinks, as a real kernel counts them: one that is sent too much, and one that only loses."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator

import pytest
from kernel_lab import PEER6, KernelLab

from linkpass.core import events as ev
from linkpass.core.settings import Detection
from linkpass.edges.kernel.queues import UNREAD_POLLS, QueueEdge
from linkpass.wire import qdisc

pytestmark = pytest.mark.netns

PATIENCE_S = 60.0


def tc(*words: str) -> None:
    subprocess.run(["tc", *words], check=True, capture_output=True)


class Uplinks:
    def __init__(self) -> None:
        self.told: list[ev.UplinkOverrun] = []
        self.edge = QueueEdge(self._hear, time.monotonic, Detection().queueing_s)
        self.edge.open()
        self.out = {}
        for name in ("eth1", "eth2"):
            self.edge.set_uplink(name, socket.if_nametoindex(name), 10_000_000_000)
            self.out[name] = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
            self.out[name].setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, name.encode())

    def _hear(self, event: ev.Event) -> None:
        assert isinstance(event, ev.UplinkOverrun)
        self.told.append(event)

    def send(self, name: str, packets: int) -> None:
        for _ in range(packets):
            try:
                self.out[name].sendto(bytes(100), (PEER6, 9))
                self.out[name].sendto(bytes(1200), (PEER6, 9))
            except OSError:  # the queue is full
                pass

    def turns(self, count: int, **packets: int) -> None:
        """So many readings are taken, and between any two so much is sent."""
        taken = 0
        deadline_s = time.monotonic() + PATIENCE_S
        while taken < count:
            assert time.monotonic() < deadline_s
            for name, number in packets.items():
                self.send(name, number)
            time.sleep(0.05)
            before = self.edge._before
            self.edge.poll()
            taken += self.edge._before is not before

    def close(self) -> None:
        self.edge.close()
        self.edge.close()
        for sock in self.out.values():
            sock.close()


@pytest.fixture
def uplinks(lab: KernelLab) -> Iterator[Uplinks]:
    made = Uplinks()
    yield made
    made.close()


def test_an_uplink_that_is_sent_too_much_is_overrun_until_it_is_not(uplinks: Uplinks) -> None:
    tc("qdisc", "add", "dev", "eth1", "root", "tbf", "rate", "1mbit", "burst", "5000", "limit", "30000")
    uplinks.turns(20, eth1=100, eth2=100)
    assert {one.uplink for one in uplinks.told} == {"eth1"}
    assert "of data waiting at" in uplinks.told[0].why
    uplinks.turns(20)
    assert uplinks.told[-1] == ev.UplinkOverrun(uplink="eth1")


def test_one_that_drops_what_it_could_send_is_not(uplinks: Uplinks) -> None:
    """It is set to drop what is larger than its bucket; what is smaller goes out at once, and is little."""
    tc("qdisc", "add", "dev", "eth1", "root", "tbf", "rate", "1gbit", "burst", "1000", "limit", "30000")
    uplinks.turns(3, eth1=10)
    before = dropped()
    uplinks.turns(10, eth1=10)
    assert dropped() > before
    assert uplinks.told == []


def test_what_cannot_be_read_any_more_excuses_nothing(uplinks: Uplinks) -> None:
    tc("qdisc", "add", "dev", "eth1", "root", "tbf", "rate", "1mbit", "burst", "5000", "limit", "30000")
    uplinks.turns(20, eth1=100)
    assert bool(uplinks.told[-1].why)
    assert uplinks.edge._socket._socket is not None
    uplinks.edge._socket._socket.close()
    deadline_s = time.monotonic() + PATIENCE_S
    while uplinks.told[-1].why:
        assert time.monotonic() < deadline_s
        uplinks.edge.poll()
        time.sleep(0.01)
    assert uplinks.edge._unread >= UNREAD_POLLS and uplinks.edge.errors > 0


def test_an_uplink_that_goes_takes_its_overload_along(uplinks: Uplinks) -> None:
    tc("qdisc", "add", "dev", "eth1", "root", "tbf", "rate", "1mbit", "burst", "5000", "limit", "30000")
    uplinks.turns(20, eth1=100)
    uplinks.edge.drop_uplink("eth1")
    assert not uplinks.told[-1].why


def test_garbage_is_no_queue() -> None:
    assert qdisc.parse(b"") is None
    assert qdisc.parse(bytes(20)) is None
    assert qdisc.parse(bytes(12) + b"\xff\xff\xff\xff" + bytes(4)) is None


def dropped() -> int:
    text = subprocess.run(["tc", "-s", "qdisc", "show", "dev", "eth1"], check=True, capture_output=True, text=True)
    return int(text.stdout.split("(dropped ")[1].split(",")[0])
