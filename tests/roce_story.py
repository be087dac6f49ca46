"""RoCE packets made by scapy, and what `linkpass capture explain` says of them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result
from scapy.contrib.roce import AETH, BTH, CNPPadding
from scapy.fields import IntField, LongField, XBitField, XIntField
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw
from scapy.utils import RawPcapWriter

from linkpass.cli import cli

A, B, C = "fd00::a", "fd00::b", "fd00::c"
SEND_ONLY, SEND_FIRST, SEND_MIDDLE, SEND_LAST, WRITE_ONLY = 0x04, 0x00, 0x01, 0x02, 0x0A
READ, READ_FIRST, READ_MIDDLE, READ_LAST, READ_ONLY, ACK, CNP, UC, UD = 12, 13, 14, 15, 16, 17, 0x81, 0x20, 0x60
LINK = Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")  # else scapy asks the network for them
BEGAN_NS = 1_700_000_000_000_000_000


class RETH(Packet):  # type: ignore[misc]
    name = "RETH"
    fields_desc = [LongField("va", 0), XIntField("rkey", 0), IntField("length", 0)]  # noqa: RUF012


class DETH(Packet):  # type: ignore[misc]
    name = "DETH"
    fields_desc = [XIntField("qkey", 0), XBitField("reserved", 0, 8), XBitField("qpn", 0, 24)]  # noqa: RUF012


def network(source: str, target: str, *, label: int = 0, ecn: int = 0, hops: int = 64) -> Packet:
    if ":" in source:
        return IPv6(src=source, dst=target, fl=label, tc=ecn, hlim=hops)
    return IP(src=source, dst=target, tos=ecn, ttl=hops)


def packet(source: str, target: str, qpn: int, opcode: int, psn: int, payload: bytes | Packet = b"", *,
           port: int = 50000, syndrome: int = 0, label: int = 0, ecn: int = 0, hops: int = 64) -> Packet:  # fmt: skip
    """From the IP header on, with its ICRC."""
    head = network(source, target, label=label, ecn=ecn, hops=hops) / UDP(sport=port, dport=4791)
    pad = -len(payload) % 4
    base = head / BTH(opcode=opcode, dqpn=qpn, psn=psn % (1 << 24), padcount=pad)
    if opcode == CNP:
        return base / CNPPadding()
    if opcode & 0x1F in (13, 15, 16, 17):
        base = base / AETH(syndrome=syndrome)
    return base / (payload if isinstance(payload, Packet) else Raw(bytes(payload) + bytes(pad)))


class Story:
    """Packets with their times. `a` and `b` are the ends of one connection: queue pairs 0x11 at A, 0x22 at B."""

    QPN_A, QPN_B = 0x11, 0x22

    def __init__(self) -> None:
        self.frames: list[tuple[float, bytes]] = []

    def put(self, at_s: float, what: Packet | bytes) -> Story:
        self.frames.append((at_s, what if isinstance(what, bytes) else bytes(LINK / what)))
        return self

    def a(self, at_s: float, psn: int, payload: bytes | Packet = b"x" * 100, opcode: int = SEND_ONLY,
          **more: Any) -> Story:  # fmt: skip
        return self.put(at_s, packet(A, B, self.QPN_B, opcode, psn, payload, **more))

    def b(
        self, at_s: float, psn: int, syndrome: int = 0, opcode: int = ACK, payload: bytes = b"", **more: Any
    ) -> Story:
        return self.put(at_s, packet(B, A, self.QPN_A, opcode, psn, payload, syndrome=syndrome, **more))

    def write(self, file: Path, *, snap: int = 1 << 16, link: int = 1) -> Path:
        with RawPcapWriter(str(file), linktype=link, nano=True) as writer:
            writer.write_header(None)
            for at_s, data in self.frames:
                at_ns = BEGAN_NS + round(at_s * 1e9)
                writer.write_packet(data[:snap], sec=at_ns // 10**9, usec=at_ns % 10**9, wirelen=len(data))
        return file

    def explained(self, folder: Path, **how: Any) -> Explained:
        result = explain(self.write(folder / "story.pcap", **how), "--json")
        assert result.exit_code == 0, result.output
        return Explained(json.loads(result.output))


class Explained:
    """`of(A)`: the flow that A sends to the peer of the story; `says`: the findings of a kind, in order."""

    def __init__(self, said: dict[str, Any]) -> None:
        self.all = said
        self.flows: list[dict[str, Any]] = said["flows"]
        self.notes: list[str] = said["notes"]

    def of(self, source: str) -> dict[str, Any]:
        (found,) = [one for one in self.flows if one["source"] == source]
        return found

    def says(self, kind: str) -> list[tuple[float, str]]:
        return [(round(one["at_s"], 6), one["says"]) for one in self.all["findings"] if one["kind"] == kind]

    def kinds(self) -> set[str]:
        return {one["kind"] for one in self.all["findings"]}


def explain(file: Path, *words: str) -> Result:
    return CliRunner().invoke(cli, ["capture", "explain", str(file), *words])


def quiet(flow: dict[str, Any], but: Iterable[str] = ()) -> bool:
    """Nothing is wrong with a flow, but for these."""
    counts = ("sent_again", "sent_again_unseen", "out_of_order", "missing", "naks", "cnps", "ce", "broken", "moves")
    return not any(flow[one] for one in counts if one not in but) and ("gave_up" in but or flow["gave_up"] is False)
