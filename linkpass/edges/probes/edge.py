"""The schedule of the probes: one timer, one tick.

A tick first drains every receive ring and only then builds reports, so that a report never says "not heard" of what
lies in a buffer. All that falls due is sent in one go. While every path is good, probes wake nobody: they are read at
the next tick. Where ticks are rare they wake the loop once a batch, and a peer of which some paths were not heard is
told so at once. When something is at stake, each packet wakes the loop. A path with a lost probe is suspect until so
many heard ones as acquit a path could have been sent, for half a second at least: it gets up to four times the probes,
with the question to answer at once, and so does one good path beside it as a witness. A path with an overdue probe is
suspect until that has come, and all paths to a peer are for half a second after the job has sent it something again.

What a peer did not hear is known only from its reports, so a daemon that runs late (ours or the peer's) loses no
evidence and makes none. Silence is judged only over time in which this daemon was on time."""

from __future__ import annotations

import asyncio
import ipaddress
import math
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from linkpass.core.commands import ProbeTarget, SendNotice, SetProbes
from linkpass.core.events import DaemonLate, Event, PathWindow, PeerFiltered, PeerSilent, ProbeDelays
from linkpass.core.settings import CoreSettings
from linkpass.core.survey import FAST_S
from linkpass.edges.probes.books import Books
from linkpass.edges.probes.budget import Bucket
from linkpass.edges.probes.hearing import KINDS, SUSPECT_S, Listener
from linkpass.edges.probes.lateness import LATENESS_S, delays_of
from linkpass.edges.probes.pace import PaceTalk
from linkpass.edges.probes.paths import SentPath
from linkpass.edges.probes.peers import Outgoing, Peer
from linkpass.edges.probes.ports import Port, TunnelPort
from linkpass.edges.probes.schedule import Schedule
from linkpass.edges.probes.sending import EXTRA, Sender
from linkpass.edges.probes.snapshot import ProbeStats, Snapshot, snapshot_of
from linkpass.faults import Faults
from linkpass.wire import bpf, probe
from linkpass.wire.frame import UDP
from linkpass.wire.vxlan import End

if TYPE_CHECKING:
    from linkpass.edges.probes.roce import RoceProbes

FAULT_PAUSE_S: Final = 0.01
"""After a fault of ours the next tick comes no sooner: what was due may be due still."""
LATE_S: Final = 0.020
LATE_KEPT: Final = 64
BLIND_S: Final = 0.2
"""A tick that is later than this finds rings that may have overflowed: what was not heard until then proves nothing."""
WINDOW_S: Final = 0.05
HOUSEKEEPING_S: Final = 0.05
GATHER_S: Final = 0.01
"""Where ticks are rare packets wake the loop, and so much later all are read that have come by then: one batch, mostly.
"""
FILTERED_S: Final = 2.0


class ProbeEdge:
    """Probes paths and emits what they prove.

    Sockets are made in the network namespace of the thread that calls `set_uplink`. `clock` is CLOCK_MONOTONIC in
    seconds. Nothing is sent or opened before `open()`, which needs a running event loop. `key`: the fabric's shared
    secret, not empty (ValueError)."""

    def __init__(
        self,
        settings: CoreSettings,
        key: bytes,
        emit: Callable[[Event], None],
        clock: Callable[[], float] = time.monotonic,
        vrf: str = "",
    ) -> None:
        """`vrf`: name of the VRF device that has this host's address; empty: none."""
        self._settings, self._emit, self._clock = settings, emit, clock
        self._vrf = vrf.encode()
        self._signer = signer = probe.Signer(key)
        self._books = Books(settings)
        self._listener = Listener(self._books, signer, emit, clock)
        self._sender = Sender(self._books, signer, clock, self._listener.fresh)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._armed_s = math.inf
        self._holder: socket.socket | None = None
        self._gathering: asyncio.TimerHandle | None = None
        """Packets have come, and what belongs to them is waited for."""
        self._watching = True
        """Whether packets wake the loop."""
        self._schedule = Schedule(self._books)
        self._window_s = self._housekeeping_s = self._notices_s = self._lateness_s = math.inf
        self._judge_from_s = -math.inf
        self._late: deque[tuple[float, float]] = deque(maxlen=LATE_KEPT)
        """When ticks came late, and by how much."""
        self._notice_id = 0
        self._left_tunnels: list[TunnelPort] = []
        """Of devices that are gone: closing one waits (an RCU grace period), which has time until the end."""
        self.roce: RoceProbes | None = None
        self._faults = Faults()
        """Datagrams through RDMA devices, once `open_roce` was called."""

    @property
    def stats(self) -> ProbeStats:
        return self._books.stats

    def snapshot(self) -> Snapshot:
        """Everything `status` and the metrics show, as of now."""
        books = self._books
        return snapshot_of(books.peers.values(), books.stats, books.boot, self._clock())

    # life
    def open(self) -> None:
        """OSError when probes are UDP and their port is in use (with TCP, segments with RST are never answered)."""
        try:
            self._hold_port()
        except OSError as error:
            if self._books.protocol == UDP:  # else the kernel would answer every probe with "port unreachable"
                where = f"{self._settings.address} port {self._settings.probing.port}/udp"
                raise OSError(error.errno, f"probes need {where}: {error.strerror}") from error
        self._loop = asyncio.get_running_loop()
        self._books.draw_boot()
        now_s = self._judge_from_s = self._clock()
        self._window_s = now_s + WINDOW_S
        self._housekeeping_s = now_s + HOUSEKEEPING_S
        self._lateness_s = now_s + LATENESS_S
        self._arm()

    def _hold_port(self) -> None:
        """Hold the UDP port, also when probes are TCP: by "port unreachable" a peer then knows that this daemon has
        ended, though its host runs (`edges.echoes`). Nothing is ever received from it."""
        family = socket.AF_INET6 if len(self._books.own) == 16 else socket.AF_INET
        self._holder = socket.socket(family, socket.SOCK_DGRAM)
        try:
            drop = bpf.Filter(bpf.nothing())
            self._holder.setsockopt(socket.SOL_SOCKET, bpf.SO_ATTACH_FILTER, drop.fprog)
            if self._vrf:
                self._holder.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, self._vrf + b"\0")
            self._holder.bind((self._settings.address, self._settings.probing.port))
        except OSError:
            self._holder.close()
            self._holder = None
            raise

    def open_roce(self, prefixes: Iterable[str]) -> list[str]:
        """Ask peers also through the RDMA devices that have an address in `prefixes`; what cannot be had, in words."""
        from linkpass.edges.probes.roce import RoceProbes

        self.roce = RoceProbes(self._books, self._sender, self._signer, self._emit, self._clock, prefixes)
        return self.roce.open()

    def open_pace(self) -> PaceTalk:
        """Say and hear the pace of the job from now on."""
        return PaceTalk(self._books, self._sender, self._emit, self._clock)

    def close(self) -> None:
        """Stop sending and close every socket. Safe to call twice."""
        if self.roce is not None:
            self.roce.close()
            self.roce = None
        for timer in (self._timer, self._gathering):
            if timer is not None:
                timer.cancel()
        self._timer = self._gathering = None
        for name in list(self._books.ports):
            self._close_port(name)
        for out in (*self._books.tunnels.values(), *self._left_tunnels):
            out.close()
        self._books.tunnels.clear()
        self._left_tunnels.clear()
        if self._holder is not None:
            self._holder.close()
            self._holder = None
        self._loop = None

    def set_uplink(self, name: str, ifindex: int, mac: bytes, gateway_mac: bytes = b"") -> None:
        """An uplink is usable, or has other addresses than before. MACs are 6 bytes; b"": the gateway's is not known,
        and nothing is sent over this uplink. OSError when the device is gone or packet sockets are not permitted."""
        loop, books, probing = self._running(), self._books, self._settings.probing
        port = books.ports.get(name)
        if port is not None and (port.ifindex, port.mac) != (ifindex, mac):
            self._close_port(name)
            port = None
        if port is None:
            port = Port(name, ifindex, mac, gateway_mac)
            port.open(len(books.own), books.protocol, probing.port)
            books.ports[name] = port
            if self._watching:
                loop.add_reader(port.fileno(), self._on_packet)
            books.link_budgets.setdefault(name, Bucket(probing.max_link_packets_per_s))
        port.usable = True
        port.read_mtu()
        self.set_neighbour(name, gateway_mac)

    def set_neighbour(self, name: str, gateway_mac: bytes) -> None:
        """The gateway's link address: 6 bytes, or b"" while it is not known."""
        port = self._books.ports.get(name)
        if port is not None and port.gateway_mac != gateway_mac:
            port.gateway_mac = gateway_mac
            self._books.forget_templates(name)

    def drop_uplink(self, name: str) -> None:
        """The uplink cannot be used (no carrier, gone): nothing is sent over it until `set_uplink`.

        Its sockets stay: closing a packet socket waits for an RCU grace period (10 to 20 ms each), and this is
        called at the very moment when the loop has to move traffic."""
        port = self._books.ports.get(name)
        if port is not None:
            port.usable = False
            for peer in self._books.peers.values():
                for path in peer.paths.values():
                    if path.uplink == name:
                        path.count_anew()  # what was under way when the port went down proves nothing of the path

    # tunnels
    def on_end(self, tell: Callable[[str, End | None], None]) -> None:
        """Let `tell` hear where peers take packets out of tunnels (None: nowhere), whenever that changes."""
        self._books.on_end = lambda peer, end: tell(peer.address, end)

    def set_end(self, end: End | None, device: str = "", ifindex: int = 0) -> None:
        """Tell peers where packets are taken out of tunnels here, and listen on the device that they come out of; None:
        nowhere (any more). OSError as of `set_uplink`."""
        self._books.end = end or probe.NO_END
        for peer in self._books.peers.values():
            peer.end_said = 0
        if end is not None:
            self.set_uplink(device, ifindex, b"")

    def set_tunnels(self, devices: Mapping[int, tuple[str, int]]) -> None:
        """The tunnels that there are: source port -> (device, mark). Made in this thread's namespace. OSError when a
        device is gone; the others' are made."""
        books, failed = self._books, None
        for port in list(books.tunnels):
            self._left_tunnels.append(books.tunnels.pop(port))
        for port, (device, mark) in devices.items():
            try:
                books.tunnels[port] = TunnelPort(device, mark)
            except OSError as error:
                failed = error
        if failed is not None:
            raise failed

    def end_of(self, address: str) -> End | None:
        """Where a peer takes packets out of tunnels; None: nowhere, as far as it has said."""
        peer = self._books.peers.get(ipaddress.ip_address(address).packed)
        return peer.end if peer is not None else None

    def _close_port(self, name: str) -> None:
        port = self._books.ports.pop(name)
        self._running().remove_reader(port.fileno())
        port.close()
        self._books.forget_templates(name)

    # orders
    def set_probes(self, command: SetProbes) -> None:
        """The whole plan. Paths that stay keep their counters and their evidence."""
        books = self._books
        now_s = self._clock()
        wanted: dict[bytes, dict[tuple[str, int], ProbeTarget]] = {}
        for target in command.targets:
            packed = ipaddress.ip_address(target.peer).packed
            wanted.setdefault(packed, {})[target.uplink, target.label] = target
        for packed, peer in books.peers.items():
            for path in [p for p in peer.by_key.values() if p.key not in wanted.get(packed, {})]:
                peer.drop_path(path)
            if packed not in wanted:
                peer.planned_s, peer.silent = math.inf, False
        books.stats.over_limit_paths = 0
        for packed, targets in wanted.items():
            peer = books.peer(packed)
            peer.planned_s = min(peer.planned_s, now_s)
            for key, target in targets.items():
                known = peer.by_key.get(key)
                if known is None and len(peer.by_key) >= probe.MAX_REPORT:
                    books.stats.over_limit_paths += 1
                    continue
                path = known or peer.add_path(*key, self._settings.detection, now_s, telling=target.telling)
                path.interval_s = target.interval_s
            for path in peer.by_key.values():
                self._give_twin(peer, path, now_s, may=not targets[path.key].telling)
        self._schedule.plan(now_s)
        self._arm()

    def _give_twin(self, peer: Peer, path: SentPath, now_s: float, *, may: bool) -> None:
        """Large probes beside, or none any more: slow paths have none, they would take too long to say anything."""
        ratio = self._settings.probing.large_ratio
        room = probe.MAX_REPORT - len(peer.paths) + (path.twin is not None)
        if may and ratio > 0 and path.interval_s <= FAST_S and room > 0:
            twin = path.twin or peer.add_twin(path, self._settings.detection, now_s)
            twin.interval_s = path.interval_s / ratio
        elif path.twin is not None:
            peer.drop_twin(path.twin)
            self._listener.tell(peer, path)

    def send_notice(self, command: SendNotice) -> None:
        """Tell peers at once over every usable uplink; repeat until acknowledged or expired. Emits NoticeAcked.

        ValueError when the names in it do not fit into a packet."""
        now_s = self._clock()
        word = command.notice
        for address in command.peers:
            peer = self._books.peer(ipaddress.ip_address(address).packed)
            self._notice_id += 1
            wire = probe.WireNotice(KINDS[word.kind], self._notice_id, word.seq, word.ttl_s, word.origin, word.link)
            probe.notice_bytes(wire)
            peer.outgoing.append(Outgoing(command.cmd_id, wire, now_s))
        self._repeat_notices(now_s)
        self._arm()

    def _repeat_notices(self, now_s: float) -> None:
        telling = [p for p in self._books.peers.values() if p.outgoing]
        self._notices_s = min((self._sender.notices(peer, now_s) for peer in telling), default=math.inf)

    def ask_more(self, peer: str) -> None:
        """The job has sent something to this peer again. All paths to it are asked as if each had lost a probe: the
        job sends far more packets than probes are sent, and knows sooner that one was lost, but not where."""
        known = self._books.peers.get(ipaddress.ip_address(peer).packed)
        if known is None:
            return
        until_s = self._clock() + SUSPECT_S
        good = [path for path in known.by_key.values() if path.detector.verdict.evidence == "good"]
        for path in [path for path in good if path.interval_s <= FAST_S]:
            path.waits, path.suspect_until_s = False, max(path.suspect_until_s, until_s)
            self._books.hot.setdefault(known, self._clock())
        self._arm()

    def note_data(self, peer: str, delivered_bytes: int) -> None:
        """The job's connections to this peer have delivered so many bytes more since the last call.

        Emits PeerFiltered when data flows while no probe has been answered for FILTERED_S."""
        known = self._books.peers.get(ipaddress.ip_address(peer).packed)
        if known is None or not known.paths:
            return
        unheard_s = self._clock() - max(known.last_heard_s, known.planned_s)
        if delivered_bytes <= 0 or unheard_s < FILTERED_S:
            known.data_notes = 0
            return
        known.data_notes += 1
        if known.data_notes >= 2 and known.sent_since_heard >= 10 and not known.filtered_said:
            known.filtered_said = True
            if known.bad_macs:
                why = f"{known.bad_macs} packets from there are signed with another key: copy one key file to all hosts"
                self._emit(PeerFiltered(peer=known.address, rule="", why=why))
                return
            probing = self._settings.probing
            pair = f"{{ {self._settings.address}, {known.address} }}"
            family = "ip6" if len(self._books.own) == 16 else "ip"
            match = f"{family} saddr {pair} {family} daddr {pair}"
            ports = f"{probing.ip_protocol} sport {probing.port} {probing.ip_protocol} dport {probing.port}"
            self._emit(PeerFiltered(peer=known.address, rule=f"{match} {ports} accept"))

    # the tick
    def _arm(self, least_s: float = 0.0) -> None:
        """For what is due next, in `least_s` at the soonest."""
        loop = self._loop
        if loop is None:
            return
        self._watch()
        due_s = min(self._housekeeping_s, self._notices_s, self._schedule.next_s)
        if self._books.hot:
            due_s = min(due_s, min(self._books.hot.values()))
        if self._timer is not None:
            if due_s == self._armed_s:
                return
            self._timer.cancel()
        self._armed_s = due_s
        self._timer = loop.call_later(max(least_s, due_s - self._clock()), self._tick)

    def _tick(self) -> None:
        self._timer = None
        now_s = self._clock()
        late_s = now_s - self._armed_s
        if late_s > LATE_S:
            self._books.stats.daemon_late += 1
            self._late.append((now_s, late_s))
            if late_s > BLIND_S:
                self._judge_from_s = now_s
            self._emit(DaemonLate(late_s=late_s))
        before = self._faults.count
        with self._faults.caught("hearing probes"):
            self._listener.drain()
        with self._faults.caught("sending probes"):
            self._send_due(now_s)
        with self._faults.caught("looking after peers and notices"):
            self._look_after(now_s)
        with self._faults.caught("answering probes"):
            self._sender.answer(now_s)
        self._arm(FAULT_PAUSE_S if self._faults.count > before else 0.0)

    def _look_after(self, now_s: float) -> None:
        if now_s >= self._housekeeping_s:
            self._housekeeping_s = now_s + HOUSEKEEPING_S
            self._judge_silence(now_s)
        if now_s >= self._notices_s:
            self._repeat_notices(now_s)
        if now_s >= self._window_s:
            self._window_s = now_s + WINDOW_S
            self._tell_windows(now_s)
        if now_s >= self._lateness_s:
            self._lateness_s = now_s + LATENESS_S
            if delays := delays_of(self._books, self._settings.detection.slow_host_s / 2):
                self._emit(ProbeDelays(delays=delays))

    def _on_packet(self) -> None:
        if self._at_stake():
            self._read()
        elif self._gathering is None:
            self._gathering = self._running().call_later(GATHER_S, self._read)
            self._watch()

    def _read(self) -> None:
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
        with self._faults.caught("hearing probes"):
            self._listener.drain()
            if self._schedule.slow:
                self._listener.note_gaps()
            self._sender.answer(self._clock())
        self._arm()

    @property
    def faults(self) -> int:
        """Faults of linkpass itself, those of datagrams through RDMA devices too; the log has each kind."""
        return self._faults.count + (self.roce.faults if self.roce is not None else 0)

    def _send_due(self, now_s: float) -> None:
        hot = self._books.hot
        for group, was_due_s in self._schedule.due(now_s):
            paths = group.take(self._settings.probing.large_ratio)
            if group.peer in hot:
                hot[group.peer] = now_s + group.interval_s / EXTRA
                self._sender.batch(group.peer, paths, probe.ASK, due_s=was_due_s)
            else:
                self._sender.batch(group.peer, paths, due_s=was_due_s)
            self._books.late.take(now_s - was_due_s, now_s - was_due_s + group.interval_s)
        for peer in [p for p, due_s in hot.items() if due_s <= now_s]:
            self._sender.extra(peer, now_s)

    def _judge_silence(self, now_s: float) -> None:
        silent_s = self._settings.detection.silent_s
        for peer in self._books.peers.values():
            if peer.silent or not peer.paths or peer.last_heard_s == -math.inf or peer.sent_since_heard < 3:
                continue
            limit_s = max(silent_s, 3 * min(p.interval_s for p in peer.by_key.values()))
            since_s = max(peer.last_heard_s, self._judge_from_s, peer.planned_s)
            if now_s - since_s <= limit_s:
                continue
            # While we ran late the rings went on listening, but nothing was asked: that time does not count.
            if now_s - since_s - sum(late_s for at_s, late_s in self._late if at_s > since_s) > limit_s:
                peer.silent = True
                self._emit(PeerSilent(peer=peer.address, silent_s=now_s - peer.last_heard_s))

    def _tell_windows(self, now_s: float) -> None:
        lossy = self._books.lossy
        for peer in list(lossy):
            paths = [p for p in peer.by_key.values() if p.detector.verdict.evidence != "blackhole"]
            counts = tuple(p.take_window() for p in paths if p.window_sent)
            if now_s > peer.lossy_until_s:
                lossy.discard(peer)
                for path in peer.by_key.values():
                    path.watched = False
            if counts:
                self._emit(PathWindow(peer=peer.address, counts=counts))

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            raise RuntimeError("open() comes first")
        return self._loop

    def _at_stake(self) -> bool:
        """A suspect path, a peer that asks, a notice under way."""
        books = self._books
        return bool(books.hot) or self._notices_s < math.inf or self._clock() < books.attentive_until_s

    def _watch(self) -> None:
        """Packets wake the loop while something is at stake, and where ticks are rare."""
        books = self._books
        on = (self._schedule.slow and self._gathering is None) or self._at_stake()
        if on == self._watching:
            return
        self._watching = on
        loop = self._running()
        for port in books.ports.values():
            if on:
                loop.add_reader(port.fileno(), self._on_packet)
            else:
                loop.remove_reader(port.fileno())
