"""The recorder: every event before it is handled, every answer after it, so that `linkpass replay` can ask a fresh core
whether it would do the same."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from linkpass.core.commands import Command
from linkpass.core.events import Event
from linkpass.core.settings import CoreSettings
from linkpass.wire.recording import Header, In, Line, Out, encode_line, older_part


class RecorderEdge:
    """Appends lines to a file that is cut at half of `max_bytes`; the part before is kept, older ones are lost.

    Each line is one write to the kernel: a crash of the daemon loses nothing. When the disk fails recording ends,
    `stopped` says why, and the daemon goes on."""

    def __init__(
        self,
        path: str | Path,
        settings: CoreSettings,
        *,
        version: str,
        wall: str,
        topology: str = "",
        max_bytes: int = 64 << 20,
    ) -> None:
        self.path = Path(path)
        self._header = Header(
            version=version,
            host=settings.host,
            run=f"{wall}/{os.getpid()}",
            wall=wall,
            settings=msgspec.Raw(msgspec.json.encode(settings)),
            topology=topology,
        )
        self._half_bytes = max(max_bytes // 2, 1)
        self._fd: int | None = None
        self._size = 0
        self._encoder = msgspec.json.Encoder()
        self.stopped = ""

    def open(self) -> None:
        """Begin a recording; one of an earlier run becomes the older part. Raises OSError."""
        if self.path.exists():
            os.replace(self.path, older_part(self.path))
        self._begin()

    def event(self, now_s: float, event: Event) -> None:
        """An event that will be handled now."""
        self._put(In(now_s, msgspec.Raw(self._encoder.encode(event))), may_cut=True)

    def commands(self, now_s: float, commands: Sequence[Command]) -> None:
        """What the core answered; need not be called when that is nothing."""
        self._put(Out(now_s, msgspec.Raw(self._encoder.encode(commands))), may_cut=False)

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _begin(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
        self._fd = os.open(self.path, flags, 0o600)
        self._size = 0
        self._write(encode_line(self._header))

    def _put(self, line: Line, *, may_cut: bool) -> None:
        """A turn is never cut in two: a part begins with an event."""
        if self._fd is None:
            return
        try:
            data = encode_line(line)
            if may_cut and self._size + len(data) > self._half_bytes:
                self.close()
                os.replace(self.path, older_part(self.path))
                self._header = msgspec.structs.replace(self._header, part=self._header.part + 1)
                self._begin()
            self._write(data)
        except OSError as error:
            self.stopped = f"{self.path}: {error.strerror}"
            self.close()

    def _write(self, data: bytes) -> None:
        assert self._fd is not None
        while data:
            written = os.write(self._fd, data)
            self._size += written
            data = data[written:]
