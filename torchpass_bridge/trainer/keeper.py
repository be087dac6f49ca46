"""Copies this rank's part of a sharded state at each boundary, and leaves it with a buddy, beside the step.

One thread copies, another one sends. What the training thread waits for, before the optimizer changes the state: that
the copy is made, and that the buddy has it or cannot be reached. With that a rank's newest copy is at most one boundary
behind any other rank, however slow its way to the buddy is; mostly all has happened by then.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec
import torch

from torchpass_bridge.trainer.aside import Aside
from torchpass_bridge.trainer.channel import Ask, ChannelError, Reply, connect, receive, send, send_all
from torchpass_bridge.trainer.chunks import digest, view
from torchpass_bridge.trainer.copies import Copies, Copy
from torchpass_bridge.trainer.own import sealed
from torchpass_bridge.trainer.settings import Settings
from torchpass_bridge.trainer.state import Piece, State, layout
from torchpass_bridge.wire import Member

AGAIN_S = 0.02
"""Until a buddy is asked again that does not know this rank's holder yet."""

_log = logging.getLogger(__name__)


class Wanted(msgspec.Struct, frozen=True):
    """What is to be left, and with whom."""

    step: int
    generation: int
    rank: int
    to: Member | None


class Keeper:
    """`waited_s`: how long the training thread has waited for it, in all."""

    def __init__(self, settings: Settings, copies: Copies, shards: int) -> None:
        self._settings, self._copies, self._shards = settings, copies, shards
        self._changed = threading.Condition()
        self._work: tuple[Wanted, list[Piece], bytes, Any] | None = None
        self._wanted: Wanted | None = None
        self._asked = self._made = 0
        self._sent: Wanted | None = None
        """What the buddy has, or could not be given."""
        self._reaches = True
        self._failure: Exception | None = None
        self._sock: socket.socket | None = None
        self._to = ""
        self.waited_s = 0.0

    def start(self) -> None:
        for run in (self._copy, self._send):
            Aside(f"keep{run.__name__}", run).start()

    # called by the training thread
    def begin(self, wanted: Wanted, pieces: Callable[[], list[Piece]], own: bytes) -> None:
        """At a boundary. What is copied and left there already is not copied and left again."""
        with self._changed:
            if wanted == self._wanted:
                return
            known = self._copies.own(wanted.step)
            self._wanted = wanted
            if known is None:
                event: Any = torch.cuda.Event() if torch.cuda.is_available() else None  # type: ignore[no-untyped-call]
                if event is not None:
                    event.record()
                self._asked += 1
                self._work = wanted, pieces(), own, event
            self._changed.notify_all()
        self._copies.tidy(wanted.step)

    def ready(self, broken: Callable[[], bool]) -> None:
        """Until the state may change. `broken`: the others are not to be waited for."""
        began_s = time.perf_counter()
        self.settled()
        with self._changed:
            while self._reaches and self._wanted is not None and self._wanted.to is not None:
                if self._sent == self._wanted or broken():
                    break
                self._changed.wait(AGAIN_S)
        self.waited_s += time.perf_counter() - began_s

    def settled(self) -> None:
        """Until no copy is being made. RuntimeError when one could not be."""
        with self._changed:
            while self._made < self._asked:
                self._changed.wait()
        if self._failure is not None:
            raise RuntimeError("this rank's part of the state could not be copied") from self._failure

    def kept(self, step: int) -> Copy | None:
        """The own part as it was at `step`."""
        self.settled()
        return self._copies.own(step)

    def restore(self, kept: Copy, state: State) -> bool:
        """False: it is laid out in another way."""
        for bare in (False, True):
            pieces = state.pieces(bare=bare)
            if layout(pieces) == kept.layout:
                at = 0
                for piece in pieces:
                    piece.tensor.copy_(kept.data[at : at + piece.tensor.numel()])
                    at += piece.tensor.numel()
                if bare:  # before the first step
                    state.forget()
                return True
        return False

    # its own threads
    def _copy(self) -> None:
        while True:
            with self._changed:
                while self._work is None:
                    self._changed.wait()
                (wanted, pieces, own, event), self._work = self._work, None
                number = self._asked
            try:
                self._make(wanted, pieces, own, event)
            except Exception as error:  # noqa: BLE001 (no memory, mostly; the training thread raises it)
                self._failure = error
            with self._changed:
                self._made = number
                self._changed.notify_all()

    def _make(self, wanted: Wanted, pieces: list[Piece], own: bytes, event: Any) -> None:
        if event is not None:
            event.synchronize()
        size, at = sum(piece.tensor.numel() for piece in pieces), 0
        data = self._copies.room("", size, pinned=event is not None)
        for piece in pieces:
            data[at : at + piece.tensor.numel()].copy_(piece.tensor)
            at += piece.tensor.numel()
        rank, step = wanted.rank, wanted.step
        mark = sealed(self._settings.key, rank, step, own)
        self._copies.put(
            "", Copy(rank % self._shards, step, wanted.generation, rank, layout(pieces), mark, data)
        )  # fmt: skip

    def _send(self) -> None:
        while True:
            with self._changed:
                while (wanted := self._due()) is None:
                    self._changed.wait()
            copy = self._copies.own(wanted.step)
            why = self._leave(wanted, copy) if copy is not None else "it is not kept here any more"
            if why and self._reaches:
                _log.warning("rank %d's part at step %d is not kept by a buddy: %s", wanted.rank, wanted.step, why)
            with self._changed:
                self._sent, self._reaches = wanted, not why
                self._changed.notify_all()

    def _due(self) -> Wanted | None:
        wanted = self._wanted
        if wanted is None or wanted.to is None or wanted == self._sent or self._made < self._asked:
            return None
        return wanted

    def _leave(self, wanted: Wanted, copy: Copy) -> str:
        """Why it could not be left; empty: the buddy has it."""
        until_s = time.monotonic() + self._settings.times.stall_s
        while True:
            try:
                why = self._try(wanted, copy)
            except ChannelError as error:
                self._drop()
                why = str(error)
            if not why or time.monotonic() > until_s or self._wanted != wanted:
                return why
            time.sleep(AGAIN_S)

    def _try(self, wanted: Wanted, copy: Copy) -> str:
        to = wanted.to
        assert to is not None
        if self._sock is None or self._to != to.id:
            self._drop()
            times = self._settings.times
            self._sock = connect(to.address, self._settings.key, self._settings.id, times.connect_s, times.stall_s)
            self._to = to.id
        sock = self._sock
        told = msgspec.msgpack.encode((copy.layout, copy.own))
        group = (wanted.generation, 0)
        send(sock, Ask("hold", group, copy.step, copy.data.numel(), copy.rank, told, part=copy.part))
        reply = receive(sock, Reply)
        if reply.why:
            return reply.why
        for number in range(len(copy)):
            part = view(copy.chunk(number))
            send_all(sock, [digest([part]).encode(), part])
        return receive(sock, Reply).why

    def _drop(self) -> None:
        if self._sock is not None:
            self._sock.close()
            self._sock = None
