"""What leaves: batches of probes, extra probes for suspect paths, answers out of turn, notices until acknowledged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from linkpass.core.survey import FAST_S
from linkpass.edges.probes.books import Books
from linkpass.edges.probes.paths import SentPath, Twin
from linkpass.edges.probes.peers import Peer
from linkpass.edges.probes.ports import Port, TunnelPort
from linkpass.wire import probe
from linkpass.wire.frame import ETHERNET_BYTES, TCP, Headers, Template, payload_offset
from linkpass.wire.vxlan import OVERHEAD_BYTES, mac_of

ANSWER_GAP_S: Final = 0.001
REPORT_GAP_S: Final = 0.010
NOTICE_GAP_MAX_S: Final = 0.1
EXTRA: Final = 4
"""By what a suspect path is probed more often."""
LAST_SEQUENCE: Final = 0xFFFFFFF0
LOOSE_TEMPLATES: Final = 64
MAX_ACKS: Final = 16
END_FIRST: Final = 8
END_EVERY: Final = 16
"""The first reports to a peer and one in so many later ones say where packets are taken out of tunnels here."""

Place = tuple[str, int]
"""Uplink and label."""


class Sender:
    def __init__(
        self, books: Books, signer: probe.Signer, clock: Callable[[], float], fresh: Callable[[], float] | None = None
    ) -> None:
        """`fresh`: the clock of reports, see `Listener.fresh`."""
        self._books, self._signer, self._clock, self._fresh = books, signer, clock, fresh or clock
        probing = books.settings.probing
        self._headers_bytes = payload_offset(len(books.own), books.protocol) - ETHERNET_BYTES
        self._least_bytes = probing.size_bytes - (20 if books.protocol == TCP else 8)

    def batch(
        self, peer: Peer, paths: Iterable[SentPath], flags: int = 0, *, extra: bool = False, due_s: float | None = None
    ) -> int:
        """One report and one time stamp for all, one probe on each path; returns how many left.

        `extra`: beyond the plan, and taken from the budget before. `due_s`: when the plan wanted it; the report says
        how much later that is."""
        books = self._books
        stats, ports, signer, boot, to_peer = books.stats, books.ports, self._signer, books.boot, peer.to_peer
        now_s = self._fresh()
        report = self._report(peer, now_s, late=0 if due_s is None else probe.late_byte(now_s - due_s))
        sent_ns = int(now_s * 1e9)
        left: dict[str, int] = {}
        for path in paths:
            port = ports.get(path.uplink)
            if port is None or not port.ready:
                stats.unsent += 1
                continue
            template = path.template
            if template is None:
                template = path.template = self._template(port, peer, path.label)
            sequence = path.seq + 1
            if isinstance(path, Twin):
                payload = probe.encode(
                    signer, to_peer, report, boot, path.index, sequence, sent_ns, flags | probe.LARGE
                )
                room = port.mtu - (OVERHEAD_BYTES if books.in_tunnel(path.label) else 0)
                payload = payload.ljust(room - self._headers_bytes, b"\0")
                path.size_bytes = len(payload) + self._headers_bytes
            else:
                payload = probe.encode(signer, to_peer, report, boot, path.index, sequence, sent_ns, flags)
            out = self._out(port, path.label)
            try:
                if out is None:
                    raise OSError
                out.send(template.frame(payload, sequence))
            except OSError:
                stats.unsent += 1
                continue
            path.record(now_s)
            left[path.uplink] = left.get(path.uplink, 0) + 1
            if sequence >= LAST_SEQUENCE:
                self._renew_boot()
                break
        total = sum(left.values())
        if total:
            stats.sent += total
            peer.sent_since_heard += total
            books.owed.discard(peer)
            if extra:
                stats.sent_extra += total
            else:
                books.host_budget.spend(now_s, total)
                for uplink, packets in left.items():
                    books.link_budgets[uplink].spend(now_s, packets)
        return total

    def extra(self, peer: Peer, now_s: float) -> None:
        """Suspect paths of a hot peer, and one good path as a witness that the peer hears and answers."""
        books = self._books
        usable = books.usable()
        suspects = [p for p in peer.paths.values() if p.suspect_until_s > now_s and p.uplink in usable]
        if not suspects:
            del books.hot[peer]
            return
        books.hot[peer] = now_s + min(p.beat_s for p in suspects) / EXTRA
        names = {p.uplink for p in suspects}
        calm = [
            p for p in books.best(peer, per_uplink=2) if p not in suspects and p.detector.verdict.evidence == "good"
        ]
        calm.sort(key=lambda p: p.uplink in names)
        chosen = suspects + calm[:1]
        if self._afford(now_s, [p.uplink for p in chosen]):
            self.batch(peer, chosen, probe.ASK, extra=True)

    def answer(self, now_s: float) -> None:
        """Reports out of turn: at once to who asked, soon to who is not probed (soon) by the plan."""
        books = self._books
        for peer in list(books.owed):
            if not peer.asked and any(p.interval_s <= FAST_S for p in peer.by_key.values()):
                books.owed.discard(peer)  # the next batch tells it
                continue
            if now_s - peer.answered_s < (ANSWER_GAP_S if peer.asked else REPORT_GAP_S):
                continue
            places = self._places(peer)[:2]
            if places and self._afford(now_s, [uplink for uplink, _ in places]):
                peer.asked = False
                peer.answered_s = now_s
                books.owed.discard(peer)
                made_s = self._fresh()
                self._loose(peer, places, self._report(peer, made_s), 0, made_s)

    def notices(self, peer: Peer, now_s: float) -> float:
        """Send the peer's due notices over every usable uplink, and over at most as much as fits into one packet.

        Returns when to call again; inf when nothing is left to tell."""
        books = self._books
        peer.outgoing = [o for o in peer.outgoing if o.expires_s > now_s]
        notices: list[probe.WireNotice] = []
        room = probe.MAX_BYTES - probe.HEADER_BYTES - probe.MAC_BYTES - 6 * MAX_ACKS
        for one in peer.outgoing:
            if one.next_s > now_s:
                continue
            old = one.notice
            one.notice = probe.WireNotice(old.kind, old.id, old.seq, one.expires_s - now_s, old.origin, old.link)
            room -= len(probe.notice_bytes(one.notice))
            if room < 0:
                break
            notices.append(one.notice)
            one.next_s = now_s + one.gap_s
            one.gap_s = min(NOTICE_GAP_MAX_S, one.gap_s * 2)
        if notices:
            known = dict(self._places(peer))
            places = [(name, known.get(name, 0)) for name in sorted(books.usable())]
            books.host_budget.spend(now_s, len(places))
            self._loose(peer, places, self._report(peer, now_s, notices), probe.ASK)
        return min((o.next_s for o in peer.outgoing), default=float("inf"))

    def tell_roce(self, peer: Peer, places: list[probe.RocePlace], now_s: float) -> bool:
        """Tell where datagrams of RoCE are answered here (with `asks`: and ask the same), over the best path of at most
        two uplinks; False when it cannot be sent now."""
        where = self._places(peer)[:2]
        if not where or not self._afford(now_s, [uplink for uplink, _ in where]):
            return False
        self._loose(peer, where, self._report(peer, now_s, roce=places), 0)
        return True

    def tell_pace(self, peer: Peer, values: Sequence[tuple[int, bytes]], now_s: float) -> bool:
        """Say what is seen of the job's pace, once, over the best path; it is said again before long, so that one word
        may be lost. As a notice it does not wait for what suspect paths leave of the limits: then is when it matters.
        False when it cannot be sent now."""
        where = self._places(peer)[:1]
        if not where:
            return False
        self._books.host_budget.spend(now_s, 1)
        self._loose(peer, where, self._report(peer, now_s, values=values), 0)
        return True

    def afford_datagram(self, now_s: float) -> bool:
        """Whether the host's packet limit has room for one more datagram of RoCE, which is taken then."""
        return self._books.host_budget.take(now_s, 1)

    def _places(self, peer: Peer) -> list[Place]:
        """Where packets without a path go: the best path of each usable uplink, or back where the peer was heard."""
        best = [(p.uplink, p.label) for p in self._books.best(peer)]
        if not best and peer.heard_by is not None and peer.heard_by[0] in self._books.usable():
            best = [peer.heard_by]
        return best

    def _loose(
        self, peer: Peer, places: list[Place], report: probe.Report, flags: int, made_s: float | None = None
    ) -> None:
        """`made_s`: when the report was made, if it says what was heard."""
        books = self._books
        sent_ns = int((self._clock() if made_s is None else made_s) * 1e9)
        for place in places:
            port = books.ports[place[0]]
            template = peer.loose_templates.get(place)
            if template is None:
                if len(peer.loose_templates) >= LOOSE_TEMPLATES:
                    peer.loose_templates.clear()
                template = peer.loose_templates[place] = self._template(port, peer, place[1])
            peer.loose_sequence += 1
            payload = probe.encode(
                self._signer, peer.to_peer, report, books.boot, probe.NO_PATH, peer.loose_sequence, sent_ns, flags
            )
            out = self._out(port, place[1])
            try:
                if out is None:
                    raise OSError
                out.send(template.frame(payload, peer.loose_sequence))
            except OSError:
                books.stats.unsent += 1
            else:
                books.stats.sent += 1
                books.stats.sent_answers += 1

    def _afford(self, now_s: float, uplinks: list[str]) -> bool:
        """Packets beyond the plan: they have to fit into what the plan leaves of both limits."""
        for name in set(uplinks):
            bucket = self._books.link_budgets.get(name)
            if bucket is not None and not bucket.take(now_s, uplinks.count(name)):
                return False
        return self._books.host_budget.take(now_s, len(uplinks))

    def _report(
        self, peer: Peer, now_s: float, notices: list[probe.WireNotice] | None = None,
        roce: list[probe.RocePlace] | None = None, values: Sequence[tuple[int, bytes]] = (), late: int = 0,
    ) -> probe.Report:  # fmt: skip
        peer.reports_sent += 1
        acks = list(peer.acks)[:MAX_ACKS]
        for number in acks:
            del peer.acks[number]
        heard = () if notices or roce or values else peer.report_entries(now_s, late)
        says_end = bool(notices) or peer.end_said < END_FIRST or not peer.reports_sent % END_EVERY
        peer.end_said += says_end
        return probe.Report(
            peer.reports_sent, peer.boot, self._books.epoch, heard, notices or (), acks, self._least_bytes, roce or (),
            values, self._books.end if says_end and not values else None,
        )  # fmt: skip

    def _out(self, port: Port, label: int) -> Port | TunnelPort | None:
        """Where a path's packets leave; None: its tunnel is not there."""
        return self._books.tunnels.get(label) if self._books.in_tunnel(label) else port

    def _template(self, port: Port, peer: Peer, label: int) -> Template:
        probing, books = self._books.settings.probing, self._books
        ends = (port.mac, port.gateway_mac, books.own, peer.packed)
        if books.in_tunnel(label):
            ends, label = (mac_of(books.own), mac_of(peer.packed), books.own, peer.packed), 0
        return Template(Headers(*ends, books.protocol, probing.port, probing.port, label=label, dscp=probing.dscp))

    def _renew_boot(self) -> None:
        """Sequence numbers never wrap: a new boot id starts them again (after a year of 100 probes/s)."""
        self._books.draw_boot()
        for peer in self._books.peers.values():
            peer.restart()
