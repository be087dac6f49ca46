"""Faults of the fabric as one host lives them: what it names, what it moves, how often, and when it goes back."""

from __future__ import annotations

import itertools

import pytest
from fabric_sim import FabricSim
from hypothesis import given
from hypothesis import strategies as st

from linkpass.core import commands as cmd
from linkpass.core import events as ev
from linkpass.core.settings import Damping

UP_S = Damping().observe_s + 0.5
"""One failure: the floor, the time to see it, the time to gather."""


def verdicts(sim: FabricSim) -> tuple[str, ...]:
    return sim.core.view(sim.now_s).verdicts


def moves(sim: FabricSim) -> int:
    return sim.core.view(sim.now_s).moves


def labels_over(sim: FabricSim, *directions: str) -> dict[str, set[int]]:
    return {
        peer: {label for uplink, label in ways if set(directions) & set(sim.directions(peer, uplink, label))}
        for peer, ways in sim.flows().items()
    }


def state_of(sim: FabricSim, link: str) -> str:
    return next((view.state for view in sim.core.view(sim.now_s).links if view.id == link), "up")


def test_start_trace_resolve_probe_then_steer() -> None:
    sim = FabricSim().start()
    kinds = [type(command) for _, command in sim.log]
    order = [cmd.TraceLabels, cmd.ResolveUplinks, cmd.SetProbes, cmd.SetLabels]
    assert [kinds.index(kind) for kind in order] == sorted(kinds.index(kind) for kind in order)
    assert sim.group == ("eth1", "eth2")
    assert set(sim.labels) == {sim.address[name] for name in sim.peers}
    for peer, labels in sim.labels.items():
        assert len(labels) == 16
        share = [labels.count(label) for label in set(labels)]
        assert max(share) - min(share) <= 1
        classes = {sim.directions(peer, sim.kernel_uplink(label), label) for label in labels}
        assert len(classes) == (2 if sim.name[peer] == "host2" else 8)
    assert moves(sim) == 0 and verdicts(sim) == ()
    assert sum("verified after the move" in line for line in sim.told()) == 4


def test_quiet_time_is_quiet() -> None:
    sim = FabricSim().start()
    mark = sim.mark()
    sim.run(120)
    kinds = {type(command) for _, command in sim.log[mark:]}
    assert kinds <= {cmd.TraceLabels, cmd.CompareFlows}
    assert len(sim.log) - mark < 3 * (2 * 4 + 42)


@pytest.mark.parametrize("jitter_s", [0.0, 0.0004])
def test_a_blackholed_fabric_link_moves_its_labels_once_and_back_once(jitter_s: float) -> None:
    sim = FabricSim().start()
    sim.jitter_s = jitter_s
    before = dict(sim.labels)
    doomed = labels_over(sim, "leaf1>spine1")
    mark, start_s = sim.mark(), sim.now_s
    sim.break_("leaf1>spine1")
    sim.run(1.0)
    assert verdicts(sim) == ("link leaf1>spine1",)
    assert moves(sim) == 1
    assert not sim.ever_used("leaf1>spine1", start_s + 0.06)
    assert sim.group == ("eth1", "eth2") and not sim.since(mark, cmd.SetGroup)
    for peer, labels in sim.labels.items():
        assert all(new == old for new, old in zip(labels, before[peer], strict=True) if old not in doomed[peer])
        assert not doomed[peer] & set(labels)
    causes = {command.cause for command in sim.since(mark, cmd.SetLabels)}
    assert len(causes) == 1
    assert any("verified after the move" in line for line in sim.told(mark))
    sim.run(5)
    assert moves(sim) == 1
    mark = sim.mark()
    sim.heal()
    sim.run(UP_S)
    assert moves(sim) == 2 and verdicts(sim) == ()
    assert {command.cause for command in sim.since(mark, cmd.SetLabels)} == causes
    assert {peer: set(labels) for peer, labels in sim.labels.items()} == {p: set(v) for p, v in before.items()}
    assert len(sim.since(mark, cmd.SetLabels)) == 2  # one for each far peer, however many paths came back


@pytest.mark.parametrize("jitter_s", [0.0, 0.0004])
@pytest.mark.parametrize("spine", ["spine1", "spine2"])
def test_a_dead_spine_is_one_verdict_and_one_move(spine: str, jitter_s: float) -> None:
    sim = FabricSim().start()
    sim.jitter_s = jitter_s
    start_s, mark = sim.now_s, sim.mark()
    sim.break_(spine)
    sim.run(1)
    assert verdicts(sim) == (f"switch {spine}",)
    assert moves(sim) == 1
    assert not any(spine in direction for direction in sim.carrying())
    assert not any(spine in d for s, c in sim.used if s > start_s + 0.06 for d in c)
    assert not sim.since(mark, cmd.SetGroup)
    sim.heal()
    sim.run(60)
    assert moves(sim) == 2 and verdicts(sim) == ()
    assert any(spine in direction for direction in sim.carrying())


def test_a_dead_leaf_takes_labels_and_group_in_one_move() -> None:
    sim = FabricSim().start()
    sim.break_("leaf1")
    sim.carrier("eth1", False)
    sim.run(0.01)
    assert sim.group == ("eth2",)
    sim.run(1)
    assert moves(sim) == 1
    assert {uplink for ways in sim.flows().values() for uplink, _ in ways} == {"eth2"}


def test_a_dead_far_leaf_is_a_switch_and_the_group_stays() -> None:
    sim = FabricSim().start()
    sim.break_("leaf3")
    sim.run(1)
    assert verdicts(sim) == ("switch leaf3",)
    assert sim.group == ("eth1", "eth2")
    assert not any("leaf3" in direction for direction in sim.carrying())
    assert moves(sim) == 1


def test_a_silent_host_link_moves_labels_and_group() -> None:
    sim = FabricSim().start()
    mark, start_s = sim.mark(), sim.now_s
    sim.break_("host1>leaf1")
    sim.run(0.5)
    assert verdicts(sim) == ("link host1>leaf1",)
    assert sim.group == ("eth2",)
    assert moves(sim) == 1
    assert not sim.ever_used("host1>leaf1", start_s + 0.05)
    assert len({c.cause for c in [*sim.since(mark, cmd.SetGroup), *sim.since(mark, cmd.SetLabels)]}) == 1
    sim.heal()
    sim.run(5)
    assert sim.group == ("eth1", "eth2")
    assert moves(sim) == 2
    assert any(direction == "host1>leaf1" for direction in sim.carrying())
    assert len({c.cause for c in [*sim.since(mark, cmd.SetGroup), *sim.since(mark, cmd.SetLabels)]}) == 1


@pytest.mark.parametrize("jitter_s", [0.0, 0.0004, 0.002])
def test_a_name_waits_until_the_evidence_is_complete(jitter_s: float) -> None:
    """The paths behind a dead port fail one after the other: at first those to one peer, whose links look guilty. The
    flows are moved at once; the journal names the port alone."""
    sim = FabricSim().start()
    sim.jitter_s = jitter_s
    mark, start_s = sim.mark(), sim.now_s
    sim.break_("host1>leaf1")
    sim.run(1)
    named = {line for line in sim.told(mark) if line.startswith("verdict ")}
    assert len(named) == 1, named
    assert "verdict link: host1>leaf1 lets nothing through" in named.pop()
    first_move_s = next(at_s for at_s, command in sim.log[mark:] if isinstance(command, cmd.SetLabels))
    assert first_move_s - start_s <= 0.032
    sim.heal()
    sim.run(5)
    sim.break_("host1>leaf1")
    sim.run(1)
    assert sum(line.startswith("verdict ") for line in sim.told(mark)) == 2


def test_carrier_loss_moves_at_once_and_tells_the_peers() -> None:
    sim = FabricSim().start()
    mark = sim.mark()
    sim.carrier("eth1", False)
    sim.run(0.0)
    (group,) = sim.since(mark, cmd.SetGroup)
    assert group.uplinks == ("eth2",)
    assert {command.peer for command in sim.since(mark, cmd.SetLabels)} == set(sim.labels)
    (notice,) = sim.since(mark, cmd.SendNotice)
    assert (notice.notice.kind, notice.notice.link, notice.notice.origin) == ("port_down", "leaf1>host1", "host1")
    assert set(notice.peers) == set(sim.labels)
    assert {command.cause for command in [group, notice, *sim.since(mark, cmd.SetLabels)]} == {group.cause}
    sim.run(1)
    assert moves(sim) == 1
    assert {uplink for ways in sim.flows().values() for uplink, _ in ways} == {"eth2"}
    assert any("verified after the move" in line for line in sim.told(mark))


def test_carrier_return_is_observed_earned_and_told_last() -> None:
    sim = FabricSim().start()
    sim.carrier("eth1", False)
    sim.run(21)
    downs = [n for n in sim.since(0, cmd.SendNotice) if n.notice.kind == "port_down"]
    assert len(downs) == 7  # repeated three times in each time to live
    assert [n.notice.seq for n in downs] == sorted({n.notice.seq for n in downs})
    mark = sim.mark()
    sim.carrier("eth1", True)
    sim.run(0.9)
    assert not sim.since(mark, cmd.SetGroup) and not sim.since(mark, cmd.SetLabels)
    assert not [n for n in sim.since(mark, cmd.SendNotice) if n.notice.kind == "port_up"]
    sim.run(2)
    (up,) = [n for n in sim.since(mark, cmd.SendNotice) if n.notice.kind == "port_up"]
    assert up.notice.link == "leaf1>host1" and up.notice.seq > downs[-1].notice.seq
    assert sim.group == ("eth1", "eth2")
    assert {uplink for ways in sim.flows().values() for uplink, _ in ways} == {"eth1", "eth2"}
    assert moves(sim) == 2
    mark = sim.mark()
    sim.run(46)
    assert not sim.since(mark, cmd.SendNotice)
    assert [c for c in sim.since(mark, cmd.TraceLabels) if c.uplink == "eth1"]


@pytest.mark.parametrize("where", ["carrier", "host1>leaf1", "leaf1>spine1", "spine1"])
def test_a_flap_at_2_hz_is_left_alone_while_it_flaps(where: str) -> None:
    sim = FabricSim().start()
    start_s = sim.now_s
    for _ in range(20):
        sim.carrier("eth1", False) if where == "carrier" else sim.break_(where)
        sim.run(0.25)
        sim.carrier("eth1", True) if where == "carrier" else sim.heal()
        sim.run(0.25)
    assert moves(sim) == 1
    bad = [d for d in ("host1>leaf1", "leaf1>spine1") if where in ("carrier", *d.split(">"), d)]
    assert not any(sim.ever_used(direction, start_s + 0.06, start_s + 10) for direction in bad[:1])
    healed_s = sim.now_s
    sim.run(60)
    assert moves(sim) == 2
    assert any(sim.ever_used(direction, sim.now_s) for direction in bad[:1])
    back_s = next(s for s, c in sim.used if s > healed_s and bad[0] in c)
    assert 10 < back_s - healed_s < 50


def test_one_bucket_moves_its_path_only_and_blames_no_link() -> None:
    sim = FabricSim().start()
    peer = sim.address["host3"]
    label = next(label for _, label in sim.flows()[peer] if "leaf1>spine1" in sim.directions(peer, "eth1", label))
    before = dict(sim.labels)
    mark = sim.mark()
    sim.break_(("leaf1>spine1", label))
    sim.run(1)
    assert label not in sim.labels[peer]
    assert {p: v for p, v in sim.labels.items() if p != peer} == {p: v for p, v in before.items() if p != peer}
    assert verdicts(sim) == ("path",)
    assert not sim.core.world.links
    assert not any("verdict link" in line or "verdict switch" in line for line in sim.told(mark))
    assert len(sim.since(mark, cmd.SetLabels)) == 1 and moves(sim) == 1


def test_losses_of_all_paths_name_their_link_within_the_expected_number_of_probes() -> None:
    sim = FabricSim().start()
    mark, start_s = sim.mark(), sim.now_s
    sim.loss["leaf1>spine1"] = 0.05
    sim.windows(3)
    sim.run(0.8)
    named = [s for s, c in sim.log[mark:] if isinstance(c, cmd.Record) and "link leaf1>spine1 loses" in c.what]
    # 4 paths cross it, 400 probes/s: Wald needs about 12 / (0.05 ln 30 - 0.95 * 0.0295) = 85 of them.
    assert named and named[0] - start_s < 0.5
    assert not any("loses" in line and "leaf1>spine1" not in line for line in sim.told(mark))
    assert state_of(sim, "leaf1>spine1") == "down"
    assert not any(direction == "leaf1>spine1" for direction in sim.carrying())
    assert moves(sim) == 1 and not sim.since(mark, cmd.SetGroup)
    sim.run(1.2)
    assert moves(sim) == 1
    sim.loss.clear()
    sim.run(0.9)
    assert not any(direction == "leaf1>spine1" for direction in sim.carrying())
    sim.run(3)
    assert state_of(sim, "leaf1>spine1") == "up"
    assert any(direction == "leaf1>spine1" for direction in sim.carrying())
    assert moves(sim) == 2


def test_soft_verdicts_take_at_most_their_share_and_no_shared_link_is_blamed_for_two_beyond_it() -> None:
    sim = FabricSim().start()
    sim.loss.update({"spine1>leaf3": 0.05, "spine2>leaf3": 0.05, "spine1>leaf4": 0.04, "leaf1>spine2": 0.06})
    sim.windows(4)
    mark = sim.mark()
    sim.run(4)
    for name in ("host3", "host4"):
        assert len(set(sim.labels[sim.address[name]])) >= 4
    assert not any("host1>" in line and "loses" in line for line in sim.told(mark))
    assert sim.group == ("eth1", "eth2")


def test_a_link_that_lost_packets_and_then_falls_silent_is_hard_and_wants_no_deadline_twice() -> None:
    sim = FabricSim().start()
    sim.loss["leaf1>spine1"] = 0.1
    sim.windows(1)
    sim.run(1)
    sim.break_("leaf1>spine1")
    sim.run(5)
    path = next(path for path in sim.core.view(sim.now_s).paths if "spine1" in path.hops and path.uplink == "eth1")
    assert path.grade == "hard"
    sim.heal()
    sim.loss.clear()
    sim.run(60)
    assert state_of(sim, "leaf1>spine1") == "up"


def test_when_all_paths_are_bad_the_last_ones_stay() -> None:
    sim = FabricSim().start()
    mark = sim.mark()
    sim.break_("leaf1", "leaf2")
    sim.run(3)
    assert sim.group == ("eth1", "eth2")
    assert all(len(labels) == 16 for labels in sim.labels.values())
    assert not sim.since(mark, cmd.SetLabels) and not sim.since(mark, cmd.SetGroup)
    assert moves(sim) == 0


def test_the_last_uplink_is_never_taken() -> None:
    sim = FabricSim().start()
    sim.carrier("eth1", False)
    sim.run(1)
    sim.carrier("eth2", False)
    sim.run(1)
    assert sim.group == ("eth2",)
    assert all(sim.labels.values())
    sim.carrier("eth1", True)
    sim.run(0.05)
    assert sim.group == ("eth1",)  # observed or not: it is the only one that may work
    sim.run(0.3)
    assert {uplink for ways in sim.flows().values() for uplink, _ in ways} == {"eth1"}


def test_a_second_fault_is_a_story_of_its_own() -> None:
    sim = FabricSim().start()
    sim.break_("leaf1>spine1")
    sim.run(10)
    mark = sim.mark()
    sim.break_("leaf2>spine2")
    sim.run(1)
    assert moves(sim) == 2
    assert verdicts(sim) == ("link leaf1>spine1", "link leaf2>spine2")
    (cause,) = {command.cause for command in sim.since(mark, cmd.SetLabels)}
    assert any("blackhole" in r.what and r.cause == cause for r in sim.since(mark, cmd.Record))
    sim.heal("leaf2>spine2")
    sim.run(5)
    assert moves(sim) == 3
    assert not any(direction == "leaf1>spine1" for direction in sim.carrying())
    sim.heal()
    sim.run(5)
    assert moves(sim) == 4


def test_a_new_peer_inherits_the_verdict_on_a_link_it_would_cross() -> None:
    sim = FabricSim(peers=("host2", "host3"), active=("host2", "host3")).start()
    sim.break_("leaf1>spine1")
    sim.run(1)
    start_s = sim.now_s
    sim.peers = sim.active = ("host2", "host3", "host4")
    sim.post(ev.PeerKnown(peer=sim.address["host4"], name="host4"))
    sim.post(ev.PeersActive(peers=tuple(sim.address[name] for name in sim.active)))
    sim.run(0.025)
    inherited = [p for p in sim.core.view(sim.now_s).paths if p.peer_name == "host4" and "spine1" in p.hops]
    assert {p.grade for p in inherited if p.uplink == "eth1"} == {"hard"}
    sim.run(2)
    assert len(set(sim.labels[sim.address["host4"]])) == 6
    assert not sim.ever_used("leaf1>spine1", start_s)
    assert verdicts(sim) == ("link leaf1>spine1",)


def test_slow_probes_to_idle_peers_acquit_no_link_on_which_fast_ones_die() -> None:
    sim = FabricSim(active=("host3",)).start(8)
    sim.break_("leaf1>spine1")
    sim.run(0.1)
    assert verdicts(sim) == ("link leaf1>spine1",)  # those to host4 are good for three seconds more
    sim.run(10)
    assert verdicts(sim) == ("link leaf1>spine1",)
    assert moves(sim) == 1
    assert not labels_over(sim, "leaf1>spine1")[sim.address["host3"]]


def test_an_idle_peers_good_path_acquits_a_link_in_the_end() -> None:
    sim = FabricSim(active=("host3",)).start(8)
    over = {label for _, label in sim.flows()[sim.address["host3"]]}
    sim.break_(*[("leaf1>spine1", label) for label in over])
    sim.run(0.1)
    assert verdicts(sim) == ("link leaf1>spine1",)
    sim.run(6)
    assert verdicts(sim) == ("path",)
    assert state_of(sim, "leaf1>spine1") == "up"


def test_three_uplinks_labels_are_used_only_where_the_kernel_sends_them() -> None:
    sim = FabricSim(uplinks=("eth1", "eth2", "eth3"), peers=("host3", "host4"), active=("host3", "host4")).start()
    assert {uplink for ways in sim.flows().values() for uplink, _ in ways} == {"eth1", "eth2", "eth3"}
    mark = sim.mark()
    sim.carrier("eth3", False)
    sim.run(0.015)
    assert sim.since(mark, cmd.ResolveUplinks)
    sim.run(2)
    assert sim.group == ("eth1", "eth2")
    planned = set(sim.targets)
    for peer, ways in sim.flows().items():
        assert all((peer, uplink, label) in planned for uplink, label in ways), "flows on a way that nobody probes"
    assert moves(sim) == 1
    sim.carrier("eth3", True)
    sim.run(4)
    assert sim.group == ("eth1", "eth2", "eth3")
    assert {uplink for ways in sim.flows().values() for uplink, _ in ways} == {"eth1", "eth2", "eth3"}
    for peer, ways in sim.flows().items():
        assert all((peer, uplink, label) in set(sim.targets) for uplink, label in ways)
    assert moves(sim) == 2


def test_ipv4_peers_have_rung_2_only() -> None:
    addresses = {f"host{k}": f"10.255.0.{k}" for k in range(1, 5)}
    sim = FabricSim(addresses=addresses).start()
    assert not sim.labels and sim.group == ("eth1", "eth2")
    assert {(uplink, label) for _, uplink, label in sim.targets} == {("eth1", 0), ("eth2", 0)}
    mark = sim.mark()
    sim.break_("host1>leaf1")
    sim.run(1)
    assert sim.group == ("eth2",)
    assert not sim.since(mark, cmd.SetLabels)
    assert any("traffic over eth2: verified" in line for line in sim.told(mark))
    assert ("10.255.0.3", "eth1", 0) in sim.targets  # its return has to be seen
    sim.heal()
    sim.run(3)
    assert sim.group == ("eth1", "eth2")
    assert moves(sim) == 2


def test_connections_of_the_other_family_are_neither_probed_nor_in_the_way() -> None:
    """A host's probes have one family; a connection of the other to the same host, a launcher's say, is only seen."""
    sim = FabricSim().start()
    before = set(sim.targets)
    mark = sim.mark()
    sim.post(ev.PeersActive(peers=tuple(sorted([*(sim.address[name] for name in sim.active), "10.255.0.3"]))))
    sim.run(2)
    assert set(sim.targets) == before
    sim.carrier("eth1", False)
    sim.run(1)
    assert sim.group == ("eth2",)
    for notice in sim.since(mark, cmd.SendNotice):
        assert all(":" in peer for peer in notice.peers)
    assert not [c for c in sim.since(mark, cmd.TraceLabels) if ":" not in c.peer]


def test_one_ipv4_path_that_fails_takes_no_uplink_from_the_others() -> None:
    addresses = {f"host{k}": f"10.255.0.{k}" for k in range(1, 5)}
    sim = FabricSim(addresses=addresses).start()
    sim.break_("leaf1>host2")
    sim.run(2)
    assert sim.group == ("eth1", "eth2")


def test_observe_mode_decides_the_same_and_touches_nothing() -> None:
    act, observe = FabricSim().start(), FabricSim(mode="observe").start()
    for sim in (act, observe):
        sim.break_("leaf1>spine1")
        sim.run(3)
        sim.carrier("eth2", False)
        sim.run(3)
    assert not {type(c) for _, c in observe.log} & {cmd.SetGroup, cmd.SetLabels, cmd.CompareFlows}
    assert moves(act) == moves(observe) == 2
    seen, done = observe.core.view(observe.now_s), act.core.view(act.now_s)
    assert [u.carries for u in seen.uplinks] == [u.carries for u in done.uplinks] == [True, False]
    assert {tuple(sorted(set(p.labels))) for p in seen.peers} == {tuple(sorted(set(p.labels))) for p in done.peers}
    assert all(steering.programmed is None for steering in seen.steering)
    assert any("would have moved" in line for line in observe.told())
    assert not any("would have" in line for line in act.told())


FAULTS = ["leaf1>spine1", "leaf2>spine1", "spine1", "spine2", "leaf3", "host1>leaf1", "host1>leaf2", "leaf4>host3"]
steps = st.lists(
    st.tuples(st.sampled_from([*FAULTS, "heal", "carrier eth1", "carrier eth2"]), st.floats(0.01, 4)), max_size=10
)


@given(steps, st.sampled_from(["act", "observe"]))
def test_whatever_breaks_when_all_is_healed_all_is_as_at_first(story: list[tuple[str, float]], mode: str) -> None:
    sim = FabricSim(mode=mode).start()
    view = sim.core.view(sim.now_s)
    for what, span_s in story:
        if what == "heal":
            sim.heal()
        elif what.startswith("carrier"):
            uplink = what.split()[1]
            sim.carrier(uplink, not sim.usable[uplink])
        else:
            sim.break_(what)
        sim.run(span_s)
    sim.heal()
    for uplink in sim.uplinks:
        if not sim.usable[uplink]:
            sim.carrier(uplink, True)
    sim.run(400)
    after = sim.core.view(sim.now_s)
    assert [(u.name, u.state, u.carries) for u in after.uplinks] == [(u.name, u.state, True) for u in view.uplinks]
    assert {path.state for path in after.paths} == {"up"}
    assert {path.grade for path in after.paths} == {"good"}
    assert after.verdicts == ()
    for before, peer in itertools.zip_longest(view.peers, after.peers):
        assert set(before.labels) == set(peer.labels)
        share = [peer.labels.count(label) for label in set(peer.labels)]
        assert max(share) - min(share) <= 1
    mark = sim.mark()
    sim.run(30)
    assert {type(c) for _, c in sim.log[mark:]} <= {cmd.TraceLabels, cmd.CompareFlows}


def test_an_uplink_whose_routes_come_back_late_takes_part_when_they_do() -> None:
    """A routing daemon needs a moment after the carrier: until then our group does not lead over it, and what the
    kernel picks is no plan."""
    sim = FabricSim().start()
    sim.carrier("eth2", False)
    sim.run(2)
    sim.lacking = {"eth2"}
    sim.carrier("eth2", True)
    sim.run(20)
    assert sim.group == ("eth1", "eth2")
    assert {uplink for ways in sim.flows().values() for uplink, _ in ways} == {"eth1"}
    sim.lacking = set()
    sim.lead()
    sim.run(5)
    assert {uplink for ways in sim.flows().values() for uplink, _ in ways} == {"eth1", "eth2"}
    sim.break_("leaf1>host2", "host2>leaf1")
    sim.run(1)
    over = {(uplink, label) for uplink, label in sim.flows()[sim.address["host2"]]}
    assert over and all(sim.passes(sim.address["host2"], uplink, label) for uplink, label in over)


def test_one_uplink_for_all_labels_is_no_plan_while_several_should_take_part() -> None:
    """The same without a group of ours: nobody tells, but the kernel's answer does."""
    sim = FabricSim(rungs=(1,)).start()
    sim.carrier("eth2", False)
    sim.run(2)
    sim.lacking = {"eth2"}
    sim.carrier("eth2", True)
    sim.run(20)
    sim.lacking = set()
    sim.run(10)
    sim.break_("leaf1>host2", "host2>leaf1")
    sim.run(1)
    over = {(uplink, label) for uplink, label in sim.flows()[sim.address["host2"]]}
    assert over and all(sim.passes(sim.address["host2"], uplink, label) for uplink, label in over)
