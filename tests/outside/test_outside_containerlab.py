"""containerlab's own examples and schema: every file parses, and our lab files are valid there."""

import json
import re
from pathlib import Path

import jsonschema_rs
import pytest
import yaml

import lab
from topology.model import Fabric
from topology.sources.containerlab import parse
from topology.sources.reading import near

LAB_FILES = sorted(Path(lab.__file__).parent.glob("*.clab.yml"))

FILES = {
    "01-linux-nodes.clab.yml": (3, 0, 3),
    "01-vxlan.clab.yml": (1, 1, 0),
    "24-basic-groups.clab.yaml": (3, 0, 0),
    "25-link-vars-ip.clab.yml": (0, 3, 4),
    "br01.clab.yml": (0, 4, 3),
    "clos01.clab.yml": (2, 3, 4),
    "clos02.clab.yml": (4, 10, 16),
    "frr01.clab.yml": (3, 3, 6),
    "sonic01.clab.yml": (0, 2, 1),
    "srl02.clab.yml": (0, 2, 1),
    "vr01.clab.yml": (0, 2, 1),
}
"""Hosts, switches and links in each file, counted by hand."""


def read(cases: Path, name: str) -> Fabric:
    return parse((cases / "containerlab" / name).read_text(encoding="utf-8"), name)


@pytest.fixture(scope="session")
def schema(cases: Path) -> dict[str, object]:
    loaded: dict[str, object] = json.loads((cases / "containerlab/clab.schema.json").read_text(encoding="utf-8"))
    return loaded


def test_every_file_of_the_folder_is_counted_here(cases: Path) -> None:
    assert {path.name for path in (cases / "containerlab").glob("*.clab.y*ml")} == set(FILES)


@pytest.mark.parametrize("name", FILES)
def test_nodes_and_links(cases: Path, name: str) -> None:
    fabric = read(cases, name)
    assert (len(fabric.hosts), len(fabric.switches), len(fabric.links)) == FILES[name]
    assert fabric.notes, "none of these files states roles, so what was inferred must be said"


def test_links_that_are_not_modelled_are_named(cases: Path) -> None:
    notes = read(cases, "01-linux-nodes.clab.yml").notes
    assert [note for note in notes if "not modelled" in note] == [
        "link not modelled: l2:eth4, type host",
        "link not modelled: l2:eth5, type mgmt-net",
        "link not modelled: l2:somedummy, type dummy",
    ]
    assert "link not modelled: srl1:e1-1, type vxlan" in read(cases, "01-vxlan.clab.yml").notes
    assert any(note.startswith("addresses not modelled: ") for note in read(cases, "25-link-vars-ip.clab.yml").notes)
    assert any("br-clab" in note and "learn" in note for note in read(cases, "br01.clab.yml").notes)


def test_long_form_links(cases: Path) -> None:
    link = read(cases, "01-linux-nodes.clab.yml").links[2]
    assert (link.id, link.a.mac, link.b.mac) == ("l1:eth3-l2:eth3", "02:00:00:00:00:00", "02:00:00:00:00:01")
    assert read(cases, "01-linux-nodes.clab.yml").links[0].mtu == 2000


def test_groups_and_their_default(cases: Path) -> None:
    assert [node.kind for node in read(cases, "24-basic-groups.clab.yaml").nodes] == ["linux"] * 3


def test_tiers_of_a_five_stage_clos(cases: Path) -> None:
    fabric = read(cases, "clos02.clab.yml")
    tiers = {node.name: node.tier for node in fabric.nodes}
    assert {re.sub(r"\d+$", "", name): tier for name, tier in tiers.items()} == {
        "client": 0,
        "leaf": 1,
        "spine": 2,
        "superspine": 3,
    }
    assert [len(fabric.equal_cost_paths("client1", peer)) for peer in ("client2", "client3")] == [2, 2]


def test_routers_in_a_triangle(cases: Path) -> None:
    fabric = read(cases, "frr01.clab.yml")
    assert [node.name for node in fabric.hosts] == ["PC1", "PC2", "PC3"]
    assert [path.nodes for path in fabric.equal_cost_paths("PC1", "PC2")] == [("PC1", "router1", "router2", "PC2")]


@pytest.mark.parametrize("path", LAB_FILES, ids=lambda path: path.name)
def test_our_lab_files_are_valid_for_containerlab(schema: dict[str, object], path: Path) -> None:
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    errors = [error.message for error in jsonschema_rs.validator_for(schema).iter_errors(document)]
    assert errors == []


def test_the_schema_check_can_fail(schema: dict[str, object]) -> None:
    validator = jsonschema_rs.validator_for(schema)
    assert not validator.is_valid({"name": "x", "topology": {"nodes": {"a": {"kind": "linux", "colour": "red"}}}})


def test_no_key_of_the_schema_is_taken_for_a_slip_of_another(schema: dict[str, object]) -> None:
    definitions = schema["definitions"]
    assert isinstance(definitions, dict)
    read_of_nodes = ("kind", "group", "image", "labels")
    for word in definitions["node-config"]["properties"]:
        assert near(word, read_of_nodes) in (None, word)


def test_every_kind_of_the_schema_is_taken_as_it_is(schema: dict[str, object]) -> None:
    definitions = schema["definitions"]
    assert isinstance(definitions, dict)
    for kind in definitions["node-config"]["properties"]["kind"]["enum"]:
        assert parse(f"name: x\ntopology: {{nodes: {{a: {{kind: {kind}}}}}}}").nodes[0].kind == kind
