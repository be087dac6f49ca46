"""Nodes that limit their answers: how many each gives at once, and how many a second, as far as it has shown.

Nodes limit ICMP errors by a token bucket (RFC 4443, section 2.4 (f); RFC 1812, section 4.3.2.8): Linux gives one host
six at once and one a second, control planes of switches some hundred a second to everybody. What is asked beyond that
is lost, and looks like a hop that never answers. So a node that was found to do it is asked no more than it gave; each
time that all is answered it is asked for some more, and forgotten when it gives as much as anybody wants.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from linkpass.core.events import TraceNote
from linkpass.edges.traces.asking import Answer
from linkpass.edges.traces.sending import Question

FIRST_RATE: Final = 1.0
LEAST_RATE: Final = 0.05
MOST_RATE: Final = 1000.0
ENOUGH: Final = 64.0
"""A node that gives so many at once limits nothing that is asked here."""
AGAIN_LEAST_S: Final = 3.0
AGAIN_MOST_S: Final = 60.0
NEIGHBOUR: Final = 1

Way = tuple[bytes, str]
"""(address of a host, uplink)."""


class Allowance:
    """Of one node. `burst`: how many answers it gave at once when it was found out."""

    __slots__ = ("_at_s", "_tokens", "burst", "rate_per_s")

    def __init__(self, burst: int, now_s: float) -> None:
        self.burst, self.rate_per_s = float(max(1, burst)), FIRST_RATE
        self._tokens, self._at_s = 0.0, now_s

    def take(self, now_s: float) -> bool:
        """Whether one more question may be put now; it counts as put."""
        self._tokens = min(self.burst, self._tokens + (now_s - self._at_s) * self.rate_per_s)
        self._at_s = now_s
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def learn(self, asked: int, answered: int, *, whole: bool) -> None:
        """What came of questions that were put within the allowance; `whole`: of all that there were. A few of many
        show nothing new."""
        if answered >= asked:
            if asked < int(self.burst) and not whole:
                return
            self.burst, self.rate_per_s = self.burst * 1.25 + 1, min(MOST_RATE, self.rate_per_s * 1.5)
        else:
            if asked >= int(self.burst):
                self.burst = float(max(1, answered))
            self.rate_per_s = max(LEAST_RATE, self.rate_per_s / 2)
            self._tokens = 0.0

    def wait_s(self, questions: int) -> float:
        """Until so many more may be put, or as many as go at once."""
        return max(0.0, min(float(questions), self.burst) - self._tokens) / self.rate_per_s


class Allowances:
    """Of all nodes, by their addresses; and what is needed to know which node a question will meet."""

    def __init__(self) -> None:
        self._of: dict[str, Allowance] = {}
        self._nodes: dict[Way, dict[int, dict[str, None]]] = {}
        """Which nodes have answered at each hop."""
        self._over: dict[tuple[str, int], dict[str, None]] = {}
        """(uplink, hop) -> nodes that limit their answers there, to whomever."""
        self._seen: dict[Way, dict[tuple[int, int], tuple[str, float]]] = {}
        """(label, hop) -> who answered and when, where somebody at that hop limits his answers."""
        self._put_off: set[str] = set()
        """Nodes that were not asked all that `split` was given last."""

    def at(self, way: Way, hop: int) -> list[str]:
        """The nodes at a hop that limit their answers. The neighbour is the same on all ways over an uplink; and where
        nobody has ever answered on this way, it may be any that was met at that hop on others."""
        known = self._nodes.get(way, {}).get(hop)
        if hop == NEIGHBOUR or not known:
            known = self._over.get((way[1], hop), {})
        return [who for who in known if who in self._of]

    def met(self, way: Way, hop: int) -> bool:
        """Whether anybody has answered at a hop."""
        return bool(self._nodes.get(way, {}).get(hop))

    def anywhere_at(self, uplink: str, hop: int) -> bool:
        """Whether there are any at that hop, to whomever."""
        return any(who in self._of for who in self._over.get((uplink, hop), ()))

    def saw(self, way: Way, answers: Mapping[Question, Answer], now_s: float) -> None:
        """Remember who answered."""
        nodes = self._nodes.setdefault(way, {})
        fresh: dict[int, dict[str, None]] = {}
        for question, answer in answers.items():
            fresh.setdefault(question.hop, {})[answer.who] = None
            if answer.who in self._of:
                self._over.setdefault((way[1], question.hop), {})[answer.who] = None
        for hop, who in fresh.items():
            limited = {one: None for one in nodes.get(hop, ()) if one in self._of}  # not all of them answer each time
            nodes[hop] = {**limited, **who}
        seen = self._seen.setdefault(way, {})
        for question, answer in answers.items():
            if self.at(way, question.hop):
                seen[question.label, question.hop] = (answer.who, now_s)
        if not seen:
            del self._seen[way]

    def found(self, who: str, gave: int, now_s: float) -> None:
        self._of.setdefault(who, Allowance(gave, now_s))

    def split(self, way: Way, questions: Sequence[Question], now_s: float) -> tuple[list[Question], list[Question]]:
        """Questions that may be put freely, and those to nodes that limit their answers, as many as may be put now;
        those that have waited longest first. The neighbour is the same for all labels, and is asked twice."""
        free: list[Question] = []
        held: list[Question] = []
        for question in questions:
            (held if self._node_of(way, question) else free).append(question)
        seen = self._seen.get(way, {})
        held.sort(key=lambda question: seen.get((question.label, question.hop), ("", float("-inf")))[1])
        chosen: list[Question] = []
        self._put_off.clear()
        for question in held:
            who = self._node_of(way, question)
            asked_twice = question.hop == NEIGHBOUR and sum(one.hop == NEIGHBOUR for one in chosen) >= 2
            if not asked_twice and self._of[who].take(now_s):
                chosen.append(question)
            else:
                self._put_off.add(who)
        return free, chosen

    def _node_of(self, way: Way, question: Question) -> str:
        """The node that limits answers and that a question will meet, or may meet; empty: none."""
        known = self._seen.get(way, {}).get((question.label, question.hop))
        if known is not None:
            return known[0] if known[0] in self._of else ""
        return min(self.at(way, question.hop), key=lambda who: self._of[who].burst, default="")

    def learn(self, way: Way, put: Iterable[Question], answers: Mapping[Question, Answer]) -> None:
        """What came of the questions that `split` chose."""
        asked: dict[str, int] = {}
        answered: dict[str, int] = {}
        for question in put:
            answer = answers.get(question)
            who = answer.who if answer is not None else self._node_of(way, question)
            if who in self._of:
                asked[who] = asked.get(who, 0) + 1
                answered[who] = answered.get(who, 0) + (answer is not None)
        for who, number in asked.items():
            self._of[who].learn(number, answered[who], whole=who not in self._put_off)
            if self._of[who].burst >= ENOUGH:
                del self._of[who]

    def again_s(self, way: Way, questions: Sequence[Question]) -> float | None:
        """When to ask on: labels are left of which somebody that limits answers has never told. None: none is."""
        seen = self._seen.get(way, {})
        owed: dict[str, int] = {}
        for question in questions:
            if question.hop != NEIGHBOUR and (question.label, question.hop) not in seen:
                who = self._node_of(way, question)
                if who:
                    owed[who] = owed.get(who, 0) + 1
        if not owed:
            return None
        return min(AGAIN_MOST_S, max(AGAIN_LEAST_S, *(self._of[who].wait_s(number) for who, number in owed.items())))

    def notes(self, way: Way, length: int, name: Mapping[str, str]) -> list[TraceNote]:
        """What is known of the hops of a way. `name`: address -> name."""
        made = []
        for hop in range(1, length + 1):
            nodes = self.at(way, hop)
            said = [
                f"{name.get(who, who)} gives {self._of[who].burst:.0f} answers at once and "
                f"{self._of[who].rate_per_s:.2g} a second"
                for who in nodes
            ]
            if said:
                made.append(TraceNote("limited", hop, "; ".join(said), tuple(name.get(who, who) for who in nodes)))
        return made
