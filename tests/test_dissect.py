"""The scapy layers against the daemon's own codec: each reads what the other writes, byte for byte."""

from __future__ import annotations

import ipaddress
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.inet6 import ICMPv6EchoRequest, IPv6
from scapy.layers.l2 import ARP, Ether
from scapy.utils import rdpcap, wrpcap

from linkpass import dissect
from linkpass.dissect import Acknowledgement, Notice, Probe, ReportEntry, look, packet_of, sign
from linkpass.wire import probe as wire
from linkpass.wire.frame import TCP, UDP, Headers, Template

SIGNER = wire.Signer(b"a key of the fabric")
ONE, TWO = (ipaddress.ip_address(text).packed for text in ("fd00:ff::1", "fd00:ff::3"))

u8, u16, u32, u64 = (st.integers(0, 2**bits - 1) for bits in (8, 16, 32, 64))
entries = st.builds(wire.raw_entry, u8, u8, u16, u32, u32, u32)
words = st.text(st.characters(codec="utf-8"), max_size=20)
notices = st.builds(
    wire.WireNotice, st.sampled_from(wire.Kind), u32, u32, st.integers(0, 4000).map(float), words, words
)


@given(
    heard=st.lists(entries, max_size=20), said=st.lists(notices, max_size=3), acks=st.lists(u32, max_size=5),
    size=st.integers(0, 1100), boot=u32, path=u8, sequence=u32, sent_ns=u64, flags=st.integers(0, 3), about=u32,
    epoch=u8,
)  # fmt: skip
def test_scapy_reads_what_the_daemon_writes(
    heard: list[bytes], said: list[wire.WireNotice], acks: list[int], size: int, boot: int, path: int, sequence: int,
    sent_ns: int, flags: int, about: int, epoch: int,
) -> None:  # fmt: skip
    report = wire.Report(7, about, epoch, heard, said, acks, size)
    payload = wire.encode(SIGNER, ONE + TWO, report, boot, path, sequence, sent_ns, flags)
    probe = Probe(payload)
    assert (probe.boot, probe.path, probe.sequence, probe.sent_ns) == (boot, path, sequence, sent_ns)
    assert (int(probe.flags), probe.report_boot, probe.epoch, probe.length) == (flags, about, epoch, len(payload))
    assert [bytes(one) for one in probe.report] == heard
    fields = dissect.fields_of(probe)
    assert [(one["id"], one["link"], one["origin"]) for one in fields["notices"]] == [
        (one.id, one.link, one.origin) for one in said
    ]
    assert fields["acknowledged"] == acks
    # Built anew from its fields alone, it is the same packet.
    again = Probe(**{name: probe.getfieldval(name) for name in probe.fields if name not in ("length", "mac")})
    assert sign(again, SIGNER, ONE + TWO) == payload


@given(heard=st.lists(st.tuples(u8, u16, u32, u32, u32), max_size=10), acks=st.lists(u32, max_size=3))
def test_the_daemon_reads_what_scapy_writes(heard: list[tuple[int, int, int, int, int]], acks: list[int]) -> None:
    made = Probe(
        path=4, boot=0x1234, sequence=9, sent_ns=5, flags="ask",
        report=[ReportEntry(path=p, queueing=q, last=n, count=c, dwell=d) for p, q, n, c, d in heard],
        words=[Notice(kind="drain", id=3, seq=4, ttl_ms=1500, origin=b"host1", link=b"leaf1-spine1"),
               *(Acknowledgement(id=one) for one in acks)],
    )  # fmt: skip
    read = wire.decode(SIGNER, ONE + TWO, sign(made, SIGNER, ONE + TWO))
    assert isinstance(read, wire.Probe)
    assert (read.path, read.boot, read.sequence, read.sent_ns, read.flags) == (4, 0x1234, 9, 5, wire.ASK)
    assert list(read.raw_report()) == [(p, 0, q, n, c, d) for p, q, n, c, d in heard]
    assert read.words() == ([wire.WireNotice(wire.Kind.DRAIN, 3, 4, 1.5, "host1", "leaf1-spine1")], acks)


def frame(payload: bytes, protocol: int = TCP, family: int = 6, port: int = 3785) -> bytes:
    ends = (ONE, TWO) if family == 6 else (bytes((10, 255, 0, 1)), bytes((10, 255, 0, 3)))
    return Template(
        Headers(bytes(6), bytes(6), *ends, protocol, port, port, label=0x1A2B, hop_limit=61)
    ).frame(payload, 9)  # fmt: skip


def payload(addresses: bytes = ONE + TWO, signer: wire.Signer = SIGNER) -> bytes:
    report = wire.Report(1, 2, 3, [wire.raw_entry(5, wire.late_byte(0.003), 100, 100, 90, 2000)])
    return wire.encode(signer, addresses, report, 0xABCD, 3, 12, 1_000_000_000, wire.ASK)


@pytest.mark.parametrize("protocol", [TCP, UDP])
@pytest.mark.parametrize("family", [6, 4])
def test_a_frame_is_told_in_full(protocol: int, family: int) -> None:
    ends = ONE + TWO if family == 6 else bytes((10, 255, 0, 1, 10, 255, 0, 3))
    seen = look(packet_of(frame(payload(ends), protocol, family)), signer=SIGNER, now_ns=1_000_300_000)
    assert (seen.kind, seen.authentic, seen.checksum_ok) == ("probe", True, True)
    assert seen.label == (0x1A2B if family == 6 else None) and seen.hop_limit == 61
    assert seen.source == ("fd00:ff::1" if family == 6 else "10.255.0.1")
    assert seen.protocol == ("TCP" if protocol == TCP else "UDP")
    assert seen.age_s == pytest.approx(0.0003)
    assert seen.probe["path"] == 3 and seen.probe["ask"] is True
    (entry,) = seen.probe["report"]
    assert entry == {
        "path": 5, "last": 100, "count": 90, "queueing_s": 0.001, "dwell_s": 0.002, "late_s": 0.003
    }  # fmt: skip


def test_a_large_probe_is_told_with_its_padding() -> None:
    report = wire.Report(1, 2, 3, [wire.Heard(5, 100, 90)])
    large = wire.encode(SIGNER, ONE + TWO, report, 0xABCD, 3, 12, 1_000_000_000, wire.LARGE).ljust(1440, b"\0")
    seen = look(packet_of(frame(large)), signer=SIGNER)
    assert (seen.kind, seen.authentic, seen.bytes) == ("probe", True, 1514)
    assert (seen.probe["large"], seen.probe["ask"], len(seen.probe["report"])) == (True, False, 1)


def test_what_is_wrong_is_said() -> None:
    good = payload()
    assert look(packet_of(frame(good))).authentic is None, "without a key nothing is claimed"
    other = wire.Signer(b"another key altogether")
    assert look(packet_of(frame(payload(signer=other))), signer=SIGNER).authentic is False
    assert look(packet_of(frame(payload(TWO + ONE))), signer=SIGNER).authentic is False, "the addresses are signed too"
    assert "too few" in look(packet_of(frame(good[:20]))).why
    assert "version 9" in look(packet_of(frame(b"\x09" + good[1:]))).why
    assert "do not fit" in look(packet_of(frame(good[:3] + b"\xff" + good[4:]))).why
    assert "it says it has" in look(packet_of(frame(good[:30] + b"\xff\xff" + good[32:]))).why
    lying = good[:29] + b"\xff" + good[30:]  # 255 words announced, none there
    assert look(packet_of(frame(lying)), signer=SIGNER).authentic is False
    spoiled = bytearray(frame(good))
    spoiled[-1] ^= 1
    assert look(packet_of(bytes(spoiled)), signer=SIGNER).checksum_ok is False


@given(st.binary(max_size=200))
def test_no_payload_is_too_broken_to_look_at(data: bytes) -> None:
    assert look(packet_of(frame(data)), signer=SIGNER).kind in ("probe", "broken", "trace")
    head = payload()[:32]
    assert look(packet_of(frame(head[:30] + (48 + len(data)).to_bytes(2, "big") + data + bytes(16)))).kind != "other"


def test_other_packets_are_told_by_scapy() -> None:
    trace = look(packet_of(frame(bytes((wire.TRACE_VERSION, 0, 0, 0)) + (77).to_bytes(4, "big"))))
    assert (trace.kind, trace.summary) == ("trace", "trace 0x0000004d")
    ping = look(Ether(bytes(Ether() / IPv6(src="fd00:ff::1", dst="fd00:ff::3", fl=5) / ICMPv6EchoRequest())))
    assert ping.kind == "other" and ping.label == 5 and "ICMPv6 Echo Request" in ping.summary
    assert look(Ether(bytes(Ether(src="02:00:00:00:00:01") / ARP()))).source == "02:00:00:00:00:01"
    assert look(packet_of(frame(payload(), port=4000)), port=3785).kind == "other"
    assert look(packet_of(frame(payload(), port=4000)), port=4000).kind == "probe"


def test_bound_layers_serve_scapys_own_tools(tmp_path: object) -> None:
    """In a process of its own: binding changes scapy for everybody."""
    file = f"{tmp_path}/probes.pcap"
    wrpcap(file, Ether(frame(payload())))
    assert len(rdpcap(file)) == 1
    code = (
        "import sys; from scapy.utils import rdpcap; from linkpass.dissect import Probe, bind; bind(); bind()\n"
        "packet = rdpcap(sys.argv[1])[0]; print(packet[Probe].sequence, len(packet[Probe].report))"
    )
    done = subprocess.run([sys.executable, "-c", code, file], capture_output=True, text=True, check=True)
    assert done.stdout == "12 1\n"
