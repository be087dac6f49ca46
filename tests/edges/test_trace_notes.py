"""What answers show beside the hops, against real switches: limits, mute hops, other ways back, spraying, labels that
choose nothing, addresses that name no link.
"""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Iterator

import probe_lab as lab
import pytest
import trace_rig as rig
from trace_rig import kinds, order, traced, tracing

from linkpass.core import commands as cmd
from linkpass.core import events as ev
from linkpass.core.machine import Core
from linkpass.core.settings import CoreSettings
from linkpass.edges.traces import Plan
from topology.model import Fabric as Planned
from topology.sources import dot

pytestmark = pytest.mark.netns
MANY = tuple(range(1, 25))
NAMES = {**rig.NAMES, lab.HOSTS["h2"]: "h2"}


def plan(*more: str) -> Plan:
    """The small fabric's cables as its plan has them."""
    cables = [f"{a}:{a_port} -- {b}:{b_port}" for a, a_port, b, b_port in lab.LINKS]
    roles = [f'{host} [function="host"]' for host in lab.HOSTS]
    made: Planned = dot.read("\n".join(["graph plan {", *roles, *cables, *more, "}"]), "plan").fabric
    return Plan(made, "h1")


def ip(node: str, *words: str) -> None:
    with lab.inside(node):
        subprocess.run(["ip", *words], check=True)


def why(event: ev.LabelsTraced, kind: str) -> str:
    return next(note.why for note in event.notes if note.kind == kind)


@pytest.fixture
def limited(request: pytest.FixtureRequest) -> Iterator[str]:
    """A switch that answers as Linux does by default: six at once and one a second to each host."""
    node: str = request.param
    lab.sysctl(node, ipv6__icmp__ratelimit=1000)
    time.sleep(2.5)  # without a limit the kernel has kept the bucket empty
    yield node
    lab.sysctl(node, ipv6__icmp__ratelimit=0)


@pytest.mark.parametrize("limited", ["l1"], indirect=True)
async def test_a_neighbour_that_limits_its_answers_is_neither_mute_nor_in_the_way(
    fabric: lab.Fabric, limited: str
) -> None:
    async with tracing(fabric) as (edge, told):
        first = await traced(edge, told, order(labels=MANY, urgent=True))
        sent = edge.sent
        second = await traced(edge, told, order(labels=MANY))
        for event in (first, second):
            assert ("limited", 1) in kinds(event) and not {k for k, _ in kinds(event)} & {"mute", "sprayed"}
            assert {way[1:] for way in event.hops.values()} == {("s1", "l2"), ("s2", "l2")}
            assert event.again_s is None
        assert {way[0] for way in first.hops.values()} == {"l1"}, "some answers name it for all labels"
        assert {way[0] for way in second.hops.values()} <= {"l1", None}, "it may have none left"
        assert edge.sent - sent < len(MANY) * 3, "no question is wasted on it"
        assert next(note for note in second.notes if note.kind == "limited").nodes == ("l1",)


@pytest.mark.parametrize("limited", ["s1"], indirect=True)
async def test_a_limited_hop_is_learnt_bit_by_bit_and_the_others_at_once(fabric: lab.Fabric, limited: str) -> None:
    seen: dict[int, tuple[str | None, ...]] = {}
    async with tracing(fabric) as (edge, told):
        for _ in range(20):
            event = await traced(edge, told, order(labels=MANY))
            assert not {k for k, _ in kinds(event)} & {"mute", "sprayed"}
            assert all((way[0], way[2]) == ("l1", "l2") for way in event.hops.values())
            assert {way[1] for way in event.hops.values()} <= {"s1", "s2", None}
            seen |= {label: way for label, way in event.hops.items() if None not in way}
            if len(seen) == len(MANY):
                break
            assert ("limited", 2) in kinds(event) and event.again_s is not None
            note = next(note for note in event.notes if note.kind == "limited")
            assert note.nodes == ("s1",)
            await asyncio.sleep(1.0)  # the kernel's own clock gives answers
        assert len(seen) == len(MANY)
        assert {way[1] for way in seen.values()} == {"s1", "s2"}


@pytest.mark.parametrize("limited", ["l2"], indirect=True)
async def test_a_limited_last_hop_does_not_shorten_the_way(fabric: lab.Fabric, limited: str) -> None:
    async with tracing(fabric) as (edge, told):
        for _ in range(4):
            event = await traced(edge, told, order(labels=MANY))
            assert {len(way) for way in event.hops.values()} == {3}
            assert ("limited", 3) in kinds(event) and ("mute", 3) not in kinds(event)
            assert {way[2] for way in event.hops.values()} <= {"l2", None}


async def test_lost_answers_are_no_limit(fabric: lab.Fabric) -> None:
    """A third of all answers of a spine is lost on the way, at random."""
    async with tracing(fabric) as (edge, told):
        lab.nft("s1", "icmpv6 type time-exceeded numgen random mod 3 < 1 drop", hook="output")
        try:
            events = [await traced(edge, told, order(labels=MANY)) for _ in range(5)]
        finally:
            lab.nft("s1", "")
        assert all(not {k for k, _ in kinds(event)} & {"mute", "sprayed"} for event in events)


async def test_a_hop_that_is_cut_off_for_a_moment_limits_nothing(fabric: lab.Fabric) -> None:
    """All that l2 answered was lost, and is answered a little later: that was no limit."""
    async with tracing(fabric) as (edge, told):
        await traced(edge, told, order(labels=MANY))
        lab.nft("l2", "icmpv6 type time-exceeded drop", hook="output")
        task = asyncio.ensure_future(traced(edge, told, order(labels=MANY)))
        try:
            await asyncio.sleep(0.6)
        finally:
            lab.nft("l2", "")
        event = await task
        assert set(event.hops.values()) == {("l1", "s1", "l2"), ("l1", "s2", "l2")}
        assert not {kind for kind, _ in kinds(event)} & {"limited", "mute", "sprayed"}


async def test_one_question_to_a_host_is_asked_at_a_time(fabric: lab.Fabric) -> None:
    async with tracing(fabric) as (edge, told):
        await asyncio.gather(*(edge.trace(order()) for _ in range(3)), edge.trace(order("eth2")))
        assert [one.uplink for one in told if isinstance(one, ev.LabelsTraced)].count("eth1") == 1
        assert len(told) == 2


async def test_a_hop_that_never_answers_is_said_and_one_that_is_cut_off_is_not(fabric: lab.Fabric) -> None:
    async with tracing(fabric) as (edge, told):
        for node in ("s1", "s2"):
            lab.nft(node, "icmpv6 type time-exceeded drop", hook="output")
        try:
            mute = await traced(edge, told, order())
        finally:
            lab.nft("s1", "")
            lab.nft("s2", "")
        assert ("mute", 2) in kinds(mute) and set(mute.hops.values()) == {("l1", None, "l2")}
        for node in ("s1", "s2"):
            lab.nft(node, 'iifname "l1" drop')
        try:
            cut = await traced(edge, told, order())
        finally:
            lab.nft("s1", "")
            lab.nft("s2", "")
        assert not {k for k, _ in kinds(cut)} & {"mute", "limited"}


async def test_answers_that_come_back_over_another_uplink_are_said(fabric: lab.Fabric) -> None:
    """l1's own answers to h1 go by x1: a cable between the two, and a rule for them."""
    async with tracing(fabric) as (edge, told):
        before = await traced(edge, told, order())
        assert "asymmetric" not in {kind for kind, _ in kinds(before)}
        ip("l1", *f"link add aside type veth peer name aside netns {lab.PREFIX}x1".split())
        try:
            for node, address in (("l1", "fd01:9::1/64"), ("x1", "fd01:9::2/64")):
                ip(node, "address", "add", address, "dev", "aside", "nodad")
                ip(node, "link", "set", "aside", "up")
            ip("l1", "-6", "route", "add", lab.HOSTS["h1"], "via", "fd01:9::2", "table", "77")
            ip("l1", "-6", "rule", "add", "fwmark", "77", "lookup", "77")
            lab.nft("l1", "icmpv6 type time-exceeded meta mark set 77", hook="output", kind="route")
            event = await traced(edge, told, order())
        finally:
            lab.nft("l1", "")
            ip("l1", "-6", "rule", "del", "lookup", "77")
            ip("l1", "link", "del", "aside")
        assert ("asymmetric", 1) in kinds(event)
        assert "come back over eth2" in why(event, "asymmetric")
        assert set(event.hops.values()) == {("l1", "s1", "l2"), ("l1", "s2", "l2")}


async def test_ways_back_of_another_length_are_said(fabric: lab.Fabric) -> None:
    """The neighbour's answers arrive as if three routers had taken one from their hop limit."""
    async with tracing(fabric) as (edge, told):
        try:
            lab.nft("l1", "icmpv6 type time-exceeded ip6 hoplimit set 61", hook="output")
            event = await traced(edge, told, order())
        finally:
            lab.nft("l1", "")
        assert ("asymmetric", 1) in kinds(event)
        assert why(event, "asymmetric") == "l1 is 0 routers away, its answer crossed 3"


async def test_a_switch_that_sprays_is_found_out_and_its_next_hop_is_not_named(fabric: lab.Fabric) -> None:
    peer = lab.HOSTS["h2"]
    tables = {"s1": "101", "s2": "102"}
    async with tracing(fabric) as (edge, told):
        assert not {"sprayed"} & {kind for kind, _ in kinds(await traced(edge, told, order()))}
        for number, (a, _, b, _) in enumerate(lab.LINKS):
            if a == "l1" and b in tables:
                ip("l1", "-6", "route", "add", peer, "via", f"fd01:1:{number}::b", "table", tables[b])
        for mark, table in enumerate(tables.values(), 1):
            ip("l1", "-6", "rule", "add", "fwmark", str(mark), "lookup", table)
        lab.nft("l1", f"ip6 daddr {peer} meta mark set numgen random mod 2 offset 1", hook="prerouting")
        try:
            events = [await traced(edge, told, order(urgent=turn == 0)) for turn in range(4)]
        finally:
            lab.nft("l1", "")
            for table in tables.values():
                ip("l1", "-6", "rule", "del", "lookup", table)
                ip("l1", "-6", "route", "flush", "table", table)
        for event in events[1:]:
            assert kinds(event) & {("sprayed", 2)} and ("sprayed", 3) not in kinds(event)
            assert set(event.hops.values()) == {("l1", None, "l2")}
        assert any(why(event, "sprayed") == "the same packet is answered by s1 and s2" for event in events)
        for _ in range(3):
            last = await traced(edge, told, order())
        assert "sprayed" not in {kind for kind, _ in kinds(last)}
        assert set(last.hops.values()) == {("l1", "s1", "l2"), ("l1", "s2", "l2")}


async def test_a_way_that_changes_between_two_questions_is_no_spraying(fabric: lab.Fabric) -> None:
    async with tracing(fabric) as (edge, told):
        task = asyncio.ensure_future(traced(edge, told, order(labels=tuple(range(1, 100)))))
        await asyncio.sleep(0.05)
        lab.sysctl("l1", ipv4__fib_multipath_hash_seed=4711)
        event = await task
        lab.sysctl("l1", ipv4__fib_multipath_hash_seed=7919 * 2 + 2)
        assert "sprayed" not in {kind for kind, _ in kinds(event)}


async def test_a_fabric_that_overlooks_labels_is_said_and_they_are_no_alternatives(fabric: lab.Fabric) -> None:
    core = Core(CoreSettings(host="h1", address=lab.HOSTS["h1"], mode="act"))
    for uplink in ("eth1", "eth2"):
        core.handle(ev.UplinkState(uplink=uplink, usable=True), 100.0)
    core.handle(ev.PeersActive(peers=(lab.HOSTS["h2"],)), 100.0)
    core.handle(ev.PeerKnown(peer=lab.HOSTS["h2"], name="h2"), 100.0)
    pool = core.world.table.peer(lab.HOSTS["h2"]).pool
    spread = {label: ("eth1", "eth2")[number % 2] for number, label in enumerate(pool)}
    core.handle(ev.UplinksResolved(cmd_id=99, peer=lab.HOSTS["h2"], uplink_of=spread), 100.0)

    async def learn(planned: Plan | None, now_s: float) -> list[str]:
        async with tracing(fabric, names=NAMES, plan=planned) as (edge, told):
            said = []
            for uplink in ("eth1", "eth2"):
                event = await traced(edge, told, order(uplink, labels=pool))
                said += [one.what for one in core.handle(event, now_s) if isinstance(one, cmd.Record)]
            return said

    deaf = "all labels lead one way over eth1"
    assert deaf not in await learn(plan(), 101.0)
    assert len({path.hops for path in core.view(101.0).paths if path.uplink == "eth1"}) == 2
    lab.sysctl("l1", ipv6__fib_multipath_hash_fields=3, ipv6__fib_multipath_hash_policy=3)
    try:
        assert deaf not in await learn(None, 102.0), "without a plan one way may be all that there is"
        assert deaf in await learn(plan(), 103.0)
        assert deaf not in await learn(plan(), 104.0), "said once"
    finally:
        lab.sysctl("l1", ipv6__fib_multipath_hash_policy=0)
    view = core.view(104.0)
    assert [path.uplink for path in view.paths].count("eth1") == 1
    (seen,) = [one for one in view.traces if one.kind == "one_way"]
    assert "though the fabric's file has 2 ways" in seen.why
    assert "no longer" not in " ".join(await learn(plan(), 105.0)), "once is no proof"
    assert f"no longer: {deaf}" in await learn(plan(), 106.0)
    assert [path.uplink for path in core.view(106.0).paths].count("eth1") > 1


async def test_addresses_that_name_no_link_are_said_where_it_matters(fabric: lab.Fabric) -> None:
    async with tracing(fabric) as (edge, told):
        event = await traced(edge, told, order())
        assert why(event, "unnumbered") == "l2 answers with one address to packets from s1 and s2"
    async with tracing(fabric, names=NAMES, plan=plan()) as (edge, told):
        event = await traced(edge, told, order())
        assert "unnumbered" not in {kind for kind, _ in kinds(event)}, "no two links are parallel"
        assert event.planned == 2
    async with tracing(fabric, names=NAMES, plan=plan("l1:again -- s1:again")) as (edge, told):
        event = await traced(edge, told, order(labels=MANY))
        assert why(event, "unnumbered") == "s1 answers with one address on l1:s1-s1:l1, l1:again-s1:again"
        assert event.planned == 3


async def test_the_plan_tells_of_a_last_hop_that_never_answers(fabric: lab.Fabric) -> None:
    lab.nft("l2", "icmpv6 type time-exceeded drop", hook="output")
    try:
        async with tracing(fabric, names=NAMES, plan=plan()) as (edge, told):
            event = await traced(edge, told, order())
        async with tracing(fabric) as (edge, told):
            blind = await traced(edge, told, order())
    finally:
        lab.nft("l2", "")
    assert set(event.hops.values()) == {("l1", "s1", None), ("l1", "s2", None)}
    assert ("mute", 3) in kinds(event)
    assert set(blind.hops.values()) == {("l1", "s1"), ("l1", "s2")}


async def test_a_neighbour_is_one_node_under_whatever_addresses(fabric: lab.Fabric) -> None:
    """l1 answers with its loopback address, then with that of the link: both are of whom the frames go to."""
    own, link = lab.SWITCHES["l1"], "fd01:1:0::b".replace(":0::", "::")
    route = (lab.HOSTS["h1"], "via", "fd01:1::a", "dev", "h")
    async with tracing(fabric, names={}) as (edge, told):
        first = await traced(edge, told, order())
        assert {way[0] for way in first.hops.values()} == {own}
        ip("l1", "-6", "route", "replace", *route, "src", link)
        try:
            second = await traced(edge, told, order())
        finally:
            ip("l1", "-6", "route", "replace", *route, "src", own)
        assert {way[0] for way in second.hops.values()} == {own}
        assert edge.names[link] == own
        edge.names.announced({"eth1": "leaf-one"}, {lab.SWITCHES["s1"]: "spine-one"})
        third = await traced(edge, told, order())
        assert {way[:2] for way in third.hops.values()} == {("leaf-one", "spine-one"), ("leaf-one", lab.SWITCHES["s2"])}
