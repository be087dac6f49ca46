"""The probe edge against a real kernel: two hosts in namespaces, three paths, faults made by the switches."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter

import probe_lab as lab
import pytest
from probe_hosts import KEY, PLAN, Host, pair

from linkpass.core import commands as cmd
from linkpass.core import events as ev
from linkpass.core.settings import CoreSettings, Detection
from linkpass.edges.probes.books import Books
from linkpass.edges.probes.budget import Bucket
from linkpass.edges.probes.ports import Port
from linkpass.edges.probes.sending import LAST_SEQUENCE, Sender
from linkpass.wire import frame, probe

pytestmark = [pytest.mark.netns, pytest.mark.usefixtures("healed")]


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
