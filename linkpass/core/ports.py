"""What drivers of RDMA devices say of their ports: evidence of the uplinks on them, else a line in the journal.

A port in error is bad news about an uplink like a lost carrier, though its network device may still be up: traffic
leaves it as long as there is a better one. It ends when the driver says that the port is active again, or when the
device is gone and nothing is said any more. A device on a VRF lies on no uplink of its own: what is said of it concerns
all of them and none, and is recorded. Addresses that move are recorded, too: who uses them reads them again.
"""

from __future__ import annotations

from linkpass.core.events import PortEvent
from linkpass.core.world import Tray, Uplink, World

BAD = ("PORT_ERR", "DEVICE_FATAL")
OVER = ("PORT_ACTIVE", "GONE")
STORY_S = 10.0
"""Other news of a port belongs to the story before it when it comes this soon."""


def on_port(world: World, tray: Tray, event: PortEvent, now_s: float) -> list[str]:
    """Take it in; the uplinks that are down by it and were not before."""
    name = f"{event.device}/{event.port}" if event.port else event.device
    under = [world.uplinks[netdev] for netdev in event.netdevs if netdev in world.uplinks]
    cause = _cause(world, event, name, now_s)
    world.ports[name] = cause, now_s
    lies_on = f"on {', '.join(event.netdevs)}" if event.netdevs else "on no network device"
    what = {"PORT_ERR": "is in error", "PORT_ACTIVE": "is active", "GONE": "is gone"}.get(event.what, event.what)
    why = "; ".join(filter(None, (f"{event.what} {lies_on}", event.detail, "" if under else "no uplink lies on it")))
    tray.record(cause, f"RDMA port {name} {what}", why, element=name, level="warning" if event.what in BAD else "info")
    if event.what in OVER:
        _over(world, event, f"{name} {what}", now_s)
        return []
    down = []
    for uplink in under if event.what in BAD else ():
        if _fails(uplink, name, f"{event.what} of {name}", cause, now_s):
            down.append(uplink.name)
        world.decide_soon(now_s)
    return down


def _over(world: World, event: PortEvent, why: str, now_s: float) -> None:
    """By the port that said so: its addresses, and with them its network devices, may be gone meanwhile."""
    for uplink in world.uplinks.values():
        if uplink.port_err and _is_meant(uplink.port, event):
            uplink.port_err = ""
            if uplink.usable:
                uplink.element.feed("good", now_s, why=why)
            world.decide_soon(now_s)


def _cause(world: World, event: PortEvent, name: str, now_s: float) -> str:
    """Bad news belongs to the incident of its moment, what ends it and what follows soon to the same story."""
    if event.what in BAD:
        cause = world.port_errs[name] = world.incident(now_s)
        return cause
    cause, at_s = world.ports.get(name, ("", 0.0))
    if event.what in OVER:
        ended = [one for one in world.port_errs if _is_meant(one, event)]
        causes = [world.port_errs.pop(one) for one in ended]
        return causes[0] if causes else world.new_cause()
    return cause if cause and now_s - at_s <= STORY_S else world.new_cause()


def _is_meant(name: str, event: PortEvent) -> bool:
    """Whether an event is about a port (`device/port`, or a whole device): that of the device is about all of its."""
    device, _, port = name.partition("/")
    return device == event.device and (not event.port or not port or int(port) == event.port)


def _fails(uplink: Uplink, port: str, why: str, cause: str, now_s: float) -> bool:
    uplink.port_err, uplink.port = why, port
    return uplink.element.feed("bad", now_s, why=why, cause=cause)
