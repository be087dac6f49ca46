"""One trace: hops are counted, questions put, nodes that limit their answers spared, and what was seen is told."""

from __future__ import annotations

import asyncio
import ipaddress
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from linkpass.core.commands import TraceFlows, TraceLabels
from linkpass.core.events import FlowAt, LabelsTraced, TraceNote
from linkpass.edges.traces import telling
from linkpass.edges.traces.allowance import Allowances, Way
from linkpass.edges.traces.asking import ANSWER_S, TRIES, Answer, Asker, Batch
from linkpass.edges.traces.names import Names
from linkpass.edges.traces.planned import Plan
from linkpass.edges.traces.sending import Question, UnanswerableError

MAX_HOPS: Final = 8
QUIET_S: Final = 0.03
"""When it is urgent, the hops are counted as soon as nobody has answered for so long."""
CONFIRM_S: Final = 1.2
"""A node that seems to limit its answers is asked once more after so long: Linux gives one a second."""
AGAIN: Final = 4
"""Questions of each hop that it is asked then, before all others."""
MOSTLY: Final = 0.8
TWICE: Final = 4
"""Labels whose questions are put twice more in each trace: are they answered by the same nodes?"""
CLEAN_TRACES: Final = 2


class Tracer:
    """What is remembered from one trace to the next: lengths of ways, nodes that limit their answers, spraying."""

    def __init__(self, asker: Asker, names: Names, plan: Plan | None, port: int) -> None:
        self._asker, self._names, self._plan, self._port = asker, names, plan, port
        self._length: dict[Way, int] = {}
        self._limits = Allowances()
        self._sprayed: dict[tuple[str, int], int] = {}
        """(uplink, hop) at which packets of one flow go different ways -> traces since that was seen."""
        self._turn = 0

    def question(self, uplink: str, label: int, hop: int) -> Question:
        """As a probe with that label would be."""
        return Question(uplink, label, hop, self._port, self._port)

    def sprays(self, uplink: str, hop: int) -> bool:
        """Whether packets of one flow go different ways to that hop."""
        return (uplink, hop) in self._sprayed

    async def length(self, way: Way, labels: Sequence[int]) -> int:
        """Nodes on the way, as far as they answer. Raises UnanswerableError."""
        return self._length.get(way) or await self._count_hops(way, labels)

    async def trace(self, command: TraceLabels) -> LabelsTraced:
        """Raises UnanswerableError."""
        dst, uplink, labels = ipaddress.ip_address(command.peer).packed, command.uplink, command.labels
        way = dst, uplink
        length = self._length.get(way) or await self._count_hops(way, labels, urgent=command.urgent)
        while True:
            questions = [self.question(uplink, label, hop) for label in labels for hop in range(1, length + 1)]
            beyond = [self.question(uplink, label, length + 1) for label in labels[:1]]
            with self._asker.batch(dst) as batch:
                await self._question_all(batch, way, questions, beyond, urgent=command.urgent)
                if self._is_whole(way, batch, length):
                    sprayed = await self._look_twice(batch, way, urgent=command.urgent)
                    break
            shown = await self._count_hops(way, labels, urgent=command.urgent)
            if shown == length:
                sprayed = []
                break
            length = shown
        answers = {question: answer for question, answer in batch.answers.items() if question.hop <= length}
        for question, answer in answers.items():
            if question.hop == 1:
                self._names.met(uplink, answer.who)
        return self._told(command, questions, answers, sprayed, length)

    async def trace_flows(self, command: TraceFlows) -> tuple[tuple[FlowAt, tuple[str | None, ...]], ...]:
        """The ways of flows as far as the known way is long; who limits his answers is asked no more than he gives.
        Raises UnanswerableError. The neighbour is who he is for all, and asked only when nobody knows him yet."""
        dst, uplink, flows = ipaddress.ip_address(command.peer).packed, command.uplink, command.flows
        way = dst, uplink
        length = await self.length(way, (flows[0].label,))
        nearest = 1 if self._names.first(uplink) is None else 2
        asked = {one: [self._copy(one, hop) for hop in range(nearest, length + 1)] for one in flows}
        questions = [question for some in asked.values() for question in some]
        with self._asker.batch(dst) as batch:
            free, held = self._limits.split(way, questions, self._asker.now_s())
            await self._asker.put(batch, [*free, *held])
            self._limits.learn(way, held, batch.answers)
            await self._asker.put(batch, [question for question in free if question not in batch.answers])
        shared, neighbour = telling.shared(batch.answers), self._neighbour(uplink, batch.answers)
        traced = []
        for flow in flows:
            hops: list[str | None] = []
            for hop in range(1, length + 1):
                answer = neighbour if hop == 1 else batch.answers.get(self._copy(flow, hop))
                known = answer is not None and not self.sprays(uplink, hop) and answer.who not in shared.get(hop, ())
                hops.append(self._names.at(answer.who, uplink, hop) if answer is not None and known else None)
            traced.append((flow, tuple(hops)))
        return tuple(traced)

    def _copy(self, flow: FlowAt, hop: int) -> Question:
        """Of a flow's header; what has the probes' ports on both sides is a probe."""
        copy = not flow.sport == flow.dport == self._port
        return Question(flow.uplink, flow.label, hop, flow.sport, flow.dport, copy)

    def _is_whole(self, way: Way, batch: Batch, length: int) -> bool:
        """Whether the last hop still is the last: it answers, or is known to answer seldom, and nobody beyond it."""
        last = any(question.hop == length for question in batch.answers) or bool(self._limits.at(way, length))
        return last and not any(question.hop > length for question in batch.answers)

    async def _question_all(
        self, batch: Batch, way: Way, questions: Sequence[Question], beyond: Sequence[Question], *,
        urgent: bool,
    ) -> None:  # fmt: skip
        """Put questions, again those that are not answered, and to nodes that limit their answers no more than they
        give. UnanswerableError when nobody answers anything."""
        free, held = self._limits.split(way, questions, self._asker.now_s())
        await self._asker.put(batch, [*free, *held], beyond, urgent=urgent)
        suspects = telling.limiting(free, batch.answers)
        heard = {question.hop for question in batch.answers}
        silent = {question.hop for question in free} - heard
        suspects += sorted(hop for hop in silent if self._limits.met(way, hop))  # it may have none left just now
        self._limits.learn(way, held, batch.answers)
        limited = await self._confirm(batch, free, suspects) if suspects else set()
        self._limits.saw(way, batch.answers, self._asker.now_s())
        for _ in range(TRIES - 1):
            left = [one for one in free if one not in batch.answers and one.hop not in limited]
            if not left:
                break
            await self._asker.put(batch, left, urgent=urgent)
        self._limits.saw(way, batch.answers, self._asker.now_s())
        if not batch.answers and free:
            raise UnanswerableError(f"no hop answers over {way[1]}")

    async def _confirm(self, batch: Batch, free: Sequence[Question], suspects: Sequence[int]) -> set[int]:
        """The hops at which nodes do limit their answers: who did not answer does so a little later, and again does not
        answer many at once. What was lost, or cut off for a moment, is answered then."""
        gave = Counter((question.hop, answer.who) for question, answer in batch.answers.items())
        left = {hop: [one for one in free if one.hop == hop and one not in batch.answers] for hop in suspects}
        await asyncio.sleep(CONFIRM_S)
        await self._asker.put(
            batch, [one for few in left.values() for one in few[:: max(1, len(few) // AGAIN)][:AGAIN]]
        )
        late = [hop for hop, few in left.items() if any(one in batch.answers for one in few)]
        rest = [one for hop in late for one in left[hop] if one not in batch.answers]
        await self._asker.put(batch, rest)
        confirmed = set()
        for hop in late:
            answered = [batch.answers[one].who for one in left[hop] if one in batch.answers]
            if len(answered) < MOSTLY * len(left[hop]):
                confirmed.add(hop)
                for who, number in Counter(answered).items():
                    self._limits.found(who, max(number, gave[hop, who]), self._asker.now_s())
        return confirmed

    async def _look_twice(self, batch: Batch, way: Way, *, urgent: bool) -> list[TraceNote]:
        """Whether the same question is answered by different nodes: a switch that sprays packets.

        A fabric that finds another way in between answers differently once, and then always the same."""
        labels = sorted({question.label for question in batch.answers})
        self._turn += TWICE
        some = {labels[(self._turn + step) % len(labels)] for step in range(TWICE)} if labels else set()
        again = [
            one for one in batch.answers if one.label in some and one.hop > 1 and not self._limits.at(way, one.hop)
        ]
        differing = await self._differing(batch, again, 2, urgent=urgent)
        if differing:
            differing = await self._differing(batch, differing, 4, urgent=urgent)
        found: dict[int, dict[str, None]] = {}
        for question in differing:
            who = (self._names.at(answer.who, way[1], question.hop) for answer in batch.more[question])
            found.setdefault(question.hop, {}).update(dict.fromkeys(name for name in who if name is not None))
        return [
            TraceNote("sprayed", hop, f"the same packet is answered by {' and '.join(sorted(nodes))}", tuple(nodes))
            for hop, nodes in sorted(found.items())
        ]

    async def _differing(
        self, batch: Batch, questions: Sequence[Question], times: int, *, urgent: bool
    ) -> list[Question]:
        """Those whose answers differ when they are put several times."""
        for question in questions:
            batch.more[question] = [batch.answers[question]] if times == 2 else []
        for _ in range(times):
            await self._asker.put(batch, questions, urgent=urgent)
        return [
            question
            for question in questions
            if len({self._names.at(one.who, question.uplink, question.hop) for one in batch.more[question]}) > 1
        ]

    def _told(
        self, command: TraceLabels, questions: Sequence[Question], answers: Mapping[Question, Answer],
        sprayed: list[TraceNote], length: int,
    ) -> LabelsTraced:  # fmt: skip
        """What a trace comes to."""
        dst, uplink = ipaddress.ip_address(command.peer).packed, command.uplink
        way = dst, uplink
        unsure = self._spraying(uplink, sprayed)
        shared = telling.shared(answers)
        limited = {hop for hop in range(1, length + 1) if self._limits.at(way, hop)}
        hops: dict[int, tuple[str | None, ...]] = {}
        neighbour = self._neighbour(uplink, answers) if 1 in limited else None
        for label in command.labels:
            names: list[str | None] = []
            for hop in range(1, length + 1):
                answer = answers.get(self.question(uplink, label, hop)) or (neighbour if hop == 1 else None)
                known = answer is not None and hop not in unsure and answer.who not in shared.get(hop, ())
                names.append(self._names.at(answer.who, uplink, hop) if answer is not None and known else None)
            hops[label] = tuple(names)
        planned, missing = self._planned(command, hops, length)
        notes = [
            *self._limits.notes(way, length, self._names),
            *telling.mute(length + missing, answers.keys(), limited),
            *telling.back_elsewhere(uplink, answers, self._names.at),
            *self._nameless(uplink, answers, shared),
            *telling.unnumbered(answers, hops, self._plan),
            *(note for note in sprayed),
            *(TraceNote("sprayed", hop, "seen by the last trace") for hop in unsure - {note.hop for note in sprayed}),
        ]
        return LabelsTraced(
            cmd_id=command.cmd_id, peer=command.peer, uplink=uplink, notes=tuple(notes), planned=planned,
            hops={label: (*known, *[None] * missing) for label, known in hops.items()},
            again_s=self._limits.again_s(way, questions),
        )  # fmt: skip

    def _neighbour(self, uplink: str, answers: Mapping[Question, Answer]) -> Answer | None:
        """Who is at the first hop, by any answer from there: frames go to one hardware address."""
        found = next((answer for one, answer in answers.items() if one.hop == 1), None)
        met = self._names.first(uplink)
        return found or (Answer(met) if met is not None else None)

    def _spraying(self, uplink: str, sprayed: Sequence[TraceNote]) -> set[int]:
        """Hops of which no label says who is there. What few packets may miss by chance stands for some traces."""
        for at in [at for at in self._sprayed if at[0] == uplink]:
            self._sprayed[at] += 1
            if self._sprayed[at] > CLEAN_TRACES:
                del self._sprayed[at]
        for note in sprayed:
            self._sprayed[uplink, note.hop] = 0
        return {hop for over, hop in self._sprayed if over == uplink}

    def _planned(self, command: TraceLabels, hops: Mapping[int, Sequence[str | None]], length: int) -> tuple[int, int]:
        """How many ways the fabric's file has, and how many nodes at the end of each that nobody has seen: nodes that
        never answer, or a way that ends early."""
        if self._plan is None:
            return 0, 0
        firsts = {way[0] for way in hops.values() if way and way[0] is not None}
        first = next(iter(firsts)) if len(firsts) == 1 else None
        if not self._plan.knows(first):
            first = self._plan.first(command.uplink)
        peer = self._names.get(command.peer, "")
        expected = self._plan.length(first, peer) or length
        return self._plan.ways(first, peer), min(MAX_HOPS, max(0, expected - length))

    def _nameless(
        self, uplink: str, answers: Mapping[Question, Answer], shared: Mapping[int, set[str]]
    ) -> list[TraceNote]:
        """Hops whose addresses name no node."""
        found: dict[int, set[str]] = {hop: set(addresses) for hop, addresses in shared.items()}
        for question, answer in answers.items():
            if answer.who not in self._names and telling.names_no_node(answer.who):
                found.setdefault(question.hop, set()).add(answer.who)
        return [
            TraceNote("unnumbered", hop, f"{' and '.join(sorted(addresses))} may be anybody's address")
            for hop, addresses in sorted(found.items())
        ]

    async def _count_hops(self, way: Way, labels: Sequence[int], *, urgent: bool = False) -> int:
        """The farthest hop that answers two labels' packets; those few may go as far as the host."""
        dst, uplink = way
        with self._asker.batch(dst) as batch:
            for _ in range(TRIES):
                every = [self.question(uplink, label, hop) for label in labels[:2] for hop in range(1, MAX_HOPS + 1)]
                await self._asker.put(batch, every, urgent=urgent, quiet_s=QUIET_S if urgent else ANSWER_S)
                if batch.answers:
                    break
            else:
                raise UnanswerableError(f"no hop answers over {uplink}")
            shown = max(question.hop for question in batch.answers)
            while shown < MAX_HOPS and self._limits.anywhere_at(uplink, shown + 1):  # it may have none left just now
                await asyncio.sleep(CONFIRM_S)
                further = [self.question(uplink, label, shown + 1) for label in labels[:2]]
                await self._asker.put(batch, further)
                if not any(question.hop > shown for question in batch.answers):
                    break
                shown += 1
        self._limits.saw(way, batch.answers, self._asker.now_s())
        self._length[way] = shown
        return shown
