"""Keeps a warm spare: starts the training script as one, and again when it has ended and may be of use once more.

Loads no torch: the script does, and it is the script's process that offers itself to the store (`trainer.agent`), for
only it knows which model it has built. What it ends with says what comes next (`exits`).
"""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import FrameType

import msgspec

from torchpass_bridge.exits import FENCED, OVER, REFUSED

WAIT_S = 1.0
MAX_WAIT_S = 60.0
SOUND_S = 60.0
"""Who lived so long did not fail at the start: the next wait is the shortest again."""
STOP_S = 10.0
"""For the script to end when it is asked to; then it is killed."""


class Next(msgspec.Struct, frozen=True):
    """`wait_s` None: no further start, and `code` is what the launcher ends with."""

    wait_s: float | None
    why: str
    code: int = 0


def after(code: int, lived_s: float, failures: int) -> Next:
    """What to do after the script ended with `code` (negative: by that signal). `failures`: in a row before."""
    if code == OVER:
        return Next(None, "the job has ended, or the rank was handed over in good order")
    if code == REFUSED:
        return Next(None, "it was refused, and would be again: its own words say why", REFUSED)
    tries = 0 if lived_s >= SOUND_S else failures
    wait_s = min(WAIT_S * 2.0**tries, MAX_WAIT_S)
    if code == FENCED:
        return Next(WAIT_S, "it had lost its rank while it was thought dead: it may serve as a spare again")
    how = f"signal {-code}" if code < 0 else f"status {code}"
    return Next(wait_s, f"it ended with {how}")


class Launcher:
    """`tell`: for people, a line at a time."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], tell: Callable[[str], None]) -> None:
        self._command, self._tell = list(command), tell
        self._environment = {**environment, "TORCHPASS_SPARE": "1"}
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()

    def run(self) -> int:
        """Until there is nothing more to start, or SIGTERM or SIGINT comes. The exit status."""
        before = {what: signal.signal(what, self._stop) for what in (signal.SIGTERM, signal.SIGINT)}
        try:
            failures = 0
            while not self._stopping.is_set():
                began_s = time.monotonic()
                code = self._once()
                if self._stopping.is_set():
                    break
                lived_s = time.monotonic() - began_s
                further = after(code, lived_s, failures)
                failures = failures + 1 if lived_s < SOUND_S else 0
                if further.wait_s is None:
                    self._tell(f"no spare any more: {further.why}")
                    return further.code
                self._tell(f"{further.why}; started again in {further.wait_s:g} s")
                self._stopping.wait(further.wait_s)
            return 0
        finally:
            for what, handler in before.items():
                signal.signal(what, handler)

    def _once(self) -> int:
        try:
            self._process = subprocess.Popen(self._command, env=self._environment)
        except OSError as error:
            self._tell(f"{self._command[0]}: {error.strerror}")
            self._stopping.set()
            return 127
        while True:
            try:
                return self._process.wait(0.2 if self._stopping.is_set() else None)
            except subprocess.TimeoutExpired:
                pass

    def _stop(self, what: int, frame: FrameType | None) -> None:
        self._stopping.set()
        process = self._process
        if process is not None and process.poll() is None:
            process.terminate()
            killer = threading.Timer(STOP_S, process.kill)
            killer.daemon = True
            killer.start()
