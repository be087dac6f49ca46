"""Taps: the wire's end of a guest's network card. A tap lives as long as somebody holds its descriptor."""

from __future__ import annotations

import fcntl
import os
import struct

from lab.errors import LabError
from lab.netns import namespace

_TUNSETIFF = 0x400454CA
_IFF_TAP, _IFF_NO_PI, _IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
_NAME_BYTES = 15


def open_tap(where: int | str, name: str, *, header: bool = True) -> int:
    """Make a tap device in a namespace (descriptor or name); returns its descriptor, which QEMU inherits.

    With a virtio `header` before each frame checksums and large segments pass unfinished between guests and
    namespaces, as over a real card (Documentation/networking/tuntap.rst); without, frames are as on a wire."""
    if len(name.encode()) > _NAME_BYTES:
        raise LabError(f"device name {name!r} is longer than {_NAME_BYTES} bytes", "")
    with namespace.inside(where):
        try:
            fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise LabError(f"taps need /dev/net/tun: {error.strerror}", "modprobe tun") from error
        try:
            flags = _IFF_TAP | _IFF_NO_PI | (_IFF_VNET_HDR if header else 0)
            fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
        except OSError as error:
            os.close(fd)
            raise LabError(f"tap {name} cannot be made: {error.strerror}", "") from error
    return fd
