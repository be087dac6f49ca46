"""A path in the books: what we sent over it and what became of that, and one of a peer's as we hear it.

Beside its ordinary probes a path that is probed fast has a `Twin`: probes as large as the uplink takes, with a path
number, sequences and a verdict of their own. To the peer that is one more path.
"""

from __future__ import annotations

import math
from typing import Final

from linkpass.core.detect import PathDetector, Verdict, WindowedMin
from linkpass.core.events import FAILING, Evidence, PathCount
from linkpass.core.settings import Detection
from linkpass.wire import probe
from linkpass.wire.frame import Template

FLOOR_S: Final = 30.0
SLACK_S: Final = 0.002
"""For what happens between a time stamp and the wire, at both ends."""
FIRST_RTT_S: Final = 0.010
"""Taken for the round trip of a path that has no measurement yet."""
HICCUP_S: Final = 0.02
"""A path that takes nothing for so long is no hiccup, however rarely it is probed."""
RING: Final = 512
_MASK: Final = RING - 1


class SentPath:
    """One of our paths to a peer."""

    __slots__ = (
        "_count", "_counted", "_sent_at", "acked", "detector", "index", "interval_s", "key", "label", "lost",
        "margin_s", "missing", "queueing_s", "rtt_floor", "rtt_s", "sent", "seq", "settled", "start", "step_lost",
        "step_queueing_s", "step_sent", "suspect_until_s", "template", "told", "told_wavers", "twin", "uplink",
        "waits", "watched", "window_lost", "window_sent",
    )  # fmt: skip
    large = False

    def __init__(
        self, uplink: str, label: int, index: int, seq: int, settings: Detection, now_s: float, *, telling: bool = False
    ) -> None:
        """`telling`: as `ProbeTarget.telling`."""
        self.uplink, self.label, self.index = uplink, label, index
        self.key = (uplink, label)
        self.interval_s = 1.0
        self.template: Template | None = None
        self.twin: Twin | None = None
        self.told: Evidence = "unknown"
        self.told_wavers = False
        """What the core was last told of it."""
        self.seq = self.start = self.acked = seq
        self._counted = False
        self._count = 0
        self._sent_at = [0.0] * RING
        self.detector = PathDetector(settings, now_s, at_once=telling)
        self.rtt_floor = WindowedMin(FLOOR_S)
        self.rtt_s = 0.0
        self.margin_s = FIRST_RTT_S + SLACK_S
        self.queueing_s = 0.0
        self.sent = self.settled = self.lost = self.missing = 0
        self.suspect_until_s = -math.inf
        self.waits = False
        """It is suspected only because something is overdue."""
        self.watched = False
        """Whether the windows' counts are kept."""
        self.window_sent = self.window_lost = 0
        self.step_sent = self.step_lost = 0
        self.step_queueing_s: float | None = None

    @property
    def beat_s(self) -> float:
        """The interval by which hiccups are told from runs of losses, if it is shorter than HICCUP_S."""
        return self.interval_s

    def opinion(self) -> Verdict:
        """Of the path as a whole: large packets that fail where small ones do not are a failure of it."""
        own, twin = self.detector.verdict, self.twin
        if own.evidence in FAILING or twin is None or twin.detector.verdict.evidence not in FAILING:
            return own
        verdict = twin.detector.verdict
        return Verdict(
            verdict.evidence, f"large packets ({twin.size_bytes} bytes), small ones get through: {verdict.why}"
        )

    @property
    def loss_ratio(self) -> float:
        """Of those probes that the opinion is about."""
        own, twin = self.detector, self.twin
        speaks = own if own.verdict.evidence in FAILING or twin is None else twin.detector
        if speaks.verdict.evidence == "blackhole":
            return 1.0
        return speaks.loss_ratio if speaks.verdict.evidence == "lossy" else own.loss_ratio

    def nothing_due(self, made_s: float) -> bool:
        """Whether a report made at that time had to tell nothing that it has not told before."""
        return self.seq == self.acked or self._sent_at[(self.acked + 1) & _MASK] > made_s - self.margin_s

    def record(self, now_s: float) -> None:
        """A probe has left with the next sequence number."""
        self.seq += 1
        self.sent += 1
        self._sent_at[self.seq & _MASK] = now_s

    def sent_at(self, sequence: int) -> float:
        """When it was sent; -inf when that is too long ago to know."""
        return self._sent_at[sequence & _MASK] if self.seq - sequence < RING and sequence > self.start else -math.inf

    def count_anew(self) -> None:
        """The peer counts from another start from now on (its daemon is new, or its buffer overflowed)."""
        self._counted = False
        self.acked = self.seq

    def take_quietly(
        self, entry: tuple[int, int, int, int, int, int], received_s: float, made_s: float, limit: int
    ) -> bool:
        """Settle an entry that says: all heard since the last one, none overdue, no queue above `limit` (10 us), on a
        path against which nothing weighs. False, and nothing is changed, when it says anything else."""
        _, _, queueing, last, count, dwell = entry
        acked = self.acked
        sent = last - acked
        if not sent and count == self._count and self._counted:
            return self.detector.calm and self.nothing_due(made_s)
        if (
            not self.detector.calm
            or self.waits
            or sent <= 0
            or sent != count - self._count
            or not self._counted
            or queueing > limit
            or last > self.seq
            or (last < self.seq and self._sent_at[(last + 1) & _MASK] <= made_s - self.margin_s)
        ):
            return False
        self.acked, self._count = last, count
        self.settled += sent
        self.detector.quiet(sent)
        if self.watched:
            self.window_sent += sent
        if not last & 7:  # a sample is enough for what changes so slowly
            self._measure(last, queueing * 1e-5, dwell * 1e-6, received_s)
        return True

    def _measure(self, last: int, queueing_s: float, dwell_s: float, received_s: float) -> None:
        """`queueing_s`: by the peer's clock against ours, whose rates differ, and one of which may be slewed: that
        looks like a queue on all of its paths. A queue on the way there is in the round trip, too, by one clock."""
        rtt_s = received_s - self.sent_at(last) - dwell_s
        if 0 <= rtt_s < 10:
            self.rtt_s = rtt_s
            floor_s = self.rtt_floor.add(received_s, rtt_s)
            queueing_s = min(queueing_s, rtt_s - floor_s)
            # One long delay is a pause of some host, and no reason to wait for probes of a path that has died since.
            self.margin_s = floor_s + SLACK_S + 1.5 * min(queueing_s, self.queueing_s)
        self.queueing_s = queueing_s

    def take(self, last: int, count: int, queueing_s: float, dwell_s: float, received_s: float) -> int:
        """A report entry. Sets the step_* differences to the report before; returns how many came late after all."""
        late = 0
        if not self.acked < last <= self.seq:
            if last == self.acked and self._counted and count > self._count:
                late = count - self._count  # out of order on the way: counted as lost before
                self._count = count
                self.lost = max(0, self.lost - late)
            return late
        if self._counted:
            sent, heard = last - self.acked, count - self._count
            self.step_sent = sent
            if sent > heard:
                self.step_lost = sent - heard
                self.lost += self.step_lost
            elif sent < heard:
                late = heard - sent
                self.lost = max(0, self.lost - late)
        else:
            self._counted = True
            self.step_sent = 1
        self.acked, self._count = last, count
        self.settled += self.step_sent
        self._measure(last, queueing_s, dwell_s, received_s)
        self.step_queueing_s = self.queueing_s
        return late

    def overdue(self, made_s: float, witness_s: float, limit: int) -> int:
        """How many probes after the last one heard are overdue in a report made at `made_s`, counted up to `limit`.

        `witness_s`: send time of the newest probe that the peer heard over any path. A probe counts when one sent no
        earlier was heard elsewhere: then neither the peer nor the way back is to blame. Without such a witness (every
        path of ours is mute, yet reports come) it takes twice as many and five intervals. A large probe counts when a
        small one that left after it was heard over the same path: else both may wait in a queue. The last of the run
        must be an interval younger than the first, or HICCUP_S: extra probes make a run of losses known faster, not one
        hiccup longer.
        """
        horizon_s = made_s - self.margin_s
        first = self.acked + 1
        if self.seq - first >= RING - 1:  # the rest of the ring is overdue in any case, or nothing is heard at all
            first = self.seq - RING + 2
        if first > self.seq or self._sent_at[first & _MASK] > horizon_s:
            return 0
        begun_s = self._sent_at[first & _MASK]
        witnessed = 0
        spans = False
        for seen, sequence in enumerate(range(first, self.seq + 1), 1):
            at_s = self._sent_at[sequence & _MASK]
            if at_s > horizon_s:
                break
            if at_s <= witness_s:
                witnessed += 1
                spans = at_s - begun_s >= 0.9 * min(self.beat_s, HICCUP_S)
            alone = not self.large and seen >= 2 * limit and at_s - begun_s >= 4.5 * self.beat_s
            if alone or (spans and witnessed >= limit):
                return limit
        return min(witnessed, limit - 1)

    def restart(self) -> None:
        """Sequences begin anew, under another boot id of ours."""
        self.seq = self.start = self.acked = 0
        self._counted = False

    def take_window(self) -> PathCount:
        counts = PathCount(self.uplink, self.label, self.window_sent, self.window_lost)
        self.window_sent = self.window_lost = 0
        return counts


class Twin(SentPath):
    """The large probes of a path, beside the small ones.

    They are judged by runs alone: so few of them would need minutes to take back what a ratio of losses has said."""

    __slots__ = ("blind_until_s", "size_bytes", "small")
    large = True

    def __init__(self, small: SentPath, index: int, seq: int, settings: Detection, now_s: float) -> None:
        super().__init__(small.uplink, small.label, index, seq, settings, now_s)
        self.small = small
        self.detector = PathDetector(settings, now_s, ratios=False)
        self.blind_until_s = -math.inf
        """The small ones do not get through either, or did not a moment ago: no large one says anything."""
        self.size_bytes = 0
        """Of the latest one, as IP packet."""

    @property
    def beat_s(self) -> float:
        """They are rare, so that three of their own intervals would be long; hiccups last no longer for being rare."""
        return self.small.interval_s


class HeardPath:
    """One of a peer's paths to us. `large`: its probes are, and are rare; `tell`: in so many reports more."""

    __slots__ = (
        "_before", "_before_that", "_floor", "batch_ns", "count", "large", "last_s", "queueing_s", "tell", "window",
    )  # fmt: skip

    def __init__(self) -> None:
        self.window = probe.ReplayWindow()
        self.large = False
        self.tell = 0
        self.count = 0
        self.last_s = -math.inf
        self.batch_ns = -1
        """When its newest probe left, by the peer's clock: one stamp for all of a batch."""
        self.queueing_s = 0.0
        self._floor = WindowedMin(FLOOR_S)
        self._before = self._before_that = -math.inf
        """The two delays before the latest."""

    def hear(self, received_s: float, delay_s: float) -> None:
        """A probe that is the newest of its path; `delay_s`: receive time by our clock minus send time by theirs."""
        self.count += 1
        self.last_s = received_s
        floor = self._floor
        # The greatest of three: one that seems too short (a clock that stepped) would be the floor for half a minute.
        long_s = max(delay_s, self._before, self._before_that)
        self._before, self._before_that = delay_s, self._before
        if long_s < floor.value or not self.count & 7:  # a sample is enough to know the floor of a span
            floor.add(received_s, long_s)
        self.queueing_s = delay_s - floor.value
