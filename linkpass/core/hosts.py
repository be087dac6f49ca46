"""Silent peers: when it is the host that fails, and when nothing can be said.

A peer from which nothing comes on any path, while other peers answer over the same uplinks, is no link's fault.
When its data has stopped as well it is given up as a host, once. When its data still flows, only its daemon is
silent. When nobody answers, the fault may be ours: then nobody is accused until others are heard again. None of this
moves traffic or blames a link.
"""

from __future__ import annotations

from linkpass.core.commands import Escalate
from linkpass.core.events import PeerBack, PeerData, PeerFiltered, PeerSilent
from linkpass.core.paths import Peer
from linkpass.core.world import Tray, World

GOODBYE_S = 0.5
"""A silence that begins this soon after a goodbye is explained by it; a daemon that is heard later has come back."""


def on_silent(world: World, tray: Tray, event: PeerSilent, now_s: float) -> None:
    peer = world.table.peer(event.peer)
    if peer.silent_since_s is not None:
        return
    peer.silent_since_s = now_s - event.silent_s
    peer.left = peer.silent_since_s - peer.left_at_s <= GOODBYE_S
    if peer.left:
        peer.cause = world.new_cause()
        tray.record(peer.cause, f"{peer.title()} is silent", "its daemon said goodbye", element=peer.title())
        return
    peer.judge_at_s = peer.silent_since_s + world.settings.detection.escalate_s
    peer.cause = world.incident(now_s)
    why = f"nothing on any path for {event.silent_s:.2f} s; paths are not judged meanwhile"
    tray.record(peer.cause, f"{peer.title()} is silent", why, element=peer.title(), level="warning")
    for path in peer.used():
        if path.element.state in ("watch", "held"):  # silence earns no return
            path.element.feed("quiet", now_s, why="the peer is silent")
    world.decide_soon(now_s)


def on_back(world: World, tray: Tray, event: PeerBack, now_s: float) -> None:
    peer = world.table.peer(event.peer)
    _no_longer_filtered(world, tray, peer)
    if peer.silent_since_s is None:
        return
    lasted_s = now_s - peer.silent_since_s
    tray.record(peer.cause, f"{peer.title()} is heard again", f"after {lasted_s:.2f} s", element=peer.title())
    peer.silent_since_s, peer.judge_at_s, peer.escalated, peer.outlived = None, None, False, False
    peer.left = False
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
            peer.judge_at_s = now_s + world.settings.detection.escalate_s


def on_data(world: World, event: PeerData, now_s: float) -> None:
    """Data that stops long after the peer fell silent may only be stalled: it gets its time as well."""
    peer = world.table.peer(event.peer)
    if event.flows or peer.data_flows:  # it flows now, or did until a moment ago
        peer.flowed_at_s = now_s
    peer.data_flows = event.flows
    waiting = peer.judge_at_s is None and not peer.escalated and not peer.left
    if peer.silent_since_s is not None and not event.flows and waiting:
        peer.judge_at_s = now_s + world.settings.detection.escalate_s


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


def witnesses(world: World, peer: Peer) -> tuple[list[str], int]:
    """The uplinks of a silent peer over which others answer, and how many others do: then it is no fault of ours."""
    speaking = [other for other in world.table.peers.values() if other.silent_since_s is None]
    answering = {path.uplink for other in speaking for path in other.used() if path.answers}
    count = sum(any(path.answers for path in other.used()) for other in speaking)
    return sorted({path.uplink for path in peer.used()} & answering), count


def deadlines(world: World) -> list[float]:
    return [peer.judge_at_s for peer in world.table.peers.values() if peer.judge_at_s is not None]


def judge(world: World, tray: Tray, now_s: float) -> None:
    """Say of each peer whose time has come what its silence means; escalate those that fail as hosts."""
    for peer in world.table.peers.values():
        since_s = peer.silent_since_s
        if peer.judge_at_s is None or now_s < peer.judge_at_s:
            continue
        peer.judge_at_s = None
        if since_s is None or peer.filtered:
            continue
        if peer.data_flows is True:
            if not peer.outlived:
                peer.outlived = True
                what = f"{peer.title()} stays silent, but only its daemon"
                tray.record(peer.cause, what, "its data flows", element=peer.title())
            continue
        if peer.data_flows is None and peer.outlived:  # its data ended in good order after all
            continue
        if peer.data_flows is False and since_s - peer.flowed_at_s > world.settings.detection.flowed_s:
            what = f"{peer.title()} stays silent; nothing had been exchanged with it lately"
            tray.record(peer.cause, what, "a daemon that died looks the same: not given up", element=peer.title())
            continue
        shared, count = witnesses(world, peer)
        if not shared:
            why = "no other peer answers over the same uplinks: the fault may be this host's"
            tray.record(peer.cause, f"{peer.title()} stays silent", why, element=peer.title(), level="warning")
            continue
        peer.escalated = True
        evidence = (
            f"silent on all {len(peer.in_use)} paths for {now_s - since_s:.2f} s",
            f"{count} other peer(s) answer over {', '.join(shared)}",
            "its data has stopped" if peer.data_flows is False else "no data with it is known",
        )
        what = f"verdict host: {peer.title()} fails"
        tray.record(peer.cause, what, "; ".join(evidence), rung=3, element=peer.title(), level="warning")
        tray.put(Escalate(cmd_id=tray.take_id(), cause=peer.cause, host=peer.title(), evidence=evidence))
