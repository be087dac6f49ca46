"""What this host knows of its flows and their addresses, for whoever agrees on moves (`rdma.move_desk.Ground`)."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rdma import drivers, uverbs
from rdma.borrowed import NotBorrowedError, borrowed, device_number
from rdma.devices import address_of
from rdma.flows import Flow
from rdma.move_desk import Ends, Pair
from rdma.remote_qp import RefusedError, Target
from rdma.uverbs import GidEntry

GIDS_S: Final = 5.0
"""A device's addresses are asked for again after so long. A move looks its own up anew."""


@dataclass(frozen=True, slots=True)
class Known:
    """What other edges know. `flows`: as they were seen last; `family`: of a device; `uplink`: over which packets from
    an own address to another leave (empty: none of ours); `trusted`: uplinks that nothing speaks against; `ask_again`:
    told that a queue pair (device, number) has another address."""

    flows: Callable[[], Iterable[Flow]]
    family: Callable[[str], str]
    uplink: Callable[[str, str], str]
    trusted: Callable[[], Iterable[str]]
    ask_again: Callable[[str, int], None]


class FlowGround:
    """Answers at once; asks a program's file for its device's addresses where it must."""

    def __init__(self, known: Known, root: Path, clock: Callable[[], float]) -> None:
        self._known, self._root, self._clock = known, root, clock
        self._tables: dict[str, tuple[float, list[GidEntry]]] = {}
        """Device -> its addresses, and until when they are taken for known: a job has hundreds of queue pairs."""
        self.leaving: set[str] = set()
        """Uplinks that flows are being taken off."""

    def find(self, own: str, peer: str, qpn: int, peer_qpn: int) -> Ends | str:
        """The flow of these numbers and addresses, or why it cannot be moved."""
        for flow in self._known.flows():
            if (flow.qp.lqpn, flow.qp.rqpn) == (qpn, peer_qpn) and flow.to is not None:
                ends = ends_of(flow)
                if (ends.own, ends.peer) == (own, peer):
                    return self.movable(flow) or ends
        return f"no queue pair {qpn} with this peer is known there"

    def pair(self, ends: Ends, offered: tuple[str, ...]) -> Pair | str:
        """The most alike pair of addresses (rails are subnets) that leads over an uplink to be trusted."""
        flow = self.flow(ends)
        if flow is None:
            return "the queue pair is gone"
        found = [Pair(own, peer) for own in self.others(flow) for peer in offered if _alike(own, peer)]
        found.sort(key=lambda pair: -_common_bits(pair.own, pair.peer))
        whys = {pair: self.refused(pair) for pair in found}
        good = [pair for pair, why in whys.items() if not why]
        return good[0] if good else "; ".join(dict.fromkeys(whys.values())) or "its device has no other address there"

    def refused(self, to: Pair) -> str:
        """Why this pair is not to be used; empty: it may be."""
        uplink = self._known.uplink(to.own, to.peer)
        if not uplink:
            return f"no uplink leads to {to.peer}"
        if uplink in self.leaving or uplink not in self._known.trusted():
            return f"{to.peer} is reached over {uplink}, which is not to be used now"
        return ""

    def over(self, uplink: str) -> list[Flow]:
        """Flows whose packets leave over it."""
        known = [flow for flow in self._known.flows() if flow.own and flow.peer]
        ways = {(flow.source, flow.peer) for flow in known}
        here = {way for way in ways if self._known.uplink(*way) == uplink}
        return [flow for flow in known if (flow.source, flow.peer) in here]

    def movable(self, flow: Flow) -> str:
        """Why it cannot be moved whatever the addresses; empty: it can."""
        if why := drivers.of(self._known.family(flow.qp.device)).refuses_move():
            return why
        if flow.place is None or not flow.own:
            return flow.why or "it is not known well enough"
        return "" if flow.qp.state == "RTS" else f"it only answers (state {flow.qp.state}) and cannot be stopped"

    def listens(self) -> set[str]:
        """Addresses that flows of drivers that allow moves send from, and those that they could send from: a flow that
        cannot be moved can at least be refused."""
        return {
            address
            for flow in self._known.flows()
            if flow.own and not drivers.of(self._known.family(flow.qp.device)).refuses_move()
            for address in (flow.source, *self.others(flow))
            if not ipaddress.ip_address(address).is_link_local
        }

    def others(self, flow: Flow) -> list[str]:
        """Addresses of its device that it could send from instead: of its own kind, and routed."""
        rows = self._gids(flow)
        mine = next(
            (one for one in rows if flow.to and (one.index, one.gid) == (flow.to.to.sgid_index, flow.own)), None
        )
        if mine is None:
            return []
        return [
            address_of(one.gid) for one in rows
            if (one.type, one.port) == (mine.type, mine.port) and one.gid != mine.gid and _alike(one.gid, mine.gid)
            and not ipaddress.IPv6Address(one.gid).is_link_local
        ]  # fmt: skip

    def flow(self, ends: Ends) -> Flow | None:
        found = [flow for flow in self._known.flows() if flow.to is not None and ends_of(flow) == ends]
        return found[0] if len(found) == 1 else None

    def target(self, ends: Ends) -> tuple[Target, str]:
        """What is to be steered, and its device. Raises RefusedError."""
        flow = self.flow(ends)
        if flow is None:
            raise RefusedError("the queue pair is gone")
        number = device_number(flow.qp.device, self._root)
        if number is None:
            raise RefusedError(f"{flow.qp.device} has no uverbs device")
        return Target.of(flow, self._known.family(flow.qp.device), number), flow.qp.device

    def moved(self, device: str, qpn: int) -> None:
        self._known.ask_again(device, qpn)

    def _gids(self, flow: Flow) -> list[GidEntry]:
        device, now_s = flow.qp.device, self._clock()
        until_s, rows = self._tables.get(device, (0.0, []))
        if now_s >= until_s:
            rows = self._asked(flow)
            self._tables[device] = now_s + GIDS_S, rows
        return rows

    def _asked(self, flow: Flow) -> list[GidEntry]:
        number = device_number(flow.qp.device, self._root)
        driver_id = uverbs.DRIVER_IDS.get(self._known.family(flow.qp.device))
        if number is None or driver_id is None:
            return []
        try:
            with borrowed(flow.qp.pid, flow.started, number) as files:
                return uverbs.gid_table(files[0], driver_id) if files else []
        except (NotBorrowedError, OSError):
            return []


def ends_of(flow: Flow) -> Ends:
    """Of a flow whose addresses are known."""
    return Ends(flow.name, flow.qp.device, flow.qp.lqpn, flow.qp.rqpn or 0, flow.source, flow.peer)


def _alike(one: str, other: str) -> bool:
    return ("." in one) == ("." in other)


def _common_bits(one: str, other: str) -> int:
    a, b = ipaddress.ip_address(one), ipaddress.ip_address(other)
    return a.max_prefixlen - (int(a) ^ int(b)).bit_length()
