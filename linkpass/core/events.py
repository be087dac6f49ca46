"""What the world can tell the core. Each event is a frozen value; a recording is a list of them.

An event that ends a command carries that command's id (`cmd_id`). Success and each kind of failure are different
events. Edges count probes; the core hears only of a change or of a window's sum (one event per probe would make
quiet time expensive). Times are monotonic seconds; addresses are text as `ipaddress` prints it.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Evidence = Literal["good", "blackhole", "lossy", "queueing", "unknown"]
"""What probes say of one direction of one path. `unknown`: never answered, or not judged; it is not `down`."""

FAILING: tuple[Evidence, ...] = ("blackhole", "lossy")

NoticeKind = Literal[
    "port_down", "port_up", "drain", "undrain", "goodbye", "suspect", "failing", "ailing", "well", "missing", "heard"
]
"""`goodbye`: the daemon stops in good order (an empty link); its silence is no verdict. `suspect`: its diagnosis names
what stands in `link`, there also a node. `failing`, `ailing`, `well`: what a host says of itself (`link`: its words).
`missing`, `heard`: whether the speaker hears a host, or exchanges data with it (`link`: its address)."""

Severity = Literal["fatal", "degraded", "info", "well"]
"""Of evidence about a host. `well`: it is over."""

TraceNoteKind = Literal["limited", "mute", "asymmetric", "unnumbered", "sprayed", "one_way"]
"""`limited`: a node answers a part of the questions. `mute`: a hop never answers. `asymmetric`: answers come back
another way. `unnumbered`: an address names no link. `sprayed`: packets of one flow go different ways. `one_way`: all
labels lead one way, though there are several."""

PortNews = Literal[
    "PORT_ERR", "PORT_ACTIVE", "GID_CHANGE", "LID_CHANGE", "PKEY_CHANGE", "SM_CHANGE", "CLIENT_REREGISTER",
    "DEVICE_FATAL", "GONE",
]  # fmt: skip


class Event(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Base of all events; the class name is the tag in a recording."""


# the host's own ports
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


class SteeringLost(Event, frozen=True):
    """Something of ours vanished from the kernel without us. `by` names the remover as well as we can know it."""

    what: str
    by: str


# peers
class PeerKnown(Event, frozen=True):
    """A host that may be talked to: configured, in the fabric's file, or heard with a valid signature."""

    peer: str
    name: str = ""


class PeersActive(Event, frozen=True):
    """The peers this host has established connections with now (from the kernel's socket table)."""

    peers: tuple[str, ...]


class PeerSilent(Event, frozen=True):
    """Nothing at all has been heard from a peer on any path for `silent_s`, though it was heard before."""

    peer: str
    silent_s: float


class PeerBack(Event, frozen=True):
    """A silent peer is heard again."""

    peer: str


class PeerData(Event, frozen=True):
    """Whether the job's data to a peer still advances (acknowledged bytes of its sockets); sent on a change.

    `stands`: how it stands, as far as the kernel's sockets tell: `shut`: the peer's kernel answers that nobody reads
    (its window is shut); `unacked`: it acknowledges nothing, however often it is sent again; empty: not known."""

    peer: str
    flows: bool
    stands: Literal["", "shut", "unacked"] = ""


class PeerFiltered(Event, frozen=True):
    """Every probe to a peer fails while its data flows: somebody filters probes (`rule` would let them through), or
    `why` says what else it is."""

    peer: str
    rule: str
    why: str = ""


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


class PeerPatience(Event, frozen=True):
    """The least time after which a transport gives up what it has sent to a peer (`rdma.deadline`), over all RDMA flows
    to it; None: none gives up, or none is known. Sent on a change."""

    peer: str
    least_s: float | None


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


# paths
class TraceNote(msgspec.Struct, frozen=True):
    """What a trace has found out about the answers to it. `hop`: where, the neighbour being 1; `nodes`: whose answers,
    as far as they are named; `why`: what was seen."""

    kind: TraceNoteKind
    hop: int
    why: str
    nodes: tuple[str, ...] = ()


class LabelsTraced(Event, frozen=True):
    """Hop-limited traces of labels over one uplink: label -> names of the nodes in order, None where a hop was mute,
    not asked, or gave an answer that names no node.

    Neither the host itself nor the peer is in the list. `planned`: over how many equal-cost ways the fabric's file
    leads there, 0: it does not say. `again_s`: some nodes limit their answers, and have more after this time."""

    cmd_id: int
    peer: str
    uplink: str
    hops: dict[int, tuple[str | None, ...]]
    notes: tuple[TraceNote, ...] = ()
    planned: int = 0
    again_s: float | None = None


class TraceFailed(Event, frozen=True):
    cmd_id: int
    peer: str
    uplink: str
    why: str


class UplinksResolved(Event, frozen=True):
    """Which uplink the kernel's own hash picks for each label now. `blind`: it does not look at labels, and what is
    relabelled all takes one uplink."""

    cmd_id: int
    peer: str
    uplink_of: dict[int, str]
    blind: bool = False


class ResolveFailed(Event, frozen=True):
    cmd_id: int
    peer: str
    why: str


class FlowCompared(Event, frozen=True):
    """Hops of a real flow's header copies beside those of the probes with the same label. `agrees` None: no answer."""

    cmd_id: int
    peer: str
    label: int
    flow: str
    agrees: bool | None
    detail: str = ""


class PeerTunnels(Event, frozen=True):
    """The entropy tunnels that lead to an IPv4 peer: source port -> uplink. Empty: none (any more), and `why`."""

    peer: str
    uplink_of: dict[int, str]
    why: str = ""


class PathEvidence(Event, frozen=True):
    """The probes' opinion of the direction from this host over one path has changed."""

    peer: str
    uplink: str
    label: int
    evidence: Evidence
    loss_ratio: float = 0.0
    rtt_s: float = 0.0
    queueing_s: float = 0.0
    """One-way delay above its floor at this moment."""
    wavers: bool = False
    """Probes are late half of the time: no queue stands, and yet the path is not without."""
    large_only: bool = False
    """It is large packets that fail; small ones get through."""
    why: str = ""


class RoceEvidence(Event, frozen=True):
    """The opinion of datagrams through an RDMA device's own queue, there and back, has changed. `rtt_s`: in the network
    alone; `host_s`, `peer_host_s`: what the two hosts took to send, answer and read them."""

    device: str
    peer: str
    name: str
    evidence: Evidence
    loss_ratio: float = 0.0
    rtt_s: float = 0.0
    host_s: float = 0.0
    peer_host_s: float = 0.0
    why: str = ""


class PathCount(msgspec.Struct, frozen=True, array_like=True):
    """Probes sent and lost over one path in a window."""

    uplink: str
    label: int
    sent: int
    lost: int


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


class PathWindow(Event, frozen=True):
    """A window's counts of all paths to a peer. Sent only while losses are about, so that quiet time costs nothing."""

    peer: str
    counts: tuple[PathCount, ...]


# the pace of a job
PaceKind = Literal["late", "awaits", "slow", "unread"]
"""What a host claims of a rank (`linkpass.core.pace`): `late`: others had opened a step and the speaker had not;
`awaits`: the speaker had opened one towards `about`, which had not; `slow`: its data to `about` stands in its queue,
`unread`: because `about` does not read."""


class PaceClaim(msgspec.Struct, frozen=True, array_like=True):
    """Counts since the speaker began to look, so that a word which is lost costs nothing. `about`: a peer's address;
    empty: the speaker itself. `hits` of `units` are steps in which it was so; `lag_s`: for how long, lately;
    `period_s`: from one step to the next."""

    kind: PaceKind
    about: str
    units: int
    hits: int
    lag_s: float
    period_s: float


class PaceTold(Event, frozen=True):
    """What this host (`peer` empty) or a peer sees of the job's pace: all its claims, a few times a second at most."""

    peer: str = ""
    claims: tuple[PaceClaim, ...] = ()


class StepArrived(Event, frozen=True):
    """A rank has come to the boundary of a step, says its trainer; at `at_s` by this host's clock. `peer` empty: it is
    this host's."""

    rank: int
    step: int
    at_s: float
    peer: str = ""


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


# notices
class Notice(msgspec.Struct, frozen=True):
    """A peer's word. `link` is `node>node` (one direction) or `node-node` (both)."""

    kind: NoticeKind
    link: str
    origin: str
    seq: int
    ttl_s: float


class NoticeHeard(Event, frozen=True):
    peer: str
    notice: Notice


class NoticeAcked(Event, frozen=True):
    cmd_id: int
    peer: str


# hosts
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


# the operator
class DrainRequested(Event, frozen=True):
    link: str
    everywhere: bool = False


class UndrainRequested(Event, frozen=True):
    link: str
    everywhere: bool = False


class ClearRequested(Event, frozen=True):
    """Forget the damping of a link (`*`: of all)."""

    link: str


# outcomes of steering
class GroupProgrammed(Event, frozen=True):
    cmd_id: int
    group: str
    took_s: float = 0.0


class GroupLeads(Event, frozen=True):
    """Over which uplinks our routes of a group lead now, told whenever that has changed: fewer than asked for where the
    kernel's own routes below ours lack some. The kernel's hash picks anew among them."""

    group: str
    uplinks: tuple[str, ...]


class GroupFailed(Event, frozen=True):
    cmd_id: int
    group: str
    why: str


class LabelsProgrammed(Event, frozen=True):
    cmd_id: int
    peer: str
    took_s: float = 0.0


class LabelsFailed(Event, frozen=True):
    cmd_id: int
    peer: str
    why: str


class Escalated(Event, frozen=True):
    cmd_id: int
    host: str
    accelerator: str = ""


class EscalateFailed(Event, frozen=True):
    cmd_id: int
    host: str
    why: str
    accelerator: str = ""


class Deadline(Event, frozen=True):
    """The moment asked for by `next_deadline_s()` has come."""


AnyEvent = (
    UplinkState | UplinkGone | PortEvent | SteeringLost | PeerKnown | PeersActive | PeerSilent | PeerBack
    | PeerData | PeerFiltered | FlowStands | FlowGoes | PeerPatience | FlowMoved | FlowsLeft | FlowsStay
    | LabelsTraced | TraceFailed | UplinksResolved | ResolveFailed | FlowCompared | PeerTunnels | PathEvidence
    | RoceEvidence | CongestionEvidence | UplinkOverrun | PathWindow | FlowWindow | FlowsLosing | FlowsTraced
    | FlowsUntraced | PaceTold | StepArrived | ProbeDelays | DaemonLate | NoticeHeard | NoticeAcked
    | HostEvidence | HostAnswered | HostAskFailed | DrainRequested | UndrainRequested | ClearRequested
    | GroupProgrammed | GroupLeads | GroupFailed | LabelsProgrammed | LabelsFailed | Escalated | EscalateFailed
    | Deadline
)  # fmt: skip
