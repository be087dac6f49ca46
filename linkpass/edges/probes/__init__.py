"""The probe edge: what travels over every path, what peers report of it, and the evidence that follows.

`ports` holds the packet sockets of an uplink, `peers` the books of both directions, `budget` the packet limits,
`snapshot` what people are shown, `edge` the schedule."""

from linkpass.edges.probes.edge import ProbeEdge
from linkpass.edges.probes.snapshot import PathView, PeerView, ProbeStats, Snapshot

__all__ = ["PathView", "PeerView", "ProbeEdge", "ProbeStats", "Snapshot"]
