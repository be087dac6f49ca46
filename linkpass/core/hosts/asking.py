"""What is asked about a host: of its kernel (does it run, does it hold the daemon's port), of the switches in front of
it (do they live), of other daemons (do they hear it).

An answer counts only against what was answered before: a kernel that never answered an echo is not dead without one.
"""

from __future__ import annotations

from linkpass.core.commands import AskHost, TraceLabels
from linkpass.core.events import HostAnswered, HostAskFailed, LabelsTraced
from linkpass.core.host_state import NEVER_S
from linkpass.core.hosts import behind, words
from linkpass.core.hosts.silence import judge_at
from linkpass.core.paths import Peer
from linkpass.core.world import Tray, World

KNOWN_S = 300.0
"""How long it is taken as known that a kernel answers echoes."""
AT_ONCE = 4
TRACED = 8
"""Labels."""
AGAIN_S = 0.9
"""One of those who are silent behind the same switches is traced, for all."""


def ask_who_is_known(world: World, tray: Tray, now_s: float) -> None:
    """While peers are heard: learn whether their kernels answer at all."""
    due = [
        peer
        for peer in world.table.peers.values()
        if peer.silent_since_s is None
        and now_s >= peer.host.known_at_s + KNOWN_S
        and any(path.answers for path in peer.used())
    ]
    due.sort(key=lambda peer: not peer.active)
    for peer in due[:AT_ONCE]:
        peer.host.known_at_s = now_s
        _ask_kernel(tray, peer, "")


def ask(world: World, tray: Tray, peer: Peer, now_s: float) -> None:
    """About a silent peer, before it is judged."""
    peer.host.ask_at_s, peer.host.asked_at_s = None, now_s
    peer.host.answer = None
    _ask_kernel(tray, peer, peer.cause)
    hops = behind.last_hops(peer)
    if not behind.life(world, peer, now_s) and now_s >= world.hosts.traced_s.get(hops, NEVER_S) + AGAIN_S:
        world.hosts.traced_s[hops] = now_s
        for uplink in world.usable_uplinks():
            labels = tuple(label for name, label in peer.in_use if name == uplink)[:TRACED]
            if labels and peer.labelled:
                command = TraceLabels(
                    cmd_id=tray.take_id(), cause=peer.cause, peer=peer.address, uplink=uplink, labels=labels
                )
                tray.put(command)
        for other in behind.neighbours(world, peer):
            _ask_kernel(tray, other, peer.cause)
    words.ask_others(world, tray, peer, now_s)


def _ask_kernel(tray: Tray, peer: Peer, cause: str) -> None:
    ways = peer.in_use or tuple(peer.paths)[:TRACED]
    if ways:
        tray.put(AskHost(cmd_id=tray.take_id(), cause=cause, peer=peer.address, ways=ways))


def on_answered(world: World, event: HostAnswered, now_s: float) -> None:
    peer = world.table.peers.get(event.peer)
    if peer is None:
        return
    if event.echoed and len(hops := behind.last_hops(peer)) == 1:
        world.hosts.vouched_s[min(hops)] = now_s, peer.title()
    if peer.silent_since_s is None:
        if event.asked and any(path.answers for path in peer.used()):
            peer.host.echoes = bool(event.echoed) or peer.host.echoes
            peer.host.holds_port = not event.closed
    elif event.cmd_id >= peer.host.from_id:
        peer.host.answer = event


def on_ask_failed(world: World, tray: Tray, event: HostAskFailed) -> None:
    """Nothing is known then, and nothing is held against anybody."""
    peer = world.table.peer(event.peer)
    if peer.said.get("ask") != event.why:
        peer.said["ask"] = event.why
        tray.record("", f"the kernel of {peer.title()} cannot be asked", event.why, element=peer.title())


def on_traced(world: World, event: LabelsTraced, now_s: float) -> None:
    """Switches that answer live; who was silent behind one that was held to be dead is judged again."""
    nodes = {hop for hops in event.hops.values() for hop in hops if hop is not None}
    for node in nodes:
        world.hosts.seen[node] = max(event.cmd_id, world.hosts.seen.get(node, -1))
    for peer in world.table.peers.values():
        if nodes & set(peer.host.behind) and event.cmd_id >= peer.host.from_id and peer.silent_since_s is not None:
            peer.host.behind = ()
            judge_at(peer, now_s + world.settings.detection.escalate_s, now_s)
