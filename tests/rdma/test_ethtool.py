"""Drivers' statistics: asked of a real kernel's devices, and named for the drivers that RDMA runs over."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator

import pytest

from lab.netns import namespace
from rdma.ethtool import PRIORITIES, STATISTICS, DeviceStatistics, NotToldError, known, paused_ratio
from rdma.sysfs import Unknown


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


def test_statistics_are_found_by_driver_and_priority() -> None:
    names = ["rx_packets", "rx_prio0_pause", "rx_prio3_pause", "rx_prio3_pause_duration", "rx_discards_phy"]
    assert [(one.index, one.row.name, one.priority) for one in known("mlx5_core", names)] == [
        (1, "pauses_received", 0), (2, "pauses_received", 3), (3, "paused_us", 3), (4, "port_receive_discards", None),
    ]  # fmt: skip
    assert [one.counter().name for one in known("mlx5_core", names)] == [
        "pauses_received_priority_0", "pauses_received_priority_3", "paused_us_priority_3", "port_receive_discards",
    ]  # fmt: skip
    assert known("e1000e", names) == []


def test_every_statistic_of_a_driver_is_named_once() -> None:
    places = [(one.driver, one.file) for one in STATISTICS]
    names = [(one.driver, one.name) for one in STATISTICS]
    assert len(set(places)) == len(places)
    assert len(set(names)) == len(names)
    assert all(one.meaning and one.source for one in STATISTICS)
    assert all(one.file % 0 != one.file % (PRIORITIES - 1) for one in STATISTICS if "%d" in one.file)


def test_pauses_are_a_share_of_time() -> None:
    assert paused_ratio(50_000, 1.0) == 0.05
    assert paused_ratio(3_000_000, 1.0) == 1.0  # several readings may fall into one update of the device
    assert isinstance(paused_ratio(1, 0.0), Unknown)
    assert paused_ratio(Unknown("missing"), 1.0) == Unknown("missing")
