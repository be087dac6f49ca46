"""`linkpass topology diff`, and `topology` of what is no fabric: what is printed, exit status, wrong use."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from linkpass.cli import cli

ROOT = Path(__file__).parents[2]
LLDP = ROOT / "tests" / "topology" / "lldp"
PLAN = """graph plan {
  host1:eth1 -- leaf1:eth1
  host2:eth1 -- leaf1:eth2
  leaf1:eth3 -- spine1:eth1
}
"""
HOST = '<system><cpu numaid="0"><nic><net name="mlx5_0" port="1" speed="400000"/></nic></cpu></system>'


def topology(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(cli, ["topology", *arguments], input=stdin)


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    file = tmp_path / "plan.dot"
    file.write_text(PLAN)
    return file


@pytest.fixture
def live(tmp_path: Path) -> Path:
    folder = tmp_path / "live"
    folder.mkdir()
    (folder / ".hidden").write_text("x")
    for name in ("leaf1.json", "host1.json0"):
        (folder / name).write_text((LLDP / name).read_text())
    (folder / "host1.json0").rename(folder / "host1.json")
    return folder


def test_what_is_as_planned(plan: Path, live: Path) -> None:
    result = topology("diff", str(plan), str(live))
    assert (result.exit_code, "3 links are as planned, nothing differs" in result.output) == (0, True), result.output
    assert result.output.startswith("plan: DOT, 4 nodes, 3 links; live: LLDP, 4 nodes, 3 links\n")
    assert topology("diff", str(plan), "-", stdin=PLAN).exit_code == 0


def test_what_differs(plan: Path, live: Path) -> None:
    plan.write_text(PLAN.replace("leaf1:eth1", "X").replace("leaf1:eth2", "leaf1:eth1").replace("X", "leaf1:eth2"))
    result = topology("diff", str(plan), str(live))
    assert result.exit_code == 1, result.output
    row = " ".join(result.output.split("Differences", 1)[1].split())
    assert "swapped host1:eth1 leaf1:eth2 host2:eth1 leaf1:eth1" in row
    assert "1 links are as planned, 1 differs" in row
    data = json.loads(topology("diff", str(plan), str(live), "--json").stdout)
    assert data["plan"] == {"format": "DOT", "name": "plan", "nodes": 4, "links": 3}
    (found,) = data["differences"]
    assert found == {
        "kind": "swapped",
        "ports": ["host1:eth1", "leaf1:eth2", "host2:eth1", "leaf1:eth1"],
        "planned": [["host1:eth1", "leaf1:eth2"], ["host2:eth1", "leaf1:eth1"]],
        "live": [["host1:eth1", "leaf1:eth1"], ["leaf1:eth2", "host2:eth1"]],
        "says": "leaf1:eth2 should lead to host1:eth1, leads to host2:eth1; host1:eth1 is found at leaf1:eth1: these "
        "two are swapped",
    }
    assert (data["alike"], data["not_compared"], data["notes"]) == (1, 0, [])


def test_what_nobody_tells_of_and_what_is_ignored(plan: Path, live: Path) -> None:
    (live / "leaf1.json").unlink()
    result = topology("diff", str(plan), str(live))
    assert (result.exit_code, "not compared, since neither end tells of it: 2 links" in result.output) == (0, True)
    plan.write_text(PLAN.replace("host1:eth1", "host1:eth7"))
    assert topology("diff", str(plan), str(live)).exit_code == 1
    assert topology("diff", str(plan), str(live), "--ignore", "host1", "--ignore", "x*").exit_code == 0


def test_outputs_of_a_subnet_are_held_together_by_their_guids() -> None:
    files = [str(ROOT / "tests" / "topology" / "ib" / name) for name in ("ibnetdiscover.txt", "iblinkinfo-line.txt")]
    result = topology("diff", *files)
    assert (result.exit_code, "8 links are as planned, nothing differs" in result.output) == (0, True), result.output


def test_a_folder_is_shown(live: Path) -> None:
    assert topology(str(live)).output.startswith("lldp: 2 hosts, 2 switches, 3 links")


def test_the_adapters_of_a_host() -> None:
    result = topology("-", stdin=HOST)
    assert result.exit_code == 0
    assert "a host with 1 adapter ports and 0 GPUs" in result.output
    assert "mlx5_0   1     400 Gbit/s" in result.output
    assert json.loads(topology("--json", "-", stdin=HOST).stdout)["nics"][0]["name"] == "mlx5_0"


def test_wrong_use_is_said(plan: Path, live: Path, tmp_path: Path) -> None:
    host = tmp_path / "host.xml"
    host.write_text(HOST)
    empty = tmp_path / "empty"
    empty.mkdir()
    for arguments, said in (
        (("-", "-"), "only one file can be standard input"),
        ((str(plan), str(host)), "host.xml: what NCCL dumps tells of one host and of no cables: expected a fabric"),
        ((str(plan), str(empty)), "empty: no file in it"),
        ((str(plan), str(tmp_path / "none")), "none: No such file or directory"),
        ((str(plan), str(tmp_path)), "host.xml:1: of several files each has to be what lldpctl -f json prints"),
    ):
        result = topology("diff", *arguments)
        assert (result.exit_code, said in result.stderr) == (2, True), result.stderr
    plan.write_text(PLAN + "}")
    assert topology("diff", str(plan), str(live)).stderr == f"linkpass: {plan}:6: expected one graph, got '}}'\n"
    result = topology(str(host), "--links", str(plan))
    assert (result.exit_code, "what NCCL dumps of a host, expected an InfiniBand subnet" in result.stderr) == (2, True)
