"""The packet socket of one uplink: probes leave pinned to it and are heard with the kernel's receive time.

Probes fall into a memory-mapped ring, the kernel's time of receipt beside each: reading one costs no system call, and
while all is well the ring is read at the daemon's own ticks and wakes nobody. One socket an uplink and no more: each
costs every packet that the job *receives* some 70 ns (measured with the processor's mitigations on) before its filter
turns it away. It is bound to one ethertype, so that what the host *sends* never meets it.

Source: Documentation/networking/packet_mmap.rst (TPACKET_V2), linux/if_packet.h."""

from __future__ import annotations

import fcntl
import mmap
import socket
import struct
from typing import Final

from linkpass.wire import bpf
from linkpass.wire.frame import ETH_P_IP, ETH_P_IPV6

_SIOCGIFMTU: Final = 0x8921
_SOL_PACKET: Final = 263
_PACKET_RX_RING: Final = 5
_PACKET_STATISTICS: Final = 6
_PACKET_VERSION: Final = 10
_PACKET_IGNORE_OUTGOING: Final = 23
_TPACKET_V2: Final = 1
_STATUS_USER: Final = 1
_STATUS_LOSING: Final = 4

_FRAME_BYTES: Final = 2048
"""What is longer is cut off; beyond its first bytes a probe is padding."""
_BLOCK_BYTES: Final = 65536
RING_FRAMES: Final = 512
"""About half a second of the most probes a link may carry."""

_HEADER: Final = struct.Struct("=IIIHHII")
_KERNEL: Final = struct.pack("=I", 0)

Received = tuple[bytes, float, str]
"""A frame, when the kernel received it (CLOCK_REALTIME, s), and the uplink."""


class Ring:
    """A packet socket with a memory-mapped receive ring."""

    def __init__(self, name: str, program: bytes, ethertype: int, frames: int) -> None:
        """`frames` is a multiple of 32 (a block). OSError when the device is gone or the privilege is missing."""
        self._frames = frames
        self._at = 0
        self.name = name
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        try:
            self.socket.setblocking(False)
            self.socket.setsockopt(_SOL_PACKET, _PACKET_VERSION, _TPACKET_V2)
            attached = bpf.Filter(program)
            self.socket.setsockopt(socket.SOL_SOCKET, bpf.SO_ATTACH_FILTER, attached.fprog)
            self.socket.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
            size = frames * _FRAME_BYTES
            block = min(_BLOCK_BYTES, size)
            request = struct.pack("=IIII", block, size // block, _FRAME_BYTES, frames)
            self.socket.setsockopt(_SOL_PACKET, _PACKET_RX_RING, request)
            self._map = mmap.mmap(self.socket.fileno(), size, mmap.MAP_SHARED)
        except BaseException:
            self.socket.close()
            raise
        try:
            self.socket.bind((name, ethertype))
        except BaseException:
            self.close()
            raise

    def drain(self, into: list[Received]) -> bool:
        """Take everything out. True when the ring had overflowed since the last call: frames are missing."""
        ring, at, losing = self._map, self._at, False
        for _ in range(self._frames):
            offset = at * _FRAME_BYTES
            status, _, kept, mac, _, seconds, nanoseconds = _HEADER.unpack_from(ring, offset)
            if not status & _STATUS_USER:
                break
            start = offset + mac
            into.append((ring[start : start + kept], seconds + nanoseconds * 1e-9, self.name))
            ring[offset : offset + 4] = _KERNEL
            losing = losing or bool(status & _STATUS_LOSING)
            at = at + 1 if at + 1 < self._frames else 0
        else:
            losing = True  # a ring found full: only its statistics tell whether frames were lost since
        self._at = at
        if not losing:
            return False
        _, dropped = struct.unpack("=II", self.socket.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8))  # and clears
        return bool(dropped)

    def close(self) -> None:
        self._map.close()
        self.socket.close()


class TunnelPort:
    """Sends into one entropy tunnel: by its device and with its mark, so that a probe shares the fate of the data from
    the device on: forwarding entry, outer route, the host's own filters, outer source port."""

    def __init__(self, device: str, mark: int) -> None:
        """OSError when the device is gone or the privilege is missing."""
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)  # protocol 0 receives nothing
        try:
            self._socket.setblocking(False)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, mark)
            self._socket.bind((device, 0))
        except BaseException:
            self._socket.close()
            raise

    def send(self, frame: bytes) -> None:
        """OSError when it did not leave."""
        self._socket.send(frame)

    def close(self) -> None:
        self._socket.close()


class Port:
    """An uplink and its ring. The MACs are 6 bytes; `gateway_mac` is b"" while it is not known."""

    def __init__(self, name: str, ifindex: int, mac: bytes, gateway_mac: bytes) -> None:
        self.name, self.ifindex, self.mac, self.gateway_mac = name, ifindex, mac, gateway_mac
        self.usable = True
        self.mtu = 0
        self._ring: Ring | None = None

    def open(self, address_bytes: int, protocol: int, port: int) -> None:
        kind = ETH_P_IPV6 if address_bytes == 16 else ETH_P_IP
        self._ring = Ring(self.name, bpf.probes(address_bytes, protocol, port), kind, RING_FRAMES)

    def read_mtu(self) -> None:
        """How large a packet the device takes. OSError when it is gone."""
        assert self._ring is not None, "open() comes first"
        answer = fcntl.ioctl(self._ring.socket, _SIOCGIFMTU, struct.pack("16si20x", self.name.encode(), 0))
        self.mtu = int(struct.unpack_from("=i", answer, 16)[0])

    @property
    def ready(self) -> bool:
        """Whether something can be sent over it."""
        return self.usable and self._ring is not None and bool(self.gateway_mac)

    def fileno(self) -> int:
        assert self._ring is not None, "open() comes first"
        return self._ring.socket.fileno()

    def send(self, frame: bytes) -> None:
        """OSError when it did not leave."""
        assert self._ring is not None, "open() comes first"
        self._ring.socket.send(frame)

    def drain(self, into: list[Received]) -> bool:
        """True when received frames were lost here, by us."""
        return self._ring is not None and self._ring.drain(into)

    def close(self) -> None:
        if self._ring is not None:
            self._ring.close()
            self._ring = None
