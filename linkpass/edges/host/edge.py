"""All sources of evidence about this host, read beside the event loop, each in a thread of its own.

A source that hangs (a driver that waits for its hardware) holds up nobody: it is said to be unknown, and is waited for.
What is missing here is said once, with what would bring it; it is neither good nor bad.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final

from linkpass.aside import Aside
from linkpass.core.events import HostEvidence
from linkpass.edges.host.kernel_log import SOURCE as KERNEL_LOG
from linkpass.edges.host.kernel_log import KernelLog
from linkpass.edges.host.reading import AbsentError, Reading, Source, Standing

HANGS: Final = 5
"""Intervals after which a reading that is not done is called unknown."""
AGAIN: Final = 12
"""A source that is not there is looked for again after so many intervals: drivers are loaded late, exporters start."""


class Watched:
    """A source, how often it is read, its hysteresis, its thread, and what it last said."""

    def __init__(self, source: Source, interval_s: float, stands_s: float, rests_s: float) -> None:
        self.source, self.interval_s = source, interval_s
        self.standing = Standing(source.name, stands_s, rests_s)
        self.executor = Aside(f"host-{source.name}")
        self.reading: Future[Reading] | None = None
        self.begun_s = self.read_s = self.due_s = float("-inf")
        self.state = "unknown"
        self.why = "not read yet"
        self.last: Reading | None = None


class HostEdge:
    """`poll` about once a second takes what was read and begins what is due; `emit` takes the evidence."""

    def __init__(
        self, log: KernelLog | None, watched: Sequence[Watched], off: Mapping[str, str],
        emit: Callable[[HostEvidence], None],
    ) -> None:  # fmt: skip
        """`off`: sources that are not read, and why."""
        self._log, self._watched, self._off, self._emit = log, tuple(watched), off, emit

    def open(self) -> None:
        """Needs a running loop. Never fails."""
        if self._log is not None:
            self._log.open()

    def close(self) -> None:
        """Does not wait: a reading that hangs in a driver is left behind."""
        if self._log is not None:
            self._log.close()
        for one in self._watched:
            one.source.interrupt()
            one.executor.submit(one.source.close)
            one.executor.shutdown(wait=False)

    def poll(self, now_s: float) -> list[str]:
        """Lines to be said: what is missing or was found, once each."""
        lines: list[str] = []
        for one in self._watched:
            state, why = one.state, one.why
            self._look(one, now_s)
            if (one.state, one.why) != (state, why) and (one.state != "read" or state == "absent"):
                lines.append(f"host evidence, {one.source.name}: {one.why or 'is read now'}")
        return lines

    def _look(self, one: Watched, now_s: float) -> None:
        if one.reading is not None:
            if not one.reading.done():
                if now_s - one.begun_s > HANGS * one.interval_s:
                    one.state, one.why = "unknown", "has not answered for long: it is waited for"
                return
            self._take(one, one.reading, now_s)
            one.reading = None
        if now_s >= one.due_s:
            one.begun_s, one.due_s = now_s, now_s + one.interval_s
            one.reading = one.executor.submit(_read, one.source, os.sched_getscheduler(0), os.sched_getparam(0))

    def _take(self, one: Watched, done: Future[Reading], now_s: float) -> None:
        try:
            reading = done.result()
        except AbsentError as error:
            one.state, one.why, one.last = "absent", str(error), None
            one.due_s = now_s + AGAIN * one.interval_s
            return
        except Exception as error:  # noqa: BLE001 - what drivers and programs answer is not ours: none of it may end the reading
            one.state, one.why, one.last = "unknown", f"{type(error).__name__}: {error}", None
            return
        one.state, one.why, one.last, one.read_s = "read", "; ".join(reading.unknown), reading, now_s
        for evidence in one.standing.take(reading, now_s):
            self._emit(evidence)

    def snapshot(self, now_s: float) -> list[dict[str, Any]]:
        """A row a source: `state` is `read`, `absent`, `unknown` or `off`; `why` says what is missing."""
        rows: list[dict[str, Any]] = []
        if self._log is not None:
            state = "unknown" if self._log.why else "read"
            figures = [
                {"part": "", "name": "records", "value": self._log.records},
                {"part": "", "name": "overwritten", "value": self._log.lost},
            ]
            rows.append({"source": KERNEL_LOG, "state": state, "why": self._log.why, "age_s": None, "figures": figures})
        for one in self._watched:
            told = one.last.figures if one.last is not None else {}
            figures = [{"part": part, "name": name, "value": value} for (part, name), value in told.items()]
            age_s = now_s - one.read_s if one.last is not None else None
            row = {"source": one.source.name, "state": one.state, "why": one.why, "age_s": age_s, "figures": figures}
            rows.append(row)
        rows += [
            {"source": name, "state": "off", "why": why, "age_s": None, "figures": []}
            for name, why in self._off.items()
        ]
        return rows


def _read(source: Source, policy: int, parameters: os.sched_param) -> Reading:
    """In the source's thread. It runs as the loop does: kept from running by a job, it could hold on to the
    interpreter."""
    if os.sched_getscheduler(0) != policy:
        try:
            os.sched_setscheduler(0, policy, parameters)
        except OSError:
            pass
    return source.read()
