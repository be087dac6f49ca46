"""What is wished and what is programmed: failures, other masters, answers that come late or never, arming, clearing."""

from __future__ import annotations

from itertools import pairwise

import pytest
from fabric_sim import FabricSim
from playbook import Playbook, like, nothing

from linkpass.core import commands as cmd
from linkpass.core import events as ev
from linkpass.core.commands import Record, SendNotice, SetGroup, SetLabels
from linkpass.core.machine import Core
from linkpass.core.settings import CoreSettings

H3 = "fd00:ff::3"
ASKING = (cmd.TraceLabels, cmd.ResolveUplinks, cmd.CompareFlows, cmd.SetProbes, cmd.AskHost)


def steered() -> tuple[FabricSim, Playbook]:
    """A host with one peer, all proved and programmed, from here on played by hand."""
    sim = FabricSim(peers=("host3",), active=("host3",)).start()
    return sim, Playbook(sim.core, start_s=sim.now_s, aside=ASKING)


def fresh(*, mode: str = "act", rungs: tuple[int, ...] = (1, 2)) -> Playbook:
    settings = CoreSettings(host="host1", address="fd00:ff::1", mode=mode, rungs=rungs)  # type: ignore[arg-type]
    return Playbook(Core(settings), aside=ASKING)


def down(uplink: str) -> ev.UplinkState:
    return ev.UplinkState(uplink=uplink, usable=False, why="no carrier")


def up(uplink: str) -> ev.UplinkState:
    return ev.UplinkState(uplink=uplink, usable=True)


def test_the_first_group_and_its_outcome() -> None:
    book = fresh()
    book.together(up("eth1"), up("eth2"))
    book << (
        like(Record, what="put traffic on eth1, eth2", rung=2),
        like(SetGroup, group="all", uplinks=("eth1", "eth2")),
    )
    sent = book.last(SetGroup)
    book >> ev.GroupProgrammed(cmd_id=sent.cmd_id, group="all") << nothing
    book >> 1.0 << like(Record, what="traffic over eth1, eth2: not verified", cause=sent.cause)
    book >> 100.0 << nothing
    book.close()


def test_what_was_removed_is_put_back_three_times_then_left() -> None:
    _, book = steered()
    for _ in range(3):
        book >> ev.SteeringLost(what="group all", by="systemd-networkd")
        book << (
            like(Record, what="systemd-networkd removed group all", level="warning"),
            like(SetGroup, uplinks=("eth1", "eth2")),
        )
        book >> ev.GroupProgrammed(cmd_id=book.last(SetGroup).cmd_id, group="all")
        book >> 2.0
        book << nothing
    book >> ev.SteeringLost(what="group all", by="systemd-networkd")
    book << (
        like(Record, what="systemd-networkd removed group all"),
        like(Record, what="stood down on group all", why="systemd-networkd removed it 4 times"),
    )
    book >> 1000.0 << nothing
    steering = next(s for s in book.core.view(book.now_s).steering if s.object == "group all")
    assert (steering.stood_down, steering.programmed) == ("systemd-networkd removed it 4 times", None)
    # Rung 1 goes on: its own object was let alone.
    assert book.core.view(book.now_s).peers[0].rung1
    # The operator has settled it.
    book >> ev.ClearRequested(link="*")
    book << (like(Record, what="damping of * cleared"), like(SetGroup, uplinks=("eth1", "eth2")))
    book.close()


def test_removals_far_apart_are_no_fight() -> None:
    _, book = steered()
    for _ in range(10):
        book >> 700.0
        book >> ev.SteeringLost(what=f"labels {H3}", by="nft")
        book << (like(Record, what=f"nft removed labels {H3}"), like(SetLabels, peer=H3))
        book >> ev.LabelsProgrammed(cmd_id=book.last(SetLabels).cmd_id, peer=H3)
    book.close()


def test_labels_stood_down_show_in_the_view() -> None:
    _, book = steered()
    for _ in range(4):
        book >> ev.SteeringLost(what=f"labels {H3}", by="nft")
    book.forget()
    view = book.core.view(book.now_s)
    assert (view.peers[0].rung1, view.peers[0].rung1_why) == (False, "nft removed it 4 times")
    assert all(path.in_use for path in view.paths)
    book.close()


def test_a_removal_while_a_command_is_out_makes_its_outcome_void() -> None:
    _, book = steered()
    book >> down("eth1")
    book.forget()
    out = book.last(SetGroup)
    book >> ev.SteeringLost(what="group all", by="frr") << (like(Record), like(SetGroup, uplinks=("eth2",)))
    book >> ev.GroupProgrammed(cmd_id=out.cmd_id, group="all") << nothing
    assert next(s.programmed for s in book.core.view(book.now_s).steering if s.object == "group all") is None
    book >> ev.GroupProgrammed(cmd_id=book.last(SetGroup).cmd_id, group="all")
    assert next(s.programmed for s in book.core.view(book.now_s).steering if s.object == "group all") == ("eth2",)


def test_failures_are_tried_again_with_growing_pauses_and_told_sparingly() -> None:
    book = fresh()
    book >> up("eth1")
    sent_s = []
    for _ in range(14):
        sent_s.append(book.now_s)
        book >> ev.GroupFailed(cmd_id=book.last(SetGroup).cmd_id, group="all", why="no buffer space")
        deadline_s = next(wish.retry_at_s for wish in book.core.world.wishes.values())
        assert deadline_s is not None
        book >> deadline_s - book.now_s
    pauses = [round(b - a, 6) for a, b in pairwise(sent_s)]
    assert pauses[:4] == [0.05, 0.1, 0.2, 0.4]
    assert pauses == sorted(pauses) and pauses[-1] == 30.0
    told = [command for _, command in book.everything if isinstance(command, Record) and "could not" in command.what]
    assert [record.why for record in told] == ["no buffer space", "no buffer space"]
    book >> ev.GroupProgrammed(cmd_id=book.last(SetGroup).cmd_id, group="all")
    book >> 1.0
    book.forget()
    book >> 300.0 << nothing
    book.close()


def test_a_command_without_an_outcome_is_given_up_waiting_for() -> None:
    book = fresh()
    book >> up("eth1")
    book.forget()
    first = book.last(SetGroup)
    book >> 4.9 << nothing
    book >> 0.2
    book << (like(Record, why="no outcome was reported"), like(SetGroup, cmd_id=lambda number: number > first.cmd_id))
    book >> ev.GroupProgrammed(cmd_id=first.cmd_id, group="all") << nothing
    assert book.core.view(book.now_s).steering[0].programmed is None
    book.close()


def test_a_new_wish_waits_for_the_outcome_of_the_old_one() -> None:
    book = fresh()
    book.together(up("eth1"), up("eth2")).forget()
    first = book.last(SetGroup)
    book >> down("eth1") << (like(Record, what="eth1 is down"), like(Record, what="moved traffic away: eth2 carry it"))
    book >> ev.GroupProgrammed(cmd_id=first.cmd_id, group="all") << like(SetGroup, uplinks=("eth2",))
    book >> ev.GroupFailed(cmd_id=first.cmd_id, group="all", why="late") << nothing
    book.close()


def test_a_decision_does_not_starve_in_a_stream_of_events() -> None:
    _, book = steered()
    core, now_s = book.core, book.now_s
    core.handle(down("eth1"), now_s)
    for turn in range(1, 20):
        commands = core.handle(ev.DaemonLate(late_s=0.0), now_s + turn * 0.001)
        if any(isinstance(command, SetGroup) for command in commands):
            assert turn <= 11
            return
    pytest.fail("never decided")


def test_a_move_that_does_not_help_is_said() -> None:
    sim = FabricSim(peers=("host3",), active=("host3",)).start()
    mark = sim.mark()
    sim.break_("leaf1")
    sim.run(0.05)
    sim.break_("leaf2")
    sim.run(1)
    assert any("the flows to host3: 4 of 4 path(s) still fail" in line for line in sim.told(mark))
    assert any("traffic over eth2 does not get through" in line for line in sim.told(mark))


def test_a_flow_that_walks_elsewhere_disarms_rung_1_until_flows_agree_again() -> None:
    _, book = steered()
    book >> 5.0
    asked = book.last(cmd.CompareFlows)
    book >> ev.FlowCompared(cmd_id=asked.cmd_id, peer=H3, label=7, flow="1>2", agrees=False, detail="spine2 for spine1")
    book << (
        like(Record, what="rung 1 disarmed to host3", level="warning"),
        like(Record, what="left the flows to host3 to the kernel"),
        like(SetLabels, labels=()),
    )
    book >> ev.LabelsProgrammed(cmd_id=book.last(SetLabels).cmd_id, peer=H3) << nothing
    view = book.core.view(book.now_s)
    assert (view.peers[0].rung1, view.peers[0].labels) == (False, ())
    assert all(path.in_use for path in view.paths)
    book >> ev.FlowCompared(cmd_id=asked.cmd_id, peer=H3, label=7, flow="1>2", agrees=False) << nothing
    book >> ev.FlowCompared(cmd_id=asked.cmd_id, peer=H3, label=7, flow="1>2", agrees=None) << nothing
    before = sum(isinstance(command, cmd.CompareFlows) for _, command in book.everything)
    book >> 60.0
    assert sum(isinstance(command, cmd.CompareFlows) for _, command in book.everything) > before, "never asked again"
    book >> ev.FlowCompared(cmd_id=asked.cmd_id, peer=H3, label=7, flow="1>2", agrees=True)
    book << (
        like(Record, what="rung 1 armed again to host3"),
        like(Record, what="spread the flows to host3 over 8 path(s)"),
        like(SetLabels, labels=lambda labels: len(labels) == 16),
    )
    book.close()


def test_the_kernels_first_answer_counts_only_after_our_group_is_in() -> None:
    book = fresh()
    book.together(up("eth1"), up("eth2"), ev.PeersActive(peers=(H3,))).forget()
    asked = book.last(cmd.ResolveUplinks)
    for uplink in ("eth1", "eth2"):
        hops = dict.fromkeys(asked.labels, ("leaf1" if uplink == "eth1" else "leaf2", "spine1", "leaf3"))
        book >> ev.LabelsTraced(cmd_id=1, peer=H3, uplink=uplink, hops=hops)
    book >> ev.GroupProgrammed(cmd_id=book.last(SetGroup).cmd_id, group="all")
    again = book.last(cmd.ResolveUplinks)
    assert again.cmd_id > asked.cmd_id
    everything_1 = dict.fromkeys(asked.labels, "eth1")
    book >> ev.UplinksResolved(cmd_id=asked.cmd_id, peer=H3, uplink_of=everything_1)
    assert not [path for path in book.core.view(book.now_s).paths if path.grade == "good"]
    book >> ev.UplinksResolved(cmd_id=again.cmd_id, peer=H3, uplink_of={})
    assert not book.core.world.table.peers[H3].uplink_of
    halves = {label: ("eth1", "eth2")[number % 2] for number, label in enumerate(asked.labels)}
    book >> ev.UplinksResolved(cmd_id=again.cmd_id, peer=H3, uplink_of=halves)
    assert {path.uplink for path in book.core.view(book.now_s).paths} == {"eth1", "eth2"}


def test_an_uplink_that_never_joins_makes_nobody_ask_in_a_loop() -> None:
    sim = FabricSim(peers=("host3",), active=("host3",), rungs=(1,))
    sim.kernel_uplink = lambda label: "eth1"  # type: ignore[method-assign]
    sim.start(60)
    assert len(sim.since(0, cmd.ResolveUplinks)) < 30
    assert {uplink for _, uplink, _ in sim.targets} == {"eth1"}


def test_questions_that_fail_are_put_again_in_time_and_told_once() -> None:
    book = fresh()
    book.together(up("eth1"), ev.PeersActive(peers=(H3,))).forget()
    told = 0
    for _ in range(10):
        traces = sum(isinstance(command, cmd.TraceLabels) for _, command in book.everything)
        book >> ev.TraceFailed(cmd_id=1, peer=H3, uplink="eth1", why="permission denied")
        book >> ev.ResolveFailed(cmd_id=1, peer=H3, why="no route")
        book >> 3.5
        assert sum(isinstance(command, cmd.TraceLabels) for _, command in book.everything) <= traces + 2
    told = [c for _, c in book.everything if isinstance(c, Record) and c.why in ("permission denied", "no route")]
    assert len(told) == 2
    book.forget()
    book >> ev.TraceFailed(cmd_id=1, peer=H3, uplink="eth1", why="another reason") << like(Record, why="another reason")


def test_without_rung_2_no_group_is_wished() -> None:
    book = fresh(rungs=(1,))
    book.together(up("eth1"), up("eth2"), down("eth2"))
    book << like(Record, what="eth2 is down")
    book >> 10.0 << nothing
    assert book.core.view(book.now_s).steering == ()
    book.close()


def test_without_rung_1_no_labels_are_wished() -> None:
    sim = FabricSim(rungs=(2,)).start()
    assert not sim.labels and sim.group == ("eth1", "eth2")
    assert sim.core.view(sim.now_s).peers[0].rung1_why == "rung 1 is off in the configuration"
    sim.break_("host1>leaf1")
    sim.run(1)
    assert sim.group == ("eth2",)


# what traces teach
def traced(sim: FabricSim, label: int, *hops: str | None, uplink: str = "eth1") -> tuple[str | None, ...]:
    sim.post(ev.LabelsTraced(cmd_id=0, peer=H3, uplink=uplink, hops={label: hops}))
    sim.run(0)
    path = sim.core.world.table.find(H3, uplink, label)
    assert path is not None
    return path.hops or ()


def test_mute_and_cut_traces_erase_nothing_that_is_known() -> None:
    sim = FabricSim(peers=("host3",), active=("host3",)).start()
    label = next(label for _, uplink, label in sim.targets if uplink == "eth1")
    known = sim.hops(H3, "eth1", label)
    assert traced(sim, label, "leaf1", None, None) == known
    assert traced(sim, label, None, None, None) == known
    assert traced(sim, label, "leaf1") == known  # it ended in a blackhole
    assert traced(sim, label) == known
    other = "spine2" if known[1] == "spine1" else "spine1"
    assert traced(sim, label, "leaf1", other, None) == ("leaf1", other, None)
    assert traced(sim, label, "leaf1", other, known[2]) == ("leaf1", other, known[2])
    assert traced(sim, label, "leaf1", other, None, "leaf4") == ("leaf1", other, None, "leaf4")


def test_a_mute_first_hop_hides_no_neighbour_that_others_have_seen() -> None:
    sim = FabricSim(peers=("host2", "host3"), active=("host2", "host3"))
    sim.start()
    label = next(label for peer, uplink, label in sim.targets if peer == sim.address["host2"] and uplink == "eth1")
    path = sim.core.world.table.find(sim.address["host2"], "eth1", label)
    assert path is not None
    path.hops = (None,)
    assert sim.core.world.table.first_hop("eth1") == "leaf1"


def test_direct_cables_have_the_peer_as_first_hop() -> None:
    sim = FabricSim(peers=("host3",), active=("host3",))
    sim.hops = lambda peer, uplink, label: ()  # type: ignore[method-assign]
    sim.start()
    assert sim.core.world.table.first_hop("eth1") == "host3"
    assert sim.core.world.table.first_hop("eth9") is None
    sim.break_("host1>host3")
    sim.run(1)
    assert sim.labels[H3]


def test_muted_switches_still_give_paths_but_no_names() -> None:
    sim = FabricSim(peers=("host3",), active=("host3",))
    sim.mute = {"spine1", "spine2"}
    sim.start()
    assert len(set(sim.labels[H3])) == 8  # 4 ways can be told apart, two labels each
    sim.break_("spine1")
    sim.run(1)
    assert not any("spine1" in direction for direction in sim.carrying())


def test_labels_that_carry_stay_when_the_fabric_is_traced_anew() -> None:
    sim = FabricSim(peers=("host3",), active=("host3",)).start()
    before = set(sim.labels[H3])
    mark = sim.mark()
    sim.seeds = {"leaf1": 9, "leaf2": 9}  # switches hash otherwise after a restart
    sim.run(50)
    after = set(sim.labels[H3])
    assert len(after & before) >= 2
    assert sim.core.view(sim.now_s).moves == 0
    assert len({sim.directions(H3, sim.kernel_uplink(label), label) for label in after}) == 8
    assert sim.since(mark, cmd.SetProbes)


def test_late_evidence_of_a_path_that_is_no_longer_probed_is_no_evidence() -> None:
    sim = FabricSim(peers=("host3",), active=("host3",)).start()
    used = {(uplink, label) for _, uplink, label in sim.targets}
    path = next(p for p in sim.core.world.table.peers[H3].paths.values() if p.key not in used)
    mark = sim.mark()
    for evidence in ("blackhole", "good"):
        sim.post(ev.PathEvidence(peer=H3, uplink=path.uplink, label=path.label, evidence=evidence))  # type: ignore[arg-type]
        sim.post(ev.PathWindow(peer=H3, counts=(ev.PathCount(path.uplink, path.label, 100, 90),)))
        sim.post(ev.PathEvidence(peer=H3, uplink="eth9", label=1, evidence="blackhole"))
        sim.post(ev.PathWindow(peer=H3, counts=(ev.PathCount("eth9", 1, 100, 90),)))
    sim.run(1)
    assert (path.evidence, path.element.state, path.sent) == ("unknown", "unknown", 0.0)
    assert not sim.told(mark)


def test_unknown_evidence_moves_nothing() -> None:
    sim = FabricSim(peers=("host3",), active=("host3",)).start()
    mark = sim.mark()
    for _, uplink, label in sim.targets:
        sim.post(ev.PathEvidence(peer=H3, uplink=uplink, label=label, evidence="unknown", why="not judged"))
        sim.run(0.5)
    sim.run(10)
    assert not sim.since(mark, SetLabels) and not sim.since(mark, SetGroup)
    assert {path.state for path in sim.core.view(sim.now_s).paths} == {"up"}


# the operator and devices
@pytest.mark.parametrize("link", ["leaf1>spine1", "leaf1-spine1", "spine1-leaf1", "*"])
def test_clear_lets_a_healed_link_back_at_once(link: str) -> None:
    sim = FabricSim().start()
    for _ in range(4):
        sim.break_("leaf1>spine1")
        sim.run(0.3)
        sim.heal()
        sim.run(0.3)
    assert not any(direction == "leaf1>spine1" for direction in sim.carrying())
    sim.post(ev.ClearRequested(link=link))
    sim.run(0.01)
    assert any(direction == "leaf1>spine1" for direction in sim.carrying())
    assert any(f"damping of {link} cleared" in line for line in sim.told())


@pytest.mark.parametrize("link", ["eth1", "host1-leaf1", "leaf1-host1"])
def test_clear_of_a_host_link_clears_the_port(link: str) -> None:
    sim = FabricSim().start()
    for _ in range(4):
        sim.carrier("eth1", False)
        sim.run(0.3)
        sim.carrier("eth1", True)
        sim.run(0.3)
    assert sim.group == ("eth2",)
    mark = sim.mark()
    sim.post(ev.ClearRequested(link=link))
    sim.run(0.2)
    assert sim.group == ("eth1", "eth2")
    assert ("port_up", "leaf1>host1") in [(n.notice.kind, n.notice.link) for n in sim.since(mark, SendNotice)]


def test_clear_of_a_failing_link_brings_nothing_back() -> None:
    sim = FabricSim().start()
    sim.break_("leaf1>spine1")
    sim.run(1)
    sim.post(ev.ClearRequested(link="leaf1-spine1"))
    sim.run(1)
    assert not any(direction == "leaf1>spine1" for direction in sim.carrying())


def test_a_device_that_is_replaced_by_another_is_learnt() -> None:
    sim = FabricSim(uplinks=("eth1", "eth2"), peers=("host3",), active=("host3",)).start()
    sim.usable["eth2"] = False
    sim.post(ev.UplinkGone(uplink="eth2"))
    sim.run(5)
    assert sim.group == ("eth1",)
    assert {uplink for ways in sim.flows().values() for uplink, _ in ways} == {"eth1"}
    sim.uplinks = ("eth1", "eth5")
    sim.leaf["eth5"], sim.usable["eth5"] = "leaf2", True
    sim.post(ev.UplinkState(uplink="eth5", usable=True))
    sim.run(10)
    assert sim.group == ("eth1", "eth5")
    assert {uplink for ways in sim.flows().values() for uplink, _ in ways} == {"eth1", "eth5"}
    assert not any(uplink == "eth2" for _, uplink, _ in sim.targets)
    sim.uplinks, sim.usable["eth2"] = ("eth1", "eth2", "eth5"), True
    sim.post(ev.UplinkState(uplink="eth2", usable=True))
    sim.run(60)
    assert sim.group == ("eth1", "eth2", "eth5")


def test_a_port_that_was_never_up_waits_its_floor_and_is_no_move() -> None:
    sim = FabricSim()
    sim.usable["eth2"] = False
    sim.start()
    assert sim.group == ("eth1",)
    sim.carrier("eth2", True)
    sim.run(5)
    assert sim.group == ("eth1", "eth2")
    assert {uplink for ways in sim.flows().values() for uplink, _ in ways} == {"eth1", "eth2"}
    assert sim.core.view(sim.now_s).moves == 0


def test_paths_that_answer_late_join_later() -> None:
    sim = FabricSim(peers=("host3",), active=("host3",))
    sim.broken.add("leaf2>spine2")
    sim.start(0.3)
    assert not sim.labels  # the kernel's own spread is no worse than few labels
    sim.run(1)
    assert len(set(sim.labels[H3])) == 6
    sim.heal()
    sim.run(2)
    assert len(set(sim.labels[H3])) == 8
    assert sim.core.view(sim.now_s).moves == 0


def test_moves_are_counted_for_a_thousand_stories() -> None:
    sim = FabricSim(peers=("host3",), active=("host3",)).start()
    for number in range(1100):
        sim.core.world.move_keys[f"host1-x{number}", "away"] = None
    sim.break_("leaf1>spine1")
    sim.run(1)
    assert sim.core.view(sim.now_s).moves == 1
    assert len(sim.core.world.move_keys) <= 1101
