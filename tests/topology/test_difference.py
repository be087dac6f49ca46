"""What a comparison names: each mistake once, from both ends, and nothing else."""

from __future__ import annotations

from itertools import pairwise

import fabric_texts as texts
import pytest
from fabrics import arbitrary, leaf_spines, rails
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from topology import generate
from topology.difference import Compared, compare
from topology.model import Fabric, Link, Node, Port
from topology.sources import lldp
from topology.sources.cables import Source
from topology.sources.formats import read
from topology.sources.yamltext import TopologyError

unhurried = settings(deadline=None)
fabrics = st.one_of(leaf_spines(), rails, st.just(generate.fat_tree(4)))


def source(fabric: Fabric) -> Source:
    return Source("DOT", fabric)


def neighbours(fabric: Fabric, told: list[str], form: str = "json") -> Source:
    return lldp.joined([lldp.answers(texts.lldp(fabric, name, form), name) for name in told])


def kinds(found: Compared) -> list[tuple[str, set[str]]]:
    return [(one.kind, set(one.ports)) for one in found.differences]


def ports(*links: Link) -> set[str]:
    return {port.id for link in links for port in (link.a, link.b)}


@unhurried
@given(st.one_of(fabrics, arbitrary()))
def test_a_plan_and_itself_do_not_differ(fabric: Fabric) -> None:
    found = compare(source(fabric), source(fabric))
    assert (found.differences, found.alike, found.unknown) == ((), len(fabric.links), 0)


@unhurried
@given(fabrics, st.sampled_from(["json", "json0"]), st.data())
def test_the_same_fabric_in_any_format_does_not_differ(fabric: Fabric, form: str, data: st.DataObject) -> None:
    names = [node.name for node in fabric.nodes]
    told = data.draw(st.lists(st.sampled_from(names), unique=True, min_size=1))
    live = neighbours(fabric, told, form)
    for text in (texts.dot(fabric), texts.containerlab(fabric)):
        plan = read(text)
        assert isinstance(plan, Source)
        found = compare(plan, live)
        heard = {link.id for name in told for link in fabric.links_of(name)}
        assert (found.differences, found.alike, found.unknown) == ((), len(heard), len(fabric.links) - len(heard))
    hosts = {node.name for node in fabric.hosts}
    if not all(hosts.intersection(fabric.neighbours(node.name)) for node in fabric.switches if node.tier == 1):
        return  # Slurm has no switch that joins nothing below
    conf = read(texts.slurm(fabric))
    assert isinstance(conf, Source)
    assert compare(conf, neighbours(fabric, names, form)).differences == ()


@unhurried
@given(st.one_of(fabrics, arbitrary()), st.data())
def test_two_swapped_cables_are_named_and_no_others(fabric: Fabric, data: st.DataObject) -> None:
    assume(len(fabric.links) >= 2)
    one, other = data.draw(st.lists(st.sampled_from(fabric.links), min_size=2, max_size=2, unique=True))
    assume(one.a.node != other.b.node and other.a.node != one.b.node)
    live = texts.swapped(fabric, one, other)
    for plan, seen in ((fabric, live), (live, fabric)):
        found = compare(source(plan), source(seen))
        assert kinds(found) == [("swapped", ports(one, other))]
        assert found.alike == len(fabric.links) - 2
        (said,) = (difference.says for difference in found.differences)
        assert all(port in said for port in ports(one, other)) and said.endswith("these two are swapped")


@unhurried
@given(st.one_of(fabrics, arbitrary()), st.data())
def test_every_port_that_differs_is_named_once(fabric: Fabric, data: st.DataObject) -> None:
    """Any recabling: some cables gone, the ends of others shuffled."""
    kept = [link for link in fabric.links if data.draw(st.booleans())]
    far = data.draw(st.permutations([link.b for link in kept]))
    live = [Link(link.a, b) for link, b in zip(kept, far, strict=True) if link.a.node != b.node]
    found = compare(source(fabric), source(texts.recabled(fabric, live)))
    before = {frozenset((link.a.id, link.b.id)) for link in fabric.links}
    after = {frozenset((link.a.id, link.b.id)) for link in live}
    named = [port for one in found.differences for port in one.ports]
    assert len(named) == len(set(named))
    assert set(named) == {port for ends in before ^ after for port in ends}
    for one in found.differences:
        assert {frozenset(pair) for pair in one.planned} <= before - after
        assert {frozenset(pair) for pair in one.live} <= after - before
        assert all(port in one.says for port in one.ports)
        joined = {frozenset(pair) for pair in (*one.planned, *one.live)}
        assert all(frozenset(step) in joined for step in pairwise(one.ports)), "a chain, in its order"
    assert found.alike == len(before & after)


PLAN = """graph plan { edge [speed="400G"]
  "host1":"eth1" -- "leaf1":"swp1"
  "host2":"eth1" -- "leaf1":"swp2"
  "host3":"eth1" -- "leaf1":"swp3"
  "host4":"eth1" -- "leaf1":"swp4"
}"""


def against_plan(*cables: str, told: frozenset[str] | None = None, ignore: tuple[str, ...] = ()) -> Compared:
    """Cables as `host1:eth1 leaf1:swp1 200`, the last being Gbit/s."""
    links, names = [], set[str]()
    for cable in cables:
        a, b, *rate = cable.split()
        speed = int(rate[0]) * 10**9 if rate else None
        links.append(Link(Port(*a.split(":"), speed), Port(*b.split(":"), speed)))  # type: ignore[arg-type]
        names |= {a.split(":")[0], b.split(":")[0]}
    nodes = [Node(name, "host" if name.startswith("host") else "switch") for name in sorted(names)]
    plan = read(PLAN)
    assert isinstance(plan, Source)
    return compare(plan, Source("LLDP", Fabric("live", nodes, links), told), ignore)


FIRST, SECOND, THIRD, FOURTH = (f"host{k}:eth1 leaf1:swp{k}" for k in range(1, 5))


@pytest.mark.parametrize(
    ("cables", "kind", "says"),
    [
        (
            ("host1:eth1 leaf1:swp2", "host2:eth1 leaf1:swp1", THIRD, FOURTH), "swapped",
            "leaf1:swp1 should lead to host1:eth1, leads to host2:eth1; host1:eth1 is found at leaf1:swp2: these two "
            "are swapped",
        ),
        (
            ("host1:eth1 leaf1:swp2", "host2:eth1 leaf1:swp3", "host3:eth1 leaf1:swp1", FOURTH), "interchanged",
            "host1:eth1 should lead to leaf1:swp1, leads to leaf1:swp2; host3:eth1 should lead to leaf1:swp3, leads to "
            "leaf1:swp1; host2:eth1 should lead to leaf1:swp2, leads to leaf1:swp3: these 3 are interchanged",
        ),
        (
            ("host1:eth1 leaf1:swp9", SECOND, THIRD, FOURTH), "moved",
            "host1:eth1 should lead to leaf1:swp1, leads to leaf1:swp9; at leaf1:swp1 no neighbour is heard; "
            "leaf1:swp9 should have none",
        ),
        (("host1:eth1 leaf1:swp2", THIRD, FOURTH), "miscabled", "host1:eth1 should lead to leaf1:swp1, leads to leaf1"),
        ((SECOND, THIRD, FOURTH), "missing", "host1:eth1 should lead to leaf1:swp1, and no neighbour is heard"),
        (
            (FIRST, SECOND, THIRD, FOURTH, "host9:x leaf1:y"), "extra",
            "host9:x leads to leaf1:y, and should have no link",
        ),
        (
            (f"{FIRST} 200", SECOND, THIRD, f"{FOURTH} 400"), "speed",
            "host1:eth1 - leaf1:swp1 should run at 400 Gbit/s, runs at 200 Gbit/s",
        ),
    ],
)  # fmt: skip
def test_what_is_said(cables: tuple[str, ...], kind: str, says: str) -> None:
    (found,) = against_plan(*cables).differences
    assert found.kind == kind
    assert says in found.says


def test_what_no_end_tells_of_is_not_compared() -> None:
    found = against_plan(FIRST, told=frozenset({"host1", "host2"}))
    assert [one.says for one in found.differences] == [
        "host2:eth1 should lead to leaf1:swp2, and no neighbour is heard; leaf1:swp2 does not tell"
    ]
    assert (found.alike, found.unknown) == (1, 2)


def test_an_earlier_reading_is_no_plan_of_what_it_did_not_hear() -> None:
    fabric = generate.leaf_spine(4, uplinks=1, racks=2, spines=1)
    before, now = (neighbours(fabric, told) for told in (["leaf1"], ["leaf1", "leaf2"]))
    found = compare(before, now)
    assert (found.differences, found.alike, found.unknown) == ((), 3, 3)
    assert [one.kind for one in compare(source(before.fabric), now).differences] == ["extra"] * 3


def test_what_is_ignored_is_left_out_of_both() -> None:
    management = ("host1:eth0 mgmt1:1", "leaf1:eth0 mgmt1:2")
    assert len(against_plan(FIRST, SECOND, THIRD, *management).differences) == 3
    found = against_plan(FIRST, SECOND, THIRD, *management, ignore=("mgmt*", "leaf?:swp4"))
    assert (found.differences, found.alike) == ((), 3)


def test_names_with_a_domain_are_the_same_nodes() -> None:
    found = against_plan(*(cable.replace(":eth", ".example.org:eth") for cable in (FIRST, SECOND, THIRD, FOURTH)))
    assert found.differences == ()
    assert "by their names without domain: 4 nodes, for instance host1.example.org" in found.notes[0]


def test_a_port_may_be_planned_by_another_of_its_names() -> None:
    text = texts.lldp(generate.leaf_spine(1, racks=1, uplinks=1, spines=1), "host1", "json0")
    text = text.replace('"ifname"', '"local"').replace('"id": [\n', '"descr": [{"value": "Ethernet0"}], "id": [\n')
    live = lldp.read(text, "host1")
    plan = read("graph { host1:eth1 -- leaf1:Ethernet0 }")
    assert isinstance(plan, Source)
    assert live.fabric.links[0].b.name == "eth1"
    assert compare(plan, live).differences == ()


def test_slurm_is_compared_by_nodes() -> None:
    plan = read("SwitchName=leaf1 Nodes=host[1-2]\nSwitchName=leaf2 Nodes=host[3-5]\nSwitchName=s Switches=leaf[1-2]\n")
    assert isinstance(plan, Source)
    links = ["host1:1 leaf2:1", "host2:1 leaf1:2", "host3:1 leaf1:1", "host4:1 leaf1:3", "leaf1:9 s:1", "leaf2:9 s:2"]
    ends = [[end.split(":") for end in link.split()] for link in links]
    made = [Link(Port(*a), Port(*b)) for a, b in ends]  # type: ignore[arg-type]
    names = {port.node for link in made for port in (link.a, link.b)}
    live = Fabric("live", [Node(name, "host" if name[0] == "h" else "switch") for name in sorted(names)], made)
    found = compare(plan, source(live))
    assert [one.kind for one in found.differences] == ["swapped", "moved", "missing"]
    assert [one.says for one in found.differences] == [
        "host1 should be at leaf1, is at leaf2; host3 should be at leaf2, is at leaf1: these two are swapped",
        "host4 should be at leaf2, is at leaf1",
        "leaf2 and host5 should be joined, and are not",
    ]
    assert found.alike == 3


def test_a_neighbour_that_contradicts_is_told_and_not_compared() -> None:
    stale = generate.leaf_spine(2, racks=1, uplinks=1, spines=1)
    now = texts.swapped(stale, stale.links[0], stale.links[1])
    answers = [lldp.answers(texts.lldp(fabric, name), name) for fabric, name in ((stale, "leaf1"), (now, "host1"))]
    live = lldp.joined(answers)
    assert len(live.fabric.links) == 1, "leaf and spine"
    assert any("contradict: host1:eth1 - leaf1:eth1, leaf1:eth2" in note for note in live.notes)
    found = compare(source(stale), live)
    assert (found.differences, found.alike, found.unknown) == ((), 1, 2), "unsure is not missing"


def test_a_fabric_that_is_none_is_refused() -> None:
    with pytest.raises(TopologyError):
        read("graph { a:b -- a:c }", "f")
