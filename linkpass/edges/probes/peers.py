"""The books of one peer: our paths to it as it reports them, and its paths to us as we hear them.

A path's own probes carry a sequence of that path. A report says of each path the last sequence heard and the number
heard; the difference between two reports settles the probes between: that many sent, that many lost. Probes after the
last one heard are overdue when they were sent early enough to have been heard by the time the report was made. That
time is taken from the report's own send stamp, so that a report which was held up on its way back, or by a daemon that
ran late, is read as the old news it is.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final

from linkpass.core.detect import PathDetector, WindowedMin
from linkpass.core.events import PathCount
from linkpass.core.settings import Detection
from linkpass.wire import probe
from linkpass.wire.frame import Template

FLOOR_S: Final = 30.0
CLOCK_S: Final = 15.0
SLACK_S: Final = 0.002
"""For what happens between a time stamp and the wire, at both ends."""
FIRST_RTT_S: Final = 0.010
"""Taken for the round trip of a path that has no measurement yet."""
FORGET_S: Final = 30.0
"""A path of a peer that was not heard for so long is left out of reports."""
RING: Final = 512
_MASK: Final = RING - 1


class SentPath:
    """One of our paths to a peer."""

    __slots__ = (
        "_count", "_counted", "_sent_at", "acked", "detector", "index", "interval_s", "key", "label", "lost",
        "margin_s", "missing", "queueing_s", "rtt_floor", "rtt_s", "sent", "seq", "settled", "start", "step_lost",
        "step_queueing_s", "step_sent", "suspect_until_s", "template", "uplink", "watched",
        "window_lost", "window_sent",
    )  # fmt: skip

    def __init__(self, uplink: str, label: int, index: int, seq: int, settings: Detection, now_s: float) -> None:
        self.uplink, self.label, self.index = uplink, label, index
        self.key = (uplink, label)
        self.interval_s = 1.0
        self.template: Template | None = None
        self.seq = self.start = self.acked = seq
        self._counted = False
        self._count = 0
        self._sent_at = [0.0] * RING
        self.detector = PathDetector(settings, now_s)
        self.rtt_floor = WindowedMin(FLOOR_S)
        self.rtt_s = 0.0
        self.margin_s = FIRST_RTT_S + SLACK_S
        self.queueing_s = 0.0
        self.sent = self.settled = self.lost = self.missing = 0
        self.suspect_until_s = -math.inf
        self.watched = False
        """Whether the windows' counts are kept."""
        self.window_sent = self.window_lost = 0
        self.step_sent = self.step_lost = 0
        self.step_queueing_s: float | None = None

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
        if (
            not self.detector.calm
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
        self.queueing_s = queueing_s
        rtt_s = received_s - self.sent_at(last) - dwell_s
        if 0 <= rtt_s < 10:
            self.rtt_s = rtt_s
            self.margin_s = self.rtt_floor.add(received_s, rtt_s) + SLACK_S + 1.5 * queueing_s

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
        self.step_queueing_s = queueing_s
        self._measure(last, queueing_s, dwell_s, received_s)
        return late

    def overdue(self, made_s: float, witness_s: float, limit: int) -> int:
        """How many probes after the last one heard are overdue in a report made at `made_s`, counted up to `limit`.

        `witness_s`: send time of the newest probe that the peer heard over any path. A probe counts when one sent no
        earlier was heard elsewhere: then neither the peer nor the way back is to blame. Without such a witness (every
        path of ours is mute, yet reports come) it takes twice as many and five intervals. The last of the run must be
        a whole interval younger than the first: extra probes make a run of losses known faster, not one hiccup longer.
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
                spans = at_s - begun_s >= 0.9 * self.interval_s
            alone = seen >= 2 * limit and at_s - begun_s >= 4.5 * self.interval_s
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


class HeardPath:
    """One of a peer's paths to us."""

    __slots__ = ("_floor", "count", "last_s", "queueing_s", "window")

    def __init__(self) -> None:
        self.window = probe.ReplayWindow()
        self.count = 0
        self.last_s = -math.inf
        self.queueing_s = 0.0
        self._floor = WindowedMin(FLOOR_S)

    def hear(self, received_s: float, delay_s: float) -> None:
        """A probe that is the newest of its path; `delay_s`: receive time by our clock minus send time by theirs."""
        self.count += 1
        self.last_s = received_s
        floor = self._floor
        if delay_s < floor.value or not self.count & 7:  # a sample is enough to know the floor of a span
            floor.add(received_s, delay_s)
        self.queueing_s = delay_s - floor.value


class Outgoing:
    """A notice on its way to one peer, until it is acknowledged or expires."""

    __slots__ = ("cmd_id", "expires_s", "gap_s", "next_s", "notice")

    def __init__(self, cmd_id: int, notice: probe.WireNotice, now_s: float) -> None:
        self.cmd_id, self.notice = cmd_id, notice
        self.expires_s = now_s + notice.ttl_s
        self.next_s = now_s
        self.gap_s = 0.005


class Peer:
    """A host we probe, or hear, or both."""

    def __init__(self, address: str, packed: bytes, own: bytes) -> None:
        self.address, self.packed = address, packed
        self.to_peer = own + packed
        self.from_peer = packed + own
        # ours
        self.paths: dict[int, SentPath] = {}
        self.by_key: dict[tuple[str, int], SentPath] = {}
        self._next_index = 0
        self._sequences: dict[int, int] = {}
        self.witness_s = -math.inf
        self.planned_s = math.inf
        self.reports_sent = 0
        self.report_heard = -1
        self.sent_since_heard = 0
        self.silent = False
        self.lossy_until_s = -math.inf
        self.outgoing: list[Outgoing] = []
        self.loose_sequence = 0
        """Of packets without a path."""
        self.loose_templates: dict[tuple[str, int], Template] = {}
        # theirs
        self.boot = 0
        self.retired: deque[int] = deque(maxlen=64)
        self.epoch = 0
        self.clock = WindowedMin(CLOCK_S)
        """Receive time here minus send time there: the difference of the clocks plus the smallest delay."""
        self.heard: dict[int, HeardPath] = {}
        self.last_heard_s = -math.inf
        self.heard_by: tuple[str, int] | None = None
        """Uplink and label of the newest packet: where a peer that is not in our plan is answered."""
        self.asked = False
        self.answered_s = -math.inf
        self.acks: dict[int, None] = {}
        self.seen_notices: dict[tuple[str, int, int, str], None] = {}
        # the job's data, for filtered probes
        self.data_notes = 0
        self.filtered_said = False
        self.bad_macs = 0
        """Packets from its address that another key has signed."""

    def add_path(self, uplink: str, label: int, settings: Detection, now_s: float) -> SentPath:
        """A number is used again only after all others were: the peer still holds counts of the path that had it."""
        index = self._next_index
        while index in self.paths:
            index = (index + 1) % probe.NO_PATH
        self._next_index = (index + 1) % probe.NO_PATH
        path = SentPath(uplink, label, index, self._sequences.get(index, 0), settings, now_s)
        self.paths[index] = path
        self.by_key[path.key] = path
        return path

    def drop_path(self, path: SentPath) -> None:
        del self.paths[path.index], self.by_key[path.key]
        self._sequences[path.index] = path.seq

    def restart(self) -> None:
        """We have another boot id than before."""
        self._sequences.clear()
        self.witness_s = -math.inf
        self.loose_sequence = self.reports_sent = 0
        for path in self.paths.values():
            path.restart()

    def adopt(self, boot: int, epoch: int) -> None:
        """The peer's daemon is another one than before: its clock, counts and memory of us begin anew."""
        if self.boot:
            self.retired.append(self.boot)
        self.boot, self.epoch = boot, epoch
        self.heard.clear()
        self.clock = WindowedMin(CLOCK_S)
        self.report_heard = -1
        self.seen_notices.clear()
        for path in self.paths.values():
            path.count_anew()

    def count_anew(self, epoch: int) -> None:
        self.epoch = epoch
        for path in self.paths.values():
            path.count_anew()

    def report_entries(self, now_s: float) -> list[bytes]:
        """As many as fit, those heard last: numbers that are not used any more fade away."""
        entries = []
        heard_paths = list(self.heard.items())
        if len(heard_paths) > probe.MAX_REPORT:
            heard_paths.sort(key=lambda item: -item[1].last_s)
        for index, heard in heard_paths:
            dwell_s = now_s - heard.last_s
            if dwell_s < FORGET_S and index != probe.NO_PATH:
                queueing = int(heard.queueing_s * 1e5)
                if not 0 <= queueing <= 0xFFFF:
                    queueing = 0xFFFF if queueing > 0 else 0
                dwell = int(dwell_s * 1e6) if dwell_s > 0 else 0
                entries.append(probe.raw_entry(index, 0, queueing, heard.window.newest, heard.count, dwell))
        return entries[: probe.MAX_REPORT]

    def take_report(self, packet: probe.Probe, received_s: float, settings: Detection) -> tuple[list[SentPath], int]:
        """Settle our probes by the peer's report: (paths about which it has more to say than "all heard", late ones).

        Sets `step_*` and `missing` of those; the others are settled here, in a few steps."""
        made_s = packet.sent_ns * 1e-9 + self.clock.value
        limit = int(settings.queueing_s * 1e5)
        paths = self.paths
        entries: dict[int, tuple[int, int, int, int, int, int]] = {}
        open_paths: list[SentPath] = []
        quiet = 0
        for entry in packet.raw_report():
            path = paths.get(entry[0])
            if path is not None:
                if path.take_quietly(entry, received_s, made_s, limit):
                    quiet += 1
                else:
                    entries[entry[0]] = entry
        if quiet == len(paths):
            return open_paths, 0
        late = 0
        for path in paths.values():
            path.step_sent = path.step_lost = 0
            path.step_queueing_s = None
            known = entries.get(path.index)
            if known is not None:
                late += path.take(known[3], known[4], known[2] * 1e-5, known[5] * 1e-6, received_s)
        self.witness_s = max(path.sent_at(path.acked) for path in paths.values())
        for path in paths.values():
            path.missing = path.overdue(made_s, self.witness_s, settings.blackhole_losses)
            if path.step_sent or path.missing:
                open_paths.append(path)
        return open_paths, late

    def best_paths(self, usable: set[str], per_uplink: int = 1) -> list[SentPath]:
        """For each usable uplink its best paths, by evidence and then by how recently they answered."""
        rank = {"good": 0, "queueing": 1, "lossy": 2, "unknown": 3, "blackhole": 4}
        order = sorted(
            (p for p in self.paths.values() if p.uplink in usable),
            key=lambda p: (rank[p.detector.verdict.evidence], p.missing, -p.sent_at(p.acked)),
        )
        chosen: dict[str, int] = {}
        best = []
        for path in order:
            if chosen.get(path.uplink, 0) < per_uplink:
                chosen[path.uplink] = chosen.get(path.uplink, 0) + 1
                best.append(path)
        return best
