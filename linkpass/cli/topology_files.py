"""Files of the topology commands: text, and what is read from it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from linkpass.cli.common import WrongInputError

if TYPE_CHECKING:
    from topology.sources.cables import Source
    from topology.sources.nccl import Host

readable = click.Path(path_type=Path, allow_dash=True)


def reading_of(path: Path) -> Source | Host:
    """Of a file, of standard input, or of a folder of neighbours by LLDP."""
    from topology.sources.formats import read, read_all

    if not path.is_dir():
        return read(*text_of(path))
    files = sorted(one for one in path.iterdir() if one.is_file() and not one.name.startswith("."))
    if not files:
        raise WrongInputError(f"{path}: no file in it", "expected what lldpctl -f json prints, a file for each node")
    return read_all([text_of(file) for file in files])


def source_of(path: Path) -> Source:
    """The same, of what tells of cables."""
    from topology.sources.nccl import Host

    found = reading_of(path)
    if isinstance(found, Host):
        raise WrongInputError(f"{path}: what NCCL dumps tells of one host and of no cables: expected a fabric")
    return found


def text_of(file: Path) -> tuple[str, str]:
    """Text and what to call it in errors."""
    where = "<stdin>" if file == Path("-") else str(file)
    try:
        raw = sys.stdin.buffer.read() if file == Path("-") else file.read_bytes()
        return raw.decode("utf-8"), where
    except OSError as error:
        raise WrongInputError(f"{where}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise WrongInputError(f"{where}: not UTF-8 at byte {error.start}") from None
