"""RDMA flows: those that stand though work waits, and those that can only be moved one by one.

What is known of its paths and peers says whose fault it is that a flow stands. Nothing is moved for it: a path that
fails is left by its own evidence. It is named at once, for the transport says nothing until it gives up.

An uplink that works but is to be left (a drain, losses) is left by flows that follow no route of ours, too, where that
is allowed: each is stopped and given other addresses, together with its peer. From an uplink over which nothing gets
through none can be moved so: what is outstanding there is never answered.
"""

from __future__ import annotations

from typing import TypeVar

from msgspec.structs import replace

from linkpass.core import crowd, roce
from linkpass.core.events import FlowGoes, FlowMoved, FlowsLeft, FlowsStay, FlowStands, PeerPatience
from linkpass.core.hosts import on_flow_stands, witnesses
from linkpass.core.steer import count_move, grade_uplink
from linkpass.core.survey import wanted_interval_s
from linkpass.core.world import Standing, Tray, World

_T = TypeVar("_T")

FLOWS = "flows "
"""Wishes to leave an uplink are called `flows UPLINK`; their value is `("leave",)`, or nothing."""
MOST_KEPT = 16384
"""Flows of which it is remembered what was last said."""
AGAIN_S = 2.0
"""What could not be moved is tried again no sooner: every attempt holds its program up."""


def on_stands(world: World, tray: Tray, event: FlowStands, now_s: float) -> None:
    """Said when it begins, and again when more is known."""
    on_flow_stands(world, world.table.peer(event.peer), now_s)
    _say(world, tray, event, _judge(world, event.peer, now_s), now_s)


def judge_again(world: World, tray: Tray, now_s: float) -> None:
    """Of flows that stand and nobody knew why: what has come to light since may explain it. Nothing waits for the next
    look at the queue pairs, which takes its time where drivers are slow."""
    asked: dict[str, tuple[str, str, str]] = {}
    for said in [one for one in world.standing.values() if one.kind == "unknown"]:
        peer, silent_s = said.event.peer, said.event.silent_s + now_s - said.told_s
        if peer not in asked:
            asked[peer] = _judge(world, peer, now_s)
        if asked[peer][0] != "unknown":
            _say(world, tray, replace(said.event, silent_s=silent_s, left_s=None), asked[peer], now_s)


def _say(world: World, tray: Tray, event: FlowStands, judged: tuple[str, str, str], now_s: float) -> None:
    kind, why, cause = judged
    said = world.standing.get(event.flow)
    if said is not None and said.kind == kind:
        said.event, said.told_s = event, now_s
        return
    cause = cause or (said.cause if said is not None else "") or world.incident(now_s)
    world.standing[event.flow] = Standing(kind, cause, event, now_s)
    _bound(world.standing)
    name = world.table.peer(event.peer).title()
    left = f", its transport gives up in {event.left_s:.1f} s at the earliest" if event.left_s is not None else ""
    what = f"{event.flow} to {name} stands: {kind}"
    why = f"nothing new sent for {event.silent_s:.2f} s{left}; {why}"
    crowd.tell(
        world, tray, now_s, cause=cause, peer=name, all_of_them=f"stand: {kind}", what=what, why=why, level="warning"
    )


def on_goes(world: World, tray: Tray, event: FlowGoes, now_s: float) -> None:
    said = world.standing.pop(event.flow, None)
    if said is not None:
        name = world.table.peer(event.peer).title()
        what, why = ("has ended", "its queue pair is gone") if event.ended else ("goes on", "it sends again")
        many = "have ended" if event.ended else "go on"
        crowd.tell(
            world,
            tray,
            now_s,
            cause=said.cause,
            peer=name,
            all_of_them=many,
            what=f"{event.flow} to {name} {what}",
            why=why,
        )


def decide(world: World, tray: Tray, now_s: float) -> None:
    """Which uplinks flows should leave one by one: those that work badly while another one is good."""
    if not world.settings.live_qps or not world.acting:
        return
    grades = {name: grade_uplink(world, name, now_s) for name in world.uplinks}
    refuge = any(grade == "good" for grade, _, _ in grades.values())
    for name, (grade, why, cause) in grades.items():
        wanted = ("leave",) if grade == "soft" and refuge else ()
        known = world.wishes.get(FLOWS + name)
        if wanted != (known.value if known is not None else ()):
            world.wish(FLOWS + name).want(wanted, cause or world.new_cause(), why)


def on_left(world: World, event: FlowsLeft) -> None:
    wish = world.wishes.get(FLOWS + event.uplink)
    if wish is not None and wish.done(event.cmd_id):
        wish.unverified = False


def on_stay(world: World, tray: Tray, event: FlowsStay, now_s: float) -> None:
    wish = world.wishes.get(FLOWS + event.uplink)
    if wish is not None and wish.failed(event.cmd_id, now_s):
        wish.retry_at_s = max(wish.retry_at_s or 0.0, now_s + AGAIN_S)
        if wish.failures == 1:
            what = f"some RDMA flows still go over {event.uplink}: tried again with growing pauses"
            tray.record(wish.cause, what, event.why, rung=2, element=event.uplink, level="warning")


def on_patience(world: World, tray: Tray, event: PeerPatience) -> None:
    """Its paths are probed so often that one that swallows everything is found well before (`wanted_interval_s`)."""
    peer = world.table.peer(event.peer)
    peer.patience_s = event.least_s
    interval_s, wanted_s = wanted_interval_s(world, peer), world.settings.probing.interval_s
    if event.least_s is not None and interval_s < wanted_s:
        what = f"paths to {peer.title()} are probed every {interval_s * 1e3:.1f} ms, not every {wanted_s * 1e3:.0f}"
        why = f"an RDMA flow to it gives up after {event.least_s * 1e3:.0f} ms"
        tray.record(world.new_cause(), what, why, element=peer.title())


def on_moved(world: World, tray: Tray, event: FlowMoved, now_s: float) -> None:
    if event.moved:
        world.kept.pop(event.flow, None)
    elif world.kept.get(event.flow) == event.why:
        return  # tried again, with the same end
    else:
        world.kept[event.flow] = event.why
        _bound(world.kept)
    cause = event.for_cause or world.incident(now_s)
    name = world.table.peer(event.peer).title()
    if event.moved:
        count_move(world, cause, "away")
        what = f"moved {event.flow} to {name} to other addresses, it stood for {event.took_s * 1e3:.0f} ms"
        many = "were moved to other addresses"
    else:
        what, many = f"{event.flow} to {name} stays where it is", "stay where they are"
    crowd.tell(
        world, tray, now_s, cause=cause, peer=name, all_of_them=many, what=what, why=event.why, rung=2,
        level="info" if event.moved else "warning",
    )  # fmt: skip


def _bound(said: dict[str, _T]) -> None:
    """Of flows that come and go by the thousand the oldest is forgotten."""
    if len(said) > MOST_KEPT:
        del said[next(iter(said))]


def _judge(world: World, address: str, now_s: float) -> tuple[str, str, str]:
    """What keeps flows to a peer, why, and the cause that it belongs to (empty: none yet)."""
    peer = world.table.peer(address)
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
    queue = roce.failing(world, address)
    if queue is not None:
        why = (
            f"probes of paths get through, datagrams in the device's own queue do not: {queue[0].name}, {queue[0].why}"
        )
        return "RoCE queue", why, queue[1]
    if any(path.answers for path in used):
        return "unknown", "probes get through: the receiving program or its device, or only the flow itself", ""
    return "unknown", "no path to it has been probed yet", ""
