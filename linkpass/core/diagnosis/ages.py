"""Since when an explanation stands: a suspicion is known again from window to window, and from trace to trace."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from linkpass.core.diagnosis.elements import Ints
from linkpass.core.diagnosis.paths import Floats
from linkpass.core.diagnosis.search import Blamed


class Ages:
    """By mark: an element (-1 less its number), and the path of its that has lost most, since another element may lead
    the same suspicion a window later."""

    def __init__(self) -> None:
        self._since_s: dict[int, float] = {}

    def since_s(self, blamed: Sequence[Blamed], lost: Floats, now_s: float) -> list[float]:
        """When each of the suspicions began. Those that are not among them now are over."""
        marks = [_marks(one, lost) for one in blamed]
        began_s = [min(self._since_s.get(mark, now_s) for mark in ones) for ones in marks]
        self._since_s = {mark: since_s for ones, since_s in zip(marks, began_s, strict=True) for mark in ones}
        return began_s

    def moved(self, element: Ints, row: Ints) -> Ages:
        """The same where elements and paths have other numbers: `element` and `row` for each, -1 where it is gone."""
        other = Ages()
        for mark, since_s in self._since_s.items():
            place = int(row[mark] if mark >= 0 else element[-1 - mark])
            if place >= 0:
                other._since_s[place if mark >= 0 else -1 - place] = since_s
        return other


def _marks(one: Blamed, lost: Floats) -> tuple[int, ...]:
    element = -1 - one.element
    return (element, int(one.hit[np.argmax(lost[one.hit])])) if len(one.hit) else (element,)
