"""GPUs through NVIDIA's management library, by its Python bindings (nvidia-ml-py, module `pynvml`).

Loaded in the reading thread, when first read: neither the bindings nor the library need be there. Xids come as events
of the library, which also reach containers that cannot read the kernel's log; the same Xid by both is said by both.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from linkpass.edges.host import gpus
from linkpass.edges.host.gpus import Gpu
from linkpass.edges.host.patterns import pci_address
from linkpass.edges.host.reading import AbsentError, Place, Reading, Trouble

INSTALL: Final = "pip install 'linkpass[nvml]' (nvidia-ml-py), and the NVIDIA driver"
REASONS: Final = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
"""Since driver 535, and before."""
MOST_EVENTS: Final = 64
"""Taken from the library in one reading."""


class Nvml:
    name = "nvml"

    def __init__(self, margin_c: float, forget_s: float) -> None:
        self._margin_c, self._forget_s = margin_c, forget_s
        self._library: Any = None
        self._handles: dict[str, Any] = {}
        self._before: dict[str, Gpu] = {}
        self._events: Any = None
        self._unknown: tuple[str, ...] = ()

    def read(self) -> Reading:
        if self._library is None:
            self._open()
        happened = self._xids()
        troubles: dict[Place, Trouble] = {}
        figures: dict[Place, float] = {}
        blind: set[Place] = set()
        for address, handle in self._handles.items():
            gpu = self._gpu(address, handle, happened.get(address, ()))
            troubles.update(gpus.troubles(gpu, self._before.get(address), self._margin_c, self._forget_s))
            figures.update(gpus.figures(gpu))
            blind.update(gpus.not_shown(gpu))
            self._before[address] = gpu
        return Reading(troubles, self._unknown, frozenset(blind), figures)

    def interrupt(self) -> None:
        """A call of the library is waited for."""

    def close(self) -> None:
        library, self._library = self._library, None
        if library is not None:
            with contextlib.suppress(library.NVMLError):
                if self._events is not None:
                    library.nvmlEventSetFree(self._events)
                library.nvmlShutdown()
        self._events = None
        self._handles.clear()

    def _open(self) -> None:
        try:
            import pynvml as library
        except ImportError:
            raise AbsentError(f"the bindings of NVML are not installed: {INSTALL}") from None
        try:
            library.nvmlInit()
        except library.NVMLError as error:
            raise AbsentError(f"NVML: {error} (is the NVIDIA driver loaded?)") from error
        self._library = library
        for index in range(library.nvmlDeviceGetCount()):
            handle = library.nvmlDeviceGetHandleByIndex(index)
            bus = library.nvmlDeviceGetPciInfo(handle).busId
            self._handles[pci_address(bus.decode() if isinstance(bus, bytes) else bus)] = handle
        self._unknown = ()
        try:
            self._events = library.nvmlEventSetCreate()
            for handle in self._handles.values():
                library.nvmlDeviceRegisterEvents(handle, library.nvmlEventTypeXidCriticalError, self._events)
        except library.NVMLError as error:
            self._events, self._unknown = None, (f"Xids through NVML: {error}",)

    def _xids(self) -> dict[str, tuple[int, ...]]:
        """Those that have happened since the last reading, without waiting for any."""
        found: dict[str, tuple[int, ...]] = {}
        if self._events is None:
            return found
        library = self._library
        for _ in range(MOST_EVENTS):
            try:
                event = library.nvmlEventSetWait_v2(self._events, 0)
            except library.NVMLError:  # a timeout: no more of them
                break
            bus = library.nvmlDeviceGetPciInfo(event.device).busId
            address = pci_address(bus.decode() if isinstance(bus, bytes) else bus)
            found[address] = (*found.get(address, ()), int(event.eventData))
        return found

    def _gpu(self, address: str, handle: Any, happened: tuple[int, ...]) -> Gpu:
        library = self._library
        lost = (library.NVML_ERROR_GPU_IS_LOST, getattr(library, "NVML_ERROR_RESET_REQUIRED", 16))
        gone = ""

        def ask(what: Callable[[], Any]) -> Any:
            """None for what this GPU or driver does not tell."""
            nonlocal gone
            try:
                return what()
            except library.NVMLError as error:
                if error.value in lost:
                    gone = str(error)
                return None

        temperature = ask(lambda: library.nvmlDeviceGetTemperature(handle, library.NVML_TEMPERATURE_GPU))
        slowdown = ask(
            lambda: library.nvmlDeviceGetTemperatureThreshold(handle, library.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN)
        )
        shutdown = ask(
            lambda: library.nvmlDeviceGetTemperatureThreshold(handle, library.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN)
        )
        errors = ask(
            lambda: library.nvmlDeviceGetTotalEccErrors(
                handle, library.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, library.NVML_VOLATILE_ECC
            )
        )
        rows = ask(lambda: library.nvmlDeviceGetRemappedRows(handle))
        throttle = None
        for name in REASONS:
            if throttle is None and hasattr(library, name):
                throttle = ask(partial(getattr(library, name), handle))
        return Gpu(
            address,
            temperature_c=None if temperature is None else float(temperature),
            slowdown_c=None if slowdown is None else float(slowdown),
            shutdown_c=None if shutdown is None else float(shutdown),
            ecc_uncorrected=errors,
            remap_pending=None if rows is None else bool(rows[2]),
            remap_failed=None if rows is None else bool(rows[3]),
            throttle=throttle,
            xids=happened,
            gone=gone,
        )
