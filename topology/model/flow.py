"""A maximum flow that is kept, so that what a failure takes of it is known at once.

Dinic's algorithm (1970) over dictionaries. networkx has maximum flows too, but starts each from nothing: in a fabric of
16,384 adapters that is a tenth of a second where this takes a millisecond.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from itertools import pairwise

Pair = tuple[str, str]


class Flow:
    """As much as goes from `source` to `target`. Rooms are whole numbers, of ordered pairs of nodes."""

    def __init__(self, rooms: Mapping[Pair, int], source: str, target: str) -> None:
        self._ends = (source, target)
        self._left: dict[str, dict[str, int]] = {source: {}, target: {}}
        for (a, b), room in rooms.items():
            around = self._left.setdefault(a, {})
            around[b] = around.get(b, 0) + room
            self._left.setdefault(b, {}).setdefault(a, 0)
        self.value = 0
        self._fill()

    def less(self, lost: Mapping[Pair, int]) -> Flow:
        """The maximum flow when rooms have shrunk by as much. What still fits stays where it is."""
        made = object.__new__(Flow)
        made._ends, made.value = self._ends, self.value
        left = made._left = {name: dict(around) for name, around in self._left.items()}
        over: dict[str, int] = {}
        for (a, b), room in lost.items():
            left[a][b] -= room
            excess = -left[a][b]
            if excess > 0:
                left[a][b] = 0
                left[b][a] -= excess
                over[a] = over.get(a, 0) + excess
                over[b] = over.get(b, 0) - excess
        if over:
            made._settle({name: amount for name, amount in over.items() if amount})
            made._fill()
        return made

    def reached(self, opened: Collection[Pair] = ()) -> set[str]:
        """The side of the source of the least cut that is nearest to it: where more could still flow to.

        `opened`: pairs that are taken to have room without end."""
        more: dict[str, list[str]] = {}
        for a, b in opened:
            more.setdefault(a, []).append(b)
        seen, ring = {self._ends[0]}, [self._ends[0]]
        while ring:
            here = ring.pop()
            near = [*(there for there, room in self._left.get(here, {}).items() if room > 0), *more.get(here, ())]
            ring += (fresh := {there for there in near if there not in seen})
            seen |= fresh
        return seen

    def leaving(self, side: Set[str]) -> list[Pair]:
        """The pairs that lead from a side of a cut to the other."""
        return [(a, b) for a in side for b in self._left.get(a, ()) if b not in side]

    def _settle(self, over: Mapping[str, int]) -> None:
        """Bring what comes to nodes and no longer leaves them to where it is missing, at worst by taking back flow."""
        source, target = self._ends
        left, more, less, back = self._left, ":more", ":less", ":back"
        left[more] = {name: amount for name, amount in over.items() if amount > 0}
        left[less] = dict.fromkeys((name for name, amount in over.items() if amount < 0), 0)
        left[back] = {source: 0, target: self.value}
        left[source][back], left[target][back] = self.value, 0
        for name in left[more]:
            left[name][more] = 0
        for name in left[less]:
            left[name][less] = -over[name]
        self._push(more, less, sum(left[more].values()))
        self.value = left[back][target]
        for name in (more, less, back):
            for near in left.pop(name):
                del left[near][name]

    def _fill(self) -> None:
        source, target = self._ends
        out = sum(self._left[source].values())
        into = sum(self._left[name][target] for name in self._left[target])
        self.value += self._push(source, target, min(out, into))

    def _push(self, start: str, end: str, limit: int) -> int:
        """Up to `limit` from one node to another; returns how much it was."""
        done = 0
        while done < limit and (depth := self._depths(start, end)):
            done += self._block(start, end, depth, limit - done)
        return done

    def _depths(self, start: str, end: str) -> dict[str, int]:
        """Steps from `start` over what has room, as far as `end`; empty when that is not reached."""
        depth, ring = {start: 0}, [start]
        while ring and end not in depth:
            far = depth[ring[0]] + 1
            fresh = {there for here in ring for there, room in self._left[here].items() if room > 0}
            ring = [there for there in fresh if there not in depth]
            depth.update(dict.fromkeys(ring, far))
        return depth if end in depth else {}

    def _block(self, start: str, end: str, depth: Mapping[str, int], limit: int) -> int:
        """Fill shortest ways until each has a full step, or the limit is reached."""
        left, ways, path, done = self._left, dict[str, list[str]](), [start], 0
        while path and done < limit:
            here = path[-1]
            if here == end:
                steps = list(pairwise(path))
                room = min(limit - done, *(left[a][b] for a, b in steps))
                for a, b in steps:
                    left[a][b] -= room
                    left[b][a] += room
                done += room
                full = next((place for place, (a, b) in enumerate(steps) if not left[a][b]), 0)
                del path[full + 1 :]
                continue
            if here not in ways:
                ways[here] = [there for there in left[here] if depth.get(there) == depth[here] + 1]
            choices = ways[here]
            while choices and left[here][choices[-1]] <= 0:
                choices.pop()
            if choices:
                path.append(choices[-1])
            else:
                path.pop()
                if path:
                    ways[path[-1]].pop()
        return done
