"""`linkpass` daemons in guests: started, asked and ended through each guest's agent."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from lab.daemons import PROGRAM, Daemons, DaemonSpec
from lab.errors import LabError
from lab.netns.lab import NetnsLab
from lab.qemu.guest import Guest
from lab.qemu.hosts import VRF, carrier_of

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = "linkpass"
"""Of a guest's share."""
SOCKET: Final = Path("/run/linkpass.sock")
"""A share carries no sockets."""
FIRST: Final = ("nice", "-n", "-20")
"""A guest has one processor, and RDMA programs spin. (`realtime` has a limit that an emulated processor exceeds.)"""
SLOW: Final[Mapping[str, Mapping[str, float | str]]] = {
    "probing": {"interval_s": 0.05, "protocol": "udp", "large_ratio": 0},
    "limits": {"labels_per_peer": 4, "trace_pool": 16},
    "detection": {"silent_s": 0.6, "grace_s": 2.0, "queueing_s": 1.0},
}
"""An emulated processor is some thirty times slower than this one: probes are rarer there, and patience longer; answers
are tens of milliseconds late without any queue, and losses in a queue would be set aside."""


class GuestProcess:
    """A daemon in a guest, with the methods of `subprocess.Popen` that are used."""

    def __init__(self, guest: Guest, pid: int) -> None:
        self._guest, self.pid = guest, pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._guest.wait(self.pid, 0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        seconds = 60.0 if timeout is None else timeout
        if self.returncode is None:
            self.returncode = self._guest.wait(self.pid, seconds)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("linkpass", seconds)
        return self.returncode

    def send_signal(self, sig: int) -> None:
        self._guest.signal(self.pid, sig)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class GuestDaemons(Daemons):
    """`guests`: connected guests by host; other hosts' daemons run in their namespaces."""

    def __init__(
        self, lab: NetnsLab, guests: Mapping[str, Guest], spec: DaemonSpec | None = None,
        hosts: Iterable[str] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(lab, spec, hosts)
        self._guests = dict(guests)
        self._offset_s: dict[str, float] = {}

    def path(self, host: str, name: str) -> Path:
        guest = self._guests.get(host)
        return super().path(host, name) if guest is None else guest.share / FOLDER / name

    def inside(self, host: str, name: str) -> Path:
        if host not in self._guests:
            return super().inside(host, name)
        return SOCKET if name == "control.sock" else Path("/share") / FOLDER / name

    def start_one(self, host: str) -> None:
        guest = self._guests.get(host)
        if guest is None:
            super().start_one(host)
            return
        self._offset_s[host], _ = guest.clock_offset_s()
        argv = [*FIRST, *PROGRAM, "run", "--config", str(self.inside(host, "linkpass.toml"))]
        pid = guest.spawn(argv, f"{FOLDER}/log", env={"PYTHONPATH": str(ROOT)})
        self.processes[host] = GuestProcess(guest, pid)

    def request(self, host: str, method: str, url: str, body: str | None = None) -> tuple[int, bytes]:
        guest = self._guests.get(host)
        if guest is None:
            return super().request(host, method, url, body)
        try:
            return guest.http(str(SOCKET), method, url, body or "")
        except LabError as error:
            raise OSError(str(error)) from error

    def _configuration(self, host: str) -> dict[str, dict[str, Any]]:
        wanted = super()._configuration(host)
        for section, keys in SLOW.items():
            wanted[section] = {**keys, **wanted.get(section, {})}
        if host in self._guests and carrier_of(self.lab.plan, host) == VRF:
            wanted["routes"] = {"vrf": VRF, **wanted["routes"]}
        return wanted

    def clock_offset_s(self, host: str) -> float:
        return self._offset_s.get(host, 0.0)
