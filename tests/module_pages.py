"""Memories of optical modules: two that were published, and some laid out byte by byte as the specifications say."""

from __future__ import annotations

import struct

from rdma.ethernet.module import LOWER, Half, Memory

UPPER, A2 = Half(upper=True), Half(i2c=0x51)
PAGE_1, PAGE_2, PAGE_3, PAGE_11 = (Half(page, upper=True) for page in (0x01, 0x02, 0x03, 0x11))

_SFP_A0 = """
03 04 07 10 00 00 00 00 00 00 00 06 67 00 00 00 08 03 00 1e 49 6e 74 65 6c 20 43 6f 72 70 20 20
20 20 20 20 00 00 1b 21 46 54 4c 58 38 35 37 34 44 33 42 4e 4c 2d 49 54 41 20 20 20 03 52 00 89
00 1a 00 00 41 34 31 41 53 59 4b 20 20 20 20 20 20 20 20 20 32 30 30 37 30 36 20 20 68 f0 05 e4
"""
_SFP_A2 = """
5d 00 f3 00 58 00 f8 00 90 88 71 48 8c a0 75 30 19 64 07 d0 18 6a 09 c4 27 10 09 d0 1f 07 0c 5a
27 10 00 64 1f 07 00 9e 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
00 00 00 00 3f 80 00 00 00 00 00 00 01 00 00 00 01 00 00 00 01 00 00 00 01 00 00 00 00 00 00 a3
23 56 85 e0 10 f8 16 94 00 15 00 00 00 00 32 00 00 40 00 00 00 40 01 00 ff ff ff ff ff ff ff 01
"""
SFP = {LOWER: bytes.fromhex(_SFP_A0) + bytes(32), A2: bytes.fromhex(_SFP_A2)}
"""An SFP+ for 10GBASE-SR that gets next to no light, as an E810 reads it: netdev mailing list, 25 April 2025, "bnxt_en:
Invalid data read from SFP EEPROM"."""

_SFP_MANGLED = """
03 00 f3 00 58 00 f8 00 90 88 71 48 8c a0 75 30 19 64 07 d0 18 6a 09 c4 27 10 09 d0 1f 07 0c 5a
27 10 00 64 1f 07 00 9e 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
00 00 00 00 3f 80 00 00 00 00 00 00 01 00 00 00 01 00 00 00 01 00 00 00 01 00 00 00 00 00 00 a3
1f 94 83 f9 0b d5 16 81 00 15 00 00 00 00 32 00 00 40 00 00 00 40 00 00 ff ff ff ff ff ff ff 01
"""
SFP_MANGLED = {LOWER: bytes.fromhex(_SFP_MANGLED)}
"""The same kind of module as a card with a fault shows it, from the same message: diagnostics where the identity should
be."""

_QSFP28 = """
11 07 02 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 2A B6 00 00 82 55 00 00 00 00
00 00 21 7C 26 37 1D AF 1D 67 5C 21 5C 21 5C 21 5C 21 1D 73 1C 02 21 80 23 C2 00 00 00 00 00 00
00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 AA AA 00 00 00 00 01 00 00
00 00 FF 00 00 00 00 00 00 00 00 00 00 0A 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 03
"""
QSFP28_LOWER = bytes.fromhex(_QSFP28)
"""The lower page of a QSFP28 in use: sample output of `fboss2 show transceiver-eeprom` (facebook/fboss,
CmdShowTransceiverEeprom.cpp). The other pages were not published."""


def page(first: int = 128, **at: bytes | int) -> bytes:
    """128 bytes from address `first` on, zero but for `b159=0x03` (bytes) or `w128=0x4600` (words)."""
    data = bytearray(128)
    for place, value in at.items():
        where = int(place[1:]) - first
        raw = value if isinstance(value, bytes) else bytes([value]) if place[0] == "b" else struct.pack(">H", value)
        data[where : where + len(raw)] = raw
    return bytes(data)


def words(*values: int) -> bytes:
    return struct.pack(f">{len(values)}H", *values)


def qsfp28(**lower: bytes | int) -> Memory:
    """An optical QSFP28 with all pages: 40 degrees, 3.3 V, four lanes at 1 mW in, 0.5 mW out, 40 mA."""
    at = {
        "b0": 0x11, "w22": 40 << 8, "w26": 33000, "b34": words(*[10_000] * 4), "b42": words(*[20_000] * 4),
        "b50": words(*[5_000] * 4),
    } | lower  # fmt: skip
    return {
        LOWER: page(0, **at),
        UPPER: page(b147=0x00, b220=0x0C),
        PAGE_3: page(
            b128=words(75 << 8, 0xFB00, 70 << 8, 0), b144=words(36300, 29700, 34650, 31350),
            b176=words(34_000, 400, 27_000, 500), b184=words(50_000, 5_000, 45_000, 10_000),
            b192=words(35_000, 400, 28_000, 500),
        ),
    }  # fmt: skip


def osfp(**page_11: bytes | int) -> Memory:
    """An OSFP with eight lanes: 55.5 degrees, 3.3 V, 1 mW in, 1.25 mW out, and a bias in steps of 4 uA."""
    lanes = {"b154": words(*[12_500] * 8), "b170": words(*[20_000] * 8), "b186": words(*[10_000] * 8)} | page_11
    return {
        LOWER: page(0, b0=0x19, b1=0x50, b2=0x00, w14=0x3780, w16=33000),
        UPPER: page(b210=0x00),
        PAGE_1: page(b159=0x03, b160=0x0F),
        PAGE_2: page(
            b128=words(80 << 8, 0xFB00, 75 << 8, 0), b136=words(36300, 29700, 34650, 31350),
            b176=words(40_000, 400, 32_000, 500), b184=words(50_000, 5_000, 45_000, 10_000),
            b192=words(40_000, 200, 32_000, 300),
        ),
        PAGE_11: page(**lanes),
    }  # fmt: skip
