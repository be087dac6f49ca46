"""Copies of parts of a sharded state at earlier boundaries, in this host's memory: of the own part, and of others'.

Three of each: ranks are at most two boundaries ahead of what is kept of any of them (`keeper.py`), so that there is
always one step at which all parts can be had. Buffers are used again: making new ones at each step would cost more
than the copying.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import msgspec
import torch

from torchpass_bridge.trainer.chunks import CHUNK_BYTES

KEPT = 3
OLD = 8
"""Boundaries after which another's copy is of no use any more."""
SPARE_BUFFERS = 2


class Copy(msgspec.Struct, frozen=True, eq=False):
    """`data`: all bytes in the order of `State.pieces`; `own`: what belonged to `rank` alone then, sealed.

    `generation`: in which it was trained."""

    part: int
    step: int
    generation: int
    rank: int
    layout: str
    own: bytes
    data: torch.Tensor

    def __len__(self) -> int:
        return -(-self.data.numel() // CHUNK_BYTES)

    def chunk(self, number: int) -> torch.Tensor:
        return self.data[number * CHUNK_BYTES : (number + 1) * CHUNK_BYTES]


class Copies:
    """`changed`: called when one has come. A slot is whose copies they are: "" this process's own."""

    def __init__(self, changed: Callable[[], None] = lambda: None) -> None:
        self._changed = changed
        self._lock = threading.Lock()
        self._slots: dict[str, dict[int, Copy]] = {}
        self._free: list[torch.Tensor] = []
        self._entered = (0, 0)

    def room(self, slot: str, size: int, *, pinned: bool = False) -> torch.Tensor:
        """A buffer for one more; the oldest one of the slot goes for it."""
        with self._lock:
            kept = self._slots.setdefault(slot, {})
            while len(kept) >= KEPT:
                self._drop(slot, min(kept))
            for number, buffer in enumerate(self._free):
                if buffer.numel() == size:
                    return self._free.pop(number)
        return torch.empty(size, dtype=torch.uint8, pin_memory=pinned)

    def put(self, slot: str, copy: Copy) -> bool:
        """False: it is of a step that is done again since, and of no use."""
        with self._lock:
            generation, step = self._entered
            if copy.generation < generation and copy.step > step:
                self._release(copy.data)
                return False
            if copy.step in self._slots.setdefault(slot, {}):
                self._drop(slot, copy.step)
            self._slots[slot][copy.step] = copy
        self._changed()
        return True

    def find(self, part: int, step: int) -> Copy | None:
        with self._lock:
            return self._find(part, step)

    def own(self, step: int) -> Copy | None:
        with self._lock:
            return self._slots.get("", {}).get(step)

    def at(self, step: int) -> tuple[Copy, ...]:
        """All of that boundary."""
        with self._lock:
            return tuple(kept[step] for kept in self._slots.values() if step in kept)

    def holds(self, copy: Copy) -> bool:
        """Whether its buffer still is its own."""
        with self._lock:
            return any(copy is kept for slot in self._slots.values() for kept in slot.values())

    def keeps(self) -> tuple[tuple[int, int], ...]:
        """(part, step) of all."""
        with self._lock:
            return tuple(sorted({(c.part, c.step) for slot in self._slots.values() for c in slot.values()}))

    def entered(self, generation: int, step: int) -> None:
        """It is gone on from `step`: what is newer is of steps that are done again."""
        with self._lock:
            self._entered = (generation, step)
            self._forget(lambda _, copy: copy.step > step)

    def tidy(self, step: int) -> None:
        """Others' that are far behind the boundary `step`: their ranks leave them elsewhere now."""
        with self._lock:
            self._forget(lambda slot, copy: bool(slot) and copy.step < step - OLD)

    def _find(self, part: int, step: int) -> Copy | None:
        for kept in self._slots.values():
            found = kept.get(step)
            if found is not None and found.part == part:
                return found
        return None

    def _forget(self, useless: Callable[[str, Copy], bool]) -> None:
        for slot, kept in list(self._slots.items()):
            for step, copy in list(kept.items()):
                if useless(slot, copy):
                    self._drop(slot, step)
            if not kept:
                del self._slots[slot]

    def _drop(self, slot: str, step: int) -> None:
        self._release(self._slots[slot].pop(step).data)

    def _release(self, buffer: torch.Tensor) -> None:
        self._free = [*self._free, buffer][-SPARE_BUFFERS:]
