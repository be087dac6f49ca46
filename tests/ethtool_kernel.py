"""A kernel's answers as they were recorded (`ethtool_answers.json`), and with other numbers in the same places."""

from __future__ import annotations

import json
import os
import struct
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from lab.netns import namespace
from rdma.ethernet.genl import PARTS, EthtoolNetlink, Part, numbers, question
from rdma.ethernet.module import Half
from rdma.sysfs import Unknown

RECORDED: dict[str, str] = json.loads((Path(__file__).with_name("ethtool_answers.json")).read_text())


@contextmanager
def veth(tag: str) -> Iterator[str]:
    """A namespace, by its name, with `near0` and `far0`: devices without statistics that are known here."""
    name = f"te-{os.getpid()}-{tag}"
    os.close(namespace.create(name))
    try:
        subprocess.run(["ip", "-n", name, "link", "add", "near0", "type", "veth", "peer", "name", "far0"], check=True)
        yield name
    finally:
        namespace.remove(name)


def answer(name: str) -> bytes:
    return bytes.fromhex(RECORDED[name])


def with_numbers(part: Part, **values: int) -> bytes:
    """The recorded answer with these numbers."""
    data = bytearray(answer(part))
    place = {name: at for at, name in numbers(part, bytes(data))}
    for name, value in values.items():
        struct.pack_into("=Q", data, place[name], value)
    return bytes(data)


class RecordedKernel(EthtoolNetlink):
    """Answers each part of a device as it was told to; what it was not told of is refused as a kernel refuses it."""

    def __init__(self, device: str, memory: Mapping[Half, bytes] | None = None) -> None:
        super().__init__()
        self.device = device
        self.answers: dict[Part, bytes | Unknown] = {}
        self.pages = dict(memory or {})
        self.asked: list[Part] = []
        self._part = {question(part, device): part for part in PARTS}

    def open(self) -> Unknown | None:
        return None

    def ask(self, question: bytes) -> bytes | Unknown:
        part = self._part[question]
        self.asked.append(part)
        return self.answers.get(part, Unknown("missing", "the driver does not tell it"))

    def memory(self, device: str, half: Half) -> bytes | Unknown:
        return self.pages.get(half, Unknown("refused", "Input/output error"))
