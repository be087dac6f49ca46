"""Overloaded directions and full receivers, told from what fails: a queue is no failure and damps nothing.

A sudden queue may look like a blackhole for as long as it is deep (`detect`), and its paths are left as such. When what
was taken for lost arrives, what was held against them is taken back, but not their flows. Once those are gone so is the
queue, and nobody may ever know at which direction it was: then the paths themselves are what is overloaded.

A queue at the head of a direction delays every path that crosses it and no other: the direction that explains most of
the paths that queue, and no path that does not, is named; then the rest is explained without them, as in
`blame.explain`. But a queue that is short half of the time is found on one path and not yet on another: paths that
waver speak neither for it nor against it, and a look waits until no path has changed for a while.

Not every queue can be left. When all paths to one peer queue, and the links before the last carry paths of other peers
that do not, it is the peer's own link that is full: incast, which no choice of a path helps. When the paths to every
peer queue, it is this host's own link, or this host was kept from running. Both are said, and nothing is moved. What is
done about the rest is in `relief`.

Counters of the ports join in where there are any: a port that may not send, or whose packets meet queues by the word of
the receivers, loses packets to congestion, and a small share of losses over it is told as that; but only while all
paths over the port lose alike. Where one loses and others do not it is the fabric, whatever the port says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec

from linkpass.core.detect import LOST_MOST_RATIO
from linkpass.core.events import CongestionEvidence, PathEvidence, PathWindow, UplinkOverrun
from linkpass.core.paths import Path, Peer

if TYPE_CHECKING:
    from linkpass.core.world import Tray, World

GATHER_S: Final = 0.1
"""Paths over one queue are found within this time of one another."""
GATHER_MOST_S: Final = 0.3
PAUSE_S: Final = 10.0
PAUSE_MOST_S: Final = 600.0
"""What comes and goes is said again after a pause that doubles up to this."""
SHARE_MEMORY: Final = 2000
"""Probes."""
APART_LOST: Final = 8
APART_TIMES: Final = 4
"""A path loses apart from the others over its port when so many of its probes are lost, and of others, of which as many
should have been lost by its ratio, a fourth at most is. One such other is chance in one of seventy, two are not."""

Place = tuple[str, str, int]
"""A path: (peer, uplink, label)."""


@dataclass(slots=True)
class Overload:
    """A direction (or several that are not told apart) at which a queue stands, or stood lately. Without `links`: paths
    (`known`) of which no more was found out."""

    links: tuple[str, ...]
    cause: str
    since_s: float
    why: str = ""
    queued: bool = True
    changed_at_s: float = 0.0
    """Since when `queued` is what it is."""
    eased: dict[Place, None] = field(default_factory=dict)
    """Paths that flows were taken from for it, in order."""
    known: frozenset[Place] = frozenset()
    """Those that had to be left in the end; a queue that comes back is left by all of them at once."""
    last: tuple[Place, ...] = ()
    """Of the latest step."""
    stepped_at_s: float = float("-inf")
    watched: frozenset[Place] = frozenset()
    """Paths without a queue that carry what the latest step has moved."""
    next_s: float = 0.0
    """No step before."""
    hold_s: float = 0.0
    """How long the queue has to be gone before the way back begins; doubles with each relapse."""
    trial: bool = False
    """The way back has begun: one path of each peer carries again."""
    returned_at_s: float = float("-inf")

    @property
    def name(self) -> str:
        if self.links:
            return " or ".join(self.links)
        paths = sorted(f"{address} {uplink} {label:#06x}" for address, uplink, label in self.known)
        return paths[0] + (f" and {len(paths) - 1} more path(s)" if paths[1:] else "")

    def crossed_by(self, path: Path) -> bool:
        return not set(self.links).isdisjoint(path.links) or (path.peer, *path.key) in self.known


@dataclass(slots=True)
class Stuck:
    """A queue that no path avoids: `what` it is, and when it may be said (again)."""

    what: str
    cause: str
    since_s: float
    why: str = ""
    on: bool = True
    said: bool = False
    pause_s: float = PAUSE_S
    not_before_s: float = float("-inf")


@dataclass(slots=True)
class Congestion:
    """What a host knows of queues."""

    overloads: list[Overload] = field(default_factory=list)
    stuck: dict[str, Stuck] = field(default_factory=dict)
    """Peer's title, or this host's name, -> what is full there."""
    told: dict[str, CongestionEvidence] = field(default_factory=dict)
    """Uplink -> what its counters say of congestion."""
    overrun: dict[str, str] = field(default_factory=dict)
    """Uplinks whose own queue drops what they cannot send -> why that is known."""
    shares: dict[Place, tuple[float, float]] = field(default_factory=dict)
    """Of paths over such uplinks: probes that were sent and lost meanwhile, older ones weighing less."""
    late: dict[Place, str] = field(default_factory=dict)
    """Paths that were taken for dead by a sudden queue -> the cause, until the next look."""
    look_at_s: float | None = None
    first_change_s: float = 0.0

    def eased(self, path: Path) -> Overload | None:
        """The overload for which flows were taken from a path."""
        place = (path.peer, *path.key)
        return next((one for one in self.overloads if place in one.eased), None)

    def judgement(self, path: Path) -> tuple[str, str] | None:
        """(reason, cause) when flows keep off a path for a queue."""
        if (one := self.eased(path)) is not None:
            return f"{one.name} is overloaded", one.cause
        cause = self.late.get((path.peer, *path.key))
        return None if cause is None else (f"packets on {path.route()} come late", cause)

    def clear(self) -> None:
        """The operator says that it is over: all paths are as good as their probes."""
        self.overloads.clear()
        self.stuck.clear()
        self.late.clear()


def take(world: World, event: PathEvidence, now_s: float) -> PathEvidence | None:
    """Evidence as it is to be judged: a few losses over a port that is congested by its counters are a queue's. None:
    it says only that a path wavers, or no longer."""
    place = (event.peer, event.uplink, event.label)
    crowded = event.loss_ratio <= LOST_MOST_RATIO and _crowded_out(world, event.uplink)
    if event.evidence == "lossy" and crowded and not _apart(world, place):
        why = f"{event.why}; {event.uplink} is congested: {crowded}"
        event = msgspec.structs.replace(event, evidence="queueing", why=why)
    path = world.table.find(event.peer, event.uplink, event.label)
    if path is not None:
        wavered, path.wavers = path.wavers, event.wavers
        if event.evidence == path.evidence == "good" and wavered != event.wavers:
            if any(one.evidence == "queueing" for one in witnesses(world)):
                look_soon(world, now_s)
            return None
        path.queueing_s = event.queueing_s
        if path.evidence == "blackhole" and event.evidence == "queueing":
            _absolve(world, path, now_s)
        if (path.evidence == "queueing") != (event.evidence == "queueing"):
            look_soon(world, now_s)
    return event


def _absolve(world: World, path: Path, now_s: float) -> None:
    """It was late, not dead: of this nothing stays against it or its links. Earlier failures were failures."""
    if not world.table.peers[path.peer].host.slow:
        world.congestion.late[path.peer, *path.key] = path.element.cause
    blamed = [world.links[link] for link in path.links if link in world.links and link not in world.soft]
    for element in (path.element, *(one for one in blamed if one.cause == path.element.cause)):
        element.absolve(now_s, "late, not dead")


def take_window(world: World, event: PathWindow) -> PathWindow:
    """The counts that are evidence of loss."""
    if not world.congestion.told and not world.congestion.overrun:
        return event
    shares = world.congestion.shares
    kept = []
    for count in event.counts:
        place, crowded = (event.peer, count.uplink, count.label), bool(_crowded_out(world, count.uplink))
        if crowded:
            sent, lost = shares.get(place, (0.0, 0.0))
            fade = 0.5 if sent > SHARE_MEMORY else 1.0
            shares[place] = sent * fade + count.sent, lost * fade + count.lost
        if not crowded or count.lost > LOST_MOST_RATIO * count.sent or _apart(world, place):
            kept.append(count)
    return PathWindow(peer=event.peer, counts=tuple(kept))


def _apart(world: World, place: Place) -> bool:
    """A path loses far more than at least two others over its uplink, of which as many losses were to be expected."""
    sent, lost = world.congestion.shares.get(place, (0.0, 0.0))
    if lost < APART_LOST:
        return False
    others = (share for one, share in world.congestion.shares.items() if one[1] == place[1] and one != place)
    clean = [share for share in others if share[0] * lost >= APART_LOST * sent and APART_TIMES * share[1] <= APART_LOST]
    return len(clean) >= 2


def on_counters(world: World, tray: Tray, event: CongestionEvidence, now_s: float) -> None:
    """What a port's counters say of congestion: kept, said when it begins, and when it is over."""
    congestion = world.congestion
    before = congestion.told.pop(event.uplink, None)
    if before is None or not event.out:
        _count_anew(congestion, event.uplink)
    if event.out or event.into:
        congestion.told[event.uplink] = event
        if before is None:
            what = f"{event.uplink} is congested by its counters"
            tray.record(world.new_cause(), what, "; ".join((*event.out, *event.into)), element=event.uplink)
    elif before is not None:
        tray.record(
            world.new_cause(), f"{event.uplink} is no longer congested", "by its counters", element=event.uplink
        )


def on_overrun(world: World, tray: Tray, event: UplinkOverrun, now_s: float) -> None:
    """More is sent over an uplink than it can carry: of what is lost over it a part is lost by this host itself."""
    congestion = world.congestion
    before = congestion.overrun.pop(event.uplink, "")
    if event.why:
        congestion.overrun[event.uplink] = event.why
    if bool(before) != bool(event.why):
        _count_anew(congestion, event.uplink)
        what = f"{event.uplink} is {'overrun' if event.why else 'no longer overrun'} by what is sent"
        tray.record(world.new_cause(), what, event.why or "by its own queue", element=event.uplink)


def _count_anew(congestion: Congestion, uplink: str) -> None:
    congestion.shares = {place: share for place, share in congestion.shares.items() if place[1] != uplink}


def _crowded_out(world: World, uplink: str) -> str:
    told = world.congestion.told.get(uplink)
    return "; ".join((*(told.out if told is not None else ()), *filter(None, (world.congestion.overrun.get(uplink),))))


def look_soon(world: World, now_s: float) -> None:
    """A path has begun to queue, or ended: look when all that belongs to it has changed."""
    congestion = world.congestion
    if congestion.look_at_s is None:
        congestion.first_change_s = now_s
    congestion.look_at_s = min(now_s + GATHER_S, congestion.first_change_s + GATHER_MOST_S)


def peers_changed(world: World, now_s: float) -> None:
    """Others are talked to, or are heard, than before: what is known of queues may have lost its witnesses."""
    if world.congestion.overloads or world.congestion.stuck:
        look_soon(world, now_s)


def witnesses(world: World) -> list[Path]:
    """Paths of which the delay is known at this moment: those to peers that this host talks to, while they answer. That
    one to a slow host is late says nothing of the network, that it is not does."""
    return [path for path in world.table.probed() if _tells(world.table.peers[path.peer], path)]


def _tells(peer: Peer, path: Path) -> bool:
    return peer.active and (path.evidence == "good" or (path.evidence == "queueing" and not peer.host.slow))


def look(world: World, tray: Tray, now_s: float) -> None:
    """Find out anew which directions are overloaded, and who is stuck."""
    congestion = world.congestion
    congestion.look_at_s = None
    paths = witnesses(world)
    queued = [path for path in paths if path.evidence == "queueing"]
    clear = [path for path in paths if path.evidence == "good" and not path.wavers]
    free = {path.peer for path in clear}
    movable = [path for path in queued if path.peer in free]
    for links in overloaded([path.links for path in movable], [path.links for path in clear]):
        _overloaded(world, tray, links, [path for path in movable if not set(links).isdisjoint(path.links)], now_s)
    _adopt_late(world, tray, clear, now_s)
    for one in congestion.overloads:
        stands = any(one.crossed_by(path) for path in queued)
        if stands != one.queued:
            one.queued, one.changed_at_s = stands, now_s
    _say_stuck(world, tray, {path.peer: world.table.peer(path.peer) for path in queued if path.peer not in free}, clear,
               now_s)  # fmt: skip


def overloaded(queued: Sequence[tuple[str, ...]], clear: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """The directions at which queues stand, those that cannot be told apart together. Paths are given as directions."""
    acquitted = {link for path in clear for link in path}
    found: list[tuple[str, ...]] = []
    rest = list(queued)
    while rest:
        over: dict[str, frozenset[int]] = {}
        for number, path in enumerate(rest):
            for link in path:
                if link not in acquitted:
                    over[link] = over.get(link, frozenset()) | {number}
        if not over:
            break
        best = max(sorted(over), key=lambda link: len(over[link]))
        found.append(tuple(sorted(link for link in over if over[link] == over[best])))
        rest = [path for number, path in enumerate(rest) if number not in over[best]]
    return found


def _overloaded(world: World, tray: Tray, links: tuple[str, ...], over: list[Path], now_s: float) -> None:
    congestion = world.congestion
    known = next((one for one in congestion.overloads if not set(one.links).isdisjoint(links)), None)
    if known is not None and known.queued:
        if set(links) < set(known.links):
            known.links = links
        return
    longest_s = max((path.queueing_s for path in over), default=0.0)
    long = f" ({longest_s * 1e3:.3g} ms)" if longest_s else ""
    why = f"a queue stands{long} on {len(over)} path(s) over it, and not on those beside it"
    if known is None:
        causes = (congestion.late.get((path.peer, *path.key)) for path in over)
        cause = next(filter(None, causes), "") or world.new_cause()
        known = Overload(links, cause, now_s, hold_s=world.settings.limits.congestion_hold_s)
        congestion.overloads.append(known)
    known.links, known.queued, known.changed_at_s, known.why = links, True, now_s, why
    tray.record(
        known.cause, f"verdict congestion: {known.name} is overloaded", why, element=known.name, level="warning"
    )  # fmt: skip


def _adopt_late(world: World, tray: Tray, clear: list[Path], now_s: float) -> None:
    """Paths that were left as dead have been left for their queue; those to a peer of which all are late are used."""
    congestion = world.congestion
    late, congestion.late = congestion.late, {}
    unknown: Overload | None = None
    for place, cause in late.items():
        path = world.table.find(*place)
        if path is None or all(one.peer != path.peer for one in clear):
            continue
        of = (o for o in congestion.overloads if place in o.known or (o.queued and o.crossed_by(path)))
        one = next(of, unknown)
        if one is None:
            one = unknown = Overload((), cause or world.new_cause(), now_s, changed_at_s=now_s)
            one.hold_s = world.settings.limits.congestion_hold_s
        one.eased[place] = None
        one.known |= {place}
        one.last, one.stepped_at_s = (*one.last, place), now_s
        one.watched = frozenset((p.peer, *p.key) for p in clear if not one.crossed_by(p))
    if unknown is not None:
        congestion.overloads.append(unknown)
        paths = [path for place in unknown.known if (path := world.table.find(*place)) is not None]
        common = [link for link in paths[0].links if all(link in path.links for path in paths)]
        where = f"; they share {', '.join(common)}" if common else ""
        unknown.why = f"{len(paths)} path(s) were late, not dead: a queue came up and went with the flows{where}"
        tray.record(unknown.cause, f"verdict congestion: {unknown.name}", unknown.why, level="warning")
    if late:
        world.decide_soon(now_s)


def _say_stuck(world: World, tray: Tray, full: dict[str, Peer], clear: Iterable[Path], now_s: float) -> None:
    carried = {link for path in clear for link in path.links}
    everybody = {path.peer for path in witnesses(world)}
    found: dict[str, tuple[str, str]] = {}
    if full and len(full) == len(everybody) > 1:
        host = world.settings.host
        why = f"a queue stands on every path to all {len(full)} peers"
        found[host] = f"queues on every path from {host}: its own link is full, or it was kept from running", why
    else:
        for peer in full.values():
            paths = [path for path in peer.used() if path.evidence == "queueing"]
            last = f">{peer.title()}"
            before = {link for path in paths for link in path.links if not link.endswith(last)}
            if all(path.links and path.links[-1].endswith(last) for path in paths) and before <= carried:
                why = f"a queue stands on all {len(paths)} path(s) to it, and on none to others over the same links"
                found[peer.title()] = f"incast at {peer.title()}: its own link is full, no path helps", why
            else:
                what = f"every path to {peer.title()} has a queue: there is none to move to"
                found[peer.title()] = what, f"{len(paths)} path(s)"
    stuck = world.congestion.stuck
    for name, (what, why) in found.items():
        one = stuck.get(name)
        if one is None:
            one = stuck[name] = Stuck(what, world.new_cause(), now_s)
        elif not one.on:
            one.on, one.since_s = True, now_s
        one.what, one.why = what, why
        if not one.said and now_s >= one.not_before_s:
            one.said = True
            tray.record(one.cause, what, f"{why}; nothing is moved", element=name, level="warning")
    for name, one in stuck.items():
        if one.on and name not in found:
            one.on = False
            if one.said:
                one.said = False
                tray.record(one.cause, f"{name} is no longer full", f"after {now_s - one.since_s:.1f} s", element=name)
                one.not_before_s, one.pause_s = now_s + one.pause_s, min(2 * one.pause_s, PAUSE_MOST_S)


def told(world: World) -> Iterator[tuple[str, str, str, float]]:
    """(kind, name, why, since) of everything that is full now."""
    for one in world.congestion.overloads:
        if one.queued:
            yield "congestion", one.name, one.why, one.changed_at_s
    for name, stuck in world.congestion.stuck.items():
        if stuck.on:
            yield "full", name, f"{stuck.what} ({stuck.why})", stuck.since_s
