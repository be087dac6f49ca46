"""Every connected queue pair of this host: whose it is, where to, how far it has come, how long its transport waits.

The kernel's list (`rdma.nldev`) is looked at again and again; what it does not tell, an address and the timeouts, is
asked over the program's own uverbs file, borrowed for the moment (`rdma.asking`): once, and again after growing pauses
where it could not be had. The program is neither stopped nor changed. But both questions are answered by the driver,
mlx5's by its firmware, with one command for each queue pair, which its program's own commands may have to wait for.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from pathlib import Path
from typing import Final

import msgspec

from rdma import uverbs
from rdma.asking import UNCONNECTED, Seen, ask, why_not
from rdma.asking import Place as Place
from rdma.asking import match as match
from rdma.borrowed import NotBorrowedError, borrowed, device_file, device_number
from rdma.counters.table import FAMILIES
from rdma.deadline import Deadline, deadline
from rdma.devices import address_of, driver_of
from rdma.nldev import Bound, Nldev, QueuePair
from rdma.owners import Owner, Owners
from rdma.posted import outstanding
from rdma.program import program
from rdma.resent import ASKED_S, RETRIES, Number, Resent, Totals, Went, only_one
from rdma.sysfs import ROOT, read_number
from rdma.uverbs import Queried

CONNECTED: Final = frozenset({"RC", "UC", "XRC_INI", "XRC_TGT"})
PSN_BITS: Final = 24
SILENT_S: Final = 0.1
"""A queue pair that has sent nothing new for this long is asked whether anything waits."""
AGAIN_S: Final = 1.0
ASK_AGAIN_S: Final = (1.0, 60.0)
"""What a program's file did not tell is asked for again after the first, then after twice as long, up to the second."""
NOT_FOUND: Final = "the thread that made it has ended, or is in another PID namespace: its program cannot be found"


class Flow(msgspec.Struct, frozen=True):
    """One queue pair. `to`, `deadline`: None when the program's file could not be asked, `why` says so. `own`: the
    address that it sends from, empty when not known; `place`: None when not certain. `silent_s`, `received_s`: for how
    long it has sent, and received, nothing new; None while it was seen only once. `posted`: requests that wait
    meanwhile, None when that is not known or was not looked at; `again`: it was seen a moment ago to send something a
    second time, so something does wait for an answer. `qp.pid` is the process, 0 where it cannot be found; `may_be`:
    addresses that it may send to, where which one is not certain. `went`: what it has sent since the look before, None
    where that is not known."""

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
    own: str = ""
    may_be: tuple[str, ...] = ()
    went: Went | None = None

    @property
    def name(self) -> str:
        """As people and the journal call it."""
        who = f"{self.program or 'a program'} (pid {self.qp.pid})" if self.qp.pid else "a program that is not known"
        return f"{who}, queue pair {self.qp.lqpn} of {self.qp.device}"

    @property
    def source(self) -> str:
        """The address that it sends from; empty while it is not known."""
        return address_of(self.own)

    @property
    def peer(self) -> str:
        """The address that it sends to; empty while it is not known."""
        return address_of(self.to.to.gid) if self.to is not None else ""

    @property
    def peers(self) -> tuple[str, ...]:
        """`peer`, or all addresses that it may be."""
        return (self.peer,) if self.peer else self.may_be

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


class _Known(msgspec.Struct):
    qp: QueuePair
    psn: int
    moved_s: float
    rq_psn: int
    received_s: float
    again_s: float = -math.inf
    looks: int = 0
    to: Queried | None = None
    own: str = ""
    place: Place | None = None
    why: str = ""
    may_be: tuple[str, ...] = ()
    ask_s: float = -math.inf
    """When to ask for what is not known."""
    pause_s: float = ASK_AGAIN_S[0]

    def put_off(self, why: str, now_s: float, may_be: tuple[str, ...] = ()) -> None:
        self.why, self.may_be = why, may_be
        self.ask_s, self.pause_s = now_s + self.pause_s, min(2 * self.pause_s, ASK_AGAIN_S[1])

    def forget(self) -> None:
        """Its address."""
        self.to, self.place, self.own, self.why, self.may_be = None, None, "", "", ()
        self.ask_s, self.pause_s = -math.inf, ASK_AGAIN_S[0]


Key = tuple[str, int, Owner]
"""Device, queue pair number, whose it is."""
Program = tuple[str, Owner]


class FlowTable:
    """The flows of a host. `look()` about once a second, or as often as a deadline asks for. Used by one thread at a
    time: what it asks may wait for a driver's firmware."""

    def __init__(self, kernel: Nldev, root: Path = ROOT) -> None:
        self._kernel = kernel
        self._root = root
        self._owners = Owners()
        self._known: dict[Key, _Known] = {}
        self._family: dict[str, str] = {}
        self._resent = Resent()
        self._bound_s = -math.inf
        self.unknown: dict[str, str] = {}
        """Devices of which the last look did not see all -> why."""

    def look(self, now_s: float) -> list[Flow]:
        """Ask the kernel, and of new queue pairs the programs' files. RdmaNetlinkError when it cannot be asked.

        Flows of a device whose list broke off are kept, and say so: not listed is not ended there."""
        listing = self._kernel.listing()
        self.unknown = listing.unknown
        here = {(qp.device, qp.lqpn) for qp in listing.queue_pairs}
        known: dict[Key, _Known] = {}
        for qp, owner in self._owners.of(listing.queue_pairs, self.unknown):
            if qp.type in CONNECTED and qp.state not in UNCONNECTED:
                qp = msgspec.structs.replace(qp, pid=owner.pid)
                known[qp.device, qp.lqpn, owner] = self._moved((qp.device, qp.lqpn, owner), qp, now_s)
        kept = {
            key: one
            for key, one in self._known.items()
            if key[0] in self.unknown and key[:2] not in here and self._owners.lives(key[2])
        }
        self._known = {**known, **kept}
        programs: dict[Program, list[_Known]] = defaultdict(list)
        for (device, _, owner), one in known.items():
            programs[device, owner].append(one)
        for of, ones in programs.items():
            self._ask(of, ones, now_s)
        names = {pid: program(pid) if pid else "" for pid in {owner.pid for _, _, owner in self._known}}
        count = Counter((device, owner) for device, _, owner in self._known)
        flows = [self._flow(key, one, now_s, names, count) for key, one in known.items()]
        return self._with_went(flows, listing.queue_pairs, now_s) + [
            self._unseen(key, one, names) for key, one in kept.items()
        ]

    def _moved(self, key: Key, qp: QueuePair, now_s: float) -> _Known:
        one = self._known.get(key)
        if one is None:
            return _Known(qp, qp.sq_psn or 0, now_s, qp.rq_psn or 0, now_s)
        one.looks += 1
        step = ahead(one.psn, qp.sq_psn or 0)
        if step > 0:
            one.psn, one.moved_s, one.again_s = qp.sq_psn or 0, now_s, -math.inf
        elif step < 0:  # a requester that sends again goes back first: that is no progress
            one.again_s = now_s
        if ahead(one.rq_psn, qp.rq_psn or 0) > 0:
            one.rq_psn, one.received_s = qp.rq_psn or 0, now_s
        one.qp = qp
        return one

    def _ask(self, of: Program, ones: list[_Known], now_s: float) -> None:
        """A program's file, where something is not known that may be asked for now."""
        device, owner = of
        wanted = [one for one in ones if one.place is None]
        if not owner.pid:
            for one in wanted:
                one.why = NOT_FOUND
            return
        if all(one.ask_s > now_s for one in wanted):
            return
        try:
            seen = self.query(device, owner.pid, owner.started)
        except (NotBorrowedError, OSError) as error:
            for one in wanted:
                one.put_off(str(error), now_s)
            return
        qps = [one.qp for one in ones]
        places, whys = match(qps, seen.queried), why_not(qps, seen)
        for one in wanted:
            place = places.get(one.qp.lqpn)
            if place is None:
                one.put_off(whys[one.qp.lqpn], now_s, seen.peers(one.qp))
            else:
                one.forget()
                one.to, one.place, one.own = seen.queried[place], place, seen.own(seen.queried[place])

    def query(self, device: str, pid: int, started: int) -> Seen:
        """What a program's own files tell of its queue pairs on a device. NotBorrowedError, OSError."""
        number = device_number(device, self._root)
        driver_id = uverbs.DRIVER_IDS.get(self.family(device))
        if number is None or driver_id is None:
            raise NotBorrowedError(f"{device}: its driver has no uverbs interface that is known here")
        with borrowed(pid, started, number) as files:
            return ask(files, driver_id)

    def ask_again(self, device: str, qpn: int | None = None) -> None:
        """Addresses of a device's flows, or of one of them, are others now: they are asked anew at the next look."""
        for key, one in self._known.items():
            if key[0] == device and qpn in (None, key[1]):
                one.forget()

    def family(self, device: str) -> str:
        """The RDMA driver's name."""
        if device not in self._family:
            driver = driver_of(self._root, device)
            if not driver:
                return ""
            self._family[device] = FAMILIES.get(driver, driver)
        return self._family[device]

    def _flow(self, key: Key, one: _Known, now_s: float, names: dict[int, str], count: Counter[Program]) -> Flow:
        device, _, owner = key
        silent_s = now_s - one.moved_s if one.looks else None
        posted = None
        alone = count[device, owner] == 1 and owner.pid  # of several, which queue is whose cannot be told
        if silent_s is not None and silent_s >= SILENT_S and alone and self.family(device) == "rxe":
            posted = outstanding(owner.pid, device_file(device, self._root), 1)
        waits, odd = self._deadline(device, one.to)
        return Flow(
            qp=one.qp, program=names[owner.pid], started=owner.started, to=one.to, own=one.own, place=one.place,
            deadline=waits, silent_s=silent_s, received_s=now_s - one.received_s if one.looks else None, posted=posted,
            again=now_s - one.again_s <= AGAIN_S, why=one.why or odd, may_be=one.may_be,
        )  # fmt: skip

    def _with_went(self, flows: list[Flow], listed: list[QueuePair], now_s: float) -> list[Flow]:
        """With what they have sent, and sent again."""
        family = {device: self.family(device) for device in {flow.qp.device for flow in flows}}
        idle = {(flow.qp.device, flow.qp.lqpn) for flow in flows if flow.posted == 0}
        whole = [qp for qp in listed if qp.device not in self.unknown]
        bound: dict[str, list[Bound]] = {}
        if now_s >= self._bound_s + ASKED_S:
            self._bound_s = now_s
            asked = ((device, self._kernel.bound(device)) for device, of in family.items() if of in RETRIES)
            bound = {device: found for device, found in asked if found is not None}
        pairs: dict[Number, QueuePair] = {(flow.qp.device, flow.qp.lqpn): flow.qp for flow in flows}
        totals = {device: self._totals(device) for device, of in family.items() if of == "rxe"}
        went = self._resent.look(now_s, pairs, family, totals, only_one(whole, idle), bound)
        return [msgspec.structs.replace(flow, went=went.get((flow.qp.device, flow.qp.lqpn))) for flow in flows]

    def _totals(self, device: str) -> Totals:
        """Of soft-RoCE, which has one port."""
        files = self._root / "class/infiniband" / device / "ports/1/hw_counters"
        return Totals(read_number(files / "completer_retry_err"), read_number(files / "rcvd_rnr_err"))

    def _unseen(self, key: Key, one: _Known, names: dict[int, str]) -> Flow:
        """One that was there before, of a device that does not tell of all now."""
        waits, _ = self._deadline(key[0], one.to)
        return Flow(
            qp=one.qp, program=names[key[2].pid], started=key[2].started, to=one.to, own=one.own, place=one.place,
            deadline=waits, why=self.unknown[key[0]], may_be=one.may_be,
        )  # fmt: skip

    def _deadline(self, device: str, to: Queried | None) -> tuple[Deadline | None, str]:
        """How long its transport waits, and why that is not known."""
        try:
            return deadline(to.timeout, to.retry_count, self.family(device)) if to is not None else None, ""
        except ValueError:
            assert to is not None
            return None, f"its driver tells timeout {to.timeout} and {to.retry_count} retries, which there are not"
