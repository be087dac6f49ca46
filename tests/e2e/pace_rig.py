"""A rig whose daemons look for stragglers, and ways to make one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rig import Rig, says

from lab.daemons import DaemonSpec, Entry
from lab.job import Job, JobSpec

SLOW_S = 0.1
"""What a slow rank loses in each step: as much as it computes otherwise."""
NARROW = "10mbit"
SETTLE_STEPS = 12
"""So many steps tell how long one takes."""


class PaceRig(Rig):
    """The job computes (sleeps) for `pause_s` in each step. Its ranks run under SCHED_RR, once they run: on a machine
    whose cores are full every rank is late now and then, and it is not the machine that is tested."""

    def __init__(self, folder: Path, pause_s: float = 0.1, *, enabled: bool = True, undisturbed: bool = True) -> None:
        extra = {"stragglers": {"enabled": enabled}}
        super().__init__(folder, DaemonSpec(mode="observe", realtime=True, extra=extra))
        self._undisturbed = undisturbed
        spec = JobSpec(steps=1_000_000, hash_every=0, extra=("--pause-s", str(pause_s)))
        self.job = Job(self.lab, self.hosts, folder / "job", spec)

    def start_daemons(self) -> None:
        for rank in self.job.processes if self._undisturbed else ():
            for thread in os.listdir(f"/proc/{rank.pid}/task"):
                os.sched_setscheduler(int(thread), os.SCHED_RR, os.sched_param(1))
        super().start_daemons()

    def names(self, since_s: float) -> list[Entry]:
        return self.told(since_s, says(r"^straggler "))

    def named_now(self) -> set[str]:
        """`host3 compute`, by any daemon."""
        views = [self.daemons.view(host)["stragglers"] for host in self.hosts]
        return {f"{row['name']} {row['cause']}" for rows in views for row in rows}

    def nobody(self) -> None:
        self.wait("nobody is named any more", lambda: not self.named_now(), 120.0)
        self.goes_on(SETTLE_STEPS)

    @contextmanager
    def slowed(self, rank: int, seconds: float = SLOW_S) -> Iterator[None]:
        """A rank computes longer within the block."""
        self.job.slow(rank, seconds)
        try:
            yield
        finally:
            self.job.slow(rank, 0.0)

    @contextmanager
    def narrowed(self, host: str, rate: str = NARROW) -> Iterator[None]:
        """All uplinks of a host carry no more than that, each way, within the block."""
        with ExitStack() as stack:
            for link in self.fabric.links:
                if host in (link.a.node, link.b.node):
                    stack.enter_context(self.broken(f"rate:{link.id}:{rate}"))
            yield

    def steps_until(self, entries: list[Entry], since_s: float) -> list[int]:
        """How many steps rank 0 had ended since then when each entry was written."""
        self.job.update()
        ends = self.job.ranks[0].ends_s
        return [sum(since_s < end_s <= entry.now_s for end_s in ends) for entry in entries]
