"""Evidence in, healthy or failing elements out: paths by their own probes, links by the smallest explanation."""

from __future__ import annotations

from linkpass.core import hosts
from linkpass.core.blame import Verdict, explain
from linkpass.core.element import Element
from linkpass.core.events import FAILING, PathEvidence, PathWindow, UplinkState
from linkpass.core.losses import Count, lossy_links
from linkpass.core.paths import RECENT_S, Path
from linkpass.core.survey import probing_interval_s
from linkpass.core.world import Tray, Uplink, World

QUIET_S = 0.5
"""A peer without a window for this long has lost nothing."""
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
        if not uplink.port_err:
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
    if path is None or (event.peer, *path.key) not in world.planned:  # late news of what is no longer probed
        return
    peer, first = world.table.peer(event.peer), path.evidence == "unknown"
    if not first and (event.evidence in FAILING) != (path.evidence in FAILING):
        peer.changed.add(path.uplink)
    path.evidence, path.loss_ratio, path.rtt_s = event.evidence, event.loss_ratio, event.rtt_s
    path.large_only = event.large_only
    if first and path.answers:
        hosts.on_answer(world, tray, peer, now_s)
    if event.evidence in FAILING:
        path.failed_as = event.evidence
        cause = world.incident(now_s)
        if path.element.feed("bad", now_s, why=f"{event.evidence}: {event.why}", cause=cause):
            what = f"{event.evidence} on {path.route()} to {peer.title()}"
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
        if path is None or (event.peer, *path.key) not in world.planned:
            continue
        path.count(count.sent, count.lost, now_s)
        if count.lost:
            for link in path.links:
                if link in world.soft:
                    _lost(world, link, now_s)
    world.table.peer(event.peer).window_at_s = now_s
    detection = world.settings.detection
    counts = []
    for path in world.table.probed():
        path.count(_unsaid(world, path, now_s), 0, now_s)
        if path.sent >= LEAST_COUNTED and path.evidence != "blackhole":
            counts.append(Count(path.links, path.sent, path.lost))
    for link in lossy_links(counts, detection.loss_ok_ratio, detection.loss_bad_ratio, detection.loss_threshold):
        over = [count for count in counts if link in count.links]
        ratio = sum(count.lost for count in over) / sum(count.sent for count in over)
        world.soft[link] = f"loses {ratio:.1%} of the probes on {len(over)} path(s)"
        _lost(world, link, now_s)
        cause = world.incident(now_s)
        if world.link(link).feed("bad", now_s, why=world.soft[link], cause=cause):
            what = "is suspected of losing packets" if world.settings.diagnosis.enabled else "loses packets"
            tray.record(cause, f"link {link} {what}", world.soft[link], element=link, level="warning")
            world.decide_soon(now_s)


def _unsaid(world: World, path: Path, now_s: float) -> int:
    """Probes that were not lost and not told of: windows come only of peers to which something is lost."""
    peer = world.table.peer(path.peer)
    if path.evidence not in ("good", "queueing") or now_s - peer.window_at_s < QUIET_S:
        return 0
    return int(min(now_s - path.counted_at_s, RECENT_S) / probing_interval_s(world, peer))


def _lost(world: World, link: str, now_s: float) -> None:
    world.loss_at_s[link] = now_s
    world.clean_at_s[link] = now_s + world.settings.detection.clean_s


def judge_links(world: World, tray: Tray, now_s: float) -> None:
    """Blame and acquit links from the paths' evidence of this moment."""
    failing = [path for path in world.table.probed() if path.evidence == "blackhole"]
    answering = [path for path in world.table.probed() if path.answers]
    good = _of_this_moment(world, failing, answering, now_s)
    names = frozenset(peer.title() for peer in world.table.peers.values()) | {world.settings.host}
    verdicts = explain([path.links for path in failing], [path.links for path in good], names)
    blamed = frozenset(link for verdict in verdicts if verdict.kind in ("link", "switch") for link in verdict.links)
    _announce(world, tray, verdicts, failing, now_s)
    for link in sorted(blamed):  # in an order that a replay has as well
        world.link(link).feed("bad", now_s, why="nothing gets through", cause=_cause_of(failing, link))
    for link in sorted({link for path in good for link in path.links}):
        element = world.links.get(link)
        if element is not None and link not in blamed and _acquitted(world, link, now_s):
            element.feed("good", now_s, why="probes get through")
    carrying = {link for path in answering for link in path.links} - blamed
    for link, element in world.links.items():
        if element.state in ("watch", "held") and link not in carrying:  # nothing is earned unseen
            element.feed("quiet", now_s, why="no probe crosses it now")
    world.blamed, world.verdicts = blamed, tuple(verdicts)


def _of_this_moment(world: World, failing: list[Path], answering: list[Path], now_s: float) -> list[Path]:
    """The answering paths that can speak for a link now. Paths to peers this host does not talk to are probed slowly:
    what they said a second ago acquits no link on which fast probes have just died."""
    slow_s, peers = world.slow_s, world.table.peers
    ripe_at_s = max((path.element.since_s for path in failing if peers[path.peer].active), default=-slow_s) + slow_s
    if now_s >= ripe_at_s:
        return answering
    world.decide_soon(ripe_at_s)
    return [path for path in answering if peers[path.peer].active]


def _acquitted(world: World, link: str, now_s: float) -> bool:
    """A link that lost packets is good again only after a clean spell; one that was blamed for silence, at once."""
    if link not in world.soft:
        return True
    if now_s < world.loss_at_s[link] + world.settings.detection.clean_s:
        return False
    for book in (world.soft, world.loss_at_s, world.clean_at_s):
        book.pop(link, None)
    return True


def look_again(world: World, now_s: float) -> None:
    """Links that lost packets may be acquitted after a clean spell: decide then, once."""
    for link in [link for link, at_s in world.clean_at_s.items() if at_s <= now_s]:
        del world.clean_at_s[link]
        world.decide_soon(now_s)


def _announce(world: World, tray: Tray, verdicts: list[Verdict], failing: list[Path], now_s: float) -> None:
    """Name what is held to be broken. What is to be done is done at once; the name waits until no path has failed or
    come back for an interval: half of the evidence makes the links behind a dead port look guilty."""
    if world.settings.diagnosis.enabled:  # it finds the words
        return
    standing = {(verdict.kind, verdict.name): verdict for verdict in verdicts if verdict.kind != "path"}
    world.named &= standing.keys()
    news = [verdict for key, verdict in standing.items() if key not in world.named]
    if not news:
        return
    changed_at_s = max(path.element.since_s for path in world.table.probed())
    complete_at_s = changed_at_s + world.settings.probing.interval_s
    if now_s < complete_at_s:
        world.decide_soon(complete_at_s)
        return
    for verdict in news:
        cause = _cause_of(failing, *verdict.links) or world.incident(now_s)
        over = [path for path in failing if not set(verdict.links).isdisjoint(path.links)]
        large = bool(over) and all(path.large_only for path in over)
        fact = "lets no large packets through" if large else "lets nothing through"
        what = f"verdict {verdict.kind}: {verdict.name} {fact}"
        tray.record(cause, what, verdict.why, element=verdict.name, level="warning")
    world.named |= standing.keys()


def _cause_of(failing: list[Path], *links: str) -> str:
    for path in failing:
        if path.element.cause and any(link in path.links for link in links):
            return path.element.cause
    return ""
