"""What the core can ask of the world. Every command has an id and the causal id of the story it belongs to.

Outcomes come back as events that carry the id: SetGroup -> GroupProgrammed | GroupFailed, SetLabels -> LabelsProgrammed
| LabelsFailed, MoveFlows -> FlowsLeft | FlowsStay, TraceLabels -> LabelsTraced | TraceFailed, ResolveUplinks ->
UplinksResolved | ResolveFailed, CompareFlows -> FlowCompared, TraceFlows -> FlowsTraced | FlowsUntraced, SendNotice ->
NoticeAcked, AskHost -> HostAnswered | HostAskFailed, Escalate -> Escalated | EscalateFailed. SetProbes and Record are
always carried out and have no outcome.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from linkpass.core.events import FlowAt, Notice

BUCKETS = 16
"""Flow buckets per peer: the kernel's own label of a flow is hashed into one of them, each has one label of ours."""

Rung = Literal[0, 1, 2, 3]


class Command(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    cmd_id: int
    cause: str


class SetGroup(Command, frozen=True):
    """Rung 2: the uplinks that carry a destination set, best spread equally. An empty tuple withdraws our route.

    `group` is `all` (every configured prefix) or the address of one peer."""

    group: str
    uplinks: tuple[str, ...]


class SetLabels(Command, frozen=True):
    """Rung 1: one 16-bit label for each of the BUCKETS flow buckets of a peer. An empty tuple withdraws our labels.

    The label of an IPv4 peer is the source port of a tunnel."""

    peer: str
    labels: tuple[int, ...]


class MoveFlows(Command, frozen=True):
    """Rung 2 for RDMA flows that no route of ours moves: take those that go over an uplink to other addresses, which
    lead over others (`leave`), or leave them alone from now on."""

    uplink: str
    leave: bool


class ProbeTarget(msgspec.Struct, frozen=True):
    """One path to be probed: pinned to an uplink, with a label, every `interval_s`.

    `telling`: for a moment only, to tell suspects apart. It is judged from its first probe on, also if it never
    answers, and has no large probes."""

    peer: str
    uplink: str
    label: int
    interval_s: float
    telling: bool = False


class SetProbes(Command, frozen=True):
    """The whole set of paths to probe from now on; paths that stay keep their counters."""

    targets: tuple[ProbeTarget, ...]


class TraceLabels(Command, frozen=True):
    """`urgent`: nothing is known yet, or it may have changed: asked as one burst."""

    peer: str
    uplink: str
    labels: tuple[int, ...]
    urgent: bool = False


class ResolveUplinks(Command, frozen=True):
    peer: str
    labels: tuple[int, ...]


class CompareFlows(Command, frozen=True):
    """Trace copies of real flows' headers to a peer and compare with the traces of their labels."""

    peer: str


class TraceFlows(Command, frozen=True):
    """Trace the ways of real flows, by copies of their headers."""

    peer: str
    uplink: str
    flows: tuple[FlowAt, ...]


class SendNotice(Command, frozen=True):
    """Tell peers, over every surviving uplink, repeated until each has acknowledged or the notice has expired."""

    notice: Notice
    peers: tuple[str, ...]


class AskHost(Command, frozen=True):
    """Ask a peer's kernel, not its daemon, whether it runs, over ways given as (uplink, label)."""

    peer: str
    ways: tuple[tuple[str, int], ...]


class Escalate(Command, frozen=True):
    """The host itself fails and no path can help: rung 3 takes over. `accelerator`: only that one of it fails; the
    ranks on the host's others are not concerned. `since_s`: when the host fell silent, or its evidence began."""

    host: str
    evidence: tuple[str, ...]
    accelerator: str = ""
    since_s: float = 0.0


class Record(Command, frozen=True):
    """An entry of the journal: what was decided or seen, and why. `linkpass why` shows the entries of one cause."""

    what: str
    why: str
    rung: Rung = 0
    element: str = ""
    level: Literal["info", "warning"] = "info"


AnyCommand = (
    SetGroup | SetLabels | MoveFlows | SetProbes | TraceLabels | ResolveUplinks | CompareFlows | TraceFlows | SendNotice
    | AskHost | Escalate | Record
)  # fmt: skip
