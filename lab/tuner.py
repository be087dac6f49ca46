"""The job's TCP timers tuned without a daemon that steers: what part of the gain is theirs alone."""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType

from lab import addressing
from lab.errors import LabError
from lab.netns.lab import NetnsLab
from linkpass.edges.sockets import SocketEdge
from linkpass.edges.tcp_timers import TcpTimerEdge
from linkpass.edges.undo import UndoJournal

WITHIN_S = 20.0


class Tuner:
    """Tunes all connections between hosts, once. It does not put the timers back: the job is the lab's own."""

    def __init__(self, lab: NetnsLab, run_dir: Path, rto_min_us: int, rto_max_ms: int) -> None:
        self._lab = lab
        self._undo = UndoJournal(run_dir)
        self._edge = TcpTimerEdge(self._undo, rto_min_us, rto_max_ms)

    def __enter__(self) -> Tuner:
        self._undo.open()
        self._edge.open()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._undo.close()

    def tune(self) -> int:
        """How many ends of connections were tuned. LabError when any could not be."""
        wanted: dict[int, int] = {}
        for host in self._lab.fabric.hosts:
            wanted |= self._sockets_of(host.name)
        until_s = time.monotonic() + WITHIN_S
        while self._edge.poll(wanted) and time.monotonic() < until_s:
            pass
        summary = self._edge.summary()
        if summary.tuned < len(wanted) or not wanted:
            raise LabError(f"TCP timers of {summary.tuned} of {len(wanted)} sockets could be tuned: {summary.why}")
        return summary.tuned

    def _sockets_of(self, host: str) -> dict[int, int]:
        prefixes = (addressing.HOSTS6, addressing.HOSTS4)
        with self._lab.in_netns(host):
            edge = SocketEdge(lambda event: None, prefixes, self._lab.address(host), lambda peer, grown: None)
            edge.open()
            try:
                edge.poll(time.monotonic())
                return edge.sockets()
            finally:
                edge.close()
