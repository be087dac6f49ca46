"""What each path has carried and lost since the last window, from evidence that comes only when something changes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from linkpass.core.diagnosis.flow_rows import FLOW_WEIGHT
from linkpass.core.events import FAILING, FlowWindow, PathEvidence, PathWindow
from linkpass.core.extra import SLOWER
from linkpass.core.health import QUIET_S
from linkpass.core.survey import probing_interval_s

if TYPE_CHECKING:
    from linkpass.core.paths import Path, Peer
    from linkpass.core.world import World

MEMORY_S: Final = 10.0
"""No path is told to have carried, or lost, for more than this long at once."""

Key = tuple[str, str, int]
"""(peer, uplink, label) of a path."""


@dataclass(slots=True)
class Entry:
    """Of one path: packets since the last window, and of those `probes` and how many of them were lost. `mute`: it
    cannot speak of this moment. `anew`: what it carried before is void."""

    sent: float = 0.0
    lost: float = 0.0
    mute: bool = False
    anew: bool = False
    probes: tuple[float, float] = (0.0, 0.0)


class Accounts:
    """Counts come in windows while a peer's paths lose, silence as evidence; health is what is not told."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._counts: dict[Key, list[float]] = {}
        self._window_s: dict[str, float] = {}
        self._flows: dict[Key, tuple[int, int]] = {}
        """Segments that flows sent, and sent again, not weighed yet."""
        self._probed: dict[Key, list[float]] = {}
        """Probes sent and lost that flows have not been weighed against yet."""
        self._failed: dict[Key, float] = {}
        """Paths that let nothing through -> until when their losses are counted."""
        self._better: set[Key] = set()
        self._failed_at_s = float("-inf")
        """When a path has last become a blackhole."""

    def count(self, event: PathWindow, now_s: float) -> bool:
        """Take a window; whether something was lost."""
        self._window_s[event.peer] = now_s
        lost = 0
        for one in event.counts:
            counts = self._counts.setdefault((event.peer, one.uplink, one.label), [0.0, 0.0])
            counts[0] += one.sent
            counts[1] += one.lost
            lost += one.lost
        return lost > 0

    def flows(self, event: FlowWindow) -> None:
        """Take what flows under probed labels have sent again; it is no bad news by itself. Of others: `flow_rows`."""
        peer = self._world.table.peers.get(event.peer)
        told: dict[Key, tuple[int, int]] = {}
        for one in event.counts:
            flow = one.flow
            if peer is not None and peer.leads(flow.uplink, flow.label):
                sent, again = told.get((event.peer, flow.uplink, flow.label), (0, 0))
                told[event.peer, flow.uplink, flow.label] = sent + one.sent, again + one.again
        self._flows.update(told)

    def evidence(self, event: PathEvidence, now_s: float) -> bool:
        """Take the opinion of one path; whether it is bad news."""
        key = event.peer, event.uplink, event.label
        if event.evidence == "blackhole":
            if key not in self._failed:
                interval_s = self._world.settings.probing.interval_s
                if key in self._world.extra:
                    interval_s *= SLOWER * self._world.stretch
                self._failed[key] = now_s - self._world.settings.detection.blackhole_losses * interval_s
                self._failed_at_s = now_s
            self._better.discard(key)
            return True
        if self._failed.pop(key, None) is not None or event.evidence == "good":
            self._better.add(key)
        return event.evidence in (*FAILING, "queueing")

    def settle(self, peer: Peer, path: Path, now_s: float, span_s: float, quiet_s: float | None = None) -> Entry:
        """The entry of a path for a window of `span_s` that ends now. `quiet_s`: of which what nobody tells of is held
        to be health; all of it if None."""
        key, interval_s = (peer.address, *path.key), probing_interval_s(self._world, peer)
        began_s = self._world.extra.get(key)
        if began_s is not None:
            interval_s *= SLOWER
        span_s = min(span_s, MEMORY_S)
        counts = self._counts.pop(key, None)
        entry = Entry(anew=key in self._better)
        self._better.discard(key)
        uplink = self._world.uplinks.get(path.uplink)
        if peer.filtered or path.evidence == "unknown" or uplink is None or not uplink.usable:
            entry.mute = True
        elif peer.silent_since_s is not None:
            entry.mute = peer.left or peer.outlived or peer.data_flows is True
            if not entry.mute:
                entry.sent = entry.lost = min(span_s, now_s - peer.silent_since_s) / interval_s
        elif path.evidence == "blackhole":
            since_s = self._failed.get(key, now_s - span_s)
            entry.sent = entry.lost = min(MEMORY_S, max(0.0, now_s - since_s)) / interval_s
            self._failed[key] = now_s
        elif counts is not None:
            entry.sent, entry.lost = counts[0], min(counts[1], counts[0])
        elif now_s - self._window_s.get(peer.address, float("-inf")) >= QUIET_S:
            healthy_s = span_s if quiet_s is None else min(span_s, quiet_s)
            entry.sent = max(0.0, min(healthy_s, now_s - max(path.element.since_s, began_s or 0.0))) / interval_s
        entry.probes = entry.sent, entry.lost
        self._weigh_flows(key, entry, may=not entry.mute and path.evidence in ("good", "lossy"))
        if not entry.lost and not peer.active:
            # It has not noticed yet what fast ones have: its health is of the past.
            entry.mute = entry.mute or now_s - self._failed_at_s < self._world.slow_s
        if entry.mute:
            entry.probes = 0.0, 0.0
        return entry

    def _weigh_flows(self, key: Key, entry: Entry, *, may: bool) -> None:
        """Add what flows say of a path, as far as its probes say something alike: no more packets than its probes since
        the last time, no more losses than theirs. So flows make certain sooner what probes show, for and against;
        of losses that no probe has seen they are no evidence, nor of health then. `may`: the path's evidence counts,
        and no queue stands on it, in which flows lose by themselves."""
        probed = self._probed.setdefault(key, [0.0, 0.0])
        if entry.anew or not may:
            probed[:] = 0.0, 0.0
            self._flows.pop(key, None)
            return
        probed[0] += entry.sent
        probed[1] += entry.lost
        sent, again = self._flows.pop(key, (0, 0))
        if not sent or not probed[0]:
            return
        weight = min(FLOW_WEIGHT, probed[0] / sent, probed[1] / again if again else 1.0)
        entry.sent += weight * sent
        entry.lost += weight * again
        probed[:] = 0.0, 0.0

    def void(self, keys: Iterable[Key]) -> None:
        """Forget what these have lost until now."""
        for key in keys:
            self._counts.pop(key, None)
            self._better.add(key)

    def rest(self) -> None:
        """Nothing is wrong any more."""
        for book in (self._counts, self._failed, self._better, self._flows, self._probed):
            book.clear()
