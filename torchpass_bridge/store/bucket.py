"""Keys and values in a bucket of the store, by the rules of its key-value layer (NATS ADR-8).

Reads, writes and watching are single messages here rather than the client's `KeyValue`, for three reasons that were
measured: a write whose answer is lost can be sent again under the same id, and be recognised as taken by that id; a
record can be deleted by compare-and-set; and the client's watcher stays silent after a restart of the server. What is
watched instead is what the stream publishes again once it has stored it (`republish`), with its revision: a plain
subscription, which costs the server nothing and comes back by itself, and the latest values are read anew after each
time away, and now and then.
"""

from __future__ import annotations

import asyncio
import logging
import math
import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import TypeVar

import msgspec
import nats.errors
import nats.js.errors
from nats.aio.msg import Msg
from nats.js.api import KeyValueConfig, RePublish, StorageType, StreamInfo

from torchpass_bridge.store.link import QUEUE, Conflict, Link, StoreAway

REREAD_S = 2.0
"""Between two looks at the store when nothing comes: a message may have been lost within a cluster of servers."""
WHOLE_S = 30.0
"""Between two looks at all keys when the bucket says that nothing was written: one of a cluster's servers may have
answered with what was so before."""
AGAIN_S = 0.05
"""After a look at a store that was away."""
MARKER_TTL_S = 3600.0
"""For what tells watchers that a key was deleted."""
AT_ONCE = 64
"""Requests under way while many keys are read."""

EXPECTED = "Nats-Expected-Last-Subject-Sequence"
ID = "Nats-Msg-Id"
SEQUENCE = "Nats-Sequence"
OPERATION = "KV-Operation"
GONE = ("DEL", "PURGE")
PACKED = "Torchpass-Packed"
PACK_BYTES = 16 << 10
"""Larger values are sent compressed: the record of a job with 1,000 ranks, which every one of them is sent at each
write, has 43 kB then instead of 389."""
WRONG_SEQUENCE = (10071, 10164)
"""The server's numbers for a write that expected another revision."""

T = TypeVar("T")

_log = logging.getLogger(__name__)


class Found(msgspec.Struct, frozen=True):
    """`value` None: there is none, or it was deleted by the write `revision`; 0: it never was."""

    key: str
    value: bytes | None
    revision: int
    headers: dict[str, str] = {}


class Bucket:
    def __init__(self, link: Link, name: str, *, memory: bool = False, ttl_s: float = 0.0) -> None:
        self.name = name
        self._link = link
        self._memory = memory
        self._ttl_s = ttl_s
        self._stream = f"KV_{name}"
        self._keys = f"$KV.{name}."
        self._changed = f"{name}-changed."
        self._newest, self._asked_s = 0, -math.inf
        """The number of the bucket's latest write, and when it was asked for."""

    async def open(self) -> None:
        """Made when it is not there. ValueError when one of this name is there that does not serve."""
        info = await self._link.call(f"bucket {self.name}", self._made)
        republish = info.config.republish
        if republish is None or republish.dest != f"{self._changed}>" or info.config.max_msgs_per_subject != 1:
            raise ValueError(
                f"bucket {self.name} of the store at {self._link.place} was not made by torchpass: it publishes no "
                f"changes; give torchpass another account or delete it (nats kv del {self.name})"
            )

    async def _made(self) -> StreamInfo:
        js = self._link.js
        try:
            return await js.stream_info(self._stream)
        except nats.js.errors.NotFoundError:
            pass
        try:
            await js.create_key_value(
                KeyValueConfig(
                    bucket=self.name,
                    history=1,
                    storage=StorageType.MEMORY if self._memory else StorageType.FILE,
                    ttl=self._ttl_s or None,
                    republish=RePublish(src=f"{self._keys}>", dest=f"{self._changed}>"),
                    direct=True,
                    replicas=self._link.replicas,
                )
            )
        except nats.js.errors.BadRequestError:
            pass  # another one made it at the same time: it is looked at
        return await js.stream_info(self._stream)

    async def _call(self, what: str, ask: Callable[[], Awaitable[T]]) -> T:
        """What is kept in memory is gone when the server was restarted, the bucket with it: it is made again."""

        async def again() -> T:
            try:
                return await ask()
            except (nats.errors.NoRespondersError, nats.js.errors.NoStreamResponseError):
                if self._memory:
                    await self._made()
                raise

        return await self._link.call(what, again)

    async def get(self, key: str) -> Found:
        return await self._call(f"read {key}", lambda: self._now(key))

    async def _now(self, key: str) -> Found:
        try:
            message = await self._link.js.get_msg(self._stream, subject=self._keys + key, direct=True)
        except nats.js.errors.NotFoundError:
            return Found(key, None, 0)
        headers = message.headers or {}
        return Found(key, _value(message.data, headers), message.seq or 0, headers)

    async def put(self, key: str, value: bytes, expected: int | None, headers: Mapping[str, str] | None = None) -> int:
        """Its new revision. `expected`: the one that it must have now (0: none); Conflict otherwise; None: any."""
        said = dict(headers or {})
        if len(value) > PACK_BYTES:
            value, said[PACKED] = zlib.compress(value, 1), "zlib"
        if len(value) > self._link.max_bytes:
            raise ValueError(f"{key} has {len(value)} bytes, the store takes {self._link.max_bytes} (max_payload)")
        return await self._write(key, value, expected, said)

    async def drop(self, key: str, expected: int | None) -> None:
        """Delete it, or Conflict."""
        await self._write(key, b"", expected, {OPERATION: "PURGE", "Nats-Rollup": "sub"}, MARKER_TTL_S)

    async def create(self, key: str, value: bytes) -> int:
        """Conflict when it is there. It may have been deleted before."""
        try:
            return await self.put(key, value, 0)
        except Conflict:
            found = await self.get(key)
            if found.value is not None or not found.revision:
                raise
            return await self.put(key, value, found.revision)

    async def _write(
        self, key: str, value: bytes, expected: int | None, headers: Mapping[str, str], ttl_s: float | None = None
    ) -> int:
        said = {ID: self._link.new_id(), **headers}
        if expected is not None:
            said[EXPECTED] = str(expected)

        tries = 0

        async def ask() -> int:
            nonlocal tries
            tries += 1
            try:
                answer = await self._link.js.publish(self._keys + key, value, headers=dict(said), msg_ttl=ttl_s)
            except nats.js.errors.APIError as error:
                if error.err_code in WRONG_SEQUENCE:
                    # The server looks at the revision before it looks for the id: it may have been taken before.
                    now = await self._now(key) if tries > 1 else None
                    if now is not None and now.headers.get(ID) == said[ID]:
                        return now.revision
                    raise Conflict(f"{key} is not at revision {expected} any more") from error
                raise
            return answer.seq

        return await self._call(f"write {key}", ask)

    async def purge(self, pattern: str) -> None:
        """Forget all that match, without a mark: watchers are not told."""

        async def ask() -> None:
            try:
                await self._link.js.purge_stream(self._stream, subject=self._keys + pattern)
            except nats.js.errors.NotFoundError:
                pass  # forgotten with the server

        await self._call(f"forget {pattern}", ask)

    async def newest(self) -> int:
        """The number of its latest write, as it was a moment ago: several watchers that look share one answer."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._asked_s > REREAD_S / 2:
            self._asked_s = now_s
            info = await self._call("look for changes", lambda: self._link.js.stream_info(self._stream))
            self._newest = info.state.last_seq
        return self._newest

    async def keys(self, pattern: str) -> list[str]:
        """Those that match, deleted ones among them. `pattern`: with the store's wildcards (`job.*`, `seat.>`)."""
        info = await self._call(
            f"list {pattern}", lambda: self._link.js.stream_info(self._stream, subjects_filter=self._keys + pattern)
        )
        return sorted(key.removeprefix(self._keys) for key in info.state.subjects or {})

    async def read(self, pattern: str) -> list[Found]:
        """The latest values of all that match."""
        keys = await self.keys(pattern) if _wild(pattern) else [pattern]
        found: list[Found] = []
        for start in range(0, len(keys), AT_ONCE):
            found += await asyncio.gather(*(self.get(key) for key in keys[start : start + AT_ONCE]))
        return [one for one in found if one.revision]

    async def changes(self, pattern: str) -> AsyncGenerator[list[Found], None]:
        """First what is there (it may be nothing: an empty list), then each change in order, for ever.

        A key's revisions only grow. After a time away the changes between are left out: the latest counts.
        StoreAway is never raised: it waits."""
        queue: asyncio.Queue[Found | None] = asyncio.Queue(QUEUE)

        def look_again() -> None:
            while queue.full():
                queue.get_nowait()
            queue.put_nowait(None)

        async def take(message: Msg) -> None:
            if queue.full():
                return look_again()
            key = message.subject.removeprefix(self._changed)
            headers = message.headers or {}
            return queue.put_nowait(Found(key, _value(message.data, headers), int(headers.get(SEQUENCE, "0"))))

        number = await self._link.attend(self._changed + pattern, take)
        quit_epoch = self._link.on_epoch(look_again)
        seen: dict[str, int] = {}
        clock_s = asyncio.get_running_loop().time
        try:
            looked, looked_s = await self._known() if _wild(pattern) else 0, clock_s()
            yield await self._anew(pattern, seen)
            while True:
                try:
                    async with asyncio.timeout(REREAD_S):
                        change = await queue.get()
                except TimeoutError:
                    now = await self._known() if _wild(pattern) else 0  # one key is read as easily
                    if now and now == looked and clock_s() - looked_s < WHOLE_S:
                        continue
                    change = None
                if change is not None:
                    news = [change] if change.revision > seen.get(change.key, 0) else []
                    seen.update({one.key: one.revision for one in news})
                else:
                    looked, looked_s = await self._known() if _wild(pattern) else 0, clock_s()
                    news = await self._anew(pattern, seen)
                if news:
                    yield news
        finally:
            quit_epoch()
            await self._link.leave(number)

    async def _known(self) -> int:
        """The number of the latest write; 0: not known."""
        try:
            return await self.newest()
        except StoreAway:
            return 0

    async def _anew(self, pattern: str, seen: dict[str, int]) -> list[Found]:
        """What is newer than what was seen, once the store answers. A key that is not there at all any more is gone."""
        while True:
            try:
                found = await self.read(pattern)
                break
            except StoreAway as error:
                _log.debug("%s", error)
                await asyncio.sleep(AGAIN_S)
        news = [one for one in found if one.revision > seen.get(one.key, 0)]
        gone = [Found(key, None, seen[key]) for key in seen.keys() - {one.key for one in found}]
        seen.update({one.key: one.revision for one in found if one.revision > seen.get(one.key, 0)})
        for one in gone:
            del seen[one.key]
        return news + gone


def _value(data: bytes | None, headers: Mapping[str, str]) -> bytes | None:
    """None for the mark of a deleted key: a client's, or the server's own when a value has expired."""
    if headers.get(OPERATION) in GONE or "Nats-Marker-Reason" in headers:
        return None
    return zlib.decompress(data or b"") if PACKED in headers else data or b""


def _wild(pattern: str) -> bool:
    return "*" in pattern or pattern.endswith(">")
