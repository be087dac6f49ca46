"""The observed paths, indexed both ways: the keys that a path crosses, and the paths that cross a key."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from linkpass.core.diagnosis.elements import Elements, Ints

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


class Paths:
    """A set of paths that stays for many windows. Building it sorts all crossings: once a set, not once a window.

    `directions`: one row a path, -1 where it is shorter. `holes`: paths of which a part is unknown (a mute hop, a lost
    trace): they acquit what they are known to cross and accuse nobody. `large`: paths probed with large packets.
    `weak`: paths of flows that are not probed: they accuse nobody by themselves."""

    def __init__(
        self, elements: Elements, directions: Ints, *, holes: Flags | None = None, large: Flags | None = None,
        weak: Flags | None = None,
    ) -> None:  # fmt: skip
        self.elements = elements
        count = len(directions)
        self.holes = np.zeros(count, dtype=bool) if holes is None else holes
        self.large = np.zeros(count, dtype=bool) if large is None else large
        self.weak = np.zeros(count, dtype=bool) if weak is None else weak
        self.lengths = (directions >= 0).sum(axis=1)
        self._by_path = self._keys(directions)
        self._columns = [np.where(way < 0, elements.keys, way) for way in directions.T]
        self._odd, self._odd_nodes, self._odd_counts = self._irregular(directions)
        self._index()

    def __len__(self) -> int:
        return len(self.lengths)

    def ways(self, rows: Ints) -> Ints:
        """The directions of some paths, one row a path; `elements.keys` where it is shorter."""
        return np.stack([column[rows] for column in self._columns], axis=1)

    def go_as(self, rows: Ints, other: Paths, there: Ints) -> Flags:
        """Whether `rows` go the way that the rows `there` of `other` go, as far as both are known. Elements are matched
        by their names."""
        none = self.elements.keys
        number = np.append(self.elements.numbers_of(other.elements)[: other.elements.directions], none)
        mine, theirs = self._by_path[rows], other._by_path[there]
        mine = np.where(mine < self.elements.directions, mine, none)
        theirs = number[np.minimum(theirs, other.elements.directions)]
        return _within(mine, theirs, none) | _within(theirs, mine, none)

    def _keys(self, directions: Ints) -> NDArray[np.int32]:
        """Keys that paths cross, one row a path: its directions, its nodes, and `elements.keys` behind the end.

        A path that enters and leaves a node crosses it once, and so does one that comes there twice; where the steps do
        not join (a hole, a wrong cable), both nodes are crossed."""
        elements, none = self.elements, self.elements.keys
        source = np.append(elements.source + elements.directions, none)  # -1 is the last one
        target = np.append(elements.target + elements.directions, none)
        sides = (np.where(directions < 0, none, directions), source[directions], target[directions])
        keys = np.sort(np.concatenate(sides, axis=1).astype(np.int32), axis=1)
        keys[:, 1:][keys[:, 1:] == keys[:, :-1]] = none
        keys.sort(axis=1)
        return np.ascontiguousarray(keys[:, : max(int((keys < none).sum(axis=1).max(initial=1)), 1)])

    def _irregular(self, directions: Ints) -> tuple[Ints, Ints, Floats]:
        """Paths and nodes of which `sums` would count a path too often (< 0) or too seldom, as it takes the sum of a
        node's paths from its directions: those that come in, and of a host also those that go out."""
        elements = self.elements
        nodes = len(elements.nodes)
        out = np.where((directions >= 0) & elements.at_host[directions], elements.source[directions], -1)
        counted = np.concatenate((np.where(directions < 0, -1, elements.target[directions]), out), axis=1)
        crossed = self._by_path - elements.directions
        crossed = np.where((crossed >= 0) & (crossed < nodes), crossed, -1)
        place, right = (np.arange(len(self))[:, None] * nodes + some for some in (counted, crossed))
        place, right = place[counted >= 0], right[crossed >= 0]
        odd, back = np.unique(np.concatenate((place, right)), return_inverse=True)
        counts = np.bincount(back[len(place) :], minlength=len(odd)) - np.bincount(
            back[: len(place)], minlength=len(odd)
        )
        odd, counts = odd[counts != 0], counts[counts != 0]
        return odd // nodes, odd % nodes, counts.astype(np.float64)

    def _index(self) -> None:
        rows, columns = np.nonzero(self._by_path < self.elements.keys)
        keys = self._by_path[rows, columns]
        order = np.argsort(keys, kind="stable")
        self._rows = rows[order]
        self._start = np.searchsorted(keys[order], np.arange(self.elements.keys + 1))
        marks = _scattered(len(self))
        summed = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(marks[self._rows])))  # wraps, as it should
        key_marks = np.diff(summed[self._start])
        first, second = self.elements.first, self.elements.second
        self.marks = key_marks[first] + np.where(second >= 0, key_marks[second], 0)
        """Elements with equal marks have the same paths: no observation of these paths can tell them apart."""

    def sums(self, weights: Floats, rows: Ints | None = None) -> Floats:
        """For each key the sum of the weights of the paths that cross it; of `rows` only, whose weights they are."""
        size = self.elements.keys + 1
        if rows is not None:
            keys = self._by_path[rows]
            total: Floats = np.bincount(keys.ravel(), np.repeat(weights, keys.shape[1]), size).astype(np.float64)
            return total[:-1]
        elements = self.elements
        ways = np.zeros(size)
        for column in self._columns:
            ways += np.bincount(column, weights, size)
        ways = ways[: elements.directions]
        nodes = np.bincount(elements.target, ways, len(elements.nodes))
        nodes += np.bincount(elements.source, np.where(elements.at_host, ways, 0.0), len(elements.nodes))
        nodes += np.bincount(self._odd_nodes, self._odd_counts * weights[self._odd], len(elements.nodes))
        return np.concatenate((ways, nodes))

    def keys_of(self, rows: Ints) -> Ints:
        """All keys that any of these paths crosses, in order."""
        seen = np.zeros(self.elements.keys + 1, dtype=bool)
        seen[self._by_path[rows].ravel()] = True
        return np.flatnonzero(seen[:-1])

    def any_over(self, elements: Ints, rows: Ints) -> Flags:
        """Of each element whether any of these paths crosses it."""
        seen = np.zeros(self.elements.keys + 1, dtype=bool)
        seen[self._by_path[rows].ravel()] = True
        seen[-1] = False  # also the second key of elements that have one
        return seen[self.elements.first[elements]] | seen[self.elements.second[elements]]

    def crossing(self, elements: Ints) -> tuple[Ints, Ints]:
        """The paths of elements, one element's after the other's, and where each begins (one more than elements)."""
        keys = np.stack((self.elements.first[elements], self.elements.second[elements]), axis=1).ravel()
        there = keys >= 0
        begin = np.where(there, self._start[keys], 0)
        length = np.where(there, self._start[keys + 1] - begin, 0)
        offsets = np.concatenate((np.zeros(1, dtype=np.intp), np.cumsum(length)))
        places = np.arange(offsets[-1]) - np.repeat(offsets[:-1] - begin, length)
        return self._rows[places], offsets[::2]


def _within(some: NDArray[np.integer], others: NDArray[np.integer], none: int) -> Flags:
    """Row by row, whether all of `some` but `none` are among `others`."""
    found = np.ones(len(some), dtype=bool)
    for column in some.T:
        found &= (column == none) | (others == column[:, None]).any(axis=1)
    return found


def _scattered(count: int) -> NDArray[np.int64]:
    """Numbers whose sums are hardly ever the same for different sets of them (the finaliser of SplitMix64)."""
    mixed = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (mixed ^ (mixed >> np.uint64(31))).view(np.int64)
