"""A broken file gets one error, one line long, that names file, line, key, what was expected and what was found."""

import pytest

from topology.sources.containerlab import TopologyError, parse

NODES = """\
name: x
topology:
  nodes:
    leaf1: {kind: linux}
    b: {kind: linux}
"""


def node(text: str) -> str:
    return f"name: x\ntopology:\n  nodes:\n    {text}\n"


def links(text: str) -> str:
    """The links begin in line 7."""
    return f"{NODES}  links:\n{text}\n"


VETH = "    - type: veth\n      endpoints:\n        - {}\n        - {{node: b, interface: eth1}}\n"

BROKEN = {
    # no document
    "empty": ("", "1: expected a mapping with the keys name and topology, got nothing"),
    "a list": ("- a\n", "1: expected a mapping with the keys name and topology, got a list of 1"),
    "prose": ("hello", "1: expected a mapping with the keys name and topology, got 'hello'"),
    "two documents": ("name: x\n---\nname: y\n", "1: expected one YAML document, got 2"),
    "tab": (
        "name: x\n\tname: y\n",
        "2: expected YAML, got a mistake: found character '\\t' that cannot start any token",
    ),
    "unclosed": (
        "name: x\ntopology: {nodes: {a: {kind: linux}",
        "2: expected YAML, got a mistake: expected ',' or '}', but got '<stream end>'",
    ),
    "no text": (
        "name: \0",
        "1: expected YAML text, got unacceptable character #x0000: special characters are not allowed "
        'in "<unicode string>", position 6',
    ),
    "a python object": (
        "name: !!python/object:os.system x\n",
        "1: expected YAML, got a mistake: could not determine a constructor for the tag "
        "'tag:yaml.org,2002:python/object:os.system'",
    ),
    "itself inside": (
        "name: x\ntopology: &t {nodes: *t}\n",
        "2: expected YAML, got a mistake: found unconstructable recursive node",
    ),
    "no anchor": ("name: *nope\n", "1: expected YAML, got a mistake: found undefined alias 'nope'"),
    "nested too deeply": ("name: " + "[" * 5000, "1: expected a topology, got values nested too deeply"),
    "twice a key": ("name: x\nname: y\n", "2: expected YAML, got a mistake: key 'name' appears twice"),
    "twice a node": (
        node("b: {kind: linux}\n    b: {kind: linux}"),
        "5: expected YAML, got a mistake: key 'b' appears twice",
    ),
    "a list as key": ("name: x\n? [a]\n: 1\n", "2: expected YAML, got a mistake: expected a plain key"),
    "a template": (
        "# {{ a comment may say this }}\nname: x\ntopology:\n  {{- range .n }}\n",
        "4: expected a rendered file, got the Go template '{{- range .n }}'; render it first",
    ),
    # the top
    "no name": (
        "topology: {nodes: {a: {kind: linux}}}\n",
        "1: key name: expected a lab name of letters, digits and -._, got nothing",
    ),
    "a name with a space": ("name: a b\n", "1: key name: expected a lab name of letters, digits and -._, got 'a b'"),
    "a name that is none": ("name: [x]\n", "1: key name: expected text, got a list of 1"),
    "no topology": ("name: x\n", "1: key topology: expected a mapping with nodes and links, got nothing"),
    "a slip in topology": ("name: x\ntopolgy: {}\n", "2: key topolgy: expected the key topology, got 'topolgy'"),
    "topology a list": ("name: x\ntopology: [1]\n", "2: key topology: expected a mapping, got a list of 1"),
    "a slip in nodes": ("name: x\ntopology: {node: {}}\n", "2: key topology.node: expected the key nodes, got 'node'"),
    "no nodes": (
        "name: x\ntopology: {}\n",
        "2: key topology.nodes: expected a mapping of at least one node, got nothing",
    ),
    "nodes empty": (
        "name: x\ntopology:\n  nodes: {}\n",
        "3: key topology.nodes: expected a mapping of at least one node, got an empty mapping",
    ),
    "nodes a list": (
        "name: x\ntopology:\n  nodes: [a, b]\n",
        "3: key topology.nodes: expected a mapping, got a list of 2",
    ),
    # nodes
    "a node that is text": (node("a: linux"), "4: key topology.nodes.a: expected a mapping, got 'linux'"),
    "a node name": (
        node('"a>b": {kind: linux}'),
        "4: key topology.nodes.a>b: expected a name of letters, digits and -._|, got 'a>b'",
    ),
    "a node name on two lines": (
        node('"a\\nb": {kind: linux}'),
        "4: key 'topology.nodes.a\\nb': expected a name of letters, digits and -._|, got 'a\\nb'",
    ),
    "no kind": (
        node("a: {image: x}"),
        "4: key topology.nodes.a.kind: expected a kind here, in its group or the defaults, got nothing",
    ),
    "a slip in a kind": (node("a: {kind: linx}"), "4: key topology.nodes.a.kind: expected linux, got 'linx'"),
    "a slip in a key": (node("a: {knd: linux}"), "4: key topology.nodes.a.knd: expected the key kind, got 'knd'"),
    "a slip in a group": (
        "name: x\ntopology:\n  groups:\n    g:\n      lables: {}\n  nodes: {a: {kind: linux}}\n",
        "5: key topology.groups.g.lables: expected the key labels, got 'lables'",
    ),
    "a kind that is a list": (
        node("a: {kind: [linux]}"),
        "4: key topology.nodes.a.kind: expected text, got a list of 1",
    ),
    "a kind left open": (
        node("a: {kind: '${KIND}'}"),
        "4: key topology.nodes.a.kind: expected a value, got the variable ${KIND}, which is not set",
    ),
    # labels
    "labels a list": (
        node("a: {kind: linux, labels: [x]}"),
        "4: key topology.nodes.a.labels: expected a mapping, got a list of 1",
    ),
    "a label of labels": (
        node("a: {kind: linux, labels: {x: {y: z}}}"),
        "4: key topology.nodes.a.labels.x: expected text, got a mapping",
    ),
    "a role of another world": (
        node("a:\n      kind: linux\n      labels:\n        linkpass.role: tor"),
        "7: key topology.nodes.a.labels.linkpass.role: expected one of host, leaf, spine, switch, got 'tor'",
    ),
    "a role in its group": (
        "name: x\ntopology:\n  groups:\n    g:\n      kind: linux\n      labels: {linkpass.role: boss}\n"
        "  nodes: {a: {group: g}}\n",
        "6: key topology.nodes.a.labels.linkpass.role: expected one of host, leaf, spine, switch, got 'boss'",
    ),
    "a slip in a label": (
        node("a: {kind: linux, labels: {linkpass.rol: host}}"),
        "4: key topology.nodes.a.labels.linkpass.rol: expected one of linkpass.role, linkpass.tier, linkpass.rack, "
        "linkpass.rail, linkpass.plane, linkpass.speed, got 'linkpass.rol'",
    ),
    "a tier in words": (
        node("a: {kind: linux, labels: {linkpass.tier: high}}"),
        "4: key topology.nodes.a.labels.linkpass.tier: expected a number from 0 to 9, got 'high'",
    ),
    "a leaf of tier 2": (
        node("a: {kind: linux, labels: {linkpass.role: leaf, linkpass.tier: 2}}"),
        "4: key topology.nodes.a.labels.linkpass.tier: expected a tier that fits the role leaf, got '2'",
    ),
    "a rail below zero": (
        node("a: {kind: linux, labels: {linkpass.rail: -1}}"),
        "4: key topology.nodes.a.labels.linkpass.rail: expected a number from 0 to 4095, got '-1'",
    ),
    "a rail in other digits": (
        node("a: {kind: linux, labels: {linkpass.rail: ٣}}"),
        "4: key topology.nodes.a.labels.linkpass.rail: expected a number from 0 to 4095, got '٣'",
    ),
    "a speed in words": (
        node("a: {kind: linux, labels: {linkpass.speed: fast}}"),
        "4: key topology.nodes.a.labels.linkpass.speed: expected bits per second like 400G or 1000000, got 'fast'",
    ),
    "no speed at all": (
        node("a: {kind: linux, labels: {linkpass.speed: 0G}}"),
        "4: key topology.nodes.a.labels.linkpass.speed: expected bits per second like 400G or 1000000, got '0G'",
    ),
    "a number without an end": (
        node(f"a: {{kind: linux, labels: {{linkpass.rail: {'9' * 5000}}}}}"),
        f"4: key topology.nodes.a.labels.linkpass.rail: expected a number from 0 to 4095, got '{'9' * 57}...'",
    ),
    # links
    "links a mapping": (links("    a: b"), "6: key topology.links: expected a list of links, got a mapping"),
    "a link that is text": (
        links('    - "leaf1:1 b:1"'),
        "7: key topology.links[0]: expected a mapping with endpoints, got 'leaf1:1 b:1'",
    ),
    "no endpoints": (
        links("    - mtu: 1500"),
        "7: key topology.links[0].endpoints: expected a list of two endpoints, got nothing",
    ),
    "a slip in endpoints": (
        links("    - endponts: [leaf1:1, b:1]"),
        "7: key topology.links[0].endponts: expected the key endpoints, got 'endponts'",
    ),
    "one end": (
        links("    - endpoints: [leaf1:1]"),
        "7: key topology.links[0].endpoints: expected a list of two endpoints, got a list of 1",
    ),
    "three ends": (
        links("    - endpoints: [leaf1:1, b:1, b:2]"),
        "7: key topology.links[0].endpoints: expected a list of two endpoints, got a list of 3",
    ),
    "ends as text": (
        links("    - endpoints: leaf1:1"),
        "7: key topology.links[0].endpoints: expected a list of two endpoints, got 'leaf1:1'",
    ),
    "no colon": (
        links("    - endpoints: [leaf1:1, b]"),
        "7: key topology.links[0].endpoints[1]: expected \"node:interface\", got 'b'",
    ),
    "no interface": (
        links('    - endpoints: [leaf1:1, "b:"]'),
        "7: key topology.links[0].endpoints[1]: expected \"node:interface\", got 'b:'",
    ),
    "a space in an end": (
        links('    - endpoints: [leaf1:1, "b :1"]'),
        "7: key topology.links[0].endpoints[1]: expected \"node:interface\", got 'b :1'",
    ),
    "an end left open": (
        links('    - endpoints: ["leaf1:$PORT", b:1]'),
        "7: key topology.links[0].endpoints[0]: expected a value, got the variable $PORT, which is not set",
    ),
    "nearly a node": (
        links("    - endpoints:\n      - b:1\n      - laef1:1"),
        "9: key topology.links[0].endpoints[1]: expected a node of topology.nodes, got 'laef1'; did you mean leaf1?",
    ),
    "no such node": (
        links("    - endpoints: [zebra:1, b:1]"),
        "7: key topology.links[0].endpoints[0]: expected a node of topology.nodes, got 'zebra'",
    ),
    "an interface used twice": (
        links("    - endpoints: [leaf1:1, b:1]\n    - endpoints: [leaf1:2, b:1]"),
        "8: key topology.links[1].endpoints[1]: expected a free interface, got b:1, used in line 7",
    ),
    "an arrow in an interface": (
        links('    - endpoints: [leaf1:1, "b:1>2"]'),
        "3: key topology: expected a fabric, got: port 'b:1>2': expected a name without '>'",
    ),
    "both ends the same": (
        links("    - endpoints: [b:1, b:1]"),
        "7: key topology.links[0].endpoints[1]: expected a free interface, got b:1, used in line 7",
    ),
    "used by a dummy": (
        links("    - endpoints: [leaf1:1, b:1]\n    - {type: dummy, endpoint: {node: b, interface: 1}}"),
        "8: key topology.links[1].endpoint: expected a free interface, got b:1, used in line 7",
    ),
    "a type of another world": (
        links("    - {type: vteh, endpoints: []}"),
        "7: key topology.links[0].type: expected one of veth, veth-stitch, host, mgmt-net, macvlan, dummy, vxlan, "
        "vxlan-stitch, got 'vteh'",
    ),
    "the long form without its type": (
        links("    - endpoints:\n        - {node: b, interface: x}\n        - {node: leaf1, interface: x}"),
        '8: key topology.links[0].endpoints[0]: expected "node:interface", got a mapping; that form needs type: veth',
    ),
    "the short form with a type": (
        links("    - type: veth\n      endpoints: [leaf1:1, b:1]"),
        "8: key topology.links[0].endpoints[0]: expected a mapping with node and interface, got 'leaf1:1'",
    ),
    "no node in an end": (
        links(VETH.format("{interface: x}")),
        "9: key topology.links[0].endpoints[0].node: expected a name, got nothing",
    ),
    "no interface in an end": (
        links(VETH.format("{node: leaf1}")),
        "9: key topology.links[0].endpoints[0].interface: expected a name, got nothing",
    ),
    "half an address": (
        links(VETH.format("{node: leaf1, interface: x, mac: 02-00}")),
        "9: key topology.links[0].endpoints[0].mac: expected six bytes in hexadecimal like 02:00:00:00:00:01, "
        "got '02-00'",
    ),
    "a slip in an end": (
        links(VETH.format("{node: leaf1, inteface: x}")),
        "9: key topology.links[0].endpoints[0].inteface: expected the key interface, got 'inteface'",
    ),
    "an mtu in words": (
        links("    - endpoints: [leaf1:1, b:1]\n      mtu: jumbo"),
        "8: key topology.links[0].mtu: expected a number from 1 to 65535, got 'jumbo'",
    ),
    "an mtu too large": (
        links("    - endpoints: [leaf1:1, b:1]\n      mtu: 70000"),
        "8: key topology.links[0].mtu: expected a number from 1 to 65535, got '70000'",
    ),
    "a slip in vars": (
        links("    - endpoints: [leaf1:1, b:1]\n      vars: {linkpass.rial: 1}"),
        "8: key topology.links[0].vars.linkpass.rial: expected one of linkpass.rail, linkpass.plane, linkpass.speed, "
        "got 'linkpass.rial'",
    ),
    "vars a list": (
        links("    - endpoints: [leaf1:1, b:1]\n      vars: [1]"),
        "8: key topology.links[0].vars: expected a mapping, got a list of 1",
    ),
    "a host link without its end": (
        links("    - type: host\n      host-interface: x"),
        "7: key topology.links[0].endpoint: expected a mapping with node and interface, got nothing",
    ),
    "a host link from nowhere": (
        links("    - type: host\n      endpoint: {node: q, interface: eth1}"),
        "8: key topology.links[0].endpoint: expected a node of topology.nodes, got 'q'",
    ),
}


@pytest.mark.parametrize(("text", "message"), BROKEN.values(), ids=BROKEN)
def test_the_one_error(text: str, message: str) -> None:
    with pytest.raises(TopologyError) as error:
        parse(text, "lab.yml")
    assert str(error.value) == f"lab.yml:{message}"
