"""Paths that would tell suspects apart: chosen from what traces know, probed for a moment, then dropped.

A fault of one hash bucket hits one or two of the paths that are probed, and these cross several elements each: no
observation of them tells which of those it is. Many more labels have been traced than are in use. Of these some cross
one suspect and not the others: whether they are hit too tells.

This is adaptive group testing: each path is a test of all that it crosses, and the next ones are chosen by what is
likely after the last ones; the greedy measure is what a test is expected to tell (mutual information). deTector (Peng
et al., USENIX ATC 2017) chooses the paths of all probes so that faults can be told apart, ahead of time; here they are
chosen when there is something to tell. That a few paths are better than many at what is not in doubt is its finding,
too.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from linkpass.core.diagnosis.accounts import Key
from linkpass.core.diagnosis.saying import NOTHING_RATIO
from linkpass.core.diagnosis.verdict import Verdict
from linkpass.core.extra import SLOWER

if TYPE_CHECKING:
    from linkpass.core.diagnosis.ground import Ground
    from linkpass.core.world import World

MOST: Final = 16
"""Paths probed at one time, over all suspicions."""
MOST_IN_ALL: Final = 64
"""And one after the other, until all news is good again or a path in use fails anew."""
TOGETHER_S, TOGETHER = 0.15, 4
"""That a path is whole is known after its first probe, that it is hit after its third: what was asked together counts
together, or after so long and so many probes, else what is hit would seem rarer than it is."""
MUTE_S, MUTE = 0.5, 8
"""A path that has told nothing for so long, and in so many probes, will not."""
LAST_S, LAST, LATEST_S = 2.0, 16, 10.0
"""So long after the first of them, and so many probes of each, the last ones are dropped, whatever they have told; in
any case after `LATEST_S`."""
MOST_FINDINGS: Final = 3
"""Where more is suspected at one time something greater fails, and the paths in use tell what."""
LOOKED_AT: Final = 2000
"""Traced paths that are looked at for a choice."""
ENOUGH: Final = 8
"""Paths over an element that is suspected alone, from which it is known whether the whole of it fails."""
AGAIN: Final = 0.8
"""What a path tells is worth so much less for each one chosen that crosses the same suspects."""
LEAST_NATS: Final = 0.003
"""A path that is expected to tell less is not worth its probes."""

Crossed = frozenset[int]
"""Which suspects a path crosses, by their places."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """`weight`: its probability among the suspects; `share`: of the paths over it that are hit if it is the one."""

    weight: float
    share: float


def worth(crossed: Crossed, suspects: Sequence[Suspect]) -> float:
    """Nats that a path is expected to tell of which suspect it is: mutual information of that and of whether the path
    is hit."""
    hit = sum(suspects[place].weight * suspects[place].share for place in crossed)
    return _entropy(hit) - sum(suspects[place].weight * _entropy(suspects[place].share) for place in crossed)


def choose(
    candidates: Mapping[Key, Crossed], suspects: Sequence[Suspect], most: int, least: float = LEAST_NATS
) -> list[Key]:
    """At most `most` of the paths, greedily those that tell most; of those that tell the same things the peers take
    turns."""
    alike: dict[Crossed, dict[str, list[Key]]] = {}
    for key, crossed in candidates.items():
        alike.setdefault(crossed, {}).setdefault(key[0], []).append(key)
    value = {crossed: worth(crossed, suspects) for crossed in alike}
    turns = {crossed: _in_turn(list(by_peer.values())) for crossed, by_peer in alike.items()}
    chosen: list[Key] = []
    while len(chosen) < most:
        best = max((one for one in turns if turns[one]), key=lambda one: value[one], default=None)
        if best is None or value[best] < least:
            break
        chosen.append(turns[best].pop(0))
        value[best] *= AGAIN
    return chosen


def _alone(one: Verdict) -> bool:
    return one.certain and not one.others


def _in_turn(lists: list[list[Key]]) -> list[Key]:
    longest = max(map(len, lists))
    return [some[turn] for turn in range(longest) for some in lists if turn < len(some)]


def _entropy(share: float) -> float:
    return -sum(one * math.log(one) for one in (share, 1 - share) if one > 0)


class Asking:
    """What is asked now, and what has been told."""

    def __init__(self, world: World, ground: Ground) -> None:
        self._world, self._ground = world, ground
        self._until_s: float | None = None
        """None: nothing is asked now."""
        self._asked: set[Key] = set()
        self._failing: set[Key] = set()
        """The paths in use that have failed since all was good: what they leave open is asked once."""
        self._about: set[Key] = set()
        """Those of them about which something is asked now."""
        self._known: tuple[object, ...] = ()
        """What the last choice was made from: as long as nothing is learnt it would be the same."""
        self.told: dict[Key, None] = {}
        """Paths whose answer counts as long as this is looked into, also those that are not probed any more."""

    @property
    def asks(self) -> bool:
        return self._until_s is not None

    def hear(self, now_s: float) -> tuple[Key, ...]:
        """Before a run of the localiser: the paths that have told something."""
        world, wait_s = self._world, self._span_s(TOGETHER_S, TOGETHER)
        known = {key for key in world.extra if (path := world.table.find(*key)) and path.evidence != "unknown"}
        waits = {since_s for key, since_s in world.extra.items() if key not in known and now_s < since_s + wait_s}
        self.told.update(
            dict.fromkeys(key for key, since_s in world.extra.items() if key in known and since_s not in waits)
        )
        return tuple(self.told)

    def silent(self, key: Key) -> bool:
        """Whether a path has told what it had to, and is not probed any more."""
        if key not in self.told or key in self._world.extra:
            return False
        return key[1:] not in self._world.table.peer(key[0]).in_use

    def turn(self, findings: Sequence[Verdict], named: Collection[str], now_s: float) -> bool:
        """After it; whether other paths are to be probed than before. `named`: the elements that have been named: of
        one that is suspected alone the name does not wait for what more paths would tell of it."""
        before = set(self._world.extra)
        self._let_go(now_s)
        asked = [one for one in findings if self._open(one) and (one.element in named or not _alone(one))]
        news = self._news(asked)
        if self._until_s is not None and (now_s >= self._until_s or self._healed()):
            self._end()
        elif asked and len(asked) <= MOST_FINDINGS and (news or self._until_s is not None):
            if self._until_s is None:
                self._until_s = now_s + min(LATEST_S, self._span_s(LAST_S, LAST))
            self._ask(asked, now_s)
        return set(self._world.extra) != before

    def rest(self) -> bool:
        """Nothing is wrong any more, or what was wrong is repaired; whether paths are dropped."""
        probed = bool(self._world.extra)
        self._end()
        self._failing.clear()
        return probed

    def _end(self) -> None:
        self._world.extra.clear()
        self._asked.clear()
        self._about.clear()
        self._known = ()
        self.told.clear()
        self._until_s = None

    def _healed(self) -> bool:
        """Whether one of the paths gets through again: what others have told is of before."""
        paths = (self._world.table.find(*key) for key in self._about)
        return any(path is None or path.evidence != "blackhole" for path in paths)

    def _span_s(self, least_s: float, probes: int) -> float:
        return max(least_s, probes * SLOWER * self._world.settings.probing.interval_s * self._world.stretch)

    def _let_go(self, now_s: float) -> None:
        """Of what has told that it is not hit no more is needed; what is hit is looked at until it is whole again."""
        mute_s = self._span_s(MUTE_S, MUTE)
        for key, since_s in list(self._world.extra.items()):
            path = self._world.table.find(*key)
            if key in self.told:
                done = path is None or path.evidence == "good"
            else:
                done = now_s >= since_s + mute_s
            if done:
                del self._world.extra[key]

    def _open(self, one: Verdict) -> bool:
        """Whether a few packets on more paths can tell more of it: it lets nothing through, and peers answer."""
        if one.kind == "congestion" or one.loss_ratio < NOTHING_RATIO or self._ground.only_large(one):
            return False
        return any(peer.silent_since_s is None for peer in self._ground.failing_peers(one)) and bool(self._dead(one))

    def _news(self, asked: Sequence[Verdict]) -> bool:
        """Whether a path in use fails that had not failed when the last question was put."""
        failing = set().union(*map(self._dead, asked))
        news = not failing <= self._failing
        self._failing |= failing
        self._about = failing | (self._about if self.asks else set())
        return news

    def _dead(self, one: Verdict) -> set[Key]:
        """The paths in use over it that let nothing through."""
        over = (key for key in self._ground.over(one) if key not in self.told)
        return {key for key in over if self._ground.path(key)[1].evidence == "blackhole"}

    def _ask(self, asked: Sequence[Verdict], now_s: float) -> None:
        extra = self._world.extra
        known = (len(self.told), tuple((one.element, one.others, _alone(one)) for one in asked))
        if known == self._known:
            return
        self._known = known
        room = min(MOST - len(extra), MOST_IN_ALL - len(self._asked))
        for number, one in enumerate(asked):
            wanted = self._for(one, -(-room // (len(asked) - number)))
            room -= len(wanted)
            self._asked.update(wanted)
            extra.update(dict.fromkeys(wanted, now_s))

    def _for(self, one: Verdict, most: int) -> list[Key]:
        """The paths to probe for one finding."""
        ground = self._ground
        if ground.localiser is None or most <= 0:
            return []
        elements = ground.localiser.paths.elements
        alone = _alone(one)
        names = [one.element] if alone else [rival.element for rival in one.rivals]
        parts = [elements.parts(elements.index[name]) for name in names]
        candidates: dict[Key, Crossed] = {}
        for key in itertools.islice(self._candidates(one), LOOKED_AT):
            crosses = ground.crosses(key)
            if any(not crosses.isdisjoint(some) for some in parts):
                candidates[key] = frozenset(n for n, some in enumerate(parts) if not crosses.isdisjoint(some))
        if alone:
            return self._through(one, list(candidates))[:most]
        best = max(rival.nats for rival in one.rivals)
        weights = [math.exp(rival.nats - best) for rival in one.rivals]
        suspects = [
            Suspect(weight / sum(weights), rival.share) for weight, rival in zip(weights, one.rivals, strict=True)
        ]
        return choose(candidates, suspects, most)

    def _through(self, one: Verdict, candidates: list[Key]) -> list[Key]:
        """Paths over an element that is suspected alone: is it whole, and of a part is it one, or do parts of what lies
        behind it fail? They go on to as many others as there are, in turn."""
        over = [key for key in self._ground.over(one) if one.scope == "whole" or key in self.told]
        owed = len(self._world.extra.keys() - self.told.keys())
        onward: dict[Crossed, list[Key]] = {}
        for key in candidates:
            onward.setdefault(frozenset(self._ground.crosses(key)), []).append(key)
        enough = ENOUGH if one.scope == "whole" else MOST
        return _in_turn(list(onward.values()))[: max(0, enough - len(over) - owed)] if onward else []

    def _candidates(self, one: Verdict) -> Iterator[Key]:
        """Traced paths that are not probed now, of peers that answer; first to those to which paths fail."""
        world, failing = self._world, self._ground.failing_peers(one)
        others = (peer for peer in world.table.peers.values() if peer not in failing)
        usable = set(world.usable_uplinks())
        for peer in (*failing, *others):
            if not peer.active or peer.silent_since_s is not None or peer.filtered:
                continue
            for path in peer.paths.values():
                key = peer.address, *path.key
                known = path.hops is not None and None not in path.hops
                leads = path.uplink in usable and path.label in peer.labels_over(path.uplink)
                if known and leads and path.key not in peer.in_use and key not in self._asked:
                    yield key
