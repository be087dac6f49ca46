"""Whatever comes in, in whatever order: the core never raises, never loops, never breaks a rule, and always says the
same of the same."""

from __future__ import annotations

import msgspec
from hypothesis import assume, given
from hypothesis import strategies as st

from linkpass.core import commands as cmd
from linkpass.core import events as ev
from linkpass.core.commands import AnyCommand, Command
from linkpass.core.events import AnyEvent, Deadline, Event
from linkpass.core.machine import Core
from linkpass.core.paths import pool_of
from linkpass.core.settings import CoreSettings, Damping, Limits, Probing

OWN = "fd00:ff::1"
PEERS = ("fd00:ff::2", "fd00:ff::3", "10.255.0.4")
UPLINKS = ("eth1", "eth2", "eth3")
NODES = ("leaf1", "leaf2", "spine1", "spine2", "leaf3", None)
LINKS = ("leaf1>spine1", "leaf1-spine1", "host1-leaf1", "leaf3>host3", "eth1", "host1:eth2", "x", "")

peers = st.sampled_from((*PEERS, OWN))
uplinks = st.sampled_from(UPLINKS)
labels = st.sampled_from([label for peer in PEERS for label in pool_of(OWN, peer, 6)] + [0])
"""Tunnels have such numbers, too."""
numbers = st.integers(0, 200)
words = st.sampled_from(["", "why", "another why"])
hops = st.lists(st.sampled_from(NODES), max_size=4).map(tuple)
flows_at = st.builds(ev.FlowAt, uplinks, labels, st.integers(1, 3), st.just(5000))
spans = st.one_of(st.just(0.0), st.floats(0, 0.2), st.floats(0, 5), st.floats(0, 40))

events: st.SearchStrategy[Event] = st.one_of(
    st.builds(ev.UplinkState, uplink=uplinks, usable=st.booleans(), why=words),
    st.builds(ev.UplinkGone, uplink=uplinks),
    st.builds(
        ev.PortEvent,
        device=st.sampled_from(["mlx5_0", "rxe0"]),
        port=st.integers(0, 2),
        what=st.sampled_from(["PORT_ERR", "PORT_ACTIVE", "GID_CHANGE", "DEVICE_FATAL", "GONE"]),
        netdevs=st.lists(st.one_of(uplinks, st.just("vrf0")), max_size=2).map(tuple),
        detail=words,
    ),
    st.builds(
        ev.SteeringLost, what=st.sampled_from(["group all", *(f"labels {peer}" for peer in PEERS), "?"]), by=words
    ),
    st.builds(ev.PeerKnown, peer=peers, name=st.sampled_from(["", "host2", "host3"])),
    st.builds(ev.PeersActive, peers=st.lists(peers, max_size=3).map(tuple)),
    st.builds(ev.PeerSilent, peer=peers, silent_s=st.floats(0, 10)),
    st.builds(ev.PeerBack, peer=peers),
    st.builds(ev.PeerData, peer=peers, flows=st.booleans(), stands=st.sampled_from(["", "shut", "unacked"])),
    st.builds(ev.PeerFiltered, peer=peers, rule=words),
    st.builds(
        ev.LabelsTraced,
        cmd_id=numbers,
        peer=peers,
        uplink=uplinks,
        hops=st.dictionaries(labels, hops, max_size=8),
        notes=st.lists(
            st.builds(
                ev.TraceNote,
                kind=st.sampled_from(["limited", "mute", "asymmetric", "unnumbered", "sprayed"]),
                hop=st.integers(1, 3),
                why=words,
                nodes=st.lists(words, max_size=2).map(tuple),
            ),
            max_size=2,
        ).map(tuple),
        planned=st.integers(0, 3),
        again_s=st.none() | st.floats(3, 60),
    ),
    st.builds(ev.TraceFailed, cmd_id=numbers, peer=peers, uplink=uplinks, why=words),
    st.builds(ev.UplinksResolved, cmd_id=numbers, peer=peers, uplink_of=st.dictionaries(labels, uplinks, max_size=12)),
    st.builds(ev.ResolveFailed, cmd_id=numbers, peer=peers, why=words),
    st.builds(ev.FlowCompared, cmd_id=numbers, peer=peers, label=labels, flow=words, agrees=st.none() | st.booleans()),
    st.builds(
        ev.PeerTunnels, peer=peers, uplink_of=st.dictionaries(labels.filter(bool), uplinks, max_size=8), why=words
    ),
    st.builds(
        ev.PathEvidence,
        peer=peers,
        uplink=uplinks,
        label=labels,
        evidence=st.sampled_from(["good", "blackhole", "lossy", "queueing", "unknown"]),
        loss_ratio=st.floats(0, 1),
        why=words,
    ),
    st.builds(
        ev.RoceEvidence,
        device=st.just("rxe0"),
        peer=peers,
        name=st.sampled_from(["rxe0 to a", "rxe0 to b"]),
        evidence=st.sampled_from(["good", "blackhole", "lossy", "queueing", "unknown"]),
        why=words,
    ),
    st.builds(
        ev.PathWindow,
        peer=peers,
        counts=st.lists(
            st.builds(ev.PathCount, uplinks, labels, st.integers(0, 500), st.integers(0, 500)), max_size=6
        ).map(tuple),
    ),
    st.builds(
        ev.FlowWindow,
        peer=peers,
        counts=st.lists(
            st.builds(
                ev.FlowCount,
                flows_at,
                st.integers(0, 500),
                st.integers(0, 500),
                st.sampled_from(["", "a queue pair"]),
                st.booleans(),
            ),
            max_size=6,
        ).map(tuple),
    ),
    st.builds(ev.FlowsLosing, peer=peers, flows=st.lists(flows_at, max_size=6).map(tuple)),
    st.builds(
        ev.FlowsTraced,
        cmd_id=numbers,
        peer=peers,
        uplink=uplinks,
        hops=st.lists(st.tuples(flows_at, hops), max_size=4).map(tuple),
    ),
    st.builds(ev.FlowsUntraced, cmd_id=numbers, peer=peers, uplink=uplinks, why=words),
    st.builds(ev.FlowStands, peer=peers, flow=words, silent_s=st.floats(0, 5), left_s=st.none() | st.floats(0, 5)),
    st.builds(ev.FlowGoes, peer=peers, flow=words, ended=st.booleans()),
    st.builds(ev.PeerPatience, peer=peers, least_s=st.none() | st.floats(0, 60)),
    st.builds(ev.FlowMoved, peer=peers, flow=words, moved=st.booleans(), why=words, for_cause=words),
    st.builds(ev.FlowsLeft, cmd_id=numbers, uplink=uplinks),
    st.builds(ev.FlowsStay, cmd_id=numbers, uplink=uplinks, why=words),
    st.builds(ev.DaemonLate, late_s=st.floats(0, 2)),
    st.builds(
        ev.NoticeHeard,
        peer=peers,
        notice=st.builds(
            ev.Notice,
            kind=st.sampled_from(["port_down", "port_up", "drain", "undrain"]),
            link=st.sampled_from(LINKS),
            origin=words,
            seq=st.integers(-3, 30),
            ttl_s=st.floats(allow_nan=True),
        ),
    ),
    st.builds(
        ev.NoticeHeard,
        peer=peers,
        notice=st.builds(
            ev.Notice,
            kind=st.sampled_from(["failing", "ailing", "well", "missing", "heard", "goodbye"]),
            link=st.sampled_from((*PEERS, OWN, "", "kernel log: hard lockup")),
            origin=words,
            seq=st.integers(-3, 30),
            ttl_s=st.floats(allow_nan=True),
        ),
    ),
    st.builds(
        ev.HostEvidence,
        source=st.sampled_from(["kernel log", "nvml"]),
        what=words,
        severity=st.sampled_from(["fatal", "degraded", "info", "well"]),
        accelerator=st.sampled_from(["", "0000:3b:00.0"]),
        lasts_s=st.none() | st.floats(0, 100),
    ),
    st.builds(
        ev.HostAnswered,
        cmd_id=numbers,
        peer=peers,
        asked=st.lists(uplinks, max_size=2).map(tuple),
        echoed=st.lists(uplinks, max_size=2).map(tuple),
        closed=st.booleans(),
    ),
    st.builds(ev.HostAskFailed, cmd_id=numbers, peer=peers, why=words),
    st.builds(ev.NoticeAcked, cmd_id=numbers, peer=peers),
    st.builds(ev.DrainRequested, link=st.sampled_from(LINKS), everywhere=st.booleans()),
    st.builds(ev.UndrainRequested, link=st.sampled_from(LINKS), everywhere=st.booleans()),
    st.builds(ev.ClearRequested, link=st.sampled_from((*LINKS, "*"))),
    st.builds(ev.GroupProgrammed, cmd_id=numbers, group=st.just("all")),
    st.builds(ev.GroupLeads, group=st.sampled_from(["all", "fd00::9"]), uplinks=st.lists(words, max_size=3).map(tuple)),
    st.builds(ev.GroupFailed, cmd_id=numbers, group=st.just("all"), why=words),
    st.builds(ev.LabelsProgrammed, cmd_id=numbers, peer=peers),
    st.builds(ev.LabelsFailed, cmd_id=numbers, peer=peers, why=words),
    st.builds(ev.Escalated, cmd_id=numbers, host=words),
    st.builds(ev.EscalateFailed, cmd_id=numbers, host=words, why=words),
    st.builds(
        ev.CongestionEvidence,
        uplink=uplinks,
        out=st.lists(words, max_size=2).map(tuple),
        into=st.lists(words, max_size=2).map(tuple),
    ),
    st.just(Deadline()),
)

ANSWERS = ("well", "badly", "never")
turns = st.lists(st.tuples(spans, events, st.sampled_from(ANSWERS)), max_size=40)
modes = st.sampled_from(["act", "observe"])
rungs = st.sampled_from([(1, 2), (1,), (2,), ()])


def settings_of(mode: str, which: tuple[int, ...]) -> CoreSettings:
    return CoreSettings(
        host="host1",
        address=OWN,
        mode=mode,  # type: ignore[arg-type]
        rungs=which,
        live_qps=True,
        operators=PEERS[:1],
        damping=Damping(half_life_s=3.0, observe_max_s=20.0),
        probing=Probing(sample_peers=2),
        limits=Limits(trace_pool=6, labels_per_peer=4),
    )


def answer(command: Command, how: str) -> Event | None:
    """The outcome that an edge would report."""
    number, well = command.cmd_id, how == "well"
    if how == "never":
        return None
    if isinstance(command, cmd.SetGroup):
        if well:
            return ev.GroupProgrammed(cmd_id=number, group=command.group)
        return ev.GroupFailed(cmd_id=number, group=command.group, why="refused")
    if isinstance(command, cmd.SetLabels):
        if well:
            return ev.LabelsProgrammed(cmd_id=number, peer=command.peer)
        return ev.LabelsFailed(cmd_id=number, peer=command.peer, why="refused")
    if isinstance(command, cmd.MoveFlows):
        if well:
            return ev.FlowsLeft(cmd_id=number, uplink=command.uplink)
        return ev.FlowsStay(cmd_id=number, uplink=command.uplink, why="refused")
    if isinstance(command, cmd.TraceLabels):
        if not well:
            return ev.TraceFailed(cmd_id=number, peer=command.peer, uplink=command.uplink, why="refused")
        ways = {
            label: (f"leaf{command.uplink[-1]}", f"spine{1 + place % 2}", "leaf3")
            for place, label in enumerate(command.labels)
        }
        return ev.LabelsTraced(cmd_id=number, peer=command.peer, uplink=command.uplink, hops=ways)
    if isinstance(command, cmd.ResolveUplinks):
        if not well:
            return ev.ResolveFailed(cmd_id=number, peer=command.peer, why="refused")
        picked = {label: UPLINKS[place % 2] for place, label in enumerate(command.labels)}
        return ev.UplinksResolved(cmd_id=number, peer=command.peer, uplink_of=picked)
    return None


class Player:
    """Feeds stories as the driver would; edges answer at once. Everything that can be checked at any time is."""

    def __init__(self, mode: str, which: tuple[int, ...] = (1, 2)) -> None:
        self.settings = settings_of(mode, which)
        self.core = Core(self.settings)
        self.now_s = 50.0
        self.tape: list[tuple[float, Event, list[Command]]] = []

    def turn(self, event: Event, how: str) -> None:
        waiting = [event]
        for _ in range(500):
            if not waiting:
                return
            one = waiting.pop(0)
            commands = self.core.handle(one, self.now_s)
            self.tape.append((self.now_s, one, commands))
            self.core.check_invariants()
            if self.settings.mode == "observe":
                assert not [c for c in commands if isinstance(c, (cmd.SetGroup, cmd.SetLabels, cmd.CompareFlows))]
            waiting += [outcome for command in commands if (outcome := answer(command, how)) is not None]
        raise AssertionError("answers and questions chase one another")

    def play(self, *story: tuple[float, Event, str]) -> list[Command]:
        begun = len(self.tape)
        for gap_s, event, how in story:
            until_s = self.now_s + gap_s
            at_one_time = 0
            while (deadline_s := self.core.next_deadline_s()) is not None and deadline_s <= until_s:
                at_one_time = at_one_time + 1 if deadline_s <= self.now_s else 0
                assert at_one_time < 8, f"no progress at {self.now_s}"
                self.now_s = max(self.now_s, deadline_s)
                self.turn(Deadline(), how)
            self.now_s = until_s
            self.turn(event, how)
            self.core.view(self.now_s)
        return [command for _, _, commands in self.tape[begun:] for command in commands]


@given(turns, modes, rungs)
def test_any_story_is_survived_and_told_the_same_twice(
    story: list[tuple[float, Event, str]], mode: str, which: tuple[int, ...]
) -> None:
    player = Player(mode, which)
    player.play(*story)
    again = Core(player.settings)
    for now_s, event, commands in player.tape:
        assert again.handle(event, now_s) == commands
    assert again.view(player.now_s) == player.core.view(player.now_s)
    numbers = [command.cmd_id for _, _, commands in player.tape for command in commands]
    assert numbers == list(range(1, len(numbers) + 1))


begin: list[tuple[float, Event, str]] = [
    (0.0, ev.UplinkState(uplink="eth1", usable=True), "well"),
    (0.0, ev.UplinkState(uplink="eth2", usable=True), "well"),
    (0.0, ev.PeerKnown(peer=PEERS[0], name="host2"), "well"),
    (0.0, ev.PeerKnown(peer=PEERS[1], name="host3"), "well"),
    (0.0, ev.PeersActive(peers=PEERS), "well"),
    (0.1, Deadline(), "well"),
]


def good_ones(core: Core) -> list[tuple[float, Event, str]]:
    return [
        (0.0, ev.PathEvidence(peer=peer, uplink=uplink, label=label, evidence="good"), "well")
        for peer, uplink, label in sorted(core.world.planned)
    ]


@given(turns, modes)
def test_a_steered_host_survives_any_story_and_settles_when_all_is_good(
    story: list[tuple[float, Event, str]], mode: str
) -> None:
    player = Player(mode)
    player.play(*begin)
    player.play(*good_ones(player.core), (1.0, Deadline(), "well"))
    assert all(peer.labels for peer in player.core.world.table.peers.values() if peer.labelled)
    player.play(*story)
    # Now everything is good, for ever.
    unsaid = [ev.Notice(kind="undrain", link=link, origin="", seq=10**6, ttl_s=1.0) for link in LINKS]
    lift = [
        *(ev.UndrainRequested(link=link) for link in LINKS),
        *(ev.PeerBack(peer=peer) for peer in PEERS),
        *(ev.PortEvent(device=device, port=0, what="GONE") for device in ("mlx5_0", "rxe0")),
        *(ev.UplinkState(uplink=uplink, usable=True) for uplink in UPLINKS[:2]),
        *(ev.FlowCompared(cmd_id=0, peer=peer, label=0, flow="", agrees=True) for peer in PEERS),
        *(ev.NoticeHeard(peer=peer, notice=notice) for notice in unsaid for peer in (*PEERS, OWN)),
        ev.ClearRequested(link="*"),
    ]
    player.play(*((0.0, event, "well") for event in lift), (40.0, Deadline(), "well"))
    for _ in range(15):
        player.play(*good_ones(player.core), (10.0, Deadline(), "well"))
    answered = player.core.world.planned
    player.play(*good_ones(player.core), (5.0, Deadline(), "well"))
    view = player.core.view(player.now_s)
    group = next(steering for steering in view.steering if steering.object == "group all")
    assert {"eth1", "eth2"} <= set(group.desired)
    assert mode == "observe" or group.programmed == group.desired
    assert view.verdicts == ()
    planned = answered & player.core.world.planned  # idle peers take turns
    seen = [path for path in view.paths if (path.peer, path.uplink, path.label) in planned]
    bad = [path for path in seen if path.uplink in UPLINKS[:2] and path.grade != "good"]
    assert not bad
    still = player.play((60.0, Deadline(), "well"))
    assert not [command for command in still if isinstance(command, (cmd.SetGroup, cmd.SetLabels))]


@given(events)
def test_every_event_survives_a_recording(event: Event) -> None:
    text = msgspec.json.encode(event)
    assume(b'"ttl_s":null' not in text)  # JSON has no infinity and no NaN; none comes off the wire either
    back = msgspec.json.decode(text, type=AnyEvent)
    assert type(back) is type(event)
    assert back == event


commands: st.SearchStrategy[Command] = st.one_of(
    st.builds(cmd.SetGroup, cmd_id=numbers, cause=words, group=words, uplinks=st.lists(uplinks).map(tuple)),
    st.builds(cmd.SetLabels, cmd_id=numbers, cause=words, peer=peers, labels=st.lists(labels).map(tuple)),
    st.builds(
        cmd.SetProbes,
        cmd_id=numbers,
        cause=words,
        targets=st.lists(st.builds(cmd.ProbeTarget, peers, uplinks, labels, st.floats(0, 5)), max_size=3).map(tuple),
    ),
    st.builds(cmd.TraceLabels, cmd_id=numbers, cause=words, peer=peers, uplink=uplinks, labels=st.just((1, 2))),
    st.builds(cmd.ResolveUplinks, cmd_id=numbers, cause=words, peer=peers, labels=st.just((1, 2))),
    st.builds(cmd.CompareFlows, cmd_id=numbers, cause=words, peer=peers),
    st.builds(
        cmd.TraceFlows,
        cmd_id=numbers,
        cause=words,
        peer=peers,
        uplink=uplinks,
        flows=st.lists(flows_at, max_size=3).map(tuple),
    ),
    st.builds(
        cmd.SendNotice,
        cmd_id=numbers,
        cause=words,
        notice=st.builds(ev.Notice, kind=st.just("drain"), link=words, origin=words, seq=numbers, ttl_s=st.just(1.0)),
        peers=st.lists(peers).map(tuple),
    ),
    st.builds(
        cmd.AskHost, cmd_id=numbers, cause=words, peer=peers, ways=st.lists(st.tuples(uplinks, labels)).map(tuple)
    ),
    st.builds(
        cmd.Escalate, cmd_id=numbers, cause=words, host=words, evidence=st.lists(words).map(tuple), accelerator=words
    ),
    st.builds(cmd.Record, cmd_id=numbers, cause=words, what=words, why=words),
)


@given(commands)
def test_every_command_survives_a_recording(command: Command) -> None:
    assert msgspec.json.decode(msgspec.json.encode(command), type=AnyCommand) == command
