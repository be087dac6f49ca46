"""Faults of linkpass itself: each is counted, each kind is logged once with its traceback, and the rest goes on.

For what one turn does beside others that must not suffer from it. What is expected (an OSError of a device that is
gone, say) is dealt with where it happens and does not belong here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import structlog

logger = structlog.get_logger()


class Faults:
    def __init__(self) -> None:
        self.count = 0
        self.last = ""
        """The last one in words; empty: none."""
        self._logged: set[tuple[str, str, str, int]] = set()
        """What was done, class of the exception, file and line that it came from: no more than the code has."""

    @contextmanager
    def caught(self, what: str) -> Iterator[None]:
        """Whatever is raised inside ends there. `what` was being done: words of the code's, without names or numbers,
        since each is a kind of its own."""
        try:
            yield
        except Exception as error:
            self.count += 1
            self.last = f"{what}: {type(error).__name__}: {error}"
            kind = (what, type(error).__name__, *_place(error))
            if kind not in self._logged:
                self._logged.add(kind)
                logger.exception("a fault of linkpass itself, and the rest goes on", doing=what)


def _place(error: Exception) -> tuple[str, int]:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return (trace.tb_frame.f_code.co_filename, trace.tb_lineno) if trace is not None else ("", 0)
