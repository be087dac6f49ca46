"""Lets others read this process's state, while it stands still, and keeps what belongs to other ranks alone.

A thread listens, and each connection has one of its own: state is given to several takers at once, and the training
thread stands still anyway. Nothing is given unless the gate is open for that step and that group; what was sent while
it closed is marked as not to be used.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable

import msgspec

from torchpass_bridge.trainer.aside import Aside
from torchpass_bridge.trainer.channel import Ask, ChannelError, Reply, accept, receive, receive_all, send, send_all
from torchpass_bridge.trainer.chunks import CHUNK_BYTES, Chunks, Staging, digest, view
from torchpass_bridge.trainer.copies import Copies, Copy
from torchpass_bridge.trainer.groups import Key

HELLO_S = 2.0
"""For a newcomer to show that it knows the key."""
IDLE_S = 3600.0
MAX_CONNECTIONS = 256
DIGEST_BYTES = 16
KEPT = 4
"""Steps of another rank's own: ranks are at most one step apart, and a step is sent when it is done."""

_log = logging.getLogger(__name__)


class Offer:
    """The state at one step, for the members of one group."""

    def __init__(self, group: Key, step: int, chunks: Chunks, own: bytes) -> None:
        self.group, self.step, self.chunks, self.own = group, step, chunks, own


class Gate:
    """Opened and closed by the training thread, which changes the state only while it is closed."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._offer: Offer | None = None

    def open(self, offer: Offer) -> None:
        with self._changed:
            self._offer = offer
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._offer = None

    def offered(self, group: Key, step: int) -> bool:
        offer = self._offer
        return offer is not None and (offer.group, offer.step) == (group, step)

    def holds(self, offer: Offer) -> bool:
        return self._offer is offer

    def wait(self, group: Key, step: int, timeout_s: float) -> Offer | None:
        """A taker may hear of the move before the giver does."""
        with self._changed:
            self._changed.wait_for(lambda: self.offered(group, step), timeout_s)
            return self._offer if self.offered(group, step) else None


class Kept:
    """What belongs to other ranks alone, sealed as it came. The newest few steps of each."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_rank: dict[int, dict[int, bytes]] = {}

    def keep(self, rank: int, step: int, data: bytes) -> None:
        with self._lock:
            steps = self._by_rank.setdefault(rank, {})
            steps[step] = data
            for old in sorted(steps)[:-KEPT]:
                del steps[old]

    def newest(self, rank: int, step: int) -> tuple[int, bytes] | None:
        """Not newer than `step`."""
        with self._lock:
            steps = self._by_rank.get(rank, {})
            best = max((at for at in steps if at <= step), default=None)
            return None if best is None else (best, steps[best])


class Giver:
    """`address` once it listens. `may_keep`: whether a member may leave its rank's own here."""

    def __init__(
        self, host: str, key: bytes, wait_s: float, may_keep: Callable[[str, int], bool],
        copies: Copies | None = None,
    ) -> None:  # fmt: skip
        self.gate, self.kept, self.copies = Gate(), Kept(), copies or Copies()
        self._host, self._key, self._wait_s, self._may_keep = host, key, wait_s, may_keep
        self._room = threading.Semaphore(MAX_CONNECTIONS)
        self._listener: socket.socket | None = None
        self.address = ""

    def start(self) -> None:
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        self._listener = socket.create_server((self._host, 0), family=family)
        port = self._listener.getsockname()[1]
        self.address = f"[{self._host}]:{port}" if ":" in self._host else f"{self._host}:{port}"
        Aside("give", self._listen, self._listener).start()

    def stop(self) -> None:
        if self._listener is not None:
            self._listener.close()

    def _listen(self, listener: socket.socket) -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            if not self._room.acquire(blocking=False):
                sock.close()
                continue
            Aside("give-one", self._serve, sock).start()

    def _serve(self, sock: socket.socket) -> None:
        try:
            with sock:
                member = accept(sock, self._key, HELLO_S)
                staging: Staging | None = None
                while True:
                    sock.settimeout(IDLE_S)
                    ask = receive(sock, Ask)
                    sock.settimeout(self._wait_s)
                    if ask.what == "chunk" and staging is None:
                        staging = Staging(CHUNK_BYTES)
                    self._answer(sock, member, ask, staging)
        except ChannelError as error:
            _log.debug("a connection for state ended: %s", error)
        finally:
            self._room.release()

    def _answer(self, sock: socket.socket, member: str, ask: Ask, staging: Staging | None) -> None:
        if ask.what == "keep":
            if self._may_keep(member, ask.rank):
                self.kept.keep(ask.rank, ask.step, ask.data)
            return
        if ask.what == "kept":
            found = self.kept.newest(ask.rank, ask.step)
            step, data = found or (-1, b"")
            send(sock, Reply("" if found else "nothing is kept", step=step, data=data))
            return
        if ask.what == "hold":
            self._hold(sock, member, ask)
            return
        if ask.part >= 0:
            self._from_copy(sock, ask)
            return
        offer = self.gate.wait(ask.group, ask.step, self._wait_s)
        if offer is None:
            send(sock, Reply(f"step {ask.step} is not offered to group {ask.group}"))
        elif ask.what == "table":
            send(sock, Reply(layout=offer.chunks.layout, step=offer.step))
        elif ask.what == "own":
            send(sock, Reply(step=offer.step, data=offer.own))
        elif 0 <= ask.number < len(offer.chunks):
            assert staging is not None
            parts = offer.chunks.load(ask.number, staging)
            send(sock, Reply(digest=digest(parts)))
            send_all(sock, parts)
            send_all(sock, [b"\1" if self.gate.holds(offer) else b"\0"])
        else:
            send(sock, Reply(f"there is no chunk {ask.number}"))

    def _hold(self, sock: socket.socket, member: str, ask: Ask) -> None:
        """ChannelError when what follows cannot be told from something else any more."""
        if not self._may_keep(member, ask.rank):
            send(sock, Reply(f"{member} is not known here to hold rank {ask.rank}"))
            return
        layout, own = msgspec.msgpack.decode(ask.data, type=tuple[str, bytes])
        copy = Copy(
            ask.part, ask.step, ask.group[0], ask.rank, layout, own, self.copies.room(member, ask.number)
        )  # fmt: skip
        send(sock, Reply())
        why = ""
        for number in range(len(copy)):
            told, part = bytearray(DIGEST_BYTES), view(copy.chunk(number))
            receive_all(sock, [memoryview(told), part])
            if told.decode(errors="replace") != digest([part]):
                why = f"chunk {number} did not arrive as it was"
        if not why and not self._may_keep(member, ask.rank):
            why = f"{member} does not hold rank {ask.rank} any more"
        if not why and not self.copies.put(member, copy):
            why = f"step {ask.step} is done again since"
        send(sock, Reply(why))

    def _from_copy(self, sock: socket.socket, ask: Ask) -> None:
        copy = self.copies.find(ask.part, ask.step)
        if copy is None:
            send(sock, Reply(f"no copy of part {ask.part} at step {ask.step} is kept"))
        elif ask.what == "table":
            send(sock, Reply(layout=copy.layout, step=copy.step))
        elif ask.what == "own":
            send(sock, Reply(step=copy.step, data=copy.own, rank=copy.rank))
        elif 0 <= ask.number < len(copy):
            part = view(copy.chunk(ask.number))
            send(sock, Reply(digest=digest([part])))
            send_all(sock, [part, b"\1" if self.copies.holds(copy) else b"\0"])
        else:
            send(sock, Reply(f"there is no chunk {ask.number}"))
