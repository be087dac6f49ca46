"""The pace of the job, said to peers and heard from them: signed as all probes are, and only from this run of theirs.

Claims are counts of the whole life of the speaker's daemon, so nothing is acknowledged or repeated for its own sake."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from linkpass.core.events import Event, PaceClaim, PaceTold, StepArrived
from linkpass.edges.probes.books import Books
from linkpass.edges.probes.budget import Bucket
from linkpass.edges.probes.peers import Peer
from linkpass.edges.probes.sending import Sender
from linkpass.wire import pace

BUDGET_RATIO: Final = 0.05
"""Of the packet limit that words may take; where that is too little for all peers, some are told each time."""


class PaceTalk:
    """Tells through `sender`, hears through the books, emits PaceTold and StepArrived."""

    def __init__(self, books: Books, sender: Sender, emit: Callable[[Event], None], clock: Callable[[], float]) -> None:
        self._books, self._sender, self._emit, self._clock = books, sender, emit, clock
        self._turn = 0
        self._budget = Bucket(BUDGET_RATIO * books.settings.probing.max_packets_per_s)
        books.on_pace = self._hear

    def tell(self, claims: Sequence[PaceClaim], arrivals: Iterable[StepArrived] = ()) -> int:
        """Say this host's claims, and where its ranks have come to, to all peers that are probed; returns to how many
        it was sent."""
        values = []
        if claims:
            wire = [pace.Claim(c.kind, c.about, c.units, c.hits, c.lag_s, c.period_s) for c in claims]
            values.append((pace.CLAIMS, pace.claims_value(wire)))
        came = [pace.Arrival(one.rank, one.step, int(one.at_s * 1e9)) for one in arrivals]
        if came:
            values.append((pace.ARRIVALS, pace.arrivals_value(came)))
        if not values:
            return 0
        now_s = self._clock()
        peers = [peer for peer in self._books.peers.values() if peer.paths and not peer.silent]
        at = self._turn % max(1, len(peers))
        sent = 0
        for peer in peers[at:] + peers[:at]:
            if not self._budget.take(now_s, 1):
                break
            self._turn += 1
            sent += self._sender.tell_pace(peer, values, now_s)
        return sent

    def _hear(self, peer: Peer, said: list[tuple[int, bytes]]) -> None:
        for kind, value in said:
            if kind == pace.CLAIMS:
                claims = tuple(PaceClaim(*claim) for claim in pace.claims_of(value))  # type: ignore[arg-type]
                self._emit(PaceTold(peer=peer.address, claims=claims))
            else:
                # The difference of the clocks is known but for the least way between the hosts.
                for one in pace.arrivals_of(value):
                    at_s = one.at_ns * 1e-9 + peer.clock.value
                    self._emit(StepArrived(peer=peer.address, rank=one.rank, step=one.step, at_s=at_s))
