"""What a containerlab file means: inheritance, both forms of links, marks on ports, variables, notes."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lab
from topology import generate
from topology.model import Fabric
from topology.sources.containerlab import TopologyError, parse

LAB = Path(lab.__file__).parent


def lab_file(name: str) -> str:
    return (LAB / name).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "like"), [("leaf-spine.clab.yml", generate.leaf_spine()), ("rail.clab.yml", generate.rail())]
)
def test_the_lab_files_are_the_generated_fabrics(name: str, like: Fabric) -> None:
    fabric = parse(lab_file(name), name)
    assert fabric.name == like.name and fabric.notes == ()
    assert fabric.links == like.links, "same ports, rails and order"
    assert [(node.name, node.role, node.tier, node.rack) for node in fabric.nodes] == [
        (node.name, node.role, node.tier, node.rack) for node in like.nodes
    ]


def test_what_a_node_does_not_say_comes_from_group_then_kind_then_defaults() -> None:
    fabric = parse("""
name: heirs
topology:
  defaults:
    kind: nokia_srlinux
    group: everyone
    labels: {a: defaults, b: defaults, c: defaults, d: defaults}
  kinds:
    linux:
      group: penguins
      labels: {b: kind, c: kind, d: kind}
  groups:
    penguins:
      labels: {c: group, d: group}
    boxes:
      kind: linux
      labels: {c: boxes, linkpass.role: host}
  nodes:
    plain:
    penguin: {kind: linux, labels: {d: node}}
    boxed: {group: boxes}
    odd: {group: nowhere, kind: bridge}
""")
    kinds = {node.name: node.kind for node in fabric.nodes}
    assert kinds == {"plain": "nokia_srlinux", "penguin": "linux", "boxed": "linux", "odd": "bridge"}
    labels = {node.name: dict(node.labels) for node in fabric.nodes}
    assert labels["plain"] == dict.fromkeys("abcd", "defaults")
    assert labels["penguin"] == {"a": "defaults", "b": "kind", "c": "group", "d": "node"}
    assert labels["boxed"] == {"a": "defaults", "b": "kind", "c": "boxes", "d": "kind", "linkpass.role": "host"}
    assert fabric.node("boxed").role == "host" and fabric.node("plain").role == "switch"


def test_the_kind_may_come_from_the_group_of_the_defaults() -> None:
    text = "name: x\ntopology: {defaults: {group: g}, groups: {g: {kind: linux}}, nodes: {a: , b: {kind: bridge}}}\n"
    assert [node.kind for node in parse(text).nodes] == ["linux", "bridge"]


def test_yaml_anchors_and_merges() -> None:
    fabric = parse("""
name: merged
topology:
  nodes:
    a: &base
      kind: linux
      labels: {linkpass.role: host}
    b:
      <<: *base
      labels: {linkpass.role: leaf}
    c:
      <<: *base
""")
    assert [node.role for node in fabric.nodes] == ["host", "switch", "host"]


LINKS = """
name: links
topology:
  nodes:
    h: {kind: linux, labels: {linkpass.role: host, linkpass.speed: 25G}}
    l: {kind: linux, labels: {linkpass.role: leaf, linkpass.rail: 7}}
    s: {kind: linux, labels: {linkpass.role: spine, linkpass.plane: "1"}}
  links:
    - endpoints: [h:eth1, "l:eth1"]
      mtu: 9000
    - endpoints: [l:eth2, s:eth1]
      vars: {linkpass.rail: 3, linkpass.speed: 400G, other: [1, 2]}
    - type: veth
      endpoints:
        - {node: l, interface: eth3, mac: 52:54:00:11:22:33}
        - {node: s, interface: eth2, mac: 52-54-00-AA-BB-CC, vars: {linkpass.speed: 100M}}
      labels: {linkpass.speed: 200G}
    - type: veth-stitch
      endpoints:
        - {node: h, interface: eth2}
        - {node: s, interface: eth3}
"""


def test_both_forms_of_links_and_the_marks_of_their_ports() -> None:
    fabric = parse(LINKS)
    assert [link.id for link in fabric.links] == ["h-l", "l:eth2-s:eth1", "l:eth3-s:eth2", "h-s"]
    assert [link.mtu for link in fabric.links] == [9000, None, None, None]
    ports = {port.id: port for link in fabric.links for port in (link.a, link.b)}
    assert {name: (port.rail, port.plane, port.speed_bps) for name, port in ports.items()} == {
        "h:eth1": (7, None, 25 * 10**9),
        "l:eth1": (7, None, None),
        "l:eth2": (3, 1, 400 * 10**9),
        "s:eth1": (3, 1, 400 * 10**9),
        "l:eth3": (7, 1, 200 * 10**9),
        "s:eth2": (7, 1, 100 * 10**6),
        "h:eth2": (None, 1, 25 * 10**9),
        "s:eth3": (None, 1, None),
    }
    assert ports["l:eth3"].mac == "52:54:00:11:22:33", "YAML 1.1 would read this as a number in base 60"
    assert ports["s:eth2"].mac == "52:54:00:aa:bb:cc"


def test_what_is_not_modelled_is_said() -> None:
    fabric = parse("""
name: rest
settings: {}
future: 1
topology:
  nodes:
    a: {kind: nokia_srlinux}
    b: {kind: nokia_srlinux}
    br: {kind: ovs-bridge}
  links:
    - endpoints: [a:1, br:1]
      ipv4: [192.0.2.1/31, ""]
      colour: red
    - endpoints: [a:2, "host:a2"]
    - endpoints: ["mgmt-net:b2", b:2]
    - endpoints: ["macvlan:enp0s3", b:3]
    - endpoints: [b:4, b:5]
    - {type: host, host-interface: x, endpoint: {node: a, interface: 3, ipv4: 192.0.2.8/31}}
    - {type: dummy, endpoint: {node: a, interface: 4}}
    - {type: vxlan-stitch, endpoint: {node: a, interface: 5}, remote: 192.0.2.9, vni: 7, dst-port: 4789}
""")
    assert [link.id for link in fabric.links] == ["a-br"]
    assert fabric.notes == (
        "inferred to be switch: a, b (kind nokia_srlinux)",
        "inferred to be switch: br (kind ovs-bridge)",
        "tier unknown: a, b, br (no host can be reached)",
        "keys not known and ignored: future",
        "keys not known and ignored in topology.links[0]: colour",
        "link not modelled: a:2 to host:a2",
        "link not modelled: b:2 to mgmt-net:b2",
        "link not modelled: b:3 to macvlan:enp0s3",
        "link not modelled: b:4 to b:5, the same node",
        "link not modelled: a:3, type host",
        "link not modelled: a:4, type dummy",
        "link not modelled: a:5, type vxlan-stitch",
        "bridges modelled as switches, though they learn and do not route: br",
        "addresses not modelled: a:1 to br:1, a:3",
    )


def test_variables_are_filled_in() -> None:
    text = """
name: ${LAB}
topology:
  nodes:
    ${PRE:-h}1: {kind: "${KIND:=linux}", cmd: "echo $NOT_READ", image: "${IMAGE}"}
    h2: {kind: $KIND2}
  links:
    - endpoints: ["h1:${PORT-eth1}", "h2:eth1"]
"""
    fabric = parse(text, variables={"LAB": "filled", "KIND2": "linux", "PORT": "eth9", "PRE": ""})
    assert fabric.name == "filled"
    assert [(node.name, node.kind) for node in fabric.nodes] == [("h1", "linux"), ("h2", "linux")]
    assert fabric.links[0].a.id == "h1:eth9"


def test_values_stay_the_text_that_was_written() -> None:
    text = 'name: 1\ntopology: {nodes: {1: {kind: linux, labels: {on: yes, v: 1.10}}, 012: {kind: "linux"}}}\n'
    fabric = parse(text)
    assert fabric.name == "1" and [node.name for node in fabric.nodes] == ["1", "012"]
    assert dict(fabric.nodes[0].labels) == {"on": "yes", "v": "1.10"}


def test_labels_cannot_be_changed() -> None:
    labels = parse(lab_file("rail.clab.yml")).node("leaf1").labels
    with pytest.raises(TypeError):
        labels["linkpass.rail"] = "2"  # type: ignore[index]


@settings(deadline=None)
@given(st.data())
def test_a_damaged_file_is_read_or_refused_in_one_line(data: st.DataObject) -> None:
    text = data.draw(st.sampled_from([lab_file("leaf-spine.clab.yml"), LINKS]))
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(start, min(len(text), start + 12)))
        junk = data.draw(
            st.sampled_from(["", " ", "\n", "\t", ":", "- ", "[", "}", "'", "&a", "*a", "$X", "{{", "~", "é", "\0"])
        )
        text = text[:start] + junk + text[end:]
    refused: TopologyError | None = None
    try:
        assert parse(text, "lab.yml").nodes
    except TopologyError as error:
        refused = error
    if refused is not None:
        assert str(refused).startswith(f"lab.yml:{refused.line}: ") and "\n" not in str(refused)
        assert 1 <= refused.line <= text.count("\n") + 2
        assert "expected " in refused.message and "got " in refused.message
