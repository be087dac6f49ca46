"""From what a capture, logs and journals say to the figures of one injection."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from lab.capture import Flow, Sighting, Sightings
from lab.cases import CASES, Place
from lab.daemons import Entry
from lab.injection import Injection, Live, judge
from lab.netns.traffic import SentAgain
from lab.steps import RankLog, Stall

OUT = Flow("fd00::1", 1000, "fd00::2", 2000)
IN = Flow("fd00::2", 2000, "fd00::1", 1000)
LINK = Place("host1-leaf1", "host1-leaf1", ("host1>leaf1", "leaf1>host1"), "host1")


def sighting(direction: str, flow: Flow, first_s: float, last_s: float | None = None, packets: int = 5) -> Sighting:
    return Sighting(direction, flow, first_s, last_s or first_s, packets, packets * 100)


BEFORE = [
    sighting("host1>leaf1", OUT, 9.9), sighting("leaf1>host2", OUT, 9.9),
    sighting("host2>leaf1", IN, 9.95), sighting("leaf1>host1", IN, 9.95),
]  # fmt: skip


def entry(host: str, cause: str, what: str, rung: int = 1) -> Entry:
    return Entry(1, 10.0, cause, what, "", rung=rung, host=host)


def judged(after: list[Sighting], name: str = "carrier", **more: Any) -> Injection:
    case = CASES[name]
    live = Live(case, LINK, "carrier:host1-leaf1", 10.0, 10.0 + case.hold_s)
    logs = [RankLog(0, ends_s=[9.98, 9.99, 10.06, 10.07, 10.08])]
    given = {
        "stall": Stall(0.06, 0, 9.99, 10.06), "recovered": True, "waited": False, "retransmissions": 1, "entries": (),
        "notes": (), "job": 0, "steps_lost": 0, "host_address": "fd00::1",
    }  # fmt: skip
    return judge(live, Sightings([*BEFORE, *after]), None, logs, **(given | more))


def test_both_ways_are_followed_apart() -> None:
    found = judged([sighting("host1>leaf2", OUT, 10.002), sighting("host2>leaf2", IN, 10.009)])
    assert found.out is not None
    assert found.into is not None
    assert found.out.first_s == pytest.approx(0.002)
    assert found.into.first_s == pytest.approx(0.009)
    assert (found.affected, found.moved) == (2, 2)
    assert found.rerouted_s == pytest.approx(0.009)
    assert found.off_link_s == 0.0
    assert found.stalls == 1  # 70 ms where 10 are usual


def test_how_much_longer_a_step_takes_once_traffic_should_have_moved() -> None:
    assert judged([]).step_ratio == pytest.approx(200.0)  # none ended any more: 10 ms before, the rest of the fault


def test_a_flow_that_stays_has_no_reroute() -> None:
    found = judged([sighting("host1>leaf1", OUT, 10.5), sighting("host1>leaf1", OUT, 12.95)])
    assert (found.affected, found.moved) == (2, 0)
    assert found.reroute_s is None
    assert found.rerouted_s is None
    assert found.off_link_s is None


def test_packets_on_a_link_that_flows_have_left_are_counted() -> None:
    moved = [sighting("host1>leaf2", OUT, 10.02), sighting("host2>leaf2", IN, 10.03)]
    late = [sighting("host1>leaf1", OUT, 10.034, packets=1), sighting("leaf1>host1", IN, 10.3, packets=7)]
    after = [sighting("host1>leaf1", OUT, 13.5, packets=9)]
    assert judged([*moved, *late, *after]).packets_on_bad_link == 7  # what was under way is no matter, nor what follows
    assert judged(late, "flap").packets_on_bad_link == 7  # once the link has risen, the first time


def test_the_return_is_the_last_move_back() -> None:
    away = entry("host1", "host1-1", "moved 50% of the flows to host2 away: 4 path(s) carry them")
    back = [
        replace(entry(host, f"{host}-1", "moved 50% of the flows to host9 back: 8 path(s) carry them"), now_s=now_s)
        for host, now_s in (("host1", 14.25), ("host2", 15.5))
    ]
    assert judged([], entries=(away, *back), waited=True).return_s == pytest.approx(2.5)
    assert judged([], entries=(away, *back)).return_s is None  # told to forget: that is no return
    assert judged([], entries=(away,), waited=True).return_s is None


def test_one_story_of_a_daemon_is_one_move_each_way() -> None:
    entries = (
        entry("host1", "host1-1", "moved 50% of the flows to host2 away: 4 path(s) carry them"),
        entry("host1", "host1-1", "moved traffic away: eth2 carry it", rung=2),
        entry("host1", "host1-1", "moved traffic back: eth1, eth2 carry it", rung=2),
        entry("host2", "host2-4", "moved 50% of the flows to host1 away: 4 path(s) carry them"),
        entry("host2", "host2-4", "would have moved traffic away: eth2 carry it"),
        entry("host2", "host2-4", "the flows to host1: verified after the move"),
    )
    found = judged([], entries=entries)
    assert (found.moves, found.all_moves) == (2, 3)


def test_a_tail_loss_probe_that_was_needless_is_no_retransmission() -> None:
    assert SentAgain(segments=30, needless=30).needed == 0
    assert SentAgain(segments=31, needless=30).needed == 1
