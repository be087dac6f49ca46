"""Reading the counters of a port: files stay open, one `pread` each, and what did not change costs no more than that.

sysfs makes the text anew for a read at offset 0 (fs/kernfs/file.c, fs/seq_file.c), so an open file shows the present.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Final

import msgspec

from rdma.counters import table
from rdma.counters.deltas import difference
from rdma.counters.table import Counter, Folder
from rdma.devices import Port
from rdma.sysfs import Unknown, Value, to_number, unreadable

FOLDERS: Final[tuple[Folder, ...]] = ("counters", "hw_counters")
_MOST_BYTES: Final = 64
_FIRST: Final = Unknown("first reading")
_MISSING: Final = Unknown("missing", "the driver does not count it")


class Window(msgspec.Struct, frozen=True):
    """What a port counted in `seconds` up to `at_s` (monotonic), by name and in the rows' units. Gauges: as they stand.

    What the driver has no file for is unknown, not zero: ask with `of`."""

    port: str
    at_s: float
    seconds: float
    counted: Mapping[str, Value]

    def of(self, *names: str) -> Value:
        """The first of these that is known."""
        found: Value = _MISSING
        for name in names:
            value = self.counted.get(name, _MISSING)
            if not isinstance(value, Unknown):
                return value
            if found is _MISSING:
                found = value
        return found

    def per_s(self, *names: str) -> float | Unknown:
        value = self.of(*names)
        if isinstance(value, Unknown):
            return value
        return value / self.seconds if self.seconds > 0 else _FIRST


class _File:
    __slots__ = ("fd", "name", "raw", "row", "value")

    def __init__(self, row: Counter, fd: int) -> None:
        self.row, self.fd, self.name = row, fd, row.name
        self.raw = b""
        self.value: Value = _FIRST


class PortReader:
    """The counters of one port. `driver`: as in `rdma.devices.Device`. `strange`: files that no row describes."""

    def __init__(self, port: Port, driver: str = "") -> None:
        self.port = port
        self._driver = driver
        self._files: list[_File] = []
        self._still: dict[str, Value] = {}
        """What each counter says when its text is the same as before."""
        self._at_s: float | None = None
        self.strange: tuple[str, ...] = ()

    def open(self) -> PortReader:
        """Find and open the files. OSError when no more files can be opened (`ulimit -n`)."""
        strange = []
        taken: set[str] = set()
        try:
            for folder, file, path in self._paths():
                row = table.find(folder, file, self._driver)
                if row is None:
                    strange.append(f"{folder}/{file}")
                elif row.name not in taken:  # the standard one comes first
                    taken.add(row.name)
                    self._files.append(_File(row, os.open(path, os.O_RDONLY | os.O_CLOEXEC)))
        except BaseException:
            self.close()
            raise
        self.strange = tuple(strange)
        return self

    def close(self) -> None:
        for file in self._files:
            os.close(file.fd)
        self._files.clear()
        self._still.clear()

    def __enter__(self) -> PortReader:
        return self.open()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    @property
    def rows(self) -> tuple[Counter, ...]:
        return tuple(file.row for file in self._files)

    def totals(self) -> dict[str, Value]:
        """The values of the last `read()` in the rows' units, for those who draw their own differences (Prometheus)."""
        return {
            file.row.name: file.value if isinstance(file.value, Unknown) else file.value * file.row.multiplier
            for file in self._files
        }

    def read(self, now_s: float) -> Window:
        """What was counted since the last call; of the first call everything is unknown."""
        seconds = 0.0 if self._at_s is None else now_s - self._at_s
        self._at_s = now_s
        counted = self._still.copy()  # thousands of files are read a second, and few have changed
        pread = os.pread
        for file in self._files:
            try:
                raw = pread(file.fd, _MOST_BYTES, 0)
            except OSError as error:
                file.raw, file.value = b"", unreadable(error)
                counted[file.name] = self._still[file.name] = file.value
                continue
            if raw != file.raw:
                counted[file.name] = self._changed(file, raw, seconds)
        return Window(self.port.name, now_s, seconds, counted)

    def _changed(self, file: _File, raw: bytes, seconds: float) -> Value:
        row = file.row
        before, file.value, file.raw = file.value, to_number(raw), raw
        if row.gauge:
            self._still[file.name] = file.value
            return file.value
        self._still[file.name] = difference(row, file.value, file.value, seconds)
        if isinstance(before, Unknown) and not isinstance(file.value, Unknown):
            return _FIRST
        return difference(row, before, file.value, seconds)

    def _paths(self) -> Iterator[tuple[Folder, str, str]]:
        for folder in FOLDERS:
            at = self.port.folder / folder
            try:
                names = sorted(os.listdir(at))
            except OSError:
                continue  # a port without some is a port that counts less
            for name in names:
                if name not in table.NOT_COUNTERS:
                    yield folder, name, str(at / name)
