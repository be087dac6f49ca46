"""Queue pairs that are stopped, in the undo journal: written down before they are, struck out when they run again.

Or that were given another UDP source port, until they have the old one again."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

import msgspec
import structlog

from rdma.remote_qp import GoneError, RefusedError, RemoteQp, Target

KIND: Final = "queue_pair"
"""Of our entries in the undo journal."""
AGAIN_S: Final = 0.05
Plain = Mapping[str, int | str]

logger = structlog.get_logger()


class Undo(Protocol):
    """What is needed of the undo journal."""

    def note(self, kind: str, changes: Sequence[Plain], *, sync: bool = True) -> list[int]: ...

    def done(self, numbers: Sequence[int]) -> None: ...

    def pending(self, kind: str) -> dict[int, Plain]: ...


class Leftovers:
    """What an earlier run has left, as it is in the journal now. What cannot be put back yet is tried again."""

    def __init__(self, undo: Undo) -> None:
        self._undo = undo
        self._pending = dict(reversed(undo.pending(KIND).items()))

    def again(self, within_s: float = 0.0) -> tuple[int, list[str]]:
        """Queue pairs that were stopped go on; those with another UDP source port get the old one. How many were put
        back, and of the others what they are and why not. Tries for so long; a queue may still be draining."""
        until_s, put = time.monotonic() + within_s, set[str]()
        while True:
            whys = put_back_each(list(self._pending.values()))
            fine = [number for number, why in zip(self._pending, whys, strict=True) if why is None]
            self._undo.done(fine)
            put |= {str(self._pending.pop(number)["target"]) for number in fine}
            if not self._pending or time.monotonic() >= until_s:
                return len(put), list(dict.fromkeys(why for why in whys if why is not None))
            time.sleep(AGAIN_S)


def restore(undo: Undo, within_s: float = 0.0) -> tuple[int, list[str]]:
    """All that is in the journal now: `Leftovers.again`."""
    return Leftovers(undo).again(within_s)


def put_back(changes: Sequence[Plain]) -> list[bool]:
    """For `UndoJournal.restore_all`: the newest first."""
    return [why is None for why in put_back_each(changes)]


def put_back_each(changes: Sequence[Plain]) -> list[str | None]:
    """With the old address, unless the new one was decided upon; None where it was done, else why not."""
    decided = {str(one.get("target")) for one in changes if one.get("decided")}
    found: list[str | None] = []
    for one in changes:
        target = target_of(one)
        if target is None:
            found.append(None)  # half a line: nothing can be found by it
            continue
        remote = RemoteQp(target)
        work = remote.resume if str(one["target"]) in decided else remote.back
        why = attempt(work, gone_is_fine=True)
        found.append(None if why is None else f"queue pair {target.qpn} of process {target.pid} is not put back: {why}")
    return found


def plain(target: Target, *, decided: bool = False) -> Plain:
    """`decided`: both ends have the new address, and there is no way back."""
    return {"target": msgspec.json.encode(target).decode(), "decided": int(decided)}


def target_of(change: Plain) -> Target | None:
    """None: it cannot be read."""
    try:
        return msgspec.json.decode(str(change.get("target")), type=Target)
    except msgspec.MsgspecError:
        return None


def attempt(work: Callable[[], object], *, gone_is_fine: bool) -> str | None:
    """None when it was done, or, with `gone_is_fine`, when nothing is left to do it to; else why not."""
    try:
        work()
    except GoneError as error:
        return None if gone_is_fine else str(error)
    except RefusedError as error:
        return str(error)
    except Exception as error:  # whatever it was: a queue pair may stand for it
        logger.exception("a step on a queue pair failed")
        return f"{type(error).__name__}: {error}"
    return None
