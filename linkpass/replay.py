"""Feed a recording to a fresh core and find the first place where it answers otherwise. Pure but for its input."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

import msgspec

from linkpass.core.commands import AnyCommand, Command
from linkpass.core.events import AnyEvent, Event
from linkpass.core.settings import CoreSettings
from linkpass.wire.recording import In, Recording, RecordingError

T = TypeVar("T")


class Machine(Protocol):
    """What replay needs of a core."""

    def handle(self, event: Event, now_s: float) -> Sequence[Command]: ...


class Divergence(msgspec.Struct, frozen=True):
    """The first turn with another answer. `recorded` and `replayed` hold the commands from the first difference on."""

    where: str
    now_s: float
    event: Event
    recorded: tuple[Command, ...]
    replayed: tuple[Command, ...]
    error: str = ""
    """The core raised this instead of answering."""


class Replay(msgspec.Struct, frozen=True):
    events: int
    commands: int
    spanned_s: float
    cut: bool
    divergence: Divergence | None


def replay(recording: Recording, make_core: Callable[[CoreSettings], Machine]) -> Replay:
    """Run the whole recording, up to the first divergence. Raises RecordingError when its content cannot be read."""
    core = make_core(_decode("header", recording.header.settings, CoreSettings))
    commands = 0
    turns = list(_turns(recording))
    first_s = turns[0].now_s if turns else 0.0
    for number, turn in enumerate(turns, 1):
        divergence = _differs(core, turn, last=number == len(turns))
        commands += len(turn.recorded or ())
        if divergence is not None:
            return Replay(number, commands, turn.now_s - first_s, recording.cut, divergence)
    return Replay(len(turns), commands, turns[-1].now_s - first_s if turns else 0.0, recording.cut, None)


class _Turn(msgspec.Struct, frozen=True):
    """An event and the answer to it; None: none was written."""

    where: str
    now_s: float
    event: Event
    recorded: tuple[Command, ...] | None = None


def _turns(recording: Recording) -> Iterator[_Turn]:
    events = msgspec.json.Decoder(AnyEvent)
    answers = msgspec.json.Decoder(tuple[AnyCommand, ...])
    turn: _Turn | None = None
    for where, line in recording.turns:
        if isinstance(line, In):
            if turn is not None:
                yield turn
            event: Event = _decode(where, line.event, events)
            turn = _Turn(where, line.now_s, event)
        elif turn is None or turn.recorded is not None:
            raise RecordingError(f"{where}: commands without an event before them")
        else:
            turn = msgspec.structs.replace(turn, recorded=_decode(where, line.commands, answers))
    if turn is not None:
        yield turn


def _differs(core: Machine, turn: _Turn, *, last: bool) -> Divergence | None:
    """A turn without an answer had none, but for the last: there the daemon may have died before it wrote one."""
    try:
        replayed = tuple(core.handle(turn.event, turn.now_s))
    except Exception:  # noqa: BLE001 whatever the core raises is the finding
        return Divergence(turn.where, turn.now_s, turn.event, (), (), traceback.format_exc(limit=-3))
    recorded = turn.recorded or ()
    if recorded == replayed or (last and turn.recorded is None):
        return None
    same = _common(recorded, replayed)
    return Divergence(turn.where, turn.now_s, turn.event, recorded[same:], replayed[same:])


def _common(one: Sequence[Command], other: Sequence[Command]) -> int:
    pairs = zip(one, other, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def _decode(where: str, raw: msgspec.Raw, kind: type[T] | msgspec.json.Decoder[T]) -> T:
    try:
        return kind.decode(raw) if isinstance(kind, msgspec.json.Decoder) else msgspec.json.decode(raw, type=kind)
    except msgspec.MsgspecError as error:
        raise RecordingError(f"{where}: another version wrote this: {error}") from None
