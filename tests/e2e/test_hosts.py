"""Hosts that fail, and hosts that only look like it: real daemons, a real job, real kernels that answer or do not."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from rig import Rig, blamed, moved, says

from lab.daemons import DaemonSpec
from lab.throttle import throttled

pytestmark = [pytest.mark.netns, pytest.mark.e2e]


@pytest.fixture(scope="module")
def hooked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the escalation hook writes what it was told."""
    return tmp_path_factory.mktemp("hook") / "told.jsonl"


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory, hooked: Path) -> Iterator[Rig]:
    extra = {
        "escalate": {"hook": ["/bin/sh", "-c", f"cat >> {hooked}"]},
        "health": {"kernel_log": False, "sensors": False, "nvml": False},  # those of the machine below the lab
        "health.check": {"file": "health", "interval_s": 1.0},
        "limits": {"escalations_per_hour": 100},
    }
    spec = DaemonSpec(mode="act", tcp_timers=True, realtime=True, extra=extra)  # type: ignore[arg-type]
    with Rig(tmp_path_factory.mktemp("rig"), spec) as made:
        yield made


@pytest.fixture
def since_s(rig: Rig, hooked: Path) -> float:
    """All is well, and kernels were asked whether they answer: from here on a missing answer says something."""
    at_s = rig.calm()
    hooked.unlink(missing_ok=True)
    return at_s


def handed_over(hooked: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in hooked.read_text().splitlines()] if hooked.exists() else []


@contextmanager
def paused(rig: Rig) -> Iterator[None]:
    """The job rests on all hosts, as in a long checkpoint: its data stops, and nothing is wrong."""
    for process in rig.job.processes:
        process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for process in rig.job.processes:
            process.send_signal(signal.SIGCONT)


def test_a_frozen_host_is_told_by_its_kernel_that_answers(rig: Rig, hooked: Path, since_s: float) -> None:
    with rig.broken("freeze:host3"):
        first = rig.wait_told(since_s, says(r"^verdict host: host3 fails$"), "somebody gives it up")[0]
        rig.wait_told(since_s, says(r"^host3 was handed over$"), "the hook has taken it", [first.host])
    assert "frozen: its kernel answers over " in first.why and "dead" not in first.why
    rig.wait_told(since_s, says(r"^host3 is heard again$"), "it is heard again", [first.host])
    rig.goes_on(20)
    assert {one["host"] for one in handed_over(hooked)} == {"host3"}
    assert blamed(rig.told(since_s, says(""), [host for host in rig.hosts if host != "host3"])) == {"host3"}


def test_a_daemon_that_died_while_the_job_rests_is_no_failing_host(rig: Rig, hooked: Path, since_s: float) -> None:
    """Silent, and its data stopped: only its kernel knows better, which says that nobody holds the daemon's port."""
    with paused(rig):
        rig.daemons.kill("host2")
        told = rig.wait_told(
            since_s,
            says(r"^host2 stays silent, but only its daemon$"),
            "its neighbours know better",
            ["host1", "host3"],
        )
        assert any("the daemon has ended, the host runs" in entry.why for entry in told)
    rig.goes_on(20)
    assert handed_over(hooked) == []
    rig.daemons.start_one("host2")
    rig.daemons.wait_ready()


def test_a_host_that_is_throttled_is_called_slow_and_nothing_else_follows(
    rig: Rig, hooked: Path, since_s: float
) -> None:
    """Its daemon is stopped for 120 of each 160 ms; its neighbours in the ring probe it fast and hear it on and on.

    They must have heard it when it was in time: host 2, which has just begun, has not."""
    neighbours = ["host1", "host3"]
    with throttled(rig.daemons.processes["host4"].pid, 0.75, 0.16):
        told = rig.wait_told(
            since_s, says(r"^host4 is slow: it lets probes wait$"), "its neighbours find it slow", neighbours, 60.0
        )
        rig.wait("status says so", lambda: "slow: reports: " in rig.cli("host1", "status").output)
        assert told[0].what in rig.cli(told[0].host, "why", told[0].cause).output
    rig.wait_told(since_s, says(r"^host4 answers probes in time$"), "it is over", neighbours, 60.0)
    rig.goes_on(20)
    assert handed_over(hooked) == []
    others = [host for host in rig.hosts if host != "host4"]
    assert not rig.told(since_s, moved(), others)
    assert not rig.told(since_s, says(r"^verdict |^host[123] is slow|is overloaded"), others)


def test_hosts_behind_dead_switches_are_not_given_up(rig: Rig, hooked: Path, since_s: float) -> None:
    """All that host 3 and host 4 hang on hangs: both are silent, their data stops, and both are well."""
    with ExitStack() as stack:
        for leaf in ("leaf3", "leaf4"):
            stack.enter_context(rig.broken(f"dead:{leaf}:silent"))
        rig.wait_told(
            since_s, says(r"^verdict switch: leaf3 or leaf4 lets nothing through$"), "it is laid at the switches",
            ["host1", "host2"],
        )  # fmt: skip

        def behind() -> bool:
            views = [rig.daemons.view(host)["peers"] for host in ("host1", "host2")]
            return any(peer["silence"] == "behind leaf3 or leaf4" for peers in views for peer in peers)

        rig.wait("a silent host is known to be behind them", behind)
    rig.wait_told(since_s, says(r"^host[34] is heard again$"), "they are heard again", ["host1", "host2"])
    rig.goes_on(20)
    assert handed_over(hooked) == []
    assert not rig.told(since_s, says(r"^verdict host:"))


def test_a_host_that_a_check_finds_failing_gives_itself_up_and_tells_its_peers(
    rig: Rig, hooked: Path, since_s: float
) -> None:
    file = rig.daemons.path("host4", "health")
    others = [host for host in rig.hosts if host != "host4"]
    file.write_text("degraded one fan is slow\n")
    rig.wait_told(since_s, says(r"^host4 says that it is not well$"), "its peers are told", others)
    assert handed_over(hooked) == []
    file.write_text("failing both fans stand\n")
    rig.wait_told(since_s, says(r"^host4 says that it fails$"), "its peers are told", others)
    rig.wait_told(since_s, says(r"^host4 was handed over$"), "the hook has taken it", ["host4"])
    (told,) = handed_over(hooked)
    assert told["host"] == "host4" and told["evidence"] == ["check: health: both fans stand"]
    shown = rig.cli("host4", "status").output
    assert "Evidence against this host" in shown and "both fans stand" in shown and "handed over" in shown
    sources = {row["source"]: row["state"] for row in rig.daemons.view("host4")["host_sources"]}
    assert (sources["check"], sources["kernel log"]) == ("read", "off")
    assert "says of itself: check: health: both fans stand" in rig.cli("host1", "status").output
    file.write_text("healthy\n")
    rig.wait_told(since_s, says(r"^host4 says that it is well$"), "its peers are told", others)
    rig.goes_on(20)
    assert not rig.told(since_s, moved())


def test_a_dead_host_is_told_by_its_kernel_that_answers_no_more(rig: Rig, hooked: Path, since_s: float) -> None:
    """Its links lose carrier and its processes are gone; the job is lost with its rank."""
    rig.job.close()
    rig.job.processes.clear()
    with rig.broken("dead:host4"):
        rig.daemons.processes.pop("host4").wait(30)
        first = rig.wait_told(since_s, says(r"^verdict host: host4 fails$"), "somebody gives it up")[0]
        rig.wait_told(since_s, says(r"^host4 was handed over$"), "the hook has taken it", [first.host])
    assert "dead: its kernel, which answered before, answers over none of " in first.why
    assert {one["host"] for one in handed_over(hooked)} == {"host4"}
