"""Neighbours by LLDP. `lldp/` has what lldpd 1.0.16 printed in namespaces: host1, host2 and spine1 around leaf1."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fabric_texts import FOLDER

from topology.sources.lldp import answers, is_output, joined, read
from topology.sources.reading import domainless
from topology.sources.yamltext import TopologyError

FORMS = pytest.mark.parametrize("form", ["json", "json0"])


def recorded(name: str, form: str) -> str:
    return (FOLDER / f"{name}.{form}").read_text()


def cabling(text: str, where: str) -> set[tuple[str, str]]:
    return {(link.a.id, link.b.id) for link in read(text, where).fabric.links}


@FORMS
def test_what_lldpd_printed(form: str) -> None:
    text = recorded("leaf1", form)
    assert is_output(text)
    source = read(text, "live/leaf1.json")
    assert (source.format, source.told, source.ports) == ("LLDP", {"leaf1"}, True)
    assert {(link.a.id, link.b.id) for link in source.fabric.links} == {
        ("leaf1:eth1", "host1:eth1"), ("leaf1:eth2", "host2:eth1"), ("leaf1:eth3", "spine1:eth1")
    }  # fmt: skip
    far = source.fabric.link("leaf1-host1").b
    assert far.speed_bps == 10 * 10**9, "as it says of itself: 10GbaseT"
    assert far.mac is not None and source.other_names["host1:eth1"] == (far.mac,)
    assert cabling(recorded("host1", form), "host1") == {("host1:eth1", "leaf1:eth1")}


@FORMS
def test_both_ends_are_one_cable(form: str) -> None:
    both = [answers(recorded(name, form), name) for name in ("leaf1", "host1")]
    source = joined(both)
    assert (source.told, len(source.fabric.links), source.notes) == ({"leaf1", "host1"}, 3, ())
    link = source.fabric.link("host1 leaf1")
    assert (link.a.speed_bps, link.b.speed_bps) == (10 * 10**9, 10 * 10**9)
    with pytest.raises(TopologyError, match="b:1: leaf1 tells of its neighbours in a already"):
        joined([answers(recorded("leaf1-chassis", form), name) for name in ("a", "b")])


@FORMS
@pytest.mark.parametrize("own", ["leaf1-chassis", "leaf1-interfaces"])
def test_the_node_may_say_its_name(form: str, own: str) -> None:
    texts = recorded(own, form), recorded("leaf1", form)
    for order in (texts, texts[::-1]):
        source = read("\n".join(order), "<stdin>")
        assert source.told == {"leaf1"}
        assert len(source.fabric.links) == 3
    with pytest.raises(TopologyError, match=r"^<stdin>:1: whose neighbours these are is not said: put `lldpcli -f"):
        read(texts[1], "<stdin>")


@FORMS
def test_a_node_without_neighbours(form: str) -> None:
    source = read(recorded("none", form), "host1.json")
    assert ([node.name for node in source.fabric.nodes], source.fabric.links) == (["host1"], ())


def heard(port: dict[str, Any], chassis: dict[str, Any] | None = None, interface: str = "eth1") -> str:
    body = {"via": "LLDP", "rid": "1", "chassis": chassis or {"leaf1": {"id": {"type": "mac", "value": "02:0"}}}}
    return json.dumps({"lldp": {"interface": [{interface: {**body, "port": port}}]}}, indent=1)


@pytest.mark.parametrize(
    ("kind", "value", "descr", "names"),
    [
        ("ifname", "swp1", "to host1", ("swp1", "to host1")),
        ("ifname", "swp1", "swp1", ("swp1",)),
        ("mac", "02:00:00:00:00:01", "Ethernet0", ("Ethernet0", "02:00:00:00:00:01")),
        ("mac", "02:00:00:00:00:01", None, ("02:00:00:00:00:01",)),
        ("local", "Eth1/1", "Ethernet0", ("Eth1/1", "Ethernet0")),
        ("local", "533", "xe-0/0/1", ("xe-0/0/1", "533")),
        ("ifalias", "a>b", None, ("a_b",)),
    ],
)
def test_what_a_port_is_called(kind: str, value: str, descr: str | None, names: tuple[str, ...]) -> None:
    port = {"id": {"type": kind, "value": value}, **({"descr": descr} if descr else {})}
    ((interface, told, line),) = answers(heard(port), "host1").heard
    assert (interface, told.names, line) == ("eth1", names, 5)


def test_a_node_without_a_name_is_called_by_its_id() -> None:
    port = {"id": {"type": "ifname", "value": "1"}}
    nameless = {"id": {"type": "mac", "value": "02:00:00:00:00:01"}}
    assert cabling(heard(port, nameless), "host1") == {("host1:eth1", "02-00-00-00-00-01:1")}


def test_what_a_node_says_that_it_does_tells_its_role() -> None:
    port = {"id": {"type": "ifname", "value": "1"}}
    for able, role in ((True, "switch"), (False, "host")):
        body = {"id": {"type": "mac", "value": "02:1"}, "capability": [{"type": "Router", "enabled": able}]}
        fabric = read(heard(port, {"x1": body}), "y1").fabric
        assert fabric.node("x1").role == role
        assert any(note.startswith(f"inferred to be {role}: x1") for note in fabric.notes)


def test_several_neighbours_at_a_port_are_told_and_not_modelled() -> None:
    ends = [heard({"id": {"type": "ifname", "value": name}}) for name in ("1", "2")]
    source = read("\n".join(ends), "host1")
    assert source.fabric.links == ()
    assert source.notes == (
        "not modelled, since its two ends or several neighbours contradict: host1:eth1 - leaf1:1, leaf1:2",
    )


def test_a_port_that_one_end_knows_by_its_address_is_the_one_that_tells() -> None:
    host = answers(heard({"id": {"type": "mac", "value": "02:00:00:00:00:01"}}), "host1")
    back = {"host1": {"id": {"type": "mac", "value": "02:2"}}}
    leaf = answers(heard({"id": {"type": "ifname", "value": "eth1"}}, back, "swp7"), "leaf1")
    source = joined([host, leaf])
    assert [{link.a.id, link.b.id} for link in source.fabric.links] == [{"host1:eth1", "leaf1:swp7"}]
    assert source.notes == ()


def test_a_file_may_be_named_without_the_domain_that_the_node_announces() -> None:
    leaf = answers(heard({"id": {"type": "ifname", "value": "eth1"}}, {"host1.example.org": {}}, "swp1"), "leaf1")
    host = answers(heard({"id": {"type": "ifname", "value": "swp1"}}), "live/host1.json")
    source = joined([leaf, host])
    assert (source.told, source.notes) == ({"leaf1", "host1.example.org"}, ())
    assert [{link.a.id, link.b.id} for link in source.fabric.links] == [{"leaf1:swp1", "host1.example.org:eth1"}]
    assert domainless(["a", "b.x", "10", "c.x", "d"], ["a.x", "b", "10.0.0.1", "c.y", "d.x", "d.y"]) == {
        "a": "a.x", "b.x": "b"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"lldp": {\n"interface": [', "f:2: expected JSON of lldpctl, got a mistake: Expecting value"),
        ('{"lldp": {}}\n[]', "f:2: expected what lldpctl -f json prints, an object with the key lldp"),
        ('{"lldp": {"interface":\n{"eth1":\n {"port": 3}}}}', "f:2: key chassis: expected a name or an id, got '{}'"),
        ('{"lldp": {"interface":\n{"eth1": 3}}}', "f:2: key interface: expected an object of an interface, got '3'"),
        ('{"lldp":\n {"interface": "x"}}', "f:2: key interface: expected an object, got 'x'"),
        (heard({"id": 7}), "f:5: key port.id: expected an object, got '7'"),
        (heard({"id": {"type": "ifname", "value": 7}}), "f:5: key port.id: expected text, got '7'"),
        (heard({}), "f:5: key port: expected an id or a description, got '{}'"),
        ('{"lldp": ' + "[" * 100_000, "f:1: expected JSON of lldpctl, got values nested too deeply"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(text: str, said: str) -> None:
    with pytest.raises(TopologyError) as caught:
        read(text, "f")
    assert str(caught.value) == said
