"""The probe edge: what travels over every path, what peers report of it, and the evidence that follows.

`edge` is the schedule and the face, `sending` and `hearing` the two ways, `ports` the packet sockets of an uplink,
`peers` the books of a peer in both directions, `paths` those of one path, `budget` the packet limits, `snapshot` what
people are shown; `roce` (`roce_ports`, `roce_told`, `roce_books`) are datagrams through RDMA devices beside, `pace`
words about the job's."""

from linkpass.edges.probes.edge import ProbeEdge
from linkpass.edges.probes.snapshot import PathView, PeerView, ProbeStats, Snapshot

__all__ = ["PathView", "PeerView", "ProbeEdge", "ProbeStats", "Snapshot"]
