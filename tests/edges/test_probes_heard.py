"""The probe edge against a real kernel: what is heard, refused, answered and told to peers."""

from __future__ import annotations

import asyncio
import socket
import time

import msgspec
import probe_lab as lab
import pytest
from probe_hosts import KEY, Host, pair

from linkpass.core import commands as cmd
from linkpass.core import events as ev
from linkpass.edges.probes.ports import RING_FRAMES
from linkpass.wire import frame, probe

pytestmark = [pytest.mark.netns, pytest.mark.usefixtures("healed")]


async def test_a_wrong_key_is_a_counted_drop_and_no_event(fabric: lab.Fabric) -> None:
    async with pair(fabric) as (one, two):
        two.edge.close()
        await one.until(lambda: bool(one.all(ev.PeerSilent)))
        one.told.clear()
        stranger = Host(fabric, "h2", key=b"another secret").open()
        try:
            stranger.plan(one.address)
            await one.until(lambda: one.edge.stats.refused_mac > 20)
            await stranger.until(lambda: stranger.edge.stats.refused_mac > 20)
        finally:
            stranger.edge.close()
        assert one.news() == []
        assert stranger.news() == []


class Forger:
    """Sends what it likes from h2 to h1, as somebody on the path could."""

    def __init__(self, fabric: lab.Fabric) -> None:
        with lab.inside("h2"):
            self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
            self.socket.bind(("eth2", 0))
        macs = fabric.mac["h2", "eth2"], fabric.gateway_mac("h2", "eth2")
        addresses = [socket.inet_pton(socket.AF_INET6, lab.HOSTS[name]) for name in ("h2", "h1")]
        self.addresses = b"".join(addresses)
        self.template = frame.Template(frame.Headers(*macs, *addresses, frame.TCP, 3785, 3785))

    def send(self, payload: bytes) -> None:
        self.socket.send(self.template.frame(payload))

    def probe(self, boot: int, sequence: int, path: int = 0, report: probe.Report | None = None) -> bytes:
        report = report or probe.Report(1, 0, 0)
        return probe.encode(probe.Signer(KEY), self.addresses, report, boot, path, sequence, 1)


async def test_each_refusal_is_counted_apart(fabric: lab.Fabric) -> None:
    one, forger = Host(fabric, "h1").open(), Forger(fabric)
    try:
        stats = one.edge.stats
        whole = forger.probe(7, 1)
        for payload, counter in (
            (b"", "refused_truncated"),
            (whole[:40], "refused_truncated"),
            (b"\x02" + whole[1:], "refused_version"),
            (whole[:-1] + bytes((whole[-1] ^ 1,)), "refused_mac"),
            (bytes((probe.TRACE_VERSION,)) + bytes(7), "traces"),
        ):
            before = getattr(stats, counter)
            forger.send(payload)
            await one.until(lambda c=counter, b=before: getattr(stats, c) == b + 1)  # type: ignore[misc]
        assert stats.heard == 0
        assert one.news() == []
        forger.send(whole)
        await one.until(lambda: stats.heard == 1)
        assert one.news() == [ev.PeerKnown(peer=lab.HOSTS["h2"])]
        # the same again, and one that is far behind the newest
        forger.send(whole)
        forger.send(forger.probe(7, 500))
        forger.send(forger.probe(7, 300))
        await one.until(lambda: stats.refused_replay == 2)
        # a new run of the peer's daemon is believed, its old run never again
        forger.send(forger.probe(9, 1))
        forger.send(forger.probe(7, 501))
        await one.until(lambda: stats.refused_boot == 1)
        # a notice that does not belong to this run of ours is not heard, and a malformed one is counted
        notice = probe.WireNotice(probe.Kind.DRAIN, 1, 1, 5.0, "h2", "h2-l2")
        forger.send(forger.probe(9, 2, report=probe.Report(2, 12345, 0, notices=[notice])))
        await one.until(lambda: stats.heard == 4)
        broken = probe.Report(3, one.edge.snapshot().boot, 0)
        broken.tlvs = 3
        forger.send(forger.probe(9, 3, report=broken))
        await one.until(lambda: stats.refused_malformed == 1)
        assert one.news() == [ev.PeerKnown(peer=lab.HOSTS["h2"])]
    finally:
        one.edge.close()
        forger.socket.close()


async def test_an_overflow_of_our_own_ring_is_known_as_ours(fabric: lab.Fabric) -> None:
    one, forger = Host(fabric, "h1").open(), Forger(fabric)
    try:
        for sequence in range(1, RING_FRAMES + 200):  # the loop does not run meanwhile
            forger.send(forger.probe(7, sequence))
        await one.until(lambda: one.edge.stats.overflows == 1)
        assert one.edge.stats.heard == RING_FRAMES
        forger.send(forger.probe(7, 2 * RING_FRAMES))
        await one.until(lambda: one.edge.stats.heard == RING_FRAMES + 1)
        assert one.edge.stats.overflows == 1
    finally:
        one.edge.close()
        forger.socket.close()


async def test_a_peer_outside_the_plan_is_answered_at_its_own_pace(fabric: lab.Fabric) -> None:
    one, two = Host(fabric, "h1").open(), Host(fabric, "h2").open()
    try:
        one.plan(two.address, interval_s=0.2)
        await one.until(lambda: set(one.evidence().values()) == {"good"} and len(one.evidence()) == 3)
        assert two.news()[0] == ev.PeerKnown(peer=one.address)
        assert two.evidence() == {}
        await asyncio.sleep(1.0)
        answers = two.edge.stats.sent_answers
        assert 0 < answers <= two.edge.stats.heard
        assert two.edge.stats.sent == answers
    finally:
        one.edge.close()
        two.edge.close()


async def test_notices_come_once_and_are_acknowledged_over_lossy_paths(fabric: lab.Fabric) -> None:
    async with pair(fabric) as (one, two):
        for node in ("x1", "l1"):
            lab.nft(node, "numgen random mod 100 < 60 drop")
        sent = [ev.Notice(kind, "h1-l1", "h1", seq, 20.0) for seq, kind in enumerate(("port_down", "drain", "undrain"))]  # type: ignore[arg-type]
        for number, notice in enumerate(sent):
            one.edge.send_notice(cmd.SendNotice(cmd_id=40 + number, cause="t", notice=notice, peers=(two.address,)))
        await one.until(lambda: len(one.all(ev.NoticeAcked)) == 3)
        await asyncio.sleep(0.5)
        assert {e.cmd_id for e in one.told if isinstance(e, ev.NoticeAcked)} == {40, 41, 42}
        assert len(one.all(ev.NoticeAcked)) == 3
        heard = [e for e in two.told if isinstance(e, ev.NoticeHeard)]
        assert sorted((e.notice.kind, e.notice.link, e.notice.origin, e.notice.seq) for e in heard) == sorted(
            (n.kind, n.link, n.origin, n.seq) for n in sent
        )
        assert all(0 < e.notice.ttl_s <= 20.0 for e in heard)
        assert {e.peer for e in heard} == {one.address}


async def test_the_pace_of_the_job_is_said_and_heard_by_who_looks_for_it(fabric: lab.Fabric) -> None:
    """Signed as probes are; times of arrivals come by the hearer's own clock."""
    async with pair(fabric) as (one, two):
        talk = one.edge.open_pace()
        claims = (
            ev.PaceClaim("late", "", 20, 3, 0.5, 1.0),
            ev.PaceClaim("awaits", two.address, 20, 12, 0.25, 1.0),
        )
        arrival = ev.StepArrived(rank=3, step=7, at_s=time.monotonic())
        assert talk.tell((), ()) == 0
        assert talk.tell(claims, [arrival]) == 1
        await asyncio.sleep(0.2)
        assert not two.all(ev.PaceTold)  # nobody looks for it there
        two.edge.open_pace()
        told_s = time.monotonic()
        talk.tell(claims, [arrival])
        await two.until(lambda: bool(two.all(ev.StepArrived)))
        under_way_s = time.monotonic() - told_s  # for at most so long, which no hearer can know
        assert two.all(ev.PaceTold) == [ev.PaceTold(peer=one.address, claims=claims)]
        (came,) = two.all(ev.StepArrived)
        assert isinstance(came, ev.StepArrived)
        assert (came.peer, came.rank, came.step) == (one.address, 3, 7)
        assert came.at_s == pytest.approx(
            arrival.at_s, abs=0.05 + under_way_s
        )  # two hosts of one machine: its clock is both's


async def test_a_notice_survives_the_loss_of_an_uplink_and_expires_unheard(fabric: lab.Fabric) -> None:
    async with pair(fabric) as (one, two):
        one.edge.drop_uplink("eth1")
        notice = ev.Notice("port_down", "h1>l1", "h1", 1, 5.0)
        one.edge.send_notice(cmd.SendNotice(cmd_id=1, cause="t", notice=notice, peers=(two.address,)))
        await one.until(lambda: bool(one.all(ev.NoticeAcked)))
        one.edge.drop_uplink("eth2")
        last = msgspec.structs.replace(notice, seq=2, ttl_s=0.2)
        one.edge.send_notice(cmd.SendNotice(cmd_id=2, cause="t", notice=last, peers=(two.address,)))
        await asyncio.sleep(0.4)
        one.set_uplink("eth1")
        await asyncio.sleep(0.3)
        assert [e.notice.seq for e in two.told if isinstance(e, ev.NoticeHeard)] == [1]
        wide = msgspec.structs.replace(notice, link="l" * 300)
        with pytest.raises(ValueError, match="too long"):
            one.edge.send_notice(cmd.SendNotice(cmd_id=3, cause="t", notice=wide, peers=(two.address,)))
