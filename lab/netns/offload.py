"""Switch segmentation and checksum offloads off on lab links, so that a packet of the lab is a packet of the wire.

With them a veth carries "packets" of 64 KB: one lost of a hundred is then a stall no real network shows.
The ioctl form of ethtool: two system calls a device (include/uapi/linux/ethtool.h).
"""

from __future__ import annotations

import array
import fcntl
import socket
import struct
from collections.abc import Iterable

_SIOCETHTOOL = 0x8946
_GSTRINGS, _GSSET_INFO, _SFEATURES = 0x1B, 0x37, 0x3B
_SS_FEATURES, _GSTRING_LEN = 4, 32
_OFF = ("tx-checksum-", "tx-tcp", "tx-udp", "tx-gso", "tx-generic-segmentation", "tx-sctp", "tx-gre", "rx-gro")


def switch_off(devices: Iterable[str]) -> None:
    """Turn the offloads of devices in the calling thread's namespace off. OSError when a device has no such thing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        mask: bytes | None = None
        for device in devices:
            mask = mask or _mask(sock, device)
            _ioctl(sock, device, array.array("B", mask))


def _mask(sock: socket.socket, device: str) -> bytes:
    """An ETHTOOL_SFEATURES request that clears every feature in `_OFF`; one kind of device, one table of names."""
    info = _ioctl(sock, device, array.array("B", struct.pack("=IIQI", _GSSET_INFO, 0, 1 << _SS_FEATURES, 0)))
    (count,) = struct.unpack_from("=I", info, 16)
    table = array.array("B", struct.pack("=III", _GSTRINGS, _SS_FEATURES, count) + bytes(count * _GSTRING_LEN))
    raw = _ioctl(sock, device, table).tobytes()[12:]
    names = [raw[i : i + _GSTRING_LEN].split(b"\0")[0].decode() for i in range(0, count * _GSTRING_LEN, _GSTRING_LEN)]
    words = [0] * ((count + 31) // 32)
    for bit, name in enumerate(names):
        if name.startswith(_OFF):
            words[bit // 32] |= 1 << bit % 32
    blocks = b"".join(struct.pack("=II", word, 0) for word in words)
    return struct.pack("=II", _SFEATURES, len(words)) + blocks


def _ioctl(sock: socket.socket, device: str, data: array.array[int]) -> array.array[int]:
    request = struct.pack("16sP16x", device.encode(), data.buffer_info()[0])
    fcntl.ioctl(sock.fileno(), _SIOCETHTOOL, request)
    return data
