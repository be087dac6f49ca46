"""What an optical module says of itself: temperature, supply, light sent and received, and its maker's limits. Pure.

    SFF-8636 (QSFP+, QSFP28)  6.2 lower page 00h: bytes 22-23 temperature, 26-27 supply, 34-57 channels, 113 which there
                              are; 6.3 upper page 00h: 147 technology, 220 monitors; 6.6 page 03h: 128-199 limits
    CMIS 5 (QSFP-DD, OSFP)    8.2 lower page: bytes 14-17; 8.3 page 00h: 210 which lanes there are; 8.4 page 01h:
                              159-160 monitors; 8.5 page 02h: 128-199 limits; 8.9 page 11h: 154-201 lanes
    SFF-8472 (SFP+, SFP28)    8 address A0h: byte 92 monitors; 9 address A2h: 0-39 limits, 96-105 values

Units in all three: 1/256 degrees, 100 uV, 2 uA, 0.1 uW. A page that could not be read and a value that the module does
not measure are unknown. A supply of 0 V runs no module: such a one measures nothing (a passive cable).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final, Literal

import msgspec

from rdma.sysfs import Unknown

Specification = Literal["SFF-8636", "CMIS", "SFF-8472"]
Number = float | Unknown

HALF_PAGE: Final = 128
"""What is read at once: some modules answer a shorter read with zeros."""
NO_LIGHT_DBM: Final = -40.0
"""0.1 uW, the smallest step of a power reading; told for 0 as well."""

KINDS: Final[Mapping[int, tuple[str, Specification]]] = {
    0x03: ("SFP", "SFF-8472"), 0x0D: ("QSFP+", "SFF-8636"), 0x11: ("QSFP28", "SFF-8636"),
    0x18: ("QSFP-DD", "CMIS"), 0x19: ("OSFP", "CMIS"), 0x1B: ("DSFP", "CMIS"), 0x1E: ("QSFP with CMIS", "CMIS"),
    0x1F: ("SFP-DD with CMIS", "CMIS"), 0x20: ("SFP+ with CMIS", "CMIS"),
}  # fmt: skip
"""SFF-8024, table 4-1: byte 0 of every module."""


class Half(msgspec.Struct, frozen=True, order=True):
    """Half a page of a module's memory. `i2c`: 0x50, or 0x51 for SFP diagnostics. Of pages other than 0
    only the upper half exists."""

    page: int = 0
    upper: bool = False
    i2c: int = 0x50


LOWER: Final = Half()
_UPPER: Final = Half(upper=True)
_A2: Final = Half(i2c=0x51)
_PAGE_1, _PAGE_2, _PAGE_3, _PAGE_11 = (Half(page, upper=True) for page in (0x01, 0x02, 0x03, 0x11))

Memory = Mapping[Half, bytes | Unknown]

_UNREAD: Final = Unknown("missing", "the page was not read")
_UNMEASURED: Final = Unknown("missing", "the module does not measure it")
_PASSIVE: Final = Unknown("missing", "the module measures nothing: a passive cable")
_FLAT: Final = Unknown("missing", "the module has no such page")
_NO_LIMITS: Final = Unknown("missing", "the module has no limits")
_EXTERNAL: Final = Unknown("no number", "calibration is left to the host (SFF-8472, 9.4): not supported")


class Range(msgspec.Struct, frozen=True):
    """The maker's limits of a value, in its unit."""

    high_alarm: float
    low_alarm: float
    high_warning: float
    low_warning: float


Limits = Range | Unknown


class Lane(msgspec.Struct, frozen=True):
    """One lane's light and laser; `number` from 1."""

    number: int
    receive_power_dbm: Number
    transmit_power_dbm: Number
    bias_ma: Number


class Module(msgspec.Struct, frozen=True):
    kind: str
    specification: Specification
    temperature_c: Number
    voltage_v: Number
    lanes: tuple[Lane, ...]
    temperature_limits_c: Limits
    voltage_limits_v: Limits
    receive_power_limits_dbm: Limits
    transmit_power_limits_dbm: Limits
    bias_limits_ma: Limits


def wanted(lower: bytes) -> tuple[Half, ...]:
    """What has to be read beside the first half page, by what that says."""
    specification = KINDS.get(lower[0], ("", None))[1] if lower else None
    flat = _byte({LOWER: lower}, LOWER, 2)
    if specification == "SFF-8636":
        return (_UPPER,) if not isinstance(flat, int) or flat & 0x04 else (_UPPER, _PAGE_3)
    if specification == "CMIS":
        return () if not isinstance(flat, int) or flat & 0x80 else (_UPPER, _PAGE_1, _PAGE_2, _PAGE_11)
    if specification == "SFF-8472":
        monitors = _byte({LOWER: lower}, LOWER, 92)
        return (_A2,) if isinstance(monitors, int) and monitors & 0x40 else ()
    return ()


def parse(memory: Memory) -> Module | Unknown:
    """What the pages say; Unknown when it is no kind of module that is known here."""
    identifier = _byte(memory, LOWER, 0)
    if isinstance(identifier, Unknown):
        return identifier
    if identifier not in KINDS:
        return Unknown("no number", f"module of an unknown kind ({identifier:#04x})")
    kind, specification = KINDS[identifier]
    return _PARSERS[specification](kind, memory)


def power_dbm(raw: int) -> float:
    """0.1 uW to dBm (over 1 mW)."""
    return 10 * math.log10(raw / 10_000) if raw else NO_LIGHT_DBM


def _temperature_c(raw: int) -> float:
    return (raw - 0x10000 if raw & 0x8000 else raw) / 256


def _voltage_v(raw: int) -> float:
    return raw / 10_000


def _bias_ma(raw: int) -> float:
    return raw * 0.002


def _byte(memory: Memory, half: Half, at: int) -> int | Unknown:
    """`at` as the specifications count: 128 and more in an upper half."""
    data = memory.get(half, _UNREAD)
    if isinstance(data, Unknown):
        return data
    place = at - 128 if half.upper else at
    return data[place] if 0 <= place < len(data) else _UNREAD


def _word(memory: Memory, half: Half, at: int) -> int | Unknown:
    high, low = _byte(memory, half, at), _byte(memory, half, at + 1)
    if isinstance(high, Unknown):
        return high
    return low if isinstance(low, Unknown) else high << 8 | low


def _value(memory: Memory, half: Half, at: int, unit: Callable[[int], float], *whys: Unknown | None) -> Number:
    """`whys`: it is known from elsewhere that this is not measured; the first that is one."""
    for why in whys:
        if why is not None:
            return why
    raw = _word(memory, half, at)
    return raw if isinstance(raw, Unknown) else unit(raw)


def _range(memory: Memory, half: Half, at: int, unit: Callable[[int], float]) -> Limits:
    """High alarm, low alarm, high warning, low warning; without any they are all zero."""
    raw = [_word(memory, half, at + 2 * index) for index in range(4)]
    known = [one for one in raw if isinstance(one, int)]
    if len(known) < 4:
        return next(one for one in raw if isinstance(one, Unknown))
    return Range(*map(unit, known)) if any(known) else _NO_LIMITS


def _passive(memory: Memory, half: Half, supply: int) -> Unknown | None:
    return _PASSIVE if _word(memory, half, supply) == 0 else None


def _unless(bits: int | Unknown, bit: int) -> Unknown | None:
    """None when the module says that it measures something."""
    if isinstance(bits, Unknown):
        return bits
    return None if bits & bit else _UNMEASURED


def _sff8636(kind: str, memory: Memory) -> Module:
    passive = _passive(memory, LOWER, 26)
    absent = _byte(memory, LOWER, 113)
    technology = _byte(memory, _UPPER, 147)
    dark = technology if isinstance(technology, Unknown) else _UNMEASURED if technology >= 0xA0 else None  # copper
    no_power = _unless(_byte(memory, _UPPER, 220), 0x04)
    return Module(
        kind, "SFF-8636",
        _value(memory, LOWER, 22, _temperature_c, passive), _value(memory, LOWER, 26, _voltage_v, passive),
        tuple(
            Lane(
                lane + 1,
                _value(memory, LOWER, 34 + 2 * lane, power_dbm, passive, dark),
                _value(memory, LOWER, 50 + 2 * lane, power_dbm, passive, dark, no_power),
                _value(memory, LOWER, 42 + 2 * lane, _bias_ma, passive, dark),
            )
            for lane in range(4)
            if not isinstance(absent, int) or not absent & 1 << lane
        ),
        _range(memory, _PAGE_3, 128, _temperature_c), _range(memory, _PAGE_3, 144, _voltage_v),
        _range(memory, _PAGE_3, 176, power_dbm), _range(memory, _PAGE_3, 192, power_dbm),
        _range(memory, _PAGE_3, 184, _bias_ma),
    )  # fmt: skip


def _cmis(kind: str, memory: Memory) -> Module:
    passive = _passive(memory, LOWER, 16)
    module, lanes = _byte(memory, _PAGE_1, 159), _byte(memory, _PAGE_1, 160)
    absent = _byte(memory, _UPPER, 210)
    flat = _byte(memory, LOWER, 2)
    if isinstance(flat, int) and flat & 0x80:  # no page says which monitors there are: the module's own are shown
        module, lanes, absent = 0x03, _FLAT, _FLAT
    which = absent if isinstance(absent, Unknown) else None
    scale = {0x08: 2, 0x10: 4}.get(lanes & 0x18, 1) if isinstance(lanes, int) else 1

    def bias_ma(raw: int) -> float:
        return _bias_ma(raw) * scale

    return Module(
        kind, "CMIS",
        _value(memory, LOWER, 14, _temperature_c, passive, _unless(module, 0x01)),
        _value(memory, LOWER, 16, _voltage_v, passive, _unless(module, 0x02)),
        tuple(
            Lane(
                lane + 1,
                _value(memory, _PAGE_11, 186 + 2 * lane, power_dbm, passive, which, _unless(lanes, 0x04)),
                _value(memory, _PAGE_11, 154 + 2 * lane, power_dbm, passive, which, _unless(lanes, 0x02)),
                _value(memory, _PAGE_11, 170 + 2 * lane, bias_ma, passive, which, _unless(lanes, 0x01)),
            )
            for lane in range(8)
            if not isinstance(absent, int) or not absent & 1 << lane
        ),
        _range(memory, _PAGE_2, 128, _temperature_c), _range(memory, _PAGE_2, 136, _voltage_v),
        _range(memory, _PAGE_2, 192, power_dbm), _range(memory, _PAGE_2, 176, power_dbm),
        _range(memory, _PAGE_2, 184, bias_ma),
    )  # fmt: skip


def _sff8472(kind: str, memory: Memory) -> Module:
    monitors = _byte(memory, LOWER, 92)
    missing = _unless(monitors, 0x40)
    external = _EXTERNAL if isinstance(monitors, int) and not monitors & 0x20 else None
    passive = _passive(memory, _A2, 98)

    def limits(at: int, unit: Callable[[int], float]) -> Limits:
        for why in (missing, external):
            if why is not None:
                return why
        return _range(memory, _A2, at, unit)

    def value(at: int, unit: Callable[[int], float]) -> Number:
        return _value(memory, _A2, at, unit, missing, external, passive)

    return Module(
        kind, "SFF-8472", value(96, _temperature_c), value(98, _voltage_v),
        (Lane(1, value(104, power_dbm), value(102, power_dbm), value(100, _bias_ma)),),
        limits(0, _temperature_c), limits(8, _voltage_v), limits(32, power_dbm), limits(24, power_dbm),
        limits(16, _bias_ma),
    )  # fmt: skip


_PARSERS: Final[Mapping[Specification, Callable[[str, Memory], Module]]] = {
    "SFF-8636": _sff8636, "CMIS": _cmis, "SFF-8472": _sff8472,
}  # fmt: skip
