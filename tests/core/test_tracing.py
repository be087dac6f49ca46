"""What traces tell beside the hops: said once, withdrawn when it is over, and what follows for the labels."""

from __future__ import annotations

from typing import Any

import pytest
from fabric_sim import FabricSim
from test_steering import H3

from linkpass.core import commands as cmd
from linkpass.core import events as ev
from linkpass.core.element import Element
from linkpass.core.paths import Path
from linkpass.core.settings import Damping, Limits
from linkpass.core.tracing import merged

LIMITED = ev.TraceNote("limited", 2, "spine1 gives 6 answers at once and 1 a second", ("spine1",))


class Noting(FabricSim):
    """Traces find what `finds` says of (peer, uplink)."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.finds: dict[tuple[str, str], dict[str, Any]] = {}
        self.everywhere: dict[str, Any] = {}

    def _answer(self, command: cmd.TraceLabels | cmd.ResolveUplinks) -> ev.Event:
        event = super()._answer(command)
        if isinstance(event, ev.LabelsTraced):
            found = self.everywhere | self.finds.get((self.name[event.peer], event.uplink), {})
            event = ev.LabelsTraced(cmd_id=event.cmd_id, peer=event.peer, uplink=event.uplink, hops=event.hops, **found)
        return event

    def notes(self) -> list[tuple[str, str, int]]:
        return [(one.kind, one.uplink, one.peers) for one in self.core.view(self.now_s).traces]

    def again(self, *peers: str) -> None:
        """Trace anew, now."""
        for name in peers or self.peers:
            for uplink in self.uplinks:
                self.core.world.table.peer(self.address[name]).traced_at_s.pop(uplink, None)
        self.run(4)


def test_a_note_is_said_once_and_shown_as_long_as_it_is_found() -> None:
    sim = Noting()
    sim.everywhere = {"notes": (LIMITED,)}
    sim.start()
    said = [line for line in sim.told() if "limited" in line]
    assert said == [
        f"answers to traces are limited at hop 2 over {uplink} (spine1 gives 6 answers at once and 1 a second; "
        "they are asked more slowly, and some hops are learnt later)"
        for uplink in ("eth1", "eth2")
    ]
    assert sim.notes() == [("limited", "eth1", 3), ("limited", "eth2", 3)]
    assert {path.traces for path in sim.core.view(sim.now_s).paths} == {("limited",)}
    sim.again()
    assert [line for line in sim.told() if "limited" in line] == said
    sim.finds["host3", "eth1"] = {"notes": (ev.TraceNote("limited", 2, "spine2 gives few", ("spine2",)),)}
    mark = sim.mark()
    sim.again()
    assert [line.partition(" (")[2] for line in sim.told(mark)] == [
        "spine2 gives few; they are asked more slowly, and some hops are learnt later)"
    ]
    (one,) = [one for one in sim.core.view(sim.now_s).traces if one.uplink == "eth1"]
    assert one.nodes == ("spine1", "spine2")


def test_what_is_over_is_said_after_two_traces_of_all_peers() -> None:
    sim = Noting()
    sim.everywhere = {"notes": (LIMITED,)}
    sim.start()
    sim.everywhere = {}
    mark = sim.mark()
    sim.again()
    assert sim.notes() == [("limited", "eth1", 3), ("limited", "eth2", 3)]
    sim.again("host2", "host3")
    assert sim.notes() == [("limited", "eth1", 1), ("limited", "eth2", 1)]
    assert sim.told(mark) == []
    sim.again("host4")
    assert sim.notes() == []
    assert [line.partition(" (")[0] for line in sim.told(mark)] == [
        f"no longer: answers to traces are limited at hop 2 over {uplink}" for uplink in ("eth1", "eth2")
    ]


def test_a_device_that_is_gone_takes_its_notes_along() -> None:
    sim = Noting()
    sim.everywhere = {"notes": (LIMITED,)}
    sim.start()
    sim.post(ev.UplinkGone(uplink="eth2"))
    sim.run(0.1)
    assert sim.notes() == [("limited", "eth1", 3)]


def test_what_is_owed_is_asked_for_when_it_is_due() -> None:
    sim = Noting(peers=("host3",), active=("host3",))
    sim.everywhere = {"again_s": 4.0}
    sim.start(3.5)
    assert len(sim.since(0, cmd.TraceLabels)) == 2
    assert all(command.urgent for command in sim.since(0, cmd.TraceLabels))
    mark = sim.mark()
    sim.everywhere = {}
    sim.run(4)
    assert [command.urgent for command in sim.since(mark, cmd.TraceLabels)] == [False, False]
    mark = sim.mark()
    sim.run(20)
    assert sim.since(mark, cmd.TraceLabels) == []


def test_what_has_failed_is_traced_anew_at_once_when_news_is_calm() -> None:
    sim = FabricSim(peers=("host3",), active=("host3",)).start()
    mark, begun_s = sim.mark(), sim.now_s
    sim.break_("leaf1>spine1")
    sim.run(6)
    (again,) = [(at_s, c) for at_s, c in sim.log[mark:] if isinstance(c, cmd.TraceLabels)]
    assert again[1].urgent and again[1].uplink == "eth1"
    assert 2.0 <= again[0] - begun_s <= 4.0, "not while traffic is being moved"
    mark = sim.mark()
    sim.heal()
    sim.run(6)
    assert [c.uplink for c in sim.since(mark, cmd.TraceLabels) if c.urgent] == ["eth1"]


# labels that choose nothing
def one_way(sim: FabricSim, spines: dict[str, str]) -> None:
    """All labels to a peer go over one spine."""
    real = sim.hops

    def hops(peer: str, uplink: str, label: int) -> tuple[str, ...]:
        way = real(peer, uplink, label)
        name = sim.name.get(peer, peer)
        return (way[0], spines[name], "leaf3") if len(way) == 3 and name in spines else way

    sim.hops = hops  # type: ignore[method-assign]


def test_labels_make_no_difference_where_others_show_another_way() -> None:
    sim = Noting(peers=("host3", "host4"), active=("host3", "host4"))
    one_way(sim, {"host3": "spine1", "host4": "spine2"})
    sim.start()
    sim.again()
    assert {(kind, uplink) for kind, uplink, _ in sim.notes()} == {("one_way", "eth1"), ("one_way", "eth2")}
    view = sim.core.view(sim.now_s)
    for name in ("host3", "host4"):
        used = [(path.uplink, path.label) for path in view.paths if path.peer_name == name]
        assert len(used) == 2 == len({uplink for uplink, _ in used}), "one label an uplink"
    said = next(line for line in sim.told() if line.startswith("all labels lead one way over eth1"))
    assert "all 32 labels lead over leaf1 spine" in said and "though others go over leaf1 spine" in said
    peer = next(peer for peer in view.peers if peer.name == "host3")
    assert peer.rung1 and peer.rung1_why.startswith("labels choose the uplink alone: all 32 labels")
    sim.break_("leaf1>spine1")
    sim.run(1)
    assert {sim.kernel_uplink(label) for label in sim.labels[H3]} == {"eth2"}, "the other uplink helps"


def test_one_way_is_no_fault_where_nobody_shows_another() -> None:
    sim = Noting(peers=("host3", "host4"), active=("host3", "host4"))
    one_way(sim, {"host3": "spine1", "host4": "spine1"})
    sim.start()
    sim.again()
    assert sim.notes() == []
    peer = next(peer for peer in sim.core.view(sim.now_s).peers if peer.name == "host3")
    assert peer.rung1_why == "4 labels over 2 path(s)"


def test_few_labels_prove_nothing() -> None:
    sim = Noting(peers=("host3",), active=("host3",), limits=Limits(trace_pool=8))
    one_way(sim, {"host3": "spine1"})
    sim.everywhere = {"planned": 2}
    sim.start()
    assert sim.notes() == []


@pytest.mark.parametrize("reason", ["planned", "sprayed"])
def test_with_one_uplink_rung_1_has_nothing_to_choose(reason: str) -> None:
    sim = Noting(peers=("host3",), active=("host3",), uplinks=("eth1",))
    one_way(sim, {"host3": "spine1"})
    note = ev.TraceNote("sprayed", 2, "the same packet is answered by spine1 and spine2", ("spine1", "spine2"))
    sim.start(8)
    assert sim.labels[H3]
    sim.everywhere = {"planned": 4} if reason == "planned" else {"notes": (note,)}
    sim.again()
    assert sim.labels[H3] == ()
    peer = sim.core.view(sim.now_s).peers[0]
    assert not peer.rung1
    what = "4 ways" if reason == "planned" else "eth1: the same packet is answered by spine1 and spine2"
    assert what in peer.rung1_why
    assert [one.level for one in sim.since(0, cmd.Record) if one.element == "eth1"] == ["warning"]
    sim.everywhere = {}
    sim.again()
    assert sim.labels[H3]


# hops that are believed
@pytest.mark.parametrize(
    ("known", "traced", "believed"),
    [
        (None, ("a", None), ("a", None)),
        (("a", None, "c"), (None, "b", None), ("a", "b", "c")),
        (("a", "b", "c"), ("a",), ("a", "b", "c")),
        (("a", "b", "c"), ("a", "x", None), ("a", "x", None)),
        (("a", None), ("a", "b", "c"), ("a", "b", "c")),
        (("a", None, None), ("a", "b"), ("a", "b", None)),
    ],
)
def test_gaps_are_filled_from_what_agrees(
    known: tuple[str | None, ...] | None, traced: tuple[str | None, ...], believed: tuple[str | None, ...]
) -> None:
    old = Path("p", "eth1", 1, Element("e", Damping()), known)
    assert merged(old, traced) == believed
    assert merged(None, traced) == traced
