"""Many flows that meet the same thing: the first are named, the others counted, so that one incident of a thousand
flows does not push all earlier stories out of the journal's memory.

What belongs together has the same cause and the same thing said of it. The count is told when it has not grown for
a moment, and at the latest a while after the first; what goes on for long is told with growing pauses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from linkpass.core.commands import Rung

if TYPE_CHECKING:
    from linkpass.core.world import Tray, World

NAMED_OF_PEER: Final = 5
NAMED: Final = 50
"""Over all peers."""
LINES: Final = 10
"""Peers that get a line of their own when a count is told."""
QUIET_S: Final = 1.0
LATEST_S: Final = 10.0
PAUSE_MAX_S: Final = 600.0
"""The pause between two counts of one crowd begins with QUIET_S and doubles up to this."""
MOST: Final = 256
"""Crowds that are remembered."""

Level = Literal["info", "warning"]


@dataclass(slots=True)
class Crowd:
    named: Counter[str] = field(default_factory=Counter)
    """Peer -> flows that were named."""
    more: Counter[str] = field(default_factory=Counter)
    """Peer -> flows that were counted and not told of yet."""
    why: str = ""
    level: Level = "info"
    rung: Rung = 0
    since_s: float = 0.0
    """When the first of `more` came, and the last one."""
    last_s: float = 0.0
    not_before_s: float = float("-inf")
    pause_s: float = QUIET_S

    @property
    def due_s(self) -> float | None:
        if not self.more:
            return None
        return max(min(self.last_s + QUIET_S, self.since_s + LATEST_S), self.not_before_s)


def tell(
    world: World, tray: Tray, now_s: float, *, cause: str, peer: str, all_of_them: str, what: str, why: str,
    rung: Rung = 0, level: Level = "info",
) -> None:  # fmt: skip
    """Say `what` of one flow to `peer` (its title), or count it. `all_of_them`: what is said of several (`go on`)."""
    crowd = world.crowds.get((cause, all_of_them))
    if crowd is None:
        if len(world.crowds) >= MOST:
            oldest = next(iter(world.crowds))
            _count(tray, *oldest, world.crowds.pop(oldest), now_s)
        crowd = world.crowds[cause, all_of_them] = Crowd(level=level, rung=rung)
    if crowd.named[peer] < NAMED_OF_PEER and crowd.named.total() < NAMED:
        crowd.named[peer] += 1
        tray.record(cause, what, why, rung=rung, element=peer, level=level)
        return
    if not crowd.more:
        crowd.since_s = now_s
    crowd.more[peer] += 1
    crowd.last_s, crowd.why = now_s, why


def deadlines(world: World) -> Iterator[float]:
    for crowd in world.crowds.values():
        if (due_s := crowd.due_s) is not None:
            yield due_s


def tick(world: World, tray: Tray, now_s: float) -> None:
    for (cause, all_of_them), crowd in world.crowds.items():
        if (due_s := crowd.due_s) is not None and due_s <= now_s:
            _count(tray, cause, all_of_them, crowd, now_s)


def _count(tray: Tray, cause: str, all_of_them: str, crowd: Crowd, now_s: float) -> None:
    told = crowd.more.most_common(LINES)
    for peer, count in told:
        what = f"{count} more RDMA flow(s) to {peer} {all_of_them}"
        tray.record(cause, what, f"the last one: {crowd.why}", rung=crowd.rung, element=peer, level=crowd.level)
    others = len(crowd.more) - len(told)
    if others:
        count = crowd.more.total() - sum(of_peer for _, of_peer in told)
        what = f"{count} more RDMA flow(s) to {others} other peer(s) {all_of_them}"
        tray.record(cause, what, f"the last one: {crowd.why}", rung=crowd.rung, level=crowd.level)
    crowd.more.clear()
    crowd.not_before_s = now_s + crowd.pause_s
    crowd.pause_s = min(2 * crowd.pause_s, PAUSE_MAX_S)
