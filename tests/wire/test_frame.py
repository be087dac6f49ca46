"""Frames against scapy as the oracle."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether

from linkpass.wire import frame

macs = st.binary(min_size=6, max_size=6)
ports = st.integers(0, 65535)


@st.composite
def headers(draw: st.DrawFn) -> frame.Headers:
    size = draw(st.sampled_from([4, 16]))
    address = st.binary(min_size=size, max_size=size)
    return frame.Headers(
        draw(macs), draw(macs), draw(address), draw(address), draw(st.sampled_from([frame.TCP, frame.UDP])),
        draw(ports), draw(ports), label=draw(st.integers(0, 0xFFFFF if size == 16 else 0xFFFF)),
        hop_limit=draw(st.integers(0, 255)), dscp=draw(st.integers(0, 63)), flags=draw(st.integers(0, 255)),
    )  # fmt: skip


def scapy_frame(h: frame.Headers, payload: bytes, sequence: int) -> bytes:
    ether = Ether(dst=h.dst_mac.hex(":"), src=h.src_mac.hex(":"))
    if len(h.src) == 16:
        network = IPv6(src=_text(h.src), dst=_text(h.dst), tc=h.dscp << 2, fl=h.label, hlim=h.hop_limit)
    else:
        network = IP(src=_text(h.src), dst=_text(h.dst), tos=h.dscp << 2, id=h.label, ttl=h.hop_limit, flags="DF")
    if h.protocol == frame.TCP:
        transport = TCP(sport=h.sport, dport=h.dport, seq=sequence, flags=h.flags, window=0)
    else:
        transport = UDP(sport=h.sport, dport=h.dport)
    return bytes(ether / network / transport / payload)


def _text(address: bytes) -> str:
    import ipaddress

    return str(ipaddress.ip_address(address))


@given(headers(), st.lists(st.tuples(st.binary(max_size=300), st.integers(0, 0xFFFFFFFF)), min_size=1, max_size=3))
def test_every_frame_of_a_template_is_what_scapy_builds(h: frame.Headers, sends: list[tuple[bytes, int]]) -> None:
    template = frame.Template(h)
    for payload, sequence in sends:
        assert template.frame(payload, sequence) == scapy_frame(h, payload, sequence)


@given(headers(), st.binary(max_size=300), st.integers(0, 0xFFFFFFFF))
def test_parse_gives_back_what_was_built(h: frame.Headers, payload: bytes, sequence: int) -> None:
    packet = frame.parse(frame.Template(h).frame(payload, sequence) + b"padding")
    assert packet is not None
    assert packet.checksum_ok
    assert packet.payload == payload
    tcp = h.protocol == frame.TCP
    assert (packet.sequence, packet.flags) == ((sequence, h.flags) if tcp else (0, 0))
    same = ("src_mac", "dst_mac", "src", "dst", "protocol", "sport", "dport", "label", "hop_limit", "dscp")
    assert [getattr(packet, name) for name in same] == [getattr(h, name) for name in same]
    assert frame.payload_offset(len(h.src), h.protocol) + len(payload) == len(frame.Template(h).frame(payload))


@given(headers(), st.binary(max_size=64))
def test_a_spoilt_checksum_is_wrong_and_nothing_else_is(h: frame.Headers, payload: bytes) -> None:
    import msgspec

    packet = frame.parse(frame.Template(msgspec.structs.replace(h, spoil=True)).frame(payload))
    assert packet is not None
    assert not packet.checksum_ok
    assert packet.payload == payload


@given(headers(), st.binary(max_size=64), st.data())
def test_a_frame_cut_anywhere_is_none(h: frame.Headers, payload: bytes, data: st.DataObject) -> None:
    whole = frame.Template(h).frame(payload)
    assert frame.parse(whole[: data.draw(st.integers(0, len(whole) - 1))]) is None


@given(st.binary(max_size=120))
def test_any_bytes_are_parsed_without_an_error(data: bytes) -> None:
    for kind in (b"\x86\xdd", b"\x08\x00", b""):
        frame.parse(bytes(12) + kind + data)


def test_what_is_not_a_plain_packet_is_none() -> None:
    tcp4 = frame.Template(frame.Headers(bytes(6), bytes(6), bytes(4), bytes(4), frame.TCP, 1, 2)).frame(b"x")
    assert frame.parse(tcp4[:14] + b"\x46" + tcp4[15:]) is None  # IP options
    assert frame.parse(tcp4[:20] + b"\x20\x00" + tcp4[22:]) is None  # a fragment
    assert frame.parse(tcp4[:46] + b"\x40" + tcp4[47:]) is None  # a TCP header that is too short
    assert frame.parse(tcp4[:46] + b"\xf0" + tcp4[47:]) is None  # or longer than the segment
    assert frame.parse(tcp4[:23] + b"\x01" + tcp4[24:]) is None  # another protocol
