"""The addresses of an open device, by one system call where the kernel has it (Linux 5.10): a table of 1,024 rows takes
thousands from sysfs. Their place in the table is not theirs for good: after a flap it may be another."""

from __future__ import annotations

import ipaddress
import socket
from typing import Any, Final

from rdma import verbs
from rdma.devices import Gid, gid_text, gid_type

_AT_MOST: Final = 2047
"""Of 32 bytes each: the length of an ioctl's attribute has 16 bits."""


def read(context: Any) -> dict[int, tuple[Gid, ...]]:
    """Port -> its addresses in use, in the words of `rdma.devices`. VerbsError when the device has gone."""
    found: dict[int, list[Gid]] = {}
    try:
        entries = context.query_gid_table(_AT_MOST)
    except Exception as error:
        raise verbs.VerbsError(f"the addresses of RDMA device {context.name} cannot be read: {error}") from error
    for entry in sorted(entries, key=lambda one: (one.port_num, one.gid_index)):
        found.setdefault(entry.port_num, []).append(_gid(entry))
    return {port: tuple(gids) for port, gids in found.items()}


def index_of(context: Any, port: int, gid: str) -> int | None:
    """Where an address is now, as RoCE v2 where it is there twice; None: not on this port. VerbsError as above."""
    here = [one for one in read(context).get(port, ()) if one.gid == gid]
    here.sort(key=lambda one: one.type != "RoCE v2")
    return here[0].index if here else None


def _gid(entry: Any) -> Gid:
    """struct ibv_gid_entry."""
    try:
        netdev = socket.if_indextoname(entry.ndev_ifindex) if entry.ndev_ifindex else ""
    except OSError:
        netdev = ""
    gid = gid_text(ipaddress.IPv6Address(entry.gid_str()))
    return Gid(entry.gid_index, gid, gid_type(entry.gid_type), netdev)
