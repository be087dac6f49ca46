"""What this host's own sources say of it: the kernel's log, sensors, GPUs, somebody else's check. Reading only."""

from linkpass.edges.host.edge import HostEdge, Watched

__all__ = ["HostEdge", "Watched"]
