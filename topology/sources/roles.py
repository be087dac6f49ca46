"""Which node is a host and which a switch, where a file does not say so; and how far each switch is from the hosts.

Evidence in this order, the first that says something wins: what the file states, the kind (a network operating system
is a switch), the name of the node's group, the node's own name, its image (a routing daemon's is a switch), what it
says it does (LLDP's capabilities), and last the graph: a node that joins others which are not all switches has to
forward, every other one is a host.
All that is not stated is said in notes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from topology.model import Role

GENERAL_KINDS = frozenset({"linux", "ext-container", "generic_vm", "k8s-kind", "freebsd", "openbsd", "openwrt"})
"""Kinds that can be anything. Every other kind is a network operating system or a bridge, hosts excepted."""

HOST_KINDS = frozenset({"host", "border0", "keysight_ixia-c-one", "ostinato", "spirent_stc"})

BRIDGE_KINDS = frozenset({"bridge", "ovs-bridge"})

_HOST_WORDS = "host|server|srv|client|pc|gpu|compute|worker|trainer"
_SWITCH_WORDS = "(?:super)?spine|leaf|tor|switch|sw|router|rtr|agg|core|border"
_PLURAL = r"(?:s|es)?"
_WORD = re.compile(rf"(?:.*[-_.|])?(?:(?P<host>{_HOST_WORDS})|(?P<switch>{_SWITCH_WORDS}|leave)){_PLURAL}[-_.]?\d*")
_ROUTING_IMAGE = re.compile(r"(?:^|[/_-])(?:frr|frrouting|bird\d?|gobgp|openbgpd|exabgp|holo|sonic|vyos|cumulus)\b")


@dataclass(frozen=True, slots=True)
class Clues:
    """What is known of a node. `role` and `tier` are what the file states, None where it says nothing; `forwards`:
    whether it says that it bridges or routes."""

    name: str
    kind: str
    image: str
    group: str
    role: Role | None = None
    tier: int | None = None
    forwards: bool | None = None


@dataclass(frozen=True, slots=True)
class Placed:
    role: Role
    tier: int | None


def place(nodes: Sequence[Clues], neighbours: Mapping[str, Sequence[str]]) -> tuple[dict[str, Placed], tuple[str, ...]]:
    """Role and tier of each node by name, and the notes that say what was inferred from what."""
    because: dict[tuple[Role, str], list[str]] = {}
    roles: dict[str, Role] = {}
    open_nodes: list[str] = []
    for node in nodes:
        role, reason = _from_words(node)
        if role is None:
            open_nodes.append(node.name)
            continue
        roles[node.name] = role
        if reason:
            because.setdefault((role, reason), []).append(node.name)
    for name, role, reason in _from_graph(open_nodes, roles, neighbours):
        roles[name] = role
        because.setdefault((role, reason), []).append(name)
    notes = [f"inferred to be {role}: {', '.join(names)} ({reason})" for (role, reason), names in because.items()]
    tiers, tier_note = _tiers(nodes, roles, neighbours)
    placed = {node.name: Placed(roles[node.name], tiers.get(node.name)) for node in nodes}
    return placed, (*notes, *tier_note)


def _from_words(node: Clues) -> tuple[Role | None, str]:
    if node.role is not None:
        return node.role, ""
    if node.kind in HOST_KINDS:
        return "host", f"kind {node.kind}"
    if node.kind not in GENERAL_KINDS:
        return "switch", f"kind {node.kind}"
    for word, what in ((node.group, f"group {node.group}"), (node.name, "by name")):
        found = _WORD.fullmatch(word.lower())
        if found:
            return ("host" if found["host"] else "switch"), what
    if _ROUTING_IMAGE.search(node.image.lower()):
        return "switch", f"image {node.image}"
    if node.forwards is not None:
        return ("switch", "it says that it forwards") if node.forwards else ("host", "it says that it does not forward")
    return None, ""


def _from_graph(
    open_nodes: Sequence[str], known: Mapping[str, Role], neighbours: Mapping[str, Sequence[str]]
) -> list[tuple[str, Role, str]]:
    found: list[tuple[str, Role, str]] = []
    undecided = []
    for name in open_nodes:
        around = set(neighbours.get(name, ()))
        if len(around) <= 1:
            found.append((name, "host", "no more than one neighbour"))
        elif all(known.get(peer) == "switch" for peer in around):
            found.append((name, "host", "all neighbours are switches"))
        else:
            undecided.append(name)
    return found + [(name, "switch", "joins nodes that are not all switches") for name in undecided]


def _tiers(
    nodes: Sequence[Clues], roles: Mapping[str, Role], neighbours: Mapping[str, Sequence[str]]
) -> tuple[dict[str, int], tuple[str, ...]]:
    tiers: dict[str, int] = {name: 0 for name, role in roles.items() if role == "host"}
    ring = list(tiers)
    distance = 0
    while ring:
        distance += 1
        around = dict.fromkeys(peer for name in ring for peer in neighbours.get(name, ()) if peer not in tiers)
        tiers.update(dict.fromkeys(around, distance))
        ring = list(around)
    stated = {node.name: node.tier for node in nodes if node.tier is not None}
    inferred: dict[int, list[str]] = {}
    for name, tier in tiers.items():
        if roles[name] == "switch" and name not in stated:
            inferred.setdefault(tier, []).append(name)
    lost = [name for name, role in roles.items() if role == "switch" and name not in tiers and name not in stated]
    notes = [
        f"inferred to be tier {tier}: {', '.join(names)} (links to the nearest host)"
        for tier, names in inferred.items()
    ]
    if lost:
        notes.append(f"tier unknown: {', '.join(lost)} (no host can be reached)")
    return {**tiers, **stated}, tuple(notes)
