"""Frames in tunnels, as scapy reads them, and what is said of tunnels to kernel and peers."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest
from pyroute2 import netns
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.l2 import Ether
from scapy.layers.vxlan import VXLAN

from linkpass.edges.kernel.sock import RequestSocket
from linkpass.edges.kernel.space import Space, enter
from linkpass.wire import frame, nfnl, probe, rtnl
from linkpass.wire import vxlan_links as links
from linkpass.wire.vxlan import End, Tunnelled, mac_of

OWN, PEER = socket.inet_aton("10.255.0.1"), socket.inet_aton("10.255.0.3")
END = End(3787, 0x4C50)


def inner(**changes: int) -> frame.Headers:
    ends = (b"\x02\0\0\0\0\x01", b"\x02\0\0\0\0\x02", OWN, PEER)
    return frame.Headers(*ends, frame.TCP, 3785, 3785, **changes)


def test_a_frame_in_a_tunnel_is_what_scapy_reads() -> None:
    made = Tunnelled(inner(hop_limit=2, dscp=10, label=0x1234), END, 52003).frame(b"payload", 0xABCD1234)
    outer = Ether(made)
    assert (outer.src, outer.dst) == ("02:00:00:00:00:01", "02:00:00:00:00:02")
    assert (outer[IP].ttl, outer[IP].id, outer[IP].tos, outer[IP].flags) == (2, 0x1234, 40, "DF")
    assert (outer[UDP].sport, outer[UDP].dport, outer[UDP].chksum, outer[UDP].len) == (52003, 3787, 0, len(made) - 34)
    tunnel = VXLAN(bytes(outer[UDP].payload))
    assert (int(tunnel.vni), tunnel.flags.value & 8) == (0x4C50, 8)
    inside = tunnel[Ether]
    assert (inside.src, inside.dst) == (mac_of(OWN).hex(":"), mac_of(PEER).hex(":"))
    assert (inside[IP].src, inside[IP].dst, inside[IP].ttl) == ("10.255.0.1", "10.255.0.3", 64)
    assert (inside[TCP].seq, bytes(inside[TCP].payload)) == (0xABCD1234, b"payload")
    parsed = frame.parse(bytes(inside))
    assert parsed is not None and parsed.checksum_ok and parsed.payload == b"payload"


def test_the_outer_header_s_checksum_is_right() -> None:
    made = Tunnelled(inner(), END, 52003).frame(b"x" * 33, 77)
    assert frame.sum16(made[14:34]) in (0, 0xFFFF)


@pytest.mark.parametrize("end", [None, probe.NO_END, END, End(65535, 0xFFFFFF)])
def test_a_report_says_where_tunnels_end_beside_all_else(end: End | None) -> None:
    signer, addresses = probe.Signer(b"0123456789abcdef"), OWN + PEER
    word = probe.WireNotice(probe.Kind.GOODBYE, 1, 2, 3.0, "host1", "")
    report = probe.Report(1, 2, 0, [probe.Heard(1, 2, 3)], [word], [9], end=end)
    packet = probe.decode(signer, addresses, probe.encode(signer, addresses, report, 5, 1, 1, 1))
    assert isinstance(packet, probe.Probe)
    assert packet.end() == end
    assert packet.words() == ([word], [9]) and [one.last for one in packet.report()] == [2]


def test_a_mark_carries_the_label_of_an_ipv4_peer() -> None:
    entry = nfnl.Entry("10.255.0.3", 3, 52003)
    assert entry.key == PEER + (3).to_bytes(4, sys.byteorder)
    assert int.from_bytes(entry.data, sys.byteorder) == 0x4C50_0000 | 52003


@pytest.fixture
def kernel() -> Iterator[RequestSocket]:
    """In a namespace of its own, in which this thread is."""
    name = f"te-{os.getpid()}-v"
    netns.create(name)
    home, there = Space(), os.open(f"/run/netns/{name}", os.O_RDONLY)
    home.open()
    sock = RequestSocket()
    try:
        enter(there)
        sock.open()
        yield sock
    finally:
        enter(home.fd)
        sock.close()
        home.close()
        os.close(there)
        netns.remove(name)


def ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


@pytest.mark.netns
def test_the_kernel_takes_what_is_said_and_says_it_again(kernel: RequestSocket) -> None:
    wanted = links.Vxlan("linkpass-52003", 19540, 3787, (52003, 52004), "10.255.0.1", mac_of(OWN), 1550)
    kernel.change(rtnl.RTM_NEWLINK, links.new_vxlan(wanted), rtnl.F_CREATE | rtnl.F_EXCL, "device")
    found = [one for one in (links.parse_vxlan(a.body) for a in kernel.dump(rtnl.RTM_GETLINK)) if one is not None]
    index = socket.if_nametoindex("linkpass-52003")
    assert found == [replace(wanted, index=index)]
    shown = ip("-d", "link", "show", "linkpass-52003")
    for part in ("srcport 52003 52004", "dstport 3787", "nolearning", "tos inherit", "ttl 64", "df set", "noudpcsum"):
        assert part in shown, shown
    kernel.change(links.RTM_NEWRULE, links.rule(0x4C50CB23, 0x4C50CB23, 7600, 76), rtnl.F_CREATE | rtnl.F_EXCL, "rule")
    rules = [one for one in (links.parse_rule(a.body) for a in kernel.dump(links.RTM_GETRULE, rtnl.AF_INET)) if one]
    assert rules == [links.Rule(0x4C50CB23, 0x4C50CB23, 7600, 76)]
    assert "7600:\tfrom all fwmark 0x4c50cb23 lookup 1280363299 proto 76" in ip("rule")
    kernel.change(rtnl.RTM_NEWLINK, links.set_up(index), 0, "up")
    kernel.change(rtnl.RTM_NEWNEIGH, links.neighbour(index, "10.255.0.3", mac_of(PEER)), rtnl.F_CREATE, "neighbour")
    assert "10.255.0.3 dev linkpass-52003 lladdr 02:4c:0a:ff:00:03 PERMANENT" in ip("neigh")
    where = links.forwarding(index, mac_of(PEER), "10.255.0.3", port=3787, vni=19536, over=1)
    kernel.change(rtnl.RTM_NEWNEIGH, where, rtnl.F_CREATE | rtnl.F_REPLACE, "forwarding")
    bridge = subprocess.run(["bridge", "fdb"], check=True, capture_output=True, text=True).stdout
    assert "02:4c:0a:ff:00:03 dev linkpass-52003 dst 10.255.0.3 vni 19536 via lo self permanent" in bridge
    ip("link", "add", "b0", "type", "bridge")
    kernel.change(rtnl.RTM_DELLINK, links.delete_link(index), 0, "remove")
    assert not [a for a in kernel.dump(rtnl.RTM_GETLINK) if links.parse_vxlan(a.body)]
