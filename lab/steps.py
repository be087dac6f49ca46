"""What a job's logs say: when each rank ended which step, how long the job stood still, whether anything was lost.

Pure: bytes in, figures out. The lines are those of `lab/train_gpt.py`.
"""

from __future__ import annotations

import bisect
import itertools
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec


class Line(msgspec.Struct, frozen=True):
    """Any line of a log; fields that a line does not have stay None."""

    rank: int | None = None
    parameters: int | None = None
    pid: int | None = None
    step: int | None = None
    start_s: float | None = None
    end_s: float | None = None
    loss: float | None = None
    hash: str | None = None
    done: int | None = None
    sha256: str | None = None
    error: str | None = None
    at_s: float | None = None


_decode = msgspec.json.Decoder(Line).decode


@dataclass(slots=True)
class RankLog:
    """One rank's log as far as it is known. Index of `ends_s` and `losses` is the order of arrival, normally the step.

    `lost` counts steps that are missing or were done again: a job that kept its place has none."""

    rank: int
    ends_s: list[float] = field(default_factory=list)
    starts_s: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    hashes: dict[int, str] = field(default_factory=dict)
    ready_s: float | None = None
    parameters: int = 0
    pid: int = 0
    done: int | None = None
    error: str = ""
    lost: int = 0
    _next: int = 0
    _rest: bytes = b""

    def feed(self, data: bytes) -> None:
        """More bytes of the log; a line cut in two waits for its other half. Raises msgspec.DecodeError for others."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for raw in lines:
            line = _decode(raw)
            if line.end_s is not None and line.step is not None:
                self._take_step(line.step, line.start_s or line.end_s, line.end_s, line.loss or 0.0)
            elif line.hash is not None and line.step is not None:
                self.hashes[line.step] = line.hash
            elif line.done is not None:
                self.done = line.done
                self.hashes[line.done] = line.sha256 or ""
            elif line.error is not None:
                self.error = line.error
            elif line.parameters is not None:
                self.ready_s, self.parameters, self.pid = line.at_s, line.parameters, line.pid or 0

    def _take_step(self, step: int, start_s: float, end_s: float, loss: float) -> None:
        self.lost += abs(step - self._next)
        self._next = step + 1
        self.starts_s.append(start_s)
        self.ends_s.append(end_s)
        self.losses.append(loss)


@dataclass(frozen=True, slots=True)
class Stall:
    """The longest time without a step end, beyond the usual. `seconds` 0: none was longer than a median step.

    `open`: the gap had not ended when the log was read; `at_s`, `until_s`: its two ends."""

    seconds: float
    rank: int
    at_s: float
    until_s: float
    open: bool = False


def median_step_s(logs: Iterable[RankLog], since_s: float = 0.0, until_s: float = float("inf")) -> float:
    """Median time from step end to step end over all ranks. ValueError when no rank has two ends in that time."""
    gaps = [gap for log in logs for _, gap in _gaps(log, since_s, until_s)]
    if not gaps:
        raise ValueError("no rank has finished two steps in that time")
    return statistics.median(gaps)


def step_ratio(logs: Sequence[RankLog], before: tuple[float, float], during: tuple[float, float]) -> float:
    """How many times longer a median step is in one span (since, until) than in another. ValueError when nothing is
    known of `before`; a job that did not finish two steps `during` counts as one step that took all of that time."""
    usual_s = median_step_s(logs, *before)
    try:
        return median_step_s(logs, *during) / usual_s
    except ValueError:
        return (during[1] - during[0]) / usual_s


def longest_stall(
    logs: Sequence[RankLog], since_s: float, until_s: float, median_s: float, now_s: float | None = None
) -> Stall:
    """The longest gap between two step ends of any rank that reaches into `since_s` … `until_s`, minus the median.

    A rank that has not come back counts up to `now_s` (when given and the rank is neither done nor dead)."""
    worst = Stall(0.0, -1, since_s, since_s)
    for log in logs:
        ends = log.ends_s
        first = max(bisect.bisect_right(ends, since_s) - 1, 0)
        pairs = [(a, b, False) for a, b in itertools.pairwise(ends[first:]) if a < until_s]
        if now_s is not None and ends and log.done is None and ends[-1] < until_s:
            pairs.append((ends[-1], now_s, True))
        for start, end, still_open in pairs:
            if end - start - median_s > worst.seconds:
                worst = Stall(end - start - median_s, log.rank, start, end, still_open)
    return worst


def count_stalls(logs: Iterable[RankLog], since_s: float, until_s: float, median_s: float, least_s: float) -> int:
    """Gaps longer than the median by `least_s` that reach into a time, of the rank that had most."""
    most = 0
    for log in logs:
        first = max(bisect.bisect_right(log.ends_s, since_s) - 1, 0)
        gaps = (b - a for a, b in itertools.pairwise(log.ends_s[first:]) if a < until_s)
        most = max(most, sum(gap - median_s > least_s for gap in gaps))
    return most


def steps_lost(logs: Iterable[RankLog]) -> int:
    """Steps missing or repeated, over all ranks; a rank that died counts one at least (its last step is gone)."""
    return sum(log.lost + bool(log.error) for log in logs)


def weights_identical(ours: Sequence[RankLog], reference: Sequence[RankLog], since_step: int = 0) -> bool | None:
    """Whether both jobs, all ranks, had the same weights at every step where both looked, from `since_step` on.

    None: they have no such step in common, so nothing is known."""
    known: dict[int, str] = {}
    for log in reference:
        for step, value in log.hashes.items():
            if known.setdefault(step, value) != value:
                return False
    common = [(step, value) for log in ours for step, value in log.hashes.items() if step >= since_step]
    pairs = [(known[step], value) for step, value in common if step in known]
    return all(a == b for a, b in pairs) if pairs else None


def _gaps(log: RankLog, since_s: float, until_s: float) -> Iterable[tuple[float, float]]:
    ends = log.ends_s[bisect.bisect_left(log.ends_s, since_s) : bisect.bisect_right(log.ends_s, until_s)]
    return ((b, b - a) for a, b in itertools.pairwise(ends))
