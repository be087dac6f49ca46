"""RDMA devices, their ports and their GIDs, as sysfs tells them (Documentation/ABI/stable/sysfs-class-infiniband).

Which protocol a port speaks is told by two files: `node_type` is RNIC for iWARP, `link_layer` is InfiniBand or
Ethernet. RoCE is what is left: InfiniBand's kind of adapter on Ethernet. Where a file is missing, it is unknown.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, Literal

import msgspec

from rdma.sysfs import ROOT, Text, Unknown, Value, after_colon, read_number, read_text

Protocol = Literal["InfiniBand", "RoCE", "iWARP", "unknown"]
GidType = Literal["IB", "RoCE v1", "RoCE v2", "unknown"]

_RATE: Final = re.compile(r"^(\d+(?:\.\d+)?) Gb/sec(?: \((\d+)X ?(\w*)\))?")
_PCI: Final = re.compile(r"^[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$")
_EMPTY: Final = ipaddress.IPv6Address("::")


class Gid(msgspec.Struct, frozen=True):
    """A source address of a port. An index may hold another one after a flap: read it again then.

    `gid`: as an IPv6 address, that of an IPv4 address is ::ffff:a.b.c.d. `netdev`: "" where the kernel names none."""

    index: int
    gid: str
    type: GidType
    netdev: str = ""


GID_TYPES: Final[tuple[GidType, ...]] = ("IB", "RoCE v1", "RoCE v2")
"""enum ib_uverbs_gid_type (include/uapi/rdma/ib_user_ioctl_verbs.h)."""


def gid_type(number: int) -> GidType:
    return GID_TYPES[number] if number < len(GID_TYPES) else "unknown"


def gid_text(gid: ipaddress.IPv6Address) -> str:
    """As all of this package writes it: that of an IPv4 address is ::ffff:a.b.c.d."""
    mapped = gid.ipv4_mapped
    return f"::ffff:{mapped}" if mapped else str(gid)


def address_of(gid: str) -> str:
    """The address behind a GID: of ::ffff:a.b.c.d the IPv4 one."""
    return gid.removeprefix("::ffff:") if "." in gid else gid


def gid_of(address: str) -> str:
    return f"::ffff:{address}" if "." in address else address


class Rate(msgspec.Struct, frozen=True):
    """`bits_per_s` of data; `lanes` and `speed` (EDR, ...) as the driver calls them."""

    bits_per_s: float
    lanes: int = 0
    speed: str = ""


class Port(msgspec.Struct, frozen=True):
    """One port. `folder` is where its files lie. `lid`: 0 where the fabric has none (RoCE)."""

    device: str
    number: int
    folder: Path
    protocol: Protocol
    state: Text
    phys_state: Text
    rate: Rate | Unknown
    lid: Value
    gids: tuple[Gid, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.device}/{self.number}"

    @property
    def active(self) -> bool | Unknown:
        """Whether it carries data; `Unknown` where the driver does not say."""
        return self.state if isinstance(self.state, Unknown) else self.state == "ACTIVE"

    @property
    def netdevs(self) -> tuple[str, ...]:
        """The network devices that its GIDs belong to, in order of their first GID."""
        return tuple(dict.fromkeys(gid.netdev for gid in self.gids if gid.netdev))


class Device(msgspec.Struct, frozen=True):
    """One device. `driver`: the kernel module's name, "" where it cannot be told. `pci`: its address on the bus, "" for
    a device without one (soft-RoCE). `numa_node`: None where the machine has none or the device does not care."""

    name: str
    node_type: Text
    guid: Text
    firmware: Text
    board: Text
    driver: str
    pci: str
    numa_node: int | None
    netdevs: tuple[str, ...]
    ports: tuple[Port, ...]


def devices(root: Path = ROOT) -> tuple[Device, ...]:
    """All devices, by name; none where the kernel has no RDMA. OSError when that cannot be told."""
    return tuple(device(root, name) for name in device_names(root))


def device_names(root: Path = ROOT) -> list[str]:
    """Their names alone, in order: cheap enough to look whether one came or went. OSError as above."""
    try:
        return sorted(os.listdir(root / "class/infiniband"))
    except FileNotFoundError:
        return []


def device(root: Path, name: str) -> Device:
    """One device; of one that has just gone everything is unknown."""
    folder = root / "class/infiniband" / name
    hardware = folder / "device"
    node_type = after_colon(read_text(folder / "node_type"))
    pci = os.path.basename(os.path.realpath(hardware)) if hardware.is_symlink() else ""
    numa = read_number(hardware / "numa_node")
    parent = read_text(folder / "parent")  # rxe alone has it: the network device it sits on
    return Device(
        name=name,
        node_type=node_type,
        guid=read_text(folder / "node_guid"),
        firmware=read_text(folder / "fw_ver"),
        board=read_text(folder / "board_id"),
        driver=_driver(hardware, parent),
        pci=pci if _PCI.match(pci) else "",
        numa_node=numa if isinstance(numa, int) and numa >= 0 else None,
        netdevs=_netdevs(hardware, parent),
        ports=tuple(_ports(folder, name, node_type)),
    )


def driver_of(root: Path, name: str) -> str:
    """A device's driver alone: its table of addresses has up to 1,024 files. "" where it cannot be told."""
    folder = root / "class/infiniband" / name
    return _driver(folder / "device", read_text(folder / "parent"))


def parse_rate(text: Text) -> Rate | Unknown:
    """`100 Gb/sec (4X EDR)`; a port that is down may say `10 Gb/sec (4X SDR)` or `2.5 Gb/sec (1X)`: taken as told."""
    if isinstance(text, Unknown):
        return text
    match = _RATE.match(text)
    if match is None:
        return Unknown("no number", text[:40])
    return Rate(float(match[1]) * 1e9, int(match[2] or 0), match[3] or "")


def gids(port_folder: Path) -> Iterator[Gid]:
    """The entries in use. A table has up to 1,024 rows, nearly all empty: an empty one costs one read."""
    folder = port_folder / "gids"
    for index in sorted(_numbers(folder)):
        text = read_text(folder / str(index))
        if isinstance(text, Unknown):
            continue  # an unused entry of some drivers is answered with EINVAL
        try:
            gid = ipaddress.IPv6Address(text)
        except ValueError:
            continue
        if gid == _EMPTY or (int(gid) >> 64 == 0xFE80 << 48 and not int(gid) & (1 << 64) - 1):
            continue  # fe80:: with no interface: the default GID of a port that is not up
        kind = read_text(port_folder / f"gid_attrs/types/{index}")
        netdev = read_text(port_folder / f"gid_attrs/ndevs/{index}")
        yield Gid(index, gid_text(gid), _gid_type(kind), netdev if isinstance(netdev, str) else "")


def gid_changes(before: Iterable[Gid], after: Iterable[Gid]) -> list[str]:
    """In words: which addresses have another index than before, are new, or are gone. Pure."""
    was = {(gid.gid, gid.type): gid.index for gid in before}
    now = {(gid.gid, gid.type): gid.index for gid in after}
    lines = []
    for (address, kind), index in now.items():
        old = was.get((address, kind))
        if old is None:
            lines.append(f"{address} ({kind}) is new at index {index}")
        elif old != index:
            lines.append(f"{address} ({kind}) moved from index {old} to {index}")
    return lines + [f"{address} ({kind}) is gone" for address, kind in was if (address, kind) not in now]


def _gid_type(text: Text) -> GidType:
    if isinstance(text, Unknown):
        return "unknown"
    if text == "IB/RoCE v1":  # one word for both: what it is follows from the port
        return "RoCE v1"
    return next((kind for kind in GID_TYPES if kind == text), "unknown")


def _ports(folder: Path, name: str, node_type: Text) -> Iterator[Port]:
    for number in sorted(_numbers(folder / "ports")):
        at = folder / "ports" / str(number)
        protocol = _protocol(node_type, read_text(at / "link_layer"))
        found = tuple(gids(at))
        if protocol == "InfiniBand":
            found = tuple(msgspec.structs.replace(gid, type="IB") for gid in found)
        yield Port(
            device=name,
            number=number,
            folder=at,
            protocol=protocol,
            state=after_colon(read_text(at / "state")),
            phys_state=after_colon(read_text(at / "phys_state")),
            rate=parse_rate(read_text(at / "rate")),
            lid=read_number(at / "lid"),
            gids=found,
        )


def _protocol(node_type: Text, link_layer: Text) -> Protocol:
    if node_type == "RNIC":
        return "iWARP"
    if link_layer == "InfiniBand":
        return "InfiniBand"
    if link_layer == "Ethernet" and node_type == "CA":
        return "RoCE"
    return "unknown"


def _driver(hardware: Path, parent: Text) -> str:
    if (hardware / "driver").exists():
        return os.path.basename(os.path.realpath(hardware / "driver"))
    return "rdma_rxe" if isinstance(parent, str) else ""


def _netdevs(hardware: Path, parent: Text) -> tuple[str, ...]:
    if isinstance(parent, str):
        return (parent,)
    try:
        return tuple(sorted(os.listdir(hardware / "net")))
    except OSError:
        return ()


def _numbers(folder: Path) -> list[int]:
    try:
        return [int(name) for name in os.listdir(folder) if name.isdigit()]
    except OSError:
        return []
