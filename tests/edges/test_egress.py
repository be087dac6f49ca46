"""The table at the uplinks' egress on the real kernel: what it takes up leaves once, and as it was.

What it is for, soft-RoCE, needs an emulated host: `tests/rdma/test_carrier_guests.py`."""

from __future__ import annotations

import json
import socket
import subprocess

import pytest
from kernel_lab import BOTH, PEER4, PEER6, KernelLab, inside

from linkpass.edges.kernel.egress import AGAIN_S, MARK, TRIES, EgressEdge, is_fatal
from linkpass.wire.frame import ROCE_PORT

pytestmark = pytest.mark.netns
RELEASE = "6.12.0"
SO_MARK = 36
OTHER_PORT, OTHER_MARK = 9000, 7
THEIRS = f"""table netdev theirs {{
  chain late {{
    type filter hook egress devices = {{ "eth1", "eth2" }} priority 10; policy accept;
    meta mark 0 counter
    meta mark {MARK} counter
    meta mark {OTHER_MARK} counter
  }}
}}
"""


@pytest.fixture
def theirs(lab: KernelLab) -> None:
    """Somebody else's table, behind ours: what it counts is what goes to the device."""
    nft(lab, given=THEIRS)


def nft(lab: KernelLab, *words: str, given: str = "") -> str:
    with inside(lab.host):
        argv = ["nft", *words] if words else ["nft", "-f", "-"]
        return subprocess.run(argv, input=given, text=True, check=True, capture_output=True).stdout


def counted(lab: KernelLab) -> list[int]:
    """Packets without a mark, with ours, with another's."""
    said = json.loads(nft(lab, "-j", "list", "chain", "netdev", "theirs", "late"))["nftables"]
    return [
        part["counter"]["packets"] for one in said if "rule" in one for part in one["rule"]["expr"] if "counter" in part
    ]


def devices(lab: KernelLab) -> dict[str, int]:
    return {name: lab.index(name) for name in BOTH}


def arrives(lab: KernelLab, peer: str, port: int, *, mark: int = 0, count: int = 20) -> list[bytes]:
    """What the peer receives of numbered datagrams, from as many ports, so that both uplinks carry some."""
    family = socket.AF_INET6 if ":" in peer else socket.AF_INET
    with inside(lab.router):
        there = socket.socket(family, socket.SOCK_DGRAM)
        there.bind((peer, port))
    there.settimeout(30)
    with there:
        for number in range(count):
            with inside(lab.host):
                here = socket.socket(family, socket.SOCK_DGRAM)
            with here:
                here.setsockopt(socket.SOL_SOCKET, SO_MARK, mark)
                here.sendto(bytes([number]), (peer, port))
        found = [there.recv(64) for _ in range(count)]
        there.setblocking(False)
        with pytest.raises(BlockingIOError):  # a veth hands over at once: a second one would be there
            there.recv(64)
    return found


@pytest.mark.parametrize("peer", [PEER6, PEER4])
def test_what_goes_to_roces_port_leaves_once_and_unmarked(lab: KernelLab, theirs: None, peer: str) -> None:
    edge = EgressEdge(release=RELEASE)
    with inside(lab.host):
        said = edge.keep(devices(lab), 0.0)
    assert (
        said == "a loss of carrier of eth1, eth2 does not end soft-RoCE's queue pairs: nftables table netdev linkpass"
    )
    before = counted(lab)
    assert sorted(arrives(lab, peer, ROCE_PORT)) == [bytes([number]) for number in range(20)]
    unmarked, ours, others = (now - was for now, was in zip(counted(lab), before, strict=True))
    assert unmarked >= 20  # neighbours are asked for meanwhile
    assert (ours, others) == (0, 0)
    with inside(lab.host):
        assert edge.sweep() == ["nftables table netdev linkpass"]


def test_what_others_have_marked_and_other_ports_pass(lab: KernelLab, theirs: None) -> None:
    edge = EgressEdge(release=RELEASE)
    with inside(lab.host):
        edge.keep(devices(lab), 0.0)
    arrives(lab, PEER6, ROCE_PORT, mark=OTHER_MARK)
    arrives(lab, PEER6, OTHER_PORT, mark=MARK)
    _, ours, others = counted(lab)
    assert (ours, others) == (20, 20)


def test_it_is_made_anew_for_other_devices_only(lab: KernelLab) -> None:
    edge = EgressEdge(release=RELEASE)
    with inside(lab.host):
        assert edge.keep(devices(lab), 0.0)
        assert edge.keep(devices(lab), 0.0) == ""
        assert edge.keep({"eth2": lab.index("eth2")}, 0.0)
    listed = nft(lab, "list", "table", "netdev", "linkpass")
    assert "eth2" in listed
    assert "eth1" not in listed


def test_of_two_daemons_the_second_replaces_what_the_first_left(lab: KernelLab) -> None:
    with inside(lab.host):
        assert EgressEdge(release=RELEASE).keep(devices(lab), 0.0)
        assert EgressEdge(release=RELEASE).keep(devices(lab), 0.0)
        assert EgressEdge().sweep() == ["nftables table netdev linkpass"]
        assert EgressEdge().sweep() == []


def test_that_it_cannot_be_made_is_said_once_and_tried_again(lab: KernelLab, monkeypatch: pytest.MonkeyPatch) -> None:
    edge = EgressEdge(release=RELEASE)
    with inside(lab.host):
        with monkeypatch.context() as without_nft:
            without_nft.setattr("shutil.which", lambda *_arguments, **_more: None)
            assert "install the package nftables" in edge.keep(devices(lab), 0.0)
            assert edge.keep(devices(lab), AGAIN_S) == ""
        assert edge.keep(devices(lab), AGAIN_S + 1) == ""
        assert edge.keep(devices(lab), 2 * AGAIN_S).endswith("nftables table netdev linkpass")


def test_it_is_not_tried_for_ever(lab: KernelLab, monkeypatch: pytest.MonkeyPatch) -> None:
    edge = EgressEdge(release=RELEASE)
    with inside(lab.host):
        with monkeypatch.context() as without_nft:
            without_nft.setattr("shutil.which", lambda *_arguments, **_more: None)
            assert [bool(edge.keep(devices(lab), n * AGAIN_S)) for n in range(TRIES)] == [True, False, False]
        assert edge.keep(devices(lab), 1e6) == ""
    assert "linkpass" not in nft(lab, "list", "tables")


@pytest.mark.parametrize(("release", "fatal"), [("6.9.12", False), ("6.10.0-rc1", True), ("7.1.0", True), ("?", False)])
def test_it_is_made_where_a_refused_packet_is_fatal(lab: KernelLab, release: str, *, fatal: bool) -> None:
    assert is_fatal(release) is fatal
    with inside(lab.host):
        assert bool(EgressEdge(release=release).keep(devices(lab), 0.0)) is fatal
    assert ("linkpass" in nft(lab, "list", "tables")) is fatal
