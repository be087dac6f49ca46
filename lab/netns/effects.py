"""From the faults in force to what the wire must do: pure, so that any set of faults can be put on and taken off.

Every direction of a link is one nftables chain at the ingress of the wire device that the sender's packets arrive on;
its last rule forwards to the other wire device. A fault adds rules before that one, or takes a wire device down (the
node behind it loses carrier), or puts a token bucket on the wire device towards the receiver, or has the last rule
forward to a relay that holds the packets for a while.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from lab.addressing import Plan
from lab.faults import AnyFault, Blackhole, Bucket, Carrier, Dead, Delay, Flap, Large, Loss, Rate, directions_of
from topology.model import Fabric

TABLE = "lab"
BUCKET_SEED = 0x6C70

_LOSS_STEPS = 1_000_000


@dataclass(frozen=True, slots=True)
class Effects:
    """`rules`: wire device -> nft rules in order; `down`: wire devices that are down; `bps`: wire device -> shaping;
    `via`: wire device -> the relay's device that its packets take."""

    rules: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    down: frozenset[str] = frozenset()
    bps: Mapping[str, int] = field(default_factory=dict)
    via: Mapping[str, str] = field(default_factory=dict)


def effects(active: Iterable[tuple[int, AnyFault]], fabric: Fabric, lab: Plan) -> Effects:
    """What the wire must do under faults given as (id, fault). A flapping link counts here as down."""
    rules: dict[str, list[str]] = {}
    down: set[str] = set()
    bps: dict[str, int] = {}
    held: dict[str, tuple[float, str]] = {}
    for number, fault in active:
        match fault:
            case Carrier():
                down.update(_carrier(fault, fabric, lab))
            case Flap(how="carrier"):
                down.update(_carrier(Carrier(fault.where), fabric, lab))
            case Dead(silent=False):
                for wire in lab.wires_of(fault.where):
                    down.update((wire.a.wire_device, wire.b.wire_device))
            case Blackhole() | Flap() | Dead():
                places = _directions(fault, fabric, lab)
                for direction in places:
                    _, sender, _ = lab.direction(direction)
                    rules.setdefault(sender.wire_device, []).append(f"counter name {counter(number)} drop")
            case Loss():
                threshold = round(fault.ratio * _LOSS_STEPS)
                test = f"numgen random mod {_LOSS_STEPS} < {threshold} " if threshold < _LOSS_STEPS else ""
                for direction in directions_of(fault.where, fabric):
                    _, sender, _ = lab.direction(direction)
                    rules.setdefault(sender.wire_device, []).append(f"{test}counter name {counter(number)} drop")
            case Bucket():
                for direction in directions_of(fault.where, fabric):
                    _, sender, _ = lab.direction(direction)
                    rules.setdefault(sender.wire_device, []).extend(_bucket(number, fault))
            case Large():
                for direction in directions_of(fault.where, fabric):
                    _, sender, _ = lab.direction(direction)
                    rule = f"meta length > {fault.over_bytes} counter name {counter(number)} drop"
                    rules.setdefault(sender.wire_device, []).append(rule)
            case Delay():
                for device, tap, _ in relayed(number, fault, fabric, lab):
                    held[device] = max(held.get(device, (0.0, "")), (fault.by_s, tap))
            case Rate():
                for direction in directions_of(fault.where, fabric):
                    _, _, receiver = lab.direction(direction)
                    device = receiver.wire_device
                    bps[device] = min(fault.bps, bps.get(device, fault.bps))
            case _:
                pass  # a frozen host: nothing on the wire
    via = {device: tap for device, (_, tap) in held.items()}
    return Effects({device: tuple(lines) for device, lines in rules.items()}, frozenset(down), bps, via)


def relayed(number: int, fault: Delay, fabric: Fabric, lab: Plan) -> list[tuple[str, str, str]]:
    """Of each direction that a fault delays: the wire device where packets come from, the relay's own device that they
    are sent to, and the wire device that the relay sends them out of."""
    found = []
    for place, direction in enumerate(directions_of(fault.where, fabric)):
        _, sender, receiver = lab.direction(direction)
        found.append((sender.wire_device, f"held{number}-{place}", receiver.wire_device))
    return found


def counter(number: int) -> str:
    """Name of the nft counter of a fault's dropped packets."""
    return f"fault{number}"


def is_counted(fault: AnyFault) -> bool:
    """Whether a fault drops packets by rules, which count them (a flapping link keeps its counter while it rests)."""
    match fault:
        case Blackhole() | Loss() | Bucket() | Large() | Flap(how="blackhole") | Dead(silent=True):
            return True
        case _:
            return False


def base_ruleset(lab: Plan) -> str:
    """The wire without faults: each device's packets go out of the other one."""
    chains = []
    for wire in lab.wires:
        for near, far in wire.both_ways():
            hook = f'type filter hook ingress device "{near.wire_device}" priority 0; policy drop;'
            chains.append(f" chain {near.wire_device} {{\n  {hook}\n  {_forward(far.wire_device)}\n }}")
    return f"table netdev {TABLE} {{\n" + "\n".join(chains) + "\n}\n"


def change(before: Effects, after: Effects, lab: Plan, added: Iterable[int], removed: Iterable[int]) -> str:
    """One nft transaction from one set of rules to another; empty when the rules are the same."""

    def chain(effects: Effects, device: str) -> tuple[str, ...]:
        return (*effects.rules.get(device, ()), _forward(effects.via.get(device, far_of[device])))

    far_of = {near.wire_device: far.wire_device for wire in lab.wires for near, far in wire.both_ways()}
    lines = []
    for device in sorted({*before.rules, *after.rules, *before.via, *after.via}):
        wanted = chain(after, device)
        if wanted != chain(before, device):
            lines.append(f"flush chain netdev {TABLE} {device}")
            lines += [f"add rule netdev {TABLE} {device} {rule}" for rule in wanted]
    new = [f"add counter netdev {TABLE} {counter(number)}" for number in added]
    old = [f"delete counter netdev {TABLE} {counter(number)}" for number in removed]
    return "\n".join([*new, *lines, *old])


def _forward(device: str) -> str:
    return f'fwd to "{device}"'


def _carrier(fault: Carrier, fabric: Fabric, lab: Plan) -> list[str]:
    wire, a, b = lab.direction(fabric.link(fault.where).directions()[0])
    return [end.wire_device for end in (a, b) if fault.node in ("", end.node)] if wire else []


def _directions(fault: Blackhole | Flap | Dead, fabric: Fabric, lab: Plan) -> tuple[str, ...]:
    if isinstance(fault, Dead):
        return tuple(direction for wire in lab.wires_of(fault.where) for direction in (wire.forward, wire.backward))
    return directions_of(fault.where, fabric)


def _bucket(number: int, fault: Bucket) -> list[str]:
    """IPv6 by source, destination and flow label, as the switches hash it; IPv4 by addresses, protocol and ports."""
    test = f"mod {fault.of} seed {BUCKET_SEED:#x} {fault.index - 1} counter name {counter(number)} drop"
    return [
        f"meta protocol ip6 jhash ip6 saddr . ip6 daddr . ip6 flowlabel {test}",
        f"meta protocol ip jhash ip saddr . ip daddr . ip protocol . th sport . th dport {test}",
    ]
