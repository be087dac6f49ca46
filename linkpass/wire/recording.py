"""Recordings: JSON lines. A header, then for each turn of the core what came in and what went out.

    {"type": "header", "format": 1, "version": .., "host": .., "run": .., "part": 1, "wall": .., "settings": {..},
     "topology": ".."}                                  on one line
    {"type": "in", "now_s": 12.5, "event": {..}}        written before the event is handled
    {"type": "out", "now_s": 12.5, "commands": [..]}    written after it; left out when there are none

Events, commands and settings stay raw JSON here: this module knows the frame, the core's types know the content. A
recording is cut into parts by size: `FILE` is the newest, `FILE.1` the one before. A daemon that died may have cut the
last line, or have left its last event without an answer: both are legal endings.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

FORMAT = 1


class Header(msgspec.Struct, frozen=True, kw_only=True, tag="header"):
    """`run` names the daemon's start, `part` counts the files of one run from 1."""

    format: int = FORMAT
    version: str
    host: str
    run: str
    part: int = 1
    wall: str = ""
    settings: msgspec.Raw
    topology: str = ""


class In(msgspec.Struct, frozen=True, tag="in"):
    now_s: float
    event: msgspec.Raw


class Out(msgspec.Struct, frozen=True, tag="out"):
    now_s: float
    commands: msgspec.Raw


Line = Header | In | Out


class RecordingError(Exception):
    """A file is not a whole recording; the text says where and why."""


_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line)


def encode_line(line: Line) -> bytes:
    """One line, its newline included."""
    return _encoder.encode(line) + b"\n"


def decode_line(data: bytes) -> Line:
    """Raises msgspec.MsgspecError."""
    return _decoder.decode(data)


def older_part(path: str | Path) -> Path:
    """Where the part before `path` lies."""
    return Path(f"{path}.1")


class Recording(msgspec.Struct, frozen=True):
    """A header and the turns after it, each with file and line number for messages."""

    header: Header
    turns: tuple[tuple[str, In | Out], ...]
    cut: bool
    """The last line was incomplete and is left out."""


def read_recording(path: str | Path) -> Recording:
    """Read a recording from its beginning, an older part first. Raises RecordingError.

    A recording whose first part was rotated away cannot be fed to a fresh core, and is refused."""
    newest = _read_part(Path(path))
    if newest.header.part == 1:
        return newest
    if newest.header.part == 2 and older_part(path).exists():
        older = _read_part(older_part(path))
        if (older.header.run, older.header.part) == (newest.header.run, 1):
            return Recording(older.header, older.turns + newest.turns, newest.cut)
    missing = newest.header.part - 1
    raise RecordingError(
        f"{path}: part {newest.header.part}; part 1 to {missing} of this run are not all there any more"
    )


def _read_part(path: Path) -> Recording:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RecordingError(f"{path}: {error.strerror}") from None
    lines = data.split(b"\n")
    cut = bool(lines.pop())
    decoded = list(_decoded(path, lines))
    if not decoded or not isinstance(decoded[0][1], Header):
        raise RecordingError(f"{path}:1: not a recording: expected a header")
    header = decoded[0][1]
    if header.format != FORMAT:
        raise RecordingError(f"{path}:1: format {header.format}; this version reads format {FORMAT}")
    turns: list[tuple[str, In | Out]] = []
    for where, line in decoded[1:]:
        if isinstance(line, Header):
            raise RecordingError(f"{where}: a second header")
        turns.append((where, line))
    return Recording(header, tuple(turns), cut)


def _decoded(path: Path, lines: list[bytes]) -> Iterator[tuple[str, Line]]:
    for number, line in enumerate(lines, 1):
        try:
            yield f"{path}:{number}", decode_line(line)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise RecordingError(f"{path}:{number}: not a line of a recording: {error}") from None
