"""From healthy and failing elements to wishes: which labels and which uplinks carry the traffic."""

from __future__ import annotations

from linkpass.core.commands import BUCKETS, SetGroup, SetLabels
from linkpass.core.decide import Grade, Option, fill, moved_share, select
from linkpass.core.paths import Path, Peer
from linkpass.core.world import Tray, World

ALL = "all"


def grade_element_state(state: str, *, soft: bool) -> Grade:
    """What an element's state means for carrying traffic."""
    if state == "down":
        return "soft" if soft else "hard"
    if state in ("watch", "held"):
        return "earning"
    return "good"


def grade_link(world: World, direction: str, now_s: float) -> tuple[Grade, str, str]:
    """(grade, reason, cause) of one direction."""
    element = world.links.get(direction)
    if element is not None and not element.usable:
        grade = grade_element_state(element.state, soft=direction in world.soft)
        return grade, f"{direction} {element.why}", element.cause
    words = world.words_on(direction, now_s)
    if words is not None:
        return "soft", words[0], words[1]
    return "good", "", ""


def grade_path(world: World, peer: Peer, path: Path, now_s: float) -> tuple[Grade, str, str]:
    """(grade, reason, cause) of one path of a peer, by its uplink, its links and its own probes."""
    uplink = world.uplinks.get(path.uplink)
    if uplink is None or not uplink.usable:
        why = f"{path.uplink} {uplink.why if uplink else 'is gone'}"
        return "hard", why, uplink.element.cause if uplink else ""
    if not uplink.element.usable:
        return "earning", f"{path.uplink} has yet to earn its return", uplink.element.cause
    found: tuple[Grade, str, str] = ("good", "", "")
    element = path.element
    if not element.usable:
        grade = grade_element_state(element.state, soft=path.evidence == "lossy")
        found = (grade, f"path {path.route()}: {element.why}", element.cause)
    elif element.state == "unknown":
        found = ("unproven", "no probe has answered yet", "")
    order = ("good", "earning", "unproven", "soft", "hard")
    for direction in path.links:
        one = grade_link(world, direction, now_s)
        if order.index(one[0]) > order.index(found[0]):
            found = one
    return found


def decide_labels(world: World, tray: Tray, peer: Peer, now_s: float) -> None:
    """Rung 1 for one peer: 16 labels, or none while nothing is proved."""
    if not peer.labelled:
        return
    if peer.disarmed or not peer.in_use or 1 not in world.settings.rungs:
        if peer.labels:
            _wish_labels(world, tray, peer, (), peer.disarmed or "no traced labels", world.new_cause(), now_s)
        return
    options: list[Option] = []
    causes: dict[int, str] = {}
    for path in peer.used():
        grade, why, cause = grade_path(world, peer, path, now_s)
        effective = peer.effective.get(path.label, path.uplink)
        if effective != path.uplink and grade == "good":
            grade, why = "unproven", f"the kernel sends it over {effective} now"
        options.append(Option(path.label, grade, why, path.loss_ratio))
        causes[path.label] = cause
    if not peer.labels and not any(option.grade == "good" for option in options):
        return
    chosen, why = select(options, world.settings.limits.max_moved_ratio)
    labels = [int(option.name) for option in chosen]
    if not any(option.grade == "good" for option in options) and peer.labels:
        kept = [label for label in labels if label in peer.labels]
        labels = kept or labels
    wanted = fill(peer.labels, labels, BUCKETS)
    if wanted == peer.labels:
        return
    left = [causes[option.name] for option in options if isinstance(option.name, int) and option not in chosen]
    cause = next((cause for cause in left if cause), "") or _returned(peer) or world.new_cause()
    _wish_labels(world, tray, peer, wanted, why, cause, now_s)


def _returned(peer: Peer) -> str:
    """The cause of the latest return among a peer's paths: going back belongs to the story of leaving."""
    back = [path.element for path in peer.used() if path.element.cause and path.element.state == "up"]
    return max(back, key=lambda element: element.since_s).cause if back else ""


def _wish_labels(
    world: World, tray: Tray, peer: Peer, wanted: tuple[int, ...], why: str, cause: str, now_s: float
) -> None:
    before, peer.labels = peer.labels, wanted
    share = moved_share(before, wanted)
    if before and wanted:
        direction = "back" if len(set(wanted)) > len(set(before)) else "away"
        count_move(world, cause, direction)
        verb = "moved" if world.acting else "would move"
        what = f"{verb} {share:.0%} of the flows to {peer.title()} {direction}: {len(set(wanted))} path(s) carry them"
    elif wanted:
        verb = "spread" if world.acting else "would spread"
        what = f"{verb} the flows to {peer.title()} over {len(set(wanted))} path(s)"
    else:
        what = f"left the flows to {peer.title()} to the kernel"
    tray.record(cause, what, why, rung=1, element=peer.title())
    if world.acting:
        world.wish(f"labels {peer.address}").want(wanted, cause, why)


def decide_group(world: World, tray: Tray, now_s: float) -> None:
    """Rung 2: the uplinks of the configured prefixes. Those without carrier are no option; the last is never taken."""
    if 2 not in world.settings.rungs:
        return
    options: list[Option] = []
    causes: list[str] = []
    for uplink in world.uplinks.values():
        if not uplink.usable:
            causes.append(uplink.element.cause)
            continue
        grade, why, cause = _grade_uplink(world, uplink.name, now_s)
        options.append(Option(uplink.name, grade, why))
        causes.append(cause)
    chosen, why = select(options, world.settings.limits.max_moved_ratio)
    wanted = tuple(sorted(str(option.name) for option in chosen))
    wish = world.wish(f"group {ALL}")
    if not wanted or wanted == wish.value:
        return
    before = wish.value
    cause = next((cause for cause in causes if cause), "") or world.new_cause()
    wish.want(wanted, cause, why)
    if before is not None:
        direction = "back" if len(wanted) > len(before) else "away"
        count_move(world, cause, direction)
        verb = "moved" if world.acting else "would move"
        what = f"{verb} traffic {direction}: {', '.join(str(name) for name in wanted)} carry it"
    else:
        verb = "put" if world.acting else "would put"
        what = f"{verb} traffic on {', '.join(str(name) for name in wanted)}"
    tray.record(cause, what, why, rung=2)


def _grade_uplink(world: World, name: str, now_s: float) -> tuple[Grade, str, str]:
    uplink = world.uplinks[name]
    if not uplink.element.usable:
        return "earning", f"{name} has yet to earn its return", uplink.element.cause
    hop = world.table.first_hop(name)
    if hop is not None:
        one = grade_link(world, f"{world.settings.host}>{hop}", now_s)
        if one[0] != "good":
            return one
    for alias in (name, f"{world.settings.host}:{name}"):
        if alias in world.drains:
            return "soft", f"{alias} is drained", world.drains[alias].cause
    over = [path for path in world.table.probed() if path.uplink == name and path.element.state != "unknown"]
    other = [path for path in world.table.probed() if path.uplink != name and path.element.state == "up"]
    if over and other and all(path.element.state == "down" for path in over):
        return "hard", f"nothing gets through over {name}", over[0].element.cause
    if over and other and all(not path.element.usable for path in over):
        return "earning", f"{name} has yet to earn its return", over[0].element.cause
    return "good", "", ""


def count_move(world: World, cause: str, direction: str) -> None:
    """One story's way out is one move, and its way back another, however many objects take part."""
    if (cause, direction) not in world.move_keys:
        world.move_keys.add((cause, direction))
        world.moves += 1


def program(world: World, tray: Tray, now_s: float) -> None:
    """Send what is wished and not yet programmed. Nothing leaves in observe mode."""
    if not world.acting:
        return
    for wish in world.wishes.values():
        if not wish.pending or (wish.retry_at_s is not None and now_s < wish.retry_at_s):
            continue
        kind, _, name = wish.name.partition(" ")
        cmd_id = tray.take_id()
        wish.send(cmd_id)
        value = wish.value or ()
        if kind == "group":
            tray.put(SetGroup(cmd_id=cmd_id, cause=wish.cause, group=name, uplinks=value))
        else:
            tray.put(SetLabels(cmd_id=cmd_id, cause=wish.cause, peer=name, labels=value))
