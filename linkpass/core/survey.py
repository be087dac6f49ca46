"""What to ask of the fabric and when: traces, the kernel's own choice of uplinks, the probes' plan."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Final

from linkpass.core import extra
from linkpass.core.commands import CompareFlows, ProbeTarget, ResolveUplinks, SetProbes, TraceLabels
from linkpass.core.events import FlowCompared, PeerTunnels, ResolveFailed, UplinksResolved
from linkpass.core.paths import Peer
from linkpass.core.world import Tray, World

ANSWER_S = 3.0
"""A question is not put again for this long, answered or not."""
LEAST_INTERVAL_S = 0.002
"""No flow's impatience makes probes come faster."""
FAST_S: Final = 0.05
"""Paths that are probed so often have large probes beside them. Up to this interval rings are read at ticks; with none
so short, a packet wakes the loop."""
REGULAR_SHARE: Final = 0.95
"""Of a packet limit, for planned probes; the rest is for answers, notices and the confirmation of suspicions."""
COMPARE_AFTER_S = 5.0
MANY = 16
"""Labels: of two uplinks one is picked for all of so many once in 2^15 times."""


def attended(world: World, now_s: float) -> list[Peer]:
    """The peers that are surveyed, of those that can be probed: all that this host talks to, and a sample of the others
    that rotates with time."""
    peers = [peer for peer in world.table.peers.values() if peer.probed_from(world.settings.address)]
    active = [peer for peer in peers if peer.active]
    idle = [peer for peer in peers if not peer.active]
    probing = world.settings.probing
    if len(idle) > probing.sample_peers:
        turn = int(now_s / probing.sample_rotate_s) * probing.sample_peers
        idle = [idle[(turn + step) % len(idle)] for step in range(probing.sample_peers)]
    return active + idle


def survey(world: World, tray: Tray, now_s: float) -> None:
    """Ask what is not known, or was learnt too long ago."""
    usable, refreshing = world.usable_uplinks(), False
    compared = world.settings.probing.protocol == "tcp"  # of UDP's flows the kernel's socket table does not tell
    for peer in attended(world, now_s):
        if not peer.hashed:
            world.table.choose(peer, world.uplinks)
        for uplink in usable if peer.labelled else ():
            labels = peer.labels_over(uplink)
            if not labels:
                continue
            known = uplink in peer.traced_at_s
            if known and (refreshing or not _stale(world, peer, uplink, now_s)):
                continue
            if _may_ask(peer, f"trace {uplink}", now_s):
                refreshing = refreshing or known
                urgent = not known or uplink in peer.changed
                peer.changed.discard(uplink)
                tray.put(
                    TraceLabels(
                        cmd_id=tray.take_id(), cause="", peer=peer.address, uplink=uplink, labels=labels,
                        urgent=urgent,
                    )
                )  # fmt: skip
        if not peer.hashed:
            continue
        unknown = peer.resolve_due or not frozenset(usable) <= peer.members
        if usable and unknown and _may_ask(peer, "resolve", now_s):
            tray.put(ResolveUplinks(cmd_id=tray.take_id(), cause="", peer=peer.address, labels=peer.pool))
        if peer.active and (peer.labels or peer.disarmed) and world.acting and compared:
            due_s = COMPARE_AFTER_S if peer.compared_at_s is None else world.settings.limits.retrace_s
            since_s = now_s - (peer.compared_at_s if peer.compared_at_s is not None else _traced_at(peer))
            if since_s >= due_s and _may_ask(peer, "compare", now_s):
                tray.put(CompareFlows(cmd_id=tray.take_id(), cause="", peer=peer.address))


def _stale(world: World, peer: Peer, uplink: str, now_s: float) -> bool:
    """Whether to trace again what is known, one a turn. A trace is hundreds of packets: each pair has an age of its
    own, so that hosts that began together do not trace together; while news is bad it waits, not for ever. What has
    failed or come back is looked at as soon as that is over: the fabric may have found other ways."""
    calm = now_s >= world.calm_at_s
    if calm and (uplink in peer.changed or now_s >= peer.trace_due_s.get(uplink, float("inf"))):
        return True
    age_s, retrace_s = now_s - peer.traced_at_s[uplink], world.settings.limits.retrace_s
    phase = zlib.crc32(f"{world.settings.address}>{peer.address} {uplink}".encode()) / 2**32
    due_s = retrace_s * (1 + phase / 2)
    return age_s >= due_s and (calm or age_s >= 2 * due_s)


def _traced_at(peer: Peer) -> float:
    return max(peer.traced_at_s.values(), default=0.0)


def _may_ask(peer: Peer, question: str, now_s: float) -> bool:
    if now_s < peer.asked.get(question, float("-inf")):
        return False
    peer.asked[question] = now_s + ANSWER_S
    return True


def members_changed(world: World, tray: Tray) -> None:
    """Other uplinks take part now: the kernel's hash picks anew among them, and what it picked before is void."""
    members = world.group_members
    for peer in world.table.peers.values():
        if not peer.hashed:
            continue
        peer.answers_from = tray.next_id
        if members is not None and len(members) == 1:
            peer.effective, peer.resolve_due = dict.fromkeys(peer.pool, members[0]), False
        else:
            peer.effective, peer.resolve_due = {}, True
            peer.asked.pop("resolve", None)


def uplink_gone(world: World, uplink: str) -> None:
    """A device that has disappeared is no part of what all uplinks together would do."""
    for peer in world.table.peers.values():
        peer.members -= {uplink}
        if peer.hashed:
            world.table.choose(peer, peer.members)


def trace_anew(world: World, uplink: str, *peers: Peer) -> None:
    """An uplink is back: its paths (to some peers, or to all) may be others than before."""
    for peer in peers or world.table.peers.values():
        peer.traced_at_s.pop(uplink, None)
        peer.asked.pop(f"trace {uplink}", None)


def members_of(world: World, peer: Peer) -> Iterable[str]:
    """The uplinks over which a peer's paths are chosen."""
    return (peer.members or world.usable_uplinks()) if peer.hashed else world.uplinks


def on_tunnels(world: World, tray: Tray, event: PeerTunnels, now_s: float) -> None:
    """Tunnels to a peer have come or gone. They are traced before anything goes in; those that have gone carry nothing
    from this moment on."""
    peer = world.table.peer(event.peer)
    peer.why_no_tunnels = event.why
    if peer.hashed or peer.tunnels == event.uplink_of:
        return
    moved = {label for label, uplink in peer.tunnels.items() if event.uplink_of.get(label) != uplink}
    peer.tunnels, peer.pool = dict(event.uplink_of), tuple(sorted(event.uplink_of))
    peer.uplink_of = peer.effective = dict(event.uplink_of)
    peer.in_use = tuple(key for key in peer.in_use if key[1] not in moved)
    for key in [key for key in peer.paths if key[1] in moved]:
        del peer.paths[key]
    for uplink in list(peer.traced_at_s):
        trace_anew(world, uplink, peer)
    world.table.choose(peer, world.uplinks)
    what = f"{len(peer.pool) or 'no'} tunnel(s) lead to {peer.title()}"
    tray.record(world.new_cause(), what, event.why or "both ends are up", rung=1, element=peer.title())
    world.decide_soon(now_s)


def on_resolved(world: World, event: UplinksResolved, now_s: float) -> None:
    """Take the kernel's choice of uplinks. What it says while all take part is the plan; later answers only correct
    it."""
    peer = world.table.peer(event.peer)
    told = {label: uplink for label, uplink in event.uplink_of.items() if uplink in world.uplinks}
    if event.cmd_id < peer.answers_from or not told:
        return
    peer.said.pop("resolve", None)
    peer.effective = {**peer.effective, **told}
    peer.resolve_due = not peer.effective.keys() >= set(peer.pool)
    picked = frozenset(told.values())
    takes_part = frozenset(world.group_members or world.usable_uplinks()) | picked
    if event.blind:
        _plan_for_blind(world, peer, takes_part)
        world.decide_soon(now_s)
        return
    if len(picked) == 1 < len(takes_part) and len(told) >= MANY:
        # Chance does not put so many labels on one of several: the others take no part yet, whatever we were told.
        takes_part, peer.resolve_due = picked, True
    if not peer.uplink_of or takes_part >= peer.members:
        peer.uplink_of, peer.members = {**peer.uplink_of, **told}, takes_part
        world.table.choose(peer, peer.members)
    world.decide_soon(now_s)


def _plan_for_blind(world: World, peer: Peer, takes_part: frozenset[str]) -> None:
    """A kernel whose rerouting overlooks the label sends all relabelled flows over one uplink. The plan deals labels
    out over all of them: those of the others carry nothing, and are probed for the moment when they have to."""
    if peer.uplink_of and not takes_part >= peer.members:
        return
    ways = sorted(takes_part)
    peer.uplink_of = {label: ways[number % len(ways)] for number, label in enumerate(peer.pool)}
    peer.members = takes_part
    world.table.choose(peer, peer.members)


def on_resolve_failed(world: World, tray: Tray, event: ResolveFailed) -> None:
    peer = world.table.peer(event.peer)
    if peer.said.get("resolve") != event.why:
        peer.said["resolve"] = event.why
        tray.record("", f"the kernel does not say which uplink carries {peer.title()}", event.why)


def on_compared(world: World, tray: Tray, event: FlowCompared, now_s: float) -> None:
    """Arm or disarm rung 1 for a peer: where real flows walk other ways than their probes, a label proves nothing."""
    peer = world.table.peer(event.peer)
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
    targets = []
    for peer in attended(world, now_s):
        interval_s = wanted_interval_s(world, peer)
        for uplink, label in peer.in_use:
            targets.append(ProbeTarget(peer.address, uplink, label, interval_s))
        targets += extra.targets(world, peer, interval_s, now_s)
    return tuple(targets)


def stretch(targets: Iterable[tuple[str, float]], per_host: float, per_link: float) -> float:
    """By what all intervals must be multiplied to keep both limits; 1.0 when they fit.

    `targets`: (uplink, interval in s) of each path; limits in packets/s."""
    rates: dict[str, float] = {}
    for uplink, interval_s in targets:
        rates[uplink] = rates.get(uplink, 0.0) + 1 / interval_s
    host = sum(rates.values()) / (per_host * REGULAR_SHARE)
    link = max(rates.values(), default=0.0) / (per_link * REGULAR_SHARE)
    return max(1.0, host, link)


def _stretched(world: World, targets: Iterable[ProbeTarget]) -> float:
    """What the packet limits make of the plan: as the probes' edge, which has them to keep."""
    probing = world.settings.probing
    rates = []
    for target in targets:
        rates.append((target.uplink, target.interval_s))
        if probing.large_ratio > 0 and target.interval_s <= FAST_S and not target.telling:
            rates.append((target.uplink, target.interval_s / probing.large_ratio))
    return stretch(rates, probing.max_packets_per_s, probing.max_link_packets_per_s)


def probing_interval_s(world: World, peer: Peer) -> float:
    """How often the paths to a peer are probed, by what the packet limits leave of what is wanted."""
    return wanted_interval_s(world, peer) * world.stretch


def wanted_interval_s(world: World, peer: Peer) -> float:
    """Of the paths to a peer: as configured for one that is talked to or not, or, for the former, so short that three
    times over what it takes to find a blackhole fits into the patience of the first transport that would give up."""
    probing = world.settings.probing
    wanted_s = probing.interval_s if peer.active else probing.idle_interval_s
    if peer.patience_s is None or not peer.active:
        return wanted_s
    return min(wanted_s, max(LEAST_INTERVAL_S, peer.patience_s / (3 * world.settings.detection.blackhole_losses)))


def send_plan(world: World, tray: Tray, last: tuple[ProbeTarget, ...], now_s: float) -> tuple[ProbeTarget, ...]:
    """Tell the probes when the plan has changed; the plan in force. What leaves the plan leaves its evidence behind."""
    wanted = plan(world, now_s)
    if wanted != last:
        tray.put(SetProbes(cmd_id=tray.take_id(), cause="", targets=wanted))
        planned = frozenset((target.peer, target.uplink, target.label) for target in wanted)
        for address, uplink, label in sorted(world.planned - planned):
            path = world.table.find(address, uplink, label)
            if path is not None:
                path.forget_evidence(now_s)
        if not planned >= world.planned:
            world.decide_soon(now_s)
        world.planned = planned
        world.stretch = _stretched(world, wanted)
    return wanted
