"""Flows of the job, one by one."""

from __future__ import annotations

import msgspec

from linkpass.core.events.base import Event


class FlowStands(Event, frozen=True):
    """An RDMA flow (`flow`: program, pid, queue pair) has sent nothing new for `silent_s` though work waits. `left_s`:
    until its transport may give up, None: never, or not known. Told again and again while it lasts."""

    peer: str
    flow: str
    silent_s: float
    left_s: float | None = None


class FlowGoes(Event, frozen=True):
    """It goes on, or has `ended`."""

    peer: str
    flow: str
    ended: bool = False


class FlowMoved(Event, frozen=True):
    """An attempt to move an RDMA flow to other addresses has ended: it `moved`, or was kept where it is. `for_cause`:
    of the command that it was made for; empty when the peer asked. `took_s`: from its stop until it went on."""

    peer: str
    flow: str
    moved: bool
    why: str
    took_s: float = 0.0
    for_cause: str = ""


class FlowsLeft(Event, frozen=True):
    """No RDMA flow that could be moved goes over an uplink any more."""

    cmd_id: int
    uplink: str


class FlowsStay(Event, frozen=True):
    """Some still do."""

    cmd_id: int
    uplink: str
    why: str


class FlowCompared(Event, frozen=True):
    """Hops of a real flow's header copies beside those of the probes with the same label. `agrees` None: no answer."""

    cmd_id: int
    peer: str
    label: int
    flow: str
    agrees: bool | None
    detail: str = ""


class FlowAt(msgspec.Struct, frozen=True, array_like=True):
    """A TCP flow to a peer as the fabric tells it from others: the uplink that it leaves by, the label on the wire
    (IPv4: 0) and its ports. Of an RDMA flow: the number of the peer's queue pair and -1."""

    uplink: str
    label: int
    sport: int
    dport: int


class FlowCount(msgspec.Struct, frozen=True, array_like=True):
    """Segments with data that a TCP flow has sent in a window, and how many of them were sent again. Of an RDMA flow:
    packets, how often it went back to send again, its `name`, and whether it may have gone back more often (`least`).
    """

    flow: FlowAt
    sent: int
    again: int
    name: str = ""
    least: bool = False


class FlowWindow(Event, frozen=True):
    """What the job's own flows to a peer sent again, some two seconds ago, and how much they sent in all: of those
    that were seen to stay where they are. Told only while something is sent again."""

    peer: str
    counts: tuple[FlowCount, ...]


class FlowsLosing(Event, frozen=True):
    """Flows to a peer that have just sent something again, and where they were seen a moment later; those that sent
    most again come first."""

    peer: str
    flows: tuple[FlowAt, ...]


class FlowsTraced(Event, frozen=True):
    """Hop-limited traces of flows: the nodes in order, as in LabelsTraced."""

    cmd_id: int
    peer: str
    uplink: str
    hops: tuple[tuple[FlowAt, tuple[str | None, ...]], ...]


class FlowsUntraced(Event, frozen=True):
    cmd_id: int
    peer: str
    uplink: str
    why: str
