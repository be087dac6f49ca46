"""Put faults on a lab and take them off again: within a millisecond, from any process, in any order.

What is in force is kept in `faults.json`; what the wire must do follows from it (`lab.netns.effects`). A change is the
difference of the two: one nftables transaction, one batch of raw rtnetlink requests (carrier must go at once), and
shapers through pyroute2, for which a few milliseconds are nothing.
"""

from __future__ import annotations

import os
import signal
import struct
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from lab.addressing import Plan
from lab.errors import LabError
from lab.faults import AnyFault, Dead, Delay, Flap, Freeze
from lab.netns import processes, relay, state
from lab.netns.effects import TABLE, Effects, change, counter, effects, is_counted, relayed
from lab.netns.nft import Nft
from lab.netns.session import Request, Session
from lab.netns.state import ActiveRecord, Faults, Stopped
from linkpass.wire import rtnl
from topology.model import Fabric

_IFF_UP = 1


class GoneError(LabError):
    """The lab was taken down meanwhile, maybe by another process."""


@dataclass(frozen=True, slots=True)
class ActiveFault:
    """A fault in force. `injected_at_s`: monotonic time just before the kernel was asked; `took_s`: until it had
    answered. `undo()` may be called more than once."""

    id: int
    fault: AnyFault
    injected_at_s: float
    took_s: float
    breaker: Breaker

    def undo(self) -> None:
        self.breaker.undo(self.id)

    def dropped(self) -> int:
        """Packets dropped by this fault so far (blackhole, loss, bucket; 0 for faults that need no rule)."""
        return self.breaker.dropped().get(self.id, 0)


@dataclass(frozen=True, slots=True)
class Step:
    """What leads from one set of faults to another. `shapes`: wire device -> bits/s, None for no shaper any more;
    `risen`: nodes of which a port gets its carrier back."""

    rules: str
    requests: list[Request]
    shapes: Mapping[str, int | None]
    risen: tuple[str, ...]
    cables: tuple[tuple[str, str, bool], ...]
    """(node, device, up) of ports that lose their carrier or get it back."""


@dataclass(frozen=True, slots=True)
class Wire:
    """How to reach the wire's namespace. `shape(device, bits/s or None)` limits what a device sends; `index`: of each
    device by its name. `pull(node, device, up)`: what else has to be told of a carrier (a guest's card). `relay(fault's
    number, (its device, device to send out of), delay)` starts one; it answers with pid and start time."""

    session: Session
    nft: Nft
    shape: Callable[[str, int | None], None]
    index: Mapping[str, int]
    pull: Callable[[str, str, bool], None]
    relay: Callable[[int, list[tuple[str, str]], float], tuple[int, int]]


class Breaker:
    """Changes the wire of one lab. `repair` is called with the nodes whose ports have carrier again."""

    def __init__(
        self,
        run_dir: Path,
        fabric: Fabric,
        plan: Plan,
        wire: Wire,
        members: Callable[[str], list[tuple[int, int]]],
        repair: Callable[[Iterable[str]], None],
    ) -> None:
        self._file = run_dir / "faults.json"
        self._run_dir = run_dir
        self._fabric = fabric
        self._plan = plan
        self._wire = wire
        self._members = members
        self._repair = repair
        self._flapping: dict[int, threading.Event] = {}
        self._drivers: list[threading.Thread] = []

    def active(self) -> tuple[ActiveRecord, ...]:
        return self._read().active

    def inject(self, fault: AnyFault, *, elsewhere: Callable[[int], tuple[int, int]] | None = None) -> ActiveFault:
        """Put a fault in force. A flapping link is driven by a thread of this process, unless `elsewhere` starts
        another process for it (given the fault's id, it answers with pid and start time)."""
        with self._locked():
            known = self._read()
            number = known.next_id
            victims = self._members(fault.where) if isinstance(fault, Freeze | Dead) else []
            record = ActiveRecord(
                id=number,
                fault=fault,
                injected_at_s=time.monotonic(),
                stopped=tuple(Stopped(*one) for one in victims) if isinstance(fault, Freeze) else (),
            )
            after = Faults(number + 1, (*known.active, record))
            step = self._step(known, after)
            # Written first: whoever finds a half-done fault can undo it.
            state.write(self._file, after)
            if isinstance(fault, Delay):
                record = self._relay(record, fault)
            started = time.monotonic()
            try:
                if isinstance(fault, Freeze | Dead):
                    processes.send(victims, signal.SIGSTOP if isinstance(fault, Freeze) else signal.SIGKILL)
                self._take(step)
            except BaseException:
                if isinstance(fault, Delay) and record.driver is not None:
                    relay.end(record.driver, 0.0)
                state.write(self._file, Faults(number + 1, known.active))
                raise
            took = time.monotonic() - started
            record = msgspec.structs.replace(record, injected_at_s=started)
            if isinstance(fault, Flap):
                if elsewhere is not None:
                    record = msgspec.structs.replace(record, driver=elsewhere(number))
                else:
                    self._start_flapping(number, fault, started)
            state.write(self._file, Faults(number + 1, (*known.active, record)))
        return ActiveFault(number, fault, started, took, self)

    def undo(self, number: int) -> bool:
        """Take a fault off; False when it is not in force (any more).

        A thread of another process that drives a flap ends by itself: it finds its fault gone at its next swing."""
        if (stop := self._flapping.pop(number, None)) is not None:
            stop.set()
        with suppress(GoneError), self._locked():
            known = self._read()
            record = next((one for one in known.active if one.id == number), None)
            if record is None:
                return False
            fault = record.fault
            if isinstance(fault, Flap) and record.driver is not None and record.driver[0] != os.getpid():
                processes.end([record.driver])
            after = Faults(known.next_id, tuple(one for one in known.active if one.id != number))
            self._take(self._step(known, after))
            if isinstance(fault, Delay) and record.driver is not None:
                relay.end(record.driver, fault.by_s)
            processes.send([(one.pid, one.started) for one in record.stopped], signal.SIGCONT)
            state.write(self._file, after)
            return True
        return False

    def undo_all(self) -> int:
        """Take every fault off; how many there were."""
        return sum(self.undo(record.id) for record in reversed(self.active()))

    def dropped(self) -> dict[int, int]:
        """Packets dropped by each fault in force."""
        counts = self._wire.nft.counters(TABLE)
        return {one.id: counts[counter(one.id)][0] for one in self.active() if counter(one.id) in counts}

    def swing(self, number: int, *, down: bool) -> bool:
        """Let a flapping link bite or rest. False when the fault is no longer in force."""
        with suppress(GoneError), self._locked():
            known = self._read()
            if all(one.id != number for one in known.active):
                return False
            after = Faults(
                known.next_id,
                tuple(msgspec.structs.replace(one, down=down) if one.id == number else one for one in known.active),
            )
            self._take(self._step(known, after))
            state.write(self._file, after)
            return True
        return False

    def drive(self, number: int, fault: Flap, first_down_s: float, stop: threading.Event) -> None:
        """Swing until stopped or the fault's time is over, on an absolute schedule; then take the fault off."""
        half_s = 0.5 / fault.hz
        half, end_s = 1, first_down_s + fault.for_s
        while True:
            half = max(
                half, int((time.monotonic() - first_down_s) / half_s)
            )  # starved or started late: skip, not catch up
            at_s = min(first_down_s + half * half_s, end_s)
            if stop.wait(max(0.0, at_s - time.monotonic())):
                return
            if at_s == end_s:
                self._flapping.pop(number, None)
                self.undo(number)
                return
            if not self.swing(number, down=half % 2 == 0):
                return
            half += 1

    def take_over(self, number: int) -> None:
        """Drive a flap that another process has put in force, until it is undone or over."""
        record = next((one for one in self.active() if one.id == number), None)
        if record is not None and isinstance(record.fault, Flap):
            self.drive(number, record.fault, record.injected_at_s, threading.Event())

    def close(self) -> None:
        """Flaps driven by this process end with it; none of their threads uses the wire afterwards."""
        for number in list(self._flapping):
            self.undo(number)
        for driver in self._drivers:
            driver.join()
        self._drivers.clear()

    def _relay(self, record: ActiveRecord, fault: Delay) -> ActiveRecord:
        """Its relay stands before the first packet is sent to it; a fault that cannot have one is not in force."""
        pairs = [(tap, out) for _, tap, out in relayed(record.id, fault, self._fabric, self._plan)]
        try:
            driver = self._wire.relay(record.id, pairs, fault.by_s)
        except BaseException:
            state.write(self._file, Faults(record.id + 1, self._read().active[:-1]))
            raise
        return msgspec.structs.replace(record, driver=driver)

    def _start_flapping(self, number: int, fault: Flap, started: float) -> None:
        stop = self._flapping[number] = threading.Event()
        name = f"flap {fault.where}"
        driver = threading.Thread(target=self.drive, args=(number, fault, started, stop), name=name, daemon=True)
        self._drivers = [one for one in self._drivers if one.is_alive()] + [driver]
        driver.start()

    def _locked(self) -> AbstractContextManager[object]:
        try:
            return state.locked(self._run_dir)
        except FileNotFoundError:
            raise GoneError(f"the lab of {self._run_dir} is not up", "linkpass lab up FILE") from None

    def _read(self) -> Faults:
        return state.read(self._file, Faults) or Faults()

    def _effects(self, faults: Faults) -> Effects:
        return effects(((one.id, one.fault) for one in faults.active if one.down), self._fabric, self._plan)

    def _step(self, known: Faults, after: Faults) -> Step:
        old, new = self._effects(known), self._effects(after)
        had, has = ({one.id for one in faults.active if is_counted(one.fault)} for faults in (known, after))
        risen = old.down - new.down
        ends = [end for wire in self._plan.wires for end in (wire.a, wire.b)]
        fallen = new.down - old.down
        shaped = sorted({*old.bps, *new.bps})
        return Step(
            rules=change(old, new, self._plan, sorted(has - had), sorted(had - has)),
            requests=[
                *(self._link(device, up=False) for device in sorted(fallen)),
                *(self._link(device, up=True) for device in sorted(risen)),
            ],
            shapes={device: new.bps.get(device) for device in shaped if old.bps.get(device) != new.bps.get(device)},
            risen=tuple(dict.fromkeys(end.node for end in ends if end.wire_device in risen)),
            cables=tuple(
                (end.node, end.device, end.wire_device in risen) for end in ends if end.wire_device in fallen | risen
            ),
        )

    def _take(self, step: Step) -> None:
        if step.rules:
            self._wire.nft.run(step.rules)
        self._wire.session.apply(step.requests)
        for node, device, up in step.cables:
            self._wire.pull(node, device, up)
        for device, bps in step.shapes.items():
            self._wire.shape(device, bps)
        self._repair(step.risen)

    def _link(self, device: str, *, up: bool) -> Request:
        """Set a device of the wire up or down (struct ifinfomsg, rtnetlink(7))."""
        body = struct.pack("=BxHiII", 0, 0, self._wire.index[device], _IFF_UP if up else 0, _IFF_UP)
        return Request(rtnl.RTM_NEWLINK, 0, body, f"device {device} {'up' if up else 'down'}")


def unknown_fault(number: str, active: Iterable[ActiveRecord]) -> LabError:
    ids = ", ".join(f"{one.id} ({one.fault})" for one in active) or "none"
    return LabError(f"no fault {number} is in force; in force: {ids}")
