"""The host's own ports, and what stands in the kernel."""

from __future__ import annotations

from typing import Literal

from linkpass.core.events.base import Event

PortNews = Literal[
    "PORT_ERR", "PORT_ACTIVE", "GID_CHANGE", "LID_CHANGE", "PKEY_CHANGE", "SM_CHANGE", "CLIENT_REREGISTER",
    "DEVICE_FATAL", "GONE",
]  # fmt: skip


class UplinkState(Event, frozen=True):
    """An uplink as the kernel sees it. `usable` means: administratively up, carrier, and a gateway is known."""

    uplink: str
    usable: bool
    why: str = ""
    speed_bps: int = 0


class UplinkGone(Event, frozen=True):
    """The device itself has disappeared."""

    uplink: str


class PortEvent(Event, frozen=True):
    """What the driver of an RDMA device says of one of its ports (events of verbs, ibv_get_async_event(3)); `GONE`: the
    device has disappeared, and what it said counts no more. `netdevs`: the network devices that lie on the port.
    `detail`: what is known beside, such as which addresses moved."""

    device: str
    port: int
    what: PortNews
    netdevs: tuple[str, ...] = ()
    detail: str = ""


class CongestionEvidence(Event, frozen=True):
    """What the counters of the port below an uplink say of congestion (PFC pauses, marks, notifications), sent on a
    change. `out`: of what leaves over it; `into`: of what comes in; both empty: it is over."""

    uplink: str
    out: tuple[str, ...] = ()
    into: tuple[str, ...] = ()


class UplinkOverrun(Event, frozen=True):
    """The queue that this host itself keeps in front of an uplink drops what is more than the uplink can send
    (`linkpass.core.offered`); sent on a change. `why` empty: it is over, or not known any more."""

    uplink: str
    why: str = ""


class SteeringLost(Event, frozen=True):
    """Something of ours vanished from the kernel without us. `by` names the remover as well as we can know it."""

    what: str
    by: str
