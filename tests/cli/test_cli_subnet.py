"""`linkpass topology` over the outputs of a subnet's tools: what is printed, exit status, standard input, wrong use."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from linkpass.cli import cli

ROOT = Path(__file__).parents[2]
TEXTS = ROOT / "tests" / "topology" / "ib"
NET = str(TEXTS / "ibnetdiscover.txt")
EVERYTHING = (
    "--links", str(TEXTS / "iblinkinfo.txt"), "--routes", str(TEXTS / "dump_fts.txt"),
    "--errors", str(TEXTS / "ibqueryerrors.txt"),
)  # fmt: skip


def topology(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(cli, ["topology", *arguments], input=stdin)


def test_what_is_wrong_is_the_last_that_is_printed() -> None:
    result = topology(NET, *EVERYTHING)
    assert result.exit_code == 0, result.output
    named = result.output.split("Named", 1)[1]
    assert "slow link  leaf1:8 - spine2:1  runs at 4xQDR, both ends could do 12x" in named
    assert "leaf1:7             SymbolErrorCounter is 77: bits arrive wrong" in named
    assert "its cable goes to spine1:1" in named


def test_exit_status_is_one_only_when_asked_for_and_something_is_named() -> None:
    assert topology(NET, *EVERYTHING, "--check").exit_code == 1
    assert topology(NET, "--check").exit_code == 0
    well = topology(NET, "--routes", str(TEXTS / "dump_fts.txt"), "--check")
    assert well.exit_code == 0 and "nothing is named" in well.output


def test_json_has_all_of_it() -> None:
    data = json.loads(topology(NET, *EVERYTHING, "--way", "node1:HCA-1/1", "spine2", "--json").stdout)
    assert [(one["kind"], one["ports"]) for one in data["findings"]] == [
        ("slow link", ["leaf1:8", "spine2:1"]), ("sick link", ["node2:HCA-2/1"]), ("sick link", ["leaf1:7"])
    ]  # fmt: skip
    assert data["ways"] == [
        {
            "source": "node1:HCA-1/1", "lid": 5, "end": "arrives", "why": "", "at": [],
            "hops": [["node1:HCA-1/1", "leaf1:1"], ["leaf1:8", "spine2:1"]],
        }
    ]  # fmt: skip
    assert {"port", "counter", "value", "unit", "tells", "meaning"} == data["counters"][0].keys()


def test_a_file_may_be_standard_input_but_only_one() -> None:
    links = (TEXTS / "iblinkinfo-line.txt").read_text()
    assert topology("-", stdin=links).output.startswith("infiniband: 2 hosts, 4 switches, 8 links")
    assert topology(NET, "--links", "-", "--check", stdin=links).exit_code == 1
    assert "only one file can be standard input" in topology("-", "--links", "-", stdin=links).stderr
    assert topology("-", stdin="nonsense:\n").stderr.startswith("linkpass: <stdin>:1:")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((NET, "--routes", NET), "ibnetdiscover.txt:1: expected a line of ibroute's output, got '#'"),
        ((NET, "--way", "a", "b"), "--way follows tables: give them with --routes"),
        ((NET, *EVERYTHING, "--way", "leaf1:1", "2"), "--way: no host's port is called 'leaf1:1'"),
        ((NET, *EVERYTHING, "--way", "node1:HCA-1/1", "x"), "--way: 'x' has no LID: expected a number, NODE:PORT, or"),
        ((NET, "--errors-before", NET), "--errors-before is compared with --errors: give both"),
        ((str(ROOT / "lab" / "leaf-spine.clab.yml"), *EVERYTHING), "expected the output of ibnetdiscover or ibl"),
    ],
)
def test_wrong_use_is_said(arguments: tuple[str, ...], said: str) -> None:
    result = topology(*arguments)
    assert result.exit_code == 2
    assert said in result.stderr
