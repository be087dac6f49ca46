"""A fabric told cable by cable: nodes are what cables end in, unless they are named before."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from topology.model import Fabric, FabricError, Link, Node, Port, Role
from topology.sources.infiniband import Subnet
from topology.sources.roles import Clues, place
from topology.sources.yamltext import TopologyError

Format = Literal["containerlab", "ibnetdiscover", "iblinkinfo", "LLDP", "DOT", "Slurm"]


@dataclass(frozen=True, slots=True)
class Source:
    """A fabric, and how far its text can be trusted to tell all.

    `told`: the nodes that tell of all their links; None: every one does. `ports`: whether its ports have names of
    their own; else only which nodes are joined is known. `other_names`: of a port (its id), what else it is called.
    `unsure`: ports (ids) of which it tells things that cannot all be.
    `notes`: those of the fabric's that say what of the text is not in it."""

    format: Format
    fabric: Fabric
    told: frozenset[str] | None = None
    ports: bool = True
    other_names: dict[str, tuple[str, ...]] = field(default_factory=dict)
    unsure: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()
    subnet: Subnet | None = None
    addresses: dict[str, str] = field(default_factory=dict)
    """IP address -> node, of addresses under which the source knows nodes; those that several have are left out."""


class Cables:
    """Nodes and cables as a text tells of them, line by line. Every refusal is a TopologyError with the line."""

    def __init__(self, where: str, kind: str) -> None:
        self._where = where
        self._kind = kind
        self._nodes: dict[str, tuple[Clues, str | None]] = {}
        self._links: list[Link] = []
        self._lines: dict[str, int] = {}
        self._joined: set[frozenset[str]] = set()

    def node(
        self, name: str, line: int, *, role: Role | None = None, group: str = "", rack: str | None = None,
        forwards: bool | None = None,
    ) -> None:  # fmt: skip
        """Names a node, or says more of it."""
        if not name or ">" in name or ":" in name:
            raise TopologyError(self._where, line, "", f"node name {name!r}: expected text without '>' and ':'")
        was, was_rack = self._nodes.get(name, (Clues(name, "linux", "", ""), None))
        if role is not None and was.role is not None and role != was.role:
            raise TopologyError(self._where, line, "", f"{name} is a {was.role} before, and a {role} here")
        more = Clues(
            name, "linux", "", group or was.group, role or was.role, None,
            was.forwards if forwards is None else forwards,
        )  # fmt: skip
        self._nodes[name] = (more, rack or was_rack)

    def join(self, a: Port, b: Port, line: int) -> None:
        """A cable; one that is told twice is one."""
        if frozenset((a.id, b.id)) in self._joined:
            return
        for port in (a, b):
            if port.node not in self._nodes:
                self.node(port.node, line)
            if not port.name or ">" in port.name:
                raise TopologyError(self._where, line, "", f"port {port.id!r}: expected a name without '>'")
            if port.id in self._lines:
                raise TopologyError(self._where, line, "", f"port {port.id} has a cable on line {self._lines[port.id]}")
        if a.node == b.node:
            raise TopologyError(self._where, line, "", f"a cable from {a.node} to itself")
        self._lines.update({a.id: line, b.id: line})
        self._joined.add(frozenset((a.id, b.id)))
        self._links.append(Link(a, b))

    def fabric(self, name: str, notes: tuple[str, ...] = ()) -> Fabric:
        """Roles and tiers that are not stated are inferred, and said in its notes."""
        around: dict[str, list[str]] = {}
        for link in self._links:
            around.setdefault(link.a.node, []).append(link.b.node)
            around.setdefault(link.b.node, []).append(link.a.node)
        placed, said = place([clues for clues, _ in self._nodes.values()], around)
        nodes = [
            Node(at, placed[at].role, placed[at].tier, rack, kind=self._kind)
            for at, (_, rack) in self._nodes.items()
        ]  # fmt: skip
        try:
            return Fabric(name, nodes, self._links, (*said, *notes))
        except FabricError as error:
            raise TopologyError(self._where, 1, "", str(error)) from None
