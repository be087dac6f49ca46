"""Which RDMA flows have sent something again over what is named: for people, beside what it weighs (`accounts`)."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from linkpass.core.diagnosis.accounts import Key
from linkpass.core.events import FlowWindow

if TYPE_CHECKING:
    from linkpass.core.world import World

KEPT_S: Final = 10.0
MOST_KEPT: Final = 1024
MOST_SAID: Final = 2


class FlowWords:
    """Of flows under probed labels: of others no path is known."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._told: deque[tuple[float, Key, str, int, bool]] = deque(maxlen=MOST_KEPT)
        """When, path, flow, how often it went back, whether that is the least."""

    def take(self, event: FlowWindow, now_s: float) -> None:
        peer = self._world.table.peers.get(event.peer)
        for one in event.counts if peer is not None else ():
            at = one.flow
            if one.name and one.again and peer is not None and peer.leads(at.uplink, at.label):
                self._told.append((now_s, (event.peer, at.uplink, at.label), one.name, one.again, one.least))

    def over(self, keys: Collection[Key], now_s: float) -> tuple[str, ...]:
        """A sentence for each of the flows that sent most again on these paths, and how many others did."""
        sums: dict[str, tuple[int, bool]] = {}
        for at_s, key, name, again, least in self._told:
            if key in keys and now_s < at_s + KEPT_S:
                before = sums.get(name, (0, False))
                sums[name] = before[0] + again, before[1] or least
        most = sorted(sums.items(), key=lambda item: (-item[1][0], item[0]))
        said = [f"flow {name} sent again {_times(*sums[name])}" for name, _ in most[:MOST_SAID]]
        if len(most) > MOST_SAID:
            said.append(f"{len(most) - MOST_SAID} more RDMA flows over it sent again")
        return tuple(said)

    def rest(self) -> None:
        self._told.clear()


def _times(again: int, least: bool) -> str:  # noqa: FBT001 - as it is kept
    return ("once" if again == 1 else f"{again} times") + (" or more" if least else "")
