"""The ways in which benches, the demo and the tests break a fabric under a job, and where they do it.

Pure: a case and what each direction carries at that moment give the place. The place is always one that carries the
job's bytes; places rotate, so that no link is broken twice in a row while another carries as well.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from lab.errors import LabError
from lab.faults import AnyFault, directions_of, parse
from topology.model import Fabric, Link

HOLD_S = 3.0
BULK_RATIO = 0.25
"""A place carries the job's bytes when it carries this share of what the busiest place of its kind does: the others
carry acknowledgements."""
BUCKETS = 4

Tier = Literal["host-leaf", "leaf-spine", "spine", "any"]


@dataclass(frozen=True, slots=True)
class Case:
    """`fault`: its text (`lab.faults`) with `{link}`, `{direction}`, `{node}`, `{bucket}` or `{tenth}` (of what the job
    sends there: a lab link has no rate of its own) to be filled in, or
    `drain`: the link is taken out of service by order, where nobody takes orders by taking its carrier."""

    name: str
    tier: Tier
    fault: str
    what: str
    hold_s: float = HOLD_S
    both_ways: bool = False
    """Each direction of the link has to carry the job, not the two together."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a case breaks the fabric. `broken`: the directions on which packets vanish; `host`: the link's host; `bps`:
    what the busiest of these directions carried of the job."""

    link: str
    where: str
    broken: tuple[str, ...]
    host: str = ""
    bps: float = 0.0


LEAST_RATE_BPS = 5_000_000
"""No link is cut to less: else the probes of a few hosts (up to 2 Mbit/s on a link) would be its load."""

_ALL = (
    Case("carrier", "host-leaf", "carrier:{link}", "an uplink of a host loses carrier", both_ways=True),
    Case("blackhole-both", "leaf-spine", "blackhole:{link}", "a fabric link swallows packets, both ways"),
    Case("blackhole-oneway", "leaf-spine", "blackhole:{direction}", "a fabric link swallows packets, one way"),
    Case("blackhole-hostleaf", "host-leaf", "blackhole:{link}", "an uplink of a host swallows packets, carrier stays"),
    Case("bucket", "leaf-spine", "bucket:{direction}:{bucket}/4", "a switch drops one ECMP bucket of four: pings pass"),
    Case("loss-5pct", "leaf-spine", "loss:{link}:5%", "a fabric link loses 5 % of its packets"),
    Case("flap", "leaf-spine", "flap:{link}:2hz", "a fabric link goes down and up, twice a second", hold_s=10.0),
    Case("drain", "any", "drain", "a link is taken out of service for maintenance"),
    Case(
        "rate-cut",
        "leaf-spine",
        "rate:{link}:{tenth}",
        "a fabric link carries a tenth of what the job sends over it",
        hold_s=4.0,
    ),
    Case(
        "largepackets",
        "leaf-spine",
        "large:{direction}:1000",
        "a fabric link swallows large packets, one way: pings pass",
    ),
    Case("spine-dead", "spine", "dead:{node}", "a spine loses power"),
)
CASES: Mapping[str, Case] = {case.name: case for case in _ALL}


def candidates(case: Case, fabric: Fabric, rates: Mapping[str, float]) -> dict[str, float]:
    """Places that a case can break (links, directions, nodes) and the job's bits/s that each carries, busiest first."""
    found: dict[str, float] = {}
    for link in fabric.links:
        if case.tier not in ("any", tier_of(link, fabric)) and not (
            case.tier == "spine" and _reaches_spine(link, fabric)
        ):
            continue
        ways = {direction: rates.get(direction, 0.0) for direction in link.directions()}
        if "{direction}" in case.fault:
            found.update(ways)
        elif "{node}" in case.fault:
            spine = _upper_end(link, fabric)
            found[spine] = found.get(spine, 0.0) + sum(ways.values())
        else:
            found[link.id] = min(ways.values()) if case.both_ways else sum(ways.values())
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def choose(
    case: Case,
    fabric: Fabric,
    rates: Mapping[str, float],
    chance: random.Random,
    last: str = "",
    least_bps: float = 2e4,
) -> Place:
    """A place that carries the job's bytes, another one than the last (a link, or a node) while there is one.

    Raises LabError when nothing carries `least_bps`."""
    found = candidates(case, fabric, rates)
    busiest = max(found.values(), default=0.0)
    if busiest < least_bps:
        raise LabError(f"{case.name}: no {case.tier} link carries the job's bytes", "does the job run?")
    bulk = [where for where, bps in found.items() if bps >= BULK_RATIO * busiest]
    other = [where for where in bulk if _name(where, fabric) != last]
    if not other:  # what carries least is better than the same again, if it carries the job's bytes at all
        other = [where for where, bps in found.items() if _name(where, fabric) != last and bps >= least_bps]
    where = chance.choice(sorted(other or bulk))
    if "{node}" in case.fault:
        return Place(where, where, tuple(d for link in fabric.links_of(where) for d in link.directions()))
    link = fabric.link(_name(where, fabric))
    hosts = [port.node for port in (link.a, link.b) if fabric.node(port.node).role == "host"]
    broken = directions_of(where, fabric)
    bps = max(rates.get(direction, 0.0) for direction in broken)
    return Place(link.id, where, broken, hosts[0] if hosts else "", bps)


def fault_of(case: Case, place: Place, fabric: Fabric, *, bucket: int = 1, orders: bool = True) -> AnyFault | None:
    """The fault to inject; None for an order, if somebody takes `orders`."""
    text = case.fault
    if text == "drain":
        if orders:
            return None
        text = "carrier:{link}"
    tenth = f"{max(LEAST_RATE_BPS, round(place.bps / 10)) // 1000}kbit"
    filled = text.format(link=place.link, direction=place.where, node=place.where, bucket=bucket, tenth=tenth)
    return parse(filled, fabric)


def tier_of(link: Link, fabric: Fabric) -> Tier:
    ends = {fabric.node(link.a.node).role, fabric.node(link.b.node).role}
    return "host-leaf" if "host" in ends else "leaf-spine"


def _upper_end(link: Link, fabric: Fabric) -> str:
    return max((link.a.node, link.b.node), key=lambda name: fabric.node(name).tier or 0)


def _reaches_spine(link: Link, fabric: Fabric) -> bool:
    return (fabric.node(_upper_end(link, fabric)).tier or 0) >= 2


def _name(where: str, fabric: Fabric) -> str:
    return fabric.link_of(where).id if ">" in where else where
