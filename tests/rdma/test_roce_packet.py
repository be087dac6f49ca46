"""RoCE packets' bytes: the ICRC against scapy's, fields of every kind of packet, and whatever bytes may come."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from roce_story import CNP, DETH, RETH, UD, A, B, packet
from scapy.contrib.roce import AETH, BTH
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6, IPv6ExtHdrDestOpt
from scapy.packet import Packet as Made
from scapy.packet import Raw

from linkpass.wire.datagram import Datagram, datagram
from rdma.roce.packet import Packet, Transport, icrc, operation, read

A4, B4 = "10.0.0.1", "10.0.0.2"
RAW_IP = 101


def taken(made: Made | bytes) -> Transport:
    found = datagram(bytes(made), RAW_IP)
    assert isinstance(found, Datagram)
    transport = read(found.packet, found.network_bytes, found.udp_bytes)
    assert transport is not None
    return transport


def test_an_icrc_by_hand() -> None:
    """An acknowledgement over IPv4, its masked fields written out (annex A17, section A17.3.3) and summed by zlib."""
    import zlib

    data = bytes(packet(A4, B4, 0x1234, 17, 99, syndrome=0x1F, ecn=2, hops=61))
    assert len(data) == 20 + 8 + 12 + 4 + 4
    masked = bytearray(b"\xff" * 8 + data[:-4])
    for at in (8 + 1, 8 + 8, 8 + 10, 8 + 11, 8 + 20 + 6, 8 + 20 + 7, 8 + 20 + 8 + 4):
        masked[at] = 0xFF
    assert data[-4:] == zlib.crc32(masked).to_bytes(4, "little") == icrc(data[:-4], 20)
    assert taken(data).icrc_ok is True


@settings(deadline=None, max_examples=60)
@given(
    st.booleans(), st.binary(max_size=64), st.integers(0, 0xFFFFFF), st.integers(0, 0xFFFFFF),
    st.integers(0, 0xFFFFF), st.integers(0, 3), st.integers(1, 255),
)  # fmt: skip
def test_the_icrc_is_scapys(
    six: bool, payload: bytes, qpn: int, psn: int, label: int, ecn: int, hops: int
) -> None:  # fmt: skip
    ends = (A, B) if six else (A4, B4)
    data = bytes(packet(*ends, qpn, 4, psn, payload, label=label, ecn=ecn, hops=hops))
    found = taken(data)
    assert (found.icrc_ok, found.qpn, found.psn, found.payload_bytes) == (True, qpn, psn, len(payload))
    rewritten = bytearray(data)
    if six:  # what switches and a steering host may change
        rewritten[0:4] = (0x6FF12345).to_bytes(4, "big")
        rewritten[7] ^= 0x15
    else:
        rewritten[1] ^= 3
        rewritten[8] ^= 0x15
    assert taken(bytes(rewritten)).icrc_ok is True
    wrong = bytearray(data)
    wrong[-5] ^= 1
    assert taken(bytes(wrong)).icrc_ok is False


def test_fields_of_every_kind() -> None:
    assert taken(packet(A, B, 7, 12, 1, RETH(length=70000))).read_bytes == 70000
    assert taken(packet(A, B, 7, 12, 1, RETH(length=70000))).payload_bytes == 0
    assert taken(packet(A, B, 7, 10, 1, RETH(length=8) / Raw(b"x" * 8))).payload_bytes == 8
    assert taken(packet(A, B, 7, 10, 1, RETH(length=8) / Raw(b"x" * 8))).read_bytes is None
    assert taken(packet(A, B, 7, 11, 1, RETH(length=8) / Raw(b"i" * 4 + b"x" * 8))).payload_bytes == 8
    assert taken(packet(A, B, 7, 22, 1, b"k" * 4 + b"x" * 8)).payload_bytes == 8
    assert taken(packet(A, B, 7, 19, 1, b"a" * 28)).payload_bytes == 0
    assert taken(packet(A, B, 7, 18, 1, bytes(AETH(syndrome=3)) + b"o" * 8)).syndrome == 3
    assert taken(packet(A, B, 7, 15, 1, b"y" * 9, syndrome=5)).syndrome == 5
    assert taken(packet(A, B, 7, 15, 1, b"y" * 9, syndrome=5)).payload_bytes == 9
    datagram_ = taken(packet(A, B, 1, UD | 4, 1, DETH(qpn=0x99) / Raw(b"z" * 256)))
    assert (datagram_.sender_qpn, datagram_.payload_bytes) == (0x99, 256)
    assert taken(packet(A, B, 7, 0xA4, 1, b"srq!" + b"x" * 8)).payload_bytes == 8  # XRC SEND only
    slow = taken(packet(A, B, 7, CNP, 0))
    assert (slow.opcode, slow.payload_bytes, slow.syndrome, slow.icrc_ok) == (CNP, 0, None, True)


def test_names_of_opcodes() -> None:
    names = {0x04: "RC SEND only", 0x29: "UC WRITE last with immediate", 0x11: "RC ACK", 0x64: "UD SEND only",
             0xB1: "XRC ACK", 0x81: "CNP", 0x80: "opcode 0x80", 0xFF: "opcode 0xff"}  # fmt: skip
    assert {code: operation(code) for code in names} == names
    assert Packet(0, "a", "b", 1, 0x80, 1, 1, 0).transport == "?"


def test_what_is_no_roce() -> None:
    ip = IPv6(src=A, dst=B)
    other = bytes(ip / UDP(sport=1, dport=4791) / BTH(version=3, opcode=4) / Raw(b"x" * 8))
    short = bytes(ip / UDP(sport=1, dport=4791) / b"too short")
    for data in (other, short):
        found = datagram(data, RAW_IP)
        assert isinstance(found, Datagram) and read(found.packet, found.network_bytes, found.udp_bytes) is None


def test_headers_in_between() -> None:
    """IPv6 extension headers and IPv4 options are covered by the sum as they are."""
    for head, size in (
        (IPv6(src=A, dst=B, nh=60) / IPv6ExtHdrDestOpt(nh=17), 48), (IP(src=A4, dst=B4, options=b"\x01" * 4), 24)
    ):  # fmt: skip
        body = bytes(BTH(opcode=4, dqpn=5, psn=6, icrc=0) / Raw(b"x" * 8))
        data = bytearray(bytes(head / UDP(sport=1, dport=4791, chksum=0) / Raw(body)))
        data[-4:] = icrc(bytes(data[:-4]), size)
        assert taken(bytes(data)).icrc_ok is True


@settings(deadline=None)
@given(st.data())
def test_whatever_bytes_come(data: st.DataObject) -> None:
    """Cut, changed or plain noise: a value or a word for it, never an error."""
    good = bytes(packet(A, B, 7, data.draw(st.integers(0, 255)), 1, b"x" * 40))
    noise = bytearray(good[: data.draw(st.integers(0, len(good)))])
    for at in data.draw(st.lists(st.integers(0, max(0, len(noise) - 1)), max_size=6)) if noise else ():
        noise[at] = data.draw(st.integers(0, 255))
    for link in (1, RAW_IP, 113, 276, 228, 229, 147):
        found = datagram(bytes(noise), link)
        if isinstance(found, Datagram):
            read(found.packet, found.network_bytes, found.udp_bytes)
