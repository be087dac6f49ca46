"""Datagrams from a queue pair of our own (UD): real RoCE packets, in the queue, class and address of the job's.

One `UdPort` is one queue pair on one port of a device. Everything is bounded and made once: slots of memory, work
requests (pyverbs leaks a few bytes with each that is made), address handles of the routes used last. What a route may
carry beside the address: traffic class (DSCP) and service level; a flow label only where the driver puts it on the
wire, which soft-RoCE does not (`prepare_ipv6_hdr` of drivers/infiniband/sw/rxe/rxe_net.c writes 0, also on 6.1): its
packets take the label of their bucket from nftables, as the job's do, by the queue pair's own UDP source port.

A datagram that cannot be sent (no route, an address that is gone) puts the whole queue pair into error on soft-RoCE:
`broken` says so, and the port has to be opened anew, under another number.
"""

from __future__ import annotations

import contextlib
import ipaddress
import math
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec

from rdma import gid_table, verbs
from rdma.allowance import Allowance
from rdma.completions import Completion, Completions, make
from rdma.devices import Gid

BYTES: Final = 128
"""Of every payload."""
GRH_BYTES: Final = 40
"""Before each payload that is received; of IPv4 the last 20 hold the header (InfiniBand annex A17.4.5.2)."""
RECEIVES: Final = 512
"""Datagrams that may wait to be read: a quarter of a second of the most that a host may be sent by default."""
SENDS: Final = 64
ROUTES: Final = 1024
"""Handles that are kept: more than a host asks, or each question would make one anew."""
NO_WAY_S: Final = 10.0
NO_WAY_MAX_S: Final = 640.0
"""A route without a handle is not tried again for so long; twice as long each time."""
TRY_AGAIN_SHARE: Final = 1 / 100
"""Of the time, for routes that had none before: they take nothing from those that are new."""
_STRIDE: Final = 256


class Route(msgspec.Struct, frozen=True):
    """Where to, and as what. `gid`: as an IPv6 address; `sgid_index`: of our own, which may move (`Gid`)."""

    gid: str
    sgid_index: int
    traffic_class: int = 0
    sl: int = 0
    flow_label: int = 0
    hop_limit: int = 64


class Arrived(NamedTuple):
    """`source`, `target`: addresses of 16 bytes, and the traffic class, from the packet itself; `at_s`: by the port's
    clock."""

    payload: bytes
    source: bytes
    target: bytes
    source_qpn: int
    at_s: float
    traffic_class: int


class Left(NamedTuple):
    """A datagram that has left: what `send` returned, and when, by the port's clock."""

    token: int
    at_s: float


class UdPort:
    """`open`, then `poll` whenever `fileno` is readable (or, when it is None, often). Used by one thread."""

    def __init__(self, device: str, port: int = 1, clock: Callable[[], float] = time.monotonic) -> None:
        self.device, self.port, self._clock = device, port, clock
        self.qpn = self.qkey = 0
        self.broken = ""
        """Why it has to be opened anew; empty while it works."""
        self._context: Any = None
        self._pyverbs: Any = None
        self._parts: list[Any] = []
        """What has to be closed, the last first."""
        self._completions: Completions | None = None
        self._pair: Any = None
        self._memory: Any = None
        self._pd: Any = None
        self._receives: list[Any] = []
        self._sends: list[Any] = []
        self._free: deque[int] = deque()
        self._token_of: dict[int, int] = {}
        self._next_token = 0
        self._handles: OrderedDict[Route, Any] = OrderedDict()
        self._no_way: dict[Route, tuple[float, float]] = {}
        """Routes that had no handle -> until when they are not tried (`clock`), and how long that pause is."""
        self._making, self._again = Allowance(), Allowance(TRY_AGAIN_SHARE)

    # life
    def open(self) -> None:
        """Raises VerbsError."""
        self.broken = ""
        self._pyverbs = verbs.load()
        self._context = verbs.open_device(self.device)
        self._parts = [self._context]
        try:
            self._make()
        except Exception as error:
            self.close()
            raise verbs.VerbsError(f"no datagrams over {self.device}/{self.port}: {error}") from error

    def _make(self) -> None:
        v, e = self._pyverbs, self._pyverbs.enums
        self._pd = v.pd.PD(self._context)
        self._completions = make(v, self._context, RECEIVES + SENDS)
        self._memory = v.mr.MR(self._pd, (RECEIVES + SENDS) * _STRIDE, e.IBV_ACCESS_LOCAL_WRITE)
        capacity = v.qp.QPCap(max_send_wr=SENDS, max_recv_wr=RECEIVES, max_send_sge=1, max_recv_sge=1)
        queue = self._completions.queue
        first = v.qp.QPInitAttr(qp_type=e.IBV_QPT_UD, scq=queue, rcq=queue, cap=capacity)
        self._pair = v.qp.QP(self._pd, first)
        self._parts = [self._context, self._pd, self._completions, self._memory, self._pair]
        wanted = v.qp.QPAttr(port_num=self.port)
        wanted.qkey = self.qkey = secrets.randbits(31)  # with the highest bit set it would be a privileged one
        self._pair.to_rts(wanted)
        self.qpn = self._pair.qp_num
        flags = e.IBV_SEND_SIGNALED | e.IBV_SEND_SOLICITED
        for number in range(RECEIVES + SENDS):
            received = number < RECEIVES
            size = GRH_BYTES + BYTES if received else BYTES
            piece = v.wr.SGE(self._memory.buf + number * _STRIDE, size, self._memory.lkey)
            if received:
                self._receives.append(v.wr.RecvWR(wr_id=number, num_sge=1, sg=[piece]))
                self._pair.post_recv(self._receives[number])
            else:
                self._sends.append(v.wr.SendWR(wr_id=number, num_sge=1, sg=[piece], send_flags=flags))
                self._free.append(number - RECEIVES)

    def close(self) -> None:
        """Safe to call twice; whoever waits for the descriptor stops before."""
        parts, self._parts = [*self._parts, *self._handles.values()], []
        self._handles.clear()
        for part in reversed(parts):
            with contextlib.suppress(Exception):  # of a device that is gone
                part.close()
        self._completions = self._pair = self._memory = self._pd = self._context = None
        self._receives.clear()
        self._sends.clear()
        self._free.clear()
        self._token_of.clear()
        self.qpn = 0

    # addresses
    def gids(self) -> tuple[Gid, ...]:
        """Of this port, read now. VerbsError when the device has gone."""
        return gid_table.read(self._context).get(self.port, ())

    def forget_routes(self) -> None:
        """Our own addresses have moved: handles of routes hold on to the old ones. What their making may cost is not
        forgotten: a port that flaps would pay it anew each time."""
        for handle in self._handles.values():
            with contextlib.suppress(Exception):
                handle.close()
        self._handles.clear()
        self._no_way = dict.fromkeys(self._no_way, (-math.inf, NO_WAY_S / 2))

    # datagrams
    @property
    def stamped(self) -> bool:
        """Whether times are the device's."""
        return self._completions is not None and self._completions.fileno() is None

    def fileno(self) -> int | None:
        return self._completions.fileno() if self._completions is not None else None

    def now_s(self) -> float:
        """The port's clock: CLOCK_MONOTONIC, or the device's own where completions carry it."""
        return self._completions.now_s() if self._completions is not None else time.monotonic()

    def send(self, payload: bytes, route: Route, qpn: int, qkey: int) -> int | None:
        """Post one datagram of BYTES. A number for it; None when it cannot be sent now (all slots taken, no such
        address, broken, or too much time has gone into new routes: `Allowance`)."""
        if not self._free or self.broken or len(payload) != BYTES:
            return None
        handle = self._handle(route)
        if handle is None:
            return None
        slot = self._free.popleft()
        self._memory.write(payload, BYTES, (RECEIVES + slot) * _STRIDE)
        request = self._sends[slot]
        request.set_wr_ud(handle, qpn, qkey)
        try:
            self._pair.post_send(request)
        except self._pyverbs.pyverbs_error.PyverbsError as error:
            self._free.append(slot)
            self.broken = f"a datagram was refused: {error}"
            return None
        self._next_token += 1
        self._token_of[slot] = self._next_token
        return self._next_token

    def poll(self) -> tuple[list[Left], list[Arrived]]:
        """What has left and what has arrived since the last call; nothing once the device has gone."""
        left: list[Left] = []
        arrived: list[Arrived] = []
        if self._completions is None:
            return left, arrived
        try:
            for one in self._completions.poll():
                self._take(one, left, arrived)
        except self._pyverbs.pyverbs_error.PyverbsError as error:
            self.broken = self.broken or f"completions cannot be read: {error}"
        return left, arrived

    def _take(self, one: Completion, left: list[Left], arrived: list[Arrived]) -> None:
        if one.status:
            self.broken = self.broken or f"a completion has status {one.status}"
        if one.number >= RECEIVES:
            slot = one.number - RECEIVES
            token = self._token_of.pop(slot, 0)
            self._free.append(slot)
            if not one.status:
                left.append(Left(token, one.at_s))
        elif not one.status:
            data = self._memory.read(one.length, one.number * _STRIDE)
            self._pair.post_recv(self._receives[one.number])
            source, target, traffic_class = header_of(data[:GRH_BYTES])
            arrived.append(Arrived(data[GRH_BYTES:], source, target, one.source_qpn, one.at_s, traffic_class))

    def _handle(self, route: Route) -> Any:
        """An address handle; None when our address is not there, or the peer's cannot be resolved."""
        handle = self._handles.get(route)
        if handle is not None:
            self._handles.move_to_end(route)
            return handle
        begun_s = self._clock()
        until_s, pause_s = self._no_way.get(route, (-math.inf, NO_WAY_S / 2))
        allowance = self._again if route in self._no_way else self._making
        if begun_s < until_s or not allowance.left(begun_s):
            return None
        addr = self._pyverbs.addr
        way = addr.GlobalRoute(
            dgid=addr.GID(ipaddress.IPv6Address(route.gid).exploded), sgid_index=route.sgid_index,
            flow_label=route.flow_label, hop_limit=route.hop_limit, traffic_class=route.traffic_class,
        )  # fmt: skip
        try:
            handle = addr.AH(self._pd, attr=addr.AHAttr(gr=way, is_global=1, port_num=self.port, sl=route.sl))
        except self._pyverbs.pyverbs_error.PyverbsError:
            if len(self._no_way) >= ROUTES:
                self._no_way.clear()
            pause_s = min(2 * pause_s, NO_WAY_MAX_S)
            self._no_way[route] = self._clock() + pause_s, pause_s
            return None
        finally:
            allowance.spend(begun_s, self._clock())
        self._no_way.pop(route, None)
        self._handles[route] = handle
        if len(self._handles) > ROUTES:  # more than slots: nothing is under way over the oldest
            _, old = self._handles.popitem(last=False)
            old.close()
        return handle


def header_of(header: bytes) -> tuple[bytes, bytes, int]:
    """Source, target and traffic class in the 40 bytes before a datagram: an IPv6 header, or an IPv4 one at their
    end."""
    if header[0] >> 4 == 6:
        return header[8:24], header[24:40], int.from_bytes(header[:2], "big") >> 4 & 0xFF
    mapped = bytes(10) + b"\xff\xff"
    return mapped + header[32:36], mapped + header[36:40], header[21]
