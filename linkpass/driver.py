"""The one pump: take an event, record it, handle it, dispatch the commands, re-arm one timer.

Edges call `submit` from the event loop. Everything that came in is handled in one go before the loop goes on, so
that the events of one moment are one decision; what steers traffic is carried out in the same go and hands its
outcome back into it. Questions come after it and words last, one at a time with the loop in between: peers wait for
our answers to their probes, and a journal on a slow disk must not hold up what it tells of.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Protocol

import structlog

from linkpass.core import commands as cmd
from linkpass.core import events as ev
from linkpass.core.machine import Core

logger = structlog.get_logger()

TURNS_AT_ONCE = 200
"""Events handled before the loop gets a chance to read sockets again."""

AT_ONCE = (cmd.SetGroup, cmd.SetLabels, cmd.MoveFlows, cmd.SendNotice, cmd.Escalate)
"""Commands by which traffic or a rank leaves what fails, here or at a peer. All others can wait a moment."""

Carrier = Callable[..., ev.Event | None]
"""Carries out one kind of command. Returns the outcome, or None when it comes later or there is none."""


class Tape(Protocol):
    """Where events and commands are recorded."""

    def event(self, now_s: float, event: ev.Event) -> None: ...

    def commands(self, now_s: float, commands: list[cmd.Command]) -> None: ...


class Driver:
    """Pumps events into a core and its commands out to the edges."""

    def __init__(
        self,
        core: Core,
        carriers: Mapping[type[cmd.Command], Carrier],
        clock: Callable[[], float],
        tape: Tape | None = None,
        tell: Callable[[cmd.Record, float], None] | None = None,
    ) -> None:
        """`tell`: takes the words, and when they were said."""
        self.core = core
        self._carriers = carriers
        self._tell = tell
        self._questions: deque[cmd.Command] = deque()
        self._words: deque[tuple[cmd.Record, float]] = deque()
        self._clock = clock
        self._tape = tape
        self._queue: deque[ev.Event] = deque()
        self.faults = 0
        """Commands that met a fault of ours; the log has each."""
        self._scheduled = False
        self._seeing_to = False
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def open(self) -> None:
        """Begin; must be called inside the running loop."""
        self._loop = asyncio.get_running_loop()
        self._schedule()

    def close(self) -> None:
        """Stop pumping. What is still queued is dropped, nobody is left to carry it out; what was said is told."""
        while self._words:
            self._tell_one()
        self._loop = None
        self._queue.clear()
        self._questions.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def submit(self, event: ev.Event) -> None:
        """Queue an event; it is handled before the loop waits again."""
        self._queue.append(event)
        self._schedule()

    @property
    def settled(self) -> bool:
        """Whether all that has come in is handled, and all that followed from it asked and told."""
        return self._loop is None or not (self._scheduled or self._queue or self._questions or self._words)

    def _schedule(self) -> None:
        if self._loop is not None and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._scheduled = False
        if self._loop is None:
            return
        for _ in range(TURNS_AT_ONCE):
            now_s = self._clock()
            if self._queue:
                self._turn(self._queue.popleft(), now_s)
                continue
            deadline_s = self.core.next_deadline_s()
            if deadline_s is None or deadline_s > now_s:
                break
            self._turn(ev.Deadline(), now_s)
        else:
            self._schedule()
            return
        self._arm()

    def _turn(self, event: ev.Event, now_s: float) -> None:
        if self._tape is not None:
            self._tape.event(now_s, event)
        commands = self.core.handle(event, now_s)
        if self._tape is not None and commands:
            self._tape.commands(now_s, commands)
        for command in commands:
            if isinstance(command, cmd.Record):
                self._words.append((command, now_s))
            elif isinstance(command, AT_ONCE):
                outcome = self._carry_out(command)
                if outcome is not None:
                    self._queue.append(outcome)
            else:
                self._questions.append(command)
        self._see_to_rest()

    def _carry_out(self, command: cmd.Command) -> ev.Event | None:
        carrier = self._carriers.get(type(command))
        if carrier is None:
            return None
        try:
            return carrier(command)
        except Exception:  # a fault of ours in one command must not keep the others from their edges
            self.faults += 1
            logger.exception("a command could not be carried out", command=type(command).__name__)
            return None

    def _see_to_rest(self) -> None:
        if self._loop is not None and not self._seeing_to and (self._questions or self._words):
            self._seeing_to = True
            self._loop.call_soon(self._rest)

    def _rest(self) -> None:
        """One question or one word, and the loop has its turn before the next."""
        self._seeing_to = False
        if self._loop is None:
            return
        if self._questions:
            outcome = self._carry_out(self._questions.popleft())
            if outcome is not None:
                self.submit(outcome)
        elif self._words:
            self._tell_one()
        self._see_to_rest()

    def _tell_one(self) -> None:
        word, said_s = self._words.popleft()
        try:
            if self._tell is not None:
                self._tell(word, said_s)
        except Exception:
            self.faults += 1
            logger.exception("words could not be told", what=word.what)

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline_s = self.core.next_deadline_s()
        if deadline_s is not None and self._loop is not None:
            self._timer = self._loop.call_at(self._loop.time() + max(0.0, deadline_s - self._clock()), self._pump)
