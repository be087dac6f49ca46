"""Silent peers: when it is the host that fails, and when nothing can be said.

A peer from which nothing comes on any path, while other peers answer over the same uplinks, is no link's fault.
When its data has stopped as well it is given up as a host, once. When its data still flows, only its daemon is
silent. When nobody answers, the fault may be ours: then nobody is accused. None of this moves traffic or blames a
link.
"""

from __future__ import annotations

from linkpass.core.commands import Escalate
from linkpass.core.events import PeerBack, PeerData, PeerFiltered, PeerSilent
from linkpass.core.paths import Peer
from linkpass.core.world import Tray, World


def on_silent(world: World, tray: Tray, event: PeerSilent, now_s: float) -> None:
    peer = world.table.peer(event.peer)
    if peer.silent_since_s is None:
        peer.silent_since_s = now_s - event.silent_s
        cause = world.incident(now_s)
        why = f"nothing on any path for {event.silent_s:.2f} s; paths are not judged meanwhile"
        tray.record(cause, f"{peer.title()} is silent", why, element=peer.title(), level="warning")
        peer.cause = cause


def on_back(world: World, tray: Tray, event: PeerBack, now_s: float) -> None:
    peer = world.table.peer(event.peer)
    if peer.silent_since_s is not None:
        lasted_s = now_s - peer.silent_since_s
        tray.record(peer.cause, f"{peer.title()} is heard again", f"after {lasted_s:.2f} s", element=peer.title())
    peer.silent_since_s, peer.escalated = None, False


def on_data(world: World, event: PeerData) -> None:
    world.table.peer(event.peer).data_flows = event.flows


def on_filtered(world: World, tray: Tray, event: PeerFiltered) -> None:
    peer = world.table.peer(event.peer)
    if not peer.filtered:
        peer.filtered = event.rule
        what = f"probes to {peer.title()} are filtered: no probe is answered, its data flows; nothing is moved"
        tray.record(world.new_cause(), what, f"add the rule: {event.rule}", element=peer.title(), level="warning")


def deadlines(world: World) -> list[float]:
    wait_s = world.settings.detection.escalate_s
    return [
        peer.silent_since_s + wait_s
        for peer in world.table.peers.values()
        if peer.silent_since_s is not None and not peer.escalated and peer.data_flows is not True
    ]


def judge(world: World, tray: Tray, now_s: float) -> None:
    """Escalate the peers that have been silent long enough while others speak over the same uplinks."""
    speaking = [peer for peer in world.table.peers.values() if peer.silent_since_s is None and _answers(peer)]
    for peer in world.table.peers.values():
        since_s = peer.silent_since_s
        if since_s is None or peer.escalated or peer.data_flows is True:
            continue
        if now_s < since_s + world.settings.detection.escalate_s:
            continue
        peer.escalated = True
        shared = sorted({path.uplink for path in peer.used()} & {p.uplink for other in speaking for p in other.used()})
        if not shared:
            why = "no other peer answers over the same uplinks: the fault may be this host's"
            tray.record(peer.cause, f"{peer.title()} stays silent", why, element=peer.title(), level="warning")
            continue
        evidence = (
            f"silent on all {len(peer.in_use)} paths for {now_s - since_s:.2f} s",
            f"{len(speaking)} other peer(s) answer over {', '.join(shared)}",
            "its data has stopped" if peer.data_flows is False else "no data with it is known",
        )
        what = f"verdict host: {peer.title()} fails"
        tray.record(peer.cause, what, "; ".join(evidence), rung=3, element=peer.title(), level="warning")
        tray.put(Escalate(cmd_id=tray.take_id(), cause=peer.cause, host=peer.title(), evidence=evidence))


def _answers(peer: Peer) -> bool:
    return any(path.evidence in ("good", "queueing", "lossy") for path in peer.used())
