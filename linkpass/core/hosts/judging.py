"""What a peer's silence means, said once, when its time has come.

In this order, each a reason not to give a host up: its data flows; its kernel says that its daemon has ended; nothing
was exchanged with it lately; nobody else answers over the same uplinks (the fault may be ours); the switches in front
of it explain it, or may; others hear it. Else it is given up: frozen when its kernel answers, dead when nothing does.
"""

from __future__ import annotations

from collections.abc import Iterator

from linkpass.core.events import HostEvidence
from linkpass.core.hosts import asking, behind, escalation, own, slow, words
from linkpass.core.hosts.escalation import escalate
from linkpass.core.hosts.silence import ASK_S, doubts_data, judge_anew, judge_at, says_it_fails
from linkpass.core.paths import Peer
from linkpass.core.world import Tray, World

NOTHING_RATIO = 0.9
"""A switch that lets some of it through does not silence a host."""
LATE_S = 0.2
"""A judge who comes later than this was kept from running: what he has not heard meanwhile proves nothing."""
PAUSE_MAX_S = 60.0
"""The longest pause between two judgements that keep a host from being given up."""


def witnesses(world: World, peer: Peer) -> tuple[list[str], int]:
    """The uplinks of a silent peer over which others answer, and how many others do: then it is no fault of ours."""
    speaking = [other for other in world.table.peers.values() if other.silent_since_s is None]
    answering = {path.uplink for other in speaking for path in other.used() if path.answers}
    count = sum(any(path.answers for path in other.used()) for other in speaking)
    return sorted({path.uplink for path in peer.used()} & answering), count


def deadlines(world: World) -> Iterator[float]:
    for peer in world.table.peers.values():
        for at_s in (peer.judge_at_s, peer.host.ask_at_s):
            if at_s is not None and peer.silent_since_s is not None:
                yield at_s
    yield from own.deadlines(world)
    yield from escalation.deadlines(world)
    yield from slow.deadlines(world)


def tick(world: World, tray: Tray, now_s: float) -> None:
    """Ask and judge where it is time; let this host's own evidence age."""
    for peer in world.table.peers.values():
        silent = peer.silent_since_s is not None
        if silent and peer.host.ask_at_s is not None and peer.host.ask_at_s <= now_s:
            asking.ask(world, tray, peer, now_s)
        if peer.judge_at_s is not None and peer.judge_at_s <= now_s:
            due_s, peer.judge_at_s = peer.judge_at_s, None
            if silent and not peer.filtered:
                if _unheard(peer, due_s, now_s):
                    judge_at(peer, now_s + ASK_S, now_s)
                else:
                    _judge(world, tray, peer, now_s)
    own.tick(world, tray, now_s)
    escalation.tick(world, tray, now_s)
    slow.tick(world, tray, now_s)


def _unheard(peer: Peer, due_s: float, now_s: float) -> bool:
    """Whether answers may still be on their way: the question was put in this very turn, or this host was kept from
    running, and from reading what had come."""
    return (peer.host.asked_at_s >= now_s or now_s > due_s + LATE_S) and not says_it_fails(peer, now_s)


def on_verdict(world: World, tray: Tray, host: str, evidence: tuple[str, ...], now_s: float) -> None:
    """Localisation holds that a host (its name or address) fails. What is heard is not given up for it: a path can help
    still. Against this host itself it weighs as evidence that degrades, since paths cannot tell us from our neighbours.
    """
    if host in (world.settings.host, world.settings.address):
        why = "; ".join(evidence)
        trouble = HostEvidence(source="localisation", what="paths", severity="degraded", why=why, lasts_s=PAUSE_MAX_S)
        own.on_evidence(world, tray, trouble, now_s)
        return
    peer = next((one for one in world.table.peers.values() if host in (one.title(), one.address)), None)
    if peer is None:
        return
    if peer.silent_since_s is None:
        why = "; ".join(evidence)
        if now_s >= peer.host.named_until_s:
            what = f"{peer.title()} is held to fail, and heard: not given up"
            tray.record(world.new_cause(), what, why, element=peer.title())
        peer.host.named_until_s = now_s + PAUSE_MAX_S
        return
    if peer.host.verdict:  # said before, in other figures
        return
    peer.host.verdict = evidence
    sooner_s = max(now_s, peer.silent_since_s + world.settings.detection.escalate_s / 2)
    if peer.judge_at_s is None:
        judge_anew(world, peer, now_s)
    elif sooner_s < peer.judge_at_s:
        judge_at(peer, sooner_s, now_s)


def on_switch(world: World, switch: str, now_s: float, *, stands: bool) -> None:
    """Localisation holds that a switch fails, or no longer does: those behind it are not given up meanwhile."""
    if stands:
        world.hosts.blamed.add(switch)
        return
    world.hosts.blamed.discard(switch)
    for peer in world.table.peers.values():
        if switch in peer.host.behind and peer.silent_since_s is not None:
            peer.host.behind = ()
            judge_at(peer, now_s + world.settings.detection.escalate_s, now_s)


def follow(world: World, tray: Tray, now_s: float) -> None:
    """Take what the diagnosis is certain of: switches that let nothing through, and hosts."""
    certain = [one for one in world.findings if one.certain and one.scope == "whole" and not one.others]
    switches = {one.element for one in certain if one.kind == "switch" and one.loss_ratio >= NOTHING_RATIO}
    for switch in sorted(world.hosts.blamed ^ switches):
        on_switch(world, switch, now_s, stands=switch in switches)
    for one in certain:
        if one.kind == "host" and one.element != world.settings.host:
            on_verdict(world, tray, one.element, (f"localisation: {one.confidence:.1%} sure", *one.evidence), now_s)


def _judge(world: World, tray: Tray, peer: Peer, now_s: float) -> None:
    if doubts_data(world, peer, now_s):
        return
    settled, why = _only_its_daemon(world, peer, now_s)
    if settled == "its daemon":
        if not peer.outlived:
            peer.outlived = True
            _say(tray, peer, f"{peer.title()} stays silent, but only its daemon", why, "only its daemon")
        if peer.data_flows is False:  # should the host follow its daemon, no data will tell
            _look_again(world, peer, now_s)
    elif settled == "unknown":
        _say(tray, peer, f"{peer.title()} stays silent; nothing had been exchanged with it lately", why, "not known")
    elif settled != "over":
        _accuse(world, tray, peer, now_s)


def _only_its_daemon(world: World, peer: Peer, now_s: float) -> tuple[str, str]:
    """(`its daemon`, `unknown`, `over` or empty, why): what its data and its kernel say for it."""
    answer = peer.host.answer
    if peer.data_flows is True:
        return "its daemon", "its data flows"
    if answer is not None and answer.closed and peer.host.holds_port:
        return (
            "its daemon",
            "its kernel answers that nobody holds the daemon's port: the daemon has ended, the host runs",
        )
    if peer.data_flows is None and peer.outlived:  # its data ended in good order after all
        return "over", ""
    idle_s = (peer.silent_since_s or 0.0) - peer.flowed_at_s
    if idle_s > world.settings.detection.flowed_s and not _spoken_against(peer, now_s):
        return "unknown", "a daemon that died looks the same, and so does a host that was switched off: not given up"
    return "", ""


def _spoken_against(peer: Peer, now_s: float) -> bool:
    """Whether more than silence says that it fails: localisation, its own word, or a queue pair whose work waits."""
    stood = peer.host.stood_at_s >= (peer.silent_since_s or now_s)
    return bool(peer.host.verdict) or stood or says_it_fails(peer, now_s)


def _accuse(world: World, tray: Tray, peer: Peer, now_s: float) -> None:
    shared, others = witnesses(world, peer)
    if not shared:
        why = "no other peer answers over the same uplinks: the fault may be this host's"
        _say(tray, peer, f"{peer.title()} stays silent", why, "the fault may be here", level="warning")
        return
    switches, explained = behind.explained_by(world, peer, now_s)
    if switches:
        _blame_switches(world, tray, peer, switches, explained)
        return
    if not behind.life(world, peer, now_s) and behind.waits_for_slow_ones(world, peer, now_s):
        judge_at(peer, (peer.silent_since_s or now_s) + world.slow_s, now_s)
        return
    switch = behind.inseparable(world, peer, now_s)
    if switch and not peer.host.verdict and not says_it_fails(peer, now_s):
        peer.host.behind = tuple(behind.last_hops(peer))  # should it show life, this one is judged again
        _look_again(world, peer, now_s)
        why = f"nobody else is known behind {switch} who could tell, and it shows no life: it may be that which fails"
        _say(tray, peer, f"{peer.title()} stays silent, and is not given up", why, "it or its switch", level="warning")
        return
    hear, miss = words.count(world, peer, now_s)
    if hear >= miss:
        _look_again(world, peer, now_s)
        what = f"{peer.title()} stays silent here, and is not given up"
        _say(tray, peer, what, f"{hear} other daemon(s) hear it, {miss} do not", "others hear it", level="warning")
        return
    evidence = (*_evidence(peer, now_s), *_surroundings(peer, shared, others, explained, miss))
    until_s = escalate(world, tray, peer.title(), evidence, peer.cause, peer.silent_since_s or now_s, now_s)
    if until_s is None:
        peer.escalated, peer.host.meaning = True, "given up"
    else:
        judge_at(peer, until_s, now_s)


def _look_again(world: World, peer: Peer, now_s: float) -> None:
    """Ask and judge once more, after pauses that grow while the answer stays the same."""
    peer.host.pause_s = min(PAUSE_MAX_S, 2 * peer.host.pause_s or world.settings.detection.escalate_s)
    judge_at(peer, now_s + peer.host.pause_s, now_s)


def _evidence(peer: Peer, now_s: float) -> Iterator[str]:
    """What the host shows of itself, by its silence, its kernel and its own words."""
    silent_s = now_s - (peer.silent_since_s or now_s)
    yield f"silent on all {len(peer.in_use)} paths for {silent_s:.2f} s"
    answer = peer.host.answer
    if answer is not None and answer.echoed:
        yield f"frozen: its kernel answers over {', '.join(answer.echoed)}, and nothing above it does"
    elif answer is not None and peer.host.echoes and answer.asked:
        yield f"dead: its kernel, which answered before, answers over none of {', '.join(answer.asked)}"
    if peer.data_flows is False and peer.host.stands == "shut":
        yield "its data has stopped: its kernel takes no more of it, since nobody reads what has come"
    elif peer.data_flows is False and peer.host.stands == "unacked":
        yield "its data has stopped: nothing that was sent is acknowledged"
    else:
        yield "its data has stopped" if peer.data_flows is False else "no data with it is known"
    if peer.host.said:
        yield f"it said of itself: {peer.host.said}"
    if peer.host.slow:
        yield f"it was slow before: {peer.host.slowness.why}"


def _surroundings(peer: Peer, shared: list[str], others: int, explained: str, miss: int) -> Iterator[str]:
    """What clears everything else."""
    yield f"{others} other peer(s) answer over {', '.join(shared)}"
    if explained:
        yield explained
    if miss > 1:
        yield f"{miss - 1} other daemon(s) do not hear it either"
    yield from peer.host.verdict


def _blame_switches(world: World, tray: Tray, peer: Peer, switches: tuple[str, ...], why: str) -> None:
    names = " or ".join(filter(None, switches))
    meaning = f"behind {names}" if names else "with others"
    silent = (one for one in world.table.peers.values() if one.silent_since_s is not None)
    said = any((one.host.meaning, one.host.behind) == (meaning, switches) for one in silent)
    peer.host.meaning, peer.host.behind = meaning, switches
    if not said:
        what = f"verdict switch: {names} lets nothing through" if names else "hosts are silent, and not given up"
        tray.record(peer.cause, what, why, element=names or peer.title(), level="warning")


def _say(tray: Tray, peer: Peer, what: str, why: str, meaning: str, level: str = "info") -> None:
    """Once, until it means something else."""
    if peer.host.meaning != meaning:
        peer.host.meaning = meaning
        tray.record(
            peer.cause, what, why, element=peer.title(), level="warning" if level == "warning" else "info"
        )  # fmt: skip
