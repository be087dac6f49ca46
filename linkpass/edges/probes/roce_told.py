"""Where peers answer datagrams of RoCE: queue pair numbers and keys, told over the probes of paths.

They are taken only from packets that are signed and speak of this run of ours (`hearing`), and count for as long as the
peer's daemon is the one that said them: one that is new is asked anew.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from linkpass.edges.probes.books import Books
from linkpass.edges.probes.peers import Peer
from linkpass.edges.probes.roce_ports import Sides
from linkpass.edges.probes.sending import Sender
from linkpass.wire import probe

ASK_S: Final = 1.0
"""The first pause between two questions; it doubles."""
ASK_AGAIN_S: Final = 0.25
"""The same where a peer has said something, and its answers stay away."""
ASK_MAX_S: Final = 30.0


class Told(NamedTuple):
    """As told at `at_s` by the daemon with this boot id; `places`: by address of 16 bytes."""

    boot: int
    at_s: float
    places: dict[bytes, probe.RocePlace]


class Directory:
    """Asks and tells through `sender`; our own places are those of `sides`."""

    def __init__(self, books: Books, sender: Sender, sides: Sides) -> None:
        self._books, self._sender, self._sides = books, sender, sides
        self._told: dict[bytes, Told] = {}
        self._peer_of: dict[bytes, Peer] = {}
        self._asked: dict[bytes, tuple[float, int]] = {}
        """Peer -> when it was last asked, and how often since it last said something."""

    def take(self, peer: Peer, places: list[probe.RocePlace], now_s: float) -> bool:
        """What a peer says; answered when it asks. True when it has other addresses than before."""
        known = self._told.get(peer.packed)
        told = Told(peer.boot, now_s, {place.gid: place for place in places if place.qpn})
        self._told[peer.packed] = told
        if peer.packed in self._asked:
            self._asked[peer.packed] = self._asked[peer.packed][0], 0
        for gid in [gid for gid, whose in self._peer_of.items() if whose is peer]:
            del self._peer_of[gid]
        self._peer_of.update(dict.fromkeys(told.places, peer))
        if any(place.asks for place in places):
            self._sender.tell_roce(peer, self._sides.places(asks=False), now_s)
        return known is None or known.places.keys() != told.places.keys()

    def peer_of(self, gid: bytes) -> Peer | None:
        """The host behind an address."""
        return self._peer_of.get(gid)

    def place(self, peer: Peer, gid: bytes) -> probe.RocePlace | None:
        """Where an address answers, if the peer's daemon is the one that said so."""
        told = self._told.get(peer.packed)
        return told.places.get(gid) if told is not None and told.boot == peer.boot else None

    def said_since(self, peer: Peer, at_s: float) -> bool:
        told = self._told.get(peer.packed)
        return told is not None and told.at_s > at_s

    def ask(self, peer: Peer, now_s: float, *, again: bool = False) -> None:
        """Unless it was asked a moment ago; `again`: it has said, and its answers stay away. Who has said that it
        answers nowhere is asked rarely."""
        told = self._told.get(peer.packed)
        nowhere = told is not None and told.boot == peer.boot and not again
        at_s, times = self._asked.get(peer.packed, (-math.inf, 0))
        pause_s = ASK_MAX_S if nowhere else (ASK_AGAIN_S if again else ASK_S) * 2.0 ** max(0, times - 1)
        if now_s - at_s < min(ASK_MAX_S, pause_s):
            return
        if self._sender.tell_roce(peer, self._sides.places(asks=True), now_s):
            self._asked[peer.packed] = now_s, min(times + 1, 16)

    def tell_all(self, now_s: float) -> None:
        """Ours are others than before: who was told is told."""
        for packed in self._told:
            self._sender.tell_roce(self._books.peers[packed], self._sides.places(asks=True), now_s)
