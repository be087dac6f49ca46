"""The journal of decisions: one JSON line for each `Record` of the core, on disk and, the last of them, in memory.

Causal ids count from 1 again when the daemon starts again; `run` numbers the starts, so that a story is never mixed
with that of an earlier start."""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path

import msgspec

from linkpass.core.commands import Record

NAME = "journal.jsonl"


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the journal. `seq` grows by one and survives restarts."""

    seq: int
    run: int
    wall: str
    now_s: float
    cause: str
    what: str
    why: str
    rung: int = 0
    element: str = ""
    level: str = "info"


class JournalEdge:
    """Appends entries; a full or broken disk is counted, and the entries in memory go on.

    The file is rotated at half of `max_bytes`, one older file is kept: together they stay below `max_bytes`."""

    def __init__(self, folder: str | Path, *, max_bytes: int = 8 << 20, keep: int = 5000) -> None:
        self.path = Path(folder) / NAME
        self._half_bytes = max(max_bytes // 2, 1)
        self._entries: deque[Entry] = deque(maxlen=keep)
        self._fd: int | None = None
        self._size = 0
        self._seq = 0
        self._run = 1
        self.write_errors = 0
        self.last_error = ""

    @property
    def older(self) -> Path:
        return self.path.with_name(NAME + ".1")

    def open(self) -> None:
        """Read what is there and open for appending. A folder that cannot be written is counted, not raised."""
        for path in (self.older, self.path):
            self._entries.extend(read_journal(path))
        if self._entries:
            self._seq, self._run = self._entries[-1].seq, self._entries[-1].run + 1
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._open_file()
        except OSError as error:
            self._failed(error)

    def write(self, record: Record, now_s: float, wall: str) -> Entry:
        """Keep a record. `wall` is ISO 8601 in UTC."""
        self._seq += 1
        entry = Entry(
            seq=self._seq,
            run=self._run,
            wall=wall,
            now_s=now_s,
            cause=record.cause,
            what=record.what,
            why=record.why,
            rung=record.rung,
            element=record.element,
            level=record.level,
        )
        self._entries.append(entry)
        if self._fd is not None:
            line = msgspec.json.encode(entry) + b"\n"
            try:
                if self._size and self._size + len(line) > self._half_bytes:
                    self._rotate()
                os.write(self._fd, line)
                self._size += len(line)
            except OSError as error:
                self._failed(error)
        return entry

    def since(self, seq: int, *, limit: int = 1000) -> list[Entry]:
        """Entries after `seq`, oldest first, the newest `limit` of them."""
        found = [entry for entry in self._entries if entry.seq > seq]
        return found[-limit:]

    def why(self, name: str) -> list[Entry]:
        """The story of a causal id, or the last story about an element: of the newest start that knows it."""
        story = [entry for entry in self._entries if entry.cause == name]
        if not story:
            about = next((entry for entry in reversed(self._entries) if entry.element == name and entry.cause), None)
            if about is None:
                return []
            return [entry for entry in self._entries if (entry.cause, entry.run) == (about.cause, about.run)]
        return [entry for entry in story if entry.run == story[-1].run]

    def causes(self) -> list[str]:
        """Causal ids that have a story, newest first."""
        return list(dict.fromkeys(entry.cause for entry in reversed(self._entries) if entry.cause))

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _open_file(self) -> None:
        self._fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        self._size = os.fstat(self._fd).st_size
        if self._size and not _ends_a_line(self.path):
            self._size += os.write(self._fd, b"\n")  # a crash cut the last line: begin a new one

    def _rotate(self) -> None:
        self.close()
        os.replace(self.path, self.older)
        self._open_file()

    def _failed(self, error: OSError) -> None:
        self.write_errors += 1
        self.last_error = f"{self.path}: {error.strerror}"


def _ends_a_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def read_journal(path: str | Path) -> list[Entry]:
    """The readable entries of a file, none when there is no regular file. A line that a crash has cut is left out."""
    path = Path(path)
    try:
        lines = path.read_bytes().splitlines() if path.is_file() else []
    except OSError:
        return []
    decoder = msgspec.json.Decoder(Entry)
    entries = []
    for line in lines:
        try:
            entries.append(decoder.decode(line))
        except msgspec.MsgspecError:
            continue
    return entries
