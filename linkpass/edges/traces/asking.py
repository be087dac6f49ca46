"""Questions on the wire and their answers: one packet each, paced, put again when nobody answers."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from linkpass.core.settings import Tracing
from linkpass.edges.traces import hearing
from linkpass.edges.traces.pace import Pace
from linkpass.edges.traces.sending import Question, Sender
from linkpass.wire import icmp
from linkpass.wire.frame import TCP, UDP, Template

TRIES: Final = 3
ANSWER_S: Final = 0.060
"""How long to wait for answers after the last packet of a try."""
LOOKS: Final = 3
"""Into so many parts the wait for a further answer is cut."""
SLICE_S: Final = 0.005
URGENT_SLICE_S: Final = 0.001
"""Packets of so long go in one turn of the loop."""


class Answer(NamedTuple):
    """`who`: the address that answers. `back_over`: the uplink that the answer came by, "": none of ours, or not told.
    `crossed`: routers on its way back, as its hop limit tells; None: not told."""

    who: str
    back_over: str = ""
    crossed: int | None = None


class Batch:
    """Questions to one host that belong together. Late answers count as long as it is open."""

    def __init__(self, dst: bytes) -> None:
        self.dst = dst
        self.answers: dict[Question, Answer] = {}
        self.more: dict[Question, list[Answer]] = {}
        """All answers to questions that were put again although they were answered."""
        self.needed: set[Question] = set()
        self.complete = asyncio.Event()
        self.templates: dict[Question, Template] = {}
        self.tokens: list[int] = []

    def take(self, question: Question, answer: Answer) -> None:
        if question in self.more:
            self.more[question].append(answer)
        self.answers.setdefault(question, answer)
        self.needed.discard(question)
        if not self.needed:
            self.complete.set()


class Asker:
    """Puts questions by its `sender`, and hears the answers."""

    def __init__(
        self, own: bytes, protocol: int, dscp: int, tracing: Tracing, clock: Callable[[], float], device: str = ""
    ) -> None:
        """`own`: this host's address, 16 or 4 bytes. `protocol`: that of the probes. `device`: the VRF of both."""
        self._own, self._device, self._clock = own, device.encode(), clock
        self._pace = Pace(tracing)
        self.sender = Sender(own, protocol, dscp, self._device)
        self._ears: socket.socket | None = None
        self._waiting: dict[int, tuple[Batch, Question]] = {}
        self._token = 0
        self.sent = 0
        self.answered = 0

    def open(self) -> None:
        """Needs a running loop. OSError when raw sockets are not permitted."""
        self._token = secrets.randbits(32)
        self._ears = hearing.listening(len(self._own) == 16, self._device)
        self.sender.open()
        asyncio.get_running_loop().add_reader(self._ears, self._on_answers)

    def close(self) -> None:
        """Safe to call twice; traces in progress end with what they have."""
        self.sender.close()
        if self._ears is not None:
            asyncio.get_running_loop().remove_reader(self._ears)
            self._ears.close()
            self._ears = None
        for batch, _ in self._waiting.values():
            batch.complete.set()

    def now_s(self) -> float:
        return self._clock()

    @contextlib.contextmanager
    def batch(self, dst: bytes) -> Iterator[Batch]:
        """Questions to one host; those that are put within the block."""
        made = Batch(dst)
        try:
            yield made
        finally:
            for token in made.tokens:
                self._waiting.pop(token, None)

    async def put(
        self, batch: Batch, needed: Sequence[Question], beyond: Sequence[Question] = (), *, urgent: bool = False,
        quiet_s: float = ANSWER_S,
    ) -> None:  # fmt: skip
        """Put questions once, and wait for the answers to `needed`; after the first, until none has come for `quiet_s`.
        UnanswerableError when an uplink cannot be used."""
        batch.needed = set(needed)
        batch.complete.clear()
        for question in (*needed, *beyond):
            await self._pause(urgent=urgent)
            self._token = (self._token + 1) & 0xFFFFFFFF
            self._waiting[self._token] = (batch, question)
            batch.tokens.append(self._token)
            if question not in batch.templates:
                batch.templates[question] = self.sender.template(batch.dst, question)
            self.sent += 1
            self.sender.send(batch.templates[question], question, self._token)
        until_s, quiet = self._clock() + ANSWER_S, 0
        while batch.needed and quiet < LOOKS and (left_s := until_s - self._clock()) > 0:
            before = len(batch.answers)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left_s, quiet_s / LOOKS)):
                    await batch.complete.wait()
                return
            quiet = quiet + 1 if len(batch.answers) == before > 0 else 0

    async def ask(self, dst: bytes, needed: Sequence[Question], tries: int = TRIES) -> dict[Question, Answer]:
        """The answers to questions that are put up to `tries` times."""
        with self.batch(dst) as batch:
            for _ in range(tries):
                left = [question for question in needed if question not in batch.answers]
                if not left:
                    break
                await self.put(batch, left)
        return batch.answers

    async def _pause(self, *, urgent: bool) -> None:
        wait_s = self._pace.wait_s(self._clock(), urgent=urgent)
        if wait_s > (URGENT_SLICE_S if urgent else SLICE_S):
            await asyncio.sleep(wait_s)

    def _on_answers(self) -> None:
        assert self._ears is not None
        for heard in hearing.waiting(self._ears):
            if heard.error.kind == "time_exceeded":
                back_over = self.sender.uplink(heard.ifindex)
                self._take(heard.error.quoted, Answer(heard.who, back_over, heard.crossed))

    def _take(self, quoted: icmp.Quoted, answer: Answer) -> None:
        for token in self._tokens(quoted):
            asked = self._waiting.get(token)
            if asked is None:
                continue
            batch, question = asked
            sport = question.label if self.sender.in_tunnel(question) else question.sport
            if quoted.src == self._own and quoted.dst == batch.dst and quoted.sport == sport:
                self.answered += 1
                batch.take(question, answer)
                return

    def _tokens(self, quoted: icmp.Quoted) -> Iterator[int]:
        """What a quoted packet may be the question of: a token, or the low half of one."""
        yield quoted.sequence if quoted.protocol == TCP else int.from_bytes(quoted.payload[4:8], "big")
        if quoted.protocol == UDP and len(quoted.src) == 4:
            newest = (self._token & ~0xFFFF) | quoted.label
            yield newest
            yield newest - 0x10000
