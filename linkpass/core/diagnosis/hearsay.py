"""Evidence about elements that no path shows: this host's own ports, and the words of peers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from linkpass.core.diagnosis.elements import Elements
from linkpass.core.diagnosis.paths import Paths
from linkpass.core.diagnosis.verdict import Hint

if TYPE_CHECKING:
    from linkpass.core.world import World

PORT_NATS: Final = 30.0
TOLD_NATS: Final = 12.0
"""A peer's word about its own port."""
SHARED_NATS: Final = 8.0
SLOW_NATS: Final = 3.0
"""A host that lets probes wait: of two explanations that are as good, the host before what leads to it."""
MOST_SHARED_NATS: Final = 10.0
"""Peers' verdicts, of one and of all, and that a host is slow: enough to break a tie, less than what any element costs,
so that no number of words accuses one without losses that this host has seen."""


def hints(world: World, paths: Paths, now_s: float) -> tuple[Hint, ...]:
    """One hint an element; what several say of one adds up, what is no element of ours is left out.

    A word about a direction that none of our paths crosses is one about its link: a host that sees the other direction
    fail learns from it that both do. One about a direction that we see ourselves says nothing of the other."""
    elements = paths.elements
    found, shared = _Hints(elements), _Hints(elements)
    for uplink in world.uplinks.values():
        why = uplink.port_err if uplink.usable else uplink.why or "no carrier"
        if why:
            found.add(f"{world.settings.host}:{uplink.name}", PORT_NATS, f"{uplink.name}: {why}")
    for link, words in world.told.items():
        for word in words.values():
            if word.kind == "port_down" and word.until_s > now_s:
                found.add_link(link, TOLD_NATS, f"{word.origin} says that its port is down")
    for element, origins in world.suspected.items():
        names = [word.origin for word in origins.values() if word.until_s > now_s]
        if names:
            said = f"{', '.join(names)} named {element}"
            shared.add(element, SHARED_NATS, said)
            if ">" in element and not _sees(paths, element):
                shared.add_link(element, SHARED_NATS, said)
    for peer in world.table.peers.values():
        if peer.host.slow:
            shared.add(peer.title(), SLOW_NATS, f"it is slow: {peer.host.slowness.why}")
    for element, nats, said in shared.all():
        found.add(element, min(nats, MOST_SHARED_NATS), said)
    return tuple(Hint(*one) for one in found.all())


def _sees(paths: Paths, element: str) -> bool:
    number = paths.elements.index.get(element)
    return number is not None and bool(paths.marks[number])


class _Hints:
    def __init__(self, elements: Elements) -> None:
        self._elements = elements
        self._found: dict[str, tuple[float, list[str]]] = {}

    def add(self, element: str, nats: float, words: str) -> None:
        if element in self._elements.index:
            before, said = self._found.get(element, (0.0, []))
            self._found[element] = before + nats, [*said, words]

    def add_link(self, direction: str, nats: float, words: str) -> None:
        """To the link of a direction, if it is called after its nodes."""
        a, _, b = direction.partition(">")
        self.add("-".join(sorted((a, b))), nats, words)

    def all(self) -> list[tuple[str, float, str]]:
        return [(element, nats, "; ".join(said)) for element, (nats, said) in self._found.items()]
