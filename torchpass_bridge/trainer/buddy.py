"""Leaves what belongs to this rank alone with another member, on another host if there is one.

Some 10 kB a step, sent by a thread: a step never waits for it. Which step's arrives last does not matter: whoever takes
the rank's place does the steps between alone (`loop.py`), and has then what the rank had.
"""

from __future__ import annotations

import logging
import socket
import threading

from torchpass_bridge.trainer.aside import Aside
from torchpass_bridge.trainer.channel import Ask, ChannelError, connect, send
from torchpass_bridge.trainer.own import sealed
from torchpass_bridge.trainer.settings import Settings
from torchpass_bridge.wire import Member

_log = logging.getLogger(__name__)


class Buddy:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._changed = threading.Condition()
        self._to: Member | None = None
        self._waiting: tuple[int, int, bytes] | None = None
        self._sock: socket.socket | None = None
        self._said = ""

    def start(self) -> None:
        Aside("buddy", self._run).start()

    def to(self, member: Member | None) -> None:
        with self._changed:
            self._to = member

    def leave(self, rank: int, step: int, own: bytes) -> None:
        """The newest replaces one that is not sent yet."""
        with self._changed:
            self._waiting = rank, step, own
            self._changed.notify()

    def _run(self) -> None:
        connected = ""
        while True:
            with self._changed:
                while self._waiting is None or self._to is None:
                    self._changed.wait()
                (rank, step, own), self._waiting, to = self._waiting, None, self._to
            try:
                if self._sock is None or connected != to.id:
                    self._drop()
                    times = self._settings.times
                    self._sock = connect(
                        to.address, self._settings.key, self._settings.id, times.connect_s, times.stall_s
                    )
                    connected = to.id
                data = sealed(self._settings.key, rank, step, own)
                send(self._sock, Ask("keep", step=step, rank=rank, data=data))
                self._said = ""
            except ChannelError as error:
                self._drop()
                if not self._said:
                    _log.warning("rank %d's generators are not kept by %s: %s", rank, to.id, error)
                self._said = str(error)

    def _drop(self) -> None:
        if self._sock is not None:
            self._sock.close()
            self._sock = None
