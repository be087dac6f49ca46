"""The probe edge against a real kernel: two hosts in namespaces, three paths, faults made by the switches."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import probe_lab as lab
import pytest
from probe_hosts import KEY, PLAN, Host, heal, pair

from linkpass.core import commands as cmd
from linkpass.core import events as ev
from linkpass.core.settings import CoreSettings, Detection
from linkpass.edges.probes.books import Books
from linkpass.edges.probes.budget import Bucket
from linkpass.edges.probes.ports import RING_FRAMES, Port
from linkpass.edges.probes.sending import LAST_SEQUENCE, Sender
from linkpass.wire import frame, probe

pytestmark = pytest.mark.netns


@pytest.fixture(scope="module")
def fabric() -> Iterator[lab.Fabric]:
    with lab.standing() as made:
        yield made


@pytest.fixture(autouse=True)
def healed(fabric: lab.Fabric) -> Iterator[None]:
    yield
    heal()


async def test_good_paths_are_told_once_and_then_nothing(fabric: lab.Fabric) -> None:
    async with pair(fabric) as (one, two):
        for host in (one, two):
            await host.until(lambda host=host: all(path.sent > 20 for path in host.edge.snapshot().paths))  # type: ignore[misc]
        await asyncio.sleep(0.3)
        for host in (one, two):
            assert host.news() == []
            for path in host.edge.snapshot().paths:
                assert 0 < path.rtt_floor_s <= path.rtt_s + 1e-9
                assert path.answered_age_s is not None
                assert path.sent > 20
            (peer,) = host.edge.snapshot().peers
            assert peer.planned
            assert peer.heard_age_s is not None


@pytest.mark.parametrize("protocol", ["tcp", "udp"])
async def test_a_blackhole_is_found_for_exactly_that_path_and_direction(fabric: lab.Fabric, protocol: str) -> None:
    async with pair(fabric, protocol=protocol) as (one, two):
        lab.nft("x1", 'iifname "h1" drop')
        await one.until(lambda: one.evidence()["eth2", 21] == "blackhole")
        assert one.judged() == [("eth2", 21, "blackhole")]
        (told,) = [e for e in one.told if isinstance(e, ev.PathEvidence)]
        assert told.peer == two.address
        assert told.loss_ratio == 1.0
        await asyncio.sleep(0.3)
        assert one.judged() == [("eth2", 21, "blackhole")]
        assert two.judged() == []  # the way back is good, and the other daemon knows it
        lab.nft("x1", "")
        await one.until(lambda: one.evidence()["eth2", 21] == "good")
        assert one.judged() == [("eth2", 21, "blackhole"), ("eth2", 21, "good")]


async def test_one_label_of_an_uplink_can_be_a_blackhole(fabric: lab.Fabric) -> None:
    async with pair(fabric) as (one, two):
        lab.nft("l1", f"ip6 daddr {two.address} ip6 flowlabel 12 drop")
        await one.until(lambda: one.evidence()["eth1", 12] == "blackhole")
        assert one.judged() == [("eth1", 12, "blackhole")]
        assert two.judged() == []


async def test_a_path_that_has_to_tell_is_judged_also_if_it_never_answers(fabric: lab.Fabric) -> None:
    """The fault is older than the first probe; of a path that is not asked for this nothing is said."""
    async with pair(fabric) as (one, two):
        lab.nft("l1", f"ip6 daddr {two.address} ip6 flowlabel {{ 13, 15 }} drop")
        plan = [cmd.ProbeTarget(two.address, uplink, label, 0.01) for uplink, label in (*PLAN, ("eth1", 15))]
        asked = [cmd.ProbeTarget(two.address, "eth1", label, 0.02, telling=True) for label in (13, 14)]
        one.edge.set_probes(cmd.SetProbes(cmd_id=2, cause="t", targets=(*plan, *asked)))
        await one.until(lambda: {(e.label, e.evidence) for e in one.all(ev.PathEvidence)} >= {(13, "blackhole")})  # type: ignore[attr-defined]
        await one.until(lambda: one.evidence()["eth1", 14] == "good")
        assert sorted(one.judged()) == [("eth1", 13, "blackhole"), ("eth1", 14, "good")]
        assert one.evidence()["eth1", 15] == "unknown"
        lab.nft("l1", "")
        await one.until(lambda: one.evidence()["eth1", 13] == "good")


async def test_every_path_of_one_direction_mute_is_found_without_a_witness(fabric: lab.Fabric) -> None:
    async with pair(fabric) as (one, two):
        lab.nft("x1", 'iifname "h1" drop')
        lab.nft("l1", 'iifname "h" drop')
        await one.until(lambda: set(one.evidence().values()) == {"blackhole"})
        # the peer hears nothing any more, and cannot know whether that is the fabric or the host
        await two.until(lambda: bool(two.all(ev.PeerSilent)))
        assert two.judged() == []


async def test_loss_of_a_fifth_is_found_and_windows_are_told_while_it_lasts(fabric: lab.Fabric) -> None:
    async with pair(fabric) as (one, two):
        lab.nft("x1", 'iifname "h1" numgen random mod 100 < 20 drop')
        await one.until(lambda: one.evidence()["eth2", 21] == "lossy")
        assert {path for *path, _ in map(list, one.judged()) if path != ["eth2", 21]} == set()
        await one.until(lambda: any(c.lost for w in one.told if isinstance(w, ev.PathWindow) for c in w.counts))
        await one.until(  # what a good path has carried comes with a later report, and window
            lambda: any(c.uplink == "eth1" for w in one.told if isinstance(w, ev.PathWindow) for c in w.counts)
        )
        lab.nft("x1", "")
        windows = [e for e in one.told if isinstance(e, ev.PathWindow)]
        assert windows
        sent, lost = Counter[str](), Counter[str]()
        for window in windows:
            assert window.peer == two.address
            for count in window.counts:
                sent[count.uplink] += count.sent
                lost[count.uplink] += count.lost
        assert lost["eth1"] == 0 < lost["eth2"]
        assert sent["eth1"] > 0
        await one.until(lambda: one.evidence()["eth2", 21] == "good")
        told = len(one.all(ev.PathWindow))
        await asyncio.sleep(1.3)
        later = len(one.all(ev.PathWindow))
        await asyncio.sleep(0.4)
        assert len(one.all(ev.PathWindow)) == later >= told


async def test_a_suspect_path_gets_more_probes_inside_the_budget(fabric: lab.Fabric) -> None:
    async with pair(fabric) as (one, _):
        # At 10 ms a machine that pauses for three intervals hears of three losses at once, and nothing is left to ask.
        one.plan(lab.HOSTS["h2"], interval_s=0.1)
        before = one.edge.stats.sent_extra
        lab.nft("x1", 'iifname "h1" drop')
        await one.until(lambda: one.evidence()["eth2", 21] == "blackhole")
        assert one.edge.stats.sent_extra > before


async def test_what_the_job_sends_again_is_asked_for_on_all_paths_for_a_while(fabric: lab.Fabric) -> None:
    async with pair(fabric) as (one, two):
        one.plan(two.address, interval_s=0.05)
        await one.until(lambda: not one.edge._books.hot)
        before = one.edge.stats.sent_extra
        one.edge.ask_more(two.address)
        one.edge.ask_more("fd00::dead")  # nobody we know
        await one.until(lambda: one.edge.stats.sent_extra >= before + 2 * len(PLAN))
        await one.until(lambda: not one.edge._books.hot)
        assert one.judged() == []


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


async def test_a_stopped_peer_is_silent_and_no_path_is_blamed(fabric: lab.Fabric, tmp_path: Path) -> None:
    """The peer is a process of its own, stopped for longer than its receive ring lasts."""
    one = Host(fabric, "h1").open()
    there = {
        "netns": f"/run/netns/{lab.PREFIX}h2",
        "address": lab.HOSTS["h2"],
        "peer": one.address,
        "plan": PLAN,
        "uplinks": {
            name: [fabric.ifindex["h2", name], fabric.mac["h2", name].hex(), fabric.gateway_mac("h2", name).hex()]
            for name in ("eth1", "eth2")
        },
        "key": KEY.hex(),
    }
    (tmp_path / "there.json").write_text(json.dumps(there))
    script = str(Path(__file__).with_name("probe_peer.py"))
    process = await asyncio.create_subprocess_exec(sys.executable, script, str(tmp_path / "there.json"))
    try:
        one.plan(lab.HOSTS["h2"])
        await one.good()
        for stopped_s in (0.6, 2.5):
            os.kill(process.pid, signal.SIGSTOP)
            await one.until(lambda: bool(one.all(ev.PeerSilent)))
            await asyncio.sleep(stopped_s)
            os.kill(process.pid, signal.SIGCONT)
            await one.until(lambda: bool(one.all(ev.PeerBack)))
            await asyncio.sleep(0.5)
            assert one.judged() == []
            assert set(one.evidence().values()) == {"good"}
            assert len(one.all(ev.PeerSilent)) == len(one.all(ev.PeerBack)) == 1
            one.told.clear()
        # and it still sees what is really broken
        lab.nft("x1", 'iifname "h1" drop')
        await one.until(lambda: one.evidence()["eth2", 21] == "blackhole")
        assert one.judged() == [("eth2", 21, "blackhole")]
    finally:
        process.kill()
        await process.wait()
        one.edge.close()


async def test_what_was_lost_while_the_peer_was_silent_is_no_paths(fabric: lab.Fabric) -> None:
    """All paths come back at one moment, whoever's probe is the first to get through then."""
    paths = tuple(("eth1", label) for label in range(11, 19))
    async with pair(fabric) as (one, two):
        for host, peer in ((one, two), (two, one)):
            host.plan(peer.address, paths)
        for host in (one, two):
            await host.good(paths)
        for _ in range(8):
            lab.nft("l1", f"ip6 daddr {{ {one.address}, {two.address} }} drop")
            for host in (one, two):
                await host.until(lambda host=host: bool(host.all(ev.PeerSilent)))  # type: ignore[misc]
            lab.nft("l1", "")
            for host in (one, two):
                await host.until(lambda host=host: bool(host.all(ev.PeerBack)))  # type: ignore[misc]
            await asyncio.sleep(0.1)
            for host in (one, two):
                assert host.judged() == []
                host.told.clear()


@pytest.mark.parametrize("fault", ["stopped before", "stopped after", "stepped forward", "stepped back"])
async def test_a_wall_clock_read_at_a_bad_moment_shows_no_queue(fabric: lab.Fabric, fault: str) -> None:
    """Frames are stamped with wall time, once translated wrongly: that must not be the floor of later delays."""
    async with pair(fabric) as (one, two):
        turns = iter([fault])

        def wall_s() -> float:
            turn = next(turns, "")
            if turn == "stopped before":
                time.sleep(0.1)
            now_s = time.clock_gettime(time.CLOCK_REALTIME)
            if turn == "stopped after":
                time.sleep(0.1)
            return now_s + {"stepped forward": 2.0, "stepped back": -2.0}.get(turn, 0.0)

        two.edge._listener._wall = wall_s
        await asyncio.sleep(1.6)
        assert next(turns, None) is None
        assert one.judged() == two.judged() == []
        lab.nft("s1", "drop")
        await one.until(lambda: "blackhole" in one.evidence().values())
        assert {evidence for _, _, evidence in one.judged()} == {"blackhole"}


async def test_our_own_lateness_blames_nobody(fabric: lab.Fabric) -> None:
    async with pair(fabric) as (one, two):
        for _ in range(3):
            time.sleep(0.4)  # noqa: ASYNC251  (both daemons starve: that is the point)
            await asyncio.sleep(0.1)
        long = [e for e in one.told if isinstance(e, ev.DaemonLate) and e.late_s > 0.3]
        assert len(long) >= 3  # the machine may stand still by itself, too
        assert one.edge.stats.daemon_late >= 3
        for host in (one, two):
            assert host.news() == []


async def test_who_always_runs_a_little_late_still_hears_a_silence(fabric: lab.Fabric) -> None:
    """A busy host's ticks come late all the time: that puts off its judgement of a peer, but not for ever."""
    async with pair(fabric) as (one, two):
        two.edge.close()
        before = one.edge.stats.daemon_late
        for _ in range(600):
            time.sleep(0.04)  # noqa: ASYNC251  (it starves: that is the point)
            await asyncio.sleep(0.03)
            if one.all(ev.PeerSilent):
                break
        assert one.edge.stats.daemon_late > before
        assert len(one.all(ev.PeerSilent)) == 1
        assert one.judged() == []


async def test_a_restarted_peer_costs_no_verdict_and_its_dead_path_is_found(fabric: lab.Fabric) -> None:
    async with pair(fabric) as (one, two):
        two.edge.close()
        lab.nft("x1", 'iifname "h1" drop')
        again = Host(fabric, "h2").open()
        try:
            again.plan(one.address)
            await one.until(lambda: one.evidence()["eth2", 21] == "blackhole")
            assert one.judged() == [("eth2", 21, "blackhole")]
        finally:
            again.edge.close()


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


async def test_a_probe_that_was_not_sent_is_not_a_loss(fabric: lab.Fabric) -> None:
    async with pair(fabric) as (one, two):
        one.edge.drop_uplink("eth2")
        await one.until(lambda: one.edge.stats.unsent > 10)
        await asyncio.sleep(0.3)
        assert one.judged() == []
        assert two.judged() == []
        one.set_uplink("eth2")
        one.edge.set_neighbour("eth2", b"")
        await asyncio.sleep(0.1)
        one.set_uplink("eth2")
        sent = {p.label: p.sent for p in one.edge.snapshot().paths}[21]
        await one.until(lambda: {p.label: p.sent for p in one.edge.snapshot().paths}[21] > sent + 5)
        assert one.judged() == []


async def test_a_new_plan_keeps_what_stays_and_forgets_what_goes(fabric: lab.Fabric) -> None:
    async with pair(fabric) as (one, two):
        before = {(p.uplink, p.label): p.sent for p in one.edge.snapshot().paths}
        one.plan(two.address, (("eth1", 11), ("eth1", 99)))
        await one.good((("eth1", 11), ("eth1", 99)))
        after = {(p.uplink, p.label): p.sent for p in one.edge.snapshot().paths}
        assert set(after) == {("eth1", 11), ("eth1", 99)}
        assert after["eth1", 11] > before["eth1", 11]
        # numbers of paths come round: the peer's counts of the old owner must not be taken for the new one's
        for label in range(300, 600, 3):
            one.plan(two.address, tuple(("eth2", label + k) for k in range(3)))
        final = tuple(("eth2", 597 + k) for k in range(3))
        await one.good(final)
        await asyncio.sleep(0.3)
        assert one.judged() == []
        one.edge.set_probes(cmd.SetProbes(cmd_id=2, cause="t", targets=()))
        assert one.edge.snapshot().paths == ()


async def test_limits_stretch_the_intervals_and_are_kept(fabric: lab.Fabric) -> None:
    async with pair(fabric, max_packets_per_s=100) as (one, two):
        assert one.edge.stats.stretch == pytest.approx(300 * 1.05 / 95)
        lab.nft("x1", 'iifname "h1" numgen random mod 100 < 50 drop')  # suspicions must not break the limit either
        loop = asyncio.get_running_loop()
        sent, begun_s = one.edge.stats.sent, loop.time()
        await asyncio.sleep(1.0)
        assert one.edge.stats.sent - sent <= 100 * (loop.time() - begun_s) + 25  # a tenth of a second may be saved up
        one.plan(two.address, tuple(("eth1", label) for label in range(70)))
        assert one.edge.stats.over_limit_paths == 10


async def test_filtered_probes_are_named_with_the_rule_to_add(fabric: lab.Fabric) -> None:
    one, two = Host(fabric, "h1").open(), Host(fabric, "h2").open()
    try:
        for node in ("x1", "l1"):
            lab.nft(node, "tcp dport 3785 drop")
        one.plan(two.address)
        one.edge.note_data("fd01:ff::77", 5)
        async with asyncio.timeout(10):
            while not one.all(ev.PeerFiltered):
                one.edge.note_data(two.address, 1000)
                await asyncio.sleep(0.1)
        (told,) = one.all(ev.PeerFiltered)
        assert told == ev.PeerFiltered(
            peer=two.address,
            rule="ip6 saddr { fd01:ff::1, fd01:ff::2 } ip6 daddr { fd01:ff::1, fd01:ff::2 } "
            "tcp sport 3785 tcp dport 3785 accept",
        )
        for _ in range(5):
            one.edge.note_data(two.address, 1000)
        one.edge.note_data(two.address, 0)
        assert len(one.all(ev.PeerFiltered)) == 1
        # the rule is one that nft takes, and it helps
        for node in ("x1", "l1"):
            lab.nft(node, f"{told.rule}\ntcp dport 3785 drop")
        two.plan(one.address)
        await one.good()
    finally:
        one.edge.close()
        two.edge.close()


async def test_ipv4(fabric: lab.Fabric) -> None:
    one = Host(fabric, "h1", address=lab.HOSTS4["h1"], size_bytes=300, dscp=46).open()
    two = Host(fabric, "h2", address=lab.HOSTS4["h2"], protocol="tcp").open()
    paths = (("eth1", 0), ("eth2", 0))
    try:
        one.plan(two.address, paths)
        two.plan(one.address, paths)
        await one.good(paths)
        await two.good(paths)
        lab.nft("x1", 'iifname "h1" drop')
        await one.until(lambda: one.evidence()["eth2", 0] == "blackhole")
        with pytest.raises(ValueError, match="not of the family"):
            one.plan("fd01::1", paths)
    finally:
        one.edge.close()
        two.edge.close()


async def test_a_taken_udp_port_is_a_clear_error(fabric: lab.Fabric) -> None:
    one, two = Host(fabric, "h1", protocol="udp").open(), Host(fabric, "h1", protocol="udp")
    try:
        with pytest.raises(OSError, match="probes need fd01:ff::1 port 3785/udp: Address already in use"):
            two.open()
    finally:
        one.edge.close()
        two.edge.close()


async def test_a_device_that_is_gone_is_a_clear_error(fabric: lab.Fabric) -> None:
    one = Host(fabric, "h1").open()
    try:
        with pytest.raises(OSError, match="No such device"), lab.inside("h1"):
            one.edge.set_uplink("eth9", 99, bytes(6), bytes(6))
        one.edge.drop_uplink("eth9")
        one.edge.set_neighbour("eth9", b"")
    finally:
        one.edge.close()
    with pytest.raises(RuntimeError, match=r"open\(\) comes first"):
        one.edge.set_uplink("eth1", 1, bytes(6), bytes(6))


async def test_sequence_numbers_end_in_a_new_run(fabric: lab.Fabric) -> None:
    books = Books(CoreSettings(host="h1", address=lab.HOSTS["h1"]))
    books.draw_boot()
    boot = books.boot
    sender = Sender(books, probe.Signer(KEY), asyncio.get_running_loop().time)
    peer = books.peer(socket.inet_pton(socket.AF_INET6, lab.HOSTS["h2"]))
    path = peer.add_path("eth1", 1, Detection(), 0.0)
    path.seq = LAST_SEQUENCE - 2
    at = ("h1", "eth1")
    port = books.ports["eth1"] = Port("eth1", fabric.ifindex[at], fabric.mac[at], fabric.gateway_mac(*at))
    books.link_budgets["eth1"] = Bucket(1000)
    with lab.inside("h1"):
        port.open(16, frame.TCP, 3785)
    try:
        assert sender.batch(peer, [path]) == 1
        assert books.boot == boot
        assert sender.batch(peer, [path]) == 1
        assert books.boot != boot
        assert path.seq == 0
        assert sender.batch(peer, [path]) == 1
        assert path.sent_at(1) > 0
    finally:
        port.close()
