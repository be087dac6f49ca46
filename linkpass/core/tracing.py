"""What traces have told: which hops to believe, and what has to be said of the answers.

An answer may be missing, late, sent another way back or under an address that names nothing, and a label may choose
nothing. Each of these is recognised (by the edge within one trace, by `_judge_ways` across peers), goes into the
journal when it appears and when it has gone, and stands in the status meanwhile. None of them is evidence against a
link.
"""

from __future__ import annotations

from typing import Final, Literal

from linkpass.core.events import LabelsTraced, TraceFailed, TraceNote, TraceNoteKind
from linkpass.core.paths import Hops, Path, Peer
from linkpass.core.survey import MANY, members_of
from linkpass.core.world import Noted, Tray, World

GONE_AFTER: Final = 2
"""Traces in a row that do not find it any more: what is found by chance is not missed by chance."""
NODES_TOLD: Final = 4
"""Nodes of one hop that get an entry of their own in the journal."""

WHAT: Final[dict[TraceNoteKind, str]] = {
    "limited": "answers to traces are limited at hop {hop} over {uplink}",
    "mute": "hop {hop} over {uplink} never answers traces",
    "asymmetric": "answers to traces over {uplink} come back another way from hop {hop} on",
    "unnumbered": "addresses at hop {hop} over {uplink} name no link",
    "sprayed": "packets of one flow go different ways at hop {hop} over {uplink}",
    "one_way": "all labels lead one way over {uplink}",
}
SO: Final[dict[TraceNoteKind, str]] = {
    "limited": "they are asked more slowly, and some hops are learnt later",
    "mute": "links beside it are not judged one by one",
    "asymmetric": "the loss of an answer speaks of another path",
    "unnumbered": "parallel links there count as one",
    "sprayed": "no label chooses a way there",
    "one_way": "the fabric overlooks labels, or its other ways have failed; they choose the uplink at most",
}
"""What follows from it."""
LOUD: Final = ("sprayed", "one_way")
"""They take rung 1 away."""


def on_traced(world: World, tray: Tray, event: LabelsTraced, now_s: float) -> None:
    """Take traced hops. A mute hop never erases what an earlier trace has seen there."""
    peer, uplink = world.table.peer(event.peer), event.uplink
    peer.traced_at_s[uplink] = now_s
    peer.said.pop(f"trace {uplink}", None)
    peer.trace_due_s.pop(uplink, None)
    if event.again_s is not None:
        peer.trace_due_s[uplink] = now_s + event.again_s
    for label, hops in event.hops.items():
        world.table.set_hops(peer, uplink, label, merged(peer.paths.get((uplink, label)), hops))
    peer.planned[uplink] = event.planned
    peer.ways[uplink] = frozenset(
        path.hops for (over, _), path in peer.paths.items() if over == uplink and path.hops is not None
    )
    sprayed = next((note.why for note in event.notes if note.kind == "sprayed"), "")
    peer.sprayed[uplink] = f"{uplink}: {sprayed}" if sprayed else ""
    for other in {peer.address: peer, **_judge_ways(world, uplink)}.values():
        if world.table.choose(other, members_of(world, other)):
            world.decide_soon(now_s)
    notes = list(event.notes)
    if uplink in peer.blunt and not sprayed:
        first = {way[0] for way in peer.ways[uplink] if way and way[0] is not None}
        notes.append(TraceNote("one_way", 1, peer.blunt[uplink], tuple(sorted(first))))
    _take_notes(world, tray, event, notes, now_s)


def merged(old: Path | None, hops: Hops) -> Hops:
    """The hops to believe. A trace into a blackhole ends early or in mute hops: as long as what it saw agrees with what
    was known, that fills its gaps."""
    known = old.hops if old is not None else None
    if known is None or len(hops) > len(known):
        return hops
    if any(new not in (None, was) and was is not None for new, was in zip(hops, known, strict=False)):
        return hops
    seen = (*hops, *known[len(hops) :])
    return tuple(was if new is None else new for new, was in zip(seen, known, strict=True))


def _judge_ways(world: World, uplink: str) -> dict[str, Peer]:
    """Find the peers to which all labels over an uplink lead one way, though others go several between the same first
    and last node, or the fabric's file has several; those of which that has changed, by address."""
    between: dict[tuple[str | None, str | None, int], set[Hops]] = {}
    peers = [peer for peer in world.table.peers.values() if peer.ways.get(uplink)]
    for peer in peers:
        for way in peer.ways[uplink]:
            if way and None not in way:
                between.setdefault((way[0], way[-1], len(way)), set()).add(way)
    changed = {}
    for peer in peers:
        why = peer.sprayed.get(uplink) or _one_way(peer, uplink, between)
        if bool(why) != (uplink in peer.blunt):
            changed[peer.address] = peer
        peer.blunt.pop(uplink, None)
        if why:
            peer.blunt[uplink] = why
    return changed


def _one_way(peer: Peer, uplink: str, between: dict[tuple[str | None, str | None, int], set[Hops]]) -> str:
    ways = peer.ways[uplink]
    if len(ways) != 1 or len(peer.labels_over(uplink)) < MANY:
        return ""
    (way,) = ways
    if not way or None in way:
        return ""
    said = f"all {len(peer.pool)} labels lead over {' '.join(map(str, way))}"
    if peer.planned.get(uplink, 0) > 1:
        return f"{said}, though the fabric's file has {peer.planned[uplink]} ways"
    others = between[way[0], way[-1], len(way)] - ways
    if others:
        return f"{said}, though others go over {' '.join(map(str, min(others, key=str)))}"
    return ""


def _take_notes(world: World, tray: Tray, event: LabelsTraced, notes: list[TraceNote], now_s: float) -> None:
    """Enter what a trace has found, and what it does not find any more; both are told once."""
    seen: set[tuple[str, str, int]] = set()
    for note in notes:
        key = event.uplink, note.kind, note.hop
        seen.add(key)
        noted = world.noted.get(key)
        news = noted is None
        if noted is None:
            what = WHAT[note.kind].format(hop=note.hop, uplink=event.uplink)
            noted = world.noted[key] = Noted(what, note.why, now_s)
        for node in note.nodes:
            news = news or (node not in noted.nodes and len(noted.nodes) < NODES_TOLD)
            noted.nodes[node] = None
        noted.peers[event.peer] = 0
        noted.why = note.why
        if news:
            level: Literal["info", "warning"] = "warning" if note.kind in LOUD else "info"
            tray.record("", noted.what, f"{note.why}; {SO[note.kind]}", element=event.uplink, level=level)
    for place, old in list(world.noted.items()):
        if place in seen or place[0] != event.uplink or event.peer not in old.peers:
            continue
        old.peers[event.peer] += 1
        if old.peers[event.peer] >= GONE_AFTER:
            del old.peers[event.peer]
        if not old.peers:
            del world.noted[place]
            tray.record("", f"no longer: {old.what}", "not found by the latest traces", element=event.uplink)


def notes_on(world: World, peer: str, uplink: str) -> tuple[str, ...]:
    """The kinds of what is known of traces to a peer over an uplink."""
    return tuple(sorted({key[1] for key, noted in world.noted.items() if key[0] == uplink and peer in noted.peers}))


def on_failed(world: World, tray: Tray, event: TraceFailed) -> None:
    """Told once, until the reason changes."""
    peer = world.table.peer(event.peer)
    peer.trace_due_s.pop(event.uplink, None)
    if peer.said.get(f"trace {event.uplink}") != event.why:
        peer.said[f"trace {event.uplink}"] = event.why
        what = f"no traces to {peer.title()} over {event.uplink}"
        tray.record("", what, event.why, element=event.uplink)


def uplink_gone(world: World, uplink: str) -> None:
    """What was found out over a device that has disappeared."""
    for key in [key for key in world.noted if key[0] == uplink]:
        del world.noted[key]
