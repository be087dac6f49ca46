"""Entropy tunnels in the core: an IPv4 peer that has some is a labelled peer whose labels each have their uplink."""

from __future__ import annotations

from fabric_sim import FabricSim

from linkpass.core import commands as cmd
from linkpass.core import events as ev
from linkpass.core.survey import ANSWER_S

FIRST = 52000
TUNNELS = {FIRST + number: ("eth1", "eth2")[number >= 8] for number in range(16)}


class TunnelSim(FabricSim):
    """IPv4 hosts. `endless`: hosts that take nothing out of tunnels any more, whether they have said so or not."""

    def __init__(self, **settings: object) -> None:
        addresses = {f"host{k}": f"10.255.0.{k}" for k in range(1, 5)}
        super().__init__(addresses=addresses, **settings)  # type: ignore[arg-type]
        self.endless: set[str] = set()

    def lead(self, *peers: str, tunnels: dict[int, str] | None = None, why: str = "") -> TunnelSim:  # type: ignore[override]
        for name in peers:
            if name != "all":
                found = TUNNELS if tunnels is None else tunnels
                self.post(ev.PeerTunnels(peer=self.address[name], uplink_of=found, why=why))
        return self

    def passes(self, peer: str, uplink: str, label: int) -> bool:
        return not (label and self.name[peer] in self.endless) and super().passes(peer, uplink, label)

    def flows(self) -> dict[str, list[tuple[str, int]]]:
        return {
            peer: [(TUNNELS[label], label) for label in labels]
            for peer, labels in self.labels.items()
            if self.name[peer] in self.active
        }


def tunnelled() -> TunnelSim:
    sim = TunnelSim()
    sim.start()
    sim.lead("host2", "host3", "host4").run(3)
    return sim


def test_flows_are_dealt_over_the_tunnels_of_all_uplinks_and_ways_once_probes_have_come_through() -> None:
    sim = TunnelSim()
    sim.start()
    assert sim.labels == {} and {label for _, _, label in sim.targets} == {0}
    mark = sim.mark()
    sim.lead("host3").run(3)
    traces = sim.since(mark, cmd.TraceLabels)
    assert [(one.uplink, set(one.labels)) for one in traces] == [
        (uplink, {label for label, its in TUNNELS.items() if its == uplink}) for uplink in ("eth1", "eth2")
    ]
    assert not sim.since(mark, cmd.ResolveUplinks) and not sim.since(mark, cmd.CompareFlows)
    (peer,) = sim.labels
    labels = sim.labels[peer]
    assert peer == "10.255.0.3" and len(labels) == 16 and {TUNNELS[label] for label in labels} == {"eth1", "eth2"}
    assert all((peer, TUNNELS[label], label) in sim.targets for label in labels)
    assert {(peer, "eth1", 0), (peer, "eth2", 0)} <= set(sim.targets)  # outside of tunnels, as before
    ways = {sim.hops(peer, TUNNELS[label], label) for label in labels}
    assert len(ways) >= 4
    first = next(at_s for at_s, c in sim.log if isinstance(c, cmd.SetLabels))
    proved = [at_s for at_s, e in sim.events if isinstance(e, ev.PathEvidence) and e.label and e.evidence == "good"]
    assert proved and min(proved) <= first
    (view,) = [one for one in sim.core.view(sim.now_s).peers if one.name == "host3"]
    assert view.rung1 and view.rung1_why.startswith("8 tunnels over ")


def test_a_spine_that_swallows_is_left_within_the_uplinks_and_come_back_to() -> None:
    sim = tunnelled()
    before = dict(sim.labels)
    mark, begun_s = sim.mark(), sim.now_s
    sim.break_("leaf1>spine1")
    sim.run(0.5)
    moved = sim.since(mark, cmd.SetLabels)
    assert moved and not sim.since(mark, cmd.SetGroup)
    assert not sim.ever_used("leaf1>spine1", begun_s + 0.3)
    for peer, labels in sim.labels.items():
        assert len(labels) == 16 and {TUNNELS[label] for label in labels} == {"eth1", "eth2"}, peer
    sim.heal()
    sim.run(20)
    assert {peer: set(labels) for peer, labels in sim.labels.items()} == {
        peer: set(labels) for peer, labels in before.items()
    }


def test_an_uplink_without_carrier_takes_its_tunnels_along() -> None:
    sim = tunnelled()
    sim.carrier("eth1", False)
    sim.run(0.1)
    assert {TUNNELS[label] for labels in sim.labels.values() for label in labels} == {"eth2"}
    assert sim.group == ("eth2",)
    sim.carrier("eth1", True)
    sim.run(20)
    assert {TUNNELS[label] for labels in sim.labels.values() for label in labels} == {"eth1", "eth2"}


def test_a_group_of_one_uplink_does_not_change_where_tunnels_lead() -> None:
    sim = tunnelled()
    sim.post(ev.DrainRequested(link="eth1"))
    sim.run(1)
    assert sim.group == ("eth2",)
    assert {TUNNELS[label] for labels in sim.labels.values() for label in labels} == {"eth2"}
    sim.post(ev.UndrainRequested(link="eth1"))
    sim.run(5)
    assert {TUNNELS[label] for labels in sim.labels.values() for label in labels} == {"eth1", "eth2"}


def test_when_a_peer_says_that_its_end_goes_flows_leave_the_tunnels_at_once() -> None:
    sim = tunnelled()
    mark = sim.mark()
    sim.lead("host3", tunnels={}, why="it takes nothing out of tunnels (any more)").run(0.01)
    (withdrawn,) = sim.since(mark, cmd.SetLabels)
    assert (withdrawn.peer, withdrawn.labels) == ("10.255.0.3", ())
    assert any("no tunnel(s) lead to host3 (it takes nothing out" in line for line in sim.told(mark))
    assert {label for peer, _, label in sim.targets if peer == "10.255.0.3"} == {0}
    (view,) = [one for one in sim.core.view(sim.now_s).peers if one.name == "host3"]
    assert (view.rung1, view.rung1_why) == (False, "it takes nothing out of tunnels (any more)")
    sim.lead("host3").run(ANSWER_S)
    assert len(sim.labels["10.255.0.3"]) == 16


def test_when_no_tunnel_gets_through_flows_go_outside_and_come_back_when_they_do() -> None:
    """A peer's end was taken away without a word: the way outside is no worse than the best of dead tunnels."""
    sim = tunnelled()
    mark = sim.mark()
    sim.endless.add("host3")
    sim.feel()
    sim.run(0.5)
    assert sim.labels["10.255.0.3"] == () and sim.group == ("eth1", "eth2")
    assert all(len(labels) == 16 for peer, labels in sim.labels.items() if peer != "10.255.0.3")
    assert any("left the flows to host3 to the kernel (no tunnel gets through)" in line for line in sim.told(mark))
    sim.endless.clear()
    sim.feel()
    sim.run(20)
    assert len(sim.labels["10.255.0.3"]) == 16


def test_flows_to_a_peer_that_stays_silent_leave_the_tunnels_before_its_end_can_have_gone() -> None:
    sim = tunnelled()
    sim.silence("host3")
    sim.run(4)
    assert len(sim.labels["10.255.0.3"]) == 16
    sim.run(2)
    assert sim.labels["10.255.0.3"] == ()
    sim.speak("host3")
    sim.run(2)
    assert len(sim.labels["10.255.0.3"]) == 16


def test_tunnels_that_are_fewer_or_lead_elsewhere_are_traced_anew() -> None:
    sim = tunnelled()
    mark = sim.mark()
    fewer = {label: "eth2" for label, uplink in TUNNELS.items() if uplink == "eth2"}
    sim.lead("host3", tunnels=fewer, why="no tunnels over eth1: its MTU is 1500").run(0.1)
    assert set(sim.labels["10.255.0.3"]) <= fewer.keys()
    assert [one.uplink for one in sim.since(mark, cmd.TraceLabels)] == ["eth2"]
    sim.lead("host3", tunnels=fewer).run(1)
    assert len([line for line in sim.told(mark) if "tunnel(s) lead to" in line]) == 1


def test_a_tunnel_is_no_label_of_an_ipv6_peer() -> None:
    sim = FabricSim().start()
    before = dict(sim.labels)
    sim.post(ev.PeerTunnels(peer=sim.address["host3"], uplink_of=TUNNELS))
    sim.run(1)
    assert sim.labels == before


def test_without_rung_1_tunnels_carry_nothing() -> None:
    sim = TunnelSim(rungs=(2,))
    sim.start()
    sim.lead("host3").run(5)
    assert sim.labels == {}
