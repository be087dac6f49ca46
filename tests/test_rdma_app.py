"""What the daemon shows of RDMA and Ethernet ports, by configuration."""

from __future__ import annotations

import time
from pathlib import Path

from at_once import AtOnce
from sysfs_tree import Tree

from linkpass.app.rdma import OFF, Rdma
from linkpass.config import Config
from linkpass.config.model import Rdma as Wanted
from linkpass.core.events import CongestionEvidence, Event
from linkpass.edges.clock import Clock
from linkpass.edges.counters import CounterEdge

MARKED = "packets arrive marked: a queue stands on their way"
SLOWED = "receivers ask us to slow down: our packets meet a queue"

RUNGS = {"1": {"armed": False, "why": "off"}, "2": {"armed": False, "why": "off"}}


def said(rdma: Rdma) -> list[str]:
    """Of one whole turn."""
    return [line for lines in rdma.poll() for line in lines]


def test_what_is_off_says_so_and_reads_nothing() -> None:
    rdma = Rdma(
        Config(rdma=Wanted(counters=False, ethernet=False, flows=False, events=False)),
        Clock(),
        lambda _: None,
        lambda: ["lo"],
    )
    rdma.open()
    assert said(rdma) == []
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
        assert said(rdma) == []
    (port,) = ports
    assert (port["name"], port["totals"], port["module"]) == ("lo", {}, None)
    assert port["unknown"]["pause"] == "unknown: missing (the driver does not tell it)"
    rdma.close()


def test_congestion_of_a_port_is_told_of_its_uplink_when_it_changes(tmp_path: Path) -> None:
    tree, told, now_s = Tree(tmp_path), list[Event](), [0.0]
    tree.device("mlx5_0", driver="mlx5_core", pci="0000:9a:00.0", numa=1)
    tree.port("mlx5_0")
    tree.gid("mlx5_0", 3, "0000:0000:0000:0000:0000:ffff:0a01:0102", "RoCE v2", "eth7")
    tree.counters("mlx5_0", "counters", port_rcv_packets=1000)
    tree.counters("mlx5_0", "hw_counters", np_ecn_marked_roce_packets=0, rp_cnp_handled=0)
    config = Config(rdma=Wanted(ethernet=False, flows=False, events=False))
    rdma = Rdma(config, Clock(), told.append, lambda: ["eth7", "eth8"])
    rdma._counters = CounterEdge(config.rdma.evidence, lambda: now_s[0], tree.root, AtOnce())

    def count(**values: int) -> None:
        for file, value in values.items():
            (path,) = (tree.root / "class/infiniband/mlx5_0/ports/1").glob(f"*/{file}")
            path.write_text(f"{value}\n")
        for _ in range(2):  # read, and what was read is taken
            now_s[0] += 0.5
            said(rdma)

    count()
    assert told == []
    count(port_rcv_packets=2000, np_ecn_marked_roce_packets=200)
    assert told == [CongestionEvidence(uplink="eth7", into=(MARKED,))]
    count(port_rcv_packets=3000, rp_cnp_handled=5000)
    assert told[-1] == CongestionEvidence(uplink="eth7", out=(SLOWED,))
    count()
    assert told[-1] == CongestionEvidence(uplink="eth7")
    told.clear()
    count()
    assert told == []
    rdma.close()
