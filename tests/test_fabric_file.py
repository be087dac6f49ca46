"""`fabric.file` of any format: what the daemon takes, what it says of a wrong one, and whose addresses it knows
then.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from linkpass.cli import cli
from linkpass.config import load
from linkpass.config.checking import check
from linkpass.config.fabric_file import FabricFileError, read_fabric
from linkpass.edges.traces import Plan
from topology import generate

TOPOLOGY = Path(__file__).parent / "topology"
HOST = '<system><cpu numaid="0"><nic><net name="mlx5_0" port="1" speed="400000"/></nic></cpu></system>'


def neighbour(name: str, port: str, *addresses: str) -> dict[str, object]:
    chassis = {name: {"mgmt-ip": list(addresses) if len(addresses) != 1 else addresses[0]}}
    return {"chassis": chassis, "port": {"id": {"type": "ifname", "value": port}}}


def heard(folder: Path, node: str, **ports: dict[str, object]) -> None:
    (folder / f"{node}.json").write_text(
        json.dumps({"lldp": {"interface": [{name: one} for name, one in ports.items()]}})
    )


@pytest.mark.parametrize(
    ("text", "format", "nodes"),
    [
        ("graph p {\n host1:eth1 -- leaf1:swp1\n host2:eth1 -- leaf1:swp2\n}", "DOT", {"host1", "host2", "leaf1"}),
        ("SwitchName=leaf1 Nodes=host[1-2]\nSwitchName=spine1 Switches=leaf1\n", "Slurm",
         {"host1", "host2", "leaf1", "spine1"}),
        ((TOPOLOGY / "ib/ibnetdiscover.txt").read_text(), "ibnetdiscover", None),
        ((TOPOLOGY / "ib/iblinkinfo.txt").read_text(), "iblinkinfo", None),
        ("name: x\ntopology:\n  nodes:\n    host1: {kind: linux}\n    leaf1: {kind: linux}\n  links:\n"
         "    - endpoints: [host1:eth1, leaf1:eth1]\n", "containerlab", {"host1", "leaf1"}),
    ],
)  # fmt: skip
def test_every_format_that_tells_of_cables_is_taken(
    tmp_path: Path, text: str, format: str, nodes: set[str] | None
) -> None:
    file = tmp_path / "fabric"
    file.write_text(text)
    source = read_fabric(file)
    assert source.format == format
    assert nodes is None or {node.name for node in source.fabric.nodes} == nodes


def test_what_is_wrong_is_said_with_file_and_line(tmp_path: Path) -> None:
    for name, text, said in (
        (
            "plan.dot",
            "graph p {\n host1:eth1 -- leaf1:swp1\n host1:eth1 -- leaf1:swp2\n}",
            "plan.dot:3: port host1:eth1",
        ),
        ("host.xml", HOST, "host.xml: what NCCL dumps tells of one host and of no cables: expected a fabric"),
        ("topology.conf", "SwitchName=leaf1 Nodes=host[1-\n", "topology.conf:1"),
        ("latin.dot", "graph \xe4 {}", "latin.dot: not UTF-8 at byte 6"),
    ):
        file = tmp_path / name
        file.write_bytes(text.encode("latin-1"))
        with pytest.raises(FabricFileError) as error:
            read_fabric(file)
        assert said in str(error.value)
        config = tmp_path / "linkpass.toml"
        config.write_text(f'[fabric]\nfile = "{name}"\n')
        assert any(said in one.text and one.key == "fabric.file" for one in check(load(config), config, root=tmp_path))


def test_check_config_holds_names_against_any_format(tmp_path: Path) -> None:
    (tmp_path / "plan.dot").write_text("graph p {\n host1:eth1 -- leaf1:swp1\n}")
    config = tmp_path / "linkpass.toml"
    config.write_text('host = "host9"\n[fabric]\nfile = "plan.dot"\n[fabric.names]\n"fd00::1" = "leaf7"\n')
    found = {(one.key, one.text.replace(str(tmp_path), "")) for one in check(load(config), config, root=tmp_path)}
    assert ("host", "host9 is not a node of /plan.dot") in found
    assert ("fabric.names", "not nodes of /plan.dot: leaf7") in found


def test_lldp_names_the_nodes_that_answer(tmp_path: Path) -> None:
    """A folder of what nodes hear: management addresses that one node alone has, and no link-local ones."""
    live = tmp_path / "live"
    live.mkdir()
    heard(live, "host1", eth1=neighbour("leaf1", "swp1", "fd00:ff:1::1", "10.0.0.1"))
    heard(live, "host2", eth1=neighbour("leaf1", "swp2", "FD00:FF:1:0::1"), eth2=neighbour("leaf2", "swp1", "10.0.0.1"))
    heard(live, "host3", eth1=neighbour("leaf2", "swp3", "fe80::1", "not an address"))
    source = read_fabric(live)
    assert source.addresses == {"fd00:ff:1::1": "leaf1"}
    config = tmp_path / "linkpass.toml"
    config.write_text('[fabric]\nfile = "live"\n')
    assert not [one for one in check(load(config), config, root=tmp_path) if one.key == "fabric.file"]


def test_the_plan_counts_ways_from_the_neighbour_on() -> None:
    fabric = generate.leaf_spine(2, uplinks=2, racks=2, spines=4)
    hosts = [node.name for node in fabric.hosts]
    plan = Plan(fabric, hosts[0])
    first = plan.first(fabric.uplinks(hosts[0])[0].name)
    assert first is not None and plan.knows(first)
    far = hosts[-1]
    leaves = {hop.peer.node for hop in fabric.next_hops(far, hosts[0])}
    assert plan.ways(first, far) == 4 * len(leaves)
    assert plan.length(first, far) == 3
    assert plan.ways(first, "stranger") == 0 == plan.ways(None, far) == plan.ways(far, hosts[0])
    assert plan.length("stranger", far) is None
    assert plan.first("eth9") is None and Plan(fabric, "stranger").first("eth1") is None
    assert plan.parallel(first, hosts[0]) == () == plan.parallel(None, first)


def test_the_lab_is_built_of_any_format_too(tmp_path: Path) -> None:
    file = tmp_path / "host.xml"
    file.write_text(HOST)
    result = CliRunner().invoke(cli, ["lab", "up", str(file)])
    assert (result.exit_code, "expected a fabric" in result.stderr) == (2, True), result.output
