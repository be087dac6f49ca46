"""The topology of a host as NCCL sees it (`NCCL_TOPO_DUMP_FILE`): its adapters, and which are near which GPUs.

Format: src/graph/xml.cc and topo.cc of NCCL. It tells of no cables. A rail is what the adapters of the same number are
in all hosts: those that share a PCI switch with GPUs are numbered from 1 in the order of these. An adapter that shares
none (for storage, or where a virtual machine hides the switches) is on no rail that could be told.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from xml.parsers import expat

from topology.sources.yamltext import TopologyError

_START: Final = re.compile(r"\s*(?:<\?xml[^>]*\?>\s*)?(?:<!--.*?-->\s*)*<system\b", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Nic:
    """A port of an adapter. `near`: numbers of the GPUs that share its nearest PCI switch with any; `rail` from 1."""

    name: str
    port: int | None
    speed_bps: int | None
    guid: str | None
    numa: int | None
    bus: str | None
    near: tuple[int, ...]
    rail: int | None = None


@dataclass(frozen=True, slots=True)
class Gpu:
    """`dev`: its number in the host."""

    dev: int
    bus: str | None
    numa: int | None


@dataclass(frozen=True, slots=True)
class Host:
    nics: tuple[Nic, ...]
    gpus: tuple[Gpu, ...]


@dataclass(slots=True)
class _Element:
    name: str
    line: int
    said: dict[str, str]
    above: tuple[_Element, ...] = ()

    @property
    def buses(self) -> tuple[str, ...]:
        return tuple(one.said.get("busid", "?") for one in self.above if one.name == "pci")


def is_output(text: str) -> bool:
    """Whether a text looks like such a file."""
    return _START.match(text) is not None


def read(text: str, where: str = "<text>") -> Host:
    """Raises TopologyError, naming file, line and what was expected."""
    found = _elements(text, where)
    gpus = {}
    for element in found:
        if element.name == "gpu":
            gpus[_number(element, "dev", where, needed=True) or 0] = element
    nics = [element for element in found if element.name == "net"]
    if not gpus and not nics:
        raise TopologyError(where, 1, "", "no gpu and no net: expected what NCCL writes to NCCL_TOPO_DUMP_FILE")
    made = [_nic(element, gpus, where) for element in nics]
    order = sorted(
        (nic for nic in made if nic.near), key=lambda nic: (nic.near, nic.bus or "", nic.port or 0, nic.name)
    )
    rails = {id(nic): rail for rail, nic in enumerate(order, 1)}
    return Host(
        tuple(
            Nic(nic.name, nic.port, nic.speed_bps, nic.guid, nic.numa, nic.bus, nic.near, rails.get(id(nic)))
            for nic in made
        ),
        tuple(Gpu(dev, _bus(one), _numa(one, where)) for dev, one in sorted(gpus.items())),
    )


def _nic(element: _Element, gpus: dict[int, _Element], where: str) -> Nic:
    name = element.said.get("name")
    if not name:
        raise TopologyError(where, element.line, "name", "expected the name of a net, got nothing")
    near: tuple[int, ...] = ()
    for depth in range(len(element.buses) - 1, 0, -1):
        near = tuple(dev for dev, gpu in sorted(gpus.items()) if gpu.buses[:depth] == element.buses[:depth])
        if near:
            break
    speed = _number(element, "speed", where)
    return Nic(
        name, _number(element, "port", where), speed * 10**6 if speed else None, element.said.get("guid"),
        _numa(element, where), _bus(element), near,
    )  # fmt: skip


def _numa(element: _Element, where: str) -> int | None:
    cpu = next((one for one in element.above if one.name == "cpu"), None)
    numa = _number(cpu, "numaid", where) if cpu else None
    return None if numa is None or numa < 0 else numa


def _bus(element: _Element) -> str | None:
    return element.buses[-1] if element.buses else None


def _number(element: _Element, word: str, where: str, *, needed: bool = False) -> int | None:
    text = element.said.get(word)
    if text is None and not needed:
        return None
    if text is None or not re.fullmatch(r"-?[0-9]{1,9}", text):
        got = "nothing" if text is None else repr(text[:40])
        raise TopologyError(where, element.line, f"{element.name}.{word}", f"expected a whole number, got {got}")
    return int(text)


def _elements(text: str, where: str) -> list[_Element]:
    found: list[_Element] = []
    inside: list[_Element] = []
    parser = expat.ParserCreate()

    def start(name: str, said: dict[str, str]) -> None:
        line = parser.CurrentLineNumber
        if not inside and name != "system":
            raise TopologyError(where, line, "", f"expected <system>, got <{name[:40]}>")
        if len(inside) > 100:
            raise TopologyError(where, line, "", "expected a host, got elements nested too deeply")
        element = _Element(name, line, said, tuple(inside))
        inside.append(element)
        found.append(element)

    def end(name: str) -> None:
        del name
        inside.pop()

    def doctype(*ignored: object) -> None:
        del ignored
        raise TopologyError(where, parser.CurrentLineNumber, "", "expected no document type")

    parser.StartElementHandler, parser.EndElementHandler, parser.StartDoctypeDeclHandler = start, end, doctype
    try:
        parser.Parse(text, True)
    except expat.ExpatError as error:
        raise TopologyError(
            where, error.lineno, "", f"expected XML, got a mistake: {expat.ErrorString(error.code)}"
        ) from None
    return found
