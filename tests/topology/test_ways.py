"""Ways over forwarding tables: what one walk says and what all tables together say is the same, whatever they hold."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topology.sources import iblinkinfo, ibnetdiscover, ibroute
from topology.sources.ibroute import Table
from topology.sources.infiniband import Subnet
from topology.sources.ways import Ways

HERE = Path(__file__).parent / "ib"
NET = ibnetdiscover.read((HERE / "ibnetdiscover.txt").read_text())
TABLES = ibroute.parse((HERE / "dump_fts.txt").read_text())
PORTS = {"leaf1": (0, 1, 2, 5, 7, 8), "leaf2": (0, 1, 2, 5, 7, 8), "spine1": (0, 1, 2, 5), "spine2": (0, 1, 2, 5)}


def table(said: str, ports: dict[int, int | None], *, last: int = 8) -> Table:
    """The captured one with other ports; None: no entry."""
    old = next(one for one in TABLES if one.said == said)
    kept = {lid: port for lid, port in {**old.ports, **ports}.items() if port is not None}
    return Table(old.line, old.guid, said, old.first, last, kept)


def with_tables(*changed: Table) -> list[Table]:
    said = {one.said for one in changed}
    return [one for one in TABLES if one.said not in said] + list(changed)


def walk(ways: Ways, source: str, lid: int, subnet: Subnet = NET) -> tuple[str, tuple[str, ...]]:
    found = subnet.port(source)
    assert found is not None
    way = ways.follow(found[0], found[1].number, lid)
    return way.end, way.at


def test_the_subnet_manager_s_tables_lead_everywhere() -> None:
    ways = Ways(NET, TABLES)
    assert (ways.faults(), ways.missing, ways.strange) == ((), (), ())
    source = NET.port("node1:HCA-1/1")
    assert source is not None
    way = ways.follow(source[0], 1, 6)
    assert way.path is not None
    assert way.path.nodes == ("node1", "leaf1", "spine1", "leaf2", "node1")
    assert way.path.directions == ("node1>leaf1", "leaf1>spine1", "spine1>leaf2", "leaf2>node1")
    assert walk(ways, "node1:HCA-1/1", 3) == ("arrives", ())


@pytest.mark.parametrize(
    ("changed", "end", "at", "why", "pairs"),
    [
        ([table("leaf1", {6: None})], "hole", ("leaf1",), "the table of leaf1 has no port for it", 2),
        ([table("leaf1", {6: 5})], "dead end", ("leaf1:5",), "leaf1:5 has no link, and the table of leaf1 sends by", 2),
        ([table("leaf1", {6: 2})], "astray", ("leaf1:2",), "it gets to node2:HCA-1/1, which is another's", 2),
        ([table("leaf1", {6: 0})], "astray", ("leaf1:0",), "leaf1 takes it for its own", 2),
        ([table("leaf1", {6: 7}), table("spine1", {6: 1})], "loop", ("leaf1:7", "spine1:1"),
         "the tables send it round: leaf1 > spine1 > leaf1", 2),
    ],
)  # fmt: skip
def test_what_goes_wrong_is_said_with_its_port(
    changed: list[Table], end: str, at: tuple[str, ...], why: str, pairs: int
) -> None:
    ways = Ways(NET, with_tables(*changed))
    (fault,) = ways.faults()
    assert (fault.end, fault.at, fault.lids, fault.pairs) == (end, at, (6,), pairs)
    assert why in fault.why
    assert walk(ways, "node1:HCA-1/1", 6)[0] == end


def test_above_the_end_of_a_whole_table_packets_are_dropped_and_of_a_part_it_is_not_known() -> None:
    whole = table("leaf1", {8: None}, last=7)
    assert walk(Ways(NET, with_tables(whole)), "node1:HCA-1/1", 8) == ("hole", ("leaf1",))
    part = Table(1, whole.guid, "leaf1", 2, 7, whole.ports)
    assert walk(Ways(NET, with_tables(part)), "node1:HCA-1/1", 8) == ("unknown", ("leaf1",))
    assert walk(Ways(NET, with_tables(part)), "node1:HCA-1/1", 1) == ("unknown", ("leaf1",))


def test_a_link_that_is_not_active_carries_nothing() -> None:
    text = (HERE / "iblinkinfo.txt").read_text()
    marked = text.replace(
        'Active/  LinkUp)==>       4    1[  ] "spine1"', 'Armed/  LinkUp)==>       4    1[  ] "spine1"'
    )
    subnet = iblinkinfo.read(marked)
    faults = Ways(subnet, TABLES).faults()
    assert {(fault.end, fault.at) for fault in faults} == {("dead end", ("leaf1:7",))}
    assert "leaf1:7 is Armed, which carries no data" in faults[0].why


def test_tables_of_other_switches_are_named() -> None:
    stranger = Table(1, "00000000000fffff", "leaf9", 0, 8, {})
    ways = Ways(NET, [*TABLES[1:], stranger])
    assert (ways.missing, ways.strange) == ((TABLES[0].said,), ("leaf9",))


def changes() -> st.SearchStrategy[list[Table]]:
    per_switch = {
        said: st.dictionaries(st.integers(1, 8), st.one_of(st.none(), st.sampled_from(ports)), max_size=4)
        for said, ports in PORTS.items()
    }
    return st.fixed_dictionaries(per_switch).map(lambda by: [table(said, ports) for said, ports in by.items()])


@settings(max_examples=300, deadline=None)
@given(tables=changes())
def test_all_faults_together_cut_off_the_pairs_that_single_walks_find(tables: list[Table]) -> None:
    ways = Ways(NET, tables)
    hosts = {lid: node.port_id(at) for lid, (node, at) in NET.lids.items() if at is not None}
    lost: dict[int, int] = {}
    for lid, name in hosts.items():
        for source in hosts.values():
            if source != name and walk(ways, source, lid)[0] != "arrives":
                lost[lid] = lost.get(lid, 0) + 1
    faults = ways.faults()
    assert sum(fault.pairs for fault in faults) == sum(lost.values())
    assert set(lost) <= {lid for fault in faults for lid in fault.lids}
    for fault in faults:
        assert fault.pairs >= 0 and fault.lids == tuple(sorted(set(fault.lids)))
