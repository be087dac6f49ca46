"""Cabling plans in DOT: what is read, and what is refused, with its line."""

from __future__ import annotations

import pytest

from topology.model import Port
from topology.sources.dot import is_output, read
from topology.sources.yamltext import TopologyError

PLAN = r"""# made by hand
/* two
   lines */ strict graph "my plan" {
  graph [hostidtype="hostname", version="1:0"]; rankdir = LR
  node [rack="r1"] edge [speed="400G"];
  leaf1 [function="leaf" color=red]
  "gpu \"7\"" [function=host, rack="r2"]
  // cables
  "gpu \"7\"":"eth1" -- leaf1:"Ethernet1/1" [rail="1"; plane=2]
  host2:eth1:n -- leaf1:swp2 [speed="100G"]
  subgraph cluster_1 { edge [speed=""]; "host" + "3":eth1 -- leaf1:3 }
  { host4:eth1 -- "leaf1":"swp4" }
}"""


def test_a_plan() -> None:
    found = read(PLAN)
    fabric = found.fabric
    assert (found.format, found.told, found.ports, fabric.name) == ("DOT", None, True, "my plan")
    assert [(node.name, node.role, node.tier, node.rack) for node in fabric.nodes] == [
        ("leaf1", "switch", 1, "r1"), ('gpu "7"', "host", 0, "r2"), ("host2", "host", 0, None),
        ("host3", "host", 0, None), ("host4", "host", 0, None),
    ]  # fmt: skip
    assert [(link.a, link.b) for link in fabric.links] == [
        (Port('gpu "7"', "eth1", 400 * 10**9, 1, 2), Port("leaf1", "Ethernet1/1", 400 * 10**9, 1, 2)),
        (Port("host2", "eth1", 100 * 10**9), Port("leaf1", "swp2", 100 * 10**9)),
        (Port("host3", "eth1"), Port("leaf1", "3")),
        (Port("host4", "eth1", 400 * 10**9), Port("leaf1", "swp4", 400 * 10**9)),
    ]


def test_arrows_are_cables_too_and_one_said_twice_is_one() -> None:
    fabric = read('digraph { "a":"1" -> "b":"2"; b:2 -> a:1 }').fabric
    assert [link.id for link in fabric.links] == ["a-b"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (PLAN, True), ("graph{", True), ("\n// x\nDiGraph G {", True), ("STRICT graph x", True),
        ("graph: x", False), ("name: graph\n", False), ("# graph\nname: x", False), ("", False), ("graphs {", False),
    ],
)  # fmt: skip
def test_it_is_told_by_its_beginning(text: str, told: bool) -> None:
    assert is_output(text) is told


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("graph {\n a:b -- c\n}", 'f:2: expected a port of c, as in "c":"swp1"'),
        ("graph {\n a:b -- c:d\n -- e:f }", "f:3: expected a cable of two ends: a port has one cable"),
        ('graph {\n\n "a', "f:3: expected DOT, got a quote that is not closed"),
        ("graph {\n a:b -- c:d\n", "f:3: expected a node, a cable or }, got the end of the file"),
        ("graph {\n a:b -> c:d }", "f:2: expected -- in this kind of graph, got '->'"),
        ("digraph {\n a:b -- c:d }", "f:2: expected -> in this kind of graph, got '--'"),
        ("graph { a:b -- c:d\n\n a:b -- e:f }", "f:3: port a:b has a cable on line 1"),
        ("graph { x [y=<b>] }", "f:1: expected DOT, got '<b>] }'"),
        ("graph { } x", "f:1: expected one graph, got 'x'"),
        ("graph {\n}", 'f:1: no cable: expected "host1":"eth1" -- "leaf1":"swp1"'),
        ("graph { a:b -- {c d} }", "f:1: expected a cable between two ports, not between subgraphs, got '{'"),
        ("graph { {a b} -- c:d }", "f:1: expected a cable between two ports, not between subgraphs, got '--'"),
        ("graph { a:b -- a:c }", "f:1: a cable from a to itself"),
        ('graph {\n "a:b":c -- d:e }', "f:2: node name 'a:b': expected text without '>' and ':'"),
        ("graph { a:b -- c:d [speed=fast] }", "f:1: key speed: expected bits per second like 400G, got 'fast'"),
        ("graph { a:b -- c:d [rail=x] }", "f:1: key rail: expected a number from 0 to 4095, got 'x'"),
        ("graph { a [b c] }", "f:1: expected =, got 'c'"),
        ("graph {" + "{" * 60, "f:1: expected at most 50 braces in one another"),
        ("graph {\n a:b -- c:d [speed=100G] }", "f:2: expected DOT, got '100' running into letters: quote it"),
        ("graph x y {", "f:1: expected {, got 'y'"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(text: str, said: str) -> None:
    with pytest.raises(TopologyError) as caught:
        read(text, "f")
    assert str(caught.value) == said
