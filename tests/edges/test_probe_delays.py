"""How late hosts are with what they owe to probes: the books, and a real daemon that is stopped half of the time."""

from __future__ import annotations

import asyncio
import json
import math
import sys
from pathlib import Path

import probe_lab as lab
import pytest
from hypothesis import given
from hypothesis import strategies as st
from probe_hosts import KEY, PLAN, Host

from lab.throttle import throttled
from linkpass.core import events as ev
from linkpass.core.settings import CoreSettings, Detection
from linkpass.edges.probes.books import Books
from linkpass.edges.probes.lateness import LONG_S, Lateness, delays_of
from linkpass.edges.probes.paths import HeardPath
from linkpass.edges.probes.peers import Peer
from linkpass.wire import probe

SLOW_S = Detection().slow_host_s


def test_a_delay_counts_for_the_time_since_the_one_before() -> None:
    late = Lateness()
    late.told(9.0, 100.0)  # the first has none
    for at_s, late_s in ((100.01, 0.0), (100.02, 0.0), (100.12, 0.09)):  # each tenth of a second stopped for most of it
        late.told(late_s, at_s)
    assert late.close() == pytest.approx(0.09 * 0.1 / 0.12)
    assert late.close() is None  # nothing was heard: not known, which is not 0
    late.told(0.001, 100.13)
    assert late.close() == pytest.approx(0.001)
    assert late.floor_s == pytest.approx(0.001)


def test_a_report_after_a_long_silence_counts_for_no_long_time() -> None:
    late = Lateness()
    late.told(0.0, 0.0)
    late.told(0.254, 500.0)
    for k in range(1, 11):
        late.told(0.0, 500.0 + k * LONG_S)
    assert late.close() == pytest.approx(0.254 / 11)
    late.told(0.254, 1.0)  # a clock that goes backwards counts for nothing
    assert late.close() is None


@given(st.floats(-1.0, 10.0))
def test_the_word_on_the_wire_is_a_millisecond_short_at_most_and_saturates(late_s: float) -> None:
    peer = Peer("fd00::2", b"b" * 16, b"a" * 16)
    peer.heard[1] = one = probe_path()
    one.hear(1.0, 0.001)
    report = probe.Report(1, 1, 0, peer.report_entries(2.0, probe.late_byte(late_s)))
    payload = probe.encode(probe.Signer(b"k"), b"a" * 32, report, 1, 1, 1, 0)
    got = probe.decode(probe.Signer(b"k"), b"a" * 32, payload)
    assert isinstance(got, probe.Probe) and got.late_s is not None
    assert got.late_s == pytest.approx(min(0.254, max(0.0, late_s)), abs=0.00101)


def test_reports_out_of_turn_and_those_of_older_daemons_say_nothing_of_it() -> None:
    report = probe.Report(1, 1, 0, (probe.Heard(1, 1, 1),))
    payload = probe.encode(probe.Signer(b"k"), b"a" * 32, report, 1, 1, 1, 0)
    got = probe.decode(probe.Signer(b"k"), b"a" * 32, payload)
    assert isinstance(got, probe.Probe) and got.late_s is None


def test_delays_are_told_of_all_when_one_is_long_and_of_nobody_else() -> None:
    books = Books(CoreSettings(host="h1", address="fd00::1"))
    peers = [books.peer(bytes(15) + bytes([number])) for number in (2, 3)]
    for second in range(2):
        books.late.take(0.001, 1.0)
        for peer in peers:
            peer.late.take(0.1 if second and peer is peers[1] else 0.0, 0.5)
        told = {(one.host, one.source): (one.delay_s, one.floor_s) for one in delays_of(books, SLOW_S / 2)}
        if not second:
            assert told == {}
    assert told == {
        ("fd00::1", "reports"): (0.001, 0.001),
        (peers[0].address, "reports"): (0.0, 0.0),
        (peers[1].address, "reports"): (0.1, 0.0),
    }
    peers[1].roce_late.take(0.2, 0.1)
    peers[1].adopt(7, 0)  # a daemon that has started anew has no past
    assert delays_of(books, SLOW_S / 2) == ()


def probe_path() -> HeardPath:
    made = HeardPath()
    made.window.accept(1)
    return made


@pytest.mark.netns
async def test_a_throttled_daemon_is_told_as_late_by_its_own_reports_and_no_path_is(
    fabric: lab.Fabric, tmp_path: Path
) -> None:
    """It is stopped for 70 of each 100 ms. Only ratios are asked for: what else runs here makes both hosts late."""
    one = Host(fabric, "h1").open()
    there = {
        "netns": f"/run/netns/{lab.PREFIX}h2", "address": lab.HOSTS["h2"], "peer": one.address, "plan": PLAN,
        "key": KEY.hex(),
        "uplinks": {
            name: [fabric.ifindex["h2", name], fabric.mac["h2", name].hex(), fabric.gateway_mac("h2", name).hex()]
            for name in ("eth1", "eth2")
        },
    }  # fmt: skip
    (tmp_path / "there.json").write_text(json.dumps(there))
    script = str(Path(__file__).with_name("probe_peer.py"))
    process = await asyncio.create_subprocess_exec(sys.executable, script, str(tmp_path / "there.json"))

    def rows() -> list[dict[str, ev.ProbeDelay]]:
        return [{row.host: row for row in event.delays} for event in one.all(ev.ProbeDelays)]

    def late() -> list[dict[str, ev.ProbeDelay]]:
        him = lab.HOSTS["h2"]
        return [
            row
            for row in rows()
            if him in row and row[him].delay_s > 2 * max(row[him].floor_s, row[one.address].delay_s)
        ]

    try:
        one.plan(lab.HOSTS["h2"])
        await one.good()
        (him,) = one.edge._books.peers.values()
        await one.until(lambda: him.late.floor_s < math.inf)  # a window before anything happens
        with throttled(process.pid, 0.7, 0.1):
            await one.until(lambda: len(late()) >= 5, 120.0)
        assert one.judged() == []
        assert set(one.evidence().values()) == {"good"}
    finally:
        process.kill()
        await process.wait()
        one.edge.close()
