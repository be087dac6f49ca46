"""What `ibnetdiscover` prints, read from simulated subnets (ibsim) and from lines that show one construct each."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from ib_subnet import TWO_LEAVES, SimulatedSubnet

from linkpass.cli import cli
from topology.model import Fabric
from topology.sources.ibnetdiscover import is_output, parse
from topology.sources.yamltext import TopologyError


@pytest.fixture(scope="module")
def subnet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedSubnet]:
    made = SimulatedSubnet(tmp_path_factory.mktemp("ibsim"), TWO_LEAVES)
    yield made
    made.close()


def links(fabric: Fabric) -> set[str]:
    return {"-".join(sorted((link.a.id, link.b.id))) for link in fabric.links}


@pytest.mark.parametrize("options", [(), ("-g",), ("-s",)])
def test_a_simulated_subnet_is_the_fabric_that_it_is(subnet: SimulatedSubnet, options: tuple[str, ...]) -> None:
    text = "\n".join(line for line in subnet.discover(*options).splitlines() if "->" not in line)
    fabric = parse(text)
    assert {(node.name, node.role, node.tier) for node in fabric.nodes} == {
        ("node1", "host", 0), ("node2", "host", 0), ("leaf1", "switch", 1), ("leaf2", "switch", 1),
        ("spine1", "switch", 2), ("spine2", "switch", 2),
    }  # fmt: skip
    assert links(fabric) == {
        "leaf1:1-node1:HCA-1/1", "leaf1:2-node2:HCA-1/1", "leaf2:1-node1:HCA-2/1", "leaf2:2-node2:HCA-2/1",
        "leaf1:7-spine1:1", "leaf1:8-spine2:1", "leaf2:7-spine1:2", "leaf2:8-spine2:2",
    }  # fmt: skip
    assert {link.a.speed_bps for link in fabric.links} == {10_000_000_000}
    assert is_output(text)


def test_a_cable_that_is_taken_out_is_missing(subnet: SimulatedSubnet) -> None:
    before = links(parse(subnet.discover()))
    subnet.order('Unlink "leaf1"[8]')
    try:
        until_s = time.monotonic() + 20
        while (after := links(parse(subnet.discover()))) == before:
            assert time.monotonic() < until_s
        assert before - after == {"leaf1:8-spine2:1"}
    finally:
        subnet.order('ReLink "leaf1"[8]')


def test_the_command_shows_it(subnet: SimulatedSubnet, tmp_path: Path) -> None:
    file = tmp_path / "net.txt"
    file.write_text(subnet.discover())
    done = CliRunner().invoke(cli, ["topology", str(file), "--json"])
    assert done.exit_code == 0
    assert '"name": "spine2"' in done.output


def switch(guid: int, said: str, *ports: str) -> str:
    node = f'Switch\t40 "S-{guid:016x}"\t\t# "{said}" enhanced port 0 lid 3 lmc 0'
    return "\n".join([f"switchguid=0x{guid:x}({guid:x})", node, *ports, ""])


def adapter(guid: int, said: str, *ports: str) -> str:
    return "\n".join([f"caguid=0x{guid:x}", f'Ca\t2 "H-{guid:016x}"\t\t# "{said}"', *ports, ""])


def to_adapter(port: int, guid: int, peer: int, rate: str = "4xHDR", ext: str = "") -> str:
    return f'[{port}]{ext}\t"H-{guid:016x}"[{peer}]({guid + peer:x}) \t\t# "x" lid 7 {rate}'


def to_switch(port: int, own: int, guid: int, peer: int, rate: str = "4xHDR") -> str:
    return f'[{port}]({own + port:x}) \t"S-{guid:016x}"[{peer}]\t\t# lid 7 lmc 0 "sw" lid 3 {rate}'


def test_rails_and_rates_of_real_hosts() -> None:
    text = (
        switch(0x10, "MF0;rail0:MQM9700/U1", to_adapter(1, 0x100, 1, "4xNDR", "[ext 12]"))
        + switch(0x20, "MF0;rail1:MQM9700/U1", to_adapter(1, 0x200, 1, "4xNDR"))
        + adapter(0x100, "gpu07 mlx5_0", to_switch(1, 0x100, 0x10, 1, "4xNDR"))
        + adapter(0x200, "gpu07 mlx5_1", to_switch(1, 0x200, 0x20, 1, "2xNDR"))
    )
    fabric = parse(text)
    assert [node.name for node in fabric.hosts] == ["gpu07"]
    assert links(fabric) == {
        "MF0;rail0_MQM9700/U1:1-gpu07:mlx5_0/1", "MF0;rail1_MQM9700/U1:1-gpu07:mlx5_1/1"
    }  # fmt: skip
    assert [link.a.speed_bps for link in fabric.links] == [400_000_000_000, 400_000_000_000]
    assert [link.b.speed_bps for link in fabric.links] == [400_000_000_000, 200_000_000_000]
    assert any("runs at 4xNDR, its other end gpu07:mlx5_1/1 at 2xNDR" in note for note in fabric.notes)


def test_adapters_that_are_described_alike_are_called_by_their_guids() -> None:
    text = (
        switch(0x10, "sw", to_adapter(1, 0x100, 1), to_adapter(2, 0x200, 1))
        + adapter(0x100, "MT23108 InfiniHost", to_switch(1, 0x100, 0x10, 1))
        + adapter(0x200, "MT23108 InfiniHost", to_switch(1, 0x200, 0x10, 2))
    )
    fabric = parse(text)
    assert sorted(node.name for node in fabric.hosts) == ["H-0000000000000100", "H-0000000000000200"]
    assert any("described alike: MT23108 InfiniHost" in note for note in fabric.notes)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "f:1: no node: expected the output of ibnetdiscover"),
        ("name: x\n", "f:1: expected a line of ibnetdiscover's output, got 'name: x'"),
        (to_adapter(1, 0x100, 1), "f:1: a port before any node"),
        (switch(0x10, "sw", to_adapter(1, 0x100, 1)), "f:3: its other end, node 0000000000000100, is nowhere"),
        (switch(0x10, "sw") + switch(0x10, "sw"), "f:4: node 0000000000000010 appears twice"),
        (
            switch(0x10, "sw", to_adapter(1, 0x100, 1)) + adapter(0x100, "h", to_switch(1, 0x100, 0x10, 2)),
            "f:3: port 1 of 'h' tells of port 2 of node 0000000000000010, expected port 1 of 'sw'",
        ),
        (switch(0x10, "sw", to_adapter(1, 0x100, 1), to_adapter(1, 0x100, 1)), "f:4: port 1 of 'sw' appears twice"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_line(text: str, said: str) -> None:
    with pytest.raises(TopologyError) as caught:
        parse(text, "f")
    assert said in str(caught.value)
