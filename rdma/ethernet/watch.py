"""All network devices of interest, read one after the other in a thread of its own: each read may wait for the kernel's
lock of network settings, or for a driver's firmware.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from rdma.counters.reading import Window
from rdma.ethernet.genl import EthtoolNetlink
from rdma.ethernet.module import Module
from rdma.ethernet.reading import ASK_AGAIN_S, NetdevReader, read_module
from rdma.sysfs import Unknown

NOT_YET = Unknown("first reading", "the module was not read yet")
OFF = Unknown("missing", "off in the configuration")


class Look(msgspec.Struct, frozen=True):
    """What one device told. `unknown`: what it does not tell, by part, and why."""

    device: str
    driver: str
    window: Window
    totals: Mapping[str, int]
    unknown: Mapping[str, Unknown]
    module: Module | Unknown


class Netdevs:
    """Used by one thread at a time. `module_s`: a module is read that often; 0: never."""

    def __init__(self, module_s: float = 60.0, kernel: EthtoolNetlink | None = None) -> None:
        self._module_s = module_s
        self._kernel = EthtoolNetlink() if kernel is None else kernel
        self._why: Unknown | None = Unknown("first reading")
        """Why the kernel cannot be asked; drivers can be nevertheless."""
        self._opened_s = float("-inf")
        self._readers: dict[str, NetdevReader] = {}
        self._modules: dict[str, Module | Unknown] = {}
        self._read_s: dict[str, float] = {}
        """When a device's module was read last."""

    def look(self, devices: Iterable[str], now_s: Callable[[], float]) -> dict[str, Look]:
        """Read each device, and at most one module: half a page takes milliseconds, in which nobody else can change
        network settings."""
        wanted = dict.fromkeys(devices)
        if wanted and self._why is not None:
            self._open(now_s())
        self._forget([name for name in self._readers if name not in wanted])
        seen = {}
        for name in wanted:
            reader = self._readers.get(name)
            if reader is None:
                reader = self._readers[name] = NetdevReader(name, self._kernel if self._why is None else self._why)
            window = reader.read(now_s())
            seen[name] = (reader, window)
        self._read_a_module(now_s())
        return {
            name: Look(name, reader.driver, window, reader.totals(), reader.unknown, self._module(name))
            for name, (reader, window) in seen.items()
        }

    def close(self) -> None:
        self._forget(list(self._readers))
        self._kernel.close()
        self._why, self._opened_s = Unknown("first reading"), float("-inf")

    def _open(self, now_s: float) -> None:
        if now_s - self._opened_s >= ASK_AGAIN_S:
            self._opened_s = now_s
            self._why = self._kernel.open()
            if self._why is None:
                self._forget(list(self._readers))

    def _forget(self, names: Iterable[str]) -> None:
        for name in names:
            self._readers.pop(name).close()
            self._modules.pop(name, None)
            self._read_s.pop(name, None)

    def _module(self, name: str) -> Module | Unknown:
        return self._modules.get(name, OFF if not self._module_s else NOT_YET) if self._why is None else self._why

    def _read_a_module(self, now_s: float) -> None:
        """The one that waits longest."""
        if not self._module_s or not self._readers or self._why is not None:
            return
        name = min(self._readers, key=lambda one: self._read_s.get(one, float("-inf")))
        if now_s - self._read_s.get(name, float("-inf")) >= self._module_s:
            self._read_s[name] = now_s
            self._modules[name] = read_module(self._kernel, name)
