"""Files of the topology commands: text or captured frames, and what is read from them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from linkpass.cli.common import WrongInputError

if TYPE_CHECKING:
    from topology.sources.cables import Source
    from topology.sources.lldp import Answers
    from topology.sources.nccl import Host

readable = click.Path(path_type=Path, allow_dash=True)

MAGIC = frozenset(
    bytes.fromhex(one)
    for one in ("d4c3b2a1", "a1b2c3d4", "4d3cb2a1", "a1b23c4d", "0a0d0d0a")
)  # fmt: skip
"""How pcap files begin (either byte order, micro- or nanoseconds), and pcapng files."""


def reading_of(path: Path) -> Source | Host:
    """Of a file, of standard input, or of a folder of neighbours by LLDP. Raises WrongInputError."""
    from linkpass.config.fabric_file import FabricFileError, read_file
    from topology.sources.formats import read
    from topology.sources.yamltext import TopologyError

    try:
        return read(*text_of(path)) if path == Path("-") else read_file(path, captured)
    except (FabricFileError, TopologyError) as error:
        raise WrongInputError(str(error)) from None


def source_of(path: Path) -> Source:
    """The same, of what tells of cables."""
    from linkpass.config.fabric_file import FabricFileError, cables_of

    try:
        return cables_of(path, reading_of(path))
    except FabricFileError as error:
        raise WrongInputError(str(error)) from None


def captured(path: Path) -> Sequence[Answers] | None:
    """What the LLDP frames of a capture tell; None for what is none. Raises WrongInputError, TroubleError."""
    try:
        with open(path, "rb") as stream:
            if stream.read(4) not in MAGIC:
                return None
    except OSError as error:
        raise WrongInputError(f"{path}: {error.strerror}") from None
    from linkpass.cli.scapy_here import need_scapy

    need_scapy(f"{path}: a capture file")
    from linkpass.lldp_frames import answers
    from linkpass.pcap import NoCaptureError

    try:
        return answers(path)
    except NoCaptureError as error:
        raise WrongInputError(f"{path}: {error}") from None


def text_of(file: Path) -> tuple[str, str]:
    """Text and what to call it in errors. Raises WrongInputError."""
    from linkpass.config.fabric_file import FabricFileError, file_text

    try:
        if file != Path("-"):
            return file_text(file), str(file)
        return sys.stdin.buffer.read().decode("utf-8"), "<stdin>"
    except FabricFileError as error:
        raise WrongInputError(str(error)) from None
    except UnicodeDecodeError as error:
        raise WrongInputError(f"<stdin>: not UTF-8 at byte {error.start}") from None
