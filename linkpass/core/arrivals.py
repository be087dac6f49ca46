"""Who comes last to a step, by the word of the trainers. Pure.

A step is settled when every rank that came to the last ones has come to it. Times are by this host's clock; those of
peers are later than the truth by no more than the least way between two hosts.

What one host says is held against what is heard from the others: a time that has not come yet, or is long over, and a
step that is far from where the job is, are refused and counted. Where the job is, this host's own ranks say, else the
middle one of all hosts, each with one voice.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec

from linkpass.core.lagging import advance
from linkpass.core.settings import Stragglers

LEAST_RANKS: Final = 3
"""Of two, each is the other's only measure."""
MOST_STEPS: Final = 64
"""From where the job is: ranks in lock-step are never that far apart, and the words of the slowest not so late."""
SPAN_S: Final = 10.0
"""What was told longer ago is of the past."""
AHEAD_S: Final = 0.05
"""By which the clock of a peer may be misjudged."""
LOOK_S: Final = 0.1
"""Where the job is, is looked at no more often."""
MOST_RANKS: Final = 65_536
PERIODS: Final = 9


class Last(msgspec.Struct, frozen=True):
    host: str
    rank: int
    lag_s: float
    period_s: float


class _Score:
    __slots__ = ("lag_s", "score")

    def __init__(self) -> None:
        self.score = self.lag_s = 0.0


class Arrivals:
    def __init__(self, settings: Stragglers, own: str) -> None:
        """`own`: what this host is called."""
        self._settings, self._own = settings, own
        self._told: dict[str, tuple[int, float]] = {}
        """Host -> the step that it spoke of last, believed or not, and when."""
        self._at = 0
        """The step that the job is at."""
        self._looked_s = float("-inf")
        self._came: dict[int, dict[int, float]] = {}
        """Step -> rank -> when."""
        self._host_of: dict[int, str] = {}
        self._seen: dict[int, int] = {}
        """Rank -> the newest step that it came to."""
        self._scores: dict[int, _Score] = {}
        self._periods: deque[float] = deque(maxlen=PERIODS)
        self._settled_s: float | None = None
        self.heard_s = float("-inf")
        self.refused = 0
        """Words that were not believed."""

    @property
    def ranks(self) -> int:
        return len(self._seen)

    def take(self, host: str, rank: int, step: int, at_s: float, now_s: float) -> bool:
        """True when a step is settled by it. A rank belongs to the host that first spoke for it, as long as it does."""
        self._told[host] = step, now_s
        if host == self._own or now_s >= self._looked_s + LOOK_S:
            self._look(now_s)
        if not (now_s - SPAN_S <= at_s <= now_s + AHEAD_S and self._is_near(step)):
            self.refused += 1
            return False
        if self._host_of.setdefault(rank, host) != host or len(self._seen) >= MOST_RANKS:
            return False
        self.heard_s = max(self.heard_s, at_s)
        if step <= self._seen.get(rank, -1):
            return False
        self._seen[rank] = step
        self._came.setdefault(step, {})[rank] = at_s
        came = self._came.get(step, {})
        if len(came) < max(LEAST_RANKS, len(self._seen)):
            return False
        del self._came[step]
        self._settle(came)
        return True

    def last(self, now_s: float, stale_s: float, least: Callable[[str], float]) -> Last | None:
        """The rank whose score is above what its host needs."""
        if now_s >= self.heard_s + stale_s or not self._periods:
            return None
        for rank, score in self._scores.items():
            host = self._host_of[rank]
            if score.score >= least(host):
                return Last(host, rank, score.lag_s, statistics.median(self._periods))
        return None

    def _look(self, now_s: float) -> None:
        """Find out where the job is, and forget what is far from it."""
        self._looked_s = now_s
        for host in [host for host, (_, told_s) in self._told.items() if now_s > told_s + SPAN_S]:
            del self._told[host]
        own = self._told.get(self._own)
        self._at = own[0] if own else statistics.median_low(step for step, _ in self._told.values())
        self._forget()

    def _is_near(self, step: int) -> bool:
        return abs(step - self._at) <= MOST_STEPS

    def _forget(self) -> None:
        """Steps that are over, and ranks that came to none of the last: they have left the job."""
        for step in [step for step in self._came if not self._is_near(step)]:
            del self._came[step]
        for rank in [rank for rank, newest in self._seen.items() if not self._is_near(newest)]:
            del self._seen[rank], self._host_of[rank]
            self._scores.pop(rank, None)

    def _settle(self, came: dict[int, float]) -> None:
        order = sorted(came, key=lambda rank: came[rank])
        last, before = order[-1], order[-2]
        if self._settled_s is not None:
            self._periods.append(max(0.0, came[last] - self._settled_s))
        self._settled_s = came[last]
        if len(self._periods) <= PERIODS // 2:
            return
        limit_s = max(self._settings.least_s, self._settings.late_ratio * statistics.median(self._periods))
        lag_s = came[last] - came[before]
        for rank in came:
            score = self._scores.setdefault(rank, _Score())
            hit = rank == last and lag_s >= limit_s
            if hit:
                score.lag_s = lag_s if not score.score else score.lag_s + 0.25 * (lag_s - score.lag_s)
            score.score = advance(score.score, int(hit), int(not hit), self._settings.threshold)
