"""The fabric's file, of any format that `topology.sources` knows: a file, or a folder of what nodes hear by LLDP."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from topology.sources.cables import Source
    from topology.sources.lldp import Answers
    from topology.sources.nccl import Host

Captured = Callable[[Path], "Sequence[Answers] | None"]
"""What the LLDP frames of a capture file tell; None: it is no such file."""


class FabricFileError(Exception):
    """One line: the file, the line where it can be told, and what was expected."""


def file_text(path: Path) -> str:
    """Raises FabricFileError."""
    try:
        return path.read_bytes().decode("utf-8")
    except OSError as error:
        raise FabricFileError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise FabricFileError(f"{path}: not UTF-8 at byte {error.start}") from None


def read_file(
    path: Path, captured: Captured = lambda path: None, variables: Mapping[str, str] | None = None
) -> Source | Host:
    """What a file or a folder tells of a fabric, or of a host. `captured` reads capture files, for those who can;
    `variables`: what a containerlab file may ask for.

    Raises FabricFileError."""
    from topology.sources import lldp
    from topology.sources.formats import read, read_all
    from topology.sources.yamltext import TopologyError

    try:
        if not path.is_dir():
            answers = captured(path)
            return read(file_text(path), str(path), variables) if answers is None else lldp.joined(answers)
        files = sorted(one for one in path.iterdir() if one.is_file() and not one.name.startswith("."))
        if not files:
            raise FabricFileError(f"{path}: no file in it, expected what lldpctl -f json prints, a file for each node")
        heard: list[Answers] = []
        texts = []
        for file in files:
            answers = captured(file)
            if answers is None:
                texts.append((file_text(file), str(file)))
            else:
                heard += answers
        return read_all(texts, heard)
    except TopologyError as error:
        raise FabricFileError(str(error)) from None


def read_fabric(path: Path) -> Source:
    """The same, of what tells of cables. Raises FabricFileError."""
    return cables_of(path, read_file(path))


def cables_of(path: Path, found: Source | Host) -> Source:
    """A source that tells of cables. Raises FabricFileError for one that does not."""
    from topology.sources.nccl import Host

    if isinstance(found, Host):
        raise FabricFileError(f"{path}: what NCCL dumps tells of one host and of no cables: expected a fabric")
    return found
