"""What RDMA devices tell by themselves (`rdma.async_events`): each device is held open for it, and for nothing else.

`poll` about once a second finds devices that came or went, and looks at the state of ports that are in error: a lost
event must not keep one there. Addresses are read again a moment after a change, since a flap is a burst of changes.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from linkpass.core.events import Event, PortEvent
from rdma.async_events import AsyncEvents
from rdma.borrowed import device_file
from rdma.devices import Device, Gid, Port, device, device_names, gid_changes
from rdma.sysfs import ROOT, after_colon, read_text
from rdma.verbs import VerbsError

GIDS_S: Final = 0.1
"""For which changes of a device's addresses are gathered."""
TRY_AGAIN_POLLS: Final = 30
"""A device that could not be opened is tried again after so many polls."""


class _Watched:
    """A device: what it was when it was last looked at, and its events (None while they cannot be heard)."""

    def __init__(self, seen: Device) -> None:
        self.seen = seen
        self.folder = Path()
        """Of its character device: goes first when the device goes."""
        self.events: AsyncEvents | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.bad: set[int] = set()
        """Ports in error; 0: the whole device."""


class DeviceEventEdge:
    """`emit` takes what is for the core; `on_gids` hears of each device whose addresses were read again."""

    def __init__(
        self, emit: Callable[[Event], None], on_gids: Callable[[str], None] = lambda _: None, root: Path = ROOT
    ) -> None:
        self._emit, self._on_gids, self._root = emit, on_gids, root
        self._watched: dict[str, _Watched] = {}
        self._refused: dict[str, int] = {}
        """Devices that could not be opened -> polls until they are tried again."""
        self.why = ""
        """Why not all devices are heard; empty when all are, or there is none."""

    def open(self) -> list[str]:
        """Must be called inside the running loop. Never fails: returns what is to be said, as `poll` does."""
        return self.poll()

    def close(self) -> None:
        for name in list(self._watched):
            self._let_go(name)

    def poll(self) -> list[str]:
        """Lines for the log: what cannot be heard, and why."""
        try:
            names = device_names(self._root)
        except OSError:
            return []
        for name, watched in list(self._watched.items()):
            if name not in names or not watched.folder.exists():
                self._let_go(name)
                self._tell(watched, 0, "GONE")
        said = [line for name in names for line in self._take_up(name)]
        for watched in self._watched.values():
            for port in watched.seen.ports:
                if {0, port.number} & watched.bad and after_colon(read_text(port.folder / "state")) == "ACTIVE":
                    self._tell(watched, port.number, "PORT_ACTIVE", "its state says so")
        return said

    def gids(self, port: str) -> tuple[Gid, ...] | None:
        """The addresses of a port (`device/number`) as they were last read; None where that is not done here."""
        for watched in self._watched.values():
            for one in watched.seen.ports:
                if one.name == port:
                    return one.gids
        return None

    def _take_up(self, name: str) -> list[str]:
        """Hear a device that is not heard yet, or no longer."""
        watched = self._watched.get(name)
        if watched is not None and watched.events is not None:
            return []
        if self._refused.get(name, 0) > 0:
            self._refused[name] -= 1
            return []
        file = os.path.basename(device_file(name, self._root))
        if not file:
            return []  # its module is not loaded, or it goes just now
        events = AsyncEvents(name)
        try:
            events.open()
            seen = _with_gids(device(self._root, name), events.gids())
        except VerbsError as error:
            events.close()
            self._refused[name] = TRY_AGAIN_POLLS
            told, self.why = self.why, f"what {name} tells of its ports is not heard: {error}"
            return [] if told == self.why else [self.why]
        self._refused.pop(name, None)
        self.why = self.why if self._refused else ""
        if watched is None:
            watched = self._watched[name] = _Watched(seen)
        watched.seen, watched.folder = seen, self._root / "class/infiniband_verbs" / file
        watched.events = events
        asyncio.get_running_loop().add_reader(events.fileno(), self._on_readable, watched)
        return []

    def _let_go(self, name: str) -> None:
        self._stop_hearing(self._watched.pop(name))

    def _stop_hearing(self, watched: _Watched) -> None:
        if watched.timer is not None:
            watched.timer.cancel()
            watched.timer = None
        if watched.events is not None:
            asyncio.get_running_loop().remove_reader(watched.events.fileno())
            watched.events.close()
            watched.events = None

    def _on_readable(self, watched: _Watched) -> None:
        assert watched.events is not None
        try:
            news = watched.events.read()
        except OSError:  # the device has gone: the next poll finds out what there is now
            self._stop_hearing(watched)
            return
        for one in news:
            if one.kind == "GID_CHANGE":
                if watched.timer is None:
                    watched.timer = asyncio.get_running_loop().call_later(GIDS_S, self._read_gids, watched)
            else:
                self._tell(watched, one.port, one.kind)
        if any(one.kind == "DEVICE_FATAL" for one in news):
            self._stop_hearing(watched)  # nothing comes over this context any more; the next poll opens another

    def _read_gids(self, watched: _Watched) -> None:
        watched.timer = None
        assert watched.events is not None
        try:
            now = _with_gids(watched.seen, watched.events.gids())
        except VerbsError:
            return  # it goes just now
        changes = [gid_changes(a.gids, b.gids) for a, b in zip(watched.seen.ports, now.ports, strict=True)]
        watched.seen = now
        for port, lines in zip(now.ports, changes, strict=True):
            self._tell(watched, port.number, "GID_CHANGE", ", ".join(lines) or "the table is as it was")
        self._on_gids(watched.seen.name)

    def _tell(self, watched: _Watched, number: int, what: str, detail: str = "") -> None:
        if what in ("PORT_ERR", "DEVICE_FATAL"):
            watched.bad.add(number)
        elif what == "PORT_ACTIVE":
            watched.bad -= {0, number}
        ports = [port for port in watched.seen.ports if number in (0, port.number)]
        netdevs = dict.fromkeys(name for port in ports for name in _under(watched.seen, port))
        self._emit(
            PortEvent(device=watched.seen.name, port=number, what=what, netdevs=tuple(netdevs), detail=detail)  # type: ignore[arg-type]
        )


def _with_gids(seen: Device, now: dict[int, tuple[Gid, ...]]) -> Device:
    ports = tuple(msgspec.structs.replace(port, gids=now.get(port.number, ())) for port in seen.ports)
    return msgspec.structs.replace(seen, ports=ports)


def _under(seen: Device, port: Port) -> tuple[str, ...]:
    """The network devices on a port: those of its addresses; of a device with one port also its own, address or not."""
    return port.netdevs + (seen.netdevs if len(seen.ports) == 1 else ())
