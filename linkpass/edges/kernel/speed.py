"""The nominal speed of a device, by ethtool's oldest request (ETHTOOL_GSET over SIOCETHTOOL): every driver knows it."""

from __future__ import annotations

import array
import fcntl
import socket
import struct


def speed_bps(devices: socket.socket | None, name: str) -> int:
    """In bits a second; 0 where the driver does not say. Any socket of the device's namespace will do for asking."""
    if devices is None:
        return 0
    command = array.array("B", struct.pack("=I40x", 0x1))
    address, _ = command.buffer_info()
    try:
        fcntl.ioctl(devices.fileno(), 0x8946, struct.pack("16sP", name.encode(), address))
    except OSError:
        return 0
    (low,) = struct.unpack_from("=H", command, 12)
    (high,) = struct.unpack_from("=H", command, 28)
    mbps: int = (high << 16) | low
    return 0 if mbps in (0xFFFF, 0xFFFFFFFF) else mbps * 1_000_000
