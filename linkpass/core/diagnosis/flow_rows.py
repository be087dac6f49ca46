"""What flows weigh in a window that are not probed themselves, and whose ways were traced.

The rules are those of flows under probed labels (`accounts`), for probes that go another way in part. Over no direction
do flows weigh more than the probes that crossed it since the last time. Their losses weigh no more than those of the
probes whose ways have most in common with theirs, most often all; of all flows of which probes lose most over the same
direction, no more than these; and of all, no more than all probes'. Where such probes have lost nothing, flows that
have lost say nothing at all; and nothing over a direction on which a queue stands.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from linkpass.core.diagnosis.elements import Ints
from linkpass.core.diagnosis.flow_ways import FlowKey
from linkpass.core.diagnosis.memory import LEAST_LOST
from linkpass.core.diagnosis.paths import Floats, Paths
from linkpass.core.events import FlowCount

FLOW_WEIGHT: Final = 0.25
"""Of a segment that a flow has sent or sent again, beside a probe. 007 (Arzani et al., NSDI 2018) takes each
retransmission for a loss on the flow's path. It may be one, or a segment that was late, an answer that was lost, a
receiver that had no room; and losses of one flow come in bursts, which the model takes for so many independent ones."""
PROBES_S: Final = 1.0
"""Half-life of what probes have carried and no flow was weighed against."""
STALE_S: Final = 3.0
"""What flows told before that is not of now."""


class FlowRows:
    """Rows of the localiser: first those of probed paths, `weigh` fills in those of flows after them."""

    def __init__(self) -> None:
        self._counts: dict[FlowKey, tuple[int, int, float]] = {}
        """Segments sent, sent again, and when that was told."""
        self._probed: Floats = np.zeros((2, 0))
        """Probes sent and lost by each probed path, not weighed against yet."""
        self._of: Paths | None = None

    def take(self, peer: str, counts: Iterable[FlowCount], now_s: float) -> None:
        """What flows to a peer have sent, whose ways are known."""
        self._counts = {key: counts for key, counts in self._counts.items() if now_s < counts[2] + STALE_S}
        for one in counts:
            self._counts[peer, one.flow] = one.sent, one.again, now_s

    def rest(self) -> None:
        """Nothing is wrong any more."""
        self._counts.clear()
        self._of = None

    def weigh(
        self,
        paths: Paths,
        flows: Sequence[Sequence[FlowKey]],
        probed: Floats,
        queued: Floats,
        now_s: float,
        span_s: float,
    ) -> Floats:
        """Packets sent and lost, two rows, on each way of `flows`. `probed`: the same of the probed paths in this
        window of `span_s`; `queued`: on which of them a queue stands."""
        first = probed.shape[1]
        if paths is not self._of:
            self._of, self._probed = paths, np.zeros((2, first))
        self._probed = self._probed * 0.5 ** (span_s / PROBES_S) + probed
        counts = np.zeros((2, len(flows)))
        for place, some in enumerate(flows):
            for key in some:
                sent, again, at_s = self._counts.pop(key, (0, 0, now_s))
                if now_s < at_s + STALE_S:
                    counts[:, place] += sent, again
        if not counts.any():
            return counts
        rows = np.arange(first, len(paths))
        weights = _weights(paths, rows, counts, self._probed, queued)
        counts *= np.minimum(weights, _near(paths, rows, counts[1], self._probed[1]))
        counts *= min(1.0, self._probed[1].sum() / lost) if (lost := counts[1].sum()) else 1.0
        counts[:, (counts[1] > 0) & (counts[1] < LEAST_LOST)] = 0.0  # what was sent alone would acquit
        self._probed[:] = 0.0
        return counts


def _weights(paths: Paths, rows: Ints, counts: Floats, probed: Floats, queued: Floats) -> Floats:
    """Of a segment on each way, beside a probe. `rows`: those of the flows."""
    first, directions = probed.shape[1], paths.elements.directions
    probes = np.arange(first)

    def over(values: Floats, some: Ints) -> Floats:
        return paths.sums(values, some)[:directions]

    (sent, lost), (flows_sent, flows_lost) = ([over(one, some) for one in both] for both, some in (
        (probed, probes), (counts, rows),
    ))  # fmt: skip
    most = np.divide(sent, flows_sent, out=np.full(directions, np.inf), where=(flows_sent > 0) & (sent > 0))
    worst = np.divide(lost, flows_lost, out=np.zeros(directions), where=flows_lost > 0)
    queues = over(queued, probes)
    busy = (queues > 0) & (2 * queues >= over(np.ones(first), probes))
    way = np.minimum(paths.ways(rows), directions)  # one behind the last stands for none
    weight = np.minimum(FLOW_WEIGHT, np.append(most, np.inf)[way].min(axis=1))
    weight = np.where(counts[1] > 0, np.minimum(weight, np.append(worst, 0.0)[way].max(axis=1)), weight)
    silent = ~np.append(sent > 0, False)[way].any(axis=1) | np.append(busy, False)[way].any(axis=1)
    return np.where(silent, 0.0, weight).astype(np.float64)


def _near(paths: Paths, rows: Ints, again: Floats, lost: Floats) -> Floats:
    """What the losses on each way may weigh at most, by those of the probes that are nearest to it."""
    most = np.full(len(rows), np.inf)
    probes, flows = paths.ways(np.arange(len(lost))), paths.ways(rows)
    alike: dict[bytes, list[int]] = {}
    for place in np.flatnonzero(again):
        mine = np.zeros(paths.elements.keys + 1, dtype=bool)
        mine[flows[place]] = True
        mine[-1] = False
        shared = mine[probes].sum(axis=1)
        alike.setdefault((shared == shared.max()).tobytes(), []).append(int(place))
    for nearest, places in alike.items():
        most[places] = lost[np.frombuffer(nearest, dtype=bool)].sum() / again[places].sum()
    return most
