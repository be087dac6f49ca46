"""Playbooks: events in at times, expected commands out.

    book = Playbook(core)
    book >> UplinkState(uplink="eth1", usable=True)     # an event, now
    book << like(SetGroup, uplinks=("eth1",))           # the commands since, in order; fields not named may be anything
    book >> 0.5                                         # half a second passes; the core gets each Deadline it asked for
    book << nothing
    book.close()                                        # nothing is left unasserted, the invariants hold

A command that nobody expected fails the test. `aside=(Record, ...)` names kinds of commands that a test does not care
for. Time is advanced, never waited for; a core that asks for Deadlines without getting anywhere fails.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from linkpass.core.commands import Command
from linkpass.core.events import Deadline, Event
from linkpass.core.machine import Core

TURNS_AT_ONE_TIME = 5
"""A core that wants more Deadlines than this without time passing is in a loop."""


@dataclass(frozen=True)
class Like:
    """Matches a command by its kind and by some of its fields. A callable asks for more than equality."""

    kind: type[Command]
    fields: tuple[tuple[str, Any], ...]

    def fits(self, command: Command) -> bool:
        if type(command) is not self.kind:
            return False
        for name, wanted in self.fields:
            found = getattr(command, name)
            if not (wanted(found) if callable(wanted) else found == wanted):
                return False
        return True

    def __repr__(self) -> str:
        return f"{self.kind.__name__}({', '.join(f'{name}={value!r}' for name, value in self.fields)})"


def like(kind: type[Command], **fields: Any) -> Like:
    return Like(kind, tuple(fields.items()))


nothing: tuple[Like, ...] = ()


class Playbook:
    """One core, its clock, and the commands that have not been asserted yet."""

    def __init__(self, core: Core, *, start_s: float = 100.0, aside: tuple[type[Command], ...] = ()) -> None:
        self.core, self.now_s, self.aside = core, start_s, aside
        self.waiting: list[Command] = []
        self.everything: list[tuple[float, Command]] = []

    def __rshift__(self, what: Event | float | int) -> Playbook:
        if isinstance(what, Event):
            self._turn(what)
            self._catch_up(self.now_s)
        else:
            self._catch_up(self.now_s + what)
        return self

    def together(self, *events: Event) -> Playbook:
        """Events of one moment: the core decides when all of them are in."""
        for event in events:
            self._turn(event)
        self._catch_up(self.now_s)
        return self

    def __lshift__(self, expected: Like | tuple[Like, ...]) -> Playbook:
        wanted = expected if isinstance(expected, tuple) else (expected,)
        found, self.waiting = self.waiting, []
        assert len(found) == len(wanted), f"expected {list(wanted)}\nfound {_lines(found)}"
        for command, one in zip(found, wanted, strict=True):
            assert one.fits(command), f"expected {one!r}\nfound {command}\nof {_lines(found)}"
        return self

    def forget(self) -> Playbook:
        """The commands so far belong to the scene, not to the test."""
        self.waiting = []
        return self

    def last(self, kind: type[Command]) -> Any:
        """The newest command of a kind that has been seen in this book."""
        return next(command for _, command in reversed(self.everything) if isinstance(command, kind))

    def close(self) -> None:
        assert not self.waiting, f"nobody expected {_lines(self.waiting)}"
        self.core.check_invariants()

    def _turn(self, event: Event) -> None:
        for command in self.core.handle(event, self.now_s):
            self.everything.append((self.now_s, command))
            if not isinstance(command, self.aside):
                self.waiting.append(command)
        self.core.check_invariants()

    def _catch_up(self, until_s: float) -> None:
        turns, at_s = 0, -1.0
        while (deadline_s := self.core.next_deadline_s()) is not None and deadline_s <= until_s:
            self.now_s = max(self.now_s, deadline_s)
            turns = turns + 1 if at_s == self.now_s else 0
            at_s = self.now_s
            assert turns < TURNS_AT_ONE_TIME, f"the core asks for {deadline_s} again and again at {self.now_s}"
            self._turn(Deadline())
        self.now_s = until_s


def _lines(commands: list[Command]) -> str:
    return "".join(f"\n  {command}" for command in commands) or "nothing"
