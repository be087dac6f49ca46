"""What a device tells by itself: ports that fail and come back, addresses that move (ibv_get_async_event(3)).

pyverbs' `get_async_event` waits while it holds the interpreter's lock. So the context's own descriptor is found and
read here without waiting: 16 bytes an event (struct ib_uverbs_async_event_desc, include/uapi/rdma/ib_user_verbs.h).
Nothing but the open context is needed, and it must have no queue pairs: events of those want an acknowledgement.

An open context holds soft-RoCE's device up: `rdma link del` waits until it is closed (drivers that can disassociate
contexts do not wait). The device's folder below `infiniband_verbs` goes first: whoever sees it gone closes.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import struct
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from rdma import verbs
from rdma.devices import Gid, GidType

Kind = Literal[
    "PORT_ERR", "PORT_ACTIVE", "GID_CHANGE", "LID_CHANGE", "PKEY_CHANGE", "SM_CHANGE", "CLIENT_REREGISTER",
    "DEVICE_FATAL",
]  # fmt: skip
KINDS: Final[dict[int, Kind]] = {
    8: "DEVICE_FATAL", 9: "PORT_ACTIVE", 10: "PORT_ERR", 11: "LID_CHANGE", 12: "PKEY_CHANGE", 13: "SM_CHANGE",
    17: "CLIENT_REREGISTER", 18: "GID_CHANGE",
}  # fmt: skip
"""enum ib_event_type (include/rdma/ib_verbs.h), of those that concern a port or the device."""
_EVENT: Final = struct.Struct("=QII")
_NAME: Final = "anon_inode:[infinibandevent]"
_READ_BYTES: Final = 64 * _EVENT.size
_GIDS_AT_MOST: Final = 2047
"""Of 32 bytes each: the length of an ioctl's attribute has 16 bits."""
_GID_TYPES: Final[tuple[GidType, ...]] = ("IB", "RoCE v1", "RoCE v2")
"""enum ib_uverbs_gid_type (include/uapi/rdma/ib_user_ioctl_verbs.h)."""


class AsyncEvent(msgspec.Struct, frozen=True):
    """`port`: 0 for an event of the whole device."""

    kind: Kind
    port: int


class AsyncEvents:
    """One device's events. `open`, then `read` whenever `fileno` is readable."""

    def __init__(self, device: str) -> None:
        self.device = device
        self._context: Any = None
        self._fd = -1

    def open(self) -> None:
        """Raises VerbsError."""
        before = _descriptors()
        self._context = verbs.open_device(self.device)
        new = _descriptors() - before
        if len(new) != 1:
            self.close()
            raise verbs.VerbsError(f"RDMA device {self.device}: its context has {len(new)} descriptors for events")
        (self._fd,) = new
        os.set_blocking(self._fd, False)

    def close(self) -> None:
        """Safe to call twice. The descriptor goes with the context: whoever waits for it stops before."""
        self._fd = -1
        if self._context is not None:
            context, self._context = self._context, None
            with contextlib.suppress(Exception):  # of a device that is gone
                context.close()

    def fileno(self) -> int:
        return self._fd

    def gids(self) -> dict[int, tuple[Gid, ...]]:
        """Port -> its addresses in use, by one system call where the kernel has it (Linux 5.10): a table of 1,024 rows
        takes thousands from sysfs. VerbsError when the device has gone."""
        found: dict[int, list[Gid]] = {}
        try:
            entries = self._context.query_gid_table(_GIDS_AT_MOST)
        except Exception as error:
            raise verbs.VerbsError(f"the addresses of RDMA device {self.device} cannot be read: {error}") from error
        for entry in sorted(entries, key=lambda one: (one.port_num, one.gid_index)):
            found.setdefault(entry.port_num, []).append(_gid(entry))
        return {port: tuple(gids) for port, gids in found.items()}

    def read(self) -> list[AsyncEvent]:
        """All that is waiting; of kinds that are known here. OSError: EIO when the device has gone."""
        found: list[AsyncEvent] = []
        while True:
            try:
                data = os.read(self._fd, _READ_BYTES)
            except BlockingIOError:
                return found
            if not data:
                return found
            found += decode(data)


def decode(data: bytes) -> list[AsyncEvent]:
    whole = len(data) - len(data) % _EVENT.size
    return [
        AsyncEvent(KINDS[kind], 0 if KINDS[kind] == "DEVICE_FATAL" else int(element))
        for element, kind, _ in _EVENT.iter_unpack(data[:whole])
        if kind in KINDS
    ]


def _gid(entry: Any) -> Gid:
    """struct ibv_gid_entry, in the words of `rdma.devices`."""
    address = ipaddress.IPv6Address(entry.gid_str())
    mapped = address.ipv4_mapped
    kind: GidType = _GID_TYPES[entry.gid_type] if entry.gid_type < len(_GID_TYPES) else "unknown"
    try:
        netdev = socket.if_indextoname(entry.ndev_ifindex) if entry.ndev_ifindex else ""
    except OSError:
        netdev = ""
    return Gid(entry.gid_index, f"::ffff:{mapped}" if mapped else str(address), kind, netdev)


def _descriptors() -> set[int]:
    """This process's descriptors for events of verbs."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(Path("/proc/self/fd") / name) == _NAME:
                found.add(int(name))
        except OSError:  # closed since it was listed: the one of the listing itself
            continue
    return found
