"""What datagrams through RDMA devices prove: whether the job's own queue and class get through, there and back.

They take the way that the traffic takes now, and cannot tell one path from another: paths are judged and left by their
own probes. What they see that those cannot is what happens to RoCE alone: a filter, a class of service that stands, a
device that no longer sends. That is named, and explains a flow that stands; nothing is moved for it.
"""

from __future__ import annotations

from linkpass.core.events import FAILING, RoceEvidence
from linkpass.core.world import Tray, World


def on_evidence(world: World, tray: Tray, event: RoceEvidence, now_s: float) -> None:
    """Said when it begins to fail, when it fails otherwise, and when it is over."""
    said = world.roce.get(event.name)
    title = world.table.peer(event.peer).title()
    if event.evidence in FAILING:
        cause = said[1] if said is not None else _cause(world, event, now_s)
        world.roce[event.name] = event, cause
        if said is None or said[0].evidence != event.evidence:
            what = f"{event.evidence} of RoCE datagrams from {event.name} ({title})"
            tray.record(cause, what, event.why, element=title, level="warning")
    elif said is not None:
        del world.roce[event.name]
        what = f"RoCE datagrams from {event.name} ({title}) get through"
        if event.evidence == "unknown":
            what = f"RoCE datagrams from {event.name} ({title}) are no longer judged"
        tray.record(said[1], what, event.why, element=title)


def _cause(world: World, event: RoceEvidence, now_s: float) -> str:
    """That of the path or peer which fails already, else the incident of this moment."""
    peer = world.table.peer(event.peer)
    if peer.silent_since_s is not None and peer.cause:
        return peer.cause
    bad = [path.element.cause for path in peer.used() if path.element.state == "down" and path.element.cause]
    return bad[0] if bad else world.incident(now_s)


def failing(world: World, peer: str) -> tuple[RoceEvidence, str] | None:
    """What fails towards a peer while its paths do not, and the cause."""
    return next((said for said in world.roce.values() if said[0].peer == peer), None)
