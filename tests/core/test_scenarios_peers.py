"""Peers that fall silent, speak, lie, are filtered or are many."""

from __future__ import annotations

import pytest
from fabric_sim import FabricSim
from playbook import Playbook, like, nothing

from linkpass.core import commands as cmd
from linkpass.core import events as ev
from linkpass.core.machine import Core
from linkpass.core.settings import CoreSettings, Limits, Probing

H2, H3, H4 = "fd00:ff::2", "fd00:ff::3", "fd00:ff::4"


def say(sim: FabricSim, speaker: str, kind: ev.NoticeKind, link: str, seq: int, ttl_s: float = 10.0) -> None:
    notice = ev.Notice(kind=kind, link=link, origin=speaker, seq=seq, ttl_s=ttl_s)
    sim.post(ev.NoticeHeard(peer=sim.address[speaker], notice=notice))
    sim.run(0.0)


def steered(sim: FabricSim, mark: int) -> list[cmd.Command]:
    return [*sim.since(mark, cmd.SetLabels), *sim.since(mark, cmd.SetGroup)]


# silence
def test_a_host_that_falls_silent_is_escalated_once_and_nothing_moves() -> None:
    sim = FabricSim().start()
    sim.post(ev.PeerData(peer=H3, flows=True))
    sim.run(0)
    mark, start_s = sim.mark(), sim.now_s
    sim.silence("host3")
    sim.later(0.5, lambda: ev.PeerData(peer=H3, flows=False))
    sim.run(30)
    (escalate,) = sim.since(mark, cmd.Escalate)
    (at_s,) = [s for s, c in sim.log if isinstance(c, cmd.Escalate)]
    assert at_s == pytest.approx(start_s + 2.0)
    assert escalate.host == "host3"
    assert escalate.evidence == (
        "silent on all 8 paths for 2.00 s",
        "its data has stopped",
        "2 other peer(s) answer over eth1, eth2",
        "host4 answers through leaf3",
    )
    assert not steered(sim, mark)
    assert not sim.core.world.links and sim.core.view(sim.now_s).verdicts == ()
    assert {record.cause for record in sim.since(mark, cmd.Record)} == {escalate.cause}
    sim.post(ev.Escalated(cmd_id=escalate.cmd_id, host="host3"))
    sim.run(0)
    assert sim.since(mark, cmd.Record)[-1].cause == escalate.cause
    sim.speak("host3")
    sim.run(1)
    assert any("host3 is heard again" in line for line in sim.told(mark))
    sim.silence("host3")
    sim.run(5)
    assert len(sim.since(mark, cmd.Escalate)) == 2


def test_a_silence_after_a_goodbye_accuses_nobody_and_the_next_one_is_judged() -> None:
    sim = FabricSim().start()
    sim.post(ev.PeerData(peer=H3, flows=True))
    mark = sim.mark()
    word = ev.Notice(kind="goodbye", link="", origin="host3", seq=0, ttl_s=1.0)
    sim.post(ev.NoticeHeard(peer=H3, notice=word))
    sim.silence("host3")
    sim.later(0.5, lambda: ev.PeerData(peer=H3, flows=False))
    sim.run(30)
    assert not sim.since(mark, cmd.Escalate) and not steered(sim, mark)
    assert any("goodbye" in record.why for record in sim.since(mark, cmd.Record))
    sim.speak("host3")
    sim.post(ev.PeerData(peer=H3, flows=True))
    sim.run(10)
    sim.silence("host3")
    sim.later(0.5, lambda: ev.PeerData(peer=H3, flows=False))
    sim.run(5)
    assert len(sim.since(mark, cmd.Escalate)) == 1


def test_a_silent_peer_with_which_nothing_was_exchanged_is_not_given_up() -> None:
    sim = FabricSim().start()
    sim.post(ev.PeerData(peer=H3, flows=False))
    mark = sim.mark()
    sim.silence("host3")
    sim.run(30)
    assert not sim.since(mark, cmd.Escalate)
    assert any("nothing had been exchanged" in record.what for record in sim.since(mark, cmd.Record))


def test_idle_hosts_that_are_switched_off_take_no_failing_hosts_turn() -> None:
    """Nothing was ever exchanged with them, and nothing is known of their data."""
    idle = {f"idle{k}": f"fd00:ff:0:1::{k:x}" for k in range(6)}
    leaves = dict.fromkeys(idle, ("leaf3", "leaf4"))
    sim = FabricSim(
        addresses=idle, leaves=leaves, peers=("host2", "host3", "host4", *idle), active=("host2", "host3", "host4")
    )
    sim.kernels = dict.fromkeys(sim.address, "runs")
    sim.start(10)
    sim.post(ev.PeerData(peer=H3, flows=True))
    sim.run(0)
    mark = sim.mark()
    for name in idle:
        sim.kernels[name] = "dead"
        sim.silence(name)
        sim.run(20)
    assert not sim.since(mark, cmd.Escalate)
    assert sum("nothing had been exchanged" in record.what for record in sim.since(mark, cmd.Record)) == 6
    sim.kernels["host3"] = "dead"
    sim.silence("host3")
    sim.later(0.5, lambda: ev.PeerData(peer=H3, flows=False))
    sim.run(5)
    assert [command.host for command in sim.since(mark, cmd.Escalate)] == ["host3"]


def test_another_key_is_no_filter() -> None:
    sim = FabricSim().start()
    mark = sim.mark()
    sim.post(ev.PeerFiltered(peer=H3, rule="", why="signed with another key"))
    sim.run(0)
    assert [record.why for record in sim.since(mark, cmd.Record)] == ["signed with another key"]


def test_an_escalation_that_fails_is_said() -> None:
    sim = FabricSim().start()
    sim.silence("host3")
    sim.run(5)
    sim.post(ev.EscalateFailed(cmd_id=1, host="host3", why="no hook"))
    sim.post(ev.EscalateFailed(cmd_id=1, host="nobody", why="no hook"))
    sim.run(0)
    assert sim.told()[-2] == "host3 was not handed over (no hook)"


def test_a_silent_daemon_whose_data_flows_is_not_accused() -> None:
    sim = FabricSim().start()
    mark = sim.mark()
    sim.post(ev.PeerData(peer=H3, flows=True))
    sim.silence("host3")
    sim.run(60)
    assert not sim.since(mark, cmd.Escalate) and not steered(sim, mark)
    assert sum("only its daemon" in line for line in sim.told(mark)) == 1
    # The job ends in good order: nobody is connected any more.
    sim.post(ev.PeersActive(peers=(H2, H4)))
    sim.run(60)
    assert not sim.since(mark, cmd.Escalate)


def test_data_that_flowed_at_the_last_look_speaks_for_nobody_before_the_next_one() -> None:
    """Sockets are looked at once a second: who froze in between is given up a moment later, not twice as late."""
    sim = FabricSim().start()
    sim.post(ev.PeerData(peer=H3, flows=True))
    mark = sim.mark()
    sim.silence("host3")
    sim.run(2.2)
    assert not sim.since(mark, cmd.Escalate)
    sim.post(ev.PeerData(peer=H3, flows=False))
    sim.run(0.1)
    assert sim.since(mark, cmd.Escalate)
    assert not any("only its daemon" in line for line in sim.told(mark))


def test_data_that_stops_under_a_silent_daemon_gets_its_time_then_the_host_is_given_up() -> None:
    sim = FabricSim().start()
    sim.post(ev.PeerData(peer=H3, flows=True))
    sim.silence("host3")
    sim.run(60)
    sim.post(ev.PeerData(peer=H3, flows=False))
    sim.run(1)
    sim.post(ev.PeerData(peer=H3, flows=True))  # it was a stall only
    sim.run(60)
    assert not sim.since(0, cmd.Escalate)
    sim.post(ev.PeerData(peer=H3, flows=False))
    sim.run(1.9)
    assert not sim.since(0, cmd.Escalate)
    sim.run(0.2)
    assert len(sim.since(0, cmd.Escalate)) == 1


def test_when_all_are_silent_nobody_is_accused_until_others_speak() -> None:
    sim = FabricSim().start()
    for peer in (H2, H3, H4):
        sim.post(ev.PeerData(peer=peer, flows=True))
        sim.later(0.6, lambda peer=peer: ev.PeerData(peer=peer, flows=False))
    sim.run(0)
    mark = sim.mark()
    sim.silence("host2", "host3", "host4")
    sim.run(20)
    assert not sim.since(mark, cmd.Escalate) and not steered(sim, mark)
    assert sum("the fault may be this host's" in line for line in sim.told(mark)) == 3
    sim.speak("host2", "host4")
    sim.run(1.5)
    assert not sim.since(mark, cmd.Escalate)
    sim.run(1)
    (escalate,) = sim.since(mark, cmd.Escalate)
    assert escalate.host == "host3"


def test_silence_earns_no_return_and_moves_nothing() -> None:
    sim = FabricSim(peers=("host3",), active=("host3",)).start()
    sim.break_("leaf1>spine1")
    sim.run(3)
    mark = sim.mark()
    sim.heal()
    sim.run(0.5)  # watched
    sim.silence("host3")
    sim.run(10)
    assert not steered(sim, mark)
    assert {path.state for path in sim.core.view(sim.now_s).paths if path.evidence == "good"} == {"up", "down"}
    sim.speak("host3")
    sim.run(0.9)
    assert not steered(sim, mark)
    sim.run(1)
    assert steered(sim, mark)
    assert {path.state for path in sim.core.view(sim.now_s).paths} == {"up"}


def test_losses_stay_a_soft_reason_when_the_peer_falls_silent() -> None:
    sim = FabricSim(peers=("host3",), active=("host3",)).start()
    for path in sim.core.view(sim.now_s).paths[:7]:
        sim.post(
            ev.PathEvidence(peer=H3, uplink=path.uplink, label=path.label, evidence="lossy", loss_ratio=0.05, why="x")
        )
    sim.run(1)
    assert sim.group == ("eth2",) and len(set(sim.labels[H3])) == 2  # one good path, and half of what else works
    mark = sim.mark()
    sim.silence("host3")
    sim.run(5)
    assert not steered(sim, mark)


def test_a_filtered_peer_is_said_once_with_the_rule_and_never_accused() -> None:
    sim = FabricSim().start()
    mark = sim.mark()
    for _ in range(3):
        sim.post(ev.PeerFiltered(peer=H3, rule="ip6 nexthdr tcp tcp dport 3785 accept"))
    sim.silence("host3")
    sim.post(ev.PeerData(peer=H3, flows=False))
    sim.run(10)
    assert sum("add the rule: ip6 nexthdr" in line for line in sim.told(mark)) == 1
    assert not sim.since(mark, cmd.Escalate) and not steered(sim, mark)
    assert next(p.filtered for p in sim.core.view(sim.now_s).peers if p.name == "host3")
    for target in [target for target in sim.targets if target[0] == H3]:
        sim.core.world.table.find(*target).forget_evidence(sim.now_s)  # type: ignore[union-attr]
        sim.evidence.pop(target)
    sim.speak("host3")
    sim.run(1)
    assert any("no longer filtered" in line for line in sim.told(mark))
    assert not next(p.filtered for p in sim.core.view(sim.now_s).peers if p.name == "host3")


# notices
def test_a_peers_port_down_moves_what_leads_there_and_its_word_ends_by_itself() -> None:
    sim = FabricSim().start()
    mark = sim.mark()
    say(sim, "host3", "port_down", "leaf3>host3", 5)
    sim.run(0.1)
    assert not any(direction == "leaf3>host3" for direction in sim.carrying())
    assert sim.core.view(sim.now_s).moves == 1
    assert {command.peer for command in sim.since(mark, cmd.SetLabels)} == {H3}
    assert any(link.drained and "says host3" in link.why for link in sim.core.view(sim.now_s).links)
    sim.run(5)
    say(sim, "host3", "port_down", "leaf3>host3", 6)  # repeated: nothing new, lives longer
    sim.run(7)
    assert not any(direction == "leaf3>host3" for direction in sim.carrying())
    sim.run(4)
    assert any(direction == "leaf3>host3" for direction in sim.carrying())
    assert any("has ended" in line for line in sim.told(mark))
    assert sim.core.view(sim.now_s).moves == 2
    assert not sim.core.world.told


def test_port_up_takes_the_word_back_and_late_words_are_late() -> None:
    sim = FabricSim().start()
    say(sim, "host3", "port_down", "leaf3>host3", 5)
    say(sim, "host3", "port_up", "leaf3>host3", 6)
    say(sim, "host3", "port_down", "leaf3>host3", 5)
    sim.run(0.2)
    assert any(direction == "leaf3>host3" for direction in sim.carrying())
    say(sim, "host3", "port_up", "leaf3>host3", 7)
    assert not sim.core.world.told


def test_a_peer_that_was_away_may_count_anew() -> None:
    sim = FabricSim().start()
    say(sim, "host3", "port_down", "leaf3>host3", 500)
    sim.silence("host3")
    sim.run(30)
    sim.speak("host3")
    sim.run(2)
    say(sim, "host3", "port_down", "leaf3>host3", 1)
    sim.run(0.1)
    assert not any(direction == "leaf3>host3" for direction in sim.carrying())


def test_nobody_speaks_of_others_ports() -> None:
    sim = FabricSim().start()
    mark = sim.mark()
    for seq, link in enumerate(["leaf3>host4", "leaf1>host1", "host1>leaf1", "leaf1>spine1"]):
        say(sim, "host3", "port_down", link, seq)
        say(sim, "host3", "port_up", link, seq + 10)
    sim.run(1)
    assert not steered(sim, mark)
    assert sum("its own ports only" in line for line in sim.told(mark)) == 1


def test_a_liar_that_drains_everything_moves_nothing_but_what_ends_at_it() -> None:
    sim = FabricSim().start()
    before = {peer: set(labels) for peer, labels in sim.labels.items()}
    links = sorted({direction for target in sim.targets for direction in sim.directions(*target)})
    mark = sim.mark()
    for seq, link in enumerate([*links, *(link.replace(">", "-") for link in links), "leaf1-spine1", "spine1-leaf3"]):
        if not link.endswith("host3"):
            say(sim, "host3", "drain", link, seq, ttl_s=600)
    sim.run(1)
    assert not steered(sim, mark) and not sim.core.world.told
    assert sum("a host may drain its own links only" in line for line in sim.told(mark)) == 1
    for seq, link in enumerate(("leaf3-host3", "leaf4>host3"), 1000):
        say(sim, "host3", "drain", link, seq, ttl_s=600)
    sim.run(1)
    assert {peer for peer, labels in sim.labels.items() if set(labels) != before[peer]} <= {H3}


def test_names_with_dashes_let_nobody_drain_what_is_anothers() -> None:
    names = {"a": "fd00:ff::2", "b-a": "fd00:ff::3"}
    leaves = {"a": ("leaf1", "leaf2"), "b-a": ("leaf3", "leaf4")}
    sim = FabricSim(addresses=names, leaves=leaves, peers=("a", "b-a"), active=("a", "b-a")).start()
    mark = sim.mark()
    say(sim, "a", "drain", "leaf3-b-a", 1, ttl_s=600)
    sim.run(1)
    assert not steered(sim, mark)
    say(sim, "b-a", "drain", "leaf3-b-a", 1, ttl_s=600)
    sim.run(1)
    assert {command.peer for command in sim.since(mark, cmd.SetLabels)} == {names["b-a"]}


def test_an_operators_host_that_drains_everything_takes_at_most_the_share() -> None:
    sim = FabricSim(operators=(H3,)).start()
    before = {peer: set(labels) for peer, labels in sim.labels.items()}
    links = sorted({direction for target in sim.targets for direction in sim.directions(*target)})
    for seq, link in enumerate(links):
        say(sim, "host3", "drain", link, seq, ttl_s=600)
    sim.run(1)
    assert sim.group is not None and len(sim.group) >= 1
    for peer, labels in sim.labels.items():
        assert len(set(labels)) >= len(before[peer]) / 4
        assert len(labels) == 16
    sim.run(620)
    assert {peer: set(labels) for peer, labels in sim.labels.items()} == before
    assert sim.group == ("eth1", "eth2")


def test_a_liar_fills_neither_memory_nor_journal() -> None:
    sim = FabricSim(operators=(H3,)).start()
    mark = sim.mark()
    for seq in range(1000):
        say(sim, "host3", "drain", f"x{seq}>y", seq, ttl_s=-5.0 if seq % 2 else 1e9)
    assert len(sim.core.world.told) <= 64
    assert sum("speaks of 64 links already" in line for line in sim.told(mark)) == 1
    for seq in range(1000):
        say(sim, "host3", "undrain", f"x{seq}>y", seq + 2000)
    assert not sim.core.world.told
    assert not steered(sim, mark)


# drains
def test_an_observer_moves_nobody_else_by_a_drain_either() -> None:
    sim = FabricSim(mode="observe").start()
    mark = sim.mark()
    for link in ("eth1", "leaf1-spine1"):
        sim.post(ev.DrainRequested(link=link, everywhere=True))
        sim.run(700)
        sim.post(ev.UndrainRequested(link=link, everywhere=True))
        sim.run(1)
    assert not sim.since(mark, cmd.SendNotice)


def test_drain_of_a_host_link_moves_labels_and_group_tells_the_peers_and_undoes() -> None:
    for name in ("leaf1-host1", "host1-leaf1", "eth1", "host1:eth1", "host1>leaf1"):
        sim = FabricSim().start()
        mark = sim.mark()
        sim.post(ev.DrainRequested(link=name))
        sim.run(0.1)
        assert sim.group == ("eth2",)
        assert {uplink for ways in sim.flows().values() for uplink, _ in ways} == {"eth2"}
        if name == "host1>leaf1":  # only what we send: no peer's matter
            assert not sim.since(mark, cmd.SendNotice)
            continue
        (drained,) = sim.since(mark, cmd.SendNotice)
        assert drained.notice.kind == "drain"
        assert drained.notice.link == (name if "leaf1" in name else "leaf1-host1")
        assert sim.core.view(sim.now_s).moves == 1
        sim.run(250)
        assert [n.notice.kind for n in sim.since(mark, cmd.SendNotice)] == ["drain", "drain"]
        mark = sim.mark()
        sim.post(ev.UndrainRequested(link=name))
        sim.run(0.5)
        assert [(n.notice.kind, n.notice.link) for n in sim.since(mark, cmd.SendNotice)] == [
            ("undrain", drained.notice.link)
        ]
        assert sim.group == ("eth1", "eth2")
        assert {uplink for ways in sim.flows().values() for uplink, _ in ways} == {"eth1", "eth2"}
        assert sim.core.view(sim.now_s).moves == 2
        assert {c.cause for c in steered(sim, mark)} == {drained.cause}


def test_drain_of_a_fabric_link_is_this_hosts_matter_unless_everywhere() -> None:
    sim = FabricSim().start()
    mark = sim.mark()
    sim.post(ev.DrainRequested(link="leaf1-spine1"))
    sim.run(0.1)
    assert not any(direction == "leaf1>spine1" for direction in sim.carrying())
    assert not sim.since(mark, cmd.SendNotice)
    sim.post(ev.DrainRequested(link="leaf1-spine1", everywhere=True))
    sim.run(0.1)
    (notice,) = sim.since(mark, cmd.SendNotice)
    assert (notice.notice.kind, notice.notice.link) == ("drain", "leaf1-spine1")
    mark = sim.mark()
    sim.peers = (*sim.peers, "host9")
    sim.address["host9"], sim.name["fd00:ff::9"] = "fd00:ff::9", "host9"
    sim.deaf = True
    sim.post(ev.PeerKnown(peer="fd00:ff::9", name="host9"))
    sim.run(0.1)
    (again,) = sim.since(mark, cmd.SendNotice)  # a newcomer hears of it at once
    assert "fd00:ff::9" in again.peers
    mark = sim.mark()
    sim.post(ev.UndrainRequested(link="leaf1-spine1", everywhere=True))
    sim.run(0.2)
    assert [n.notice.kind for n in sim.since(mark, cmd.SendNotice)] == ["undrain"]
    assert any(direction == "leaf1>spine1" for direction in sim.carrying())


def test_undrain_everywhere_is_told_even_after_a_restart() -> None:
    sim = FabricSim().start()
    mark = sim.mark()
    sim.post(ev.UndrainRequested(link="leaf1-spine1", everywhere=True))
    sim.post(ev.UndrainRequested(link="leaf2-spine1"))
    sim.run(0)
    assert [n.notice.link for n in sim.since(mark, cmd.SendNotice)] == ["leaf1-spine1"]


def test_an_operators_drain_is_lifted_here_and_stays_lifted_though_it_is_repeated() -> None:
    sim = FabricSim(operators=(H4,)).start()
    say(sim, "host4", "drain", "leaf1-spine1", 1, ttl_s=600)
    sim.run(0.1)
    assert not any(direction == "leaf1>spine1" for direction in sim.carrying())
    sim.post(ev.UndrainRequested(link="leaf1-spine1"))
    sim.run(0.1)
    assert any(direction == "leaf1>spine1" for direction in sim.carrying())
    say(sim, "host4", "drain", "leaf1-spine1", 2, ttl_s=600)
    sim.run(0.1)
    assert any(direction == "leaf1>spine1" for direction in sim.carrying())
    say(sim, "host4", "undrain", "leaf1-spine1", 3)
    say(sim, "host4", "drain", "leaf1-spine1", 4, ttl_s=600)
    sim.run(0.1)
    assert not any(direction == "leaf1>spine1" for direction in sim.carrying())


def test_a_drain_never_moves_flows_to_what_has_not_answered() -> None:
    sim = FabricSim()
    sim.broken.add("leaf2")
    sim.start()
    assert {uplink for ways in sim.flows().values() for uplink, _ in ways} == {"eth1"}
    mark = sim.mark()
    sim.post(ev.DrainRequested(link="eth1"))
    sim.run(2)
    assert not sim.since(mark, cmd.SetLabels)


# many
def test_a_crowd_of_idle_peers_is_sampled_in_turn_and_bounded() -> None:
    addresses = {f"peer{k}": f"fd00:ff:0:1::{k:x}" for k in range(100)}
    probing = Probing(sample_peers=16, sample_rotate_s=10.0)
    sim = FabricSim(probing=probing, addresses=addresses, peers=("host3", *addresses), active=("host3",))
    sim.hops = lambda peer, uplink, label: (sim.leaf[uplink], "spine1", "leaf3")  # type: ignore[method-assign]
    sim.start(1)
    seen: set[str] = set()
    for _ in range(14):
        sim.run(10)
        now = {peer for peer, _, _ in sim.targets}
        assert len(now) <= 17 and sim.address["host3"] in now
        seen |= now
    assert len(seen) == 101
    assert {interval_s for (peer, _, _), interval_s in sim.targets.items() if peer == H3} == {0.01}
    assert {interval_s for (peer, _, _), interval_s in sim.targets.items() if peer != H3} == {1.0}
    # What was seen of peers whose turn is over acquits nobody.
    sim.break_("leaf1>spine1")
    sim.run(0.1)
    assert any("leaf1>spine1" in verdict for verdict in sim.core.view(sim.now_s).verdicts)


def test_an_address_that_becomes_a_name_renames_the_last_link() -> None:
    sim = FabricSim(peers=(), active=("host3",)).start()
    assert any(link.id == f"leaf3>{H3}" for link in sim.core.view(sim.now_s).links)
    sim.post(ev.PeerKnown(peer=H3, name="host3"))
    sim.run(0)
    assert any(link.id == "leaf3>host3" for link in sim.core.view(sim.now_s).links)


def test_itself_is_no_peer_and_nothing_new_is_nothing() -> None:
    book = Playbook(Core(CoreSettings(host="host1", address="fd00:ff::1")), aside=(cmd.TraceLabels,))
    book >> ev.PeerKnown(peer="fd00:ff::1", name="host1") << nothing
    book >> ev.PeersActive(peers=("fd00:ff::1",)) << nothing
    book >> ev.PeersActive(peers=(H3,)) << nothing
    book >> ev.PeersActive(peers=(H3,)) << nothing
    book >> ev.PeerBack(peer=H3) << nothing
    book >> ev.DaemonLate(late_s=0.1) << nothing
    book >> ev.NoticeAcked(cmd_id=4, peer=H3) << nothing
    book >> ev.UplinkGone(uplink="eth7") << nothing
    book >> ev.SteeringLost(what="labels nobody", by="nft") << nothing
    book >> ev.PeerSilent(peer=H3, silent_s=0.3) << like(cmd.Record, what=f"{H3} is silent")
    book >> ev.PeerSilent(peer=H3, silent_s=0.4) << nothing
    book >> 5.0 << like(cmd.Record, what=f"{H3} stays silent; nothing had been exchanged with it lately", level="info")
    book.close()


def test_limits_are_honoured_in_pool_and_labels() -> None:
    sim = FabricSim(limits=Limits(trace_pool=64, labels_per_peer=4)).start()
    assert {len(command.labels) for command in sim.since(0, cmd.TraceLabels)} == {64}
    assert all(len(set(labels)) == 4 for labels in sim.labels.values())
