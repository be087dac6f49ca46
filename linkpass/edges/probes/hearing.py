"""What arrives: frames into books, reports into evidence, notices into events.

Everything that is waiting is taken before anything is judged or reported."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Final, Literal

from linkpass.core.events import (
    FAILING,
    Event,
    Evidence,
    Notice,
    NoticeAcked,
    NoticeHeard,
    NoticeKind,
    PathEvidence,
    PeerBack,
    PeerKnown,
)
from linkpass.edges.probes.books import ATTENTIVE_S, Books
from linkpass.edges.probes.paths import HeardPath, SentPath, Twin
from linkpass.edges.probes.peers import LARGE_TOLD, Peer
from linkpass.edges.probes.ports import Received
from linkpass.edges.probes.sending import EXTRA
from linkpass.wire import probe
from linkpass.wire.frame import payload_offset
from linkpass.wire.pace import ARRIVALS, CLAIMS
from linkpass.wire.vxlan import End

SUSPECT_S: Final = 0.5
SUSPECT_MOST_S: Final = 3.0
SUSPECT_PROBES: Final = 120
"""A path that has lost a probe is suspected at least until it could have acquitted itself: by so many probes heard
(`core.detect`, Page's test at its usual ratios), with the extra ones among them."""
LARGE_SUSPECT_S: Final = 0.02
LARGE_BLIND_S: Final = 1.0
"""After a blackhole of the small probes the lost large ones are still being told of for this long."""
LOSSY_S: Final = 1.0
"""After a lost probe the windows' counts go to the core for this long."""
MAX_SEEN: Final = 1024

KINDS: Final[Mapping[NoticeKind, probe.Kind]] = {
    "port_down": probe.Kind.PORT_DOWN,
    "port_up": probe.Kind.PORT_UP,
    "drain": probe.Kind.DRAIN,
    "undrain": probe.Kind.UNDRAIN,
    "goodbye": probe.Kind.GOODBYE,
    "suspect": probe.Kind.SUSPECT,
    "failing": probe.Kind.FAILING,
    "ailing": probe.Kind.AILING,
    "well": probe.Kind.WELL,
    "missing": probe.Kind.MISSING,
    "heard": probe.Kind.HEARD,
}
_KIND_OF: Final[Mapping[probe.Kind, NoticeKind]] = {wire: kind for kind, wire in KINDS.items()}

Refused = Literal["refused_truncated", "refused_version", "refused_mac", "refused_malformed", "traces"]
_REFUSED: Final[Mapping[probe.Refusal, Refused]] = {
    probe.Refusal.TRUNCATED: "refused_truncated",
    probe.Refusal.BAD_VERSION: "refused_version",
    probe.Refusal.BAD_MAC: "refused_mac",
    probe.Refusal.MALFORMED: "refused_malformed",
    probe.Refusal.TRACE: "traces",
}


SKEW_S: Final = 0.002
"""Rings read within this time are one moment: less than the interval of the fastest probes."""
DRAINS: Final = 4


def wall_s() -> float:
    return time.clock_gettime(time.CLOCK_REALTIME)


class Listener:
    def __init__(
        self, books: Books, signer: probe.Signer, emit: Callable[[Event], None], clock: Callable[[], float]
    ) -> None:
        self._books, self._signer, self._emit, self._clock = books, signer, emit, clock
        self._wall: Callable[[], float] = wall_s
        self._drained_s = -math.inf
        """When the last call of `drain` began to read."""
        self._payload_at = payload_offset(len(books.own), books.protocol)
        self._addresses_at = 22 if len(books.own) == 16 else 26

    def fresh(self) -> float:
        """The time, of which may be reported what was heard: all rings were read at most SKEW_S ago. A daemon that was
        stopped between reading and reporting would else say that it has not heard what lies in the rings; as a peer
        sees it, all its paths have lost what came meanwhile."""
        now_s = self._clock()
        for _ in range(DRAINS):
            if now_s - self._drained_s <= SKEW_S:
                break
            self.drain()
            now_s = self._clock()
        return now_s

    def drain(self) -> None:
        """Take all rings out and hear what was in them. What is reported next has to be one moment's state: a daemon
        that was stopped between two rings would else report newer probes of one uplink than of another, and the peer
        would take the rest for lost. Then the rings are read again, or peers are told to count anew.

        Stamps are wall time. A delay may seem too long, which the next probe corrects, but never too short: its floor
        would be wrong for half a minute. So the wall is read before our clock (whoever is stopped in between sees
        stamps too late), and no frame is older than the reading before this one (the wall can step forward)."""
        books = self._books
        since_s, self._drained_s = self._drained_s, self._clock()
        received: list[Received] = []
        overflowed = False
        for _ in range(DRAINS):
            begun_s = self._clock()
            for port in books.ports.values():
                overflowed = port.drain(received) or overflowed
            if self._clock() - begun_s <= SKEW_S:
                break
        else:
            overflowed = True
        if overflowed:
            books.stats.overflows += 1
            books.epoch = (books.epoch + 1) & 0xFF
        if received:
            wall = self._wall()
            now_s = self._clock()
            ahead_s = wall - now_s
            for frame, stamp_s, uplink in received:
                received_s = stamp_s - ahead_s
                self._hear(frame, max(since_s, received_s if received_s < now_s else now_s), uplink, now_s)

    def note_gaps(self) -> None:
        """Who has just been heard over some of its paths only is told at once, as if it had asked: until the next batch
        it would not know. Where batches are frequent they tell it soon enough."""
        for peer in self._books.owed:
            if peer.told_ns != peer.batch_ns and peer.lacks():
                peer.told_ns = peer.batch_ns
                peer.asked = True

    def _hear(self, frame: bytes, received_s: float, uplink: str, now_s: float) -> None:
        books = self._books
        own = books.own
        size = len(own)
        at = self._addresses_at
        addresses = frame[at : at + 2 * size]
        if addresses[size:] != own:
            books.stats.refused_address += 1
            return
        packet = probe.decode(self._signer, addresses, frame[self._payload_at :])
        if isinstance(packet, probe.Refusal):
            name = _REFUSED[packet]
            setattr(books.stats, name, getattr(books.stats, name) + 1)
            if packet is probe.Refusal.BAD_MAC and (stranger := books.peers.get(addresses[:size])) is not None:
                stranger.bad_macs += 1
            return
        peer = books.peers.get(addresses[:size])
        if peer is None:
            peer = books.peer(addresses[:size])
        if packet.boot != peer.boot:
            if packet.boot in peer.retired:
                books.stats.refused_boot += 1
                return
            if not peer.boot:
                self._emit(PeerKnown(peer=peer.address))
            peer.adopt(packet.boot, packet.epoch)
            self._take_end(peer, probe.NO_END)  # until its new daemon says so
        heard = peer.heard.get(packet.path)
        if heard is None:
            heard = peer.heard[packet.path] = HeardPath()
        if packet.flags & probe.LARGE:
            heard.large, heard.tell = True, LARGE_TOLD
        window = heard.window
        newest_before = window.newest
        if not window.accept(packet.sequence):
            books.stats.refused_replay += 1
            return
        books.stats.heard += 1
        delay_s = received_s - packet.sent_ns * 1e-9
        if window.newest > newest_before:
            heard.hear(received_s, delay_s)
        else:
            heard.count += 1
        if packet.path != probe.NO_PATH:
            heard.batch_ns = packet.sent_ns
            if packet.sent_ns > peer.batch_ns:
                peer.before_ns, peer.batch_ns = peer.batch_ns, packet.sent_ns
        if delay_s < peer.clock.value or packet.report_sequence > peer.report_heard:
            peer.clock.add(received_s, delay_s)  # the first of a batch does: all have the same stamp
        if received_s > peer.last_heard_s:
            peer.last_heard_s = received_s
        peer.sent_since_heard = 0
        if packet.flags & probe.ASK:
            peer.asked = True
            books.attentive_until_s = now_s + ATTENTIVE_S
            books.owed.add(peer)
        elif packet.path != probe.NO_PATH:
            books.owed.add(peer)
        if not peer.paths and books.ports[uplink].gateway_mac:
            peer.heard_by = (uplink, int.from_bytes(frame[15:18], "big") & 0xFFFFF if size == 16 else 0)
        elif peer.silent or peer.filtered_said:
            peer.filtered_said = False
            if peer.silent:
                peer.silent = False
                # What was lost meanwhile says nothing of paths. Its first words are of a time when it had heard none of
                # what we sent since, or only what has taken one of the paths.
                peer.count_anew(peer.epoch)
                self._emit(PeerBack(peer=peer.address))
        if packet.report_boot == books.boot:
            if packet.epoch != peer.epoch:
                peer.count_anew(packet.epoch)
            if packet.entries and packet.report_sequence > peer.report_heard:
                peer.report_heard = packet.report_sequence
                if (late_s := packet.late_s) is not None:
                    peer.late.told(late_s, packet.sent_ns * 1e-9)
                self._settle(peer, packet, received_s, now_s)
            if packet.tlvs:
                self._take_words(peer, packet)
                self._take_end(peer, packet.end())
                if (places := packet.places()) and books.on_roce is not None:
                    books.on_roce(peer, places)
                if books.on_pace is not None and (said := packet.values(CLAIMS, ARRIVALS)):
                    books.on_pace(peer, said)

    def _settle(self, peer: Peer, packet: probe.Probe, received_s: float, now_s: float) -> None:
        """Judge every path to the peer by its report."""
        books = self._books
        stats = books.stats
        paths, late = peer.take_report(packet, received_s, books.settings.detection)
        stats.late += late
        for path in paths:
            stats.lost += path.step_lost
            detector = path.detector
            before = detector.verdict.evidence
            if isinstance(path, Twin):
                self._settle_large(peer, path, received_s, now_s)
                continue
            missing = path.missing
            verdict = detector.update(received_s, path.step_sent, path.step_lost, missing, path.step_queueing_s)
            if path.twin is not None and detector.verdict.evidence == "blackhole":
                path.twin.blind_until_s = now_s + LARGE_BLIND_S
            sent, lost = path.step_sent - detector.aside, path.step_lost - detector.aside
            stats.lost_to_queues += detector.aside
            if before != "blackhole" and lost:
                if peer not in books.lossy:
                    self._watch(peer)
                peer.lossy_until_s = now_s + LOSSY_S
                path.window_lost += lost
            if path.watched:
                path.window_sent += sent
            self._suspect(peer, path, before, lost, 0 if detector.queued_at(received_s) else missing, now_s)
            if verdict is not None or detector.wavers != path.told_wavers:
                self.tell(peer, path)

    def _settle_large(self, peer: Peer, twin: Twin, received_s: float, now_s: float) -> None:
        """Large probes are judged for themselves; in a full queue they are the first that find no room."""
        if twin.small.detector.verdict.evidence == "blackhole":
            twin.blind_until_s = now_s + LARGE_BLIND_S
        if now_s < twin.blind_until_s:
            return
        detector, queued = twin.detector, twin.small.detector.queued_at(received_s)
        before = detector.verdict.evidence
        told = detector.update(received_s, twin.step_sent, twin.step_lost, twin.missing, None, queued=queued)
        self._books.stats.lost_to_queues += detector.aside
        lost, missing = (0, 0) if queued else (twin.step_lost, twin.missing)
        self._suspect(peer, twin, before, lost, missing, now_s)
        if told is not None:
            self.tell(peer, twin.small)
            if told.evidence in FAILING:  # large probes are rare: those of the other paths are asked at once
                for other in peer.twins.values():
                    if other.detector.verdict.evidence == "good":
                        other.suspect_until_s = max(other.suspect_until_s, now_s + LARGE_SUSPECT_S)
                self._books.hot.setdefault(peer, now_s)

    def _suspect(self, peer: Peer, path: SentPath, before: Evidence, lost: int, missing: int, now_s: float) -> None:
        """A first lost probe is confirmed, or not, by more of them than the plan has; one that is overdue, until it has
        come: where a host is slow that is the rule, and more probes make it slower."""
        if path.detector.verdict.evidence in ("blackhole", "lossy"):
            if before != path.detector.verdict.evidence:
                path.suspect_until_s = -math.inf
        elif lost or missing:
            path.waits = not lost and (path.waits or path.suspect_until_s < now_s)
            long_s = SUSPECT_PROBES * path.beat_s / EXTRA if lost else 0.0
            until_s = now_s + min(SUSPECT_MOST_S, max(SUSPECT_S, long_s))
            path.suspect_until_s = max(path.suspect_until_s, until_s)
            self._books.hot.setdefault(peer, now_s)
        elif path.waits:
            path.waits, path.suspect_until_s = False, -math.inf

    def _watch(self, peer: Peer) -> None:
        """A first loss: the windows begin with the report that told it."""
        self._books.lossy.add(peer)
        for path in peer.by_key.values():
            path.watched = True
            path.window_sent = path.window_lost = 0

    def tell(self, peer: Peer, path: SentPath) -> None:
        """The opinion of a path, if it is another than was told last."""
        verdict = path.opinion()
        wavers = path.detector.wavers and verdict.evidence == "good"
        if (verdict.evidence, wavers) == (path.told, path.told_wavers):
            return
        path.told, path.told_wavers = verdict.evidence, wavers
        self._emit(
            PathEvidence(
                peer=peer.address,
                uplink=path.uplink,
                label=path.label,
                evidence=verdict.evidence,
                loss_ratio=path.loss_ratio,
                rtt_s=path.rtt_s,
                queueing_s=path.queueing_s,
                wavers=wavers,
                large_only=path.detector.verdict is not verdict and verdict.evidence in FAILING,
                why=verdict.why,
            )
        )

    def _take_end(self, peer: Peer, end: End | None) -> None:
        if end is None or (end if end.port else None) == peer.end:
            return
        peer.end = end if end.port else None
        if self._books.on_end is not None:
            self._books.on_end(peer, peer.end)

    def _take_words(self, peer: Peer, packet: probe.Probe) -> None:
        """Only from a packet that reports about this run of ours: no recording can speak with a peer's voice."""
        words = packet.words()
        if words is None:
            self._books.stats.refused_malformed += 1
            return
        notices, acks = words
        for notice in notices:
            peer.acks[notice.id] = None
            place = (notice.origin, int(notice.kind), notice.seq, notice.link)
            if place not in peer.seen_notices:
                peer.seen_notices[place] = None
                if len(peer.seen_notices) > MAX_SEEN:
                    del peer.seen_notices[next(iter(peer.seen_notices))]
                kind = _KIND_OF[notice.kind]
                value = Notice(kind, notice.link, notice.origin, notice.seq, notice.ttl_s)
                self._emit(NoticeHeard(peer=peer.address, notice=value))
        for number in acks:
            for one in [o for o in peer.outgoing if o.notice.id == number]:
                peer.outgoing.remove(one)
                self._emit(NoticeAcked(cmd_id=one.cmd_id, peer=peer.address))
