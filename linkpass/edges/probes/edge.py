"""The schedule of the probes: one timer, one tick.

A tick first drains every receive ring and only then builds reports, so that a report never says "not heard" of what
lies in a buffer. All that falls due is sent in one go. While every path is good, probes wake nobody: they are read at
the next tick. A path with a lost probe is suspect: for `SUSPECT_S` it gets up to four times the probes, with the
question to answer at once, and so does one good path beside it as a witness.

What a peer did not hear is known only from its reports, so a daemon that runs late (ours or the peer's) loses no
evidence and makes none. Silence is judged only over time in which this daemon was on time."""

from __future__ import annotations

import asyncio
import heapq
import ipaddress
import math
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from typing import Final, Literal

from linkpass.core.commands import ProbeTarget, SendNotice, SetProbes
from linkpass.core.events import (
    DaemonLate,
    Event,
    Notice,
    NoticeAcked,
    NoticeHeard,
    NoticeKind,
    PathEvidence,
    PathWindow,
    PeerBack,
    PeerFiltered,
    PeerKnown,
    PeerSilent,
)
from linkpass.core.settings import CoreSettings
from linkpass.edges.probes.budget import Bucket, stretch
from linkpass.edges.probes.peers import HeardPath, Outgoing, Peer, SentPath
from linkpass.edges.probes.ports import Port, Received
from linkpass.edges.probes.snapshot import PathView, PeerView, ProbeStats, Snapshot
from linkpass.wire import bpf, probe
from linkpass.wire.frame import TCP, UDP, Headers, Template, payload_offset

LATE_S: Final = 0.020
SUSPECT_S: Final = 0.5
WINDOW_S: Final = 0.1
HOUSEKEEPING_S: Final = 0.05
LOSSY_S: Final = 1.0
"""After a lost probe the windows' counts go to the core for this long."""
ANSWER_GAP_S: Final = 0.001
REPORT_GAP_S: Final = 0.010
FAST_S: Final = 0.05
"""Up to this interval rings are read at ticks; with none so short, a packet wakes the loop."""
FILTERED_S: Final = 2.0
NOTICE_GAP_MAX_S: Final = 0.1
LAST_SEQUENCE: Final = 0xFFFFFFF0

_KINDS: Final[Mapping[NoticeKind, probe.Kind]] = {
    "port_down": probe.Kind.PORT_DOWN,
    "port_up": probe.Kind.PORT_UP,
    "drain": probe.Kind.DRAIN,
    "undrain": probe.Kind.UNDRAIN,
}
_KIND_OF: Final[Mapping[int, NoticeKind]] = {int(wire): kind for kind, wire in _KINDS.items()}

Refused = Literal["refused_truncated", "refused_version", "refused_mac", "refused_malformed", "traces"]
_REFUSED: Final[Mapping[probe.Refusal, Refused]] = {
    probe.Refusal.TRUNCATED: "refused_truncated",
    probe.Refusal.BAD_VERSION: "refused_version",
    probe.Refusal.BAD_MAC: "refused_mac",
    probe.Refusal.MALFORMED: "refused_malformed",
    probe.Refusal.TRACE: "traces",
}


class Group:
    """Paths to one peer with one interval: they are probed together."""

    __slots__ = ("due_s", "interval_s", "paths", "peer")

    def __init__(self, peer: Peer, interval_s: float, due_s: float) -> None:
        self.peer, self.interval_s, self.due_s = peer, interval_s, due_s
        self.paths: list[SentPath] = []


class ProbeEdge:
    """Probes paths and emits what they prove.

    Sockets are made in the network namespace of the thread that calls `set_uplink`. `clock` is CLOCK_MONOTONIC in
    seconds. Nothing is sent or opened before `open()`, which needs a running event loop."""

    def __init__(
        self,
        settings: CoreSettings,
        key: bytes,
        emit: Callable[[Event], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._key, self._emit, self._clock = settings, key, emit, clock
        self._own = ipaddress.ip_address(settings.address).packed
        self._protocol = TCP if settings.probing.protocol == "tcp" else UDP
        self._offset = payload_offset(len(self._own), self._protocol)
        self._addresses_at = 22 if len(self._own) == 16 else 26
        self._least_bytes = settings.probing.size_bytes - (20 if self._protocol == TCP else 8)
        self._boot = 0
        self._epoch = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._armed_s = math.inf
        self._holder: socket.socket | None = None
        self._ports: dict[str, Port] = {}
        self._watching_calm = False
        self._peers: dict[bytes, Peer] = {}
        self._heap: list[tuple[float, int, Group]] = []
        self._tick_s = math.inf
        """The shortest interval of all paths."""
        self._hot: dict[Peer, float] = {}
        """Peers with a suspect path: when their next extra probes are due."""
        self._lossy: set[Peer] = set()
        self._owed: set[Peer] = set()
        """Peers heard since they last got a report."""
        self._window_s = self._housekeeping_s = 0.0
        self._judge_from_s = -math.inf
        self._notice_id = 0
        self._host_budget = Bucket(settings.probing.max_packets_per_s)
        self._link_budgets: dict[str, Bucket] = {}
        self.stats = ProbeStats()

    # life
    def open(self) -> None:
        """OSError when the UDP port is in use (with TCP nothing is bound: segments with RST are never answered)."""
        if self._protocol == UDP:
            family = socket.AF_INET6 if len(self._own) == 16 else socket.AF_INET
            self._holder = socket.socket(family, socket.SOCK_DGRAM)  # else the kernel answers "port unreachable"
            try:
                drop = bpf.Filter(bpf.nothing())
                self._holder.setsockopt(socket.SOL_SOCKET, bpf.SO_ATTACH_FILTER, drop.fprog)
                self._holder.bind((self._settings.address, self._settings.probing.port))
            except OSError as error:
                self._holder.close()
                self._holder = None
                where = f"{self._settings.address} port {self._settings.probing.port}/udp"
                raise OSError(error.errno, f"probes need {where}: {error.strerror}") from error
        self._loop = asyncio.get_running_loop()
        self._boot = secrets.randbits(32) | 1
        now_s = self._judge_from_s = self._clock()
        self._window_s = now_s + WINDOW_S
        self._housekeeping_s = now_s + HOUSEKEEPING_S
        self._arm()

    def close(self) -> None:
        """Stop sending and close every socket. Safe to call twice."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for name in list(self._ports):
            self.drop_uplink(name)
        if self._holder is not None:
            self._holder.close()
            self._holder = None
        self._loop = None

    def set_uplink(self, name: str, ifindex: int, mac: bytes, gateway_mac: bytes = b"") -> None:
        """An uplink is usable, or has other addresses than before. MACs are 6 bytes; b"": the gateway's is not known,
        and nothing is sent over this uplink. OSError when the device is gone or packet sockets are not permitted."""
        loop = self._running()
        port = self._ports.get(name)
        if port is not None and (port.ifindex, port.mac) != (ifindex, mac):
            self.drop_uplink(name)
            port = None
        if port is None:
            port = Port(name, ifindex, mac, gateway_mac)
            port.open(len(self._own), self._protocol, self._settings.probing.port)
            self._ports[name] = port
            calm, urgent = port.filenos()
            loop.add_reader(urgent, self._on_urgent)
            if self._watching_calm:
                loop.add_reader(calm, self._on_urgent)
            self._link_budgets.setdefault(name, Bucket(self._settings.probing.max_link_packets_per_s))
        self.set_neighbour(name, gateway_mac)

    def set_neighbour(self, name: str, gateway_mac: bytes) -> None:
        port = self._ports.get(name)
        if port is not None:
            port.gateway_mac = gateway_mac
            self._forget_templates(name)

    def drop_uplink(self, name: str) -> None:
        """The uplink cannot be used (no carrier, gone): nothing is sent over it until `set_uplink`."""
        port = self._ports.pop(name, None)
        if port is not None:
            for fileno in port.filenos():
                self._running().remove_reader(fileno)
            port.close()
            self._forget_templates(name)

    # orders
    def set_probes(self, command: SetProbes) -> None:
        """The whole plan. Paths that stay keep their counters and their evidence."""
        now_s = self._clock()
        wanted: dict[bytes, dict[tuple[str, int], ProbeTarget]] = {}
        for target in command.targets:
            packed = ipaddress.ip_address(target.peer).packed
            wanted.setdefault(packed, {})[target.uplink, target.label] = target
        for packed, peer in self._peers.items():
            for path in [p for p in peer.paths.values() if p.key not in wanted.get(packed, {})]:
                peer.drop_path(path)
            if packed not in wanted:
                peer.planned_s, peer.silent = math.inf, False
        self.stats.over_limit_paths = 0
        for packed, targets in wanted.items():
            peer = self._peer(packed)
            peer.planned_s = min(peer.planned_s, now_s)
            for key, target in targets.items():
                known = peer.by_key.get(key)
                if known is None and len(peer.paths) >= probe.MAX_REPORT:
                    self.stats.over_limit_paths += 1
                    continue
                path = known or peer.add_path(*key, self._settings.detection, now_s)
                path.interval_s = target.interval_s
        self._plan(now_s)

    def _plan(self, now_s: float) -> None:
        paths = [(peer, path) for peer in self._peers.values() for path in peer.paths.values()]
        probing = self._settings.probing
        factor = stretch(
            [(path.uplink, path.interval_s) for _, path in paths],
            probing.max_packets_per_s, probing.max_link_packets_per_s,
        )  # fmt: skip
        self.stats.stretch = factor
        due = {(g.peer, g.interval_s): g.due_s for _, _, g in self._heap}
        groups: dict[tuple[Peer, float], Group] = {}
        for peer, path in paths:
            path.interval_s *= factor
            place = (peer, path.interval_s)
            if place not in groups:
                # slow groups are spread over their interval, fast ones share a tick
                part = 0.0 if path.interval_s <= FAST_S else (len(groups) * 0.618 % 1) * min(path.interval_s, 1.0)
                groups[place] = Group(peer, path.interval_s, due.get(place, now_s + part))
            groups[place].paths.append(path)
        self._heap = [(g.due_s, number, g) for number, g in enumerate(groups.values())]
        heapq.heapify(self._heap)
        self._tick_s = min((g.interval_s for g in groups.values()), default=math.inf)
        self._watch_calm(on=self._tick_s > FAST_S)
        self._arm()

    def send_notice(self, command: SendNotice) -> None:
        """Tell peers at once over every usable uplink; repeat until acknowledged or expired. Emits NoticeAcked."""
        now_s = self._clock()
        word = command.notice
        for address in command.peers:
            peer = self._peer(ipaddress.ip_address(address).packed)
            self._notice_id += 1
            wire = probe.WireNotice(_KINDS[word.kind], self._notice_id, word.seq, word.ttl_s, word.origin, word.link)
            peer.outgoing.append(Outgoing(command.cmd_id, wire, now_s))
            self._repeat_notices(peer, now_s)
        self._arm()

    def note_data(self, peer: str, delivered_bytes: int) -> None:
        """The job's connections to this peer have delivered so many bytes more since the last call."""
        known = self._peers.get(ipaddress.ip_address(peer).packed)
        if known is None or not known.paths:
            return
        if delivered_bytes <= 0 or self._clock() - max(known.last_heard_s, known.planned_s) < FILTERED_S:
            known.data_notes = 0
            return
        known.data_notes += 1
        if known.data_notes >= 2 and known.sent_since_heard >= 10 and not known.filtered_said:
            known.filtered_said = True
            probing = self._settings.probing
            pair = f"{{ {self._settings.address}, {known.address} }}"
            family = "ip6" if len(self._own) == 16 else "ip"
            match = f"{family} saddr {pair} {family} daddr {pair}"
            ports = f"{probing.protocol} sport {probing.port} {probing.protocol} dport {probing.port}"
            self._emit(PeerFiltered(peer=known.address, rule=f"{match} {ports} accept"))

    # the tick
    def _arm(self) -> None:
        loop = self._loop
        if loop is None:
            return
        due_s = self._housekeeping_s
        if self._heap:
            due_s = min(due_s, self._heap[0][0])
        if self._hot:
            due_s = min(due_s, min(self._hot.values()))
        if self._timer is not None:
            if due_s == self._armed_s:
                return
            self._timer.cancel()
        self._armed_s = due_s
        self._timer = loop.call_later(max(0.0, due_s - self._clock()), self._tick)

    def _tick(self) -> None:
        self._timer = None
        now_s = self._clock()
        late_s = now_s - self._armed_s
        if late_s > LATE_S:
            self.stats.daemon_late += 1
            self._judge_from_s = now_s
            self._emit(DaemonLate(late_s=late_s))
        self._drain()
        self._send_due(now_s)
        if now_s >= self._housekeeping_s:
            self._housekeeping_s = now_s + HOUSEKEEPING_S
            self._judge_silence(now_s)
            for peer in [p for p in self._peers.values() if p.outgoing]:
                self._repeat_notices(peer, now_s)
        if now_s >= self._window_s:
            self._window_s = now_s + WINDOW_S
            self._tell_windows(now_s)
        self._answer(now_s)
        self._arm()

    def _on_urgent(self) -> None:
        self._drain()
        self._answer(self._clock())
        self._arm()

    def _send_due(self, now_s: float) -> None:
        while self._heap and self._heap[0][0] <= now_s:
            _, number, group = self._heap[0]
            due_s = group.due_s + group.interval_s
            group.due_s = due_s if due_s > now_s else now_s + group.interval_s
            heapq.heapreplace(self._heap, (group.due_s, number, group))
            hot = group.peer in self._hot
            self._send(group.peer, group.paths, probe.URGENT | probe.ASK if hot else 0)
            if hot:
                self._hot[group.peer] = now_s + group.interval_s / 4
        for peer, due_s in list(self._hot.items()):
            if due_s <= now_s:
                self._send_extra(peer, now_s)

    def _send_extra(self, peer: Peer, now_s: float) -> None:
        suspects = [p for p in peer.paths.values() if p.suspect_until_s > now_s]
        if not suspects:
            del self._hot[peer]
            return
        self._hot[peer] = now_s + min(p.interval_s for p in suspects) / 4
        names = {p.uplink for p in suspects}
        calm = [
            p for p in self._best(peer, per_uplink=2) if p not in suspects and p.detector.verdict.evidence == "good"
        ]
        calm.sort(key=lambda p: p.uplink in names)
        chosen = suspects + calm[:1]
        if self._afford(now_s, [p.uplink for p in chosen]):
            self.stats.sent_extra += self._send(peer, chosen, probe.URGENT | probe.ASK, spent=True)

    def _afford(self, now_s: float, uplinks: list[str]) -> bool:
        """Packets beyond the plan: they have to fit into what the plan leaves of both limits."""
        for name in set(uplinks):
            bucket = self._link_budgets.get(name)
            if bucket is not None and not bucket.take(now_s, uplinks.count(name)):
                return False
        return self._host_budget.take(now_s, len(uplinks))

    def _send(self, peer: Peer, paths: list[SentPath], flags: int, *, spent: bool = False) -> int:
        """A batch: one report, one time stamp, one probe on each path. Returns how many left."""
        now_s = self._clock()
        report = self._report(peer, now_s)
        sent_ns = int(now_s * 1e9)
        left = 0
        for path in paths:
            port = self._ports.get(path.uplink)
            if port is None or not port.ready:
                self.stats.unsent += 1
                continue
            template = path.template
            if template is None:
                template = path.template = self._template(port, peer, path.label)
            sequence = path.seq + 1
            payload = probe.encode(self._key, peer.to_peer, report, self._boot, path.index, sequence, sent_ns, flags)
            try:
                port.send(template.frame(payload, sequence))
            except OSError:
                self.stats.unsent += 1
                continue
            path.record(now_s)
            left += 1
            if not spent:
                self._link_budgets[path.uplink].spend(now_s, 1)
            if sequence >= LAST_SEQUENCE:
                self._renew_boot()
                break
        if left:
            self.stats.sent += left
            peer.sent_since_heard += left
            self._owed.discard(peer)
            if not spent:
                self._host_budget.spend(now_s, left)
        return left

    def _renew_boot(self) -> None:
        """Sequence numbers never wrap: a new boot id starts them again (after a year of 100 probes/s)."""
        self._boot = secrets.randbits(32) | 1
        for peer in self._peers.values():
            peer.restart()

    def _report(self, peer: Peer, now_s: float, notices: list[probe.WireNotice] | None = None) -> probe.Report:
        peer.reports_sent += 1
        acks = list(peer.acks)[:16]
        for number in acks:
            del peer.acks[number]
        return probe.Report(
            peer.reports_sent, peer.boot, self._epoch, peer.report_entries(now_s) if not notices else (), notices or (),
            acks, self._least_bytes,
        )  # fmt: skip

    def _template(self, port: Port, peer: Peer, label: int) -> Template:
        probing = self._settings.probing
        return Template(
            Headers(
                port.mac,
                port.gateway_mac,
                self._own,
                peer.packed,
                self._protocol,
                probing.port,
                probing.port,
                label=label,
                dscp=probing.dscp,
            )
        )

    def _forget_templates(self, uplink: str) -> None:
        for peer in self._peers.values():
            for path in peer.paths.values():
                if path.uplink == uplink:
                    path.template = None
            for place in [p for p in peer.loose_templates if p[0] == uplink]:
                del peer.loose_templates[place]

    # packets without a path: answers and notices
    def _answer(self, now_s: float) -> None:
        """Reports out of turn: at once to who asked, soon to who is not probed (soon) by the plan."""
        for peer in list(self._owed):
            gap_s = ANSWER_GAP_S if peer.asked else REPORT_GAP_S
            if not peer.asked and any(p.interval_s <= FAST_S for p in peer.paths.values()):
                self._owed.discard(peer)  # the next batch tells it
            elif now_s - peer.answered_s >= gap_s:
                places = self._places(peer)[:2] if peer.paths else self._places(peer)[:1]
                if places and self._afford(now_s, [uplink for uplink, _ in places]):
                    flags = probe.URGENT if peer.asked else 0
                    peer.asked = False
                    peer.answered_s = now_s
                    self._owed.discard(peer)
                    self._send_loose(peer, places, self._report(peer, now_s), flags)

    def _places(self, peer: Peer) -> list[tuple[str, int]]:
        """Where packets without a path go: the best path of each usable uplink, or back where the peer was heard."""
        best = [(p.uplink, p.label) for p in self._best(peer)]
        if not best and peer.heard_by is not None and peer.heard_by[0] in self._usable():
            best = [peer.heard_by]
        return best

    def _send_loose(self, peer: Peer, places: list[tuple[str, int]], report: probe.Report, flags: int) -> None:
        sent_ns = int(self._clock() * 1e9)
        for place in places:
            port = self._ports[place[0]]
            template = peer.loose_templates.get(place)
            if template is None:
                if len(peer.loose_templates) >= 64:
                    peer.loose_templates.clear()
                template = peer.loose_templates[place] = self._template(port, peer, place[1])
            peer.loose_sequence += 1
            payload = probe.encode(
                self._key, peer.to_peer, report, self._boot, probe.NO_PATH, peer.loose_sequence, sent_ns, flags
            )
            try:
                port.send(template.frame(payload, peer.loose_sequence))
            except OSError:
                self.stats.unsent += 1
            else:
                self.stats.sent += 1
                self.stats.sent_answers += 1

    def _repeat_notices(self, peer: Peer, now_s: float) -> None:
        peer.outgoing = [o for o in peer.outgoing if o.expires_s > now_s]
        due = [o for o in peer.outgoing if o.next_s <= now_s]
        if not due:
            return
        known = dict(self._places(peer))
        places = [(name, known.get(name, 0)) for name in sorted(self._usable())]
        notices: list[probe.WireNotice] = []
        room = probe.MAX_BYTES - probe.HEADER_BYTES - probe.MAC_BYTES - 128
        for one in due:
            one.notice = probe.WireNotice(
                one.notice.kind,
                one.notice.id,
                one.notice.seq,
                one.expires_s - now_s,
                one.notice.origin,
                one.notice.link,
            )
            room -= len(probe.notice_bytes(one.notice))
            if room < 0:
                break
            notices.append(one.notice)
            one.next_s = now_s + one.gap_s
            one.gap_s = min(NOTICE_GAP_MAX_S, one.gap_s * 2)
        self._send_loose(peer, places, self._report(peer, now_s, notices), probe.URGENT | probe.ASK)
        self._housekeeping_s = min(self._housekeeping_s, min(o.next_s for o in peer.outgoing))

    # hearing
    def _drain(self) -> None:
        received: list[Received] = []
        overflowed = False
        for port in self._ports.values():
            overflowed = port.drain(received) or overflowed
        if overflowed:
            self.stats.overflows += 1
            self._epoch = (self._epoch + 1) & 0xFF
        if received:
            now_s = self._clock()
            ahead_s = time.clock_gettime(time.CLOCK_REALTIME) - now_s
            for frame, wall_s, uplink in received:
                self._hear(frame, min(now_s, wall_s - ahead_s), uplink, now_s)

    def _hear(self, frame: bytes, received_s: float, uplink: str, now_s: float) -> None:
        own = self._own
        at = self._addresses_at
        addresses = frame[at : at + 2 * len(own)]
        if addresses[len(own) :] != own:
            self.stats.refused_address += 1
            return
        packet = probe.decode(self._key, addresses, frame[self._offset :])
        if isinstance(packet, probe.Refusal):
            name = _REFUSED[packet]
            setattr(self.stats, name, getattr(self.stats, name) + 1)
            return
        peer = self._peers.get(addresses[: len(own)])
        if peer is None:
            peer = self._peer(addresses[: len(own)])
        if packet.boot != peer.boot:
            if packet.boot in peer.retired:
                self.stats.refused_boot += 1
                return
            if not peer.boot:
                self._emit(PeerKnown(peer=peer.address))
            peer.adopt(packet.boot)
        heard = peer.heard.get(packet.path)
        if heard is None:
            heard = peer.heard[packet.path] = HeardPath()
        newest = packet.sequence > heard.window.newest
        if not heard.window.accept(packet.sequence):
            self.stats.refused_replay += 1
            return
        self.stats.heard += 1
        sent_s = packet.sent_ns * 1e-9
        heard.hear(received_s, sent_s, newest=newest)
        peer.clock.add(received_s, received_s - sent_s)
        label = int.from_bytes(frame[15:18], "big") & 0xFFFFF if len(own) == 16 else 0
        peer.heard_by = (uplink, label)
        peer.last_heard_s = max(peer.last_heard_s, received_s)
        peer.sent_since_heard = 0
        peer.filtered_said = False
        if packet.path != probe.NO_PATH or packet.flags & probe.ASK:
            self._owed.add(peer)
            peer.asked = peer.asked or bool(packet.flags & probe.ASK)
        if peer.silent:
            peer.silent = False
            self._emit(PeerBack(peer=peer.address))
        if packet.report_boot == self._boot:
            if packet.epoch != peer.epoch:
                peer.count_anew(packet.epoch)
            if packet.entries and packet.report_sequence > peer.report_heard:
                peer.report_heard = packet.report_sequence
                self._settle(peer, packet, received_s, now_s)
            if packet.tlvs:
                self._take_words(peer, packet)

    def _settle(self, peer: Peer, packet: probe.Probe, received_s: float, now_s: float) -> None:
        stats = self.stats
        stats.late += peer.take_report(packet, received_s, self._settings.detection.blackhole_losses)
        lost = False
        for path in peer.paths.values():
            if not (path.step_sent or path.missing):
                continue
            stats.settled += path.step_sent
            stats.lost += path.step_lost
            before = path.detector.verdict.evidence
            verdict = path.detector.update(
                received_s, path.step_sent, path.step_lost, path.missing, path.step_queueing_s
            )  # fmt: skip
            if before != "blackhole":
                lost = lost or path.step_lost > 0
                path.window_sent += path.step_sent
                path.window_lost += path.step_lost
            if before in ("good", "queueing") and (path.step_lost or path.missing):
                path.suspect_until_s = now_s + SUSPECT_S
                self._hot.setdefault(peer, now_s)
            if verdict is not None:
                if verdict.evidence in ("blackhole", "lossy"):
                    path.suspect_until_s = -math.inf
                self._emit(
                    PathEvidence(
                        peer=peer.address,
                        uplink=path.uplink,
                        label=path.label,
                        evidence=verdict.evidence,
                        loss_ratio=1.0 if verdict.evidence == "blackhole" else path.detector.loss_ratio,
                        rtt_s=path.rtt_s,
                        why=verdict.why,
                    )
                )
        if lost:
            peer.lossy_until_s = now_s + LOSSY_S
            self._lossy.add(peer)
        elif peer not in self._lossy:
            for path in peer.paths.values():
                path.window_sent = path.window_lost = 0

    def _take_words(self, peer: Peer, packet: probe.Probe) -> None:
        """Only from a packet that reports about this run of ours: no recording can speak with a peer's voice."""
        words = packet.words()
        if words is None:
            self.stats.refused_malformed += 1
            return
        notices, acks = words
        for notice in notices:
            peer.acks[notice.id] = None
            place = (notice.origin, int(notice.kind), notice.seq, notice.link)
            if place not in peer.seen_notices:
                peer.seen_notices[place] = None
                if len(peer.seen_notices) > 1024:
                    del peer.seen_notices[next(iter(peer.seen_notices))]
                kind = _KIND_OF[int(notice.kind)]
                value = Notice(kind, notice.link, notice.origin, notice.seq, notice.ttl_s)
                self._emit(NoticeHeard(peer=peer.address, notice=value))
        for number in acks:
            for one in [o for o in peer.outgoing if o.notice.id == number]:
                peer.outgoing.remove(one)
                self._emit(NoticeAcked(cmd_id=one.cmd_id, peer=peer.address))

    # judging
    def _judge_silence(self, now_s: float) -> None:
        silent_s = self._settings.detection.silent_s
        for peer in self._peers.values():
            if peer.silent or not peer.paths or peer.last_heard_s == -math.inf or peer.sent_since_heard < 3:
                continue
            limit_s = max(silent_s, 3 * min(p.interval_s for p in peer.paths.values()))
            since_s = max(peer.last_heard_s, self._judge_from_s, peer.planned_s)
            if now_s - since_s > limit_s:
                peer.silent = True
                self._emit(PeerSilent(peer=peer.address, silent_s=now_s - peer.last_heard_s))

    def _tell_windows(self, now_s: float) -> None:
        for peer in list(self._lossy):
            counts = tuple(p.take_window() for p in peer.paths.values() if p.window_sent)
            if now_s > peer.lossy_until_s:
                self._lossy.discard(peer)
            if counts:
                self._emit(PathWindow(peer=peer.address, counts=counts))

    # small things
    def _peer(self, packed: bytes) -> Peer:
        peer = self._peers.get(packed)
        if peer is None:
            if len(packed) != len(self._own):
                raise ValueError(f"peer {ipaddress.ip_address(packed)}: not of the family of {self._settings.address}")
            peer = self._peers[packed] = Peer(str(ipaddress.ip_address(packed)), packed, self._own)
        return peer

    def _usable(self) -> set[str]:
        return {name for name, port in self._ports.items() if port.ready}

    def _best(self, peer: Peer, per_uplink: int = 1) -> list[SentPath]:
        return peer.best_paths(self._usable(), per_uplink)

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            raise RuntimeError("open() comes first")
        return self._loop

    def _watch_calm(self, *, on: bool) -> None:
        if on == self._watching_calm:
            return
        self._watching_calm = on
        loop = self._running()
        for port in self._ports.values():
            if on:
                loop.add_reader(port.filenos()[0], self._on_urgent)
            else:
                loop.remove_reader(port.filenos()[0])

    def snapshot(self) -> Snapshot:
        """Everything `status` and the metrics show, as of now."""
        now_s = self._clock()
        peers = []
        paths = []
        for peer in self._peers.values():
            age_s = now_s - peer.last_heard_s
            planned = bool(peer.paths)
            peers.append(
                PeerView(peer.address, planned, peer.silent, age_s if age_s < math.inf else None, len(peer.paths))
            )
            for path in peer.paths.values():
                answered_age_s = now_s - path.sent_at(path.acked)
                verdict = path.detector.verdict
                paths.append(
                    PathView(
                        peer.address,
                        path.uplink,
                        path.label,
                        verdict.evidence,
                        verdict.why,
                        path.detector.loss_ratio,
                        path.rtt_s,
                        path.rtt_floor.value if path.rtt_s else 0.0,
                        path.queueing_s,
                        answered_age_s if answered_age_s < math.inf else None,
                        path.sent,
                        path.lost,
                        path.interval_s,
                    )
                )
        return Snapshot(tuple(peers), tuple(paths), self.stats)
