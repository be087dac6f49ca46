"""Slurm's topology.conf and its host lists."""

from __future__ import annotations

import pytest

from topology.sources.slurm import expanded, is_output, read
from topology.sources.yamltext import TopologyError

CONF = r"""# racks
SwitchName=s0 Nodes=tux[0-1] LinkSpeed=400
switchname = s1 NODES=tux[2-3],login1   # a comment

SwitchName=core \
    Switches=s[0-1]
"""


def test_a_file() -> None:
    found = read(CONF)
    assert (found.format, found.ports, found.told) == ("Slurm", False, None)
    assert [(node.name, node.role, node.tier) for node in found.fabric.nodes] == [
        ("s0", "switch", 1), ("s1", "switch", 1), ("core", "switch", 2), ("tux0", "host", 0), ("tux1", "host", 0),
        ("tux2", "host", 0), ("tux3", "host", 0), ("login1", "host", 0),
    ]  # fmt: skip
    assert [link.id for link in found.fabric.links] == [
        "s0-tux0", "s0-tux1", "s1-tux2", "s1-tux3", "s1-login1", "core-s0", "core-s1"
    ]  # fmt: skip
    assert any("not by which ports" in note for note in found.fabric.notes)
    assert is_output(CONF) and not is_output("name: SwitchName\n")


@pytest.mark.parametrize(
    ("hosts", "names"),
    [
        ("a", ["a"]),
        ("a,b", ["a", "b"]),
        ("tux[0-2,007-009],x", ["tux0", "tux1", "tux2", "tux007", "tux008", "tux009", "x"]),
        ("n[8-11]", ["n8", "n9", "n10", "n11"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("r[1-2]n[3,5]-ib", ["r1n3-ib", "r1n5-ib", "r2n3-ib", "r2n5-ib"]),
    ],
)
def test_host_lists(hosts: str, names: list[str]) -> None:
    assert list(expanded(hosts)) == names


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("\nSwitchName=a Nodes=tux[0-", "f:2: expected a host list like tux[0-7,12], got 'tux[0-'"),
        ("SwitchName=a Nodes=tux[3-1]", "f:1: expected numbers like [0-7,12], got [3-1]"),
        ("SwitchName=a Nodes=bgl[000x133]", "f:1: expected numbers like [0-7,12], got [000x133]"),
        ("SwitchName=a Nodes=a,,b", "f:1: expected a host list like tux[0-7,12], got 'a,,b'"),
        ("SwitchName=a Nodes=n[0-999999999]", "f:1: expected numbers like [0-7,12], got [0-999999999]"),
        ("SwitchName=a Nodes=a[0-999]b[0-999]", "f:1: expected at most 200000 names, got more in 'a[0-999]b[0-999]'"),
        ("SwitchName=a", "f:1: switch a: expected Switches= or Nodes="),
        ("SwitchName=a Switches=b", "f:1: switch a joins b, which has no line SwitchName="),
        ("SwitchName=a Nodes=x\nSwitchName=a Nodes=y", "f:2: switch a is on line 1 already"),
        ("SwitchName=a Nodes=a", "f:1: a is a switch before, and a host here"),
        ("SwitchName=a[1-2] Nodes=x", "f:1: expected the name of one switch, got 'a[1-2]'"),
        ("BlockName=b Nodes=x", "f:1: a file of topology/block, which names no switches: expected SwitchName="),
        ("SwitchName=a Node=x", "f:1: expected SwitchName=NAME Switches=LIST Nodes=LIST, got 'node'"),
        ("SwitchName=a Nodes=x\nhello", "f:2: expected SwitchName=NAME Switches=LIST Nodes=LIST, got 'hello'"),
        ("SwitchName=a:b Nodes=x", "f:1: node name 'a:b': expected text without '>' and ':'"),
        ("# nothing", "f:1: no switch: expected lines SwitchName=NAME Switches=... or Nodes=..."),
    ],
)
def test_what_is_wrong_is_said_with_its_line(text: str, said: str) -> None:
    with pytest.raises(TopologyError) as caught:
        read(text, "f")
    assert str(caught.value) == said
