"""Evidence in, healthy or failing elements out: paths by their own probes, links by the smallest explanation."""

from __future__ import annotations

from linkpass.core.blame import Count, Verdict, explain, lossy_links
from linkpass.core.element import Element
from linkpass.core.events import PathEvidence, PathWindow, UplinkState
from linkpass.core.paths import Path
from linkpass.core.world import Tray, Uplink, World

FAILING = ("blackhole", "lossy")
LEAST_COUNTED = 1.0
"""Loss counts that have decayed below this say nothing any more."""


def on_uplink(world: World, tray: Tray, event: UplinkState, now_s: float) -> bool:
    """Take a port's state; True when its usability has changed."""
    uplink = world.uplinks.get(event.uplink)
    before = uplink.usable if uplink else None
    if uplink is None:
        element = Element(event.uplink, world.settings.damping)
        uplink = world.uplinks[event.uplink] = Uplink(event.uplink, event.usable, element)
    uplink.usable, uplink.why, uplink.speed_bps = event.usable, event.why, event.speed_bps
    if before == event.usable:
        return False
    if event.usable:
        uplink.element.feed("good", now_s, why="usable again")
    else:
        cause = world.incident(now_s)
        uplink.element.feed("bad", now_s, why=event.why, cause=cause)
        if before:
            tray.record(cause, f"{event.uplink} is down", event.why, element=event.uplink, level="warning")
    world.decide_soon(now_s)
    return True


def on_evidence(world: World, tray: Tray, event: PathEvidence, now_s: float) -> None:
    """Take the probes' opinion of one path. Queueing alone is no failure: it is kept and shown, nothing more."""
    path = world.table.find(event.peer, event.uplink, event.label)
    if path is None:
        return
    path.evidence, path.loss_ratio, path.rtt_s = event.evidence, event.loss_ratio, event.rtt_s
    if event.evidence in FAILING:
        cause = world.incident(now_s)
        if path.element.feed("bad", now_s, why=f"{event.evidence}: {event.why}", cause=cause):
            what = f"{event.evidence} on {path.route()} to {world.table.peer(path.peer).title()}"
            tray.record(cause, what, event.why, element=path.element.name, level="warning")
    elif event.evidence == "unknown":
        path.element.feed("quiet", now_s, why=event.why)
    else:
        path.element.feed("good", now_s, why="probes get through")
    world.decide_soon(now_s)


def on_window(world: World, tray: Tray, event: PathWindow, now_s: float) -> None:
    """Weigh the losses of all paths together: those that share a link add up, and name it sooner than any alone."""
    for count in event.counts:
        path = world.table.find(event.peer, count.uplink, count.label)
        if path is None:
            continue
        path.count(count.sent, count.lost, now_s)
        if count.lost:
            for link in path.links:
                world.loss_at_s[link] = now_s
    detection = world.settings.detection
    counts = []
    for path in world.table.probed():
        path.count(0, 0, now_s)
        if path.sent >= LEAST_COUNTED and path.evidence != "blackhole":
            counts.append(Count(path.links, path.sent, path.lost))
    for link in lossy_links(counts, detection.loss_ok_ratio, detection.loss_bad_ratio, detection.loss_threshold):
        over = [count for count in counts if link in count.links]
        ratio = sum(count.lost for count in over) / sum(count.sent for count in over)
        world.soft[link] = f"loses {ratio:.1%} of the probes on {len(over)} path(s)"
        cause = world.incident(now_s)
        if world.link(link).feed("bad", now_s, why=world.soft[link], cause=cause):
            tray.record(cause, f"link {link} loses packets", world.soft[link], element=link, level="warning")
            world.decide_soon(now_s)


def judge_links(world: World, tray: Tray, now_s: float) -> None:
    """Blame and acquit links from the paths' evidence of this moment."""
    failing, good = [], []
    for path in world.table.probed():
        if path.evidence == "blackhole":
            failing.append(path)
        elif path.evidence in ("good", "queueing", "lossy"):
            good.append(path)
    hosts = frozenset(peer.title() for peer in world.table.peers.values()) | {world.settings.host}
    verdicts = explain([path.links for path in failing], [path.links for path in good], hosts)
    blamed = frozenset(link for verdict in verdicts if verdict.kind in ("link", "switch") for link in verdict.links)
    _announce(world, tray, verdicts, failing, now_s)
    for link in blamed:
        world.link(link).feed("bad", now_s, why="nothing gets through", cause=_cause_of(failing, link))
    for link in {link for path in good for link in path.links}:
        element = world.links.get(link)
        if element is not None and link not in blamed and _acquitted(world, link, now_s):
            element.feed("good", now_s, why="probes get through")
    world.blamed, world.verdicts = blamed, tuple(verdicts)


def _acquitted(world: World, link: str, now_s: float) -> bool:
    """A link that lost packets is good again only after a clean spell; one that was blamed for silence, at once."""
    if link not in world.soft:
        return True
    if now_s < world.loss_at_s.get(link, 0.0) + world.settings.detection.clean_s:
        return False
    del world.soft[link]
    return True


def clean_deadlines(world: World) -> list[float]:
    """When links that lost packets could be acquitted."""
    clean_s = world.settings.detection.clean_s
    return [world.loss_at_s.get(link, 0.0) + clean_s for link in world.soft]


def _announce(world: World, tray: Tray, verdicts: list[Verdict], failing: list[Path], now_s: float) -> None:
    known = {(verdict.kind, verdict.name) for verdict in world.verdicts}
    for verdict in verdicts:
        if (verdict.kind, verdict.name) in known or verdict.kind == "path":
            continue
        cause = _cause_of(failing, *verdict.links) or world.incident(now_s)
        what = f"verdict {verdict.kind}: {verdict.name} lets nothing through"
        tray.record(cause, what, verdict.why, element=verdict.name, level="warning")


def _cause_of(failing: list[Path], *links: str) -> str:
    for path in failing:
        if path.element.cause and any(link in path.links for link in links):
            return path.element.cause
    return ""
