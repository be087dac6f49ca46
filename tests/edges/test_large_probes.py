"""Large probes against a real kernel: what loses large packets alone, and what they must not say."""

from __future__ import annotations

import asyncio
import time

import probe_lab as lab
import pytest
from probe_hosts import Host, pair

from linkpass.core import events as ev

pytestmark = [pytest.mark.netns, pytest.mark.usefixtures("healed")]


LARGE = "meta length > 1000 ip6 saddr fd01:ff::1 counter drop"


def large(host: Host) -> dict[tuple[str, int], tuple[int, int]]:
    """(settled, lost) of the large probes of each path."""
    return {(p.uplink, p.label): (p.large_settled, p.large_lost) for p in host.edge.snapshot().paths}


@pytest.mark.parametrize("protocol", ["tcp", "udp"])
async def test_a_path_that_loses_large_packets_alone_fails_for_that(fabric: lab.Fabric, protocol: str) -> None:
    async with pair(fabric, protocol=protocol) as (one, two):
        assert {p.large_bytes for p in one.edge.snapshot().paths} <= {0, 1500}
        await one.until(lambda: all(settled for settled, _ in large(one).values()))
        lab.nft("x1", LARGE)
        await one.until(lambda: ("eth2", 21, "blackhole") in one.judged())
        assert {e for e in one.judged() if e[2] not in ("good", "queueing")} == {("eth2", 21, "blackhole")}
        (event,) = [e for e in one.all(ev.PathEvidence) if isinstance(e, ev.PathEvidence) and e.evidence == "blackhole"]
        assert event.why.startswith("large packets (1500 bytes), small ones get through")
        assert (event.loss_ratio, event.large_only) == (1.0, True)
        lost = {(p.uplink, p.label): p.lost for p in one.edge.snapshot().paths}
        assert lost["eth2", 21] == 0, "of the small ones none"
        assert not [e for e in two.judged() if e[2] == "blackhole"], "one way"
        lab.nft("x1", "")
        one.told.clear()
        await one.until(lambda: ("eth2", 21, "good") in one.judged())


async def test_large_probes_are_few_and_within_the_limits(fabric: lab.Fabric) -> None:
    async with pair(fabric, max_packets_per_s=200, large_ratio=0.1) as (one, _):
        before = one.edge.snapshot()
        begun_s = time.monotonic()
        await asyncio.sleep(1.5)
        after, seconds = one.edge.snapshot(), time.monotonic() - begun_s
        sent = after.stats.sent - before.stats.sent
        assert sent / seconds < 210
        small = sum(p.sent for p in after.paths) - sum(p.sent for p in before.paths)
        big = sum(p.large_sent for p in after.paths) - sum(p.large_sent for p in before.paths)
        assert 0.05 * small < big < 0.15 * small + 2
        assert after.stats.stretch > 1


async def test_without_large_probes_there_are_none(fabric: lab.Fabric) -> None:
    async with pair(fabric, large_ratio=0.0) as (one, _):
        assert {(p.large_bytes, p.large_sent) for p in one.edge.snapshot().paths} == {(0, 0)}


async def test_large_probes_that_never_arrived_say_nothing(fabric: lab.Fabric) -> None:
    """A path whose MTU is smaller than the uplink's from the start is no failure: the data knows it, too."""
    for switch in ("x1", "l1"):
        lab.nft(switch, "meta length > 1000 counter drop")
    async with pair(fabric) as (one, _):
        await one.until(lambda: all(p.large_sent > 3 for p in one.edge.snapshot().paths))
        assert not [e for e in one.judged() if e[2] == "blackhole"]
        assert {settled for settled, _ in large(one).values()} == {0}


async def test_a_path_that_becomes_slow_forgets_its_large_probes(fabric: lab.Fabric) -> None:
    async with pair(fabric) as (one, two):
        await one.until(lambda: all(settled for settled, _ in large(one).values()))
        lab.nft("x1", LARGE)
        await one.until(lambda: ("eth2", 21, "blackhole") in one.judged())
        one.told.clear()
        one.plan(two.address, interval_s=0.5)
        assert one.judged() == [("eth2", 21, "good")]
