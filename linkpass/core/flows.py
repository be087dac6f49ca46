"""RDMA flows that stand though work waits: what is known of their paths and peers says whose fault that is.

Nothing is moved for it: a path that fails is left by its own evidence. What stands is named at once, for the transport
says nothing until it gives up.
"""

from __future__ import annotations

from linkpass.core import roce
from linkpass.core.events import FlowGoes, FlowStands
from linkpass.core.hosts import witnesses
from linkpass.core.world import Tray, World


def on_stands(world: World, tray: Tray, event: FlowStands, now_s: float) -> None:
    """Said when it begins, and again when more is known."""
    kind, why, cause = _judge(world, event, now_s)
    said = world.standing.get(event.flow)
    if said is not None and said[0] == kind:
        return
    cause = cause or (said[1] if said is not None else "") or world.incident(now_s)
    world.standing[event.flow] = kind, cause
    name = world.table.peer(event.peer).title()
    left = f", its transport gives up in {event.left_s:.1f} s at the earliest" if event.left_s is not None else ""
    what = f"{event.flow} to {name} stands: {kind}"
    tray.record(cause, what, f"nothing new sent for {event.silent_s:.2f} s{left}; {why}", element=name, level="warning")


def on_goes(world: World, tray: Tray, event: FlowGoes, now_s: float) -> None:
    said = world.standing.pop(event.flow, None)
    if said is not None:
        name = world.table.peer(event.peer).title()
        what, why = ("has ended", "its queue pair is gone") if event.ended else ("goes on", "it sends again")
        tray.record(said[1], f"{event.flow} to {name} {what}", why, element=name)


def _judge(world: World, event: FlowStands, now_s: float) -> tuple[str, str, str]:
    """What it is, why, and the cause that it belongs to (empty: none yet)."""
    peer = world.table.peer(event.peer)
    used = peer.used()
    if peer.silent_since_s is not None:
        shared, count = witnesses(world, peer)
        silent = f"{peer.title()} is silent on all {len(used)} path(s) for {now_s - peer.silent_since_s:.2f} s"
        if shared:
            why = f"{silent}, {count} other peer(s) answer over {', '.join(shared)}"
            return "host, not path", why, peer.cause
        return "unknown", f"{silent}, and nobody else answers over the same uplinks", peer.cause
    bad = [path for path in used if path.element.state == "down"]
    if bad:
        return "path", f"{len(bad)} of {len(used)} path(s) fail, {bad[0].element.why}", bad[0].element.cause
    queue = roce.failing(world, event.peer)
    if queue is not None:
        why = (
            f"probes of paths get through, datagrams in the device's own queue do not: {queue[0].name}, {queue[0].why}"
        )
        return "RoCE queue", why, queue[1]
    if any(path.answers for path in used):
        return "unknown", "probes get through: the receiving program or its device, or only the flow itself", ""
    return "unknown", "no path to it has been probed yet", ""
