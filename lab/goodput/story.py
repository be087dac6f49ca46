"""What the ranks' logs of one run tell: when each step was there, what was done twice, what an event cost."""

from __future__ import annotations

import itertools
import json
import statistics
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BEGINS_S = 8.0


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one event. `pause_s`: longer than a usual step it took until there was a new one; `recover_s`: from the event
    to the end of the first new step; `steps_lost`: applied steps that were done again, or were not whole."""

    pause_s: float
    recover_s: float
    steps_lost: int


@dataclass(slots=True)
class Story:
    """`whole`: (when, step): all ranks had applied it, for the first time."""

    world: int
    whole: list[tuple[float, int]] = field(default_factory=list)
    again_s: list[float] = field(default_factory=list)
    """When a rank applied a step that it, or another holder of the rank, had applied before."""
    short_s: list[float] = field(default_factory=list)
    """When a step was discarded or done without all ranks (torchft)."""
    hashes: dict[int, str] = field(default_factory=dict)
    saved_s: list[float] = field(default_factory=list)

    @property
    def began_s(self) -> float:
        return self.whole[0][0]

    @property
    def took_s(self) -> float:
        """From the end of the first step to that of the last."""
        return self.whole[-1][0] - self.began_s

    @property
    def step_s(self) -> float:
        """The usual one."""
        return statistics.median(b - a for a, b in itertools.pairwise(at_s for at_s, _ in self.whole))

    @property
    def steps_lost(self) -> int:
        """By the rank that had to repeat most; a step that was short is short for all."""
        return round(len(self.again_s) / self.world) + len(self.short_s)

    def cost(self, event_s: float, until_s: float) -> Cost:
        """`event_s`: monotonic; `until_s`: of the next event. What an event does it has begun within `BEGINS_S`."""
        times = [at_s for at_s, _ in self.whole]
        gaps = [
            (b - a, b)
            for a, b in itertools.pairwise(times)
            if b > event_s and a < event_s + BEGINS_S and (b <= until_s or a <= event_s)
        ]
        if not gaps:
            return Cost(0.0, 0.0, 0)
        gap_s, end_s = max(gaps)
        lost = sum(event_s < at_s <= until_s for at_s in self.again_s)
        short = sum(event_s < at_s <= until_s for at_s in self.short_s)
        return Cost(max(0.0, gap_s - self.step_s), end_s - event_s, round(lost / self.world) + short)


class Reader:
    """Follows the logs of all processes of a run."""

    def __init__(self, folder: Path, world: int) -> None:
        self.story = Story(world)
        self._folder = folder
        self._read: dict[Path, int] = {}
        self._applied: dict[int, set[int]] = defaultdict(set)
        self._short: dict[int, float] = {}

    def update(self) -> Story:
        """With what was written since the last time."""
        for line in sorted(self._new(), key=lambda line: line.get("at_s", 0.0)):
            self._take(line)
        return self.story

    def _take(self, line: dict[str, Any]) -> None:
        story = self.story
        if "done" in line:
            story.hashes[line["rank"]] = line["sha256"]
        elif "saved_s" in line:
            story.saved_s.append(line["saved_s"])
        elif "short" in line:
            self._short[line["short"]] = line["at_s"]
            story.short_s = sorted(self._short.values())
        elif line["rank"] in self._applied[line["step"]]:
            story.again_s.append(line["at_s"])
        else:
            self._applied[line["step"]].add(line["rank"])
            if len(self._applied[line["step"]]) == story.world:
                story.whole.append((line["at_s"], line["step"]))

    def _new(self) -> Iterator[dict[str, Any]]:
        for path in self._folder.glob("*.jsonl"):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                data = file.read()
            whole, _, _ = data.rpartition(b"\n")
            if whole:
                self._read[path] = self._read.get(path, 0) + len(whole) + 1
                yield from map(json.loads, whole.splitlines())
