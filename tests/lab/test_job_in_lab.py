"""The job in a real fabric, without daemons: it talks IPv6, it stands still under a fault, and it loses nothing."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from lab.capture import Capture
from lab.faults import Blackhole
from lab.job import Job, JobSpec, undisturbed
from lab.netns.lab import NetnsLab
from lab.steps import steps_lost, weights_identical

pytestmark = pytest.mark.netns


def connections(pid: int, table: str) -> int:
    """Established connections in a process's network namespace (proc(5), /proc/net/tcp6: the fourth column)."""
    lines = Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
    return sum(line.split()[3] == "01" for line in lines)


def test_a_job_meets_a_fault_and_ends_with_the_same_weights(whole: NetnsLab, tmp_path: Path) -> None:
    hosts = [host.name for host in whole.fabric.hosts]
    with Capture.of(whole) as capture, Job(whole, hosts, tmp_path / "job", JobSpec(steps=100_000)) as job:
        job.start().wait_steps(20)
        assert all(connections(rank.pid, "tcp6") >= 2 for rank in job.processes), "by the name of a device alone"
        assert not any(connections(rank.pid, "tcp") for rank in job.processes)
        capture.watch()
        job.wait_steps(job.steps + 20)
        before = capture.take()
        flows = {sighting.flow for sighting in before.seen}
        assert {flow.source for flow in flows} == {whole.address(host) for host in hosts}
        carrying = {s.direction for s in before.seen}
        assert all(any(direction.startswith(f"{host}>") for direction in carrying) for host in hosts)

        for link in whole.fabric.links_of("host1"):
            whole.fault(Blackhole(link.id))
        at_s = time.monotonic()
        assert not job.settle(at_s + 0.1, timeout_s=1.0)
        stall = job.stall(at_s, time.monotonic())
        assert stall.open and stall.seconds > 0.5

        whole.undo_all()
        assert job.settle(time.monotonic(), timeout_s=30.0)
        closed = job.stall(at_s, at_s + 1.0)
        assert not closed.open and closed.seconds >= stall.seconds
        ended_at = job.stop(multiple_of=50)
    reference = undisturbed(tmp_path / "reference", len(hosts), JobSpec(steps=ended_at))
    assert steps_lost(job.ranks) == 0
    assert weights_identical(job.ranks, reference) is True
