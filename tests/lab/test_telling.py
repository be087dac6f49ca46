"""From the daemons' journals to few lines, and the demo's other pure parts."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from lab.daemons import Entry
from lab.demo_plan import ACTS, QUICK
from lab.demo_screen import drawing
from lab.demo_story import first_difference, number_word
from lab.steps import RankLog
from lab.telling import Line, Teller, after, kind_of
from topology.model import Fabric


def entry(host: str, now_s: float, what: str, why: str = "", seq: int = 0) -> Entry:
    return Entry(seq=seq or int(now_s * 1e4), now_s=now_s, cause=f"{host}-1", what=what, why=why, host=host)


@pytest.mark.parametrize(
    ("what", "kind"),
    [
        ("blackhole on eth1 leaf1 spine2 leaf3 to host3", "noticed"),
        ("lossy on eth1 leaf1 to host2", "noticed"),
        ("eth1 is down", "noticed"),
        ("host1 says that leaf1>host1 is down", "heard"),
        ("host1 says that leaf1-spine1 is drained", "heard"),
        ("leaf1-spine1 is drained", "noticed"),
        ("verdict link: leaf1>spine1 lets nothing through", "verdict"),
        ("link leaf1>spine1 loses packets", "verdict"),
        ("moved 25% of the flows to host3 away: 6 path(s) carry them", "moved"),
        ("moved traffic away: eth2 carry it", "moved"),
        ("moved traffic back: eth1, eth2 carry it", "back"),
        ("would have moved traffic away: eth2 carry it", None),
        ("the flows to host3: verified after the move", None),
        ("eth1 is up", None),
        ("host1 says that leaf1>host1 is up", None),
    ],
)
def test_kinds(what: str, kind: str | None) -> None:
    assert kind_of(entry("host1", 1.0, what)) == kind


def test_the_first_of_each_kind_is_told_and_the_others_summed_up() -> None:
    teller = Teller(10.0)
    first = [
        entry("host1", 10.020, "blackhole on eth1 leaf1 to host2", "3 probes in a row lost"),
        entry("host1", 10.021, "moved 25% of the flows to host3 away: 6 path(s) carry them"),
        entry("host2", 10.022, "blackhole on eth1 leaf1 to host1"),
        entry("host2", 10.023, "verdict link: leaf1>spine1 lets nothing through", "all 4 failing path(s) cross it"),
    ]
    assert teller.take(first) == [
        Line("noticed", pytest.approx(0.020), "host1", "blackhole on eth1 leaf1 to host2"),
        Line("moved", pytest.approx(0.021), "host1", "moved 25% of the flows to host3 away: 6 path(s) carry them"),
        Line("verdict", pytest.approx(0.023), "host2",
             "link: leaf1>spine1 lets nothing through: all 4 failing paths cross it"),
    ]  # fmt: skip
    assert teller.take(first) == []
    assert teller.others("moved") is None
    more = [
        entry("host2", 10.030, "moved 25% of the flows to host3 away: 6 path(s) carry them"),
        entry("host1", 10.031, "verdict link: leaf1>spine1 lets nothing through", "all 4 failing path(s) cross it"),
        entry("host1", 10.032, "verdict link: spine1>leaf1 lets nothing through", "all 4 failing path(s) cross it"),
        entry("host2", 10.033, "moved 12% of the flows to host4 away: 6 path(s) carry them"),
    ]
    assert [line.text for line in teller.take(first + more)] == ["link: spine1>leaf1 lets nothing through"]
    assert teller.others("moved") == Line("moved", None, "host1", "acted as well: host2 +30 ms")
    assert teller.hosts("moved") == ("host1", "host2")


def test_a_restarted_daemon_counts_anew() -> None:
    teller = Teller(0.0)
    assert len(teller.take([entry("host1", 1.0, "eth1 is down", seq=7)])) == 1
    again = Entry(seq=7, run=2, now_s=2.0, cause="host1-1", what="eth1 is down", why="", host="host1")
    assert teller.take([again]) == []  # not the first any more, but seen
    assert teller.hosts("noticed") == ("host1",)


def test_after() -> None:
    assert (after(0.0214), after(4.26)) == ("+21 ms", "+4.3 s")


def test_the_first_step_with_other_weights() -> None:
    reference = [RankLog(0, hashes={10: "a", 20: "b", 30: "c"})]
    assert first_difference([RankLog(0, hashes={10: "a", 20: "b"})], reference) is None
    assert first_difference([RankLog(0, hashes={10: "a", 20: "x", 30: "y", 40: "z"})], reference) == 20


def test_the_fabric_is_drawn_from_the_top(leaf_spine: Fabric) -> None:
    lines = [line.strip() for line in drawing(leaf_spine).splitlines()]
    assert lines[0] == "spine1   spine2"
    assert lines[-1] == "host1   host2   host3   host4"
    assert lines[1] == lines[3] == "|   each below joins 2 above   |"
    shown = Console(file=io.StringIO(), width=80)
    shown.print(drawing(leaf_spine))


def test_every_fault_that_the_kernel_faces_too_is_one_of_the_demos() -> None:
    names = [act.case.name for act in ACTS]
    assert len(set(names)) == len(names)
    assert {act.case.name for act in QUICK} <= set(names)
    assert number_word(len(ACTS)) == "Nine"
