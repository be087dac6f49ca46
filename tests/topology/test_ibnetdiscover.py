"""What `ibnetdiscover` prints, read from simulated subnets (ibsim) and from lines that show one construct each."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from linkpass.cli import cli
from topology.model import Fabric
from topology.sources.ibnetdiscover import is_output, parse
from topology.sources.yamltext import TopologyError

TWO_LEAVES = {
    "leaf1": {1: ("node1 HCA-1", 1), 2: ("node2 HCA-1", 1), 7: ("spine1", 1), 8: ("spine2", 1)},
    "leaf2": {1: ("node1 HCA-2", 1), 2: ("node2 HCA-2", 1), 7: ("spine1", 2), 8: ("spine2", 2)},
    "spine1": {1: ("leaf1", 7), 2: ("leaf2", 7)},
    "spine2": {1: ("leaf1", 8), 2: ("leaf2", 8)},
    "node1 HCA-1": {1: ("leaf1", 1)},
    "node1 HCA-2": {1: ("leaf2", 1)},
    "node2 HCA-1": {1: ("leaf1", 2)},
    "node2 HCA-2": {1: ("leaf2", 2)},
}


class Subnet:
    """An InfiniBand subnet simulated by ibsim."""

    def __init__(self, folder: Path, ports: dict[str, dict[int, tuple[str, int]]]) -> None:
        text = []
        for name, ends in ports.items():
            text.append(f'{"Hca" if "HCA" in name else "Switch"}\t8 "{name}"')
            text += [f'[{port}]\t"{peer}"[{peer_port}]' for port, (peer, peer_port) in ends.items()] + [""]
        (folder / "net").write_text("\n".join(text))
        self._env = {**os.environ, "SIM_HOST": "node1 HCA-1"}
        self._process = subprocess.Popen(
            ["ibsim", "-s", str(folder / "net")], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, text=True, env=self._env, cwd=folder,
        )  # fmt: skip

    def order(self, line: str) -> None:
        """On the simulator's console."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def discover(self, *options: str) -> str:
        until_s = time.monotonic() + 20
        while True:
            argv = ["ibsim-run", "ibnetdiscover", *options]
            done = subprocess.run(argv, env=self._env, capture_output=True, text=True, timeout=20, check=False)
            if not done.returncode and "Topology file" in done.stdout:
                return done.stdout
            assert time.monotonic() < until_s, done.stderr
            time.sleep(0.1)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture(scope="module")
def subnet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subnet]:
    made = Subnet(tmp_path_factory.mktemp("ibsim"), TWO_LEAVES)
    yield made
    made.close()


def links(fabric: Fabric) -> set[str]:
    return {"-".join(sorted((link.a.id, link.b.id))) for link in fabric.links}


@pytest.mark.parametrize("options", [(), ("-g",), ("-s",)])
def test_a_simulated_subnet_is_the_fabric_that_it_is(subnet: Subnet, options: tuple[str, ...]) -> None:
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


def test_a_cable_that_is_taken_out_is_missing(subnet: Subnet) -> None:
    before = links(parse(subnet.discover()))
    subnet.order('Unlink "leaf1"[8]')
    try:
        until_s = time.monotonic() + 20
        while (after := links(parse(subnet.discover()))) == before:
            assert time.monotonic() < until_s
        assert before - after == {"leaf1:8-spine2:1"}
    finally:
        subnet.order('ReLink "leaf1"[8]')


def test_the_command_shows_it(subnet: Subnet, tmp_path: Path) -> None:
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
