"""What a device tells by itself: ports that fail and come back, addresses that move (ibv_get_async_event(3)).

pyverbs' `get_async_event` waits while it holds the interpreter's lock. So the context's own descriptor is found and
read here without waiting: 16 bytes an event (struct ib_uverbs_async_event_desc, include/uapi/rdma/ib_user_verbs.h).
Nothing but the open context is needed, and it must have no queue pairs: events of those want an acknowledgement.

An open context holds soft-RoCE's device up: `rdma link del` waits until it is closed (drivers that can disassociate
contexts do not wait). The device's folder below `infiniband_verbs` goes first: whoever sees it gone closes.
"""

from __future__ import annotations

import contextlib
import os
import struct
from typing import Any, Final, Literal

import msgspec

from rdma import gid_table, verbs
from rdma.devices import Gid

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
_READ_BYTES: Final = 64 * _EVENT.size


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
        before = verbs.event_descriptors()
        self._context = verbs.open_device(self.device)
        new = verbs.event_descriptors() - before
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
        """Port -> its addresses in use. VerbsError when the device has gone."""
        return gid_table.read(self._context)

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
