"""Capture files, frame by frame, in bounded memory. Only commands import this: it loads scapy, which knows the
formats."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scapy.error import Scapy_Exception
from scapy.utils import RawPcapReader


class NoCaptureError(Exception):
    """Not a pcap or pcapng file, or one that cannot be read."""


@dataclass(frozen=True, slots=True)
class Frame:
    """`link`: its link type, `where`: the interface's name in the file, empty where the file does not tell. `cut`: less
    was kept than passed. `at_ns`: since 1970. `read_bytes`: how far into the file reading has come."""

    data: bytes
    link: int
    at_ns: int
    where: str
    cut: bool
    read_bytes: int


def frames(path: Path) -> Iterator[Frame]:
    """Every frame of a pcap or pcapng file, also a gzipped one. Raises NoCaptureError; OSError when there is no file.

    A file that ends within a frame gives what comes before it."""
    at_ns = 0
    with open(path, "rb") as stream:
        try:
            reader = RawPcapReader(stream)
        except (Scapy_Exception, EOFError, OSError) as error:
            raise NoCaptureError(str(error)) from None
        for data, meta in reader:
            if hasattr(meta, "tshigh"):
                link, where = meta.linktype, _text(meta.ifname)
                if meta.tshigh is not None:  # simple packet blocks have no time: that of the frame before
                    at_ns = (meta.tshigh << 32 | meta.tslow) * 1_000_000_000 // meta.tsresol
            else:
                link, where = reader.linktype & 0xFFFF, ""  # above: whether frames end with a check sum
                at_ns = meta.sec * 1_000_000_000 + meta.usec * (1 if reader.nano else 1000)
            yield Frame(data, link, at_ns, where, meta.wirelen > len(data), stream.tell())


def _text(name: Any) -> str:
    return name.decode(errors="replace") if isinstance(name, bytes) else name or ""
