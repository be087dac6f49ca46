"""Optical modules: what published memories say, every value of ones laid out as the specifications say, and that bytes
of any kind tell no number for a page that was not read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from module_pages import (
    A2,
    PAGE_1,
    PAGE_2,
    PAGE_3,
    PAGE_11,
    QSFP28_LOWER,
    SFP,
    SFP_MANGLED,
    UPPER,
    osfp,
    page,
    qsfp28,
    words,
)

from rdma.ethernet.module import KINDS, LOWER, NO_LIGHT_DBM, Half, Lane, Memory, Module, Range, parse, power_dbm, wanted
from rdma.sysfs import Unknown

REFUSED = Unknown("refused", "Input/output error")


def module(memory: Memory) -> Module:
    told = parse(memory)
    assert isinstance(told, Module)
    return told


def limits(told: Module) -> tuple[object, ...]:
    return (
        told.temperature_limits_c, told.voltage_limits_v, told.receive_power_limits_dbm,
        told.transmit_power_limits_dbm, told.bias_limits_ma,
    )  # fmt: skip


def numbers(told: Module) -> list[float]:
    """All that it tells as numbers."""
    values = [told.temperature_c, told.voltage_v, *limits(told)]
    values += [
        value for lane in told.lanes for value in (lane.receive_power_dbm, lane.transmit_power_dbm, lane.bias_ma)
    ]
    return [value for value in values if not isinstance(value, Unknown)]  # type: ignore[misc]


def test_a_published_sfp_says_that_it_gets_no_light() -> None:
    assert wanted(SFP[LOWER]) == (A2,)
    told = module(SFP)
    assert (told.kind, told.specification, told.voltage_v) == ("SFP", "SFF-8472", 3.4272)
    assert told.temperature_c == pytest.approx(35.34, abs=0.01)
    (lane,) = told.lanes
    assert lane.bias_ma == pytest.approx(8.688)
    assert lane.transmit_power_dbm == pytest.approx(-2.38, abs=0.01)
    assert lane.receive_power_dbm == pytest.approx(-26.78, abs=0.01)
    assert told.temperature_limits_c == Range(93, -13, 88, -8)
    assert told.receive_power_limits_dbm == Range(
        0.0, -20.0, pytest.approx(-1.0, abs=0.01), pytest.approx(-18.01, abs=0.01)
    )


def test_a_module_that_a_card_shows_mangled_tells_nothing_rather_than_rubbish() -> None:
    assert wanted(SFP_MANGLED[LOWER]) == ()
    assert numbers(module(SFP_MANGLED)) == []


def test_a_published_qsfp28_tells_what_its_lower_page_holds() -> None:
    assert wanted(QSFP28_LOWER) == (UPPER, PAGE_3)
    told = module({LOWER: QSFP28_LOWER, UPPER: page(b220=0x0C), PAGE_3: REFUSED})
    assert (told.kind, told.voltage_v) == ("QSFP28", 3.3365)
    assert told.temperature_c == pytest.approx(42.71, abs=0.01)
    assert [round(lane.receive_power_dbm, 2) for lane in told.lanes] == [-0.67, -0.1, -1.19, -1.23]
    assert [round(lane.transmit_power_dbm, 2) for lane in told.lanes] == [-1.23, -1.44, -0.67, -0.38]
    assert [lane.bias_ma for lane in told.lanes] == [pytest.approx(47.17)] * 4
    assert limits(told) == (REFUSED,) * 5


def test_without_the_page_that_says_what_is_measured_no_light_is_told() -> None:
    told = module({LOWER: QSFP28_LOWER, UPPER: REFUSED})
    assert told.voltage_v == 3.3365
    assert [lane.receive_power_dbm for lane in told.lanes] == [REFUSED] * 4


def test_every_value_of_sff_8636() -> None:
    told = module(qsfp28())
    assert (told.temperature_c, told.voltage_v) == (40.0, 3.3)
    assert told.lanes == tuple(Lane(n, 0.0, pytest.approx(-3.0103, abs=1e-4), 40.0) for n in (1, 2, 3, 4))
    assert told.temperature_limits_c == Range(75, -5, 70, 0)
    assert told.voltage_limits_v == Range(3.63, 2.97, 3.465, 3.135)
    assert told.bias_limits_ma == Range(100, 10, 90, 20)
    assert told.receive_power_limits_dbm == Range(*map(power_dbm, (34_000, 400, 27_000, 500)))
    assert told.transmit_power_limits_dbm == Range(*map(power_dbm, (35_000, 400, 28_000, 500)))


def test_lanes_that_a_module_does_not_have_are_left_out() -> None:
    assert [lane.number for lane in module(qsfp28(b113=0x0E)).lanes] == [1]
    memory = {**osfp(), UPPER: page(b210=0xF0)}
    assert [lane.number for lane in module(memory).lanes] == [1, 2, 3, 4]


def test_every_value_of_cmis() -> None:
    assert wanted(osfp()[LOWER]) == (UPPER, PAGE_1, PAGE_2, PAGE_11)  # type: ignore[arg-type]
    told = module(osfp())
    assert (told.kind, told.specification) == ("OSFP", "CMIS")
    assert (told.temperature_c, told.voltage_v) == (55.5, 3.3)
    assert told.lanes == tuple(Lane(n, 0.0, pytest.approx(0.9691, abs=1e-4), 80.0) for n in range(1, 9))
    assert told.temperature_limits_c == Range(80, -5, 75, 0)
    assert told.voltage_limits_v == Range(3.63, 2.97, 3.465, 3.135)
    assert told.bias_limits_ma == Range(200, 20, 180, 40)
    assert told.receive_power_limits_dbm == Range(*map(power_dbm, (40_000, 200, 32_000, 300)))
    assert told.transmit_power_limits_dbm == Range(*map(power_dbm, (40_000, 400, 32_000, 500)))


def test_lanes_stand_in_their_order() -> None:
    several = words(*range(1000, 9000, 1000))
    lanes = module(osfp(b154=several, b186=several[::-1][1::2] + several[::-1][::2])).lanes
    assert [lane.transmit_power_dbm for lane in lanes] == [power_dbm(raw) for raw in range(1000, 9000, 1000)]
    lanes = module(qsfp28(b34=words(1, 2, 3, 4), b50=words(5, 6, 7, 8), b42=words(1, 2, 3, 4))).lanes
    assert [lane.receive_power_dbm for lane in lanes] == [power_dbm(raw) for raw in (1, 2, 3, 4)]
    assert [lane.transmit_power_dbm for lane in lanes] == [power_dbm(raw) for raw in (5, 6, 7, 8)]
    assert [lane.bias_ma for lane in lanes] == [0.002, 0.004, 0.006, 0.008]


@pytest.mark.parametrize(
    ("bits", "known"),
    [
        (0x00, (False, False, False)),
        (0x01, (False, False, True)),
        (0x02, (False, True, False)),
        (0x04, (True, False, False)),
    ],
)
def test_what_a_cmis_module_does_not_measure_is_unknown(bits: int, known: tuple[bool, bool, bool]) -> None:
    lane = module({**osfp(), PAGE_1: page(b159=0x00, b160=bits)}).lanes[0]
    values = (lane.receive_power_dbm, lane.transmit_power_dbm, lane.bias_ma)
    assert tuple(not isinstance(value, Unknown) for value in values) == known


def test_a_module_without_further_pages_tells_its_temperature_and_no_light() -> None:
    flat = page(0, b0=0x18, b2=0x80, w14=0xF600, w16=33000)
    assert wanted(flat) == ()
    told = module({LOWER: flat})
    assert (told.temperature_c, told.voltage_v) == (-10.0, 3.3)
    assert numbers(told) == [-10.0, 3.3]


@pytest.mark.parametrize("kind", [0x0D, 0x11, 0x18, 0x19])
def test_a_passive_cable_measures_nothing(kind: int) -> None:
    lower = page(0, b0=kind, b2=0x80 if kind >= 0x18 else 0x04)
    told = module({LOWER: lower, UPPER: page(b147=0xA0)})
    assert numbers(told) == []
    assert str(told.temperature_c) == "unknown: missing (the module measures nothing: a passive cable)"


def test_a_copper_cable_with_a_supply_has_no_light() -> None:
    told = module({**qsfp28(), UPPER: page(b147=0xC0, b220=0x0C)})
    assert told.temperature_c == 40.0
    assert all(isinstance(lane.receive_power_dbm, Unknown) for lane in told.lanes)


def test_calibration_that_is_left_to_the_host_is_not_guessed() -> None:
    told = module({**SFP, LOWER: SFP[LOWER][:92] + b"\x50" + SFP[LOWER][93:]})
    assert numbers(told) == []
    assert "calibration" in str(told.temperature_c)


def test_a_module_without_limits_has_none() -> None:
    assert all(isinstance(one, Unknown) for one in limits(module({**qsfp28(), PAGE_3: page()})))


def test_no_light_is_the_smallest_step() -> None:
    assert power_dbm(0) == power_dbm(1) == NO_LIGHT_DBM


@pytest.mark.parametrize("memory", [{}, {LOWER: REFUSED}, {LOWER: b""}, {LOWER: b"\xff" * 128}, {LOWER: bytes(128)}])
def test_what_is_no_known_module_is_unknown(memory: Memory) -> None:
    assert isinstance(parse(memory), Unknown)


HALVES = (LOWER, UPPER, A2, PAGE_1, PAGE_2, PAGE_3, PAGE_11)
MEMORY = st.dictionaries(
    st.sampled_from(HALVES), st.one_of(st.binary(min_size=128, max_size=128), st.binary(max_size=128), st.just(REFUSED))
)


@given(st.sampled_from(sorted(KINDS)), MEMORY)
def test_bytes_of_any_kind_are_no_reason_to_stop(kind: int, memory: dict[Half, bytes | Unknown]) -> None:
    lower = memory.get(LOWER)
    if isinstance(lower, bytes):
        memory[LOWER] = bytes([kind]) + lower[1:]
        wanted(memory[LOWER])  # type: ignore[arg-type]
    parse(memory)


LOST = {
    ("SFF-8636", PAGE_3): ("limits",),
    ("SFF-8636", UPPER): ("lanes",),
    ("CMIS", PAGE_1): ("module", "lanes"),
    ("CMIS", PAGE_2): ("limits",),
    ("CMIS", PAGE_11): ("lanes",),
    ("CMIS", UPPER): ("lanes",),
    ("SFF-8472", A2): ("module", "lanes", "limits"),
}
"""What a module cannot tell when one half page was not read, though all others are full."""


@given(st.sampled_from(sorted(LOST)), st.data())
def test_an_absent_page_tells_no_number(what: tuple[str, Half], data: st.DataObject) -> None:
    specification, absent = what
    kind = data.draw(st.sampled_from([number for number, one in KINDS.items() if one[1] == specification]))
    full = {half: data.draw(st.binary(min_size=128, max_size=128)) for half in HALVES}
    full[LOWER] = bytes([kind]) + full[LOWER][1:2] + b"\0" + full[LOWER][3:]  # not flat
    told = module({half: raw for half, raw in full.items() if half != absent})
    for part in LOST[what]:
        if part == "module":
            assert isinstance(told.temperature_c, Unknown)
            assert isinstance(told.voltage_v, Unknown)
        elif part == "limits":
            assert all(isinstance(one, Unknown) for one in limits(told))
        else:
            every = [(one.receive_power_dbm, one.transmit_power_dbm, one.bias_ma) for one in told.lanes]
            assert all(isinstance(value, Unknown) for lane in every for value in lane)
