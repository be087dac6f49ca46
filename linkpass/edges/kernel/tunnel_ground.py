"""What tunnels are in the kernel: devices, a rule and a table each; made, opened and removed, whoever has left them."""

from __future__ import annotations

import errno
import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from linkpass.edges.kernel.marks import MarkEdge
from linkpass.edges.kernel.routes import PROTOCOL
from linkpass.edges.kernel.sock import KernelRefusedError, RequestSocket
from linkpass.edges.kernel.space import Space
from linkpass.wire import nfnl, rtnl
from linkpass.wire import vxlan_links as links

PREFIX = "linkpass-"
END_NAME = f"{PREFIX}in"
PREFERENCE = 7600
"""Of our rules: before the main table's (32766), behind the local one's (0)."""
OUTER_METRIC = 1

_UNUSABLE = (errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTUNREACH)
_LACKING = (errno.EOPNOTSUPP, errno.EPROTONOSUPPORT, errno.EAFNOSUPPORT)
_OURS = re.compile(rf"{PREFIX}(in|\d{{1,5}})")


class NoTunnelsError(RuntimeError):
    """Tunnels cannot be had on this host; the text says why and what to do."""


class TunnelWay(NamedTuple):
    """An uplink as tunnels need it: `device` is its index."""

    device: int
    mtu: int
    gateway: str


@dataclass(frozen=True, slots=True)
class Tunnel:
    """A device of ours: what goes out by it leaves over `uplink` with the source port `port`."""

    port: int
    uplink: str
    way: TunnelWay
    index: int = 0

    @property
    def name(self) -> str:
        return f"{PREFIX}{self.port}"

    @property
    def mark(self) -> int:
        """Also the number of its table."""
        return nfnl.MARK | self.port


def refuse_taken(sock: RequestSocket, space: Space, port: int) -> None:
    """Somebody else's tunnels or program on our port: whose packets would be whose?"""
    ours = False
    for device in vxlans(sock):
        ours |= _OURS.fullmatch(device.name) is not None
        if not _OURS.fullmatch(device.name) and device.port == port:
            raise NoTunnelsError(
                f"UDP port {port} is that of the VXLAN device {device.name}: choose another tunnels.port"
            )
    if ours:
        return
    with space.inside(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind(("", port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            what = f"UDP port {port} is in use here (ss -ulnp tells by whom): choose another tunnels.port"
            raise NoTunnelsError(what) from error


def make_devices(sock: RequestSocket, space: Space, wanted: Iterable[links.Vxlan]) -> dict[str, int]:
    """Devices as they should be, up: name -> index. One without a wanted MTU (an end) may have any."""
    there = {one.name: one for one in devices(sock)}
    made = []
    for one in wanted:
        old = there.get(one.name)
        if old is not None and replace(old, index=0, up=False, mtu=one.mtu and old.mtu) == one and old.up:
            made.append(one)
            continue
        if old is not None:
            sock.change(rtnl.RTM_DELLINK, links.delete_link(old.index), 0, f"remove {one.name}")
        flags = rtnl.F_CREATE | rtnl.F_EXCL
        sock.change(rtnl.RTM_NEWLINK, links.new_vxlan(one), flags, f"tunnel device {one.name}")
        made.append(one)
    index = {one.name: one.index for one in devices(sock)}
    for one in made:
        _settle(sock, space, one.name, index[one.name])
        sock.change(rtnl.RTM_NEWLINK, links.set_up(index[one.name]), 0, f"{one.name} up (UDP port {one.port})")
    return index


def _settle(sock: RequestSocket, space: Space, name: str, index: int) -> None:
    """Settings of our own device: silent, and not taken for a spoofer's way. What comes out of a tunnel has the
    peer's address, to which the kernel's routes lead over the uplinks: the strict filter would drop it, and the
    loose one, too, of a device without any address (fib_validate_source, net/ipv4/fib_frontend.c)."""
    with space.inside():
        root = Path("/proc/sys/net")
        silent = root / f"ipv6/conf/{name}/disable_ipv6"
        if silent.exists():
            silent.write_text("1")
        filters = [root / f"ipv4/conf/{where}/rp_filter" for where in ("all", name)]
        if not any(int(one.read_text()) for one in filters):
            return
        filters[1].write_text("2")
    put = rtnl.F_CREATE | rtnl.F_REPLACE
    sock.change(rtnl.RTM_NEWADDR, links.placeholder(index), put, f"address of {name}")


def open_way(sock: RequestSocket, one: Tunnel) -> None:
    """Rule and table of a tunnel, each whether it is there or not."""
    put = rtnl.F_CREATE | rtnl.F_REPLACE
    what = f"routes of {one.name}"
    inner = links.everything(one.mark, over=one.index, protocol=PROTOCOL)
    outer = links.everything(
        one.mark, over=one.way.device, protocol=PROTOCOL, gateway=one.way.gateway, metric=OUTER_METRIC
    )
    sock.change(rtnl.RTM_NEWROUTE, inner, put, what)
    try:
        sock.change(rtnl.RTM_NEWROUTE, outer, put, what)
    except KernelRefusedError as error:  # the uplink is down: nothing gets through until it is laid again
        if error.errno not in _UNUSABLE:
            raise
    try:
        body = links.rule(one.mark, one.mark, PREFERENCE, PROTOCOL)
        sock.change(links.RTM_NEWRULE, body, rtnl.F_CREATE | rtnl.F_EXCL, f"rule of {one.name}")
    except KernelRefusedError as error:
        if error.errno != errno.EEXIST:
            raise


def remove(sock: RequestSocket, tunnels: Iterable[Tunnel]) -> None:
    """First the way in: what is marked goes by the main table from then on."""
    changes = []
    for one in tunnels:
        changes.append((links.RTM_DELRULE, links.rule(one.mark, one.mark, PREFERENCE, PROTOCOL), 0))
        outer = links.everything(
            one.mark, over=one.way.device, protocol=PROTOCOL, gateway=one.way.gateway, metric=OUTER_METRIC
        )
        changes.append((rtnl.RTM_DELROUTE, outer, 0))
        changes.append((rtnl.RTM_DELLINK, links.delete_link(one.index), 0))
    sock.change_many(changes)


def sweep_tunnels() -> list[str]:
    """Remove what an earlier run has left in this thread's namespace: table, rules, devices; in words."""
    sock = RequestSocket()
    sock.open()
    try:
        return [*_sweep_marks(), *sweep(sock)]
    finally:
        sock.close()


def _sweep_marks() -> list[str]:
    try:
        return MarkEdge(probe_port=0).sweep()
    except OSError as error:  # a kernel without nftables
        if error.errno not in _LACKING:
            raise
        return []


def sweep(sock: RequestSocket) -> list[str]:
    """The way in first."""
    removed = []
    for rule in rules(sock):
        if not sock.change_many([removal(rule)])[0][0]:
            removed.append(f"rule for mark {rule.mark:#x}")
    for answer in sock.dump(rtnl.RTM_GETROUTE, rtnl.AF_INET, protocol=PROTOCOL):
        route = rtnl.parse_route(answer.body)
        if route.protocol == PROTOCOL and route.table >> 16 == nfnl.MARK >> 16 and route.hops:
            (over,) = route.hops
            body = links.everything(
                route.table, over=over.index, protocol=PROTOCOL, gateway=over.gateway, metric=route.metric
            )
            sock.change_many([(rtnl.RTM_DELROUTE, body, 0)])
    for device in devices(sock):
        if not sock.change_many([(rtnl.RTM_DELLINK, links.delete_link(device.index), 0)])[0][0]:
            removed.append(f"tunnel device {device.name}")
    return removed


def vxlans(sock: RequestSocket) -> list[links.Vxlan]:
    found = (links.parse_vxlan(answer.body) for answer in sock.dump(rtnl.RTM_GETLINK))
    return [one for one in found if one is not None]


def devices(sock: RequestSocket) -> list[links.Vxlan]:
    return [one for one in vxlans(sock) if _OURS.fullmatch(one.name)]


def rules(sock: RequestSocket) -> list[links.Rule]:
    try:
        answers = sock.dump(links.RTM_GETRULE, rtnl.AF_INET)
    except KernelRefusedError as error:  # a kernel without rules
        if error.errno not in _LACKING:
            raise
        return []
    found = (links.parse_rule(answer.body) for answer in answers)
    return [one for one in found if one is not None and (one.protocol, one.mark >> 16) == (PROTOCOL, nfnl.MARK >> 16)]


def removal(rule: links.Rule) -> tuple[int, bytes, int]:
    return links.RTM_DELRULE, links.rule(rule.mark, rule.table, rule.preference, PROTOCOL), 0
