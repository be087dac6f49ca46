"""From findings to the journal and to peers: each name once, as sure as it is, and taken back when it is over."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from linkpass.core.diagnosis import saying
from linkpass.core.diagnosis.one_host import seen_of
from linkpass.core.diagnosis.verdict import Verdict
from linkpass.core.world import names_of

if TYPE_CHECKING:
    from linkpass.core.diagnosis.ground import Ground
    from linkpass.core.world import Tray, World

OVER_S: Final = 3.0
"""A verdict is taken back when nothing has spoken for it this long: what flaps is one story."""
SOFT_S, RIPE_S = 0.3, 1.0
"""What loses only some of its packets is named when it has been suspected for RIPE_S, and certain for the last SOFT_S
without a break. What other paths have lost becomes known later (a peer that answers late, a loss that is still to
come), and until then a part of an innocent element may explain all. What lets nothing through shows it at once."""
AGAIN_S: Final = 3.0
"""A verdict that stands is told to peers this often."""


class Peers(Protocol):
    """Tells peers that we name an element, and that we name it no longer."""

    def suspect(self, element: str, cause: str, now_s: float) -> None: ...

    def unsuspect(self, element: str, cause: str, now_s: float) -> None: ...


@dataclass(slots=True)
class Named:
    verdict: Verdict
    cause: str
    seen_at_s: float
    """When it was last among the findings."""
    shared_as: str = ""
    """Under which name peers know of it; empty: they do not."""
    shared_at_s: float = float("-inf")


class Naming:
    def __init__(self, world: World, tray: Tray, ground: Ground, peers: Peers) -> None:
        self._world, self._tray, self._ground, self._peers = world, tray, ground, peers
        self.named: dict[str, Named] = {}
        """Those that the journal knows of and that hold, by element."""
        self._before: dict[str, float] = {}
        """What was certain in the last run, and since when without a break: evidence that is half there makes others
        look guilty for a moment."""

    def tell(self, findings: Sequence[Verdict], now_s: float) -> None:
        """After a run of the localiser."""
        for element, known in list(self.named.items()):
            if any(self._covers(one, known.verdict) for one in findings):
                known.seen_at_s = now_s
            elif now_s >= known.seen_at_s + OVER_S:
                self._end(element, "its paths are clean again, or something else explains them", now_s)
        certain = {one.element: one for one in findings if one.certain and not self._only_a_daemon(one)}
        self._before = {element: self._before.get(element, now_s) for element in certain}
        for element, verdict in certain.items():
            stands_s = now_s - self._before[element]
            if verdict.kind == "congestion" or verdict.loss_ratio >= saying.NOTHING_RATIO:
                ripe = stands_s > 0
            else:
                ripe = stands_s >= SOFT_S and verdict.since_s >= RIPE_S
            if ripe:
                self._name(verdict, now_s)
        if self._world.settings.diagnosis.share:
            self._tell_peers(now_s)
        self._world.in_force = tuple(self.named)

    def clear(self, wanted: Collection[str] | None, now_s: float) -> list[Verdict]:
        """Somebody has repaired what goes by one of these names (None: everything). What was named so is over."""
        over = [known.verdict for known in self.named.values() if wanted is None or self._goes_by(known, wanted)]
        for verdict in over:
            self._end(verdict.element, "cleared by the operator", now_s)
        for verdict in over:
            self._before.pop(verdict.element, None)
        self._world.in_force = tuple(self.named)
        return over

    def _goes_by(self, known: Named, wanted: Collection[str]) -> bool:
        elements = self._ground.elements
        names = set(known.verdict.suspects)
        if elements is not None and known.verdict.element in elements.index:
            parts = elements.parts(elements.index[known.verdict.element])
            names |= {name for part in parts for name in names_of(elements.names[part])}
        return not names.isdisjoint(wanted)

    def _end(self, element: str, why: str, now_s: float) -> None:
        known = self.named.pop(element)
        self._tray.record(known.cause, saying.over(known.verdict), why, element=element)
        if known.shared_as:
            self._peers.unsuspect(known.shared_as, known.cause, now_s)

    def _only_a_daemon(self, verdict: Verdict) -> bool:
        """One silent peer, of whose data nothing is known, may have lost its daemon and nothing else."""
        peers = self._ground.failing_peers(verdict)
        return len(peers) == 1 and peers[0].silent_since_s is not None and peers[0].data_flows is not False

    def _name(self, verdict: Verdict, now_s: float) -> None:
        """Say it, unless no less has been said: a class that has shrunk is news, and a whole that has proved a part."""
        covered = [name for name, known in self.named.items() if self._covers(verdict, known.verdict)]
        for before in (self.named[name].verdict for name in covered):
            part = before.scope == "whole" and verdict.scope == "partial" and before.suspects == verdict.suspects
            if set(before.suspects) <= set(verdict.suspects) and not part:
                return
        cause = self._cause_of(verdict) or self._world.incident(now_s)
        shared = {known.shared_as: known.shared_at_s for known in map(self.named.pop, covered) if known.shared_as}
        name = self._seen_of(verdict)
        shared_at_s = shared.pop(name, float("-inf"))
        for element in shared:
            self._peers.unsuspect(element, cause, now_s)
        self.named[verdict.element] = Named(verdict, cause, now_s, name if shared_at_s > 0 else "", shared_at_s)
        self._tray.record(
            cause, saying.what(verdict), saying.why(verdict), element=verdict.element,
            level="info" if verdict.kind == "congestion" else "warning",
        )  # fmt: skip

    def _covers(self, verdict: Verdict, before: Verdict) -> bool:
        """Whether what was named is still meant: among the suspects, or as a part of what is named now."""
        if set(before.suspects) & set(verdict.suspects):
            return True
        elements = self._ground.elements
        if elements is None or before.element not in elements.index:
            return False
        mine = elements.parts(elements.index[verdict.element])
        return elements.parts(elements.index[before.element]) < mine

    def _tell_peers(self, now_s: float) -> None:
        """What is beyond doubt, and no part of a host that its peers have other names for; as far as this host sees it
        itself: a word that came of words would come back as if another had seen the same."""
        for named in self.named.values():
            stands = named.seen_at_s == now_s and named.verdict.kind not in ("congestion", "nic")
            if stands and not named.verdict.others and now_s >= named.shared_at_s + AGAIN_S:
                named.shared_as, named.shared_at_s = self._seen_of(named.verdict), now_s
                self._peers.suspect(named.shared_as, named.cause, now_s)

    def _seen_of(self, verdict: Verdict) -> str:
        localiser = self._ground.localiser
        return verdict.element if localiser is None else seen_of(verdict, localiser.paths)

    def _cause_of(self, verdict: Verdict) -> str:
        """The story to which the failure of its paths belongs already."""
        for key in self._ground.over(verdict):
            peer, path = self._ground.path(key)
            if path.element.state == "down" and path.element.cause:
                return path.element.cause
            if peer.silent_since_s is not None and peer.cause:
                return peer.cause
        return ""
