"""Reading a network device's statistics over time, from all that it can be asked; and its optical module, once in a
while. Every read may wait for the kernel's lock of network settings, so none of it belongs in an event loop.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from rdma.counters.deltas import difference
from rdma.counters.reading import Window
from rdma.ethernet.genl import NO_DEVICE, PARTS, EthtoolNetlink, Layout, Part, numbers, question
from rdma.ethernet.ioctl import DeviceStatistics, GoneError, NotToldError
from rdma.ethernet.module import LOWER, Memory, Module, parse, wanted
from rdma.ethernet.table import COUNTERS, known
from rdma.sysfs import ROOT, Unknown, Value

ASK_AGAIN_S: Final = 60.0
"""What was not told is asked for again: a driver may be updated, a module plugged, a right given."""
_FIRST: Final = Unknown("first reading")


def physical(device: str, root: Path = ROOT) -> tuple[str, ...]:
    """The devices that a VLAN, a bond or a VRF lies on, down to those that lie on none; a device that lies on none is
    its own. The kernel names them `lower_*` (net/core/dev.c)."""
    found: dict[str, None] = {}
    left, seen = [device], {device}
    while left:
        name = left.pop()
        try:
            below = sorted(one[6:] for one in os.listdir(f"{root}/class/net/{name}") if one.startswith("lower_"))
        except OSError:
            below = []
        if not below:
            found[name] = None
        left += [one for one in below if one not in seen]
        seen.update(below)
    return tuple(found)


class _Source:
    """One thing to ask. `ask` gives names and numbers, or why there are none."""

    __slots__ = ("ask", "asked_s", "names", "stale", "values", "why")

    def __init__(self, ask: Callable[[], tuple[tuple[str, ...], tuple[int, ...]] | Unknown]) -> None:
        self.ask = ask
        self.asked_s = 0.0
        self.names: tuple[str, ...] = ()
        self.values: tuple[int, ...] = ()
        self.stale = False
        """Another source has stopped to tell what this one tells too."""
        self.why: Unknown | None = None


class NetdevReader:
    """One device's statistics. Used by one thread at a time."""

    def __init__(self, device: str, kernel: EthtoolNetlink | Unknown) -> None:
        """`kernel`: open, or why there is none to ask."""
        self.device = device
        self._kernel = kernel
        self._driver: DeviceStatistics | None = None
        self._told = DeviceStatistics(device)
        self._place: tuple[tuple[str, ...], struct.Struct] | None = None
        self._sources: dict[str, _Source] = {part: _Source(self._asks(part)) for part in PARTS}
        self._sources["driver"] = _Source(self._ask_driver)
        self._owner: dict[str, _Source] = {}
        """Who tells a number that two tell: whoever told it first, in the order above."""
        self._still: dict[str, Value] = {}
        self._totals: dict[str, int] = {}
        self._at_s: float | None = None

    @property
    def driver(self) -> str:
        return self._told.driver

    @property
    def unknown(self) -> dict[str, Unknown]:
        """What the device does not tell, by part."""
        return {name: source.why for name, source in self._sources.items() if source.why is not None}

    def totals(self) -> dict[str, int]:
        """The numbers of the last `read`, for those who draw their own differences (Prometheus)."""
        return dict(self._totals)

    def close(self) -> None:
        self._told.close()
        self._driver = None

    def read(self, now_s: float) -> Window:
        """What was counted since the last call; what is told for the first time is unknown in it."""
        seconds = 0.0 if self._at_s is None else now_s - self._at_s
        self._at_s = now_s
        changed: dict[str, Value] = {}
        for source in self._sources.values():
            if source.why is None or source.why is NO_DEVICE or now_s - source.asked_s >= ASK_AGAIN_S:
                source.asked_s = now_s
                told = source.ask()
                if isinstance(told, Unknown):
                    self._forget(source)
                    source.why = told
                else:
                    source.why = None
                    changed.update(self._counted(source, *told, seconds))
        return Window(self.device, now_s, seconds, {**self._still, **changed})

    def _forget(self, source: _Source) -> None:
        """What it told is unknown from now on, or told by another from the next reading on."""
        for name in source.names:
            if self._owner.get(name) is source:
                del self._owner[name], self._still[name], self._totals[name]
                for other in self._sources.values():
                    other.stale |= other is not source and name in other.names
        source.names = source.values = ()

    def _counted(
        self, source: _Source, names: tuple[str, ...], values: tuple[int, ...], seconds: float
    ) -> Iterator[tuple[str, Value]]:
        if source.stale or names != source.names:
            self._forget(source)
            source.stale = False
            for name, value in zip(names, values, strict=True):
                if self._owner.setdefault(name, source) is source:
                    self._totals[name], self._still[name] = value, 0
                    yield name, _FIRST
            source.names = names
        elif values != source.values:
            for name, before, after in zip(names, source.values, values, strict=True):
                if before != after and self._owner.get(name) is source:
                    self._totals[name] = after
                    more = after - before
                    yield name, more if more > 0 else difference(COUNTERS[name], before, after, seconds)
        source.values = values

    def _asks(self, part: Part) -> Callable[[], tuple[tuple[str, ...], tuple[int, ...]] | Unknown]:
        body = question(part, self.device)
        layout = Layout(lambda answer: numbers(part, answer))

        def ask() -> tuple[tuple[str, ...], tuple[int, ...]] | Unknown:
            if isinstance(self._kernel, Unknown):
                return self._kernel
            answer = self._kernel.ask(body)
            if isinstance(answer, Unknown):
                return answer
            values = layout.values(answer)
            return (layout.names, values) if values else Unknown("missing", "the driver counts none of it")

        return ask

    def _ask_driver(self) -> tuple[tuple[str, ...], tuple[int, ...]] | Unknown:
        try:
            if self._driver is None:
                self._told.close()
                self._driver = self._told.open()
                self._place = None
            if self._place is None:
                self._place = _places(self._told)
            names, take = self._place
            if not names:
                self._told.close()
                self._driver = None
                return Unknown("missing", f"nothing is known of the statistics of {self.driver or 'this driver'}")
            return names, take.unpack(self._told.raw())
        except NotToldError as error:
            self._told.close()
            self._driver = None
            return NO_DEVICE if isinstance(error, GoneError) else Unknown("missing", str(error))
        except OSError as error:
            return Unknown("refused", error.strerror or str(error))


def _places(told: DeviceStatistics) -> tuple[tuple[str, ...], struct.Struct]:
    """The names of what is known, and what takes just these out of all values of the driver."""
    found: dict[str, int] = {}
    for one in known(told.driver, told.names):
        found.setdefault(one.name, one.index)
    form, at = "=", 0
    for place in found.values():
        form += f"{8 * (place - at)}xQ"
        at = place + 1
    return tuple(found), struct.Struct(f"{form}{8 * (len(told.names) - at)}x")


def read_module(kernel: EthtoolNetlink, device: str) -> Module | Unknown:
    """What the device's module says; up to five half pages are read."""
    lower = kernel.memory(device, LOWER)
    if isinstance(lower, Unknown):
        return lower
    memory: Memory = {LOWER: lower, **{half: kernel.memory(device, half) for half in wanted(lower)}}
    return parse(memory)
