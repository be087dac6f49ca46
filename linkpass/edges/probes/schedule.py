"""When which paths are probed: those of one peer with one interval together, spread so that no link is crowded."""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Iterator
from typing import Final

from linkpass.core.survey import FAST_S, stretch
from linkpass.edges.probes.books import Books
from linkpass.edges.probes.paths import SentPath, Twin
from linkpass.edges.probes.peers import Peer

TICKS_S: Final = 0.02
"""Ticks further apart are too few to read the rings at."""


class Group:
    """Paths to one peer with one interval: they are probed together, and with them, in turn, as many of their twins as
    are to be large."""

    __slots__ = ("_owed", "due_s", "interval_s", "paths", "peer", "twins")

    def __init__(self, peer: Peer, interval_s: float, due_s: float) -> None:
        self.peer, self.interval_s, self.due_s = peer, interval_s, due_s
        self.paths: list[SentPath] = []
        self.twins: deque[Twin] = deque()
        self._owed = 0.0

    def take(self, large_ratio: float) -> list[SentPath]:
        """What to probe now. Large probes are few at a time: together they would be a burst."""
        self._owed += large_ratio * len(self.twins)
        large = int(self._owed)
        self._owed -= large
        if not large:
            return self.paths
        chosen = list(itertools.islice(self.twins, large))
        self.twins.rotate(-large)
        return [*self.paths, *chosen]


class Schedule:
    """Of all groups. Times in seconds of the edge's clock."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self._heap: list[tuple[float, int, Group]] = []
        self.slow = True
        """Ticks are rare: no path has a short interval."""

    @property
    def next_s(self) -> float:
        """When a group is due next; inf: never."""
        return self._heap[0][0] if self._heap else math.inf

    def due(self, now_s: float) -> Iterator[tuple[Group, float]]:
        """Groups to be probed now, and since when each is due. What was missed is not made up for."""
        while self._heap and self._heap[0][0] <= now_s:
            _, number, group = self._heap[0]
            was_due_s, due_s = group.due_s, group.due_s + group.interval_s
            group.due_s = due_s if due_s > now_s else now_s + group.interval_s
            heapq.heapreplace(self._heap, (group.due_s, number, group))
            yield group, was_due_s

    def plan(self, now_s: float) -> None:
        """Group the paths, stretch the intervals to the packet limits, keep who is due when."""
        probing = self._books.settings.probing
        paths = [(peer, path) for peer in self._books.peers.values() for path in peer.paths.values()]
        rates = [(path.uplink, path.interval_s) for _, path in paths]
        factor = stretch(rates, probing.max_packets_per_s, probing.max_link_packets_per_s)
        self._books.stats.stretch = factor
        due = {(g.peer, g.interval_s): g.due_s for _, _, g in self._heap}
        fast = {g.peer: g.due_s for _, _, g in sorted(self._heap, reverse=True) if g.interval_s <= FAST_S}
        groups: dict[tuple[Peer, float], Group] = {}
        for peer, path in paths:
            path.interval_s *= factor
            if isinstance(path, Twin):
                continue
            place = (peer, path.interval_s)
            if place not in groups:
                # slow groups are spread over their interval, fast ones share a tick
                part = 0.0 if path.interval_s <= FAST_S else (len(groups) * 0.618 % 1) * min(path.interval_s, 1.0)
                # and keep their tick: another plan is no reason for more probes
                begin_s = fast.get(peer, now_s) if path.interval_s <= FAST_S else now_s + part
                groups[place] = Group(peer, path.interval_s, due.get(place, begin_s))
            groups[place].paths.append(path)
            if path.twin is not None:
                groups[place].twins.append(path.twin)
        self._heap = [(g.due_s, number, g) for number, g in enumerate(groups.values())]
        heapq.heapify(self._heap)
        self.slow = min((g.interval_s for g in groups.values()), default=math.inf) > TICKS_S
