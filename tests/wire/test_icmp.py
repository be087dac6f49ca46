"""ICMP errors against scapy as the oracle."""

from __future__ import annotations

import ipaddress

from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.inet import ICMP, IP, TCP, UDP, IPOption_NOP
from scapy.layers.inet6 import ICMPv6DestUnreach, ICMPv6EchoRequest, ICMPv6TimeExceeded, IPv6

from linkpass.wire import icmp

A, B = "fd00::1", "fd00::2"


def packed(address: str) -> bytes:
    return ipaddress.ip_address(address).packed


@given(st.integers(0, 0xFFFFF), st.integers(0, 65535), st.integers(0, 0xFFFFFFFF), st.binary(max_size=40))
def test_time_exceeded_quotes_the_segment(label: int, port: int, sequence: int, payload: bytes) -> None:
    quoted = IPv6(src=A, dst=B, fl=label) / TCP(sport=port, dport=3785, seq=sequence, flags="R") / payload
    error = icmp.parse6(bytes(ICMPv6TimeExceeded() / quoted))
    assert error == icmp.IcmpError(
        "time_exceeded", 0, icmp.Quoted(packed(A), packed(B), 6, label, port, 3785, sequence, payload)
    )


@given(st.integers(0, 65535), st.binary(max_size=40))
def test_unreachable_quotes_the_datagram(port: int, payload: bytes) -> None:
    quoted = IPv6(src=A, dst=B, fl=5) / UDP(sport=port, dport=9) / payload
    error = icmp.parse6(bytes(ICMPv6DestUnreach(code=4) / quoted))
    assert error == icmp.IcmpError("unreachable", 4, icmp.Quoted(packed(A), packed(B), 17, 5, port, 9, 0, payload))


@given(st.integers(0, 65535), st.integers(0, 0xFFFFFFFF), st.integers(0, 40))
def test_icmp4_with_as_little_as_eight_quoted_bytes(identification: int, sequence: int, kept: int) -> None:
    inner = bytes(
        IP(src="10.0.0.1", dst="10.0.0.2", id=identification) / TCP(sport=7, dport=8, seq=sequence) / (b"x" * 20)
    )
    packet = bytes(
        IP(src="10.9.9.9", dst="10.0.0.1", options=[IPOption_NOP()] * 4) / ICMP(type=11) / inner[: 28 + kept]
    )
    error = icmp.parse4(packet)
    assert error is not None
    assert (error.kind, error.quoted.label, error.quoted.sequence) == ("time_exceeded", identification, sequence)
    assert (error.quoted.sport, error.quoted.dport) == (7, 8)
    assert error.quoted.payload == inner[40 : 28 + kept]


def test_a_quote_cut_before_the_ports_has_none() -> None:
    inner = bytes(IPv6(src=A, dst=B, fl=3) / TCP(sport=1, dport=2, seq=3))
    for kept, ports, sequence in ((40, (0, 0), 0), (43, (0, 0), 0), (44, (1, 2), 0), (48, (1, 2), 3)):
        error = icmp.parse6(bytes((3, 0, 0, 0, 0, 0, 0, 0)) + inner[:kept])
        assert error is not None
        assert (error.quoted.sport, error.quoted.dport) == ports
        assert error.quoted.sequence == sequence


def test_other_messages_are_none() -> None:
    assert icmp.parse6(bytes(ICMPv6EchoRequest()) + bytes(60)) is None
    assert icmp.parse6(b"\x03" + bytes(60)) is None  # quotes something that is not IPv6
    assert icmp.parse4(bytes(IP() / ICMP(type=8)) + bytes(60)) is None
    assert icmp.parse4(bytes(IP() / ICMP(type=11)) + bytes(60)) is None  # quotes something that is not IPv4
    assert icmp.parse4(b"") is None


@given(st.binary(max_size=120))
def test_any_bytes_are_parsed_without_an_error(data: bytes) -> None:
    for kind in (1, 3, 11):
        icmp.parse6(bytes((kind,)) + data)
        icmp.parse4(b"\x45" + bytes(19) + bytes((kind,)) + data)
    icmp.parse4(data)
