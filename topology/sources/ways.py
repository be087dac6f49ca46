"""The ways that linear forwarding tables give to packets of an InfiniBand subnet.

A switch looks up the destination LID and sends by the port that it finds (InfiniBand Architecture Specification, volume
1, 18.2.4.3, LinearForwardingTable): a way is followed from table to table. It may end where the destination is, or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from topology.model import Hop, Link, Path
from topology.sources.ibroute import Table
from topology.sources.infiniband import IbNode, IbPort, Subnet

Wrong = Literal["hole", "loop", "dead end", "astray"]
End = Literal["arrives", Wrong, "unknown"]
"""Hole: a table has no port for the LID. Dead end: the port has no link that carries data. Astray: it gets somewhere
else. Unknown: a table is not there."""


@dataclass(frozen=True, slots=True)
class Way:
    """From a port of the subnet towards a LID. `links`: those walked, in order; `at`: the ports where it goes wrong."""

    source: str
    lid: int
    end: End
    why: str
    hops: tuple[Hop, ...] = ()
    links: tuple[Link, ...] = ()
    at: tuple[str, ...] = ()

    @property
    def path(self) -> Path | None:
        """As the model's Path; None where no link was walked."""
        return Path(self.hops, self.links) if self.links else None


@dataclass(frozen=True, slots=True)
class _Step:
    """What one switch does with a LID: on to the node `to`, or the end here."""

    to: str | None
    port: int | None
    end: End = "unknown"
    why: str = ""


@dataclass(frozen=True, slots=True)
class Fault:
    """Why packets do not arrive: the same ports, the same end, for these LIDs. `pairs`: of host ports it cuts off."""

    end: Wrong
    at: tuple[str, ...]
    why: str
    lids: tuple[int, ...]
    pairs: int


class Ways:
    """Tables over a subnet. `missing`: names of switches without a table; `strange`: tables of switches that are not
    in the subnet."""

    def __init__(self, subnet: Subnet, tables: Sequence[Table]) -> None:
        self._subnet = subnet
        self._keys = {id(node): key for key, node in subnet.nodes.items()}
        self._tables: dict[str, Table] = {}
        strange = []
        for table in tables:
            node = subnet.with_guid(table.guid) or subnet.with_name(table.said)
            if node is None:
                strange.append(table.said)
            else:
                self._tables[self._keys[id(node)]] = table
        self.strange = tuple(strange)
        self.missing = tuple(
            node.name
            for key, node in subnet.nodes.items()
            if node.letter == "S" and not (key in self._tables and self._tables[key].answered)
        )

    def follow(self, source: IbNode, number: int, lid: int) -> Way:
        """Of a packet that leaves `source` (a host's adapter) by its port `number`."""
        start = source.port_id(number)
        hops: list[Hop] = []
        links: list[Link] = []
        port = source.ports.get(number)
        if port is None or (why := _no_link(source, number, port)):
            return Way(start, lid, "dead end", why if port else f"{start} is not listed", at=(start,))
        here, out = self._cross(source, port, hops, links)
        seen: list[tuple[str, int]] = []
        while self._subnet.nodes[here].letter == "S":
            if here in [key for key, _ in seen]:
                loop = seen[[key for key, _ in seen].index(here) :]
                return Way(start, lid, "loop", self._round(loop), tuple(hops), tuple(links), self._at(loop))
            step = self._step(here, lid)
            node = self._subnet.nodes[here]
            if step.to is None:
                at = () if step.end == "arrives" else (node.name if step.port is None else node.port_id(step.port),)
                return Way(start, lid, step.end, step.why, tuple(hops), tuple(links), at)
            assert step.port is not None
            seen.append((here, step.port))
            here, out = self._cross(node, node.ports[step.port], hops, links)
        last = self._subnet.nodes[here]
        end, why = _arrived(self._subnet, last, out, lid)
        return Way(start, lid, end, why, tuple(hops), tuple(links), () if end == "arrives" else (last.port_id(out),))

    def faults(self) -> tuple[Fault, ...]:
        """Everything that keeps packets to a known LID from arriving, the causes once each."""
        hosts = self._hosts_at()
        found: dict[tuple[Wrong, tuple[str, ...]], tuple[str, list[int], int]] = {}
        for lid, (owner, number) in sorted(self._subnet.lids.items()):
            ends = self._ends(lid)
            own = owner.ports.get(number) if number is not None and owner.letter != "S" else None
            home = own.peer[0] if own and own.peer else None
            for key, (end, at, why) in ends.items():
                if end == "arrives" or end == "unknown":
                    continue
                _, lids, pairs = found.get((end, at), (why, [], 0))
                if not lids or lids[-1] != lid:
                    lids.append(lid)
                if number is not None:
                    pairs += hosts.get(key, 0) - (key == home)
                found[end, at] = (why, lids, pairs)
        return tuple(Fault(end, at, why, tuple(lids), pairs) for (end, at), (why, lids, pairs) in found.items())

    def _hosts_at(self) -> dict[str, int]:
        """How many ports of hosts are at each switch."""
        count: dict[str, int] = {}
        for node in self._subnet.nodes.values():
            for port in node.ports.values():
                if node.letter == "H" and port.peer is not None:
                    count[port.peer[0]] = count.get(port.peer[0], 0) + 1
        return count

    def _ends(self, lid: int) -> dict[str, tuple[End, tuple[str, ...], str]]:
        """For each switch with a table: how the way of this LID ends from there, and where. Each is walked once."""
        known: dict[str, tuple[End, tuple[str, ...], str]] = {}
        for start in self._tables:
            here: str | None = start
            walked: dict[str, int] = {}
            while here is not None and here not in known:
                node = self._subnet.nodes[here]
                if here in walked:
                    loop = list(walked.items())[list(walked).index(here) :]
                    first = loop.index(min(loop))
                    loop = loop[first:] + loop[:first]
                    known[here] = ("loop", self._at(loop), self._round(loop))
                    break
                step = self._step(here, lid)
                if step.to is None:
                    at = node.name if step.port is None else node.port_id(step.port)
                    known[here] = (step.end, (at,), step.why)
                    break
                assert step.port is not None
                walked[here] = step.port
                far = node.ports[step.port].peer
                assert far is not None
                if self._subnet.nodes[far[0]].letter != "S":
                    last = self._subnet.nodes[far[0]]
                    end, why = _arrived(self._subnet, last, far[1], lid)
                    known[here] = (end, (node.port_id(step.port),), why)
                    break
                here = step.to
            for key in walked:
                known.setdefault(key, known[here] if here is not None else ("unknown", (), ""))
        return known

    def _step(self, key: str, lid: int) -> _Step:
        node, table = self._subnet.nodes[key], self._tables.get(key)
        if table is None or not table.covers(lid):
            what = "is not there" if table is None else "does not tell of it" if table.answered else "was not answered"
            return _Step(None, None, "unknown", f"the table of {node.name} {what}")
        out = table.ports.get(lid)
        if out is None:
            return _Step(None, None, "hole", f"the table of {node.name} has no port for it")
        if out == 0:
            owner = self._subnet.lids.get(lid)
            mine = owner is not None and owner[0] is node
            return _Step(None, 0, "arrives") if mine else _Step(None, 0, "astray", f"{node.name} takes it for its own")
        port = node.ports.get(out)
        why = _no_link(node, out, port)
        if port is None or port.peer is None or why:
            return _Step(None, out, "dead end", f"{why}, and the table of {node.name} sends by it")
        return _Step(port.peer[0], out)

    def _cross(self, node: IbNode, port: IbPort, hops: list[Hop], links: list[Link]) -> tuple[str, int]:
        """Over the link of a port: the node and the port at its other end."""
        assert port.peer is not None
        link = self._subnet.link_at(node, port.number)
        if link is not None:  # a cable between two ports of one host is none
            hops.append(Hop(link.port(node.name), link.peer(node.name)))
            links.append(link)
        return port.peer

    def _at(self, loop: Sequence[tuple[str, int]]) -> tuple[str, ...]:
        return tuple(self._subnet.nodes[key].port_id(number) for key, number in loop)

    def _round(self, loop: Sequence[tuple[str, int]]) -> str:
        names = [self._subnet.nodes[key].name for key, _ in loop]
        return f"the tables send it round: {' > '.join((*names, names[0]))}"


def _no_link(node: IbNode, number: int, port: IbPort | None) -> str:
    """Why a port carries no data; empty where it does."""
    name = node.port_id(number)
    if port is None or port.peer is None:
        known = port is not None and port.state is not None
        return f"{name} is {port.state}/{port.physical}" if known and port else f"{name} has no link"
    if port.state not in (None, "Active"):
        return f"{name} is {port.state}, which carries no data"
    return ""


def _arrived(subnet: Subnet, node: IbNode, number: int, lid: int) -> tuple[End, str]:
    owner, here = subnet.lids.get(lid), node.port_id(number)
    if owner is not None and owner[0] is node and owner[1] in (None, number):
        return "arrives", ""
    if owner is None or node.letter == "?":
        what = "whose that LID is, is not known" if owner is None else "what that does with it is not known"
        return "unknown", f"it gets to {here}; {what}"
    return "astray", f"it gets to {here}, which is another's"
