"""Drivers' statistics: asked of a real kernel's devices, and named for the drivers that RDMA runs over."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator

import pytest

from lab.netns import namespace
from rdma.ethernet.ioctl import DeviceStatistics, NotToldError
from rdma.ethernet.table import COUNTERS, DRIVERS, PRIORITIES, STATISTICS, known, split


@pytest.fixture
def wire() -> Iterator[str]:
    """A namespace with a pair of virtual Ethernet devices: their driver has statistics of its own."""
    name = f"te-{os.getpid()}-ethtool"
    os.close(namespace.create(name))
    try:
        for words in (
            ["link", "add", "near0", "type", "veth", "peer", "name", "far0"], ["link", "set", "near0", "up"],
            ["link", "set", "far0", "up"], ["addr", "add", "192.0.2.1/24", "dev", "near0"],
            ["neigh", "add", "192.0.2.2", "lladdr", "02:00:00:00:00:02", "dev", "near0"],
        ):  # fmt: skip
            subprocess.run(["ip", "-n", name, *words], check=True)
        yield name
    finally:
        namespace.remove(name)


@pytest.mark.netns
def test_a_real_driver_tells_its_names_and_values(wire: str) -> None:
    with namespace.inside(wire), DeviceStatistics("far0") as device:
        assert device.driver == "veth"
        before = device.read()
        assert before["peer_ifindex"] == socket.if_nametoindex("near0")
        received = [name for name in before if name.startswith("rx_queue_") and name.endswith("_xdp_packets")]
        assert received


@pytest.mark.netns
def test_who_has_nothing_to_tell_says_so(wire: str) -> None:
    with namespace.inside(wire):
        with pytest.raises(NotToldError, match="no network device nothere"):
            DeviceStatistics("nothere").open()
        with pytest.raises(NotToldError, match="lo"):
            DeviceStatistics("lo").open()
        with DeviceStatistics("far0") as device:
            subprocess.run(["ip", "link", "del", "near0"], check=True)
            with pytest.raises(NotToldError, match="no network device far0"):
                device.read()


@pytest.mark.parametrize("wrong", ["", "a" * 16, "a/b", "a b"])
def test_what_is_no_name_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match="no name"):
        DeviceStatistics(wrong)


def test_statistics_are_found_by_driver_priority_and_lane() -> None:
    names = ["rx_packets", "rx_prio0_pause", "rx_prio3_pause", "rx_prio3_pause_duration", "rx_discards_phy",
             "rx_err_lane_2_phy"]  # fmt: skip
    assert [(one.index, one.name) for one in known("mlx5_core", names)] == [
        (1, "pauses_received_priority_0"), (2, "pauses_received_priority_3"), (3, "paused_us_priority_3"),
        (4, "port_receive_discards"), (5, "fec_lane_corrected_bit_errors_lane_2"),
    ]  # fmt: skip
    assert [one.name for one in known("mlx4_en", ["rx_pause_duration_prio_7"])] == ["paused_us_priority_7"]
    assert [one.name for one in known("bnxt_en", ["pfc_pri1_tx_duration_us"])] == ["pausing_us_priority_1"]
    assert [one.name for one in known("ice", ["rx_priority_4_xoff.nic"])] == ["pauses_received_priority_4"]
    assert known("e1000e", names) == []


def test_every_statistic_of_a_driver_is_named_once() -> None:
    places = [(one.driver, one.file) for one in STATISTICS]
    names = [(one.driver, one.name) for one in STATISTICS]
    assert len(set(places)) == len(places)
    assert len(set(names)) == len(names)
    assert all(one.meaning and one.source for one in STATISTICS)
    assert all(one.file_of(0) != one.file_of(PRIORITIES - 1) for one in STATISTICS if one.each)
    assert all(("%d" in one.file) == bool(one.each) for one in STATISTICS)


def test_drivers_that_share_a_name_share_its_unit_and_what_it_is_of() -> None:
    for row in DRIVERS:
        others = [one for one in STATISTICS if one.name == row.name]
        assert {(one.unit, one.each) for one in others} == {(row.unit, row.each)}


def test_a_name_is_taken_apart_as_it_was_put_together() -> None:
    for row in STATISTICS:
        for number in row.numbers():
            name = row.named(number)
            assert split(name) == (row.name, row.each, "" if number is None else str(number))
            assert COUNTERS[name].bits == 64
