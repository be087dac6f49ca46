"""The localiser at work in one daemon: what this host's paths show goes in, names with reasons come out.

Loaded only where diagnosis is enabled. It runs when news is bad and while any of it stands; quiet time costs nothing,
and what was carried then is filled in at the next run. What it says moves no traffic by itself in this room: `blame`
moves it within a probe's interval, this room says a little later what it was.

Peers that have the same trouble help each other: what one is certain of it tells the others, who take it for a hint,
so weak that no word accuses an element without losses that a host has seen itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np

from linkpass.core import events as ev
from linkpass.core.diagnosis import hearsay, saying
from linkpass.core.diagnosis.accounts import FAILING, Accounts, Entry
from linkpass.core.diagnosis.elements import Elements
from linkpass.core.diagnosis.localise import Localiser, Window
from linkpass.core.diagnosis.saying import NOTHING_RATIO
from linkpass.core.diagnosis.traced import Row, Traced, traced
from linkpass.core.diagnosis.verdict import Verdict
from linkpass.core.paths import Peer
from linkpass.core.survey import probing_interval_s
from linkpass.core.world import Tray, World

PACE_S: Final = 0.1
"""Between two runs while something is wrong; more where there are more than PATHS paths."""
PATHS: Final = 1000
CALM_S: Final = 3.0
"""Without bad news and without a suspicion for this long, it rests."""
LONG_S: Final = 1e6
"""Longer than any memory."""
MEMORY_S: Final = 10.0
"""Of health before the first run, at most."""
OVER_S: Final = 3.0
"""A verdict is taken back when nothing has spoken for it this long: what flaps is one story."""
AGAIN_S: Final = 3.0
"""A verdict that stands is told to peers this often."""

Key = tuple[str, str, int]
"""(peer, uplink, label)"""


@dataclass(slots=True)
class Named:
    verdict: Verdict
    cause: str
    shared_at_s: float = float("-inf")
    seen_at_s: float = 0.0
    """When it was last among the findings."""


class Diagnosis:
    """`share`: tells peers of an element (name, cause, now); called seldom."""

    def __init__(self, world: World, tray: Tray, share: Callable[[str, str, float], None]) -> None:
        self._world, self._tray, self._share = world, tray, share
        self.due_s: float | None = None
        self.named: dict[str, Named] = {}
        """Those that the journal knows of and that hold."""
        self._accounts = Accounts(world)
        self._localiser: Localiser | None = None
        self._traced: Traced | None = None
        self._keys: list[Key] = []
        self._rows: list[Row] = []
        self._tally: dict[Key, list[float]] = {}
        """Packets sent and lost by each path since news has been bad: the localiser's memory holds some from before."""
        self._ran_s = float("-inf")
        self._news_s = float("-inf")
        self._before: set[str] = set()
        """What was certain in the last run: evidence that is half there makes others look guilty for a moment."""

    # events

    def hear(self, event: ev.Event, now_s: float) -> None:
        """Take what an event says of paths, after the rest of the core has taken it."""
        if isinstance(event, ev.PathWindow):
            if self._accounts.count(event, now_s):
                self._wake(now_s, now_s + PACE_S)
        elif isinstance(event, ev.PathEvidence):
            if self._accounts.evidence(event, now_s):
                # One interval more, and the evidence of other paths over the same element is there as well.
                self._wake(now_s, now_s + 2 * self._world.settings.probing.interval_s)
        elif isinstance(event, ev.PeerSilent | ev.PortEvent) or (
            isinstance(event, ev.UplinkState) and not event.usable
        ):
            self._wake(now_s, now_s + PACE_S)

    def _wake(self, now_s: float, at_s: float) -> None:
        if self.due_s is None:
            self._tally.clear()
        self._news_s = now_s
        self.due_s = at_s if self.due_s is None else min(self.due_s, at_s)

    def turn(self, now_s: float) -> None:
        """Run if it is time."""
        if self.due_s is not None and self.due_s <= now_s:
            self._run(now_s)

    # a run

    def _run(self, now_s: float) -> None:
        """One window: what every path has carried since the last one, and what that says."""
        self.due_s = None
        self._look_at_paths()
        self._world.findings = self._window(self._localiser, now_s) if self._localiser is not None else ()
        self._ran_s = now_s
        self._tell(now_s)
        if self._world.findings or self.named or now_s - self._news_s < CALM_S:
            self.due_s = now_s + PACE_S * max(1.0, len(self._keys) / PATHS)
        else:
            self._accounts.rest()

    def _window(self, localiser: Localiser, now_s: float) -> tuple[Verdict, ...]:
        count = len(self._keys)
        sent, lost, queued = np.zeros(count), np.zeros(count), np.zeros(count)
        mute, anew = np.zeros(count, dtype=bool), np.zeros(count, dtype=bool)
        span_s = now_s - self._ran_s
        for place, (address, uplink, label) in enumerate(self._keys):
            peer = self._world.table.peers[address]
            path = peer.paths[uplink, label]
            entry = self._accounts.settle(peer, path, self._interval_s(peer), now_s, min(span_s, MEMORY_S))
            sent[place], lost[place] = entry.sent, entry.lost
            self._count(self._keys[place], entry, now_s)
            mute[place], anew[place] = entry.mute, entry.anew
            queued[place] = float(path.evidence == "queueing")
        hints = hearsay.hints(self._world, localiser.paths.elements, now_s)
        window = Window(min(span_s, LONG_S), sent, lost, queued, hints, mute, anew)
        said = (self._either_way(one) for one in localiser.window(window))
        return tuple(self._of_late(_without_parts(one, localiser.paths.elements)) for one in said)

    def _count(self, key: Key, entry: Entry, now_s: float) -> None:
        """The health before the first bad news came is not what is asked for: no more than a window of it."""
        tally = self._tally.setdefault(key, [0.0, 0.0])
        if entry.anew:
            tally[:] = 0.0, 0.0
        span_s = min(max(now_s - self._ran_s, PACE_S), MEMORY_S)
        tally[0] += entry.sent if entry.lost else entry.sent * min(1.0, (now_s - self._news_s + PACE_S) / span_s)
        tally[1] += entry.lost

    def _of_late(self, verdict: Verdict) -> Verdict:
        """With the loss ratio since news has been bad."""
        if verdict.scope != "whole" or verdict.kind == "congestion" or verdict.loss_ratio >= NOTHING_RATIO:
            return verdict
        counts = [self._tally[key] for key in self._over(verdict)]
        sent, lost = sum(count[0] for count in counts), sum(count[1] for count in counts)
        return msgspec.structs.replace(verdict, loss_ratio=lost / sent) if sent else verdict

    def _interval_s(self, peer: Peer) -> float:
        if peer.active:
            return probing_interval_s(self._world, peer)
        return self._world.settings.probing.idle_interval_s

    def _look_at_paths(self) -> None:
        """Build the paths anew when traces, plans or the silence of a peer have changed; memory is carried over."""
        keys: list[Key] = []
        rows: list[Row] = []
        host = self._world.settings.host
        for peer in self._world.table.peers.values():
            for path in peer.used():
                row = Row(path.uplink, (host, *(path.hops or (None,)), peer.title()))
                if path.hops is not None and row.steps():
                    keys.append((peer.address, *path.key))
                    rows.append(row)
        if rows == self._rows and keys == self._keys:
            return
        before = {key: place for place, key in enumerate(self._keys)}
        old_row = np.array([before.get(key, -1) for key in keys], dtype=np.intp)
        self._keys, self._rows = keys, rows
        if not rows:
            self._localiser = self._traced = None
            return
        hosts = {host, *(peer.title() for peer in self._world.table.peers.values())}
        self._traced = traced(rows, hosts)
        known = self._localiser
        paths = self._traced.paths
        self._localiser = Localiser(paths) if known is None else known.with_paths(paths, old_row)

    # words

    def _tell(self, now_s: float) -> None:
        findings = self._world.findings
        for element, known in list(self.named.items()):
            if any(self._covers(one, known.verdict) for one in findings):
                known.seen_at_s = now_s
            if now_s < known.seen_at_s + OVER_S:
                continue
            over = self.named.pop(element)
            why = "its paths are clean again, or something else explains them"
            self._tray.record(over.cause, saying.over(over.verdict), why, element=over.verdict.element)
        certain = {one.element: one for one in findings if one.certain and not self._unsaid(one)}
        for element, verdict in certain.items():
            if element in self._before:
                self._name(verdict, now_s)
        self._before = set(certain)
        if self._world.settings.diagnosis.share:
            self._share_again(now_s)

    def _unsaid(self, verdict: Verdict) -> bool:
        """One silent peer, of whose data nothing is known, may have lost its daemon and nothing else."""
        peers = self._failing_peers(verdict)
        return len(peers) == 1 and peers[0].silent_since_s is not None and peers[0].data_flows is not False

    def _failing_peers(self, verdict: Verdict) -> list[Peer]:
        """Those that are silent or to which a path over the element fails."""
        found: dict[str, Peer] = {}
        for address, uplink, label in self._over(verdict):
            peer = self._world.table.peers[address]
            if peer.silent_since_s is not None or peer.paths[uplink, label].evidence in FAILING:
                found[address] = peer
        return list(found.values())

    def _either_way(self, verdict: Verdict) -> Verdict:
        """A peer that is silent may not hear or may not be heard: its link is named then, not a direction of it."""
        peers = self._failing_peers(verdict) if verdict.kind == "direction" else ()
        if not peers or any(peer.silent_since_s is None for peer in peers):
            return verdict
        assert self._traced is not None
        elements = self._traced.paths.elements
        link = elements.names[elements.link_of(elements.index[verdict.element])]
        others = tuple(one for one in verdict.others if one != link)
        return msgspec.structs.replace(verdict, kind="link", element=link, others=others)

    def _name(self, verdict: Verdict, now_s: float) -> None:
        """Say it, unless no less has been said: a class that has shrunk is news."""
        covered = [name for name, known in self.named.items() if self._covers(verdict, known.verdict)]
        if any(set(self.named[name].verdict.suspects) <= set(verdict.suspects) for name in covered):
            return
        cause = self._cause_of(verdict) or self._world.incident(now_s)
        for element in covered:
            del self.named[element]
        self.named[verdict.element] = Named(verdict, cause, seen_at_s=now_s)
        self._tray.record(
            cause, saying.what(verdict), saying.why(verdict), element=verdict.element,
            level="info" if verdict.kind == "congestion" else "warning",
        )  # fmt: skip

    def _covers(self, verdict: Verdict, before: Verdict) -> bool:
        """Whether what was named is still meant: among the suspects, or as a part of what is named now."""
        if set(before.suspects) & set(verdict.suspects):
            return True
        element = before.element
        elements = self._traced.paths.elements if self._traced is not None else None
        if elements is None or element not in elements.index:
            return False
        return elements.parts(elements.index[element]) < elements.parts(elements.index[verdict.element])

    def _share_again(self, now_s: float) -> None:
        for element, named in self.named.items():
            stands = named.seen_at_s == now_s and named.verdict.kind not in ("congestion", "nic")
            if not stands or named.verdict.others or now_s < named.shared_at_s + AGAIN_S:
                continue
            named.shared_at_s = now_s
            self._share(element, named.cause, now_s)

    def _over(self, verdict: Verdict) -> list[Key]:
        """The paths over the element of a verdict."""
        if self._traced is None:
            return []
        paths = self._traced.paths
        number = np.array([paths.elements.index[verdict.element]], dtype=np.intp)
        return [self._keys[row] for row in paths.crossing(number)[0].tolist()]

    def _cause_of(self, verdict: Verdict) -> str:
        """The story to which the failure of its paths belongs already."""
        for address, uplink, label in self._over(verdict):
            peer = self._world.table.peers[address]
            element = peer.paths[uplink, label].element
            if element.state == "down" and element.cause:
                return element.cause
            if peer.silent_since_s is not None and peer.cause:
                return peer.cause
        return ""


def _without_parts(verdict: Verdict, elements: Elements) -> Verdict:
    """One host sees most links one way only. What holds the named direction, or is held by the named link, is no other
    suspect: the direction is all that can be told, and that a link fails both ways only peers can tell."""
    if not verdict.others or verdict.kind == "congestion":
        return verdict
    mine = elements.parts(elements.index[verdict.element])
    theirs = ((one, elements.parts(elements.index[one])) for one in verdict.others)
    keep = tuple(one for one, parts in theirs if not (parts < mine or mine < parts))
    return msgspec.structs.replace(verdict, others=keep)
