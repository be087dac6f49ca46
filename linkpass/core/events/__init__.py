"""What the world can tell the core. Each event is a frozen value; a recording is a list of them.

An event that ends a command carries that command's id (`cmd_id`). Success and each kind of failure are different
events. Edges count probes; the core hears only of a change or of a window's sum (one event per probe would make
quiet time expensive). Times are monotonic seconds; addresses are text as `ipaddress` prints it.
"""

from __future__ import annotations

from linkpass.core.events.base import Event
from linkpass.core.events.flows import (
    FlowAt,
    FlowCompared,
    FlowCount,
    FlowGoes,
    FlowMoved,
    FlowsLeft,
    FlowsLosing,
    FlowsStay,
    FlowStands,
    FlowsTraced,
    FlowsUntraced,
    FlowWindow,
)
from linkpass.core.events.hosts import (
    DaemonLate,
    Escalated,
    EscalateFailed,
    HostAnswered,
    HostAskFailed,
    HostEvidence,
    ProbeDelay,
    ProbeDelays,
    Severity,
)
from linkpass.core.events.orders import (
    ClearRequested,
    Deadline,
    DrainRequested,
    GroupFailed,
    GroupLeads,
    GroupProgrammed,
    LabelsFailed,
    LabelsProgrammed,
    UndrainRequested,
)
from linkpass.core.events.pace import PaceClaim, PaceKind, PaceTold, StepArrived
from linkpass.core.events.paths import (
    FAILING,
    Evidence,
    LabelsTraced,
    PathCount,
    PathEvidence,
    PathWindow,
    ResolveFailed,
    RoceEvidence,
    TraceFailed,
    TraceNote,
    TraceNoteKind,
    UplinksResolved,
)
from linkpass.core.events.peers import (
    Notice,
    NoticeAcked,
    NoticeHeard,
    NoticeKind,
    PeerBack,
    PeerData,
    PeerFiltered,
    PeerKnown,
    PeerPatience,
    PeersActive,
    PeerSilent,
    PeerTunnels,
)
from linkpass.core.events.ports import (
    CongestionEvidence,
    PortEvent,
    PortNews,
    SteeringLost,
    UplinkGone,
    UplinkOverrun,
    UplinkState,
)

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

__all__ = [
    "FAILING", "AnyEvent", "ClearRequested", "CongestionEvidence", "DaemonLate", "Deadline", "DrainRequested",
    "EscalateFailed", "Escalated", "Event", "Evidence", "FlowAt", "FlowCompared", "FlowCount", "FlowGoes",
    "FlowMoved", "FlowStands", "FlowWindow", "FlowsLeft", "FlowsLosing", "FlowsStay", "FlowsTraced",
    "FlowsUntraced", "GroupFailed", "GroupLeads", "GroupProgrammed", "HostAnswered", "HostAskFailed",
    "HostEvidence", "LabelsFailed", "LabelsProgrammed", "LabelsTraced", "Notice", "NoticeAcked", "NoticeHeard",
    "NoticeKind", "PaceClaim", "PaceKind", "PaceTold", "PathCount", "PathEvidence", "PathWindow", "PeerBack",
    "PeerData", "PeerFiltered", "PeerKnown", "PeerPatience", "PeerSilent", "PeerTunnels", "PeersActive",
    "PortEvent", "PortNews", "ProbeDelay", "ProbeDelays", "ResolveFailed", "RoceEvidence", "Severity",
    "SteeringLost", "StepArrived", "TraceFailed", "TraceNote", "TraceNoteKind", "UndrainRequested",
    "UplinkGone", "UplinkOverrun", "UplinkState", "UplinksResolved",
]  # fmt: skip
