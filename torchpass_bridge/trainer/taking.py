"""Takes state over from those that hold it: from several at once, each giving the chunks that it gets to."""

from __future__ import annotations

import collections
import functools
import logging
import socket
import threading
import zlib
from collections.abc import Callable, Sequence

from torchpass_bridge.trainer.aside import Aside
from torchpass_bridge.trainer.channel import Ask, ChannelError, Reply, connect, receive, receive_all, send
from torchpass_bridge.trainer.chunks import Chunks, Staging, digest, digest_of
from torchpass_bridge.trainer.groups import Key
from torchpass_bridge.trainer.own import opened
from torchpass_bridge.trainer.settings import Settings
from torchpass_bridge.wire import Member

POLL_S = 0.02
MAX_SOURCES = 8
BAD_CHUNKS = 3
"""A source with so many chunks that did not arrive as they were is asked no more."""

_log = logging.getLogger(__name__)


class NotTaken(Exception):  # noqa: N818 (what is so)
    """Why the state could not be taken over. What it was to be written to may hold a part of it."""


class Sources:
    """Connections to those that hold the state at `step`, for the members of `group`.

    `wanted` turns False when it is not to be gone on with: then all waiting ends. `part`: of the copies that they keep
    of that part of a sharded state, and not of their own."""

    def __init__(
        self, settings: Settings, members: Sequence[Member], group: Key, step: int, wanted: Callable[[], bool],
        part: int = -1,
    ) -> None:  # fmt: skip
        self._settings, self._group, self._step, self._part = settings, group, step, part
        self._members = _some(members, settings.id)
        self._wanted = wanted
        self._open: dict[str, socket.socket] = {}
        self._why: list[str] = []

    def __enter__(self) -> Sources:
        self._each({member.id: functools.partial(self._connect, member) for member in self._members})
        if not self._open:
            raise NotTaken("; ".join(self._why) or "there is nobody to take it from")
        return self

    def __exit__(self, *_: object) -> None:
        for sock in self._open.values():
            sock.close()

    def _each(self, work: dict[str, Callable[[], None]]) -> None:
        """Each in a thread of its own, until all are done. NotTaken when it is not wanted any more."""
        threads = [Aside(name, do) for name, do in work.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(POLL_S)
                if not self._wanted():
                    self._hang_up()
                    thread.join()
        if not self._wanted():
            raise NotTaken("it is not wanted any more")

    def _hang_up(self) -> None:
        for sock in tuple(self._open.values()):
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def _connect(self, member: Member) -> None:
        try:
            self._open[member.id] = self._to(member.address)
        except ChannelError as error:
            self._why.append(f"{member.id}: {error}")

    def _to(self, address: str) -> socket.socket:
        times = self._settings.times
        return connect(address, self._settings.key, self._settings.id, times.connect_s, times.stall_s)

    def layouts(self) -> set[str]:
        """Of those that answer; who does not is left out. One, unless something is very wrong.

        A source may still be busy with a step that it does alone: it is waited for longer than for any other answer."""
        found = set()

        def one(name: str, sock: socket.socket) -> None:
            sock.settimeout(self._settings.times.build_s)
            reply = self._ask(name, sock, Ask("table", self._group, self._step, part=self._part))
            if reply is not None:
                sock.settimeout(self._settings.times.stall_s)
                found.add(reply.layout)

        self._each({name: functools.partial(one, name, sock) for name, sock in self._open.items()})
        if not found:
            raise NotTaken("; ".join(self._why))
        return found

    def own(self, member: Member) -> bytes:
        """What belongs to `member`'s rank alone."""
        sock = self._open.get(member.id)
        try:
            if sock is None:
                with self._to(member.address) as fresh:
                    reply = self._ask(member.id, fresh, Ask("own", self._group, self._step))
            else:
                reply = self._ask(member.id, sock, Ask("own", self._group, self._step))
        except ChannelError as error:
            raise NotTaken(f"{member.id}: {error}") from error
        if reply is None:
            raise NotTaken("; ".join(self._why))
        return reply.data

    def any_own(self) -> bytes:
        """Of whichever source answers first: what is shared in it is alike."""
        if self._part >= 0:
            return self._own_of_copy()[1]
        for member in self._members:
            if member.id in self._open:
                return self.own(member)
        raise NotTaken("; ".join(self._why))

    def own_of_copy(self, rank: int) -> bytes | None:
        """What belonged to `rank` alone when the copy was made; None: it is another rank's, of the same part."""
        of, data = self._own_of_copy()
        return data if of == rank else None

    def _own_of_copy(self) -> tuple[int, bytes]:
        for name, sock in tuple(self._open.items()):
            reply = self._ask(name, sock, Ask("own", self._group, self._step, part=self._part))
            if reply is not None:
                try:
                    return reply.rank, opened(self._settings.key, reply.rank, reply.step, reply.data)
                except ValueError as error:
                    self._why.append(f"{name}: {error}")
        raise NotTaken("; ".join(self._why))

    def _ask(self, name: str, sock: socket.socket, ask: Ask) -> Reply | None:
        try:
            send(sock, ask)
            reply = receive(sock, Reply)
        except ChannelError as error:
            reply = Reply(str(error))
        if reply.why:
            self._why.append(f"{name}: {reply.why}")
            self._drop(name)
            return None
        return reply

    def _drop(self, name: str) -> None:
        sock = self._open.pop(name, None)
        if sock is not None:
            sock.close()

    def take(self, chunks: Chunks) -> str:
        """Fills `chunks`; the digest of it all."""
        work = _Work(len(chunks), len(self._open))
        self._each({name: functools.partial(self._pull, name, sock, chunks, work) for name, sock in self._open.items()})
        if None in work.digests:
            raise NotTaken("; ".join(self._why) or "no source is left")
        return digest_of([found for found in work.digests if found is not None])

    def _pull(self, name: str, sock: socket.socket, chunks: Chunks, work: _Work) -> None:
        """Two chunks are asked for ahead, so that the source never waits for the next one to be named."""
        staging = Staging(chunks.chunk_bytes)
        asked: collections.deque[int] = collections.deque()
        bad = 0
        try:
            while self._wanted() and bad < BAD_CHUNKS:
                while len(asked) < 2 and (number := work.next(name)) is not None:
                    asked.append(number)
                    send(sock, Ask("chunk", self._group, self._step, number, part=self._part))
                if not asked:
                    if work.done():
                        return
                    work.wait()
                    continue
                reply = receive(sock, Reply)
                if reply.why:
                    raise ChannelError(reply.why)
                number = asked[0]
                parts = chunks.parts(number, staging)
                valid = bytearray(1)
                receive_all(sock, [*parts, memoryview(valid)])
                asked.popleft()
                if valid != b"\1":
                    work.again(number)
                    raise ChannelError("it went on before all was sent")
                found = digest(parts)
                if found != reply.digest:
                    bad += 1
                    _log.warning(
                        "chunk %d of the state did not arrive from %s as it was: asked for again", number, name
                    )
                    work.again(number, not_from=name)
                    continue
                chunks.store(number, staging)
                work.finish(number, found)
        except ChannelError as error:
            self._why.append(f"{name}: {error}")
        finally:
            work.leave()
            for number in asked:
                work.again(number)


def _some(members: Sequence[Member], me: str) -> Sequence[Member]:
    """Not more than are of use, and other ones for each that takes."""
    start = zlib.crc32(me.encode()) % max(len(members), 1)
    return [*members[start:], *members[:start]][:MAX_SOURCES]


class _Work:
    """Which chunks are left: shared by the threads that pull from one source each."""

    def __init__(self, count: int, pullers: int) -> None:
        self._changed = threading.Condition()
        self._left = list(range(count - 1, -1, -1))
        self._bad_from: dict[int, str] = {}
        self._pullers = pullers
        self.digests: list[str | None] = [None] * count

    def next(self, puller: str) -> int | None:
        """None: there is none for this one now. What arrived damaged goes to another one, if there is another one."""
        with self._changed:
            for at in range(len(self._left) - 1, -1, -1):
                if self._pullers == 1 or self._bad_from.get(self._left[at]) != puller:
                    return self._left.pop(at)
            return None

    def again(self, number: int, not_from: str = "") -> None:
        with self._changed:
            if not_from:
                self._bad_from[number] = not_from
            self._left.append(number)
            self._changed.notify_all()

    def finish(self, number: int, found: str) -> None:
        with self._changed:
            self.digests[number] = found
            if None not in self.digests:
                self._changed.notify_all()

    def leave(self) -> None:
        with self._changed:
            self._pullers -= 1
            self._changed.notify_all()

    def done(self) -> bool:
        with self._changed:
            return None not in self.digests

    def wait(self) -> None:
        """For another source's chunk to come back, or for the last one to be done."""
        with self._changed:
            if None in self.digests:
                self._changed.wait(0.05)


def kept_of(settings: Settings, members: Sequence[Member], rank: int, step: int) -> tuple[int, bytes] | None:
    """What is kept anywhere of what belonged to `rank` alone: the newest that is not newer than `step`.

    `members`: the likeliest ones first. Who has it at the step before knows all that there is to know: of a rank that
    died in a step, nothing newer was ever sent."""
    best: tuple[int, bytes] | None = None
    for member in members:
        try:
            times = settings.times
            with connect(member.address, settings.key, settings.id, times.connect_s, times.stall_s) as sock:
                send(sock, Ask("kept", rank=rank, step=step))
                reply = receive(sock, Reply)
            if not reply.why and (best is None or reply.step > best[0]):
                best = reply.step, opened(settings.key, rank, reply.step, reply.data)
            if best is not None and best[0] >= step - 1:
                break
        except (ChannelError, ValueError) as error:
            _log.warning("what %s keeps of rank %d is not known: %s", member.id, rank, error)
    return best
