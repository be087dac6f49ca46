"""What `torchpass watch` reads on a host: NVIDIA's library where its bindings are, and a command of the operator's.

A reading is a number or None: what could not be read is neither good nor bad. GPUs go by their PCI addresses.
"""

from __future__ import annotations

import json
import subprocess
from typing import Any

import msgspec

TIMEOUT_S = 10.0
FATAL_XIDS = frozenset({48, 63, 64, 74, 79, 94, 95, 119, 120})
"""Of NVIDIA's list, those that a GPU does not get over, or that a program cannot have caused: uncorrectable memory
errors, rows that cannot be remapped, NVLink, fallen off the bus, the system processor hangs."""
MOST_EVENTS = 64


class Reading(msgspec.Struct, frozen=True):
    """`what`: temperature_c, ecc, xid or hook; `accelerator` empty: the host."""

    what: str
    value: float | None
    accelerator: str = ""
    words: str = ""


class Hook:
    """A program: exit status 0: well; 1: move what is here away; anything else: it could not tell.

    Its output, if it is JSON like {"accelerator": "0000:3b:00.0", "why": "..."}, names one; else its first line is the
    reason."""

    def __init__(self, argv: tuple[str, ...]) -> None:
        self._argv = argv

    def read(self) -> list[Reading]:
        try:
            done = subprocess.run(self._argv, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            return [Reading("hook", None, words=str(error))]
        first = (done.stdout.strip() or done.stderr.strip()).partition("\n")[0]
        accelerator, words = _named(first)
        value = {0: 0.0, 1: 1.0}.get(done.returncode)
        return [Reading("hook", value, accelerator, words or f"{self._argv[0]}: exit status {done.returncode}")]


def _named(line: str) -> tuple[str, str]:
    try:
        said = json.loads(line)
        return str(said.get("accelerator", "")), str(said.get("why", ""))
    except (ValueError, AttributeError):
        return "", line


class Nvml:
    """Temperatures, uncorrectable memory errors since this began, and fatal Xids since the last reading."""

    def __init__(self) -> None:
        """ImportError without the bindings (pip install 'linkpass[nvml]'), OSError without the driver's library."""
        import pynvml

        self._library: Any = pynvml
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise OSError(f"NVIDIA's library: {error}") from None
        self._handles: dict[str, Any] = {}
        self._ecc: dict[str, int] = {}
        self._events = pynvml.nvmlEventSetCreate()
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            bus = pynvml.nvmlDeviceGetPciInfo(handle).busId
            self._handles[bus.decode() if isinstance(bus, bytes) else str(bus)] = handle
            self._ask(pynvml.nvmlDeviceRegisterEvents, handle, pynvml.nvmlEventTypeXidCriticalError, self._events)

    def read(self) -> list[Reading]:
        library, xids = self._library, self._xids()
        found = []
        for address, handle in self._handles.items():
            degrees = self._ask(library.nvmlDeviceGetTemperature, handle, library.NVML_TEMPERATURE_GPU)
            found.append(Reading("temperature_c", degrees, address))
            errors = self._ask(
                library.nvmlDeviceGetTotalEccErrors, handle, library.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
                library.NVML_VOLATILE_ECC,
            )  # fmt: skip
            if errors is not None:
                errors -= self._ecc.setdefault(address, errors)
            found.append(Reading("ecc", errors, address))
            seen = xids.get(address)
            found.append(Reading("xid", float(bool(seen)), address, f"Xid {seen}" if seen else ""))
        return found

    def _xids(self) -> dict[str, int]:
        found = {}
        for _ in range(MOST_EVENTS):
            event = self._ask(self._library.nvmlEventSetWait_v2, self._events, 0)
            if event is None:
                break
            if event.eventData in FATAL_XIDS:
                bus = self._library.nvmlDeviceGetPciInfo(event.device).busId
                found[bus.decode() if isinstance(bus, bytes) else str(bus)] = int(event.eventData)
        return found

    def _ask(self, call: Any, *arguments: Any) -> Any:
        """None when this device does not have it, or cannot say it now."""
        try:
            return call(*arguments)
        except self._library.NVMLError:
            return None
