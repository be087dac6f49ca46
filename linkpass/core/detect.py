"""What probes prove about one direction of one path. Pure: counts in, evidence out.

Blackhole: a run of consecutive losses. With independent base loss p a run of k begins at a given probe with
probability p**k: k = 3, p = 0.001 and 1,800 probes/s on a host give one false run in 6.4 days, p = 0.0001 one in 17
years. Detection is certain, after k intervals. A run ends after k probes heard in a row, none lost between.

Loss ratio: Page's test (E. S. Page, Continuous inspection schemes, Biometrika 41, 1954), which is Wald's sequential
probability ratio test restarted whenever it accepts "healthy" (A. Wald, Sequential Analysis, 1947). Every lost probe
adds ln(bad/ok) to the score, every one heard adds ln((1-bad)/(1-ok)) < 0; the score never falls below zero and alarms
at h. By Wald's bound a restart ends in a false alarm with probability at most e**-h (h = 12: 6 in a million) at a true
loss of `ok`; nearly all restarts end at their first probe, and what was counted is one alarm in 16 million probes at
`ok` (0.1 %), one in 450 million at half of it. Delay at a true loss q is about h / (q ln(bad/ok) + (1-q)
ln((1-bad)/(1-ok))): with the defaults 161 probes at 3 %, 85 at 5 %, 18 at 20 %. The alarm is lifted by the same test
with the hypotheses exchanged: about 400 probes at `ok`, with the same bound on lifting it falsely. Losses inside a run
are the run's: they are not counted.

Queueing: delay above a floor (the smallest of a long span; it forgets, since clocks drift and paths change: a queue
that stands longer than two spans becomes the floor). A window is late when most of its delays exceed the limit, and a
queue stands once late windows outnumber the others by `queueing_windows` (the sum never falls below zero: Page's test
again), until the others have caught up. CoDel asks for the *smallest* delay of a window (RFC 8289, section 3.1), which
finds nothing here: a job in lock-step drains its own queue at every pause between two steps and waits for it all the
same.

Late or lost: three probes in a row that are overdue may wait in a queue that was not there a moment ago. A run is
acted on at once all the same; when most of its probes arrive after all it was a queue, and that is what is said then.
Most of all since it began: after an outage the first ones that get through are late, too.

Losses beside delays: a full queue drops packets, and that is no failure. Probes lost while most of the latest ones were
late are set aside, and so are gaps, unless nothing at all has got through for FULL_S (the Spike scheme: Cen, Cosman,
Voelker, End-to-end differentiation of congestion and wireless losses, ToN 2003, section III). Senders give way to a
full queue within some round trips: where LOST_MOST_RATIO and more is lost for over a second it is not the queue that
loses it, and nothing is set aside any more. Else a link that fails would be safe for as long as its packets come late,
for whatever reason they do.

Nothing is `unknown` that ever answered and nothing else is: a path that never answered is not down. Only one that is
probed to tell suspects apart may be found a blackhole before: it is asked for that very answer.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from linkpass.core.events import Evidence
from linkpass.core.settings import Detection

LOST_MOST_RATIO: Final = 0.2
"""Congestion explains losses up to this; where more is lost for long something fails, however late the rest comes."""


class WindowedMin:
    """The smallest value of the last one to two spans (each begins with a value), in constant space."""

    __slots__ = ("_begun_s", "_now", "_previous", "_span_s", "value")

    def __init__(self, span_s: float) -> None:
        self._span_s = span_s
        self._begun_s = -math.inf
        self._now = self._previous = math.inf
        self.value = math.inf
        """The floor; inf before the first value."""

    def add(self, now_s: float, value: float) -> float:
        """Take a value in; returns the floor, which is never above the value."""
        if now_s - self._begun_s >= self._span_s:
            stale = now_s - self._begun_s >= 2 * self._span_s
            self._previous = math.inf if stale else self._now
            self._now = math.inf
            self._begun_s = now_s
        if value < self._now:
            self._now = value
        self.value = self._now if self._now < self._previous else self._previous
        return self.value


class LossRun:
    """Consecutive losses: is the path a blackhole now?"""

    __slots__ = ("_clean", "_limit", "on")

    def __init__(self, settings: Detection) -> None:
        self._limit = settings.blackhole_losses
        self._clean = 0
        self.on = False

    def update(self, sent: int, lost: int, missing: int) -> bool:
        """`sent` probes were settled since the last call, `lost` of them never arrived; `missing` came after the last
        one heard and are overdue."""
        if missing >= self._limit:
            self.on = True
            self._clean = 0
        elif self.on:
            self._clean = 0 if lost or missing else self._clean + sent
            self.on = self._clean < self._limit
        return self.on


class PooledLoss:
    """Page's test over one path's probes, or over those of many paths that share a link."""

    __slots__ = ("_heard", "_lost", "_score", "_threshold", "on")

    def __init__(self, settings: Detection) -> None:
        ok, bad = settings.loss_ok_ratio, settings.loss_bad_ratio
        if not 0 < ok < bad < 1:
            raise ValueError(f"loss_ok_ratio {ok} and loss_bad_ratio {bad}: expected 0 < ok < bad < 1")
        self._lost = math.log(bad / ok)
        self._heard = math.log((1 - bad) / (1 - ok))
        self._threshold = settings.loss_threshold
        self._score = 0.0
        self.on = False
        """The alarm. It stays until the exchanged test lifts it."""

    def update(self, sent: int, lost: int) -> bool:
        """`sent` probes settled, `lost` of them lost. Their order is not known: losses are taken as evenly spread."""
        heard = self._heard * (sent - lost) / (lost + 1)
        self._step(heard)
        for _ in range(lost):
            self._step(self._lost)
            self._step(heard)
        return self.on

    def _step(self, evidence: float) -> None:
        self._score = max(0.0, self._score - evidence if self.on else self._score + evidence)
        if self._score >= self._threshold:
            self.on = not self.on
            self._score = 0.0

    @property
    def idle(self) -> bool:
        """Nothing weighs against the path: a heard probe changes nothing."""
        return not self.on and self._score == 0.0

    def reset(self) -> None:
        self._score = 0.0
        self.on = False


class StandingQueue:
    """Does a queue stand? `queueing_windows` more windows in which most delays exceed the limit than others."""

    WINDOW_S = 0.05
    LATEST = 4
    """Delays that tell whether the queue is long at this moment: most of them late."""
    STALE_S = 0.5
    __slots__ = ("_begun_s", "_count", "_late", "_latest", "_limit_s", "_measured_s", "_most", "_score", "on")

    def __init__(self, settings: Detection) -> None:
        self._limit_s = settings.queueing_s
        self._most = settings.queueing_windows
        self._begun_s = self._measured_s = -math.inf
        self._count = self._late = 0
        """Delays of the open window, and those of them above the limit."""
        self._score = 0
        self._latest = 0
        """Bit k: the k-th latest delay was late."""
        self.on = False

    @property
    def idle(self) -> bool:
        """Nothing speaks for a queue: delays below the limit need not be told."""
        return not (self._score or self._latest or self._late or self.on)

    @property
    def wavers(self) -> bool:
        """Late windows are on half of their way to a queue that stands."""
        return not self.on and 2 * self._score >= self._most

    def long_at(self, now_s: float) -> bool:
        """Whether the queue is long at this moment, standing or not."""
        return self._latest.bit_count() >= self.LATEST - 1 and now_s - self._measured_s < self.STALE_S

    def update(self, now_s: float, queueing_s: float) -> bool:
        """`queueing_s`: delay above its floor."""
        if now_s - self._begun_s >= self.WINDOW_S:
            if self._count:
                self._close()
            self._count = self._late = 0
            self._begun_s = now_s
        late = queueing_s > self._limit_s
        self._latest = (self._latest << 1 | late) & ((1 << self.LATEST) - 1)
        self._measured_s = now_s
        self._count += 1
        self._late += late
        return self.on

    def stands(self) -> None:
        """It is known to stand from elsewhere."""
        self.on, self._score = True, self._most

    def _close(self) -> None:
        if 2 * self._late > self._count:
            self._score = min(self._most, self._score + 1)
        else:
            self._score = max(0, self._score - 1)
        if self._score in (0, self._most):
            self.on = self._score > 0


class FullQueue:
    """Does a queue lose more than queues do? Counts of about the last PROBES probes that met it."""

    PROBES = 50
    LEAST_S = 1.0
    """Senders give way within that time."""
    STALE_S = 5.0
    __slots__ = ("_at_s", "_lost", "_over_s", "_sent")

    def __init__(self) -> None:
        self._at_s = -math.inf
        self._over_s = math.inf
        """Since when too much is lost."""
        self._sent = self._lost = 0.0

    def update(self, now_s: float, sent: int, lost: int) -> bool:
        """`sent` probes were settled, `lost` of them lost, all of them in the queue."""
        if now_s - self._at_s > self.STALE_S:
            self._sent = self._lost = 0.0
        self._at_s = now_s
        keep = (1 - 1 / self.PROBES) ** sent
        self._sent, self._lost = self._sent * keep + sent, self._lost * keep + lost
        over = 2 * self._sent >= self.PROBES and self._lost > LOST_MOST_RATIO * self._sent
        self._over_s = min(self._over_s, now_s) if over else math.inf
        return now_s - self._over_s >= self.LEAST_S


class Verdict(msgspec.Struct, frozen=True):
    evidence: Evidence
    why: str


class PathDetector:
    """The three tests of one path, and which of them speaks: blackhole before loss before queueing."""

    RATIO_MEMORY = 200
    """Probes over which the loss ratio shown to people is averaged; no decision uses it."""
    FULL_S = 0.3
    """A queue that lets nothing through for so long is none."""
    __slots__ = (
        "_answered", "_at_once", "_full", "_heard_s", "_judge_from_s", "_loss", "_queue", "_quiet", "_ratios", "_run",
        "_run_lost", "_run_sent", "_settings", "aside", "calm", "loss_ratio", "verdict",
    )  # fmt: skip

    def __init__(self, settings: Detection, now_s: float, *, ratios: bool = True, at_once: bool = False) -> None:
        """`ratios`: judge the ratio of losses as well as runs of them. `at_once`: judge from the first probe on, also
        if none is ever answered."""
        self._ratios, self._at_once = ratios, at_once
        self._run = LossRun(settings)
        self._loss = PooledLoss(settings)
        self._queue = StandingQueue(settings)
        self._judge_from_s = now_s if at_once else now_s + settings.grace_s
        self._settings = settings
        self._answered = False
        self._heard_s = -math.inf
        self._full = FullQueue()
        self._run_sent = self._run_lost = 0
        """Settled since the run of losses began."""
        self.aside = 0
        """Losses of the last call that were a full queue's."""
        self._quiet = 0
        """Probes heard since the last call of `update`."""
        self.calm = False
        """Nothing weighs against the path in any test: then `quiet` says all there is to say of a good report."""
        self.loss_ratio = 0.0
        self.verdict = Verdict("unknown", "never answered")

    def quiet(self, sent: int) -> None:
        """The short way for a path that is `calm`, all of whose probes were heard, its queueing below the limit."""
        self._quiet += sent

    @property
    def wavers(self) -> bool:
        """Half of the probes are late: no queue stands, and yet the path is not without."""
        return self._queue.wavers

    def queued_at(self, now_s: float) -> bool:
        """Whether a queue is long on the path at this moment: what is lost now is no evidence."""
        return self._queue.long_at(now_s)

    def update(
        self, now_s: float, sent: int, lost: int, missing: int, queueing_s: float | None, *, queued: bool = False
    ) -> Verdict | None:
        """What a report of the peer says, as differences to the report before it. Returns the verdict if it changed.

        `sent`, `lost`: probes settled by this report; `missing`: overdue ones after the last that was heard;
        `queueing_s`: None when the report has no new measurement; `queued`: a queue is known to be long on this path
        from elsewhere. A call with all zero changes nothing."""
        self.aside = 0
        if not self._answered:
            if sent > lost:
                self._answered = True
            elif not (self._at_once and self._run.update(sent, lost, missing)):
                return None
        elif now_s >= self._judge_from_s:
            if queueing_s is not None:
                self._queue.update(now_s, queueing_s)
            queued = queued or self._queue.long_at(now_s)
            drops = self._full.update(now_s, sent, lost) if queued else False
            if self._run.on:
                self._run_sent += sent
                self._run_lost += lost
                late = queueing_s is not None and queueing_s > self._settings.queueing_s
                if late and not drops and 2 * self._run_lost < self._run_sent:
                    self._run = LossRun(self._settings)
                    self._queue.stands()
                    self.aside, sent, lost = lost, sent - lost, 0
            if queued and not drops:
                self.aside += lost
                if now_s - max(self._heard_s, self._judge_from_s) < self.FULL_S:
                    missing = min(missing, self._settings.blackhole_losses - 1)
                sent, lost = sent - lost, 0
            was = self._run.on
            if self._run.update(sent, lost, missing) and not was:
                self._run_sent = self._run_lost = 0
            if not self._run.on:
                if was:
                    self._loss.reset()
                else:
                    self._count(sent, lost)
            self.calm = not self._run.on and self._loss.idle and self._queue.idle
        if sent > lost:
            self._heard_s = now_s
        return self._decide(missing)

    def _count(self, sent: int, lost: int) -> None:
        sent, self._quiet = sent + self._quiet, 0
        if sent:
            if self._ratios:
                self._loss.update(sent, lost)
            keep = (1 - 1 / self.RATIO_MEMORY) ** sent
            self.loss_ratio = self.loss_ratio * keep + (lost / sent) * (1 - keep)

    def _decide(self, missing: int) -> Verdict | None:
        evidence: Evidence
        if self._run.on:
            evidence, why = "blackhole", f"{missing} probes in a row lost while the peer answers over other paths"
        elif self._loss.on:
            evidence, why = "lossy", f"about {self.loss_ratio:.1%} of the probes lost"
        elif self._queue.on:
            evidence, why = "queueing", "a queue stands on the path: most probes come late"
        else:
            evidence, why = "good", "probes arrive"
        if evidence == self.verdict.evidence:
            return None
        self.verdict = Verdict(evidence, why)
        return self.verdict
