"""What can move a flow, and why not the rest: for people, and for whoever steers. Pure."""

from __future__ import annotations

import os
from collections.abc import Callable

import msgspec

from rdma import mlx5
from rdma.drivers import Driver
from rdma.flows import Flow


class Setting(msgspec.Struct, frozen=True):
    """What the daemon may and can do here. `labels`, `routes`: rungs 1 and 2, empty, or why not; `vrf`: name of the VRF
    device that it steers in; `device`: RDMA device -> its network devices; `live_qps`: why queue pairs are not moved,
    empty when they may be. `ways`: the uplinks that routes to an address can choose from. `kernel`: uname(1).
    `unproven`: as in `Driver.refuses_port`."""

    labels: str
    routes: str
    vrf: str
    device: dict[str, tuple[str, ...]]
    live_qps: str
    ways: Callable[[str], tuple[str, ...]]
    kernel: str = os.uname().release
    unproven: bool = False


def rungs(flow: Flow, driver: Driver, setting: Setting) -> dict[str, str]:
    """`label`, `route`, `planned`, `port` -> empty when it can move this flow, else why not."""
    return {
        "label": _label(flow, driver, setting),
        "route": _route(flow, driver, setting),
        "planned": _planned(flow, driver, setting),
        "port": _port(flow, driver, setting),
    }


def _label(flow: Flow, driver: Driver, setting: Setting) -> str:
    if driver.label != "tried":
        return f"{driver.name}: {driver.why}"
    if flow.to is None:
        return flow.why or "its peer is not known"
    if "." in flow.to.to.gid:
        return "IPv4 has no flow label: use the IPv6 GID"
    return setting.labels


def _route(flow: Flow, driver: Driver, setting: Setting) -> str:
    if driver.route != "tried":
        return f"{driver.name}: {driver.why}"
    under = setting.device.get(flow.qp.device, ())
    if not setting.vrf or setting.vrf not in under:
        return f"it lies on {', '.join(under) or 'a device that is not known'}: under a VRF it would follow the routes"
    if setting.routes:
        return setting.routes
    ways = setting.ways(flow.peer) if flow.peer else ()
    if len(ways) > 1:
        return ""
    return f"only {ways[0]} leads to its peer" if ways else "no route of ours leads to its peer"


def _planned(flow: Flow, driver: Driver, setting: Setting) -> str:
    if why := driver.refuses_move(setting.kernel):
        return why
    if setting.live_qps:
        return setting.live_qps
    if flow.place is None:
        return flow.why
    if flow.qp.state != "RTS":
        return f"it only answers (state {flow.qp.state}) and cannot be stopped"
    return ""


def _port(flow: Flow, driver: Driver, setting: Setting) -> str:
    """Never empty: the daemon does not do it."""
    if why := driver.refuses_port(unproven=setting.unproven):
        return why
    if setting.live_qps:
        return setting.live_qps
    if flow.qp.type not in mlx5.TYPES.values():
        return f"{flow.qp.type} does not take another UDP source port"
    if flow.place is None:
        return flow.why
    if flow.qp.state != "RTS":
        return f"it only answers (state {flow.qp.state})"
    return "by hand only: linkpass lab udp-port"
