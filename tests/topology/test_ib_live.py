"""Faults put into simulated subnets (ibsim), seen by the real tools, named by `linkpass topology`: where they are, and
nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from ib_subnet import TWO_LEAVES, SimulatedSubnet

from linkpass.cli import cli

WHOLE = "w=8 s=4"
"""12X, 10 Gbit/s a lane: all that ibsim's ports support, so that no link could be faster."""
NARROW = "w=2 s=4"


@pytest.fixture(scope="module")
def subnet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedSubnet]:
    made = SimulatedSubnet(tmp_path_factory.mktemp("whole"), TWO_LEAVES, WHOLE)
    made.sweep()
    yield made
    made.close()


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


class Files:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, name: str, text: str) -> str:
        file = self._folder / name
        file.write_text(text)
        return str(file)


def asked(*args: str, check: int | None = None) -> dict[str, Any]:
    done = CliRunner().invoke(cli, ["topology", *args, "--json", *(["--check"] if check is not None else [])])
    assert done.exit_code == (check or 0), done.output
    data: dict[str, Any] = json.loads(done.stdout)
    return data


def named(data: dict[str, Any]) -> list[tuple[str, list[str]]]:
    return [(one["kind"], one["ports"]) for one in data["findings"]]


def every_output(subnet: SimulatedSubnet, files: Files) -> tuple[str, ...]:
    return (
        files.put("net", subnet.discover()), "--links", files.put("links", subnet.run("iblinkinfo")),
        "--routes", files.put("lfts", subnet.run("dump_fts")),
        "--errors", files.put("errors", subnet.run("ibqueryerrors", "--skip-sl")),
    )  # fmt: skip


def test_nothing_is_named_of_a_subnet_that_is_well(subnet: SimulatedSubnet, files: Files) -> None:
    data = asked(*every_output(subnet, files), check=0)
    assert named(data) == []
    assert len(data["links"]) == 8
    text = CliRunner().invoke(cli, ["topology", *every_output(subnet, files)])
    assert "nothing is named" in text.output


@pytest.mark.parametrize(
    "options", [(), ("--line",), ("--additional",), ("--line", "--additional"), ("--switches-only",), ("--cas-only",)]
)
def test_all_forms_of_iblinkinfo_are_the_same_links(
    subnet: SimulatedSubnet, files: Files, options: tuple[str, ...]
) -> None:
    net = asked(files.put("net", subnet.discover()))
    alone = asked(files.put("links", subnet.run("iblinkinfo", *options)))
    pairs = {frozenset(port["node"] + ":" + port["name"] for port in link["ports"]) for link in net["links"]}
    shown = {frozenset(port["node"] + ":" + port["name"] for port in link["ports"]) for link in alone["links"]}
    if options == ("--cas-only",):
        assert shown == {pair for pair in pairs if any("HCA" in end for end in pair)}
    else:
        assert shown == pairs
    assert {port["speed_bps"] for link in alone["links"] for port in link["ports"]} == {120_000_000_000}
    assert {node["name"]: node["role"] for node in alone["nodes"]} == {
        node["name"]: node["role"] for node in net["nodes"] if "only" not in str(options) or node["name"][:2] != "sp"
    } | ({"spine1": "switch", "spine2": "switch"} if options == ("--switches-only",) else {})


def test_a_cable_taken_out_is_named_at_both_its_ports_and_so_are_the_ways_over_it(
    subnet: SimulatedSubnet, files: Files
) -> None:
    net = files.put("net", subnet.discover())
    lfts = files.put("lfts", subnet.run("dump_fts"))
    subnet.order('Unlink "leaf1"[8]')
    try:
        for options in ((), ("--line",), ("--switches-only",), ("--down",)):
            links = files.put("links", subnet.run("iblinkinfo", *options))
            data = asked(net, "--links", links, check=1)
            assert named(data) == [("missing link", ["leaf1:8", "spine2:1"])]
            assert data["findings"][0]["says"] == "is not there: leaf1:8 is Down/Polling, spine2:1 is Down/Polling"
        data = asked(net, "--links", files.put("links", subnet.discover()), check=1)
        assert named(data) == [("missing link", ["leaf1:8", "spine2:1"])]
        data = asked(net, "--links", files.put("links", subnet.run("iblinkinfo")), "--routes", lfts)
        assert sorted(named(data)) == [
            ("dead end", ["leaf1:8"]), ("dead end", ["spine2:1"]), ("missing link", ["leaf1:8", "spine2:1"])
        ]  # fmt: skip
        dead = next(one for one in data["findings"] if one["ports"] == ["leaf1:8"])
        gone = asked(net, "--routes", lfts, "--way", "node1:HCA-1/1", "node2:HCA-2/1")["ways"][0]
        assert (gone["lid"] in dead["lids"]) == (["leaf1:8", "spine2:1"] in gone["hops"])
        assert "leaf1:8 is Down/Polling, and the table of leaf1 sends by it" in dead["says"]
    finally:
        subnet.order('ReLink "leaf1"[8]')
        subnet.sweep()


@pytest.mark.parametrize(
    ("node", "port", "name", "counter", "kind"),
    [
        ("leaf1", 7, "leaf1:7", "SymbolErrorCounter", "sick link"),
        ("leaf1", 3, "leaf1:3", "LinkErrorRecoveryCounter", "sick link"),
        ("spine2", 2, "spine2:2", "PortRcvErrors", "sick link"),
        ("node2 HCA-2", 1, "node2:HCA-2/1", "LinkDownedCounter", "sick link"),
        ("leaf2", 1, "leaf2:1", "PortXmitDiscards", "loss"),
        ("leaf2", 8, "leaf2:8", "PortRcvRemotePhysicalErrors", "upstream"),
        ("leaf1", 1, "leaf1:1", "VL15Dropped", "loss"),
    ],
)
def test_counters_are_named_at_their_port(
    subnet: SimulatedSubnet, files: Files, node: str, port: int, name: str, counter: str, kind: str
) -> None:
    subnet.run("ibqueryerrors", "--skip-sl", "--clear-errors")  # the simulator counts what other tests have lost
    clean = every_output(subnet, files)
    subnet.order(f'PerformanceSet "{node}"[{port}] PortCounters.{counter}=77')
    try:
        for options in ((), ("--report-port",), ("--data", "--details"), ("--report-port", "--data")):
            errors = files.put("now", subnet.run("ibqueryerrors", "--skip-sl", *options))
            data = asked(*clean[:5], "--errors", errors, check=1)
            assert named(data) == [(kind, [name])]
            found = data["findings"][0]
            assert (found["counter"], found["count"], found["since"]) == (counter, 77, "it was last cleared")
        rose = asked(clean[0], "--errors", errors, "--errors-before", clean[6])
        assert [(one["ports"], one["count"], one["since"]) for one in rose["findings"]] == [
            ([name], 77, "the earlier reading")
        ]
        assert named(asked(clean[0], "--errors", errors, "--errors-before", errors)) == []
        owner = name if "HCA" in node else node
        lid = str(asked(clean[0], *clean[3:5], "--way", "node1:HCA-1/1", owner)["ways"][0]["lid"])
        one = files.put("one", subnet.run("perfquery", lid, str(port)) + subnet.run("perfquery", "-x", lid, str(port)))
        assert named(asked(clean[0], "--errors", one)) == [(kind, [name])]
    finally:
        subnet.order(f'PerformanceSet "{node}"[{port}] PortCounters.{counter}=0')


def test_congestion_and_traffic_are_shown_and_not_named(subnet: SimulatedSubnet, files: Files) -> None:
    net = files.put("net", subnet.discover())
    data = asked(net, "--errors", files.put("data", subnet.run("ibqueryerrors", "--skip-sl", "--counters")))
    assert named(data) == []
    sent = next(row for row in data["counters"] if (row["port"], row["counter"]) == ("leaf1:7", "PortXmitData"))
    assert sent["unit"] == "bytes" and sent["value"] % 4 == 0 and sent["value"] > 0 and sent["tells"] == "traffic"


def test_a_link_below_what_both_ends_could_is_named_once(
    tmp_path_factory: pytest.TempPathFactory, files: Files
) -> None:
    narrow = {("leaf1", 8): NARROW, ("spine2", 1): NARROW}
    subnet = SimulatedSubnet(tmp_path_factory.mktemp("narrow"), TWO_LEAVES, WHOLE, narrow)
    try:
        subnet.discover()
        before = asked(files.put("links", subnet.run("iblinkinfo", "--line")))
        assert {one["kind"] for one in before["findings"]} == {"slow link", "inactive link"}
        subnet.sweep()
        for options in ((), ("--line",)):
            data = asked(files.put("links", subnet.run("iblinkinfo", *options)), check=1)
            assert named(data) == [("slow link", ["leaf1:8", "spine2:1"])]
            assert data["findings"][0]["says"] == "runs at 4xQDR, both ends could do 12x"
    finally:
        subnet.close()


@pytest.mark.parametrize("options", [(), ("--all",), ("--no_dests",), ("--all", "--no_dests")])
def test_ways_are_those_of_the_tables(subnet: SimulatedSubnet, files: Files, options: tuple[str, ...]) -> None:
    net = files.put("net", subnet.discover())
    lfts = files.put("lfts", subnet.run("dump_fts", *options))
    hosts = ["node1:HCA-1/1", "node1:HCA-2/1", "node2:HCA-1/1", "node2:HCA-2/1"]
    wanted = [(a, b) for a in hosts for b in hosts if a != b]
    data = asked(net, "--routes", lfts, *(word for pair in wanted for word in ("--way", *pair)))
    assert named(data) == []
    for (a, b), way in zip(wanted, data["ways"], strict=True):
        assert (way["source"], way["end"]) == (a, "arrives")
        assert (way["hops"][0][0], way["hops"][-1][1]) == (a, b)
        assert len(way["hops"]) == (2 if a[-3] == b[-3] else 4)
        lid = str(way["lid"])
        traced = subnet.run("ibtracert", str(asked_lid(data, a)), lid)
        ports = [line.split("[")[1:] for line in traced.splitlines() if line.startswith("[")]
        assert [hop[0].rsplit(":", 1)[1].rsplit("/", 1)[-1] for hop in way["hops"]] == [
            p[0].split("]")[0] for p in ports
        ]


def asked_lid(data: dict[str, Any], port: str) -> int:
    return next(way["lid"] for way in data["ways"] if way["hops"][-1][1] == port)


def test_tables_of_single_switches_are_followed_as_far_as_they_go(subnet: SimulatedSubnet, files: Files) -> None:
    net = files.put("net", subnet.discover())
    leaf1 = files.put("leaf1", subnet.run("ibroute", "2"))
    data = asked(net, "--routes", leaf1, "--way", "node1:HCA-1/1", "node2:HCA-1/1", "--way", "node1:HCA-1/1", "leaf2")
    assert named(data) == []
    assert [way["end"] for way in data["ways"]] == ["arrives", "unknown"]
    assert any("no whole table, so ways through them are not known: " in note for note in data["notes"])


def loaded(subnet: SimulatedSubnet, files: Files, tables: str) -> str:
    """What the switches do after a subnet manager has given them these tables, without looking at them."""
    wanted = files.put("wanted", tables)
    subnet.run("opensm", "--once", "--routing_engine", "file", "--lfts_file", wanted, "--log_file", wanted + ".log")
    return files.put("lfts", subnet.run("dump_fts"))


def changed(tables: str, switch: str, lid: int, port: int) -> str:
    """Tables in which one switch sends a LID by another port."""
    head, _, rest = tables.partition(f"({switch}):\n")
    old = next(line for line in rest.splitlines() if line.startswith(f"0x{lid:04x} "))
    new = f"0x{lid:04x} {port:03d}{old[10:]}"
    return f"{head}({switch}):\n{rest.replace(old, new, 1)}"


@pytest.mark.parametrize(
    ("changes", "kind", "ports", "host_pairs"),
    [
        ([("leaf1", 7), ("spine1", 1)], "loop", ["leaf1:7", "spine1:1"], 2),
        ([("leaf1", 5)], "dead end", ["leaf1:5"], 2),
        ([("leaf2", 1)], "astray", ["leaf2:1"], 3),
        ([("leaf1", 0)], "astray", ["leaf1:0"], 2),
    ],
)
def test_wrong_tables_that_a_subnet_manager_has_given_are_named(
    subnet: SimulatedSubnet, files: Files, changes: list[tuple[str, int]], kind: str, ports: list[str], host_pairs: int
) -> None:
    net = files.put("net", subnet.discover())
    tables = subnet.run("dump_fts")
    lfts = files.put("before", tables)
    lid = asked(net, "--routes", lfts, "--way", "node1:HCA-1/1", "node2:HCA-2/1")["ways"][0]["lid"]
    for switch, port in changes:
        tables = changed(tables, switch, lid, port)
    try:
        after = loaded(subnet, files, tables)
        data = asked(net, "--routes", after, "--way", "node1:HCA-1/1", str(lid), check=1)
        assert named(data) == [(kind, ports)]
        found = data["findings"][0]
        assert (found["lids"], found["host_pairs"]) == ([lid], host_pairs)
        assert data["ways"][0]["end"] == kind
    finally:
        subnet.sweep()
    assert named(asked(net, "--routes", files.put("again", subnet.run("dump_fts")))) == []
