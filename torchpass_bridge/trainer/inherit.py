"""Where what belongs to a rank alone comes from, and up to which step it is known.

From the one that leaves, at the cut. After a crash: from the script itself, if it can say (`own_at`); else from what
the dead rank had left with a buddy, or in the store when it began, which may be some steps old; else from nobody: then
generators are seeded anew, and the job goes on, but not to the last bit as it would have.
"""

from __future__ import annotations

import hashlib
import logging
import struct
from collections.abc import Callable

from torchpass_bridge.core.duty import Duty
from torchpass_bridge.core.places import buddy_of
from torchpass_bridge.trainer.own import Own, opened, sealed
from torchpass_bridge.trainer.settings import Settings
from torchpass_bridge.trainer.taking import Sources, kept_of
from torchpass_bridge.wire import Job, Member

MAX_ALONE = 100
"""Steps that are done again alone before generators are given up."""
KEPT = 3
"""Boundaries that one can go back to."""

_STEP = struct.Struct("!q")

_log = logging.getLogger(__name__)


class Heir:
    """`at`: the step that generators, schedulers and positions are at; -1: they are nobody's yet."""

    def __init__(
        self,
        settings: Settings,
        own: Own,
        hook: Callable[[int, int], None] | None,
        first_of: Callable[[str], bytes | None],
    ) -> None:
        """`first_of`: what a member has left of its beginning (`first`), by its id."""
        self._settings, self._own, self._hook, self._first_of = settings, own, hook, first_of
        self.rank = settings.rank
        self.at = 0 if settings.rank is not None else -1
        self._notes: dict[int, bytes] = {}
        self._pending: bytes | None = None

    def note(self, rank: int, step: int) -> bytes:
        """As it is now, at this boundary."""
        if self.rank != rank:
            self._notes.clear()
        self.rank, self.at = rank, step
        if step in self._notes:
            return self._notes[step]
        taken = self._notes[step] = self._own.take()
        while len(self._notes) > KEPT:
            del self._notes[min(self._notes)]
        return taken

    def first(self) -> bytes:
        """Of the boundary at which this member begins with its rank, for `first_of` of others."""
        assert self.rank is not None
        return _STEP.pack(self.at) + sealed(self._settings.key, self.rank, self.at, self.note(self.rank, self.at))

    def first_at(self, member_id: str) -> tuple[int, bytes] | None:
        """What a member has left of its beginning: the step, and sealed bytes."""
        left = self._first_of(member_id)
        if left is None or len(left) <= _STEP.size:
            return None
        return int(_STEP.unpack_from(left)[0]), left[_STEP.size :]

    def back_to(self, step: int) -> None:
        self._own.put(self._notes[step])
        self.at = step
        for later in [noted for noted in self._notes if noted > step]:
            del self._notes[later]

    def done_alone(self, step: int) -> None:
        self.at = step + 1
        if self.rank is not None:
            self.note(self.rank, self.at)

    def inherit(self, todo: Duty, sources: Sources, job: Job | None) -> None:
        """Have what belongs to rank `todo.rank` alone, at the newest step up to `todo.at_step` at which it is known.

        `NotTaken`: a source that should have it is gone."""
        assert todo.rank is not None
        rank, step = todo.rank, todo.at_step
        if self._pending is not None:  # taken for an attempt that failed
            self._pending, self.rank, self.at = None, None, -1
        if todo.own_from is not None:
            self._pending = sources.own(todo.own_from)
            self.rank, self.at = rank, step
            return
        if self.rank == rank:
            if 0 <= self.at <= step:
                return
            known = [noted for noted in self._notes if noted <= step]
            if known:
                self.back_to(max(known))
                return
        if todo.take is not None and todo.take.kept and (data := sources.own_of_copy(rank)) is not None:
            self.restored(rank, step, data)
            return
        self._notes.clear()
        self.rank = rank
        if self._hook is not None:
            self._own.put(sources.any_own(), only_shared=True)
            self._hook(rank, step)
            self.at = step
            return
        kept = self._kept(job, rank, step) if job is not None else None
        if kept is not None:
            self.at, data = kept
            self._own.put(data)
            self._notes[self.at] = data
            return
        self._own.put(sources.any_own())
        self._anew(rank, step)

    def restored(self, rank: int, step: int, data: bytes) -> None:
        """With a copy of its part came what belonged to the rank alone: nothing has to be done again for it."""
        self._own.put(data)
        self._notes.clear()
        self._notes[step] = data
        self.rank, self.at = rank, step

    def restore(self, rank: int, step: int, sealed_notes: list[tuple[int, int, bytes]]) -> None:
        """Begin with what a snapshot of step `step` has. `sealed_notes`: (of which rank, at which step, bytes), this
        rank's first, if it is there. ValueError when one does not carry the job's mark."""
        if not sealed_notes:
            raise ValueError("it has nothing of what belongs to ranks alone")
        of, at, data = sealed_notes[0]
        found = opened(self._settings.key, of, at, data)
        self._notes.clear()
        self.rank, self.at = rank, at
        self._own.put(found)
        if of == rank:
            self._notes[at] = found
        else:
            self._anew(rank, step)

    def _anew(self, rank: int, step: int) -> None:
        """Generators for a rank whose own ones nobody has any more."""
        _log.warning(
            "what belonged to rank %d alone is lost with it: its generators are seeded anew at step %d, so the job "
            "will not end to the last bit as it would have", rank, step,
        )  # fmt: skip
        told = hashlib.sha256(f"{self._settings.job} {rank} {step}".encode()).digest()
        self._own.reseed(int.from_bytes(told[:7], "big"))
        self.at = step

    def _kept(self, job: Job, rank: int, step: int) -> tuple[int, bytes] | None:
        """By a buddy; or by the store, if the rank's holder had just begun."""
        kept = kept_of(self._settings, _likely(job, rank), rank, step)
        if kept is not None and kept[0] >= step - 1:
            return kept
        left = self.first_at(job.members[rank].id)
        if left is not None and (kept is None or left[0] > kept[0]) and 0 <= step - left[0] <= MAX_ALONE:
            try:
                return left[0], opened(self._settings.key, rank, *left)
            except ValueError as error:
                _log.warning("%s", error)
        return kept

    def finish(self, step: int) -> None:
        """The tensors are there: what goes with them is put in its place."""
        if self._pending is not None:
            self._own.put(self._pending)
            self._pending = None
        self._notes.clear()
        if self.rank is not None:
            self.note(self.rank, step)


def _likely(job: Job, rank: int) -> list[Member]:
    """Who may have kept it: the rank's buddy, then the others."""
    buddy = buddy_of(job.members, rank)
    members = [member for member in job.members if member.id not in job.fenced]
    return sorted(members, key=lambda member: buddy is None or member.id != buddy.id)
