"""The core: one event in, commands out. Everything that linkpass decides is decided here, and nothing else happens
here.

A turn: take the event, let time act on elements and words, and, when something that matters has changed, decide:
blame links, choose labels and uplinks, send what differs from what is programmed. Deciding waits until all events
of the same moment are in (the deadline is then `now`), so that a dead spine is one decision and not one for each of
its paths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from linkpass.core import (
    congestion,
    crowd,
    extra,
    flows,
    health,
    hosts,
    invariants,
    moved,
    ports,
    relief,
    roce,
    steer,
    survey,
    tracing,
)
from linkpass.core import events as ev
from linkpass.core.commands import Command, ProbeTarget
from linkpass.core.desired import Wish
from linkpass.core.element import Element
from linkpass.core.notices import NoticeDesk
from linkpass.core.settings import CoreSettings
from linkpass.core.stragglers import StragglerDesk
from linkpass.core.view import View, view_of
from linkpass.core.world import GATHER_S, GROUP, Tray, World, names_of

if TYPE_CHECKING:
    from linkpass.core.diagnosis.live import Diagnosis

SURVEY_S = 1.0
VERIFY_PROBES = 10
"""A move is looked at after so many probes."""
DECIDE_LATEST_S = 0.01
"""A decision waits no longer than this for the events of its moment to end."""


class Core:
    """The decisions of one host (of one network namespace of it)."""

    def __init__(self, settings: CoreSettings) -> None:
        self.settings = settings
        self.world = World(settings)
        self._tray = Tray()
        self._desk = NoticeDesk(self.world, self._tray)
        self._stragglers = StragglerDesk(self.world, self._tray)
        self._plan: tuple[ProbeTarget, ...] = ()
        self._survey_at_s: float | None = None
        self._verify_at_s: float | None = None
        self._members: tuple[str, ...] = ()
        """Who took part when the kernel was last asked what it picks: `group` or `kernel`, and the uplinks."""
        self._diagnosis = self._make_diagnosis() if settings.diagnosis.enabled else None
        self._handlers: dict[type[ev.Event], Callable[[Any, float], None]] = {
            ev.UplinkState: self._on_uplink,
            ev.UplinkGone: self._on_uplink_gone,
            ev.PortEvent: self._on_port,
            ev.SteeringLost: self._on_steering_lost,
            ev.PeerKnown: self._on_peer_known,
            ev.PeersActive: self._on_peers_active,
            ev.PeerSilent: self._on_peer_silent,
            ev.PeerBack: self._on_peer_back,
            ev.PeerData: lambda e, now: hosts.on_data(self.world, e, now),
            ev.PeerFiltered: lambda e, now: hosts.on_filtered(self.world, self._tray, e),
            ev.FlowStands: lambda e, now: flows.on_stands(self.world, self._tray, e, now),
            ev.FlowGoes: lambda e, now: flows.on_goes(self.world, self._tray, e, now),
            ev.PeerPatience: self._on_patience,
            ev.FlowMoved: lambda e, now: flows.on_moved(self.world, self._tray, e, now),
            ev.FlowsLeft: lambda e, now: flows.on_left(self.world, e),
            ev.FlowsStay: lambda e, now: flows.on_stay(self.world, self._tray, e, now),
            ev.LabelsTraced: self._on_traced,
            ev.TraceFailed: lambda e, now: tracing.on_failed(self.world, self._tray, e),
            ev.UplinksResolved: self._on_resolved,
            ev.ResolveFailed: lambda e, now: survey.on_resolve_failed(self.world, self._tray, e),
            ev.FlowCompared: lambda e, now: survey.on_compared(self.world, self._tray, e, now),
            ev.PeerTunnels: self._on_tunnels,
            ev.PathEvidence: self._on_evidence,
            ev.CongestionEvidence: lambda e, now: congestion.on_counters(self.world, self._tray, e, now),
            ev.UplinkOverrun: lambda e, now: congestion.on_overrun(self.world, self._tray, e, now),
            ev.RoceEvidence: lambda e, now: roce.on_evidence(self.world, self._tray, e, now),
            ev.PathWindow: self._on_window,
            # for the diagnosis alone
            **dict.fromkeys((ev.FlowWindow, ev.FlowsLosing, ev.FlowsTraced, ev.FlowsUntraced), lambda e, now: None),
            ev.PaceTold: lambda e, now: self._stragglers.told(e, now),
            ev.StepArrived: lambda e, now: self._stragglers.arrived(e, now),
            ev.ProbeDelays: lambda e, now: hosts.on_delays(self.world, self._tray, e, now),
            ev.DaemonLate: self._on_late,
            ev.HostEvidence: lambda e, now: hosts.on_evidence(self.world, self._tray, e, now),
            ev.HostAnswered: lambda e, now: hosts.on_answered(self.world, e, now),
            ev.HostAskFailed: lambda e, now: hosts.on_ask_failed(self.world, self._tray, e),
            ev.NoticeHeard: lambda e, now: self._desk.heard(e, now),
            ev.NoticeAcked: lambda e, now: None,
            ev.DrainRequested: lambda e, now: self._desk.drain(e, now),
            ev.UndrainRequested: lambda e, now: self._desk.undrain(e, now),
            ev.ClearRequested: self._on_clear,
            ev.GroupProgrammed: self._on_programmed,
            ev.GroupLeads: self._on_leads,
            ev.GroupFailed: self._on_failed,
            ev.LabelsProgrammed: self._on_programmed,
            ev.LabelsFailed: self._on_failed,
            ev.Escalated: lambda e, now: hosts.on_escalated(self.world, self._tray, e, now),
            ev.EscalateFailed: lambda e, now: hosts.on_escalated(self.world, self._tray, e, now),
            ev.Deadline: lambda e, now: None,
        }

    def _make_diagnosis(self) -> Diagnosis:
        from linkpass.core.diagnosis.live import Diagnosis  # loads numpy: only where it is wanted

        return Diagnosis(self.world, self._tray, self._desk)

    # the three faces

    def handle(self, event: ev.Event, now_s: float) -> list[Command]:
        """Take one event at `now_s` (monotonic, never backwards); the commands that follow from it."""
        self._handlers[type(event)](event, now_s)
        if self._diagnosis is not None:
            self._diagnosis.hear(event, now_s)
        at_s = self.world.decide_at_s
        # Time acts on Deadlines: a burst of evidence must not look at every element for every path that fails.
        if isinstance(event, ev.Deadline) or (at_s is not None and now_s >= at_s + DECIDE_LATEST_S):
            self._let_time_act(now_s)
            if self.world.decide_at_s is not None and now_s >= self.world.decide_at_s:
                self._decide(now_s)
            if self._diagnosis is not None:  # first move, then find the words
                if self._diagnosis.turn(now_s):
                    self._survey_soon(now_s)
                hosts.follow(self.world, self._tray, now_s)
        self._follow_members(now_s)
        if self._survey_at_s is not None and self._survey_at_s <= now_s:
            self._survey(now_s)
        return self._tray.empty()

    def next_deadline_s(self) -> float | None:
        """When `handle(Deadline(), …)` is wanted next, if nothing else happens."""
        return min(self._deadlines(), default=None)

    def view(self, now_s: float) -> View:
        """A picture of everything, for people and metrics."""
        return view_of(self.world, now_s)

    def trusted_uplinks(self, now_s: float) -> set[str]:
        """Uplinks that nothing speaks against."""
        return {name for name in self.world.uplinks if steer.grade_uplink(self.world, name, now_s)[0] == "good"}

    # events

    def _on_uplink(self, event: ev.UplinkState, now_s: float) -> None:
        if health.on_uplink(self.world, self._tray, event, now_s):
            uplink = self.world.uplinks[event.uplink]
            if not uplink.usable:
                self._desk.port_down(event.uplink, uplink.element.cause, now_s)
            self._survey_soon(now_s)

    def _on_uplink_gone(self, event: ev.UplinkGone, now_s: float) -> None:
        if event.uplink in self.world.uplinks:
            gone = ev.UplinkState(uplink=event.uplink, usable=False, why="the device is gone")
            self._on_uplink(gone, now_s)
            survey.uplink_gone(self.world, event.uplink)
            tracing.uplink_gone(self.world, event.uplink)
            self.world.decide_soon(now_s)

    def _on_port(self, event: ev.PortEvent, now_s: float) -> None:
        for uplink in ports.on_port(self.world, self._tray, event, now_s):
            self._desk.port_down(uplink, self.world.uplinks[uplink].element.cause, now_s)

    def _on_steering_lost(self, event: ev.SteeringLost, now_s: float) -> None:
        for wish in self.world.wishes.values():
            if wish.name != event.what:
                continue
            self._tray.record(wish.cause, f"{event.by} removed {event.what}", "not by us", level="warning")
            if wish.removed(event.by, self.settings.limits.reprogram_tries, now_s):
                self._tray.record(wish.cause, f"stood down on {event.what}", wish.stood_down, level="warning")
        self.world.decide_soon(now_s)

    def _on_peer_known(self, event: ev.PeerKnown, now_s: float) -> None:
        if event.peer == self.settings.address:
            return
        table = self.world.table
        if event.peer not in table.peers:
            self._desk.newcomer(now_s)
        table.rename(table.peer(event.peer), event.name)
        self._survey_soon(now_s)

    def _on_late(self, event: ev.DaemonLate, now_s: float) -> None:
        hosts.on_late(self.world, self._tray, event.late_s, now_s)
        for path in self.world.table.probed():  # what was not sent meanwhile was not heard either
            path.count(0, 0, now_s)

    def _on_patience(self, event: ev.PeerPatience, now_s: float) -> None:
        flows.on_patience(self.world, self._tray, event)
        self._survey_soon(now_s)

    def _on_evidence(self, event: ev.PathEvidence, now_s: float) -> None:
        if extra.take(self.world, event):
            return
        judged = congestion.take(self.world, event, now_s)
        if judged is not None:
            health.on_evidence(self.world, self._tray, judged, now_s)

    def _on_window(self, event: ev.PathWindow, now_s: float) -> None:
        health.on_window(self.world, self._tray, congestion.take_window(self.world, event), now_s)

    def _on_peer_silent(self, event: ev.PeerSilent, now_s: float) -> None:
        hosts.on_silent(self.world, self._tray, event, now_s)
        congestion.peers_changed(self.world, now_s)

    def _on_peer_back(self, event: ev.PeerBack, now_s: float) -> None:
        self._desk.forget_order(event.peer)
        hosts.on_back(self.world, self._tray, event, now_s)

    def _on_peers_active(self, event: ev.PeersActive, now_s: float) -> None:
        now_active = set(event.peers) - {self.settings.address}
        if now_active == {peer.address for peer in self.world.table.peers.values() if peer.active}:
            return
        for address in sorted(now_active):
            if address not in self.world.table.peers:
                self._desk.newcomer(now_s)
            self.world.table.peer(address)
        for peer in self.world.table.peers.values():
            peer.active = peer.address in now_active
            if not peer.active:
                peer.data_flows = None
        congestion.peers_changed(self.world, now_s)
        self._survey_soon(now_s)
        self.world.decide_soon(now_s)

    def _on_traced(self, event: ev.LabelsTraced, now_s: float) -> None:
        tracing.on_traced(self.world, self._tray, event, now_s)
        hosts.on_traced(self.world, event, now_s)
        self._survey_soon(now_s)

    def _on_tunnels(self, event: ev.PeerTunnels, now_s: float) -> None:
        survey.on_tunnels(self.world, self._tray, event, now_s)
        self._survey_soon(now_s)

    def _on_resolved(self, event: ev.UplinksResolved, now_s: float) -> None:
        survey.on_resolved(self.world, event, now_s)
        self._survey_soon(now_s)

    def _on_clear(self, event: ev.ClearRequested, now_s: float) -> None:
        cause = self.world.new_cause()
        cleared = 0
        if event.link == "*":
            self.world.congestion.clear()
            self.world.suspected.clear()
            for wish in self.world.wishes.values():
                wish.stand_up()
        if event.link in ("*", self.settings.host):
            cleared += hosts.clear(self.world, self._tray, now_s)
        wanted = {event.link, self._desk.fabric_name(event.link)}
        if self._diagnosis is not None:
            cleared += self._diagnosis.clear(None if event.link == "*" else wanted, now_s)
        for element, names in self._clearable():
            if event.link == "*" or wanted & names:
                was_usable = element.usable
                element.feed("clear", now_s, why="cleared by the operator")
                cleared += 1
                if element.usable and not was_usable:
                    self._returned(element, now_s)
        self._tray.record(cause, f"damping of {event.link} cleared", f"asked for; {cleared} element(s)")
        self.world.decide_soon(now_s)

    def _returned(self, element: Element, now_s: float) -> None:
        """What was away may be used again: of a port of ours peers are told, and its paths are traced anew."""
        if element.name in self.world.uplinks:
            self._desk.port_up(element.name, element.cause, now_s)
            survey.trace_anew(self.world, element.name)
            self._survey_soon(now_s)

    def _clearable(self) -> Iterator[tuple[Element, set[str]]]:
        for direction, element in self.world.links.items():
            yield element, set(names_of(direction))
        for uplink in self.world.uplinks.values():
            hop = self.world.table.first_hop(uplink.name)
            names = set(names_of(f"{self.settings.host}>{hop}")) if hop else set()
            yield uplink.element, names | {uplink.name}
        for peer in self.world.table.peers.values():
            for path in peer.paths.values():
                yield path.element, {name for link in path.links for name in names_of(link)} | {path.uplink}

    def _on_programmed(self, event: ev.GroupProgrammed | ev.LabelsProgrammed, now_s: float) -> None:
        for wish in self.world.wishes.values():
            if wish.done(event.cmd_id):
                self._verify_at_s = now_s + VERIFY_PROBES * self.settings.probing.interval_s
        steer.program(self.world, self._tray, now_s)

    def _on_leads(self, event: ev.GroupLeads, now_s: float) -> None:
        if f"group {event.group}" == GROUP:
            self.world.leads = event.uplinks
            self._members = ()  # the same uplinks in another order are another choice, too

    def _on_failed(self, event: ev.GroupFailed | ev.LabelsFailed, now_s: float) -> None:
        for wish in self.world.wishes.values():
            if wish.failed(event.cmd_id, now_s):
                self._tell_failure(wish, event.why)

    def _tell_failure(self, wish: Wish, why: str) -> None:
        if wish.failures in (1, 4):
            retry = "tried again with growing pauses"
            self._tray.record(wish.cause, f"could not program {wish.name}: {retry}", why, level="warning")

    # time

    def _survey_soon(self, now_s: float) -> None:
        self._survey_at_s = now_s if self._survey_at_s is None else min(now_s, self._survey_at_s)

    def _let_time_act(self, now_s: float) -> None:
        for element in list(self._elements()):
            if element.tick(now_s):
                self._tray.record(element.cause, f"{element.name} is {element.state}", element.why)
                self.world.decide_soon(now_s + GATHER_S)
                if element.usable:
                    self._returned(element, now_s)
        health.look_again(self.world, now_s)
        if any(deadline <= now_s for deadline in self._desk.deadlines()):
            self._desk.tick(now_s)
        if any(deadline <= now_s for deadline in hosts.deadlines(self.world)):
            hosts.tick(self.world, self._tray, now_s)
        crowd.tick(self.world, self._tray, now_s)
        if any(deadline <= now_s for deadline in self._stragglers.deadlines()):
            self._stragglers.tick(now_s)
        relief.tick(self.world, self._tray, now_s)
        if self.world.acting:
            for wish in self.world.wishes.values():
                if wish.in_flight is not None and wish.answer_by_s <= now_s and wish.failed(wish.in_flight, now_s):
                    self._tell_failure(wish, "no outcome was reported")
            steer.program(self.world, self._tray, now_s)
        if self._verify_at_s is not None and self._verify_at_s <= now_s:
            self._verify_at_s = None
            moved.verify(self.world, self._tray)

    def _survey(self, now_s: float) -> None:
        survey.survey(self.world, self._tray, now_s)
        hosts.ask_who_is_known(self.world, self._tray, now_s)
        self._plan = survey.send_plan(self.world, self._tray, self._plan, now_s)
        self._survey_at_s = now_s + SURVEY_S

    def _follow_members(self, now_s: float) -> None:
        """Notice when other uplinks take part than before, in our group or in the kernel's own routes."""
        ours = self.world.group_members
        members = ("kernel", *self.world.usable_uplinks()) if ours is None else ("group", *ours)
        if members != self._members:
            self._members = members
            survey.members_changed(self.world, self._tray)
            self._survey_soon(now_s)
            self.world.decide_soon(now_s)

    def _decide(self, now_s: float) -> None:
        world = self.world
        world.decide_at_s = None
        health.judge_links(world, self._tray, now_s)
        for peer in world.table.peers.values():
            steer.decide_labels(world, self._tray, peer, now_s)
        steer.decide_group(world, self._tray, now_s)
        flows.decide(world, self._tray, now_s)
        flows.judge_again(world, self._tray, now_s)
        steer.program(world, self._tray, now_s)
        self._plan = survey.send_plan(world, self._tray, self._plan, now_s)

    def _elements(self) -> Iterator[Element]:
        for uplink in self.world.uplinks.values():
            if uplink.element.deadline_s is not None:
                yield uplink.element
        for element in self.world.links.values():
            if element.deadline_s is not None:
                yield element
        for path in self.world.table.in_use():
            if path.element.deadline_s is not None:
                yield path.element

    def _deadlines(self) -> Iterator[float]:
        world = self.world
        for element in self._elements():
            if element.deadline_s is not None:
                yield element.deadline_s
        yield from world.clean_at_s.values()
        yield from self._desk.deadlines()
        yield from hosts.deadlines(world)
        yield from crowd.deadlines(world)
        yield from self._stragglers.deadlines()
        yield from relief.deadlines(world)
        for wish in world.wishes.values():
            if wish.due_at_s is not None and world.acting:
                yield wish.due_at_s
        diagnose_at_s = self._diagnosis.due_s if self._diagnosis is not None else None
        for at_s in (world.decide_at_s, self._survey_at_s, self._verify_at_s, diagnose_at_s):
            if at_s is not None:
                yield at_s

    def check_invariants(self) -> None:
        """Raise AssertionError when a rule of the house is broken; called after every test and every replay."""
        invariants.check(self.world)
