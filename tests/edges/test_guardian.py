"""Routes of a daemon that was killed: real kills, real routes, and nobody left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest
from kernel_lab import BOTH, GATEWAY4, GATEWAY6, HOST4, OWN_PROTOCOL, PREFIX4, PREFIX6, KernelLab, inside, ip

from linkpass.edges.kernel.egress import EgressEdge
from linkpass.edges.kernel.guardian import Guardian
from linkpass.edges.kernel.routes import ALL, RouteEdge, Way

pytestmark = pytest.mark.netns


class Daemon:
    """A process that steers as the daemon does, and waits to be killed."""

    def __init__(self, lab: KernelLab, *, wait_s: float, prefixes: tuple[str, ...] = (PREFIX6, PREFIX4)) -> None:
        ways = {name: (lab.index(name), GATEWAY4[name], GATEWAY6[name]) for name in BOTH}
        program = f"""
import sys
from linkpass.edges.kernel.guardian import Guardian
from linkpass.edges.kernel.routes import RouteEdge, Way
guardian = Guardian(wait_s={wait_s})
edge = RouteEdge({prefixes}, metric=76)
edge.open()
guardian.open()
edge.sweep()
edge.on_laid = lambda laid: guardian.watch(laid=laid)
edge.set_ways({{name: Way(*way) for name, way in {ways}.items()}})
edge.set_group("all", {BOTH})
print(guardian.pid, flush=True)
sys.stdin.readline()
edge.withdraw_all()
guardian.close()
edge.close()
"""
        self.process = subprocess.Popen([sys.executable, "-c", program], stdin=-1, stdout=-1, text=True)
        assert self.process.stdout is not None
        self.guardian = int(self.process.stdout.readline())

    def kill(self) -> None:
        self.process.kill()
        self._reap()

    def stop(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        self._reap()

    def _reap(self) -> None:
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()


def ours() -> str:
    return "".join(ip(family, "route", "show", "proto", str(OWN_PROTOCOL)) for family in ("-4", "-6"))


def lives(pid: int) -> bool:
    """Not a zombie either."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.02)


def test_the_routes_of_a_killed_daemon_go_after_a_while_and_the_guardian_with_them(lab: KernelLab) -> None:
    daemon = Daemon(lab, wait_s=1)
    EgressEdge(release="6.12").keep({name: lab.index(name) for name in BOTH}, 0.0)
    daemon.kill()
    assert PREFIX4 in ours()  # a crash leaves traffic flowing as it was
    assert lives(daemon.guardian)
    until(lambda: ours() == "")
    until(lambda: not lives(daemon.guardian))
    assert str(OWN_PROTOCOL) not in ip("nexthop", "show").split()
    assert subprocess.run(["nft", "list", "tables"], check=True, capture_output=True, text=True).stdout == ""
    assert f"src {HOST4}" in ip("-4", "route", "show", PREFIX4)


def test_a_daemon_that_ends_in_order_takes_its_guardian_along(lab: KernelLab) -> None:
    daemon = Daemon(lab, wait_s=60)
    assert lives(daemon.guardian)
    daemon.stop()
    assert ours() == "" and not lives(daemon.guardian)


def test_the_next_daemon_s_routes_are_left_alone(lab: KernelLab) -> None:
    first = Daemon(lab, wait_s=1)
    first.kill()
    second = Daemon(lab, wait_s=60)
    until(lambda: not lives(first.guardian))
    assert PREFIX4 in ours() and PREFIX6 in ours()
    second.stop()


def test_where_only_ipv6_routes_lie_their_next_hops_go_too(lab: KernelLab) -> None:
    daemon = Daemon(lab, wait_s=1, prefixes=(PREFIX6,))
    daemon.kill()
    until(lambda: not lives(daemon.guardian))
    assert ours() == ""
    assert str(OWN_PROTOCOL) not in ip("nexthop", "show").split()


def test_an_interrupt_at_the_terminal_is_not_for_the_guardian_and_it_is_small(lab: KernelLab) -> None:
    daemon = Daemon(lab, wait_s=60)
    with open(f"/proc/{daemon.guardian}/status") as file:
        status = dict(line.split(":", 1) for line in file)
    assert int(status["VmRSS"].split()[0]) < 8192
    assert os.getsid(daemon.guardian) == daemon.guardian
    for number in (signal.SIGINT, signal.SIGHUP):
        os.kill(daemon.guardian, number)
    daemon.stop()
    assert not lives(daemon.guardian)


@pytest.fixture
def edge(lab: KernelLab) -> Iterator[RouteEdge]:
    made = RouteEdge([PREFIX6, PREFIX4], metric=76)
    made.open()
    made.set_ways({name: Way(lab.index(name), GATEWAY4[name], GATEWAY6[name]) for name in BOTH})
    yield made
    made.close()


def test_a_guardian_that_was_killed_is_replaced(lab: KernelLab, edge: RouteEdge) -> None:
    guardian = Guardian()
    guardian.open()
    edge.on_laid = lambda laid: guardian.watch(laid=laid)
    edge.set_group(ALL, BOTH)
    first = guardian.pid
    os.kill(first, signal.SIGKILL)
    until(lambda: not lives(first))
    guardian.check()
    assert guardian.pid != first and lives(guardian.pid)
    edge.withdraw_all()
    assert guardian.pid == 0
    guardian.check()
    assert guardian.pid == 0
    guardian.close()
    guardian.watch(laid=True)  # what comes after the end starts nothing
    assert guardian.pid == 0


def test_routes_that_could_not_be_removed_are_the_guardian_s_to_remove(lab: KernelLab, edge: RouteEdge) -> None:
    guardian = Guardian(wait_s=0.1)
    guardian.open()
    edge.on_laid = lambda laid: guardian.watch(laid=laid)
    edge.set_group(ALL, BOTH)
    process = guardian._process
    assert process is not None
    guardian.close(swept=False)
    until(lambda: ours() == "")
    process.wait()


def test_it_guards_the_namespace_it_was_opened_in(lab: KernelLab) -> None:
    guardian = Guardian()
    guardian.open()
    here = os.stat("/proc/thread-self/ns/net").st_ino
    with inside(lab.router):
        guardian.watch(laid=True)
    assert os.stat(f"/proc/{guardian.pid}/ns/net").st_ino == here
    guardian.close()
