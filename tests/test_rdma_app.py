"""What the daemon shows of RDMA and Ethernet ports, by configuration."""

from __future__ import annotations

import time

from linkpass.app.rdma import OFF, Rdma
from linkpass.config import Config
from linkpass.config.model import Rdma as Wanted
from linkpass.edges.clock import Clock

RUNGS = {"1": {"armed": False, "why": "off"}, "2": {"armed": False, "why": "off"}}


def test_what_is_off_says_so_and_reads_nothing() -> None:
    rdma = Rdma(
        Config(rdma=Wanted(counters=False, ethernet=False, flows=False, events=False)),
        Clock(),
        lambda _: None,
        lambda: ["lo"],
    )
    rdma.open()
    assert rdma.poll() == []
    assert rdma.view(RUNGS, lambda _: ()) == {
        "why": OFF, "devices": [], "ethernet": [], "ethernet_why": OFF, "flows": [], "flows_why": OFF,
        "flows_age_s": None, "flows_failures": 0,
        "live_qps_why": "rdma.steer.live_qps is off",
    }  # fmt: skip
    rdma.close()


def test_a_host_without_rdma_shows_its_uplinks() -> None:
    rdma = Rdma(Config(rdma=Wanted(counters=False, flows=False)), Clock(), lambda _: None, lambda: ["lo"])
    rdma.open()
    until_s = time.monotonic() + 10
    while not (ports := rdma.view(RUNGS, lambda _: ())["ethernet"]) and time.monotonic() < until_s:
        assert rdma.poll() == []
    (port,) = ports
    assert (port["name"], port["totals"], port["module"]) == ("lo", {}, None)
    assert port["unknown"]["pause"] == "unknown: missing (the driver does not tell it)"
    rdma.close()
