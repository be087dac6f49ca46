"""A process that gets only a share of its time: stopped and let go in turn, as by a throttled processor."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from lab.netns.processes import send, start_time


@contextmanager
def throttled(pid: int, stopped_ratio: float, period_s: float) -> Iterator[None]:
    """Within the block the process is stopped for `stopped_ratio` of each period. It is let go in any case."""
    started = start_time(pid)
    if started is None:
        raise ProcessLookupError(f"process {pid} has ended")
    over = threading.Event()

    def drive() -> None:
        try:
            while not over.wait((1 - stopped_ratio) * period_s):
                send([(pid, started)], signal.SIGSTOP)
                over.wait(stopped_ratio * period_s)
                send([(pid, started)], signal.SIGCONT)
        finally:
            send([(pid, started)], signal.SIGCONT)

    driver = threading.Thread(target=drive, name=f"throttle {pid}")
    driver.start()
    try:
        yield
    finally:
        over.set()
        driver.join()
