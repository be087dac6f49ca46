"""The observed paths, indexed both ways: the keys that a path crosses, and the paths that cross a key."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from linkpass.core.diagnosis.elements import Elements, Ints

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
DENSE_RATIO = 0.1
"""Places in a path that fewer paths have are kept as a list."""


class Paths:
    """A set of paths that stays for many windows. Building it sorts all crossings: once a set, not once a window.

    `directions`: one row a path, -1 where it is shorter. `holes`: paths of which a part is unknown (a mute hop, a lost
    trace): they acquit what they are known to cross and accuse nobody. `large`: paths probed with large packets."""

    def __init__(
        self, elements: Elements, directions: Ints, *, holes: Flags | None = None, large: Flags | None = None
    ) -> None:
        self.elements = elements
        count = len(directions)
        self.holes = np.zeros(count, dtype=bool) if holes is None else holes
        self.large = np.zeros(count, dtype=bool) if large is None else large
        self.lengths = (directions >= 0).sum(axis=1)
        columns, self._width = self._columns(directions), directions.shape[1]
        self._by_path = np.stack(columns, axis=1).astype(np.int32)
        used = [int((column < elements.keys).sum()) for column in columns]
        self.columns = [column for column, paths in zip(columns, used, strict=True) if paths >= count * DENSE_RATIO]
        rest = [column for column, paths in zip(columns, used, strict=True) if 0 < paths < count * DENSE_RATIO]
        few = [np.flatnonzero(column < elements.keys) for column in rest]
        self._few = np.concatenate([np.zeros(0, dtype=np.intp), *few])
        self._few_keys = np.concatenate([np.zeros(0, dtype=np.intp), *(c[r] for c, r in zip(rest, few, strict=True))])
        self._index()

    def __len__(self) -> int:
        return len(self.lengths)

    def go_as(self, rows: Ints, other: Paths, there: Ints) -> Flags:
        """Whether `rows` go the way that the rows `there` of `other` go, as far as both are known. Elements are matched
        by their names."""
        none = self.elements.keys
        number = np.append(self.elements.numbers_of(other.elements)[: other.elements.keys], none)
        mine, theirs = self._by_path[rows, : self._width], number[other._by_path[there, : other._width]]
        return _within(mine, theirs, none) | _within(theirs, mine, none)

    def _columns(self, directions: Ints) -> list[Ints]:
        """Keys that paths cross, one array a place in the path; `elements.keys` where there is none. A node that a path
        enters and leaves is crossed once; where the steps do not join (a hole, a wrong cable), both nodes are."""
        elements, none = self.elements, self.elements.keys
        source = np.append(elements.source + elements.directions, none)  # -1 is the last one
        target = np.append(elements.target + elements.directions, none)
        columns = [np.where(column < 0, none, column) for column in directions.T]
        before = np.full(len(directions), none, dtype=np.intp)
        for column in directions.T:
            columns.append(np.where(source[column] == before, none, source[column]))
            columns.append(target[column])
            before = target[column]
        return columns

    def _index(self) -> None:
        keys = np.concatenate([*self.columns, self._few_keys])
        rows = np.concatenate((np.tile(np.arange(len(self), dtype=np.intp), len(self.columns)), self._few))
        real = keys < self.elements.keys
        keys, rows = keys[real], rows[real]
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
        total = np.zeros(size)
        for column in self.columns:
            total += np.bincount(column, weights, size)
        if self._few.size:
            total += np.bincount(self._few_keys, weights[self._few], size)
        return total[:-1]

    def keys_of(self, rows: Ints) -> Ints:
        """All keys that any of these paths crosses, in order."""
        seen = np.zeros(self.elements.keys + 1, dtype=bool)
        seen[self._by_path[rows].ravel()] = True
        return np.flatnonzero(seen[:-1])

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
