"""Which ECMP bucket of a `bucket` fault a flow falls into: the kernel's own arithmetic, so that a bench can choose.

nft's `jhash … mod N seed S` is `reciprocal_scale(jhash(key), N)` (net/netfilter/nft_hash.c); the key is source address,
destination address and the flow label as nft loads it, three bytes padded to four (include/linux/jhash.h, Jenkins'
lookup3 of 2006). Little-endian machines, like jhash itself.
"""

from __future__ import annotations

import ipaddress
import struct

from lab.netns.effects import BUCKET_SEED

_MASK = 0xFFFFFFFF


def bucket_of(source: str, target: str, label: int, of: int) -> int:
    """The bucket, 1 … `of`, of IPv6 packets with these addresses (text) and this flow label (20 bits)."""
    key = ipaddress.IPv6Address(source).packed + ipaddress.IPv6Address(target).packed + label.to_bytes(3, "big") + b"\0"
    return (jhash(key, BUCKET_SEED) * of >> 32) + 1


def jhash(key: bytes, seed: int) -> int:
    """The kernel's `jhash()` of a key whose length is a multiple of four (others are not needed here)."""
    if len(key) % 4 or not key:
        raise ValueError(f"expected a key of 4, 8, … bytes, got {len(key)}")
    words: list[int] = list(struct.unpack(f"<{len(key) // 4}I", key))
    a = b = c = (0xDEADBEEF + len(key) + seed) & _MASK
    while len(words) > 3:
        a, b, c = (a + words[0]) & _MASK, (b + words[1]) & _MASK, (c + words[2]) & _MASK
        for turn, swap in ((4, 0), (6, 1), (8, 2), (16, 0), (19, 1), (4, 2)):
            if swap == 0:
                a = ((a - c) & _MASK) ^ _rotate(c, turn)
                c = (c + b) & _MASK
            elif swap == 1:
                b = ((b - a) & _MASK) ^ _rotate(a, turn)
                a = (a + c) & _MASK
            else:
                c = ((c - b) & _MASK) ^ _rotate(b, turn)
                b = (b + a) & _MASK
        words = words[3:]
    a, b, c = (
        (value + word) & _MASK for value, word in zip((a, b, c), [*words, 0, 0, 0][:3], strict=True)
    )  # the last one to three words
    for turn, swap in ((14, 2), (11, 0), (25, 1), (16, 2), (4, 0), (14, 1), (24, 2)):
        if swap == 0:
            a = ((a ^ c) - _rotate(c, turn)) & _MASK
        elif swap == 1:
            b = ((b ^ a) - _rotate(a, turn)) & _MASK
        else:
            c = ((c ^ b) - _rotate(b, turn)) & _MASK
    return c


def _rotate(value: int, by: int) -> int:
    return ((value << by) | (value >> 32 - by)) & _MASK
