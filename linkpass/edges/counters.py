"""The counters of this host's RDMA ports, read about once a second: what they say of congestion, loss and sick links.

Reading changes nothing, so it is done in every mode. Drivers may ask their firmware for it (mlx5's `hw_counters` and
`state`), so a thread reads, and the event loop only hands over and takes. A host without RDMA has one line to say."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any, Final

import msgspec

from linkpass.aside import Aside
from rdma.counters.evidence import Finding, Thresholds, figures, findings
from rdma.counters.reading import PortReader, Window
from rdma.devices import Device, Rate, device_names, devices
from rdma.sysfs import ROOT, Text, Unknown, Value, after_colon, read_text

NO_RDMA = "no RDMA device on this host"


class PortRow(msgspec.Struct, frozen=True):
    """What a port said at the last reading."""

    state: Text
    window: Window | None
    totals: dict[str, Value]
    strange: tuple[str, ...] = ()


class Seen(msgspec.Struct, frozen=True):
    """`ports` by name. `why`: why there is nothing to show, or not all; empty when all was read."""

    devices: tuple[Device, ...]
    ports: dict[str, PortRow]
    why: str


class Ports:
    """The thread's: finds the ports and reads them. Nothing else touches it while that is at work."""

    def __init__(self, now_s: Callable[[], float], root: Path = ROOT) -> None:
        self._now_s = now_s
        self._root = root
        self._devices: tuple[Device, ...] = ()
        self._readers: dict[str, PortReader] = {}
        self._why = NO_RDMA
        self._opened = False

    def read(self, how: tuple[int, os.sched_param]) -> Seen:
        """It runs as the loop does: kept from running by a job, it could hold on to the interpreter."""
        if os.sched_getscheduler(0) != how[0]:
            try:
                os.sched_setscheduler(0, *how)
            except OSError:
                pass
        if not self._opened or self._changed():
            self.close()
            self._open()
        rows = {}
        for device in self._devices:
            for port in device.ports:
                reader = self._readers.get(port.name)
                if reader is None:
                    rows[port.name] = PortRow(port.state, None, {})
                    continue
                state, window = after_colon(read_text(port.folder / "state")), reader.read(self._now_s())
                rows[port.name] = PortRow(state, window, reader.totals(), reader.strange)
        return Seen(self._devices, rows, self._why)

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()

    def _open(self) -> None:
        """Never fails: what cannot be read is named in `why`."""
        try:
            self._devices = devices(self._root)
        except OSError as error:
            self._why = f"RDMA devices cannot be looked at: {error.strerror}"
            return
        self._opened = True
        self._why = "" if self._devices else NO_RDMA
        for device in self._devices:
            for port in device.ports:
                reader = PortReader(port, device.driver)
                try:
                    reader.open()
                except OSError as error:
                    hint = ": raise the limit of open files (LimitNOFILE)" if error.errno == errno.EMFILE else ""
                    self._why = f"the counters of {port.name} are not read: {error.strerror}{hint}"
                else:
                    self._readers[port.name] = reader

    def _changed(self) -> bool:
        """A device came, or went."""
        try:
            return device_names(self._root) != [device.name for device in self._devices]
        except OSError:
            return False


UNREAD_POLLS: Final = 3
"""After so many without a reading nothing that was found before counts any more."""


class CounterEdge:
    """`poll` takes what the last reading saw and begins the next, `snapshot` shows it."""

    def __init__(
        self, limits: Thresholds, now_s: Callable[[], float], root: Path = ROOT, executor: Executor | None = None
    ) -> None:
        """`executor` runs one thing at a time, and is shut down by `close`."""
        self._limits = limits
        self._executor = executor or Aside("rdma-counters")
        self._reader = Ports(now_s, root)
        self._reading: Future[Seen] | None = None
        self._seen = Seen((), {}, "not read yet")
        self._found: dict[tuple[str, str], Finding] = {}
        self._failed = ""
        self._unread = 0
        """Polls since the last reading."""

    def close(self) -> None:
        """Does not wait: a reading that hangs in a driver is left behind."""
        self._executor.submit(self._reader.close)
        self._executor.shutdown(wait=False)

    @property
    def why(self) -> str:
        """Why there is nothing to show, or not all; empty when all is read."""
        return self._failed or self._seen.why

    def poll(self) -> list[str]:
        """A line for each finding that is new, and for each that is over. A reading that is not done is waited for;
        counters are compared over the time that really passed."""
        lines = []
        if self._reading is not None:
            if not self._reading.done():
                return self._nothing_read()
            lines = self._take(self._reading)
        how = os.sched_getscheduler(0), os.sched_getparam(0)
        self._reading = self._executor.submit(self._reader.read, how)
        return lines

    def _take(self, reading: Future[Seen]) -> list[str]:
        try:
            self._seen, self._failed = reading.result(), ""
        except Exception as error:  # noqa: BLE001 - what drivers answer is not ours: none of it may end the reading
            self._failed = f"RDMA counters are not read: {type(error).__name__}: {error}"
            return self._nothing_read()
        self._unread = 0
        windows = (row.window for row in self._seen.ports.values() if row.window is not None)
        seen = {(one.port, one.what): one for window in windows for one in findings(window, self._limits)}
        lines = [_told(finding) for place, finding in seen.items() if place not in self._found]
        lines += [f"{port}: {what} is below its limit again" for port, what in self._found if (port, what) not in seen]
        self._found = seen
        return lines

    def _nothing_read(self) -> list[str]:
        """What was found is true for some polls more; then it is not known: a driver that hangs excuses no loss."""
        self._unread += 1
        if self._unread < UNREAD_POLLS:
            return []
        found, self._found = self._found, {}
        return [f"{port}: {what} is not known any more: its counters are not read" for port, what in found]

    @property
    def netdevs(self) -> tuple[str, ...]:
        """The network devices of all ports."""
        every = (name for one in self._seen.devices for port in one.ports for name in (port.netdevs or one.netdevs))
        return tuple(dict.fromkeys(every))

    def congested(self) -> Iterator[tuple[str, Finding]]:
        """What the last reading found of congestion, with a network device that lies on the port."""
        for one in self._seen.devices:
            for port in one.ports:
                found = [f for (name, _), f in self._found.items() if name == port.name and f.kind == "congestion"]
                yield from ((netdev, f) for netdev in port.netdevs or one.netdevs for f in found)

    def snapshot(self) -> dict[str, Any]:
        """Plain data for people and for metrics. What is unknown is None, its reason in `unknown`."""
        return {"why": self.why, "devices": [self._device(device) for device in self._seen.devices]}

    def _device(self, device: Device) -> dict[str, Any]:
        return {
            "name": device.name,
            "driver": device.driver,
            "firmware": _plain(device.firmware),
            "pci": device.pci,
            "numa_node": device.numa_node,
            "netdevs": list(device.netdevs),
            "ports": list(self._ports(device)),
        }

    def _ports(self, device: Device) -> Iterator[dict[str, Any]]:
        for port in device.ports:
            row = self._seen.ports[port.name]
            totals = row.totals
            shown = figures(row.window, self._limits) if row.window is not None else {}
            yield {
                "name": port.name,
                "protocol": port.protocol,
                "state": _plain(row.state),
                "rate_bps": port.rate.bits_per_s if isinstance(port.rate, Rate) else None,
                "netdevs": list(port.netdevs or device.netdevs),
                "gids": [msgspec.to_builtins(gid) for gid in port.gids],
                "totals": {name: value for name, value in totals.items() if not isinstance(value, Unknown)},
                "figures": {name: _plain(value) for name, value in shown.items()},
                "unknown": {name: str(value) for name, value in totals.items() if isinstance(value, Unknown)},
                "findings": [msgspec.to_builtins(one) for place, one in self._found.items() if place[0] == port.name],
                "strange": list(row.strange),
            }


def _told(finding: Finding) -> str:
    return f"{finding.port}: {finding.says} ({finding.what} {finding.value:.3g}, limit {finding.limit:g})"


def _plain(value: Any) -> Any:
    return None if isinstance(value, Unknown) else value
