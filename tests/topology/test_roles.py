"""What is inferred about nodes that no label describes, and that it is said."""

import pytest

from topology.sources.containerlab import parse


def fabric_of(nodes: dict[str, str], links: list[tuple[str, str]]) -> str:
    lines = ["name: roles", "topology:", "  nodes:", *(f"    {name}: {{{body}}}" for name, body in nodes.items())]
    if links:
        lines.append("  links:")
        lines += [f'    - endpoints: ["{a}:p{k}", "{b}:p{k}"]' for k, (a, b) in enumerate(links)]
    return "\n".join(lines)


def roles(nodes: dict[str, str], *links: tuple[str, str]) -> dict[str, tuple[str, int | None]]:
    return {node.name: (node.role, node.tier) for node in parse(fabric_of(nodes, list(links))).nodes}


@pytest.mark.parametrize(
    ("body", "role"),
    [
        ("kind: nokia_srlinux", "switch"),
        ("kind: a-system-of-tomorrow", "switch"),
        ("kind: ovs-bridge", "switch"),
        ("kind: ostinato", "host"),
        ("kind: linux, image: quay.io/frrouting/frr:10.5.1", "switch"),
        ("kind: linux, image: docker.io/ibhde/bird4:latest", "switch"),
        ("kind: linux, image: frrouting/frr", "switch"),
        ("kind: linux, image: alpine:3", "host"),
        ("kind: linux, group: routers, image: alpine:3", "switch"),
        ("kind: linux, group: GPU-servers, image: quay.io/frrouting/frr:10.5.1", "host"),
        ("kind: linux, group: leaves", "switch"),
        ("kind: linux, labels: {linkpass.role: switch}, group: hosts", "switch"),
        ("kind: nokia_srlinux, labels: {linkpass.role: host}", "host"),
        ("kind: nokia_srlinux, labels: {linkpass.tier: 0}", "host"),
        ("kind: linux, labels: {linkpass.tier: 3}", "switch"),
    ],
)
def test_one_node(body: str, role: str) -> None:
    assert roles({"x": body})["x"][0] == role


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("PC1", "host"),
        ("rack1-leaf2", "switch"),
        ("superspine1", "switch"),
        ("client", "host"),
        ("tor_12", "switch"),
        ("gpu-07", "host"),
        ("hostile", "host"),
        ("motor1", "host"),
        ("sw1", "switch"),
    ],
)
def test_one_name(name: str, role: str) -> None:
    assert roles({name: "kind: linux"})[name][0] == role


def test_names_that_only_resemble_a_word_say_nothing() -> None:
    notes = parse(fabric_of({"hostile": "kind: linux", "motor1": "kind: linux"}, [])).notes
    assert notes == ("inferred to be host: hostile, motor1 (no more than one neighbour)",)


def test_the_graph_decides_last() -> None:
    linux, srl = "kind: linux", "kind: nokia_srlinux"
    assert roles({"a": linux, "b": linux}, ("a", "b"), ("a", "b")) == {"a": ("host", 0), "b": ("host", 0)}
    star = roles({"a": linux, "b": linux, "m": linux}, ("a", "m"), ("b", "m"))
    assert star == {"a": ("host", 0), "b": ("host", 0), "m": ("switch", 1)}
    dual = roles({"x": linux, "l": srl, "m": srl}, ("x", "l"), ("x", "m"), ("l", "m"))
    assert dual == {"x": ("host", 0), "l": ("switch", 1), "m": ("switch", 1)}


def test_tiers_are_distances_from_the_hosts_unless_stated() -> None:
    srl = "kind: nokia_srlinux"
    chain = {
        "h": "kind: linux",
        "a": srl,
        "b": srl,
        "c": srl,
        "far": f"{srl}, labels: {{linkpass.tier: 4}}",
        "lone": srl,
    }
    text = fabric_of(chain, [("h", "a"), ("a", "b"), ("b", "c"), ("c", "far")])
    fabric = parse(text)
    assert [node.tier for node in fabric.nodes] == [0, 1, 2, 3, 4, None]
    assert fabric.notes == (
        "inferred to be switch: a, b, c, lone (kind nokia_srlinux)",
        "inferred to be host: h (no more than one neighbour)",
        "inferred to be tier 1: a (links to the nearest host)",
        "inferred to be tier 2: b (links to the nearest host)",
        "inferred to be tier 3: c (links to the nearest host)",
        "tier unknown: lone (no host can be reached)",
    )
