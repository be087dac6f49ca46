"""The counters of this host's RDMA ports, read about once a second: what they say of congestion, loss and sick links.

Reading changes nothing, so it is done in every mode. A host without RDMA has one line to say about it."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from rdma.counters.evidence import Finding, Thresholds, figures, findings
from rdma.counters.reading import PortReader, Window
from rdma.devices import Device, Rate, device_names, devices
from rdma.sysfs import ROOT, Text, Unknown, after_colon, read_text

NO_RDMA = "no RDMA device on this host"


class CounterEdge:
    """`open` finds the ports, `poll` reads them, `snapshot` shows what the last poll saw."""

    def __init__(self, limits: Thresholds, root: Path = ROOT) -> None:
        self._limits = limits
        self._root = root
        self._devices: tuple[Device, ...] = ()
        self._readers: dict[str, PortReader] = {}
        self._windows: dict[str, Window] = {}
        self._states: dict[str, Text] = {}
        self._found: dict[tuple[str, str], Finding] = {}
        self.why = NO_RDMA
        """Why there is nothing to show, or not all; empty when all is read."""

    def open(self) -> None:
        """Never fails: what cannot be read is named in `why`."""
        try:
            self._devices = devices(self._root)
        except OSError as error:
            self.why = f"RDMA devices cannot be looked at: {error.strerror}"
            return
        if not self._devices:
            self.why = NO_RDMA
            return
        self.why = ""
        for device in self._devices:
            for port in device.ports:
                reader = PortReader(port, device.driver)
                try:
                    reader.open()
                except OSError as error:
                    hint = ": raise the limit of open files (LimitNOFILE)" if error.errno == errno.EMFILE else ""
                    self.why = f"the counters of {port.name} are not read: {error.strerror}{hint}"
                else:
                    self._readers[port.name] = reader

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()
        self._windows.clear()
        self._states.clear()

    def poll(self, now_s: float) -> list[str]:
        """Read every port; a line for each finding that is new, and for each that is over."""
        if self._changed():
            self.close()
            self.open()
        seen: dict[tuple[str, str], Finding] = {}
        for name, reader in self._readers.items():
            self._states[name] = after_colon(read_text(reader.port.folder / "state"))
            window = self._windows[name] = reader.read(now_s)
            for finding in findings(window, self._limits):
                seen[name, finding.what] = finding
        lines = [_told(finding) for place, finding in seen.items() if place not in self._found]
        lines += [f"{port}: {what} is below its limit again" for port, what in self._found if (port, what) not in seen]
        self._found = seen
        return lines

    def _changed(self) -> bool:
        """A device came, or went."""
        try:
            return device_names(self._root) != [device.name for device in self._devices]
        except OSError:
            return False

    @property
    def netdevs(self) -> tuple[str, ...]:
        """The network devices of all ports."""
        every = (name for one in self._devices for port in one.ports for name in (port.netdevs or one.netdevs))
        return tuple(dict.fromkeys(every))

    def snapshot(self) -> dict[str, Any]:
        """Plain data for people and for metrics. What is unknown is None, its reason in `unknown`."""
        return {"why": self.why, "devices": [self._device(device) for device in self._devices]}

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
            window, reader = self._windows.get(port.name), self._readers.get(port.name)
            totals = reader.totals() if reader is not None else {}
            shown = figures(window, self._limits) if window is not None else {}
            yield {
                "name": port.name,
                "protocol": port.protocol,
                "state": _plain(self._states.get(port.name, port.state)),
                "rate_bps": port.rate.bits_per_s if isinstance(port.rate, Rate) else None,
                "netdevs": list(port.netdevs or device.netdevs),
                "gids": [msgspec.to_builtins(gid) for gid in port.gids],
                "totals": {name: value for name, value in totals.items() if not isinstance(value, Unknown)},
                "figures": {name: _plain(value) for name, value in shown.items()},
                "unknown": {name: str(value) for name, value in totals.items() if isinstance(value, Unknown)},
                "findings": [msgspec.to_builtins(one) for place, one in self._found.items() if place[0] == port.name],
                "strange": list(reader.strange) if reader is not None else [],
            }


def _told(finding: Finding) -> str:
    return f"{finding.port}: {finding.says} ({finding.what} {finding.value:.3g}, limit {finding.limit:g})"


def _plain(value: Any) -> Any:
    return None if isinstance(value, Unknown) else value
