"""The edge that watches RDMA counters: what it shows, what it says once, and what it says of a host without RDMA."""

from __future__ import annotations

import os
import resource
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from at_once import AtOnce
from sysfs_tree import REFUSED, Tree

from linkpass.edges import counters
from linkpass.edges.counters import NO_RDMA, UNREAD_POLLS, CounterEdge
from linkpass.edges.metrics import exposition
from rdma.counters.evidence import Thresholds


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    made = Tree(tmp_path)
    made.device("mlx5_0", driver="mlx5_core", pci="0000:9a:00.0", numa=1)
    made.port("mlx5_0")
    made.gid("mlx5_0", 3, "0000:0000:0000:0000:0000:ffff:0a01:0102", "RoCE v2", "eth7")
    made.counters("mlx5_0", "counters", port_rcv_packets=1000, port_xmit_data=5, symbol_error=REFUSED)
    made.counters("mlx5_0", "hw_counters", np_ecn_marked_roce_packets=0, local_ack_timeout_err=2)
    return made


class Bench:
    """The edge, whose readings are done when they have been asked for, and the time."""

    def __init__(self, root: Path) -> None:
        self.now_s = 0.0
        self.edge = CounterEdge(Thresholds(), lambda: self.now_s, root, AtOnce())

    def poll(self, at_s: float) -> list[str]:
        """Reads at this time, and takes what was read."""
        self.now_s = at_s
        self.edge.poll()
        future = self.edge._reading
        assert future is not None
        self.edge._reading = None
        return self.edge._take(future)

    def snapshot(self) -> dict[str, Any]:
        return self.edge.snapshot()


@pytest.fixture
def edge(tree: Tree) -> Iterator[Bench]:
    made = Bench(tree.root)
    yield made
    made.edge.close()


def count(tree: Tree, **values: int) -> None:
    folder = tree.root / "class/infiniband/mlx5_0/ports/1"
    for file, value in values.items():
        (next(folder.glob(f"*/{file}"))).write_text(f"{value}\n")


def port_of(edge: Bench | CounterEdge) -> dict[str, Any]:
    port: dict[str, Any] = edge.snapshot()["devices"][0]["ports"][0]
    return port


def test_a_host_without_rdma_has_one_line_to_say(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    assert bench.snapshot() == {"why": "not read yet", "devices": []}
    assert bench.poll(1.0) == []
    assert bench.snapshot() == {"why": NO_RDMA, "devices": []}
    bench.edge.close()


def test_what_is_known_is_shown_and_what_is_not_has_its_reason(edge: Bench) -> None:
    assert edge.poll(1.0) == []
    shown = edge.snapshot()
    assert shown["why"] == ""
    (device,) = shown["devices"]
    assert (device["name"], device["driver"], device["numa_node"]) == ("mlx5_0", "mlx5_core", 1)
    port = port_of(edge)
    assert (port["name"], port["protocol"], port["state"], port["rate_bps"]) == ("mlx5_0/1", "RoCE", "ACTIVE", 400e9)
    assert port["netdevs"] == ["eth7"]
    assert port["totals"] == {"received_packets": 1000, "sent_bytes": 20, "ecn_marked_packets": 0, "answer_timeouts": 2}
    assert port["unknown"] == {"symbol_errors": "unknown: refused (Input/output error)"}
    assert port["figures"]["symbol_errors_per_s"] is None


def test_a_finding_is_said_once_and_once_when_it_is_over(edge: Bench, tree: Tree) -> None:
    edge.poll(1.0)
    count(tree, port_rcv_packets=2000, np_ecn_marked_roce_packets=200)
    (line,) = edge.poll(2.0)
    assert line == ("mlx5_0/1: packets arrive marked: a queue stands on their way (ecn_marked_ratio 0.2, limit 0.05)")
    assert [one["what"] for one in port_of(edge)["findings"]] == ["ecn_marked_ratio"]
    count(tree, port_rcv_packets=3000, np_ecn_marked_roce_packets=500)
    assert edge.poll(3.0) == []
    count(tree, port_rcv_packets=4000)
    assert edge.poll(4.0) == ["mlx5_0/1: ecn_marked_ratio is below its limit again"]
    assert port_of(edge)["findings"] == []


def test_a_port_that_goes_down_is_shown_at_the_next_look(edge: Bench, tree: Tree) -> None:
    edge.poll(1.0)
    tree.write("class/infiniband/mlx5_0/ports/1/state", "1: DOWN")
    edge.poll(2.0)
    assert port_of(edge)["state"] == "DOWN"


def test_what_is_exported_is_accepted_by_promtool(edge: Bench, tree: Tree) -> None:
    edge.poll(1.0)
    count(tree, local_ack_timeout_err=9)
    edge.poll(2.0)
    text = exposition(lambda: {"rdma": edge.snapshot()})
    for line in (
        b'linkpass_rdma_sent_bytes_total{port="mlx5_0/1"} 20.0',
        b'linkpass_rdma_port_active{port="mlx5_0/1"} 1.0',
        b'linkpass_rdma_figure{figure="answer_timeouts_per_s",port="mlx5_0/1"} 7.0',
        b'linkpass_rdma_finding{figure="answer_timeouts_per_s",kind="loss",port="mlx5_0/1"} 1.0',
    ):
        assert line in text
    assert b"symbol_errors" not in text  # what cannot be read is no zero
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_too_few_open_files_are_named(tree: Tree) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    bench = Bench(tree.root)
    first_free = os.dup(0)
    os.close(first_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (first_free + 2, hard))
    try:
        bench.poll(1.0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert bench.edge.why.startswith("the counters of mlx5_0/1 are not read: Too many open files: raise the limit")
    assert port_of(bench)["totals"] == {}
    bench.edge.close()
    bench = Bench(tree.root)
    resource.setrlimit(resource.RLIMIT_NOFILE, (first_free, hard))
    try:
        bench.poll(1.0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert bench.edge.why == "RDMA devices cannot be looked at: Too many open files"
    bench.poll(2.0)
    assert bench.edge.why == "", "it is tried again"
    bench.edge.close()


def test_a_driver_that_hangs_is_not_waited_for(tree: Tree) -> None:
    let_go, thread = threading.Event(), ThreadPoolExecutor(1)
    thread.submit(let_go.wait, 10)  # as a read whose driver waits for its firmware
    edge = CounterEdge(Thresholds(), lambda: 1.0, tree.root, thread)
    assert [edge.poll() for _ in range(5)] == [[]] * 5
    assert edge.why == "not read yet"
    let_go.set()
    thread.submit(int).result(10)
    edge.poll()
    assert edge.why == "" and port_of(edge)["state"] == "ACTIVE"
    edge.close()
    thread.shutdown(wait=True)


def test_what_nobody_has_thought_of_is_a_reason_and_not_the_end(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tree.root)
    with monkeypatch.context() as patch:
        patch.setattr(counters.PortReader, "totals", lambda _: 1 // 0)
        bench.poll(1.0)
    assert bench.edge.why.startswith("RDMA counters are not read: ZeroDivisionError")
    bench.poll(2.0)
    assert bench.edge.why == ""
    bench.edge.close()


def test_what_was_found_before_the_readings_ended_is_not_known_any_more(edge: Bench, tree: Tree) -> None:
    """A driver that hangs is the sick device itself: what it said last excuses nothing for ever."""
    edge.poll(1.0)
    count(tree, port_rcv_packets=2000, np_ecn_marked_roce_packets=200)
    edge.poll(2.0)
    assert list(edge.edge.congested())
    waits: Future[Any] = Future()
    edge.edge._reading = waits
    lines = [line for _ in range(UNREAD_POLLS) for line in edge.edge.poll()]
    assert lines == ["mlx5_0/1: ecn_marked_ratio is not known any more: its counters are not read"]
    assert list(edge.edge.congested()) == []
    edge.edge._reading = None
    count(tree, port_rcv_packets=4000, np_ecn_marked_roce_packets=600)
    edge.poll(9.0)
    assert list(edge.edge.congested())
