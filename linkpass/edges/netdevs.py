"""Statistics and optical modules of this host's Ethernet ports, read about once a second in a thread.

The event loop only hands over and takes: each read may wait for the kernel's lock of network settings, for a driver's
firmware or for a module's bus, which takes milliseconds and has no bound of ours. A reading that is not done when the
next one is due is waited for; counters are compared over the time that really passed. Nothing is changed by it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import msgspec

from rdma.counters.evidence import Finding, Thresholds, figures, findings
from rdma.ethernet.evidence import figures_of, module_findings
from rdma.ethernet.module import Module
from rdma.ethernet.reading import physical
from rdma.ethernet.watch import Look, Netdevs
from rdma.sysfs import ROOT, Unknown

Seen = tuple[dict[str, Look], dict[tuple[str, str], Finding], dict[str, tuple[str, ...]]]
"""By device; by device and figure; what each device of interest lies on."""


class NetdevEdge:
    """`poll` takes what the last reading saw and begins the next, `snapshot` shows it."""

    def __init__(
        self,
        limits: Thresholds,
        netdevs: Netdevs,
        now_s: Callable[[], float],
        executor: Executor,
        root: Path = ROOT,
    ) -> None:
        """`executor` runs one thing at a time, and is shut down by `close`."""
        self._limits = limits
        self._now_s = now_s
        self._executor = executor
        self._root = root
        self._netdevs = netdevs
        """The thread's; here it is only passed on."""
        self._reading: Future[Seen] | None = None
        self._seen: dict[str, Look] = {}
        self._found: dict[tuple[str, str], Finding] = {}
        self._under: dict[str, tuple[str, ...]] = {}
        self.why = "not read yet"
        """Why there is nothing to show, or not all."""

    def close(self) -> None:
        """Does not wait: a reading that hangs in a driver is left behind."""
        self._executor.submit(self._netdevs.close)
        self._executor.shutdown(wait=False)

    def poll(self, devices: Iterable[str]) -> list[str]:
        """`devices`: those of interest; what a VLAN, bond or VRF lies on is read instead of it. A line for each finding
        that is new, and for each that is over."""
        lines = []
        if self._reading is not None:
            if not self._reading.done():
                return []
            lines = self._take(self._reading)
        how = os.sched_getscheduler(0), os.sched_getparam(0)
        self._reading = self._executor.submit(self._look, tuple(devices), *how)
        return lines

    def _look(self, devices: tuple[str, ...], policy: int, parameters: os.sched_param) -> Seen:
        """In the thread. It runs as the loop does: kept from running by a job, it could hold on to the interpreter."""
        if os.sched_getscheduler(0) != policy:
            try:
                os.sched_setscheduler(0, policy, parameters)
            except OSError:
                pass
        under = {device: tuple(physical(device, self._root)) for device in devices}
        looks = self._netdevs.look((one for ports in under.values() for one in ports), self._now_s)
        return looks, {(one.port, one.what): one for look in looks.values() for one in self._findings(look)}, under

    def _take(self, reading: Future[Seen]) -> list[str]:
        try:
            self._seen, found, self._under = reading.result()
        except OSError as error:  # no more open files
            self.why = f"Ethernet ports are not read: {error.strerror or error}"
            return []
        except Exception as error:  # noqa: BLE001 - what drivers and modules answer is not ours: none of it may end the reading
            self.why = f"Ethernet ports are not read: {type(error).__name__}: {error}"
            return []
        self.why = "" if self._seen else "no Ethernet port of an RDMA device or uplink"
        lines = [_told(one) for place, one in found.items() if place not in self._found]
        lines += [
            f"{port}: {what} is within its limit again" for port, what in self._found if (port, what) not in found
        ]
        self._found = found
        return lines

    def _findings(self, look: Look) -> Iterable[Finding]:
        yield from findings(look.window, self._limits, figures_of(look.window))
        if isinstance(look.module, Module):
            yield from module_findings(look.device, look.module, self._limits)

    def congested(self, device: str) -> Iterable[Finding]:
        """What the last reading found of congestion on what a device lies on."""
        ports = self._under.get(device, ())
        return (one for (port, _), one in self._found.items() if port in ports and one.kind == "congestion")

    def snapshot(self) -> list[dict[str, Any]]:
        """Plain data for people and for metrics. What is unknown is None or left out, its reason in `unknown`."""
        return [self._shown(look) for look in self._seen.values()]

    def _shown(self, look: Look) -> dict[str, Any]:
        told = figures(look.window, self._limits, figures_of(look.window))
        return {
            "name": look.device,
            "driver": look.driver,
            "totals": dict(look.totals),
            "figures": {name: None if isinstance(value, Unknown) else value for name, value in told.items()},
            "unknown": {part: str(why) for part, why in look.unknown.items()},
            "module": _module(look.module) if isinstance(look.module, Module) else None,
            "module_why": str(look.module) if isinstance(look.module, Unknown) else "",
            "findings": [msgspec.to_builtins(one) for place, one in self._found.items() if place[0] == look.device],
        }


def _module(module: Module) -> dict[str, Any]:
    """Each value that is unknown becomes None, with its reason in `unknown`."""
    unknown: dict[str, str] = {}
    shown = _plain(module, "", unknown)
    return {**shown, "unknown": unknown}


def _plain(struct: msgspec.Struct, prefix: str, unknown: dict[str, str]) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    for name in struct.__struct_fields__:
        value = getattr(struct, name)
        if isinstance(value, Unknown):
            unknown[prefix + name] = str(value)
            shown[name] = None
        elif isinstance(value, tuple):
            shown[name] = [_plain(one, f"{name}_{one.number}.", unknown) for one in value]
        else:
            shown[name] = msgspec.to_builtins(value)
    return shown


def _told(finding: Finding) -> str:
    return f"{finding.port}: {finding.says} ({finding.what} {finding.value:.3g}, limit {finding.limit:g})"
