"""Somebody else's opinion of this host: a program that is run, or a file that is read.

A program says it by its exit status (0 healthy, 1 degraded, 2 failing) and one line of reason on standard output; a
file by its first word (`healthy`, `degraded`, `failing`, or the number) and the rest of its first line. Anything else
is no opinion.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from linkpass.core.events import Severity
from linkpass.edges.host.reading import AbsentError, Reading, Trouble

OUTPUT_BYTES: Final = 4096
REASON_CHARS: Final = 300
PLACE: Final = ("", "health")
WORDS: Final[dict[str, Severity]] = {
    "0": "well", "healthy": "well", "1": "degraded", "degraded": "degraded", "2": "fatal", "failing": "fatal",
}  # fmt: skip


class ExecCheck:
    """Runs `argv` in a process group of its own, for at most `timeout_s`."""

    name = "check"

    def __init__(self, argv: Sequence[str], timeout_s: float) -> None:
        self._argv, self._timeout_s = tuple(argv), timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False

    def read(self) -> Reading:
        try:
            process = subprocess.Popen(
                self._argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise AbsentError(f"health.check.exec: {self._argv[0]}: {error.strerror}") from error
        with process:
            self._process = process
            if self._closed:
                _end(process)
            said, status = _watch(process, self._timeout_s)
            self._process = None
        if status is None:
            return _no_opinion(f"{self._argv[0]}: not done after {self._timeout_s:g} s, ended")
        if str(status) not in WORDS:
            return _no_opinion(f"{self._argv[0]}: exit status {status} is no opinion (0, 1 or 2 are)")
        return _opinion(str(status), said)

    def interrupt(self) -> None:
        """A program under way is ended: the daemon must not wait for it."""
        self._closed = True
        if (process := self._process) is not None:
            _end(process)

    def close(self) -> None:
        """Nothing is held open."""


class FileCheck:
    name = "check"

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def read(self) -> Reading:
        try:
            with self._path.open("rb") as file:
                said = file.read(OUTPUT_BYTES)
        except OSError as error:
            raise AbsentError(f"health.check.file: {self._path}: {error.strerror}") from error
        word, _, reason = _first_line(said).partition(" ")
        if word.rstrip(":") not in WORDS:
            return _no_opinion(f"{self._path}: begins with neither healthy, degraded nor failing")
        return _opinion(word.rstrip(":"), reason)

    def interrupt(self) -> None:
        """Reading takes no time."""

    def close(self) -> None:
        """Nothing is held open."""


def _watch(process: subprocess.Popen[bytes], timeout_s: float) -> tuple[str, int | None]:
    """The first line that it says and its exit status; None when its time was over: then its whole group is ended."""
    assert process.stdout is not None
    until_s = time.monotonic() + timeout_s
    kept = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while (left_s := until_s - time.monotonic()) > 0:
            if not selector.select(left_s):
                continue
            chunk = os.read(process.stdout.fileno(), OUTPUT_BYTES)
            if not chunk:
                break
            kept = (kept + chunk)[:OUTPUT_BYTES]
    try:
        return _first_line(kept), process.wait(max(0.0, until_s - time.monotonic()))
    except subprocess.TimeoutExpired:
        _end(process)
        process.wait()
        return "", None


def _end(process: subprocess.Popen[bytes]) -> None:
    """Its whole group, whose number is nobody else's while the process is not waited for."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _first_line(said: bytes) -> str:
    lines = said.decode(errors="replace").strip().splitlines()
    return " ".join(lines[0].split())[:REASON_CHARS] if lines else ""


def _opinion(word: str, reason: str) -> Reading:
    severity = WORDS[word]
    if severity == "well":
        return Reading({})
    return Reading({PLACE: Trouble(severity, reason or "no reason was given")})


def _no_opinion(why: str) -> Reading:
    return Reading({}, (why,), frozenset({PLACE}))
