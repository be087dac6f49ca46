"""What a real RDMA program sends again on a wire that loses: as netlink and the device tell it, and on which path."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from guest_pair import ROOT, Pair

from lab.netns import namespace
from lab.rdma_job import RdmaJob

pytestmark = pytest.mark.guests
TOOL = Path(__file__).with_name("again_tool.py")
LABEL = 0x1234
OURS = f"add table ip6 ours; add chain ip6 ours out {{ type filter hook output priority 0; }};" \
       f" add rule ip6 ours out udp dport 4791 ip6 flowlabel set {LABEL}"  # fmt: skip
SECONDS, MOST_S = 6, 120


@contextmanager
def losing(pair: Pair) -> Iterator[None]:
    """One in ten of what the first guest sends."""

    def nft(lines: str) -> None:
        with namespace.inside(pair.wire):
            subprocess.run(["nft", "-f", "-"], input=lines, text=True, check=True)

    nft("insert rule netdev wire a udp dport 4791 numgen random mod 10 0 drop")
    try:
        yield
    finally:
        nft('flush chain netdev wire a\nadd rule netdev wire a fwd to "tap-b"')


@pytest.fixture
def job(pair: Pair) -> Iterator[None]:
    pair.a.guest.sh(f"nft '{OURS}'")
    made = RdmaJob(pair.a.guest, pair.b.guest, pair.b.v6, rate=40.0, retries=7).start()
    try:
        yield
        assert made.stop().whole
    finally:
        made.close()
        pair.a.guest.sh("nft delete table ip6 ours")


@pytest.mark.usefixtures("job")
def test_what_is_sent_again_is_known_by_the_device_and_told_of_its_path(pair: Pair) -> None:
    argv = [sys.executable, str(TOOL), pair.a.v6, str(SECONDS), str(MOST_S)]
    with losing(pair):
        said = json.loads(pair.a.guest.run(argv, timeout_s=2 * MOST_S, env={"PYTHONPATH": str(ROOT)}).out)
    # A receiver that was not ready makes it go back, too, in an emulated host now and then: then it is unknown.
    known = [went for went in said["looks"] if went is not None and went["by"] == "device"]
    counted = said["counted"][1]["retries"] - said["counted"][0]["retries"]
    assert all(went["again"] is not None and not went["least"] for went in known)
    assert 0 < sum(went["again"] for went in known) <= counted
    assert sum(went["sent"] for went in known) > 0
    assert said["bound"] == [], "the kernel takes the question, and nobody has bound a counter"
    for window in said["told"]:
        ((flow, sent, back, name, least),) = window["counts"]
        assert (window["type"], window["peer"], name, least) == ("FlowWindow", pair.b.v6, said["name"], False)
        assert flow[:2] == ["eth0", LABEL] and sent >= back
    assert sum(window["counts"][0][2] for window in said["told"]) > 0
