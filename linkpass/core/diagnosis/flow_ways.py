"""The ways of the job's flows that no probed label leads: asked of the fabric for those that send something again.

007 (Arzani et al., NSDI 2018) traces a flow when it sends again, by packets that the fabric hashes as the flow's own,
and no more of them than nodes will answer. What a flow was chosen for does not count, only what it sends again in
later windows: what comes by chance does not come again because the flow was chosen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from linkpass.core.commands import TraceFlows
from linkpass.core.events import FlowAt, FlowsLosing, FlowsTraced, FlowWindow, LabelsTraced

if TYPE_CHECKING:
    from linkpass.core.paths import Hops, Peer
    from linkpass.core.world import Tray, World

WINDOW_S: Final = 1.0
AGAIN_S: Final = 3.0
"""What was asked is not asked again for so long, answered or not."""
KEPT_S: Final = 30.0
"""A flow of which nothing is told for so long has ended, has moved, or loses nothing."""
MOST_KEPT: Final = 256

FlowKey = tuple[str, FlowAt]
"""(peer, flow)."""


@dataclass(slots=True)
class _Way:
    asked_at_s: float
    told_at_s: float
    traced_at_s: float = float("-inf")
    hops: Hops | None = None


class FlowWays:
    """A flow under another label, or over another uplink, is another one."""

    def __init__(self, world: World, tray: Tray) -> None:
        self._world, self._tray = world, tray
        self._ways: dict[FlowKey, _Way] = {}
        self._labels: dict[tuple[str, str], dict[int, Hops]] = {}
        """(peer, uplink) -> the ways that labels lead: when one leads another way, flows may go other ways, too."""
        self._window_s = float("-inf")
        self._left: dict[str, int] = {}
        """How many flows may still be traced in this window, by uplink."""

    def known(self) -> Iterator[tuple[FlowKey, Hops]]:
        """The flows whose way is known."""
        for (address, flow), way in self._ways.items():
            peer = self._world.table.peers[address]
            if way.hops is not None and flow != self.probe(flow.uplink) and not peer.leads(flow.uplink, flow.label):
                yield (address, flow), way.hops

    def hops(self, peer: str, flow: FlowAt) -> Hops | None:
        way = self._ways.get((peer, flow))
        return way.hops if way is not None else None

    def probe(self, uplink: str) -> FlowAt:
        """The probes of an IPv4 path outside of tunnels, which has no label: they are traced as a flow is."""
        port = self._world.settings.probing.port
        return FlowAt(uplink, 0, port, port)

    def losing(self, event: FlowsLosing, now_s: float) -> None:
        """Ask for the ways of flows that are not known, or were asked for long ago."""
        peer = self._world.table.peers.get(event.peer)
        if peer is None or not peer.probed_from(self._world.settings.address):
            return
        self._forget(now_s)
        usable = self._world.usable_uplinks()
        flows = [one for one in event.flows if one.uplink in usable and not peer.leads(one.uplink, one.label)]
        wanted = [(event.peer, flow) for flow in flows]
        if flows and not peer.hashed:
            wanted = [*self._probes([peer], usable, now_s), *wanted, *self._probes(self._others(peer), usable, now_s)]
        chosen: dict[tuple[str, str], list[FlowAt]] = {}
        for key in wanted:
            if self._due(key, now_s) and self._take(key[1].uplink, now_s):
                way = self._ways.setdefault(key, _Way(now_s, now_s))
                way.asked_at_s = way.told_at_s = now_s
                chosen.setdefault((key[0], key[1].uplink), []).append(key[1])
        for (address, uplink), some in chosen.items():
            self._tray.put(
                TraceFlows(cmd_id=self._tray.take_id(), cause="", peer=address, uplink=uplink, flows=tuple(some))
            )

    def traced(self, event: FlowsTraced, now_s: float) -> None:
        for flow, hops in event.hops:
            way = self._ways.get((event.peer, flow))
            if way is not None:
                way.hops, way.traced_at_s = hops, now_s

    def labels_traced(self, event: LabelsTraced) -> None:
        """The fabric's ways to a peer have been looked at. A missing answer says of no way that it has changed."""
        found = {label: hops for label, hops in event.hops.items() if None not in hops}
        known = self._labels.setdefault((event.peer, event.uplink), {})
        changed = any(known.get(label, hops) != hops for label, hops in found.items())
        known.update(found)
        if changed:
            for key in [key for key in self._ways if (key[0], key[1].uplink) == (event.peer, event.uplink)]:
                del self._ways[key]

    def told(self, event: FlowWindow, now_s: float) -> None:
        """These flows go on where they were."""
        for one in event.counts:
            way = self._ways.get((event.peer, one.flow))
            if way is not None:
                way.told_at_s = now_s

    def _probes(self, peers: Iterable[Peer], usable: Iterable[str], now_s: float) -> list[FlowKey]:
        """Those of IPv4 peers, whose ways are wanted where a flow's is: it is weighed against them."""
        found = [(peer.address, self.probe(uplink)) for peer in peers for uplink in usable]
        for key in found:
            if key in self._ways:
                self._ways[key].told_at_s = now_s
        return found

    def _others(self, peer: Peer) -> list[Peer]:
        peers = self._world.table.peers.values()
        return [one for one in peers if one.active and not one.hashed and one is not peer]

    def _due(self, key: FlowKey, now_s: float) -> bool:
        way = self._ways.get(key)
        if way is None:
            return len(self._ways) < MOST_KEPT
        return now_s >= way.asked_at_s + AGAIN_S and now_s >= way.traced_at_s + self._world.settings.limits.retrace_s

    def _take(self, uplink: str, now_s: float) -> bool:
        if now_s >= self._window_s + WINDOW_S:
            self._window_s = now_s
            self._left.clear()
        left = self._left.get(uplink, self._world.settings.diagnosis.trace_flows)
        self._left[uplink] = max(0, left - 1)
        return left > 0

    def _forget(self, now_s: float) -> None:
        for key in [key for key, way in self._ways.items() if now_s >= way.told_at_s + KEPT_S]:
            del self._ways[key]
