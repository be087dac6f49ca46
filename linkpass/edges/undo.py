"""The journal on disk of changes that cannot be marked as ours (socket options, sysctls): what was there before.

A change is written here before it is made, so that after any death of the daemon the next start, or `linkpass cleanup`,
puts the old value back. One JSON line for a change (`id`, `boot`, `kind`, `change`), one for its end (`done`). The
kernel's own state ends with the boot: entries of an earlier one are void. For the same reason the file is written anew
without waiting for the disk: what a machine that dies then loses of it is void at its next start.

Entries that whoever undoes them cannot read (another version of linkpass wrote them, a disk spoilt them) are named and
stay in the file; nobody is asked to undo them.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

NAME = "undo.jsonl"
COMPACT_LINES = 1000
"""Ended changes that may lie in the file before it is written anew."""

Plain = Mapping[str, int | str]
Restorer = Callable[[Sequence[Plain]], Sequence[bool]]
"""Puts old values back. For each change: True when it is undone or its object is gone, False when it must be kept."""


Reader = Callable[[Plain], object]
"""Raises LookupError, TypeError or ValueError for a change that it cannot read (msgspec's errors are ValueErrors)."""


class JournalBusyError(OSError):
    """Another daemon has the journal."""


class _Line(msgspec.Struct, frozen=True, omit_defaults=True):
    id: int = 0
    boot: str = ""
    kind: str = ""
    change: dict[str, int | str] = {}
    done: tuple[int, ...] = ()


class UndoJournal:
    """Constructed with the folder; `open` reads what an earlier run has left."""

    def __init__(
        self, folder: str | Path, boot_id: Path = Path("/proc/sys/kernel/random/boot_id"),
        readers: Mapping[str, Reader] | None = None,
    ) -> None:  # fmt: skip
        """`readers`: by kind; a change that one of them cannot read is set aside by `open`."""
        self.path = Path(folder) / NAME
        self._readers = readers or {}
        self.unread: list[str] = []
        """What was set aside, in words."""
        self._aside: list[_Line] = []
        self._boot_id = boot_id
        self._boot = ""
        self._fd: int | None = None
        self._pending: dict[int, _Line] = {}
        self._next_id = 1
        self._ended = 0

    def open(self) -> None:
        """Raises JournalBusyError when another process has it open, OSError when the folder cannot be written."""
        self._boot = self._boot_id.read_text().strip()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = self._locked()
        try:
            self._read()
            self._set_aside()
            self._rewrite()
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """An empty journal leaves no file behind; one with changes in it waits for the next start."""
        if self._fd is None:
            return
        if not self._pending and not self._aside:
            self.path.unlink(missing_ok=True)
        os.close(self._fd)
        self._fd = None

    def note(self, kind: str, changes: Sequence[Plain], *, sync: bool = True) -> list[int]:
        """Write changes down before they are made; their numbers. Raises OSError: then they must not be made.

        `sync` waits for the disk. Without, an entry survives the daemon's death but perhaps not the machine's: enough
        for what does not survive the machine either, and the caller does not wait until a slow disk has it."""
        lines = [
            _Line(id=self._next_id + offset, boot=self._boot, kind=kind, change=dict(change))
            for offset, change in enumerate(changes)
        ]
        self._next_id += len(lines)  # also when the disk fails now: the lines may be there all the same
        self._append(lines, sync=sync)
        self._pending.update((line.id, line) for line in lines)
        return [line.id for line in lines]

    def done(self, numbers: Sequence[int]) -> None:
        """These changes are undone, or their object is gone. A failing disk costs nothing: undoing twice is safe.
        Nor does a slow one: nothing here waits for it."""
        ended = tuple(number for number in numbers if self._pending.pop(number, None))
        if not ended or self._fd is None:
            return
        self._ended += len(ended)
        with contextlib.suppress(OSError):
            if self._ended > COMPACT_LINES:
                self._rewrite(sync=False)
            else:
                self._append([_Line(done=ended)], sync=False)

    def pending(self, kind: str) -> dict[int, Plain]:
        """Number -> change of one kind, oldest first."""
        return {number: line.change for number, line in self._pending.items() if line.kind == kind}

    def kinds(self) -> set[str]:
        return {line.kind for line in self._pending.values()}

    def restore_all(self, restorers: Mapping[str, Restorer]) -> list[str]:
        """Undo everything, the last change first; what is left and why, in words. A kind without a restorer stays."""
        left = []
        for kind in sorted(self.kinds()):
            changes = dict(reversed(self.pending(kind).items()))
            restorer = restorers.get(kind)
            if restorer is None:
                left.append(f"{len(changes)} change(s) of kind {kind}: nobody here can undo them")
                continue
            try:
                undone = restorer(list(changes.values()))
            except OSError as error:
                left.append(f"{len(changes)} change(s) of kind {kind}: {error.strerror or error}")
                continue
            self.done([number for number, fine in zip(changes, undone, strict=True) if fine])
            kept = sum(not fine for fine in undone)
            if kept:
                left.append(f"{kept} change(s) of kind {kind}: not undone")
        return left

    # the file
    def _locked(self) -> int:
        while True:
            fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _same(fd, self.path):
                    return fd
            except OSError as error:
                os.close(fd)
                if error.errno == errno.EWOULDBLOCK:
                    raise JournalBusyError(error.errno, "another linkpass has it open", str(self.path)) from error
                raise
            os.close(fd)  # it was removed or replaced between opening and locking

    def _read(self) -> None:
        """A line that a crash has cut is left out: its change was not made yet."""
        decoder = msgspec.json.Decoder(_Line)
        self._pending.clear()
        spoilt = 0
        for text in self.path.read_bytes().splitlines():
            try:
                line = decoder.decode(text)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                spoilt += 1
                continue
            self._next_id = max(self._next_id, line.id + 1)
            for number in line.done:
                self._pending.pop(number, None)
            if line.kind and line.boot == self._boot:
                self._pending[line.id] = line
        self.unread = [f"{self.path}: {spoilt} line(s) cannot be read and are left out"] if spoilt else []

    def _set_aside(self) -> None:
        self._aside.clear()
        for line in list(self._pending.values()):
            reader = self._readers.get(line.kind)
            if reader is None:
                continue
            try:
                reader(line.change)
            except (LookupError, TypeError, ValueError) as error:
                self._aside.append(self._pending.pop(line.id))
                why = f"{type(error).__name__}: {error}"
                self.unread.append(f"{self.path}: entry {line.id} ({line.kind}) cannot be read, nor undone: {why}")

    def _append(self, lines: Sequence[_Line], *, sync: bool) -> None:
        if self._fd is None:
            raise RuntimeError("the undo journal is not open")
        data = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
        start = os.fstat(self._fd).st_size
        written = os.write(self._fd, data)
        if written != len(data):
            os.ftruncate(self._fd, start)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        if sync:
            os.fsync(self._fd)

    def _rewrite(self, *, sync: bool = True) -> None:
        """The file with pending changes alone, in one step: at any moment the old or the new one is there."""
        new = self.path.with_name(NAME + ".new")
        fd = os.open(new, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        old, self._fd = self._fd, fd
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._append([*self._aside, *self._pending.values()], sync=sync)
            os.replace(new, self.path)
        except OSError:
            self._fd = old
            os.close(fd)
            raise
        self._ended = 0
        if old is not None:
            os.close(old)


def _same(fd: int, path: Path) -> bool:
    try:
        there = path.stat()
    except OSError:
        return False
    here = os.fstat(fd)
    return (here.st_ino, here.st_dev) == (there.st_ino, there.st_dev)
