"""Entropy tunnels on the wire: an Ethernet frame in VXLAN, whose outer UDP source port chooses the path.

A fabric that hashes the outer addresses and ports sends all that has one source port to one host the same way, whatever
is inside. Source: RFC 7348, section 5 (the checksum of the outer UDP header is zero, as it recommends).
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from linkpass.wire.frame import ETH_P_IP, UDP, Headers, Template, sum16

OVERHEAD_BYTES: Final = 50
"""IPv4 20, UDP 8, VXLAN 8, inner Ethernet 14: by how much a packet grows in a tunnel."""

_V4: Final = struct.Struct("!BBHHHBBH4s4s")
_UDP: Final = struct.Struct("!HHHH")
_VXLAN: Final = struct.Struct("!II")
_HAS_VNI: Final = 0x08000000


class End(msgspec.Struct, frozen=True):
    """Where a host takes packets out of tunnels: UDP port and network identifier."""

    port: int
    vni: int


def mac_of(address: bytes) -> bytes:
    """The link address of a host's tunnels: of its IPv4 address, so that nobody has to be asked for it."""
    return b"\x02\x4c" + address


class Tunnelled(Template):
    """A template whose frames travel in a tunnel, made by hand: for the traces, whose outer packet has to die on its
    way. The kernel quotes little of it, so the low half of the sequence is the outer IP identification."""

    __slots__ = ("_end", "_hop_limit", "_link", "_source_port")

    def __init__(self, inner: Headers, end: End, source_port: int) -> None:
        """`inner`: as it would be sent without a tunnel. Its link addresses, DSCP and hop limit are the outer ones."""
        self._link = inner.dst_mac + inner.src_mac + ETH_P_IP.to_bytes(2, "big")
        self._end, self._source_port, self._hop_limit = end, source_port, inner.hop_limit
        macs = {"src_mac": mac_of(inner.src), "dst_mac": mac_of(inner.dst), "label": 0, "hop_limit": 64}
        super().__init__(msgspec.structs.replace(inner, **macs))

    def frame(self, payload: bytes, sequence: int = 0) -> bytes:
        h = self.headers
        inside = super().frame(payload, sequence)
        udp_bytes = len(inside) + 16
        parts = (0x45, h.dscp << 2, udp_bytes + 20, sequence & 0xFFFF, 0x4000, self._hop_limit, UDP)
        check = 0xFFFF - sum16(_V4.pack(*parts, 0, h.src, h.dst))
        outer = _V4.pack(*parts, check, h.src, h.dst) + _UDP.pack(self._source_port, self._end.port, udp_bytes, 0)
        return self._link + outer + _VXLAN.pack(_HAS_VNI, self._end.vni << 8) + inside
