"""The queue pairs for datagrams of RoCE: one on each port that has an address in the configured prefixes."""

from __future__ import annotations

import asyncio
import ipaddress
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from linkpass.wire import probe
from rdma.borrowed import device_file
from rdma.devices import Gid, device, device_names
from rdma.ud import UdPort
from rdma.verbs import VerbsError

AGAIN_LOOKS: Final = 5
"""A device that could not be opened is tried again after so many looks."""
AGAIN_MAX_LOOKS: Final = 30
"""One whose queue pairs break soon after they were opened waits for longer each time, up to this."""


class Side:
    """A port. `gids`: our addresses on it (16 bytes) in the prefixes, and their index now."""

    def __init__(self, name: str, number: int, folder: Path) -> None:
        self.device, self.port, self.folder = name, number, folder
        self.ud = UdPort(name, number)
        self.gids: dict[bytes, int] = {}
        self.looks = 0
        """For how many looks it has lived."""


class Sides:
    """`look` about once a second opens what is new or broken and closes what goes. `on_readable` hears of datagrams."""

    def __init__(self, prefixes: Iterable[str], root: Path, on_readable: Callable[[Side], None]) -> None:
        self._networks = [ipaddress.ip_network(prefix) for prefix in prefixes]
        self._root, self._on_readable = root, on_readable
        self._sides: dict[tuple[str, int], Side] = {}
        self._again: dict[str, int] = {}
        self._breaks: dict[str, int] = {}
        """Devices -> how often in a row a queue pair of theirs has broken soon."""
        self._looked: set[str] = set()
        """Devices whose ports are known, with or without an address of ours."""
        self.why = ""

    def look(self) -> None:
        """What cannot be had is named in `why`."""
        try:
            names = device_names(self._root)
        except OSError:
            return
        for side in list(self._sides.values()):
            side.looks += 1
            if side.ud.broken:
                soon = side.looks < AGAIN_MAX_LOOKS
                times = self._breaks[side.device] = self._breaks.get(side.device, 0) + 1 if soon else 0
                self._again[side.device] = min(AGAIN_MAX_LOOKS, 2**times - 1)
            if side.ud.broken or side.device not in names or not side.folder.exists():
                self._close(side)
                self._looked.discard(side.device)
        self._looked &= set(names)
        for name in names:
            if name not in self._looked:
                self._open(name)

    def look_changed(self) -> bool:
        """As `look`; whether where we answer has changed."""
        before = self.places(asks=False)
        self.look()
        return self.places(asks=False) != before

    def reread(self, name: str) -> bool:
        """A device's addresses have moved; whether that changes where we answer."""
        before = self.places(asks=False)
        self._looked.discard(name)  # one of its ports may have an address of ours only now
        for side in [one for one in self._sides.values() if one.device == name]:
            try:
                side.gids = self._ours(side.ud.gids())
            except VerbsError:
                continue
            side.ud.forget_routes()
        return self.places(asks=False) != before

    def _open(self, name: str) -> None:
        if self._again.get(name, 0) > 0:
            self._again[name] -= 1
            return
        file = os.path.basename(device_file(name, self._root))
        if not file:
            return
        folder = self._root / "class/infiniband_verbs" / file
        for port in device(self._root, name).ports:
            if port.protocol != "RoCE" or (name, port.number) in self._sides or not self._ours(port.gids):
                continue
            side = Side(name, port.number, folder)
            try:
                side.ud.open()
                side.gids = self._ours(side.ud.gids())
            except VerbsError as error:
                side.ud.close()
                self._again[name] = AGAIN_LOOKS
                self.why = str(error)
                return
            self._sides[name, port.number] = side
            fd = side.ud.fileno()
            if fd is not None:
                asyncio.get_running_loop().add_reader(fd, self._on_readable, side)
        self._again.pop(name, None)
        self._looked.add(name)
        self.why = self.why if self._again else ""

    def _close(self, side: Side) -> None:
        del self._sides[side.device, side.port]
        fd = side.ud.fileno()
        if fd is not None:
            asyncio.get_running_loop().remove_reader(fd)
        side.ud.close()

    def close(self) -> None:
        for side in list(self._sides.values()):
            self._close(side)

    def _ours(self, gids: Iterable[Gid]) -> dict[bytes, int]:
        found = {}
        for gid in gids:
            address = ipaddress.IPv6Address(gid.gid)
            plain = address.ipv4_mapped or address
            if gid.type == "RoCE v2" and any(plain in network for network in self._networks):
                found[address.packed] = gid.index
        return found

    def places(self, *, asks: bool) -> list[probe.RocePlace]:
        """Where we answer, for peers; one that says so when it is nowhere."""
        here = [
            probe.RocePlace(gid, side.ud.qpn, side.ud.qkey, asks) for side in self._sides.values() for gid in side.gids
        ]
        return here[: probe.MAX_PLACES] or [probe.RocePlace(bytes(16), 0, 0, asks)]

    def all(self) -> Iterator[Side]:
        yield from self._sides.values()

    @property
    def any(self) -> bool:
        return bool(self._sides)

    def get(self, name: str, port: int) -> Side | None:
        return self._sides.get((name, port))

    def having(self, gid: bytes) -> Side | None:
        """The port with an address of ours."""
        return next((side for side in self._sides.values() if gid in side.gids), None)

    @property
    def polled(self) -> bool:
        """Whether a port wakes nobody."""
        return any(side.ud.fileno() is None for side in self._sides.values())

    def stamped(self, name: str, port: int) -> bool:
        side = self.get(name, port)
        return side is not None and side.ud.stamped
