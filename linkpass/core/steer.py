"""From healthy and failing elements to wishes: which labels and which uplinks carry the traffic."""

from __future__ import annotations

from typing import Literal, TypeVar

from linkpass.core.commands import BUCKETS, MoveFlows, SetGroup, SetLabels
from linkpass.core.decide import ALL_GOOD, ORDER, Grade, Option, fill, moved_share, select
from linkpass.core.paths import Path, Peer
from linkpass.core.survey import probing_interval_s
from linkpass.core.world import GROUP, Tray, World

MOVES_KEPT = 1000
"""Stories whose moves are remembered, so that each counts once."""

LEAVE_TUNNELS_S = 5.0
"""After a peer has been silent for this long its flows leave the tunnels: well before anybody could have removed its
end for want of a daemon."""

Name = TypeVar("Name", int, str)
Judgement = tuple[Grade, str, str]
"""(grade, reason, cause)"""


def grade_element_state(state: str, *, soft: bool) -> Grade:
    """What an element's state means for carrying traffic."""
    if state == "down":
        return "soft" if soft else "hard"
    if state in ("watch", "held"):
        return "earning"
    return "good"


def _worst(first: Judgement, *others: Judgement) -> Judgement:
    """The worst judgement; of equals the first."""
    found = first
    for one in others:
        if ORDER[one[0]] > ORDER[found[0]]:
            found = one
    return found


def grade_link(world: World, direction: str, now_s: float) -> Judgement:
    """One direction, by its element and by what is said of it."""
    element = world.links.get(direction)
    judgement: Judgement = ("good", "", "")
    if element is not None and not element.usable:
        soft = direction in world.soft and direction not in world.blamed
        judgement = (grade_element_state(element.state, soft=soft), f"{direction}: {element.why}", element.cause)
    words = world.words_on(direction, now_s)
    return judgement if words is None else _worst(judgement, ("soft", *words))


def _grade_port(world: World, name: str) -> Judgement:
    """An uplink by itself: its port's state and history, and drains that name it."""
    uplink = world.uplinks.get(name)
    if uplink is None:
        return "hard", f"{name} is gone", ""
    if not uplink.usable:
        return "hard", f"{name}: {uplink.why}", uplink.element.cause
    if uplink.port_err:
        return "hard", f"{name}: {uplink.port_err}", uplink.element.cause
    judgement: Judgement = ("good", "", "")
    if not uplink.element.usable:
        judgement = ("earning", f"{name} has yet to earn its return", uplink.element.cause)
    for alias in (name, f"{world.settings.host}:{name}"):
        if alias in world.drains:
            judgement = _worst(judgement, ("soft", f"{alias} is drained", world.drains[alias].cause))
    return judgement


def _grade_probes(world: World, peer: Peer, path: Path) -> Judgement:
    """A path by its own probes, and by whether the kernel would send its label that way at all."""
    element = path.element
    judgement: Judgement = ("good", "", "")
    if not element.usable:
        grade = grade_element_state(element.state, soft=path.failed_as == "lossy")
        judgement = (grade, f"path {path.route()}: {element.why}", element.cause)
    elif element.state == "unknown" or (path.evidence == "unknown" and path.label and path.label not in peer.labels):
        judgement = ("unproven", "no probe has answered yet", "")
    if not path.label:
        return judgement
    goes = peer.effective.get(path.label)
    group = world.wishes.get(GROUP)
    cause = group.cause if group is not None else ""
    if goes is None:
        return _worst(judgement, ("unproven", "the kernel is being asked which uplink it takes now", cause))
    if goes != path.uplink:
        return _worst(judgement, ("unproven", f"the kernel sends it over {goes} now", cause))
    return judgement


def grade_path(world: World, peer: Peer, path: Path, now_s: float) -> Judgement:
    """One path of a peer, by its uplink, its links and its own probes."""
    links = [grade_link(world, direction, now_s) for direction in path.links]
    judgement = _worst(_grade_port(world, path.uplink), _grade_probes(world, peer, path), *links)
    left = world.congestion.judgement(path)
    return judgement if left is None else _worst(judgement, ("soft", *left))


def decide_labels(world: World, tray: Tray, peer: Peer, now_s: float) -> None:
    """Rung 1 for one peer: 16 labels, or none while nothing is proved."""
    in_use = [path for path in peer.used() if path.label]
    if peer.disarmed or peer.useless or not in_use or 1 not in world.settings.rungs:
        peer.spread_at_s = None
        peer.away.clear()
        if peer.labels:
            why = peer.disarmed or peer.useless or peer.why_no_tunnels or "no traced labels"
            _wish_labels(world, tray, peer, (), why, world.new_cause(), "spread")
        return
    options: list[Option] = []
    causes: dict[int, str] = {}
    for path in in_use:
        grade, why, causes[path.label] = grade_path(world, peer, path, now_s)
        options.append(Option(path.label, grade, why, path.loss_ratio, path.label in peer.labels))
    if not peer.hashed and (why := _better_outside(world, peer, options, now_s)):
        if peer.labels:
            kind, cause = _story(world, sorted(set(peer.labels)), [], causes, peer.away)
            _wish_labels(world, tray, peer, (), why, cause, kind)
        return
    if not peer.labels and not _ready(world, peer, options, now_s):
        return
    chosen, why = select(options, world.settings.limits.max_moved_ratio)
    labels = [int(option.name) for option in _stay(chosen)]
    wanted = fill(peer.labels, labels, BUCKETS)
    if wanted == peer.labels:
        return
    out = [option for option in options if option.carries and int(option.name) not in labels]
    gone = [int(option.name) for option in out if option.grade != "unproven"]
    new = [label for label in labels if label not in peer.labels]
    kind, cause = _story(world, gone, new, causes, peer.away)
    if kind == "spread" and out:  # the kernel sends them elsewhere now: part of the story of the group
        cause = causes[int(out[0].name)] or cause
    _wish_labels(world, tray, peer, wanted, why, cause, kind)


def _better_outside(world: World, peer: Peer, options: list[Option], now_s: float) -> str:
    """Why a peer's flows are to leave the tunnels; empty: they need not. Outside is always a way: the best of bad
    tunnels is no better, and a peer that is silent may have lost its end, which takes a tunnel's probes to know."""
    if peer.silent_since_s is not None:
        leave_at_s = peer.silent_since_s + LEAVE_TUNNELS_S
        if now_s >= leave_at_s:
            return f"{peer.title()} is silent: whether its end of the tunnels is there is not known"
        world.decide_soon(leave_at_s)
    if peer.labels and not any(option.grade in ("good", "soft") for option in options):
        return "no tunnel gets through"
    return ""


def _ready(world: World, peer: Peer, options: list[Option], now_s: float) -> bool:
    """The first labels wait until every path has had time to answer: the kernel's own spread is no worse than few
    labels."""
    if not any(option.grade == "good" for option in options):
        return False
    if all(option.grade != "unproven" for option in options):
        return True
    if peer.spread_at_s is None:
        peer.spread_at_s = now_s + max(world.settings.detection.grace_s, 3 * probing_interval_s(world, peer))
    if now_s >= peer.spread_at_s:
        return True
    world.decide_soon(peer.spread_at_s)
    return False


def _stay(chosen: list[Option]) -> list[Option]:
    """When nothing is good, what carries stays and nothing joins it: no flow is moved from bad to bad."""
    if any(option.grade == "good" for option in chosen):
        return chosen
    return [option for option in chosen if option.carries] or chosen


Kind = Literal["away", "back", "spread"]
"""Of a change: `spread` moves nothing off a failure and nothing back; it is no move."""


def _story(
    world: World, gone: list[Name], new: list[Name], causes: dict[Name, str], away: dict[Name, str]
) -> tuple[Kind, str]:
    """What a change is, and the causal id that it belongs to. Remembers who went away by which cause: the return
    belongs to the same story."""
    kind: Kind
    if gone:
        kind, cause = "away", next((causes[name] for name in gone if causes.get(name)), "") or world.new_cause()
    else:
        known = [away[name] for name in new if name in away]
        kind, cause = ("back", known[-1]) if known else ("spread", world.new_cause())
    for name in new:
        away.pop(name, None)
    away.update(dict.fromkeys(gone, cause))
    return kind, cause


def _wish_labels(
    world: World, tray: Tray, peer: Peer, wanted: tuple[int, ...], why: str, cause: str, kind: Kind
) -> None:
    before, peer.labels = peer.labels, wanted
    would = "" if world.acting else "would have "
    if not wanted:
        what = f"{would}left the flows to {peer.title()} to the kernel"
    elif not before or kind == "spread":
        what = f"{would}spread the flows to {peer.title()} over {len(set(wanted))} path(s)"
    else:
        count_move(world, cause, kind)
        share = moved_share(before, wanted)
        what = f"{would}moved {share:.0%} of the flows to {peer.title()} {kind}: {len(set(wanted))} path(s) carry them"
    tray.record(cause, what, why, rung=1, element=peer.title())
    if world.acting:
        world.wish(f"labels {peer.address}").want(wanted, cause, why)


def decide_group(world: World, tray: Tray, now_s: float) -> None:
    """Rung 2: the uplinks of the configured prefixes. Those without carrier are no option; the last is never taken."""
    if 2 not in world.settings.rungs:
        return
    wish = world.wish(GROUP)
    before: tuple[str, ...] = wish.value or ()
    options: list[Option] = []
    causes: dict[str, str] = {}
    for uplink in world.uplinks.values():
        grade, why, causes[uplink.name] = grade_uplink(world, uplink.name, now_s)
        if uplink.usable:
            options.append(Option(uplink.name, grade, why, carries=uplink.name in before))
    chosen, why = select(options, world.settings.limits.max_moved_ratio)
    wanted = tuple(sorted(str(option.name) for option in _stay(chosen)))
    if not wanted or wanted == wish.value:
        return
    gone = [name for name in before if name not in wanted]
    new = [name for name in wanted if name not in before]
    kind, cause = _story(world, gone, new, causes, world.away)
    lost = [f"{name}: {world.uplinks[name].why}" for name in gone if not world.uplinks[name].usable]
    why = "; ".join([*lost, why] if lost and why != ALL_GOOD else lost or [why])
    wish.want(wanted, cause, why)
    would = "" if world.acting else "would have "
    if kind == "spread":
        what = f"{would}put traffic on {', '.join(wanted)}"
    else:
        count_move(world, cause, kind)
        what = f"{would}moved traffic {kind}: {', '.join(wanted)} carry it"
    tray.record(cause, what, why, rung=2)


def grade_uplink(world: World, name: str, now_s: float) -> Judgement:
    """An uplink for traffic to everybody: by its port, its link, and what probes over it and over the others say."""
    judgement = _grade_port(world, name)
    hop = world.table.first_hop(name)
    if hop is not None:
        judgement = _worst(judgement, grade_link(world, f"{world.settings.host}>{hop}", now_s))
    witnesses = world.table.witnesses()
    over = [path for path in witnesses if path.uplink == name]
    other = [path for path in witnesses if path.uplink != name and path.element.state == "up"]
    if not over or not other or any(path.element.usable for path in over):
        return judgement
    if any(path.element.state != "down" for path in over):
        return _worst(judgement, ("earning", f"{name} has yet to earn its return", over[0].element.cause))
    if all(path.failed_as == "lossy" for path in over):
        return _worst(judgement, ("soft", f"packets are lost on all paths over {name}", over[0].element.cause))
    return _worst(judgement, ("hard", f"nothing gets through over {name}", over[0].element.cause))


def count_move(world: World, cause: str, kind: str) -> None:
    """One story's way out is one move, and its way back another, however many objects take part."""
    if (cause, kind) not in world.move_keys:
        world.move_keys[cause, kind] = None
        world.moves += 1
        if len(world.move_keys) > MOVES_KEPT:
            del world.move_keys[next(iter(world.move_keys))]


def program(world: World, tray: Tray, now_s: float) -> None:
    """Send what is wished and not yet programmed. Nothing leaves in observe mode."""
    if not world.acting:
        return
    for wish in world.wishes.values():
        if not wish.pending or (wish.retry_at_s is not None and now_s < wish.retry_at_s):
            continue
        kind, _, name = wish.name.partition(" ")
        cmd_id = tray.take_id()
        wish.send(cmd_id, now_s)
        value = wish.value or ()
        if kind == "flows":
            tray.put(MoveFlows(cmd_id=cmd_id, cause=wish.cause, uplink=name, leave=bool(value)))
        elif kind == "group":
            tray.put(SetGroup(cmd_id=cmd_id, cause=wish.cause, group=name, uplinks=value))
        else:
            tray.put(SetLabels(cmd_id=cmd_id, cause=wish.cause, peer=name, labels=value))
