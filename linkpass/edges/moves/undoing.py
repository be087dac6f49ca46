"""Queue pairs that are stopped, in the undo journal: written down before they are, struck out when they run again.

Or that were given another UDP source port, until they have the old one again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

import msgspec

from rdma.remote_qp import GoneError, RefusedError, RemoteQp, Target

KIND: Final = "queue_pair"
"""Of our entries in the undo journal."""
Plain = Mapping[str, int | str]


class Undo(Protocol):
    """What is needed of the undo journal."""

    def note(self, kind: str, changes: Sequence[Plain], *, sync: bool = True) -> list[int]: ...

    def done(self, numbers: Sequence[int]) -> None: ...

    def pending(self, kind: str) -> dict[int, Plain]: ...


def restore(undo: Undo) -> int:
    """Queue pairs that were stopped by a daemon that is gone go on; those with another UDP source port get the old one.
    How many."""
    pending = dict(reversed(undo.pending(KIND).items()))
    fine = [number for number, put in zip(pending, put_back(list(pending.values())), strict=True) if put]
    undo.done(fine)
    return len({str(pending[number]["target"]) for number in fine})


def put_back(changes: Sequence[Plain]) -> list[bool]:
    """The newest first (`UndoJournal.restore_all`): with the old address, unless the new one was decided upon."""
    decided = {str(one["target"]) for one in changes if one.get("decided")}
    done = []
    for one in changes:
        remote = RemoteQp(target_of(one))
        work = remote.resume if str(one["target"]) in decided else remote.back
        done.append(attempt(work, gone_is_fine=True) is None)
    return done


def plain(target: Target, *, decided: bool = False) -> Plain:
    """`decided`: both ends have the new address, and there is no way back."""
    return {"target": msgspec.json.encode(target).decode(), "decided": int(decided)}


def target_of(change: Plain) -> Target:
    return msgspec.json.decode(str(change["target"]), type=Target)


def attempt(work: Callable[[], object], *, gone_is_fine: bool) -> str | None:
    """None when it was done, or, with `gone_is_fine`, when nothing is left to do it to; else why not."""
    try:
        work()
    except GoneError as error:
        return None if gone_is_fine else str(error)
    except RefusedError as error:
        return str(error)
    return None
