"""The RDMA trees of real drivers: every device, port and counter file is understood."""

from __future__ import annotations

from pathlib import Path

import pytest

from rdma.counters.reading import PortReader
from rdma.devices import Rate, devices
from rdma.sysfs import Unknown


@pytest.fixture
def root(cases: Path) -> Path:
    return cases / "sysfs/sys"


def test_devices_and_ports(root: Path) -> None:
    found = {device.name: device for device in devices(root)}
    assert sorted(found) == ["hfi1_0", "mlx4_0", "mlx5_0"]
    assert [(port.name, port.protocol, port.state, port.rate) for one in found.values() for port in one.ports] == [
        ("hfi1_0/1", "InfiniBand", "ACTIVE", Rate(100e9, 4, "EDR")),
        ("mlx4_0/1", "InfiniBand", "ACTIVE", Rate(40e9, 4, "QDR")),
        ("mlx4_0/2", "InfiniBand", "ACTIVE", Rate(40e9, 4, "QDR")),
        ("mlx5_0/1", "InfiniBand", "ACTIVE", Rate(25e9, 1, "EDR")),
    ]
    assert [found[name].firmware for name in sorted(found)] == ["1.27.0", "2.31.5050", "14.28.2006"]
    assert all(one.driver == "" for one in found.values())


def test_every_counter_file_has_a_row_and_every_number_is_read(root: Path) -> None:
    for device in devices(root):
        for port in device.ports:
            with PortReader(port) as reader:
                assert reader.strange == ()
                files = [f for folder in ("counters", "hw_counters") for f in (port.folder / folder).glob("*")]
                named = {file.name for file in files} - {"lifespan"}
                assert {row.file for row in reader.rows} == named
                reader.read(1.0)
                totals = reader.totals()
                for row in reader.rows:
                    text = (port.folder / row.folder / row.file).read_text().strip()
                    if text.isdigit():
                        assert totals[row.name] == int(text) * row.multiplier, row.file
                    else:
                        assert isinstance(totals[row.name], Unknown), row.file
                assert all(not value or isinstance(value, Unknown) for value in reader.read(2.0).counted.values())
