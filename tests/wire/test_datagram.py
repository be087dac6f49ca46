"""UDP datagrams in frames of every link type, as scapy makes them."""

from __future__ import annotations

import pytest
from scapy.layers.inet import ICMP, IP, TCP, UDP, fragment
from scapy.layers.inet6 import IPv6, IPv6ExtHdrFragment, IPv6ExtHdrHopByHop
from scapy.layers.l2 import ARP, CookedLinux, CookedLinuxV2, Dot1AD, Dot1Q, Ether
from scapy.packet import Packet

from linkpass.wire.datagram import Datagram, datagram

ETHER = Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")
SIX = IPv6(src="fd00::1", dst="fd00::2", fl=0x12345, tc=0x41, hlim=61) / UDP(sport=1000, dport=4791) / b"payload"
FOUR = IP(src="10.0.0.1", dst="10.0.0.2", tos=0x43, ttl=62) / UDP(sport=1000, dport=4791) / b"payload"
ENDS = {4: (bytes([10, 0, 0, 1]), bytes([10, 0, 0, 2])), 6: (b"\xfd" + bytes(14) + b"\1", b"\xfd" + bytes(14) + b"\2")}


@pytest.mark.parametrize(
    ("link", "head"),
    [
        (1, ETHER),
        (1, ETHER / Dot1Q(vlan=7)),
        (1, ETHER / Dot1AD(vlan=9) / Dot1Q(vlan=7)),
        (113, CookedLinux()),
        (113, CookedLinux() / Dot1Q(vlan=7)),
        (276, CookedLinuxV2(ifindex=3)),
        (101, None),
        (12, None),
        (228, None),
        (229, None),
    ],
)
@pytest.mark.parametrize("family", [4, 6])
def test_a_datagram_is_found(link: int, head: Packet | None, family: int) -> None:
    inner = SIX if family == 6 else FOUR
    found = datagram(bytes(inner if head is None else head / inner), link)
    assert isinstance(found, Datagram)
    assert (found.source, found.target, found.source_port, found.target_port) == (*ENDS[family], 1000, 4791)
    assert (found.label, found.hop_limit, found.ecn) == ((0x12345, 61, 1) if family == 6 else (None, 62, 3))
    assert found.packet == bytes(inner) and found.whole
    assert (found.network_bytes, found.udp_bytes) == (40 if family == 6 else 20, 15)
    assert found.where == (3 if link == 276 else None)


def test_padding_is_left_out_and_a_cut_is_told() -> None:
    padded = bytes(ETHER / FOUR) + bytes(11)
    found = datagram(padded, 1)
    assert isinstance(found, Datagram) and found.packet == bytes(FOUR) and found.whole
    cut = datagram(bytes(ETHER / SIX)[:-3], 1)
    assert isinstance(cut, Datagram) and not cut.whole and cut.udp_bytes == 15


def test_what_is_no_datagram_has_a_name() -> None:
    v4, v6 = IP(src="10.0.0.1", dst="10.0.0.2"), IPv6(src="fd00::1", dst="fd00::2")
    part = bytes(ETHER / fragment(v4 / UDP() / (b"x" * 100), fragsize=32)[1])
    for frame, name in (
        (ETHER / ARP(hwdst="02:00:00:00:00:02"), "ARP"), (ETHER / v4 / TCP(), "TCP"), (ETHER / v6 / TCP(), "TCP"),
        (ETHER / v4 / ICMP(), "ICMP"), (bytes(ETHER)[:12] + b"\x89\x15" + bytes(60), "0x8915"), (part, "fragment"),
        (ETHER / v6 / IPv6ExtHdrFragment(nh=17) / UDP(), "fragment"), (bytes(ETHER / SIX)[:40], "cut"), (b"", "cut"),
    ):  # fmt: skip
        assert datagram(bytes(frame), 1) == name
    assert datagram(b"", 147) == "link type 147"
    behind = datagram(bytes(ETHER / v6 / IPv6ExtHdrHopByHop() / UDP(sport=5, dport=6)), 1)
    assert isinstance(behind, Datagram) and (behind.source_port, behind.network_bytes) == (5, 48)
