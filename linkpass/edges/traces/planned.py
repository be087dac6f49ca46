"""What the fabric's file says of the ways that are traced: how many there are, how long, where links are parallel."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from topology.model import Fabric


class Plan:
    """Questions about one host's ways. Whatever the file does not tell is None or 0: it may be old, or use other names.

    A way is told from the node at the uplink's other end on, as it is called by the traces, or by the file."""

    def __init__(self, fabric: Fabric, host: str) -> None:
        self._fabric, self._host = fabric, host
        self._roles = {node.name: node.role for node in fabric.nodes}
        self._ways: dict[tuple[str, str], int] = {}

    def knows(self, node: str | None) -> bool:
        return node in self._roles

    def first(self, uplink: str) -> str | None:
        """The node at the other end of an uplink of this host."""
        if not self.knows(self._host):
            return None
        links = self._fabric.links_of(self._host)
        found = [link.peer(self._host).node for link in links if link.port(self._host).name == uplink]
        return found[0] if len(found) == 1 else None

    def ways(self, first: str | None, peer: str) -> int:
        """Equal-cost ways from a node to a host."""
        if first is None or self._roles.get(first) != "switch" or self._roles.get(peer) != "host":
            return 0
        return self._count(first, peer)

    def _count(self, node: str, peer: str) -> int:
        if node == peer:
            return 1
        if (node, peer) not in self._ways:
            hops = self._fabric.next_hops(node, peer)
            self._ways[node, peer] = sum(self._count(hop.peer.node, peer) for hop in hops)
        return self._ways[node, peer]

    def length(self, first: str | None, peer: str) -> int | None:
        """Nodes on the way to a host, the first one counted."""
        if first is None or self._roles.get(first) != "switch" or self._roles.get(peer) != "host":
            return None
        return self._fabric.distance(first, peer)

    def parallel(self, a: str | None, b: str | None) -> tuple[str, ...]:
        """The links between two nodes, when there are several."""
        if a is None or b is None or not (self.knows(a) and self.knows(b)):
            return ()
        links = [link.id for link in self._fabric.links_of(a) if link.peer(a).node == b]
        return tuple(links) if len(links) > 1 else ()
