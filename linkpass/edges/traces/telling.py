"""What the answers to one trace show beside the hops: limits, mute hops, other ways back, addresses that name nothing.

Pure: questions and answers in, notes out. Each rule is written beside its function, with what it is not to be mistaken
for.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from linkpass.core.events import TraceNote
from linkpass.edges.traces.asking import Answer
from linkpass.edges.traces.planned import Plan
from linkpass.edges.traces.sending import Question

Names = Callable[[str, str, int], str | None]
"""(address, uplink, hop) -> the node's name; the address where nobody has named it; None where it names no node."""

LEAST_MISSING: Final = 3
LEAST_ASKED: Final = 8
SIGNS: Final = 2.8
"""Standard deviations of the sign test: eight pairs of eight."""
EARLY: Final = 0.8
SIGMAS: Final = 2.5
FIRST_OF: Final = 8

_DUMMY: Final = ipaddress.ip_network("192.0.0.0/24")
"""IETF protocol assignments; routers without an address of their own answer with 192.0.0.8 (RFC 7600)."""


def limiting(asked: Sequence[Question], answers: Mapping[Question, Answer]) -> list[int]:
    """Hops at which nodes seem to limit their answers, from one round of questions in the order in which they were put.

    Two signs, either of which suffices. A hop further on answers those whose answer is missing here: the way there is
    good, so it is the node that does not answer. Or a node's answers come before those that are missing, as a token
    bucket gives them (the rank sum of Mann and Whitney, 1947, beyond chance); packets lost on the way are missing
    anywhere. A link that dies in the middle of a round looks the same, and answers too lost on the way back may:
    whoever acts on a suspicion asks once more, later. A mute hop answers nothing, and is not suspected."""
    found = []
    for hop in sorted({question.hop for question in asked}):
        here = [question for question in asked if question.hop == hop]
        missing = [place for place, question in enumerate(here) if question not in answers]
        who = dict.fromkeys(answers[question].who for question in here if question in answers)
        if len(here) < LEAST_ASKED or len(missing) < LEAST_MISSING or not who:
            continue
        if _only_here(here, asked, answers) or any(_comes_early(_places(here, answers, one), missing) for one in who):
            found.append(hop)
    return found


def _places(here: Sequence[Question], answers: Mapping[Question, Answer], who: str) -> list[int]:
    return [place for place, question in enumerate(here) if question in answers and answers[question].who == who]


def _only_here(here: Sequence[Question], asked: Sequence[Question], answers: Mapping[Question, Answer]) -> bool:
    """Whether a hop further on answers for labels whose answer is missing here, more than the other way round and more
    than chance would have it (the sign test on the pairs that differ; McNemar, 1947)."""
    answered = {question.label: question in answers for question in here}
    for further in {question.hop for question in asked if question.hop > here[0].hop}:
        differing = [
            question in answers
            for question in asked
            if question.hop == further and answered.get(question.label, True) != (question in answers)
        ]
        for_it = sum(differing)
        if differing and (2 * for_it - len(differing)) / len(differing) ** 0.5 >= SIGNS:
            return True
    return False


def _comes_early(given: Sequence[int], missing: Sequence[int]) -> bool:
    """Whether places of answers come before those of missing ones, more than chance would have it."""
    m, n = len(given), len(missing)
    before = sum(place < other for place in given for other in missing)
    share = before / (m * n)
    sigmas = (share - 0.5) / ((m + n + 1) / (12 * m * n)) ** 0.5
    return share >= EARLY and (sigmas >= SIGMAS or (share == 1.0 and n >= FIRST_OF * m))


def mute(length: int, answers: Collection[Question], limited: Collection[int]) -> list[TraceNote]:
    """Hops that answer nothing, though hops further on do."""
    seen = {question.hop for question in answers}
    last = max(seen, default=0)
    silent = [hop for hop in range(1, max(length, last) + 1) if hop not in seen and hop not in limited]
    return [
        TraceNote("mute", hop, f"{'hops further on answer' if hop < last else 'the file has a node there'}")
        for hop in silent
    ]


def back_elsewhere(uplink: str, answers: Mapping[Question, Answer], names: Names) -> list[TraceNote]:
    """Answers that arrive by another uplink than the question left by, or over more or fewer routers."""
    other = {
        question: answer for question, answer in answers.items() if answer.back_over and answer.back_over != uplink
    }
    longer = {
        question: answer
        for question, answer in answers.items()
        if answer.crossed is not None and answer.crossed != question.hop - 1 and question not in other
    }
    if not other and not longer:
        return []
    hop = min(question.hop for question in (*other, *longer))
    parts, nodes = [], dict[str, None]()
    for question, answer in (*other.items(), *longer.items()):
        name = names(answer.who, uplink, question.hop)
        if question.hop == hop and name is not None:
            nodes[name] = None
    if other:
        over = " and ".join(sorted({answer.back_over for answer in other.values()}))
        parts.append(f"{len(other)} of {len(answers)} answers come back over {over}")
    if longer:
        question, answer = next(iter(longer.items()))
        who = names(answer.who, uplink, question.hop) or answer.who
        parts.append(f"{who} is {question.hop - 1} routers away, its answer crossed {answer.crossed}")
    return [TraceNote("asymmetric", hop, "; ".join(parts), tuple(nodes))]


def names_no_node(address: str) -> bool:
    """An address that many nodes may have: link-local, or a dummy of nodes without one."""
    one = ipaddress.ip_address(address)
    return one.is_link_local or one.is_loopback or one.is_unspecified or one in _DUMMY


def shared(answers: Mapping[Question, Answer]) -> dict[int, set[str]]:
    """Addresses that answer for two hops in a row on one way: they name neither. hop -> addresses."""
    found: dict[int, set[str]] = {}
    for question, answer in answers.items():
        after = answers.get(question._replace(hop=question.hop + 1))
        if after is not None and after.who == answer.who:
            for hop in (question.hop, question.hop + 1):
                found.setdefault(hop, set()).add(answer.who)
    return found


def unnumbered(
    answers: Mapping[Question, Answer], hops: Mapping[int, Sequence[str | None]], plan: Plan | None
) -> list[TraceNote]:
    """Hops whose addresses name no link. `hops`: label -> names.

    With the fabric's file: nodes with parallel links between them of which the far one answers with one address.
    Without it: nodes that answer with one address, whatever node the packet came from; were links to them parallel,
    nobody could tell them apart."""
    addresses: dict[tuple[int, str], set[str]] = {}
    before: dict[tuple[int, str], set[str]] = {}
    labels: Counter[tuple[int, str]] = Counter()
    for question, answer in answers.items():
        way = hops.get(question.label, ())
        if not 2 <= question.hop <= len(way):
            continue
        here, last = way[question.hop - 1], way[question.hop - 2]
        if here is not None:
            at = question.hop, here
            addresses.setdefault(at, set()).add(answer.who)
            labels[at] += 1
            if last is not None:
                before.setdefault(at, set()).add(last)
    notes: dict[int, tuple[list[str], dict[str, None]]] = {}
    for (hop, node), befores in sorted(before.items()):
        if len(addresses[hop, node]) > 1:
            continue
        if plan is None and len(befores) > 1:
            said = f"{node} answers with one address to packets from {' and '.join(sorted(befores))}"
        else:
            links = [link for one in sorted(befores) for link in (plan.parallel(one, node) if plan else ())]
            if not links or labels[hop, node] < LEAST_ASKED:
                continue
            said = f"{node} answers with one address on {', '.join(links)}"
        texts, nodes = notes.setdefault(hop, ([], {}))
        texts.append(said)
        nodes[node] = None
    return [
        TraceNote("unnumbered", hop, "; ".join(texts[:4]) + (f"; and {len(texts) - 4} more" if len(texts) > 4 else ""),
                  tuple(nodes))
        for hop, (texts, nodes) in notes.items()
    ]  # fmt: skip
