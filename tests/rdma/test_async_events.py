"""Events of verbs as the kernel writes them, and what a table of addresses says of a change. No device is needed."""

from __future__ import annotations

import struct

from rdma.async_events import AsyncEvent, decode
from rdma.devices import Gid, gid_changes


def raw(*events: tuple[int, int]) -> bytes:
    """struct ib_uverbs_async_event_desc: element (8 bytes), event_type, reserved."""
    return b"".join(struct.pack("=QII", element, kind, 0) for kind, element in events)


def test_port_events_carry_their_port() -> None:
    assert decode(raw((10, 1), (9, 2), (18, 1))) == [
        AsyncEvent("PORT_ERR", 1), AsyncEvent("PORT_ACTIVE", 2), AsyncEvent("GID_CHANGE", 1),
    ]  # fmt: skip


def test_what_concerns_no_port_is_left_out_and_a_fatal_event_is_the_whole_devices() -> None:
    queue_pair, unknown = (1, 0x55D0_0000_1234), (99, 1)
    assert decode(raw(queue_pair, unknown, (8, 1))) == [AsyncEvent("DEVICE_FATAL", 0)]
    assert decode(raw((10, 1))[:-1]) == []


def test_changes_of_addresses_are_told_by_address_and_index() -> None:
    one, two = Gid(0, "fe80::1", "RoCE v2", "eth0"), Gid(1, "fd00::1", "RoCE v2", "eth0")
    assert gid_changes([one, two], [one, two]) == []
    moved = Gid(2, "fd00::1", "RoCE v2", "eth0")
    new = Gid(1, "fd00::2", "RoCE v2", "eth0")
    assert gid_changes([one, two], [new, moved]) == [
        "fd00::2 (RoCE v2) is new at index 1",
        "fd00::1 (RoCE v2) moved from index 1 to 2",
        "fe80::1 (RoCE v2) is gone",
    ]
