"""scapy layers for the probe protocol, and captured frames as plain values. Only commands import this: it loads scapy.

    >>> from linkpass.dissect import Probe, bind
    >>> bind()                       # TCP and UDP port 3785 become probes wherever scapy dissects
    >>> rdpcap("probes.pcap")[0].show()

The layers follow `linkpass.wire.probe` field by field; that module is the format's home, and the daemon's own codec.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from scapy.fields import (
    ByteEnumField,
    ByteField,
    FieldLenField,
    FlagsField,
    IntField,
    LongField,
    PacketListField,
    ShortField,
    StrFixedLenField,
    StrLenField,
    XIntField,
)
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Packet, bind_layers, split_layers

from linkpass.wire import frame as wire_frame
from linkpass.wire import probe as wire

PORT = 3785
"""Of probes on both sides, unless the configuration says otherwise (`probing.port`)."""

_NOTICE, _ACK = 1, 2
_KINDS = {kind.value: kind.name.lower().replace("_", "-") for kind in wire.Kind}


class _Part(Packet):  # type: ignore[misc]
    """A part of a list: what follows it belongs to the list, not to the part."""

    def extract_padding(self, s: bytes) -> tuple[bytes, bytes]:
        return b"", s


class ReportEntry(_Part):
    """What the sender heard on one of the receiver's paths."""

    name = "report entry"
    fields_desc = [  # noqa: RUF012 - how scapy layers are written
        ByteField("path", 0),
        ByteField("late", 0),  # 1 + ms; 0: not told
        ShortField("queueing", 0),  # 10 us units
        IntField("last", 0),
        IntField("count", 0),
        IntField("dwell", 0),  # us
    ]


class Notice(_Part):
    """Port down or up, drain or undrain, of one link."""

    name = "notice"
    fields_desc = [  # noqa: RUF012
        ByteField("type", _NOTICE),
        ByteField("len", None),
        ByteEnumField("kind", 1, _KINDS),
        IntField("id", 0),
        IntField("seq", 0),
        IntField("ttl_ms", 0),
        FieldLenField("origin_len", None, length_of="origin", fmt="B"),
        StrLenField("origin", b"", length_from=lambda pkt: pkt.origin_len),
        FieldLenField("link_len", None, length_of="link", fmt="B"),
        StrLenField("link", b"", length_from=lambda pkt: pkt.link_len),
    ]

    def post_build(self, pkt: bytes, pay: bytes) -> bytes:
        return (pkt if self.len is not None else pkt[:1] + bytes((len(pkt) - 2,)) + pkt[2:]) + pay


class Acknowledgement(_Part):
    """A notice that the sender heard."""

    name = "acknowledgement"
    fields_desc = [ByteField("type", _ACK), ByteField("len", 4), IntField("id", 0)]  # noqa: RUF012


class OtherWord(_Part):
    """A word of a later version."""

    name = "unknown word"
    fields_desc = [  # noqa: RUF012
        ByteField("type", 0),
        FieldLenField("len", None, length_of="value", fmt="B"),
        StrLenField("value", b"", length_from=lambda pkt: pkt.len),
    ]


def _word(probe: Packet, before: list[Packet], last: Packet | None, rest: bytes) -> type[Packet] | None:
    """The class of the next notice or acknowledgement; None when there is none, or what is left is no whole word."""
    room = len(rest) - wire.MAC_BYTES
    if len(before) + (last is not None) >= probe.word_count or room < 2 or room < 2 + rest[1]:
        return None
    if rest[0] == _NOTICE:
        return Notice
    return Acknowledgement if rest[0] == _ACK and rest[1] == 4 else OtherWord


class Probe(Packet):  # type: ignore[misc]
    """A probe's payload. Built without `length` and `mac`, it fills in the first; `sign` fills in the second."""

    name = "linkpass probe"
    fields_desc = [  # noqa: RUF012
        ByteField("version", wire.VERSION),
        FlagsField("flags", 0, 8, {wire.ASK: "ask", wire.LARGE: "large"}),
        ByteField("path", 0),
        FieldLenField("entries", None, count_of="report", fmt="B"),
        XIntField("boot", 0),
        IntField("sequence", 0),
        IntField("report_sequence", 0),
        LongField("sent_ns", 0),
        XIntField("report_boot", 0),
        ByteField("epoch", 0),
        FieldLenField("word_count", None, count_of="words", fmt="B"),
        ShortField("length", None),
        PacketListField("report", [], ReportEntry, count_from=lambda pkt: pkt.entries),
        PacketListField("words", [], next_cls_cb=_word),
        StrLenField("padding", b"", length_from=lambda pkt: pkt.spare()),
        StrFixedLenField("mac", bytes(wire.MAC_BYTES), wire.MAC_BYTES),
    ]

    def spare(self) -> int:
        """Bytes between the last word and the MAC."""
        used = wire.HEADER_BYTES + sum(len(bytes(part)) for part in (*self.report, *self.words))
        return max(0, int(self.length) - used - wire.MAC_BYTES)

    def post_build(self, pkt: bytes, pay: bytes) -> bytes:
        if self.length is None:
            pkt = pkt[:30] + len(pkt).to_bytes(2, "big") + pkt[32:]
        return pkt + pay

    def extract_padding(self, s: bytes) -> tuple[bytes, bytes]:
        return b"", s


def sign(probe: Packet, signer: wire.Signer, addresses: bytes) -> bytes:
    """The payload of a probe made with scapy, with its MAC. `addresses`: source and destination, joined."""
    body = bytes(probe)[: -wire.MAC_BYTES]
    return body + signer.mac(addresses + body)


def bind(port: int = PORT) -> None:
    """Let scapy dissect TCP and UDP of that port, on both sides, as probes."""
    for transport in (TCP, UDP):
        split_layers(transport, Probe, sport=port, dport=port)
        bind_layers(transport, Probe, sport=port, dport=port)


@dataclass(frozen=True, slots=True)
class Seen:
    """A captured packet. `kind`: probe, trace (a trace's packet), broken (to the probe port, but no probe) or other.

    `authentic`: whether the MAC is right; None without a key. `age_s`: from sending to capture, None when the sender's
    clock is another machine's. `probe` holds the payload's fields, `summary` scapy's words for what is no probe."""

    kind: str
    source: str
    target: str
    label: int | None
    hop_limit: int | None
    bytes: int
    protocol: str = ""
    authentic: bool | None = None
    checksum_ok: bool | None = None
    age_s: float | None = None
    why: str = ""
    probe: Mapping[str, Any] = field(default_factory=dict)
    summary: str = ""


def packet_of(data: bytes) -> Packet:
    """An Ethernet frame as scapy dissects it."""
    return Ether(data)


def look(packet: Packet, *, port: int = PORT, signer: wire.Signer | None = None, now_ns: int | None = None) -> Seen:
    """What a packet is. `now_ns`: the sender's own monotonic clock at the moment of capture, where it is known."""
    network = packet.getlayer(IPv6) or packet.getlayer(IP)
    transport = packet.getlayer(TCP) or packet.getlayer(UDP)
    if network is None:
        return Seen("other", packet.fields.get("src", ""), packet.fields.get("dst", ""), None, None, len(packet),
                    summary=packet.summary())  # fmt: skip
    source, target = (str(ipaddress.ip_address(one)) for one in (network.src, network.dst))
    six = isinstance(network, IPv6)
    label, hops = (network.fl, network.hlim) if six else (None, network.ttl)
    protocol = transport.name if transport is not None else ""
    # An ICMP error quotes the packet that it is about: the quoted one has another class in scapy (TCPerror).
    if transport is None or not transport.sport == transport.dport == port:
        return Seen("other", source, target, label, hops, len(packet), protocol, summary=packet.summary())
    payload = bytes(transport.payload)
    raw = packet.original or bytes(packet)
    parsed = wire_frame.parse(raw) if isinstance(packet, Ether) else None
    checksum_ok = parsed.checksum_ok if parsed is not None else None
    if parsed is not None:
        payload = parsed.payload  # without the padding of a short frame
    seen = {"source": source, "target": target, "label": label, "hop_limit": hops, "bytes": len(packet),
            "protocol": protocol, "checksum_ok": checksum_ok}  # fmt: skip
    if payload[:1] == bytes((wire.TRACE_VERSION,)):
        return Seen("trace", **seen, summary=f"trace {int.from_bytes(payload[4:8], 'big'):#010x}")
    if why := _broken(payload):
        return Seen("broken", **seen, why=why)
    probe = Probe(payload)
    authentic = None
    if signer is not None:
        length = probe.length
        addresses = ipaddress.ip_address(source).packed + ipaddress.ip_address(target).packed
        authentic = signer.mac(addresses + payload[: length - wire.MAC_BYTES]) == payload[length - 16 : length]
    age_s = None if now_ns is None else (now_ns - probe.sent_ns) * 1e-9
    return Seen("probe", **seen, authentic=authentic, age_s=age_s, probe=fields_of(probe))


def _broken(payload: bytes) -> str:
    """Why a payload is no probe; empty when it is one as far as its form goes."""
    if len(payload) < wire.HEADER_BYTES + wire.MAC_BYTES:
        return f"{len(payload)} bytes are too few for a probe"
    if payload[0] != wire.VERSION:
        return f"version {payload[0]}; this linkpass knows {wire.VERSION}"
    length = int.from_bytes(payload[30:32], "big")
    if not wire.HEADER_BYTES + wire.MAC_BYTES <= length <= len(payload):
        return f"it says it has {length} bytes, and has {len(payload)}"
    if wire.HEADER_BYTES + payload[3] * len(ReportEntry()) > length - wire.MAC_BYTES:
        return f"{payload[3]} report entries do not fit"
    return ""


def fields_of(probe: Packet) -> dict[str, Any]:
    """A probe's payload as plain data; times in seconds, but for the sender's clock."""
    notices = [one for one in probe.words if isinstance(one, Notice)]
    return {
        "path": None if probe.path == wire.NO_PATH else probe.path,
        "sequence": probe.sequence,
        "ask": bool(probe.flags & wire.ASK),
        "large": bool(probe.flags & wire.LARGE),
        "boot": f"{probe.boot:08x}",
        "sent_ns": probe.sent_ns,
        "report_sequence": probe.report_sequence,
        "report_boot": f"{probe.report_boot:08x}",
        "epoch": probe.epoch,
        "report": [
            {"path": one.path, "last": one.last, "count": one.count, "queueing_s": one.queueing * 1e-5,
             "dwell_s": one.dwell * 1e-6,
             "late_s": (one.late - 1) * 1e-3 if one.late else None}
            for one in probe.report
        ],
        "notices": [
            {"kind": _KINDS.get(one.kind, str(one.kind)), "id": one.id, "seq": one.seq, "ttl_s": one.ttl_ms * 1e-3,
             "origin": one.origin.decode(errors="replace"), "link": one.link.decode(errors="replace")}
            for one in notices
        ],
        "acknowledged": [one.id for one in probe.words if isinstance(one, Acknowledgement)],
    }  # fmt: skip
