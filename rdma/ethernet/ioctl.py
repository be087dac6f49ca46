"""Drivers' own statistics: pauses per priority and how long they lasted, discards, and more.

They have no netlink message: the ioctl SIOCETHTOOL asks for them, as the program `ethtool -S` does
(include/uapi/linux/ethtool.h). The names of a device are asked once, its values with one call a reading.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import re
import socket
import struct
from collections.abc import Mapping
from types import TracebackType
from typing import Final

_SIOCETHTOOL: Final = 0x8946
_GDRVINFO, _GSTRINGS, _GSTATS, _GSSET_INFO = 0x3, 0x1B, 0x1D, 0x37
_SS_STATS: Final = 1
_NAME_BYTES: Final = 32
_DRVINFO_BYTES: Final = 196


class NotToldError(Exception):
    """A device does not tell; the text says why."""


class GoneError(NotToldError):
    """There is no such device, or it has gone."""


class DeviceStatistics:
    """The statistics of one network device, of this thread's namespace at `open`."""

    def __init__(self, device: str) -> None:
        if len(device.encode()) > 15 or re.search(r"[/\s]", device) or not device:
            raise ValueError(f"{device!r} is no name of a network device")
        self.device = device
        self.driver = ""
        self.names: list[str] = []
        self._socket: socket.socket | None = None

    def open(self) -> DeviceStatistics:
        """Ask for driver and names. NotToldError: no such device, or a driver that has none to tell."""
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        try:
            info = self._call(struct.pack("=I", _GDRVINFO) + bytes(_DRVINFO_BYTES - 4))
            self.driver = info[4:36].split(b"\0", 1)[0].decode("ascii", "replace")
            count = self._count()
            text = self._call(struct.pack("=III", _GSTRINGS, _SS_STATS, count) + bytes(_NAME_BYTES * count))[12:]
        except BaseException:
            self.close()
            raise
        names = (text[at : at + _NAME_BYTES] for at in range(0, len(text), _NAME_BYTES))
        self.names = [name.split(b"\0", 1)[0].decode("utf-8", "replace").strip() for name in names]
        return self

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def __enter__(self) -> DeviceStatistics:
        return self.open()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def read(self) -> Mapping[str, int]:
        """All values by the driver's names. NotToldError as `raw`."""
        return dict(zip(self.names, struct.unpack(f"={len(self.names)}Q", self.raw()), strict=True))

    def raw(self) -> bytes:
        """All values, 64 bits each, in the order of `names`. NotToldError when the device is gone, or tells another
        number of them."""
        count = len(self.names)
        answer = self._call(struct.pack("=II", _GSTATS, count) + bytes(8 * count))
        told = struct.unpack_from("=I", answer, 4)[0]
        if told != count:
            raise NotToldError(f"{self.device} tells {told} statistics, it had {count}: open it again")
        return answer[8:]

    def _count(self) -> int:
        answer = self._call(struct.pack("=IIQI", _GSSET_INFO, 0, 1 << _SS_STATS, 0))
        mask, count = struct.unpack_from("=QI", answer, 8)
        if not mask or not count:
            raise NotToldError(f"{self.device}: its driver ({self.driver or 'unknown'}) has no statistics to tell")
        return int(count)

    def _call(self, command: bytes) -> bytes:
        """SIOCETHTOOL: the kernel reads and writes behind a pointer in struct ifreq."""
        if self._socket is None:
            raise RuntimeError("DeviceStatistics.open() was not called")
        buffer = ctypes.create_string_buffer(command, len(command))
        request = struct.pack("16sQ16x", self.device.encode(), ctypes.addressof(buffer))
        try:
            fcntl.ioctl(self._socket, _SIOCETHTOOL, request)
        except OSError as error:
            if error.errno == errno.ENODEV:
                raise GoneError(f"there is no network device {self.device}") from None
            raise NotToldError(f"{self.device} does not tell its statistics: {error.strerror}") from None
        return buffer.raw
