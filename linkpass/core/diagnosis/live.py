"""The localiser at work in one daemon: what this host's paths show goes in, names with reasons come out.

Loaded only where diagnosis is enabled. It runs when news is bad and while any of it stands; quiet time costs nothing,
and what was carried then is filled in at the next run. What it says moves no traffic by itself in this room: `blame`
moves it within a probe's interval, this room says a little later what it was.

Peers that have the same trouble help each other: what one is certain of it tells the others, who take it for a hint,
so weak that no word accuses an element without losses that a host has seen itself.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import msgspec
import numpy as np

from linkpass.core import events as ev
from linkpass.core.diagnosis import hearsay
from linkpass.core.diagnosis.accounts import MEMORY_S, Accounts, Entry, Key
from linkpass.core.diagnosis.asking import Asking
from linkpass.core.diagnosis.flow_rows import FlowRows
from linkpass.core.diagnosis.flow_ways import FlowWays
from linkpass.core.diagnosis.flow_words import FlowWords
from linkpass.core.diagnosis.ground import Ground
from linkpass.core.diagnosis.localise import Localiser, Window
from linkpass.core.diagnosis.naming import Naming, Peers
from linkpass.core.diagnosis.one_host import plainly
from linkpass.core.diagnosis.saying import NOTHING_RATIO
from linkpass.core.diagnosis.verdict import Verdict
from linkpass.core.world import Tray, World

PACE_S: Final = 0.1
"""Between two runs while something is wrong; more where there are more than PATHS paths."""
PATHS: Final = 1000
CALM_S: Final = 3.0
"""Without bad news and without a suspicion for this long, it rests."""
LONG_S: Final = 1e6
"""Longer than any memory."""


class Diagnosis:
    """`peers`: are told of what is named, seldom."""

    def __init__(self, world: World, tray: Tray, peers: Peers) -> None:
        self._world = world
        self.due_s: float | None = None
        self._accounts, self._ways, self._flow_rows = Accounts(world), FlowWays(world, tray), FlowRows()
        self._flow_words = FlowWords(world)
        self._ground = Ground(world, self._ways)
        self._naming, self._asking = Naming(world, tray, self._ground, peers), Asking(world, self._ground)
        self._tally: dict[Key, list[float]] = {}
        """Packets sent and lost by each path since news has been bad: the localiser's memory holds some from before."""
        self._ran_s = float("-inf")
        self._news_s = float("-inf")
        self._woke_s = float("-inf")
        """When, after a quiet time, news was bad again."""
        self._flows_anew = True
        """What flows have shown before is not evidence any more."""

    def hear(self, event: ev.Event, now_s: float) -> None:
        """Take what an event says of paths, after the rest of the core has taken it."""
        if isinstance(event, ev.PathWindow):
            if self._accounts.count(event, now_s):
                self._wake(now_s, now_s + PACE_S)
        elif isinstance(event, ev.FlowWindow):
            self._accounts.flows(event)
            self._flow_words.take(event, now_s)
            self._ways.told(event, now_s)
            # What is told before its way is known is what a flow was chosen for: it would count chance as a sign.
            known = (one for one in event.counts if self._ways.hops(event.peer, one.flow) is not None)
            self._flow_rows.take(event.peer, known, now_s)
        elif isinstance(event, ev.FlowsLosing):
            self._ways.losing(event, now_s)
        elif isinstance(event, ev.FlowsTraced):
            self._ways.traced(event, now_s)
        elif isinstance(event, ev.LabelsTraced):
            self._ways.labels_traced(event)
        elif isinstance(event, ev.PathEvidence):
            if self._accounts.evidence(event, now_s):
                # One interval more, and the evidence of other paths over the same element is there as well.
                self._wake(now_s, now_s + 2 * self._world.settings.probing.interval_s)
        elif isinstance(event, ev.PeerSilent | ev.PortEvent) or (
            isinstance(event, ev.UplinkState) and not event.usable
        ):
            self._wake(now_s, now_s + PACE_S)

    def clear(self, wanted: Collection[str] | None, now_s: float) -> int:
        """What goes by one of these names (None: everything) has been repaired: how many names that ends. What its
        paths lost before is no evidence any more."""
        over = self._naming.clear(wanted, now_s)
        keys = (key for one in over for key in self._ground.over(one))
        self._accounts.void(self._ground.keys if wanted is None else keys)
        self._flows_anew = True
        self._flow_words.rest()
        self._asking.rest()
        ended = {one.element for one in over}
        still = () if wanted is None else self._world.findings
        self._world.findings = tuple(one for one in still if one.element not in ended)
        return len(over)

    def _wake(self, now_s: float, at_s: float) -> None:
        if self.due_s is None:
            self._tally.clear()
            self._woke_s, self._flows_anew = now_s, True
        self._news_s = now_s
        self.due_s = at_s if self.due_s is None else min(self.due_s, at_s)

    def turn(self, now_s: float) -> bool:
        """Run if it is time: one window of what every path has carried since the last one, and what that says. Whether
        other paths are to be probed than before."""
        if self.due_s is None or now_s < self.due_s:
            return False
        localiser = self._ground.look(self._asking.hear(now_s))
        findings = self._window(localiser, now_s) if localiser is not None else ()
        self._world.findings, self._ran_s = findings, now_s
        self._naming.tell(findings, now_s)
        asks = self._asking.turn(findings, self._naming.named, now_s)
        if findings or self._naming.named or self._asking.asks or now_s - self._news_s < CALM_S:
            self.due_s = now_s + PACE_S * max(1.0, len(self._ground.keys) / PATHS)
            return asks
        self.due_s = None
        self._accounts.rest()
        self._flow_rows.rest()
        self._flow_words.rest()
        return self._asking.rest() or asks

    def _window(self, localiser: Localiser, now_s: float) -> tuple[Verdict, ...]:
        keys, elements = self._ground.keys, localiser.paths.elements
        sent, lost, queued = np.zeros((3, len(localiser.paths)))
        mute, anew = np.zeros((2, len(localiser.paths)), dtype=bool)
        probes = np.zeros((2, len(keys)))
        span_s = now_s - self._ran_s
        # Paths that lose are counted from their first loss on. What others carried before would acquit all that they
        # cross of a fault that is younger than that, and leave the blame to what only the counted ones cross.
        quiet_s = now_s - max(self._ran_s, self._woke_s - PACE_S)
        for place, key in enumerate(keys):
            peer, path = self._ground.path(key)
            if self._asking.silent(key):
                continue
            entry = self._accounts.settle(peer, path, now_s, span_s, quiet_s)
            sent[place], lost[place] = entry.sent, entry.lost
            mute[place], anew[place] = entry.mute, entry.anew
            queued[place] = float(path.evidence == "queueing" and not peer.host.slow)
            probes[:, place] = entry.probes
            self._count(key, entry, now_s)
        if self._ground.flows:
            flows = self._flow_rows.weigh(
                localiser.paths, self._ground.flows, probes, queued[: len(keys)], now_s, min(span_s, LONG_S)
            )
            sent[len(keys) :], lost[len(keys) :] = flows
            # A way is whole again when a probed path that goes the same way is.
            anew[len(keys) :] = [self._flows_anew or anew[same].any() for same in self._ground.alike]
            self._flows_anew = False
        hints = hearsay.hints(self._world, localiser.paths, now_s)
        hinted = {hint.element for hint in hints}
        said = localiser.window(Window(min(span_s, LONG_S), sent, lost, queued, hints, mute, anew))
        plain = (plainly(one, elements, self._ground.failing_peers(one), hinted) for one in said)
        return tuple(self._with_flows(self._of_late(one), now_s) for one in plain)

    def _with_flows(self, verdict: Verdict, now_s: float) -> Verdict:
        """Named, beside what all flows weigh."""
        if verdict.kind == "congestion" or not (said := self._flow_words.over(self._ground.over(verdict), now_s)):
            return verdict
        return msgspec.structs.replace(verdict, evidence=(*verdict.evidence, *said))

    def _count(self, key: Key, entry: Entry, now_s: float) -> None:
        """The health before the first bad news came is not what is asked for: no more than a window of it."""
        tally = self._tally.setdefault(key, [0.0, 0.0])
        if entry.anew:
            tally[:] = 0.0, 0.0
        span_s = min(max(now_s - self._ran_s, PACE_S), MEMORY_S)
        tally[0] += entry.sent if entry.lost else entry.sent * min(1.0, (now_s - self._news_s + PACE_S) / span_s)
        tally[1] += entry.lost

    def _of_late(self, verdict: Verdict) -> Verdict:
        """With the loss ratio since news has been bad, and for what size of packets."""
        if verdict.scope == "whole" and self._ground.only_large(verdict):
            return msgspec.structs.replace(verdict, scope="large")
        if verdict.scope != "whole" or verdict.kind == "congestion" or verdict.loss_ratio >= NOTHING_RATIO:
            return verdict
        counts = [self._tally[key] for key in self._ground.over(verdict)]
        sent, lost = sum(count[0] for count in counts), sum(count[1] for count in counts)
        return msgspec.structs.replace(verdict, loss_ratio=lost / sent) if sent else verdict
