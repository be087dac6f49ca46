"""Devices, ports and GIDs from trees as sysfs shows them."""

from __future__ import annotations

from pathlib import Path

import pytest
from sysfs_tree import REFUSED, Tree

from rdma.devices import Gid, Rate, devices, parse_rate
from rdma.sysfs import Unknown


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_a_kernel_without_rdma_has_no_devices(tmp_path: Path) -> None:
    assert devices(tmp_path) == ()


@pytest.mark.parametrize(
    ("node_type", "link_layer", "protocol"),
    [
        ("1: CA", "Ethernet", "RoCE"),
        ("1: CA", "InfiniBand", "InfiniBand"),
        ("4: RNIC", "Ethernet", "iWARP"),
        ("5: usNIC", "Ethernet", "unknown"),
        ("1: CA", "Unknown", "unknown"),
    ],
)
def test_the_protocol_follows_from_node_type_and_link_layer(
    tree: Tree, node_type: str, link_layer: str, protocol: str
) -> None:
    tree.device("x_0", node_type)
    tree.port("x_0", link_layer=link_layer)
    assert [port.protocol for port in devices(tree.root)[0].ports] == [protocol]


def test_an_adapter_on_the_bus_tells_driver_address_and_numa_node(tree: Tree) -> None:
    tree.device("mlx5_0", driver="mlx5_core", pci="0000:9a:00.0", numa=1)
    tree.write("devices/pci0000:00/0000:9a:00.0/net/enp154s0f0np0/mtu", 9000)
    one = devices(tree.root)[0]
    assert (one.driver, one.pci, one.numa_node, one.netdevs) == ("mlx5_core", "0000:9a:00.0", 1, ("enp154s0f0np0",))
    assert (one.guid, one.firmware, one.node_type) == ("0253:00ff:fe12:3456", "28.41.1000", "CA")
    assert one.board == Unknown("missing", "No such file or directory")


def test_a_machine_with_one_memory_has_no_numa_node(tree: Tree) -> None:
    tree.device("mlx5_0", driver="mlx5_core", pci="0000:9a:00.0", numa=-1)
    assert devices(tree.root)[0].numa_node is None


def test_soft_roce_sits_on_a_network_device(tree: Tree) -> None:
    tree.device("rxe0")
    tree.write("class/infiniband/rxe0/parent", "eth1")
    one = devices(tree.root)[0]
    assert (one.driver, one.pci, one.numa_node, one.netdevs) == ("rdma_rxe", "", None, ("eth1",))


def test_devices_and_ports_come_in_order(tree: Tree) -> None:
    for name in ("mlx5_10", "mlx4_0"):
        tree.device(name)
        for number in (10, 2, 1):
            tree.port(name, number)
    assert [device.name for device in devices(tree.root)] == ["mlx4_0", "mlx5_10"]
    assert [port.name for port in devices(tree.root)[0].ports] == ["mlx4_0/1", "mlx4_0/2", "mlx4_0/10"]


def test_states_lose_their_numbers(tree: Tree) -> None:
    tree.device("x_0")
    tree.port("x_0", 1)
    tree.port("x_0", 2, state="1: DOWN", phys_state="3: Disabled")
    tree.port("x_0", 3)
    tree.write("class/infiniband/x_0/ports/3/state", REFUSED)
    up, down, mute = devices(tree.root)[0].ports
    assert (up.state, up.phys_state, up.active) == ("ACTIVE", "LinkUp", True)
    assert (down.state, down.phys_state, down.active) == ("DOWN", "Disabled", False)
    assert mute.active == Unknown("refused", "Input/output error")
    assert up.lid == 0


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("400 Gb/sec (4X NDR)", Rate(400e9, 4, "NDR")),
        ("25 Gb/sec (1X EDR)", Rate(25e9, 1, "EDR")),
        ("2.5 Gb/sec (1X SDR)", Rate(2.5e9, 1, "SDR")),
        ("10 Gb/sec (4X)", Rate(10e9, 4, "")),
        ("56 Gb/sec (4X FDR10)", Rate(56e9, 4, "FDR10")),
        ("100 Gb/sec", Rate(100e9)),
        ("N/A", Unknown("no number", "N/A")),
        ("", Unknown("no number", "")),
    ],
)
def test_rates(text: str, rate: Rate | Unknown) -> None:
    assert parse_rate(text) == rate


def test_the_gid_table_has_only_what_is_in_use(tree: Tree) -> None:
    """Empty rows are zeros or, with some drivers, an error; their types are errors."""
    tree.device("rxe0")
    tree.port("rxe0")
    tree.gid("rxe0", 0, "fe80:0000:0000:0000:5054:00ff:fe41:0001", "RoCE v2")
    tree.gid("rxe0", 1, "0000:0000:0000:0000:0000:ffff:0a01:0102", "RoCE v2")
    tree.gid("rxe0", 2, "fd00:00ff:0000:0000:0000:0000:0000:0001", "IB/RoCE v1", REFUSED)
    tree.gid("rxe0", 3, "0000:0000:0000:0000:0000:0000:0000:0000", REFUSED, REFUSED)
    tree.gid("rxe0", 4, "fe80:0000:0000:0000:0000:0000:0000:0000", REFUSED, REFUSED)
    tree.gid("rxe0", 10, "fd00:00ff:0000:0000:0000:0000:0000:000a", "RoCE v3", "eth1")
    tree.write("class/infiniband/rxe0/ports/1/gids/5", REFUSED)
    port = devices(tree.root)[0].ports[0]
    assert port.gids == (
        Gid(0, "fe80::5054:ff:fe41:1", "RoCE v2", "eth0"),
        Gid(1, "::ffff:10.1.1.2", "RoCE v2", "eth0"),
        Gid(2, "fd00:ff::1", "RoCE v1", ""),
        Gid(10, "fd00:ff::a", "unknown", "eth1"),
    )
    assert port.netdevs == ("eth0", "eth1")


def test_a_gid_of_infiniband_is_no_roce(tree: Tree) -> None:
    tree.device("mlx5_0")
    tree.port("mlx5_0", link_layer="InfiniBand")
    tree.gid("mlx5_0", 0, "fe80:0000:0000:0000:0002:c903:0029:5a51", "IB/RoCE v1", REFUSED)
    assert devices(tree.root)[0].ports[0].gids == (Gid(0, "fe80::2:c903:29:5a51", "IB"),)
