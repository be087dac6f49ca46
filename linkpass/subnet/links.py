"""Links that are not there, slower than they could be, or up without carrying data."""

from __future__ import annotations

from collections.abc import Iterator

from linkpass.subnet.finding import Finding
from topology.sources.infiniband import IbPort, Subnet

_TRAINING = frozenset({"PortConfigurationTraining", "LinkErrorRecovery"})


def faults_of(subnet: Subnet) -> Iterator[Finding]:
    """What the ports of a subnet tell of their own links: needs iblinkinfo's output, others do not say."""
    done: set[str] = set()
    for node in subnet.nodes.values():
        for number, port in node.ports.items():
            here = node.port_id(number)
            ends = tuple(sorted((here, _far(subnet, port)))) if port.peer else (here,)
            if port.mute:
                yield Finding("no answer", (here,), "the link is up, and what is at its other end does not answer")
            elif port.physical in _TRAINING:
                yield Finding("training", (here,), f"the port is {port.state}/{port.physical}: its link does not hold")
            if here in done or not port.peer:
                continue
            if port.could_width is not None or port.could_speed is not None:
                done |= set(ends)
                yield Finding("slow link", ends, f"runs at {port.rate}, both ends could do {_could(port)}")
            if port.state in ("Initialize", "Armed"):
                done |= set(ends)
                why = "no subnet manager has brought it up" if port.state == "Initialize" else "it waits for data"
                yield Finding("inactive link", ends, f"is {port.state}, which carries no data: {why}")


def compared(planned: Subnet, seen: Subnet, *, whole: bool) -> tuple[list[Finding], str]:
    """Links of `planned` that `seen` does not have, and others; both with the same names.

    `whole`: what `seen` does not list is not there (ibnetdiscover). Else a link of which neither port is listed is not
    known: the sentence says how many there are, empty when none."""
    wanted, there = _pairs(planned), _pairs(seen)
    ports = {node.port_id(number): port for node in seen.nodes.values() for number, port in node.ports.items()}
    found: list[Finding] = []
    unknown = 0
    for ends in wanted - there:
        listed = [end for end in sorted(ends) if whole or end in ports]
        if not listed:
            unknown += 1
            continue
        states = ", ".join(f"{end} {_now(seen, ports.get(end))}" for end in listed)
        found.append(Finding("missing link", tuple(sorted(ends)), f"is not there: {states}"))
    for ends in there - wanted:
        found.append(Finding("other link", tuple(sorted(ends)), "is there, and the first file does not have it"))
    found.sort(key=lambda one: (one.kind, one.ports))
    return found, f"not listed, so not compared: {unknown} links" if unknown else ""


def _pairs(subnet: Subnet) -> set[frozenset[str]]:
    return {
        frozenset((node.port_id(number), _far(subnet, port)))
        for node in subnet.nodes.values()
        for number, port in node.ports.items()
        if port.peer
    }


def _far(subnet: Subnet, port: IbPort) -> str:
    assert port.peer is not None
    return subnet.nodes[port.peer[0]].port_id(port.peer[1])


def _now(subnet: Subnet, port: IbPort | None) -> str:
    if port is None:
        return "has no link"
    if port.peer:
        return f"goes to {_far(subnet, port)}"
    return f"is {port.state}/{port.physical}" if port.state else "has no link"


def _could(port: IbPort) -> str:
    words = [f"{port.could_width}x" if port.could_width else "", port.could_speed or ""]
    return " ".join(filter(None, words))
