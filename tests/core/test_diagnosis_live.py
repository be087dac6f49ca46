"""The diagnosis inside a core: what one host's paths name, what peers' words add, and what they cannot do."""

from __future__ import annotations

import io
import re

import msgspec
import pytest
from fabric_sim import FabricSim
from rich.console import Console

from linkpass.cli.story import story_of
from linkpass.core import commands as cmd
from linkpass.core import events as ev
from linkpass.core.diagnosis.accounts import MEMORY_S, Accounts
from linkpass.core.settings import Diagnosis
from linkpass.core.survey import probing_interval_s

ON = Diagnosis(enabled=True)


def verdicts(sim: FabricSim, mark: int = 0) -> list[str]:
    said = [record.what for record in sim.since(mark, cmd.Record) if record.what.startswith("verdict ")]
    return [text for text in said if not text.endswith(" fails")]  # that a host is given up is said elsewhere


def started(**more: object) -> FabricSim:
    return FabricSim(diagnosis=ON, **more).start()  # type: ignore[arg-type]


@pytest.mark.parametrize("direction", ["leaf1>spine1", "spine2>leaf4", "leaf3>host3", "spine1>leaf3"])
def test_a_direction_is_named_once_with_what_was_ruled_out(direction: str) -> None:
    sim = started()
    mark = sim.mark()
    sim.break_(direction)
    sim.run(2.0)
    assert verdicts(sim, mark) == [f"verdict direction: {direction} lets nothing through"]
    (record,) = [one for one in sim.since(mark, cmd.Record) if one.what.startswith("verdict ")]
    assert "ruled out" in record.why and "observed paths over it lose" in record.why
    assert record.cause and record.cause in {one.cause for one in sim.since(mark, cmd.SetLabels)}


@pytest.mark.parametrize(("broken", "kind"), [("spine1", "switch"), ("leaf4", "switch")])
def test_a_node_is_named_as_one(broken: str, kind: str) -> None:
    sim = started()
    mark = sim.mark()
    sim.break_(broken)
    sim.run(2.0)
    assert verdicts(sim, mark) == [f"verdict {kind}: {broken} lets nothing through"]
    assert sim.core.view(sim.now_s).verdicts == (f"{kind} {broken}",)


def test_the_move_does_not_wait_for_the_name() -> None:
    sim = started()
    mark = sim.mark()
    sim.break_("leaf1>spine1")
    sim.run(2.0)
    first = {type(command): at_s for at_s, command in reversed(sim.log[mark:]) if not isinstance(command, cmd.Record)}
    named_s = next(at_s for at_s, one in sim.log[mark:] if isinstance(one, cmd.Record) and "verdict" in one.what)
    assert first[cmd.SetLabels] < named_s


def test_what_heals_is_taken_back_and_named_again_when_it_fails_again() -> None:
    sim = started()
    for _ in range(2):
        mark = sim.mark()
        sim.break_("spine1>leaf3")
        sim.run(2.0)
        sim.heal()
        sim.run(20.0)
        assert verdicts(sim, mark) == [
            "verdict direction: spine1>leaf3 lets nothing through",
            "verdict direction: spine1>leaf3 holds no longer",
        ]
        assert sim.core.world.findings == ()


def test_what_flaps_is_one_story() -> None:
    sim = started()
    mark = sim.mark()
    for _ in range(6):
        sim.break_("leaf1>spine1")
        sim.run(0.25)
        sim.heal()
        sim.run(0.25)
    assert verdicts(sim, mark) == ["verdict direction: leaf1>spine1 lets nothing through"]
    sim.run(5.0)
    assert verdicts(sim, mark)[1:] == ["verdict direction: leaf1>spine1 holds no longer"]


def test_quiet_time_costs_nothing() -> None:
    sim = started()
    sim.break_("spine1>leaf3")
    sim.run(1.0)
    sim.heal()
    sim.run(60.0)
    assert sim.core._diagnosis is not None and sim.core._diagnosis.due_s is None


def test_a_link_that_loses_a_little_is_named_with_its_ratio() -> None:
    sim = started()
    mark = sim.mark()
    sim.loss["spine1>leaf3"] = 0.05
    sim.windows(5.0)
    sim.run(5.0)
    (said,) = verdicts(sim, mark)
    match = re.fullmatch(r"verdict direction: spine1>leaf3 loses (\d+\.\d)%", said)
    assert match is not None and float(match[1]) == pytest.approx(5, rel=0.5)


def test_one_own_link_and_its_switch_are_not_told_apart_alone_but_by_a_peers_word() -> None:
    """Everything over eth1 fails: the port, the cable, the leaf. Peers that see the leaf fail for others, too, say so;
    a peer that says it of something else changes nothing."""
    sim = started()
    mark = sim.mark()
    sim.break_("leaf1")
    sim.run(3.0)
    (said,) = verdicts(sim, mark)
    assert "leaf1" in said and "not told apart" in said
    for number, element in enumerate(("spine9", "leaf2", "leaf1")):
        word = ev.Notice(kind="suspect", link=element, origin="host3", seq=100 + number, ttl_s=10.0)
        sim.post(ev.NoticeHeard(peer=sim.address["host3"], notice=word))
    sim.run(2.0)
    assert verdicts(sim, mark)[-1] == "verdict switch: leaf1 lets nothing through"
    assert len(verdicts(sim, mark)) == 2


def test_two_hosts_that_see_one_direction_each_name_the_link() -> None:
    sim = started()
    mark = sim.mark()
    sim.break_("leaf1>spine1", "spine1>leaf1")
    sim.run(1.0)
    word = ev.Notice(kind="suspect", link="spine1>leaf1", origin="host3", seq=1, ttl_s=10.0)
    sim.post(ev.NoticeHeard(peer=sim.address["host3"], notice=word))
    sim.run(1.0)
    assert verdicts(sim, mark) == [
        "verdict direction: leaf1>spine1 lets nothing through",
        "verdict link: leaf1-spine1 lets nothing through",
    ]


def hear(sim: FabricSim, element: str, seq: int, *, ttl_s: float = 10.0, origin: str = "host3") -> None:
    word = ev.Notice(kind="suspect", link=element, origin=origin, seq=seq, ttl_s=ttl_s)
    sim.post(ev.NoticeHeard(peer=sim.address[origin], notice=word))


def words(sim: FabricSim, mark: int) -> list[tuple[str, float]]:
    said = [one.notice for one in sim.since(mark, cmd.SendNotice) if one.notice.kind == "suspect"]
    return [(word.link, word.ttl_s) for word in said]


def test_a_word_about_the_direction_that_one_sees_oneself_makes_no_link_of_it() -> None:
    sim = started()
    for number, origin in enumerate(("host2", "host3", "host4")):
        hear(sim, "leaf1>spine1", number, origin=origin)
    mark = sim.mark()
    sim.break_("leaf1>spine1")
    sim.run(2.0)
    assert verdicts(sim, mark) == ["verdict direction: leaf1>spine1 lets nothing through"]


def test_what_is_known_by_words_is_told_as_far_as_it_is_seen() -> None:
    """Or the word would come back, and two hosts would hold each other's for the other direction's."""
    sim = started()
    mark = sim.mark()
    hear(sim, "spine1>leaf1", 1)
    sim.break_("leaf1>spine1", "spine1>leaf1")
    sim.run(1.0)
    assert verdicts(sim, mark) == ["verdict link: leaf1-spine1 lets nothing through"]
    assert {name for name, _ in words(sim, mark)} == {"leaf1>spine1"}


def test_a_word_ends_with_the_name() -> None:
    """A fault of one direction is no link because the other one has failed a moment ago."""
    sim = started()
    mark = sim.mark()
    sim.break_("leaf1>spine1")
    sim.run(1.0)
    sim.heal()
    sim.run(10.0)
    assert words(sim, mark)[-1] == ("leaf1>spine1", 0.0)
    assert [ttl_s for _, ttl_s in words(sim, mark)].count(0.0) == 1
    hear(sim, "spine2>leaf1", 1)
    hear(sim, "spine2>leaf1", 2, ttl_s=0.0)
    mark = sim.mark()
    sim.break_("leaf1>spine2")
    sim.run(2.0)
    assert verdicts(sim, mark) == ["verdict direction: leaf1>spine2 lets nothing through"]


@pytest.mark.parametrize("link", ["*", "leaf1-spine1", "spine1-leaf1", "leaf1>spine1"])
def test_what_is_cleared_is_over_and_named_again_when_it_fails_again(link: str) -> None:
    sim = started()
    said = "verdict direction: leaf1>spine1"
    mark = sim.mark()
    for _ in range(2):
        sim.break_("leaf1>spine1")
        sim.run(1.0)
        sim.heal()
        sim.run(0.5)
        assert sim.core.view(sim.now_s).named == ("leaf1>spine1",)
        sim.post(ev.ClearRequested(link=link))
        sim.run(0.3)
        assert sim.core.view(sim.now_s).named == ()
    assert verdicts(sim, mark) == [f"{said} lets nothing through", f"{said} holds no longer"] * 2
    over = [one for one in sim.since(mark, cmd.Record) if one.what.endswith("holds no longer")]
    assert {one.why for one in over} == {"cleared by the operator"} and all(one.cause for one in over)
    sim.run(5.0)
    assert len(verdicts(sim, mark)) == 4


def test_what_still_fails_is_named_again_after_it_was_cleared() -> None:
    sim = started()
    mark = sim.mark()
    sim.break_("spine1")
    sim.run(1.0)
    sim.post(ev.ClearRequested(link="leaf9-spine9"))
    sim.run(1.0)
    assert len(verdicts(sim, mark)) == 1
    sim.post(ev.ClearRequested(link="*"))
    sim.run(1.0)
    assert verdicts(sim, mark)[1:] == [
        "verdict switch: spine1 holds no longer",
        "verdict switch: spine1 lets nothing through",
    ]


def test_health_from_before_a_fault_acquits_nobody() -> None:
    """A direction begins to lose after a quiet time, and by chance the paths to one peer show it first: those to the
    other, which have not lost yet, are no clean ones of ten seconds."""
    sim = started()
    sim.run(30.0)
    mark = sim.mark()
    for step in range(1, 21):
        at_s = 0.1 * step
        for name in ("host3", "host4"):
            counts = [
                ev.PathCount(uplink, label, 10, int("spine2" in sim.hops(peer, uplink, label)))
                for peer, uplink, label in sim.targets
                if peer == sim.address[name]
            ]
            if name == "host3" or step > 5:
                window = ev.PathWindow(peer=sim.address[name], counts=tuple(counts))
                sim.later(at_s, lambda window=window: window)
    sim.run(0.6)
    sim.run(3.0)
    assert [said.split(" loses")[0] for said in verdicts(sim, mark)] == ["verdict switch: spine2"]


def test_a_lying_peer_accuses_and_moves_nothing() -> None:
    sim = started()
    mark = sim.mark()
    for number, element in enumerate(["leaf1", "host2", "leaf1>spine1", "host1-leaf1", *(f"x{n}" for n in range(100))]):
        word = ev.Notice(kind="suspect", link=element, origin="host3", seq=number, ttl_s=1e9)
        sim.post(ev.NoticeHeard(peer=sim.address["host3"], notice=word))
    sim.run(10.0)
    assert verdicts(sim, mark) == []
    assert sim.since(mark, cmd.SetLabels) == sim.since(mark, cmd.SetGroup) == []
    assert len(sim.core.world.suspected) <= 16


def test_a_verdict_is_told_to_peers_as_long_as_it_stands() -> None:
    sim = started()
    mark = sim.mark()
    sim.break_("spine1")
    sim.run(8.0)
    words = [one.notice for one in sim.since(mark, cmd.SendNotice) if one.notice.kind == "suspect"]
    assert {word.link for word in words} == {"spine1"} and len(words) == 3
    quiet = FabricSim(diagnosis=Diagnosis(enabled=True, share=False)).start()
    mark = quiet.mark()
    quiet.break_("spine1")
    quiet.run(8.0)
    assert not [one for one in quiet.since(mark, cmd.SendNotice) if one.notice.kind == "suspect"]


def test_an_observer_names_by_itself_and_tells_nobody() -> None:
    sim = FabricSim(mode="observe", diagnosis=Diagnosis(enabled=True)).start()
    mark = sim.mark()
    sim.break_("spine1")
    sim.run(8.0)
    assert any("spine1" in verdict for verdict in sim.core.view(sim.now_s).verdicts)
    assert not sim.since(mark, cmd.SendNotice)


def test_a_silent_host_is_named_when_its_data_has_stopped_and_a_silent_daemon_is_not() -> None:
    sim = started()
    mark = sim.mark()
    sim.silence("host3")
    sim.run(3.0)
    assert verdicts(sim, mark) == []
    sim.speak("host3")
    sim.post(ev.PeerData(peer=sim.address["host3"], flows=True))
    sim.run(20.0)
    sim.silence("host3")
    sim.post(ev.PeerData(peer=sim.address["host3"], flows=False))
    sim.run(1.0)
    assert verdicts(sim, mark)[-1] == "verdict host: host3 lets nothing through"


def test_a_mute_hop_accuses_nobody() -> None:
    sim = FabricSim(diagnosis=ON)
    sim.mute.add("spine1")
    sim.start()
    mark = sim.mark()
    sim.break_("leaf1>spine1")
    sim.run(3.0)
    assert verdicts(sim, mark) == []


def test_without_diagnosis_numpy_stays_out() -> None:
    sim = FabricSim().start()
    assert sim.core._diagnosis is None
    assert sim.core.view(sim.now_s).findings == ()


def test_why_tells_what_was_seen_what_explains_it_what_it_is_not_and_what_was_done() -> None:
    sim = started()
    mark = sim.mark()
    sim.break_("spine1>leaf3")
    sim.run(2.0)
    sim.heal()
    sim.run(20.0)
    records = [(at_s, one) for at_s, one in sim.log[mark:] if isinstance(one, cmd.Record)]
    cause = next(one.cause for _, one in records if one.what.startswith("verdict "))
    entries = [{**msgspec.structs.asdict(one), "now_s": at_s, "wall": "noon"} for at_s, one in records]
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(story_of([entry for entry in entries if entry["cause"] == cause]))
    lines = [line.strip() for line in console.export_text().splitlines()]
    part = re.compile(r"(seen|explained by|not|done|checked|afterwards) ")
    found = [match[1] for line in lines if (match := part.match(line))]
    assert found == ["seen", "explained by", "not", "done", "checked", "afterwards"]
    (named,) = [line for line in lines if line.startswith("explained by")]
    assert "direction: spine1>leaf3 lets nothing through" in named
    assert any(line.startswith("done") and "moved" in line for line in lines)
    assert any(line.startswith("afterwards") and "moved" in line and " back: " in line for line in lines)
    assert any(line.startswith("and ") and line.endswith("more") for line in lines)


def over(sim: FabricSim, direction: str) -> list[tuple[str, str, int]]:
    return [key for key in sim.targets if direction in sim.directions(*key)]


def evidence(sim: FabricSim, keys: list[tuple[str, str, int]], what: ev.Evidence, *, large_only: bool = False) -> None:
    for peer, uplink, label in keys:
        said = ev.PathEvidence(
            peer=peer, uplink=uplink, label=label, evidence=what, large_only=large_only, why="probes"
        )  # fmt: skip
        sim.post(said)


def count(uplink: str, label: int, sent: int, again: int) -> ev.FlowCount:
    return ev.FlowCount(ev.FlowAt(uplink, label, 40000, 5000), sent, again)


def sent_again(sim: FabricSim, direction: str, sent: int, again: int, span_s: float) -> None:
    """Each second flows over all paths tell what they have sent, those over `direction` that they sent some again."""
    for second in range(1, round(span_s) + 1):
        for name in sim.peers:
            counts = tuple(
                count(uplink, label, sent, again if direction in sim.directions(peer, uplink, label) else 0)
                for peer, uplink, label in sim.targets
                if peer == sim.address[name]
            )
            window = ev.FlowWindow(peer=sim.address[name], counts=counts)
            sim.later(float(second), lambda window=window: window)


def named_at_s(sim: FabricSim, mark: int) -> float:
    told = (at_s for at_s, one in sim.log[mark:] if isinstance(one, cmd.Record) and one.what.startswith("verdict "))
    return next(told, float("inf"))


def test_what_flows_send_again_accuses_nobody_of_what_no_probe_has_lost() -> None:
    sim = started()
    mark = sim.mark()
    sent_again(sim, "leaf1>spine1", 100_000, 30_000, 8.0)
    sim.run(2.0)
    assert sim.core._diagnosis is not None and sim.core._diagnosis.due_s is None  # it is no bad news
    sim.loss["spine2>leaf4"] = 0.05
    sim.windows(6.0)
    sim.run(6.0)
    assert [said.split(" loses")[0] for said in verdicts(sim, mark)] == ["verdict direction: spine2>leaf4"]


def test_flows_that_send_nothing_again_do_not_acquit_what_probes_find() -> None:
    sim = started()
    mark = sim.mark()
    sim.loss["spine1>leaf3"] = 0.05
    sim.windows(6.0)
    sent_again(sim, "", 1_000_000, 0, 6.0)
    sim.run(6.0)
    assert [said.split(" loses")[0] for said in verdicts(sim, mark)] == ["verdict direction: spine1>leaf3"]


def test_flows_make_certain_sooner_what_probes_find() -> None:
    took_s: list[float] = []
    for again in (0, 200):
        sim = started()
        mark, began_s = sim.mark(), sim.now_s
        sim.loss["spine1>leaf3"] = 0.01
        sim.windows(8.0)
        if again:
            sent_again(sim, "spine1>leaf3", 10_000, again, 8.0)
        sim.run(8.0)
        assert [said.split(" loses")[0] for said in verdicts(sim, mark)] == ["verdict direction: spine1>leaf3"]
        took_s.append(named_at_s(sim, mark) - began_s)
    assert took_s[1] <= took_s[0]


def test_flows_under_a_label_of_the_kernels_own_are_not_kept() -> None:
    sim = started()
    counts = tuple(count("eth1", 0x10000 + number, 100, 1) for number in range(50))
    sim.post(ev.FlowWindow(peer=sim.address["host3"], counts=counts))
    sim.post(ev.FlowWindow(peer="fd00::99", counts=counts))
    sim.run(0.1)
    assert sim.core._diagnosis is not None and not sim.core._diagnosis._accounts._flows


def test_flows_over_a_queue_are_no_evidence() -> None:
    """There they lose by themselves, which is how they learn to send less."""
    sim = started()
    key = over(sim, "spine1>leaf3")[0]
    peer, path = sim.core.world.table.peer(key[0]), sim.core.world.table.peer(key[0]).paths[key[1:]]
    for evidence, lost in (("good", 2.0), ("queueing", 1.0)):
        path.evidence = evidence  # type: ignore[assignment]
        accounts = Accounts(sim.core.world)
        accounts.count(ev.PathWindow(peer=key[0], counts=(ev.PathCount(key[1], key[2], 50, 1),)), 1.0)
        accounts.flows(ev.FlowWindow(peer=key[0], counts=(count(key[1], key[2], 1000, 100),)))
        assert accounts.settle(peer, path, 1.0, 0.1).lost == lost


def test_what_lets_small_packets_through_is_named_for_large_ones_alone() -> None:
    sim = started()
    mark = sim.mark()
    evidence(sim, over(sim, "spine1>leaf3"), "blackhole", large_only=True)
    sim.run(1.0)
    assert verdicts(sim, mark) == ["verdict direction: spine1>leaf3 lets no large packet through"]


def test_a_failure_of_long_ago_is_not_counted_until_now() -> None:
    """A path left the plan while it failed, and nothing was said of it: the next time its losses begin anew."""
    sim = started()
    key = over(sim, "spine1>leaf3")[0]
    peer, path = sim.core.world.table.peer(key[0]), sim.core.world.table.peer(key[0]).paths[key[1:]]
    accounts, interval_s = Accounts(sim.core.world), probing_interval_s(sim.core.world, peer)
    fails = ev.PathEvidence(peer=key[0], uplink=key[1], label=key[2], evidence="blackhole")
    path.evidence = "blackhole"
    for at_s in (1000.0, 2000.0):
        accounts.evidence(fails, at_s)
        entry = accounts.settle(peer, path, at_s, 0.1)
        assert entry.lost == entry.sent == pytest.approx(0.03 / interval_s)
        accounts.rest()
    accounts.evidence(fails, 3000.0)
    assert accounts.settle(peer, path, 4000.0, 0.1).lost == pytest.approx(MEMORY_S / interval_s)
