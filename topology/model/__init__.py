"""A typed face over a networkx graph of nodes, ports and links. Pure: no files, no health, no time."""

from topology.model.capacity import Cut, one_each, residual_bps, speeds_bps
from topology.model.elements import (
    FabricError,
    Hop,
    Link,
    Node,
    Path,
    Port,
    Role,
    UnknownElementError,
    direction_id,
)
from topology.model.fabric import Fabric

__all__ = [
    "Cut",
    "Fabric",
    "FabricError",
    "Hop",
    "Link",
    "Node",
    "Path",
    "Port",
    "Role",
    "UnknownElementError",
    "direction_id",
    "one_each",
    "residual_bps",
    "speeds_bps",
]
