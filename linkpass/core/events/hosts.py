"""Hosts: how they are, and what becomes of it."""

from __future__ import annotations

from typing import Literal

import msgspec

from linkpass.core.events.base import Event

Severity = Literal["fatal", "degraded", "info", "well"]
"""Of evidence about a host. `well`: it is over."""


class HostEvidence(Event, frozen=True):
    """What this host's own sources say of it, or of one of its accelerators (empty: of the host as a whole). `what`
    names the trouble within its `source`; a later event with the same three takes its place. `lasts_s`: after which it
    is forgotten; None: until it is said to be `well`, or the operator clears it."""

    source: str
    what: str
    severity: Severity
    why: str = ""
    accelerator: str = ""
    lasts_s: float | None = None


class HostAnswered(Event, frozen=True):
    """What a peer's kernel answered: uplinks over which it was `asked`, those over which it `echoed`, and whether it
    said that nobody holds its daemon's port (`closed`)."""

    cmd_id: int
    peer: str
    asked: tuple[str, ...]
    echoed: tuple[str, ...] = ()
    closed: bool = False


class HostAskFailed(Event, frozen=True):
    cmd_id: int
    peer: str
    why: str


class ProbeDelay(msgspec.Struct, frozen=True, array_like=True):
    """How long a host (its address; this one too) let probes wait in a window beyond what is due, on average over the
    time, and the least of all windows. `source`: its reports on probes, or its answers to datagrams of RoCE."""

    host: str
    source: Literal["reports", "RoCE"]
    delay_s: float
    floor_s: float


class ProbeDelays(Event, frozen=True):
    """The delays of all hosts that are heard, once a second while one of them is long; not told: none is."""

    delays: tuple[ProbeDelay, ...]


class DaemonLate(Event, frozen=True):
    """This daemon ran late by `late_s`: what it did not hear in that time is nobody's fault but its own."""

    late_s: float


class Escalated(Event, frozen=True):
    cmd_id: int
    host: str
    accelerator: str = ""


class EscalateFailed(Event, frozen=True):
    cmd_id: int
    host: str
    why: str
    accelerator: str = ""
