"""Leaving an overloaded direction in steps, and coming back to it.

What moves must find room, and nobody knows how much there is: speeds of uplinks are known, the load of a fabric's links
is not. So flows are moved in steps, each is watched, and the next one waits for what the queues say then. The first
step takes half of what crosses the queue: a crowd that acts together never takes more than half of a link's load to the
others at once, and stops as soon as the queue has gone. A step after which a queue comes up on a path that flows were
moved to is taken back, and no more is moved for a while. No uplink is given more than twice its share by speed.

The way back begins when the queue has been gone for long enough: with one path of each peer first, with all of them
when no queue comes of that. A queue that comes back is left at once by all that had to leave it before, and the next
way back waits twice as long, without an end. Hosts wait for times of their own, or they would return together. To move
little, look, and move more is the idea of Kandula et al., Walking the tightrope (TeXCP, SIGCOMM 2005).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Final

from linkpass.core import congestion, steer
from linkpass.core.congestion import Overload, Place
from linkpass.core.paths import Path, Peer
from linkpass.core.world import Tray, World

STEP_S: Final = 0.3
"""After a step its effect is seen: a queue drains at once, and is known to be gone this much later."""
SPREAD_S: Final = 0.05
"""Hosts take their first steps within this time, each at a moment of its own."""
AGAIN_S: Final = 1.0
"""When nothing could be moved it is tried again."""
HARM_S: Final = 1.0
"""A queue that comes up so soon after a step, where flows were moved to, is the step's."""
TRIAL_S: Final = 1.0
RELAPSE_LEAST_S: Final = 60.0
"""A queue within this time after the way back, or within the time that the way back had waited, is a relapse."""
GROWTH: Final = 2.0
"""No uplink gets more than so many times its share by speed."""


def deadlines(world: World) -> Iterator[float]:
    state = world.congestion
    if state.look_at_s is not None:
        yield state.look_at_s
    for one in state.overloads:
        yield _due_s(world, one)


def _due_s(world: World, one: Overload) -> float:
    if one.queued:
        return one.next_s
    if one.trial:
        return max(one.stepped_at_s + TRIAL_S, one.changed_at_s)
    if one.eased:
        return one.changed_at_s + one.hold_s * (1 + _phase(world, one) / 2)
    return max(one.changed_at_s, one.returned_at_s) + world.settings.damping.forget_s


def tick(world: World, tray: Tray, now_s: float) -> None:
    """Look, when something has changed; then step, return or forget, each overload in its time."""
    state = world.congestion
    if state.look_at_s is not None and state.look_at_s <= now_s:
        before = {id(one): one.queued for one in state.overloads}
        congestion.look(world, tray, now_s)
        for one in state.overloads:
            if one.queued and not before.get(id(one), not one.links):
                _begun(world, one, now_s)
        _undo_harm(world, tray, now_s)
    for one in list(state.overloads):
        if _due_s(world, one) > now_s:
            continue
        if one.queued:
            _ease(world, one, now_s)
        elif one.eased or one.trial:
            _come_back(world, one, now_s)
        else:
            state.overloads.remove(one)


def _begun(world: World, one: Overload, now_s: float) -> None:
    """A queue stands there (again). One that came of the way back is left at once by all that had left it."""
    relapsed = one.trial or now_s - one.returned_at_s < max(RELAPSE_LEAST_S, one.hold_s)
    if relapsed:
        one.hold_s = min(2 * one.hold_s, world.settings.damping.observe_max_s)
    else:
        one.hold_s, one.known = world.settings.limits.congestion_hold_s, frozenset(one.eased)
    one.trial = False
    one.next_s = max(one.next_s, now_s + (0.0 if relapsed else SPREAD_S * _phase(world, one)))


def _ease(world: World, one: Overload, now_s: float) -> None:
    """One step away from the queue, if it is still seen."""
    if not any(path.evidence == "queueing" and one.crossed_by(path) for path in congestion.witnesses(world)):
        one.queued, one.changed_at_s = False, now_s
        return
    step: list[Place] = []
    watched: set[Place] = set()
    for peer in world.table.peers.values():
        if not (peer.labels and peer.active) or peer.disarmed or peer.silent_since_s is not None:
            continue
        carrying = [path for path in peer.used() if path.label in peer.labels]
        over = [path for path in carrying if one.crossed_by(path) and world.congestion.eased(path) is None]
        free = [path for path in peer.used() if _is_free(world, peer, path, now_s)]
        if not over or not free:
            continue
        known = [path for path in over if _place(path) in one.known]
        first = not any(address == peer.address for address, _, _ in one.eased)
        wanted = known or (over[: (len(over) + 1) // 2] if first else over)
        away = sum(world.congestion.eased(path) is not None for path in peer.used())
        allowed = int(world.settings.limits.max_moved_ratio * sum(bool(label) for _, label in peer.in_use)) - away
        wanted = wanted[: max(0, allowed)]
        while wanted and not _fits(world, carrying, free, wanted):
            wanted.pop()
        step += map(_place, wanted)
        watched.update(map(_place, free))
    if not step:
        one.next_s = now_s + AGAIN_S
        return
    one.eased.update(dict.fromkeys(step))
    one.known |= frozenset(step)
    one.last, one.watched, one.stepped_at_s, one.next_s = tuple(step), frozenset(watched), now_s, now_s + STEP_S
    world.decide_soon(now_s)


def _is_free(world: World, peer: Peer, path: Path, now_s: float) -> bool:
    """Whether it may take more: nothing speaks against it, and no queue stands on it or on what it crosses."""
    if path.evidence != "good" or any(one.queued and one.crossed_by(path) for one in world.congestion.overloads):
        return False
    return steer.grade_path(world, peer, path, now_s)[0] == "good"


def _fits(world: World, carrying: list[Path], free: list[Path], moved: list[Path]) -> bool:
    """Whether no uplink would carry more than GROWTH times its share by speed, or than it carries now."""
    speeds = {name: uplink.speed_bps for name, uplink in world.uplinks.items() if uplink.usable}
    if not all(speeds.values()):
        speeds = dict.fromkeys(speeds, 1)
    gone = set(map(_place, moved))
    after = [path for path in {_place(p): p for p in (*carrying, *free)}.values() if _place(path) not in gone]
    total = sum(speeds.values())
    for name, speed in speeds.items():
        now = sum(path.uplink == name for path in carrying) / len(carrying)
        then = sum(path.uplink == name for path in after) / len(after)
        if then > max(now, GROWTH * speed / total):
            return False
    return True


def _undo_harm(world: World, tray: Tray, now_s: float) -> None:
    """A queue has come up where the latest step has moved flows to: it only carried the queue elsewhere."""
    queued = [path for path in congestion.witnesses(world) if path.evidence == "queueing"]
    for one in world.congestion.overloads:
        if now_s - one.stepped_at_s > HARM_S or not one.last or one.trial:
            continue
        harmed = [path for path in queued if _place(path) in one.watched and not one.crossed_by(path)]
        if not harmed:
            continue
        for place in one.last:
            one.eased.pop(place, None)
        one.known -= frozenset(one.last)
        why = f"a queue has come up on {len(harmed)} path(s) that flows were moved to"
        what = f"{len(one.last)} path(s) over {one.name} carry flows again: moving them does not help"
        tray.record(one.cause, what, why, rung=1, element=one.name)
        one.last, one.watched = (), frozenset()
        one.next_s, one.hold_s = now_s + one.hold_s, min(2 * one.hold_s, world.settings.damping.observe_max_s)
        for other in world.congestion.overloads:  # whether that is enough is seen before more is moved
            if other is not one and other.queued and any(other.crossed_by(path) for path in harmed):
                other.next_s = max(other.next_s, now_s + HARM_S)
        world.decide_soon(now_s)


def _come_back(world: World, one: Overload, now_s: float) -> None:
    """The way back: one path of each peer, then all."""
    one.stepped_at_s, one.last, one.watched = now_s, (), frozenset()
    if one.trial:
        one.eased.clear()
        one.trial, one.returned_at_s = False, now_s
    else:
        one.known = frozenset(one.eased)
        for address in dict.fromkeys(address for address, _, _ in one.eased):
            one.eased.pop(next(place for place in one.eased if place[0] == address))
        one.trial = True
    world.decide_soon(now_s)


def _place(path: Path) -> Place:
    return path.peer, *path.key


def _phase(world: World, one: Overload) -> float:
    """A number in 0 … 1 of this host and this link."""
    return zlib.crc32(f"{world.settings.address} {one.name}".encode()) / 2**32
