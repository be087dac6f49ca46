"""From what an Ethernet port and its module tell to what that says. Pure. The formulas are in the manner of
`rdma.counters.evidence`, and share its thresholds.

A pause is congestion: of the neighbour when we are stopped, of this host when it stops the neighbour. Broken bits and
light out of range are a sick link, often before anything is lost.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Final, Literal

from rdma.counters.evidence import Figure, Finding, Thresholds, ratio
from rdma.counters.reading import Window
from rdma.ethernet.module import Limits, Module, Number, Range
from rdma.ethernet.table import PRIORITIES
from rdma.sysfs import Unknown

_PFC: Final = (
    "IEEE 802.1Q, 36 (priority-based flow control); Guo et al., RDMA over Commodity Ethernet at Scale, SIGCOMM 2016"
)
_LINK_PAUSE: Final = "IEEE 802.3, annex 31B"
_FEC: Final = "IEEE 802.3, 91.5 and 30.5.1.1.18"
_MLX5: Final = "Linux, Documentation/.../mlx5/counters.rst"
_OPTICS: Final = "the module's own limits: SFF-8636 page 03h, CMIS page 02h, SFF-8472 A2h"


def time_ratio(window: Window, name: str) -> float | Unknown:
    """Microseconds counted over microseconds passed; a device that tells late may tell more than have passed."""
    spent_us = window.of(name)
    if isinstance(spent_us, Unknown):
        return spent_us
    return min(1.0, spent_us / (window.seconds * 1e6)) if window.seconds > 0 else Unknown("first reading")


def _paused(name: str, counted: str, says: str, source: str) -> Figure:
    return Figure(
        name, "congestion", lambda w, _: time_ratio(w, counted), lambda t: t.paused_ratio, says, source
    )  # fmt: skip


def _priority(number: int) -> tuple[tuple[Figure, str], ...]:
    """Figures, and what each is made of."""
    of = f"priority_{number}"
    return (
        (_paused(f"paused_ratio_{of}", f"paused_us_{of}",
                 f"the neighbour does not let us send priority {number}: it has no room", _PFC), f"paused_us_{of}"),
        (_paused(f"pausing_ratio_{of}", f"pausing_us_{of}",
                 f"we do not let the neighbour send priority {number}: this host is too slow", _PFC),
         f"pausing_us_{of}"),
    )  # fmt: skip


OF_PRIORITY: Final = tuple(_priority(number) for number in range(PRIORITIES))
_DURATIONS: Final = {name for pair in OF_PRIORITY for _, name in pair}

FIGURES: Final = (
    _paused("link_paused_ratio", "link_paused_us", "the neighbour does not let us send: it has no room", _LINK_PAUSE),
    _paused("link_pausing_ratio", "link_pausing_us", "we do not let the neighbour send: this host is too slow",
            _LINK_PAUSE),
    Figure("receive_discard_ratio", "loss", lambda w, _: ratio(w, "port_receive_discards", "received_packets"),
           lambda t: t.discard_ratio, "packets are dropped on arrival: this host is too slow", _MLX5),
    Figure("uncorrectable_blocks_per_s", "sick link", lambda w, _: w.per_s("fec_uncorrectable_blocks"),
           lambda t: t.uncorrectable_blocks_per_s, "blocks arrive that error correction cannot repair", _FEC),
    Figure("corrected_bit_ratio", "sick link", lambda w, _: ratio(w, "fec_corrected_bit_errors", "line_bits"),
           lambda t: t.corrected_bit_ratio, "error correction has much to repair: losses are near", f"{_MLX5}; {_FEC}"),
    Figure("symbol_errors_per_s", "sick link", lambda w, _: w.per_s("symbol_errors"),
           lambda t: t.symbol_errors_per_s, "packets arrive with broken symbols", "IEEE 802.3, 30.3.2.1.5"),
    Figure("crc_error_ratio", "sick link", lambda w, _: ratio(w, "crc_errors", "received_packets"),
           lambda t: t.receive_error_ratio, "packets arrive broken", "IEEE 802.3, 30.3.1.1.6"),
    Figure("pause_storms_per_s", "failed", lambda w, _: w.per_s("pause_storms"), lambda _: 0.0,
           "this host stopped the neighbour for so long that its device gave up pausing", f"{_MLX5}; {_PFC}"),
)  # fmt: skip
"""Of the whole port. Pause frames without durations have no figure: one frame stops the port for anything between no
time and 65,535 quanta."""


def figures_of(window: Window) -> tuple[Figure, ...]:
    """Those of the port, and of the priorities of which the device tells how long they were paused."""
    return _figures_of(frozenset(_DURATIONS & window.counted.keys()))


@functools.lru_cache(maxsize=64)
def _figures_of(told: frozenset[str]) -> tuple[Figure, ...]:
    return (*FIGURES, *(figure for pair in OF_PRIORITY for figure, name in pair if name in told))


def module_findings(device: str, module: Module, limits: Thresholds) -> Iterator[Finding]:
    """What of a module is beyond its maker's warning limits, or nearer than the margin. A lane whose laser is off is
    not in use: many modules for one wavelength have four lanes on paper."""
    margin_c, margin_db = limits.module_margin_c, limits.optical_margin_db
    beyond = _beyond(module.temperature_c, module.temperature_limits_c, margin_c)
    if beyond is not None:
        says = "the module is too hot" if beyond[0] == "high" else "the module is too cold"
        yield Finding(device, "sick link", "module_temperature_c", *beyond[1:], says, _OPTICS)
    for lane in module.lanes:
        if not isinstance(lane.bias_ma, Unknown) and lane.bias_ma == 0:
            continue
        for what, power, allowed, light in (
            ("receive_power_dbm", lane.receive_power_dbm, module.receive_power_limits_dbm, "light received"),
            ("transmit_power_dbm", lane.transmit_power_dbm, module.transmit_power_limits_dbm, "light sent"),
        ):
            beyond = _beyond(power, allowed, margin_db)
            if beyond is not None:
                says = f"the {light} on lane {lane.number} is too {'strong' if beyond[0] == 'high' else 'weak'}"
                yield Finding(device, "sick link", f"{what}_lane_{lane.number}", *beyond[1:], says, _OPTICS)


def _beyond(value: Number, limits: Limits, margin: float) -> tuple[Literal["high", "low"], float, float] | None:
    """On which side of its limits a value is, and the limit with the margin. A limit of a side that is no limit (both
    the same) is none."""
    if isinstance(value, Unknown) or not isinstance(limits, Range) or limits.high_warning <= limits.low_warning:
        return None
    high, low = limits.high_warning - margin, limits.low_warning + margin
    if value > high:
        return "high", value, high
    return ("low", value, low) if value < low else None
