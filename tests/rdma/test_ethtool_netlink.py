"""The kernel's standard statistics: a real kernel asked about virtual devices, and the answers of one that counts."""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import ethtool_kernel
import pytest
from ethtool_kernel import answer
from hypothesis import given
from hypothesis import strategies as st

from lab.netns import namespace
from rdma.ethernet.genl import NO_DEVICE, PARTS, EthtoolNetlink, Layout, Part, numbers, question
from rdma.ethernet.module import Half
from rdma.netlink import attributes, encode
from rdma.sysfs import Unknown

NOT_TOLD = Unknown("missing", "the driver does not tell it")


def told(part: Part, data: bytes) -> dict[str, int]:
    layout = Layout(lambda given: numbers(part, given))
    values = layout.values(data)
    return dict(zip(layout.names, values, strict=True))


@pytest.fixture
def wire() -> Iterator[str]:
    with ethtool_kernel.veth("genl") as name:
        yield name


@pytest.mark.netns
def test_what_a_virtual_device_does_not_count_is_unknown_and_no_zero(wire: str) -> None:
    with namespace.inside(wire), EthtoolNetlink() as kernel:
        assert kernel.ask(question("pause", "far0")) == NOT_TOLD
        assert kernel.ask(question("fec", "far0")) == NOT_TOLD
        groups = kernel.ask(question("statistics", "far0"))
        assert isinstance(groups, bytes)  # the four groups, and nothing in them
        assert [kind for kind, _ in attributes(groups)].count(4) == 4
        assert told("statistics", groups) == {}
        for half in (Half(), Half(upper=True), Half(page=0x11, upper=True), Half(i2c=0x51)):
            assert kernel.memory("far0", half) == NOT_TOLD


@pytest.mark.netns
def test_a_device_that_is_not_there_is_said_to_be_missing(wire: str) -> None:
    with namespace.inside(wire), EthtoolNetlink() as kernel:
        subprocess.run(["ip", "link", "del", "near0"], check=True)
        assert [kernel.ask(question(part, "far0")) for part in PARTS] == [NO_DEVICE] * 3
        assert kernel.memory("far0", Half()) == NO_DEVICE


@pytest.mark.netns
def test_modules_are_refused_to_who_has_no_right(wire: str) -> None:
    ask = (
        "from rdma.ethernet.genl import *\n"
        "with EthtoolNetlink() as kernel: print(kernel.memory('far0', Half()), kernel.ask(question('pause', 'far0')))"
    )
    bare = ["setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin", sys.executable, "-c", ask]
    done = subprocess.run(
        ["ip", "netns", "exec", wire, *bare], check=True, capture_output=True, text=True, cwd=Path(__file__).parents[2]
    )
    assert done.stdout.strip() == f"unknown: refused (it needs CAP_NET_ADMIN) {NOT_TOLD}"


def test_every_number_of_a_kernels_answers_is_found() -> None:
    assert told("pause", answer("pause")) == {"link_pauses_sent": 2, "link_pauses_received": 1}
    assert told("fec", answer("fec")) == {
        "fec_corrected_blocks": 1234567, "fec_uncorrectable_blocks": 4, "fec_corrected_bit_errors": 100,
        "fec_lane_corrected_bit_errors_lane_0": 10, "fec_lane_corrected_bit_errors_lane_1": 20,
        "fec_lane_corrected_bit_errors_lane_2": 30, "fec_lane_corrected_bit_errors_lane_3": 40,
    }  # fmt: skip
    assert told("statistics", answer("statistics")) == {
        "symbol_errors": 17, "sent_packets": 0x1122334455667788, "received_packets": 1_000_000, "crc_errors": 3,
        "sent_bytes": 9, "internal_transmit_discards": 5, "received_bytes": 64_000_000,
        "internal_receive_discards": 7, "length_errors": 0, "too_long_packets": 11, "control_packets_sent": 21,
        "control_packets_received": 22, "unknown_control_packets": 23, "undersize_packets": 31, "jabbers": 34,
    }  # fmt: skip


def test_a_driver_that_counts_no_pauses_tells_none() -> None:
    assert told("pause", answer("pause without statistics")) == {}


def test_an_array_without_elements_is_no_zero() -> None:
    empty = encode(5, encode(2, b"") + encode(3, b"") + encode(4, struct.pack("=Q", 7)))
    assert told("fec", empty) == {"fec_corrected_bit_errors": 7}


def test_an_answer_of_another_form_is_learnt_anew() -> None:
    layout = Layout(lambda given: numbers("fec", given))
    one, other = (encode(5, encode(kind, struct.pack("=Q", 5))) for kind in (2, 3))
    assert (layout.values(one), layout.names) == ((5,), ("fec_corrected_blocks",))
    assert (layout.values(other), layout.names) == ((5,), ("fec_uncorrectable_blocks",))


@given(st.sampled_from(PARTS), st.binary(max_size=400))
def test_bytes_of_any_kind_are_no_reason_to_stop(part: Part, data: bytes) -> None:
    for at, _ in numbers(part, data):
        assert 0 <= at <= len(data) - 8
    told(part, data)


@given(st.data(), st.sampled_from(PARTS))
def test_a_recorded_answer_with_other_bytes_tells_no_more_than_it_has(data: st.DataObject, part: Part) -> None:
    raw = bytearray(answer(part))
    for at in data.draw(st.lists(st.integers(0, len(raw) - 1), max_size=6)):
        raw[at] = data.draw(st.integers(0, 255))
    cut = bytes(raw[: data.draw(st.integers(0, len(raw)))])
    assert len(told(part, cut)) <= len(cut) // 12


def test_who_has_not_opened_it_is_told_so() -> None:
    with pytest.raises(RuntimeError, match="open"):
        EthtoolNetlink().ask(question("pause", "lo"))


def test_a_late_answer_is_not_taken_for_the_next_one() -> None:
    with EthtoolNetlink() as kernel:
        ours = kernel._socket
        assert ours is not None
        ours.send(struct.pack("=IHHII", 20 + 8 + 4 + 8, 0x10, 1, 0, 0) + b"\3\1\0\0" + encode(2, b"ethtool\0"))
        assert kernel.ask(question("pause", "lo")) == NOT_TOLD
