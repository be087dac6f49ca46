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

from linkpass.core.detect import WindowedMin
from linkpass.core.settings import Detection
from linkpass.edges.probes.lateness import Lateness
from linkpass.edges.probes.paths import HeardPath, SentPath, Twin
from linkpass.wire import probe
from linkpass.wire.frame import Template
from linkpass.wire.vxlan import End

CLOCK_S: Final = 15.0
FORGET_S: Final = 30.0
"""A path of a peer that was not heard for so long is left out of reports."""
LARGE_TOLD: Final = 4
"""A path of rare large probes is told of in so many reports after each of them: not all of those get lost."""


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
        """By number, twins too."""
        self.by_key: dict[tuple[str, int], SentPath] = {}
        """Without twins."""
        self.twins: dict[int, Twin] = {}
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
        self.batch_ns = self.before_ns = self.told_ns = 0
        """By their send stamps: the newest batch of probes, the one before, and the one that it was told a gap of."""
        self.heard_by: tuple[str, int] | None = None
        """Uplink and label of the newest packet: where a peer that is not in our plan is answered."""
        self.late, self.roce_late = Lateness(), Lateness()
        """How late its reports leave, and how late it answers datagrams of RoCE."""
        self.asked = False
        self.answered_s = -math.inf
        self.acks: dict[int, None] = {}
        self.seen_notices: dict[tuple[str, int, int, str], None] = {}
        # the job's data, for filtered probes
        self.data_notes = 0
        self.filtered_said = False
        self.end_said = 0
        """How often it was told where tunnels end here, since it or that was last another."""
        self.end: End | None = None
        """Where it takes packets out of tunnels, as it last said; None: nowhere, or it has not said."""
        self.bad_macs = 0
        """Packets from its address that another key has signed."""

    def add_path(
        self, uplink: str, label: int, settings: Detection, now_s: float, *, telling: bool = False
    ) -> SentPath:
        index = self._free_index()
        path = SentPath(uplink, label, index, self._sequences.get(index, 0), settings, now_s, telling=telling)
        if telling:  # it may be judged before its own round trip is known
            path.margin_s = max([path.margin_s, *(one.margin_s for one in self.by_key.values())])
        self.paths[index] = path
        self.by_key[path.key] = path
        return path

    def add_twin(self, path: SentPath, settings: Detection, now_s: float) -> Twin:
        """Large probes beside the path's own."""
        index = self._free_index()
        path.twin = twin = Twin(path, index, self._sequences.get(index, 0), settings, now_s)
        self.paths[index] = twin
        self.twins[index] = twin
        return twin

    def drop_path(self, path: SentPath) -> None:
        """With its twin."""
        if path.twin is not None:
            self.drop_twin(path.twin)
        del self.paths[path.index], self.by_key[path.key]
        self._sequences[path.index] = path.seq

    def drop_twin(self, twin: Twin) -> None:
        twin.small.twin = None
        del self.paths[twin.index], self.twins[twin.index]
        self._sequences[twin.index] = twin.seq

    def _free_index(self) -> int:
        """A number is used again only after all others were: the peer still holds counts of the path that had it."""
        index = self._next_index
        while index in self.paths:
            index = (index + 1) % probe.NO_PATH
        self._next_index = (index + 1) % probe.NO_PATH
        return index

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
        self.end_said = 0
        self.heard.clear()
        self.batch_ns = self.before_ns = 0
        self.clock = WindowedMin(CLOCK_S)
        self.late, self.roce_late = Lateness(), Lateness()
        self.report_heard = -1
        self.seen_notices.clear()
        for path in self.paths.values():
            path.count_anew()

    def count_anew(self, epoch: int) -> None:
        self.epoch = epoch
        for path in self.paths.values():
            path.count_anew()

    def report_entries(self, now_s: float, late: int = 0) -> list[bytes]:
        """As many as fit, those heard last: numbers that are not used any more fade away. `late`: as on the wire."""
        entries = []
        heard_paths = list(self.heard.items())
        if len(heard_paths) > probe.MAX_REPORT:
            heard_paths.sort(key=lambda item: -item[1].last_s)
        for index, heard in heard_paths:
            dwell_s = now_s - heard.last_s
            if dwell_s < FORGET_S and index != probe.NO_PATH:
                if heard.large:
                    if not heard.tell:
                        continue
                    heard.tell -= 1
                queueing = int(heard.queueing_s * 1e5)
                if not 0 <= queueing <= 0xFFFF:
                    queueing = 0xFFFF if queueing > 0 else 0
                dwell = int(dwell_s * 1e6) if dwell_s > 0 else 0
                entries.append(probe.raw_entry(index, late, queueing, heard.window.newest, heard.count, dwell))
        return entries[: probe.MAX_REPORT]

    def lacks(self) -> bool:
        """Whether the newest batch lacks a path that the one before had, though what left after it has come. Rare large
        probes are in few batches."""
        newest = max((n for n, heard in self.heard.items() if heard.batch_ns == self.batch_ns), default=-1)
        return any(
            n < newest and heard.batch_ns == self.before_ns and not heard.large for n, heard in self.heard.items()
        )

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
                    quiet += not path.large
                else:
                    entries[entry[0]] = entry
        if not entries and quiet == len(self.by_key) and all(one.nothing_due(made_s) for one in self.twins.values()):
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
            witness_s = path.small.sent_at(path.small.acked) if isinstance(path, Twin) else self.witness_s
            path.missing = path.overdue(made_s, witness_s, settings.blackhole_losses)
            if path.step_sent or path.missing:
                open_paths.append(path)
        return open_paths, late

    def best_paths(self, usable: set[str], per_uplink: int = 1) -> list[SentPath]:
        """For each usable uplink its best paths, by evidence and then by how recently they answered."""
        rank = {"good": 0, "queueing": 1, "lossy": 2, "unknown": 3, "blackhole": 4}
        order = sorted(
            (p for p in self.by_key.values() if p.uplink in usable),
            key=lambda p: (rank[p.detector.verdict.evidence], p.missing, -p.sent_at(p.acked)),
        )
        chosen: dict[str, int] = {}
        best = []
        for path in order:
            if chosen.get(path.uplink, 0) < per_uplink:
                chosen[path.uplink] = chosen.get(path.uplink, 0) + 1
                best.append(path)
        return best
