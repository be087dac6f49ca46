"""Every connected queue pair of this host: whose it is, where to, how far it has come, how long its transport waits.

The kernel's list (`rdma.nldev`) is looked at again and again; what it does not tell, an address and the timeouts, is
asked once over the program's own uverbs file, borrowed for the moment. No program is touched or slowed.

Two lists have to be joined: the kernel's knows queue pair numbers, a file knows handles. They agree on the peer's
number and the state. Where that fits two, neither is named: a wrong one must never be steered.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from rdma import uverbs
from rdma.borrowed import NotBorrowedError, borrowed, device_file, device_number, start_ticks
from rdma.counters.table import FAMILIES
from rdma.deadline import Deadline, deadline
from rdma.devices import devices
from rdma.nldev import Nldev, QueuePair
from rdma.posted import outstanding
from rdma.sysfs import ROOT
from rdma.uverbs import Queried

CONNECTED: Final = frozenset({"RC", "UC", "XRC_INI", "XRC_TGT"})
PSN_BITS: Final = 24
SILENT_S: Final = 0.1
"""A queue pair that has sent nothing new for this long is asked whether anything waits."""
AGAIN_S: Final = 1.0


class Place(msgspec.Struct, frozen=True):
    """Where to reach a queue pair: the nth of a program's files on the device, and the handle in it."""

    file: int
    handle: int


class Flow(msgspec.Struct, frozen=True):
    """One queue pair. `to`, `deadline`: None when the program's file could not be asked, `why` says so. `place`: None
    when not certain. `silent_s`, `received_s`: for how long it has sent, and received, nothing new; None while it was
    seen only once. `posted`: requests that wait meanwhile, None when that is not known or was not looked at;
    `again`: it was seen a moment ago to send something a second time, so something does wait for an answer."""

    qp: QueuePair
    program: str
    started: int
    to: Queried | None = None
    place: Place | None = None
    deadline: Deadline | None = None
    silent_s: float | None = None
    received_s: float | None = None
    posted: int | None = None
    again: bool = False
    why: str = ""

    @property
    def stands(self) -> bool:
        """It sends nothing new though something waits to be sent or answered."""
        waits = self.again if self.posted is None else self.posted > 0
        return self.qp.state == "RTS" and bool(self.silent_s) and waits


def ahead(before: int, after: int) -> int:
    """By how much a packet sequence number has moved on, in serial arithmetic of 24 bits; below 0 when it went back."""
    size = 1 << PSN_BITS
    step = (after - before) % size
    return step if step < size // 2 else step - size


def match(qps: Iterable[QueuePair], seen: Mapping[Place, Queried]) -> dict[int, Place]:
    """Queue pair number -> its handle, of those queue pairs of one program and device that can be told apart."""
    listed = list(qps)
    wanted = Counter((qp.rqpn, qp.state) for qp in listed)
    there = Counter((one.dest_qpn, one.state) for one in seen.values())
    at = {(one.dest_qpn, one.state): place for place, one in seen.items()}
    return {
        qp.lqpn: at[qp.rqpn, qp.state]
        for qp in listed
        if qp.rqpn is not None and wanted[qp.rqpn, qp.state] == 1 and there[qp.rqpn, qp.state] == 1
    }


class _Known(msgspec.Struct):
    psn: int
    moved_s: float
    rq_psn: int
    received_s: float
    again_s: float = -math.inf
    looks: int = 0
    to: Queried | None = None
    place: Place | None = None
    why: str = ""


Key = tuple[str, int, int, int]
"""Device, queue pair number, pid, the process's start."""


class FlowTable:
    """The flows of a host. `look()` about once a second, or as often as a deadline asks for."""

    def __init__(self, kernel: Nldev, root: Path = ROOT) -> None:
        self._kernel = kernel
        self._root = root
        self._known: dict[Key, _Known] = {}
        self._family: dict[str, str] = {}

    def look(self, now_s: float) -> list[Flow]:
        """Ask the kernel, and of new queue pairs the programs' files. RdmaNetlinkError when it cannot be asked."""
        found: list[tuple[Key, QueuePair]] = []
        for qp in self._kernel.queue_pairs():
            started = start_ticks(qp.pid) if qp.pid else None
            if qp.type in CONNECTED and started is not None and qp.state not in ("RESET", "INIT"):
                found.append(((qp.device, qp.lqpn, qp.pid, started), qp))
        known: dict[Key, _Known] = {}
        for key, qp in found:
            known[key] = self._moved(key, qp, now_s)
        self._known = known
        self._ask(found)
        return [self._flow(key, qp, now_s) for key, qp in found]

    def _moved(self, key: Key, qp: QueuePair, now_s: float) -> _Known:
        psn, rq_psn = qp.sq_psn or 0, qp.rq_psn or 0
        one = self._known.get(key)
        if one is None:
            return _Known(psn, now_s, rq_psn, now_s)
        one.looks += 1
        step = ahead(one.psn, psn)
        if step > 0:
            one.psn, one.moved_s, one.again_s = psn, now_s, -math.inf
        elif step < 0:  # a requester that sends again goes back first: that is no progress
            one.again_s = now_s
        if ahead(one.rq_psn, rq_psn) > 0:
            one.rq_psn, one.received_s = rq_psn, now_s
        return one

    def _ask(self, found: list[tuple[Key, QueuePair]]) -> None:
        """Whom nobody has asked yet, program by program."""
        owners = dict.fromkeys(
            (key[0], key[2], key[3]) for key, _ in found if self._known[key].to is None and not self._known[key].why
        )
        for device, pid, started in owners:
            of = [(key, qp) for key, qp in found if (key[0], key[2], key[3]) == (device, pid, started)]
            try:
                seen = self.query(device, pid, started)
            except (NotBorrowedError, OSError) as error:
                for key, _ in of:
                    self._known[key].why = str(error)
                continue
            places = match((qp for _, qp in of), seen)
            for key, qp in of:
                place = places.get(qp.lqpn)
                if place is None:
                    self._known[key].why = "another queue pair of its program looks the same from outside"
                else:
                    self._known[key].to, self._known[key].place = seen[place], place

    def ask_again(self, device: str) -> None:
        """Its table of addresses has changed: what a queue pair's index of its own address stands for is read anew."""
        for key, one in self._known.items():
            if key[0] == device:
                one.to, one.place, one.why = None, None, ""

    def query(self, device: str, pid: int, started: int) -> dict[Place, Queried]:
        """All queue pairs of a program on a device, as its own files tell. NotBorrowedError, OSError."""
        number = device_number(device, self._root)
        driver_id = uverbs.DRIVER_IDS.get(self.family(device))
        if number is None or driver_id is None:
            raise NotBorrowedError(f"{device}: its driver has no uverbs interface that is known here")
        with borrowed(pid, started, number) as files:
            return {
                Place(index, handle): uverbs.query(fd, handle, driver_id)
                for index, fd in enumerate(files)
                for handle in uverbs.handles(fd, driver_id)
            }

    def family(self, device: str) -> str:
        """The RDMA driver's name."""
        if device not in self._family:
            self._family = {one.name: FAMILIES.get(one.driver, one.driver) for one in devices(self._root)}
        return self._family.get(device, "")

    def _flow(self, key: Key, qp: QueuePair, now_s: float) -> Flow:
        one = self._known[key]
        silent_s = now_s - one.moved_s if one.looks else None
        posted = None
        if silent_s is not None and silent_s >= SILENT_S and self.family(qp.device) == "rxe":
            here = sum(k[0] == key[0] and k[2:] == key[2:] for k in self._known)
            posted = outstanding(qp.pid, device_file(qp.device, self._root), here)
        waits = deadline(one.to.timeout, one.to.retry_count, self.family(qp.device)) if one.to is not None else None
        return Flow(
            qp=qp, program=_program(qp.pid), started=key[3], to=one.to, place=one.place, deadline=waits,
            silent_s=silent_s, received_s=now_s - one.received_s if one.looks else None, posted=posted,
            again=now_s - one.again_s <= AGAIN_S, why=one.why,
        )  # fmt: skip


def _program(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
