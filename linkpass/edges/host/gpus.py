"""What a GPU's own figures say against it, whoever reads them (NVML, or the exporter of DCGM).

Limits are the GPU's own where it tells them; a temperature without a limit is a figure and no trouble. Counters are
compared with the reading before.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from linkpass.edges.host import xids
from linkpass.edges.host.reading import Place, Trouble

THROTTLES: Final = ((0x8, "hardware slowdown"), (0x40, "heat"), (0x80, "power brake"))
"""Bits of the clock event reasons that mean trouble (nvml.h, nvmlClocksEventReason*); power caps and idle do not."""


class Gpu(msgspec.Struct, frozen=True):
    """One GPU at one moment; None: not known. `address`: PCI, as `patterns.pci_address` writes it."""

    address: str
    temperature_c: float | None = None
    slowdown_c: float | None = None
    shutdown_c: float | None = None
    ecc_uncorrected: int | None = None
    """Since the driver was loaded."""
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    throttle: int | None = None
    xids: tuple[int, ...] = ()
    """Those that happened since the reading before."""
    gone: str = ""
    """Why the driver no longer reaches it; empty: it does."""


def troubles(gpu: Gpu, before: Gpu | None, margin_c: float, forget_s: float) -> Iterator[tuple[Place, Trouble]]:
    """`before`: the reading before this one; None: the first, which only tells what stands."""
    for number in gpu.xids:
        severity, meaning = xids.meaning(number)
        lasts_s = None if severity == "fatal" else forget_s
        yield (gpu.address, f"Xid {number}"), Trouble(severity, meaning, happened=True, lasts_s=lasts_s)
    if gpu.gone:
        yield (gpu.address, "unreachable"), Trouble("fatal", gpu.gone)
        return
    if gpu.temperature_c is not None:
        if gpu.shutdown_c is not None and gpu.temperature_c >= gpu.shutdown_c - margin_c:
            why = f"{gpu.temperature_c:.0f} °C, it switches off at {gpu.shutdown_c:.0f} °C"
            yield (gpu.address, "temperature"), Trouble("fatal", why)
        elif gpu.slowdown_c is not None and gpu.temperature_c >= gpu.slowdown_c - margin_c:
            why = f"{gpu.temperature_c:.0f} °C, it slows down at {gpu.slowdown_c:.0f} °C"
            yield (gpu.address, "temperature"), Trouble("degraded", why)
    reasons = [words for bit, words in THROTTLES if gpu.throttle is not None and gpu.throttle & bit]
    if reasons:
        yield (gpu.address, "throttled"), Trouble("degraded", f"its clocks are held down by {', '.join(reasons)}")
    if gpu.remap_failed:
        yield (gpu.address, "row remapping"), Trouble("fatal", "a row of memory could not be replaced")
    elif gpu.remap_pending:
        yield (gpu.address, "row remapping"), Trouble("degraded", "a row of memory is replaced with the next reset")
    if before is not None and gpu.ecc_uncorrected is not None and before.ecc_uncorrected is not None:
        more = gpu.ecc_uncorrected - before.ecc_uncorrected
        if more > 0:
            # Whether the GPU can go on is told by an Xid (94 or 95), which is fatal by itself where it cannot.
            why = f"{more} uncorrectable memory error(s)"
            yield (gpu.address, "memory"), Trouble("degraded", why, happened=True, lasts_s=forget_s)


def figures(gpu: Gpu) -> Iterator[tuple[Place, float]]:
    if gpu.temperature_c is not None:
        yield (gpu.address, "temperature_c"), gpu.temperature_c
    if gpu.ecc_uncorrected is not None:
        yield (gpu.address, "ecc_uncorrected"), float(gpu.ecc_uncorrected)


def not_shown(gpu: Gpu) -> Iterator[Place]:
    """Troubles that this reading could not have shown: what was told of them before stands."""
    for what, value in (
        ("temperature", gpu.temperature_c), ("throttled", gpu.throttle), ("row remapping", gpu.remap_failed),
    ):  # fmt: skip
        if value is None:
            yield gpu.address, what
