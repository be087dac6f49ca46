"""What to ask of the fabric and when: traces, the kernel's own choice of uplinks, the probes' plan."""

from __future__ import annotations

from linkpass.core.commands import CompareFlows, ProbeTarget, ResolveUplinks, SetProbes, TraceLabels
from linkpass.core.events import FlowCompared, LabelsTraced, ResolveFailed, TraceFailed, UplinksResolved
from linkpass.core.paths import Hops, Path, Peer
from linkpass.core.world import Tray, World

ANSWER_S = 3.0
"""A question without an answer for this long is put again."""
COMPARE_AFTER_S = 5.0


def attended(world: World, now_s: float) -> list[Peer]:
    """The peers that are surveyed: all that this host talks to, and a sample of the others that rotates with time."""
    active = [peer for peer in world.table.peers.values() if peer.active]
    idle = [peer for peer in world.table.peers.values() if not peer.active]
    probing = world.settings.probing
    if len(idle) > probing.sample_peers:
        turn = int(now_s / probing.sample_rotate_s) * probing.sample_peers
        idle = [idle[(turn + step) % len(idle)] for step in range(probing.sample_peers)]
    return active + idle


def survey(world: World, tray: Tray, now_s: float) -> None:
    """Ask what is not known, or was learnt too long ago."""
    usable = world.usable_uplinks()
    for peer in attended(world, now_s):
        if not peer.labelled:
            world.table.choose(peer, usable)
            continue
        for uplink in usable:
            age_s = now_s - peer.traced_at_s.get(uplink, float("-inf"))
            if age_s >= world.settings.limits.retrace_s and _may_ask(peer, f"trace {uplink}", now_s):
                cmd_id = tray.take_id()
                tray.put(TraceLabels(cmd_id=cmd_id, cause="", peer=peer.address, uplink=uplink, labels=peer.pool))
        if not frozenset(usable) <= peer.members and _may_ask(peer, "resolve", now_s):
            _resolve(world, tray, peer)
        if peer.active and peer.labels and world.acting:
            due_s = COMPARE_AFTER_S if peer.compared_at_s is None else world.settings.limits.retrace_s
            since_s = now_s - (peer.compared_at_s if peer.compared_at_s is not None else _steered_at(peer))
            if since_s >= due_s and _may_ask(peer, "compare", now_s):
                tray.put(CompareFlows(cmd_id=tray.take_id(), cause="", peer=peer.address))


def _steered_at(peer: Peer) -> float:
    return max(peer.traced_at_s.values(), default=0.0)


def _may_ask(peer: Peer, question: str, now_s: float) -> bool:
    if now_s < peer.asked.get(question, float("-inf")):
        return False
    peer.asked[question] = now_s + ANSWER_S
    return True


def _resolve(world: World, tray: Tray, peer: Peer) -> None:
    tray.put(ResolveUplinks(cmd_id=tray.take_id(), cause="", peer=peer.address, labels=peer.pool))


def group_changed(world: World, tray: Tray, members: tuple[str, ...]) -> None:
    """The group carries other uplinks now: the hash picks anew among them."""
    for peer in world.table.peers.values():
        if not peer.labelled or not peer.in_use:
            continue
        if len(members) == 1:
            peer.effective = dict.fromkeys(peer.uplink_of, members[0])
        else:
            _resolve(world, tray, peer)


def on_traced(world: World, event: LabelsTraced, now_s: float) -> None:
    """Take traced hops. A mute hop never erases what an earlier trace has seen there."""
    peer = world.table.peer(event.peer)
    peer.asked.pop(f"trace {event.uplink}", None)
    peer.traced_at_s[event.uplink] = now_s
    for label, hops in event.hops.items():
        old = peer.paths.get((event.uplink, label))
        world.table.set_hops(peer, event.uplink, label, _merge(old, hops))
    if world.table.choose(peer, peer.members or world.usable_uplinks()):
        world.decide_soon(now_s)


def _merge(old: Path | None, hops: Hops) -> Hops:
    if old is None or old.hops is None or None not in hops:
        return hops
    if len(hops) > len(old.hops) or any(
        new not in (None, was) for new, was in zip(hops, old.hops, strict=False)
    ):  # another way than before, and not fully seen: the old one is no guide
        return hops
    return old.hops


def on_trace_failed(world: World, tray: Tray, event: TraceFailed) -> None:
    peer = world.table.peer(event.peer)
    what = f"no traces to {peer.title()} over {event.uplink}"
    tray.record("", what, event.why, element=event.uplink)


def on_resolved(world: World, event: UplinksResolved, now_s: float) -> None:
    """Take the kernel's choice of uplinks. What it says while all take part is the plan; later answers only correct
    it."""
    peer = world.table.peer(event.peer)
    peer.asked.pop("resolve", None)
    members = frozenset(event.uplink_of.values())
    wish = world.wishes.get("group all")
    taking_part = frozenset(str(name) for name in (wish.programmed if wish and wish.programmed else ()))
    peer.effective = dict(event.uplink_of)
    everybody = frozenset(world.usable_uplinks())
    if not peer.uplink_of or (taking_part or everybody) >= peer.members | members:
        peer.uplink_of, peer.members = dict(event.uplink_of), (taking_part or everybody) | members
        if world.table.choose(peer, peer.members):
            world.decide_soon(now_s)
    world.decide_soon(now_s)


def on_resolve_failed(world: World, tray: Tray, event: ResolveFailed) -> None:
    peer = world.table.peer(event.peer)
    tray.record("", f"the kernel does not say which uplink carries {peer.title()}", event.why)


def on_compared(world: World, tray: Tray, event: FlowCompared, now_s: float) -> None:
    """Arm or disarm rung 1 for a peer: where real flows walk other ways than their probes, a label proves nothing."""
    peer = world.table.peer(event.peer)
    peer.asked.pop("compare", None)
    peer.compared_at_s = now_s
    if event.agrees is False and not peer.disarmed:
        peer.disarmed = f"flow {event.flow} takes another path than its label's probes: {event.detail}"
        tray.record(world.new_cause(), f"rung 1 disarmed to {peer.title()}", peer.disarmed, rung=1, level="warning")
        world.decide_soon(now_s)
    elif event.agrees is True and peer.disarmed:
        peer.disarmed = ""
        tray.record(world.new_cause(), f"rung 1 armed again to {peer.title()}", "flows follow their labels", rung=1)
        world.decide_soon(now_s)


def plan(world: World, now_s: float) -> tuple[ProbeTarget, ...]:
    """The paths to probe and how often. Uplinks without carrier stay in the plan: their return has to be seen."""
    probing = world.settings.probing
    targets = []
    for peer in attended(world, now_s):
        interval_s = probing.interval_s if peer.active else probing.idle_interval_s
        for uplink, label in peer.in_use:
            targets.append(ProbeTarget(peer.address, uplink, label, interval_s))
    return tuple(targets)


def send_plan(world: World, tray: Tray, last: tuple[ProbeTarget, ...], now_s: float) -> tuple[ProbeTarget, ...]:
    """Tell the probes when the plan has changed; the plan in force."""
    wanted = plan(world, now_s)
    if wanted != last:
        tray.put(SetProbes(cmd_id=tray.take_id(), cause="", targets=wanted))
    return wanted
