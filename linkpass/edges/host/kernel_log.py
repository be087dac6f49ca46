"""The kernel's log, from now on: `/dev/kmsg`, one record a read (Documentation/ABI/testing/dev-kmsg).

Only what the kernel itself has written counts: programs may write there, too, but not under its facility 0. What was
overwritten before it was read is counted. A kernel that writes without an end is read in slices, with pauses.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from linkpass.core.events import HostEvidence
from linkpass.edges.host import patterns

SOURCE: Final = "kernel log"
RECORD_BYTES: Final = 8192
"""The kernel gives no record that is longer (CONSOLE_EXT_LOG_MAX)."""
AT_ONCE: Final = 100
PAUSE_S: Final = 0.1
"""After AT_ONCE records: a thousand a second are read at most, and cost some percent of a processor."""
ACCELERATORS: Final = ("0x0300", "0x0302", "0x1200")
"""PCI classes: display, 3D controller, processing accelerator (PCI Code and ID Assignment Specification)."""


class Record(NamedTuple):
    facility: int
    level: int
    sequence: int
    text: str


class KernelLog:
    """`emit` takes evidence. `facilities`: whose lines count (0: the kernel's own)."""

    def __init__(
        self, emit: Callable[[HostEvidence], None], forget_s: float, *,
        path: Path = Path("/dev/kmsg"), root: Path = Path("/sys"), facilities: tuple[int, ...] = (0,),
    ) -> None:  # fmt: skip
        self._emit, self._forget_s, self._path, self._root = emit, forget_s, path, root
        self._facilities = facilities
        self._fd: int | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.records = 0
        self.lost = 0
        """Times that records were overwritten before they were read."""
        self.why = "not opened"
        """Why nothing is read; empty when it is."""

    @staticmethod
    def readable(path: Path = Path("/dev/kmsg")) -> str:
        """Why it cannot be read by this process; empty when it can."""
        try:
            os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
        except OSError as error:
            return _refused(path, error)
        return ""

    def open(self) -> None:
        """Needs a running loop. Never fails: `why` tells."""
        try:
            self._fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._fd, 0, os.SEEK_END)
        except OSError as error:
            self.close()
            self.why = _refused(self._path, error)
            return
        self.why = ""
        asyncio.get_running_loop().add_reader(self._fd, self._read)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._fd is not None:
            asyncio.get_running_loop().remove_reader(self._fd)
            os.close(self._fd)
            self._fd = None
            self.why = "closed"

    def _read(self) -> None:
        assert self._fd is not None
        for _ in range(AT_ONCE):
            try:
                data = os.read(self._fd, RECORD_BYTES)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno == errno.EPIPE:  # the next read goes on with the oldest that is left
                    self.lost += 1
                    continue
                self.close()
                self.why = f"{self._path}: {error.strerror}"
                return
            self._take(data)
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._fd)
        self._timer = loop.call_later(PAUSE_S, self._go_on)

    def _go_on(self) -> None:
        self._timer = None
        if self._fd is not None:
            asyncio.get_running_loop().add_reader(self._fd, self._read)

    def _take(self, data: bytes) -> None:
        record = parse(data)
        if record is None or record.facility not in self._facilities:
            return
        self.records += 1
        found = patterns.find(record.text)
        if found is None:
            return
        accelerator, severity = found.address, found.severity
        if found.device and not is_accelerator(found.address, self._root):
            # A network adapter's or disk's: its rail or its mount is lost, not the host.
            accelerator, severity = "", "degraded" if severity == "fatal" else severity
        lasts_s = None if severity == "fatal" else self._forget_s
        what = found.what if accelerator or not found.address else f"{found.what} of {found.address}"
        self._emit(
            HostEvidence(
                source=SOURCE, what=what, severity=severity, why=found.why, accelerator=accelerator, lasts_s=lasts_s
            )
        )


def parse(data: bytes) -> Record | None:
    """`priority,sequence,microseconds,flags[,more];text`, then lines with a leading blank, which are no text."""
    head, semicolon, rest = data.partition(b";")
    fields = head.split(b",")
    try:
        priority, sequence = int(fields[0]), int(fields[1])
    except (ValueError, IndexError):
        return None
    if not semicolon:
        return None
    text = rest.split(b"\n", 1)[0].decode(errors="replace")
    return Record(priority >> 3, priority & 7, sequence, text)


def is_accelerator(address: str, root: Path) -> bool:
    """By the class of the PCI device; one that cannot be read is none."""
    try:
        found = (root / "bus/pci/devices" / address / "class").read_text().strip()
    except OSError:
        return False
    return found.startswith(ACCELERATORS)


def _refused(path: Path, error: OSError) -> str:
    hint = ": needs root or CAP_SYSLOG" if error.errno in (errno.EPERM, errno.EACCES) else ""
    return f"{path}: {error.strerror}{hint}"
