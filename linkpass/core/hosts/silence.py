"""Peers that fall silent, whose data stops, that are heard again: what is kept until their silence is judged."""

from __future__ import annotations

from linkpass.core.events import PeerBack, PeerData, PeerFiltered, PeerSilent
from linkpass.core.paths import Peer
from linkpass.core.world import Tray, World

GOODBYE_S = 0.5
"""A silence that begins this soon after a goodbye is explained by it; a daemon that is heard later has come back."""
ASK_S = 1.0
"""A host is asked this long before it is judged: three tries of a trace and an echo take less."""

DATA_S = 0.5
"""Sockets are looked at once a second: of two looks after a silence began the second, which shows that data has stopped
with the host, may come a moment after two seconds. It comes before probes are taken to be filtered."""

TELL_S = 1.0
"""A peer that is heard again is told of this host's state after so long: others come back with it."""


def judge_at(peer: Peer, at_s: float, now_s: float) -> None:
    """Judge a silent peer at `at_s`, and ask about it a while before, unless it has just been asked."""
    peer.judge_at_s = at_s
    ask_at_s = max(now_s, at_s - ASK_S)
    peer.host.ask_at_s = ask_at_s if ask_at_s >= peer.host.asked_at_s + ASK_S else None


def on_silent(world: World, tray: Tray, event: PeerSilent, now_s: float) -> None:
    peer = world.table.peer(event.peer)
    if peer.silent_since_s is not None:
        return
    peer.silent_since_s = now_s - event.silent_s
    peer.left = peer.silent_since_s - peer.left_at_s <= GOODBYE_S
    peer.host.fresh(tray.next_id)
    if peer.left:
        peer.cause = world.new_cause()
        tray.record(peer.cause, f"{peer.title()} is silent", "its daemon said goodbye", element=peer.title())
        return
    judge_at(peer, peer.silent_since_s + patience_s(world, peer, now_s), now_s)
    peer.cause = world.incident(now_s)
    why = f"nothing on any path for {event.silent_s:.2f} s; paths are not judged meanwhile"
    tray.record(peer.cause, f"{peer.title()} is silent", why, element=peer.title(), level="warning")
    for path in peer.used():
        if path.element.state in ("watch", "held"):  # silence earns no return
            path.element.feed("quiet", now_s, why="the peer is silent")
    world.decide_soon(now_s)


def patience_s(world: World, peer: Peer, now_s: float) -> float:
    """How long a peer may be silent: at once is enough for one that has said that it fails, half the time for one that
    has said that it is not well. Its own word counts, whoever else says what."""
    whole_s = world.settings.detection.escalate_s
    if says_it_fails(peer, now_s):
        return 0.0
    return whole_s / 2 if peer.host.said and peer.host.said_until_s > now_s else whole_s


def says_it_fails(peer: Peer, now_s: float) -> bool:
    """Its own word, as long as that counts."""
    return peer.host.failing and peer.host.said_until_s > now_s


def on_back(world: World, tray: Tray, event: PeerBack, now_s: float) -> None:
    peer = world.table.peer(event.peer)
    _no_longer_filtered(world, tray, peer)
    if peer.silent_since_s is None:
        return
    lasted_s = now_s - peer.silent_since_s
    tray.record(peer.cause, f"{peer.title()} is heard again", f"after {lasted_s:.2f} s", element=peer.title())
    peer.silent_since_s, peer.judge_at_s, peer.escalated, peer.outlived = None, None, False, False
    peer.left = False
    peer.host.fresh(tray.next_id)
    # It may have started anew: it counts from its machine's start, and what it said is of before. An old word that is
    # replayed bears an old boot id; what stands is said again.
    peer.host.word_seq, peer.host.said, peer.host.failing = -1, "", False
    if world.hosts.told:
        world.hosts.tell_at_s = min(world.hosts.tell_at_s or now_s + TELL_S, now_s + TELL_S)
    for path in peer.used():
        if path.evidence in ("good", "queueing"):
            path.element.feed("good", now_s, why="the peer is heard again")
    somebody_speaks(world, now_s)
    world.decide_soon(now_s)


def on_goodbye(world: World, tray: Tray, address: str, now_s: float) -> None:
    """Its daemon stops in good order: the silence that follows is not the host's failure."""
    peer = world.table.peer(address)
    if now_s - peer.left_at_s > GOODBYE_S:
        peer.left_at_s = now_s
        tray.record(world.new_cause(), f"{peer.title()}: its daemon stops", "it said goodbye", element=peer.title())


def somebody_speaks(world: World, now_s: float) -> None:
    """A peer answers (again): those who stay silent may be judged by it, after they had time to come back as well."""
    for peer in world.table.peers.values():
        if (
            peer.silent_since_s is not None
            and peer.judge_at_s is None
            and not peer.escalated
            and not peer.outlived
            and not peer.left
        ):
            judge_at(peer, now_s + world.settings.detection.escalate_s, now_s)


def judge_anew(world: World, peer: Peer, now_s: float) -> None:
    """More is known of a silent peer that was left alone for want of it."""
    if peer.silent_since_s is not None and peer.judge_at_s is None and not peer.escalated and not peer.left:
        judge_at(peer, max(now_s, peer.silent_since_s + patience_s(world, peer, now_s)), now_s)


def on_flow_stands(world: World, peer: Peer, now_s: float) -> None:
    """Work for it waits in a queue pair: something was to be exchanged with it, though no socket shows it."""
    before_s, peer.host.stood_at_s = peer.host.stood_at_s, now_s
    if before_s < (peer.silent_since_s or now_s):
        judge_anew(world, peer, now_s)


def on_data(world: World, event: PeerData, now_s: float) -> None:
    """Data that stops long after the peer fell silent may only be stalled: it gets its time as well."""
    peer = world.table.peer(event.peer)
    if event.flows or peer.data_flows:  # it flows now, or did until a moment ago
        peer.flowed_at_s = now_s
    peer.data_flows, peer.host.stands = event.flows, event.stands
    waiting = peer.judge_at_s is None and not peer.escalated and not peer.left
    if peer.silent_since_s is not None and not event.flows and waiting:
        judge_at(peer, now_s + patience_s(world, peer, now_s), now_s)
    elif peer.silent_since_s is not None and not event.flows and peer.host.data_doubted:
        peer.host.data_doubted = False
        judge_at(peer, now_s, now_s)


def doubts_data(world: World, peer: Peer, now_s: float) -> bool:
    """Whether a peer whose data flowed at the last look is judged before the next one. It is judged again after that
    one, or by what it shows."""
    if peer.data_flows is not True or peer.outlived or peer.silent_since_s is None:
        return False
    again_s = peer.silent_since_s + patience_s(world, peer, now_s) + DATA_S
    peer.host.data_doubted = now_s < again_s
    if peer.host.data_doubted:
        judge_at(peer, again_s, now_s)
    return peer.host.data_doubted


def on_filtered(world: World, tray: Tray, event: PeerFiltered) -> None:
    peer = world.table.peer(event.peer)
    if not peer.filtered:
        peer.filtered = event.why or event.rule
        fact = "go unanswered" if event.why else "are filtered"
        what = f"probes to {peer.title()} {fact}: no probe is answered, its data flows; nothing is moved"
        why = event.why or f"add the rule: {event.rule}"
        tray.record(world.new_cause(), what, why, element=peer.title(), level="warning")


def _no_longer_filtered(world: World, tray: Tray, peer: Peer) -> None:
    if peer.filtered:
        peer.filtered = ""
        tray.record(world.new_cause(), f"probes to {peer.title()} get through", "no longer filtered")


def on_answer(world: World, tray: Tray, peer: Peer, now_s: float) -> None:
    """The first answer over a path of a peer."""
    _no_longer_filtered(world, tray, peer)
    if peer.silent_since_s is None:
        somebody_speaks(world, now_s)
