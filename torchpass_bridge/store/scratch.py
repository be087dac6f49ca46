"""Values for building a process group: kept in memory, for an hour at most, and forgotten with the server.

Keys are any text (a process group makes its own). What comes before the first "." names whom they belong to, so that
they can be dropped together.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import secrets

from torchpass_bridge.store.bucket import Bucket
from torchpass_bridge.store.link import Conflict, Link

NAME = "torchpass_scratch"
TTL_S = 3600.0
SUMS = "Torchpass-Sums"
KEPT_SUMS = 32
MAX_ADDS = 200
"""Attempts to add while others add, too."""

_ODD = re.compile(r"[^A-Za-z0-9_/-]")


class Scratch:
    def __init__(self, link: Link) -> None:
        self._bucket = Bucket(link, NAME, memory=True, ttl_s=TTL_S)

    async def open(self) -> None:
        await self._bucket.open()

    async def set(self, key: str, value: bytes) -> None:
        await self._bucket.put(safe(key), value, None)

    async def get(self, key: str) -> bytes | None:
        return (await self._bucket.get(safe(key))).value

    async def wait(self, key: str, timeout_s: float) -> bytes:
        """TimeoutError when it is not set by then."""
        changes = self._bucket.changes(safe(key))
        try:
            async with asyncio.timeout(timeout_s):
                async for news in changes:
                    for one in news:
                        if one.value is not None:
                            return one.value
        except TimeoutError:
            raise TimeoutError(f"{key} was not set within {timeout_s:g} s") from None
        finally:
            await changes.aclose()
        raise AssertionError("changes never end")

    async def add(self, key: str, amount: int) -> int:
        """The sum after it. A key that is not there counts as 0; ValueError when it holds no number."""
        me = secrets.token_hex(8)
        for attempt in range(MAX_ADDS):
            found = await self._bucket.get(safe(key))
            # An answer may be lost, and others add on top meanwhile: the latest sums say whose they are.
            sums = json.loads(found.headers.get(SUMS, "{}")) if found.value is not None else {}
            if me in sums:
                return int(sums[me])
            total = int(found.value or b"0") + amount
            sums = dict([*list(sums.items())[-KEPT_SUMS:], (me, total)])
            try:
                await self._bucket.put(safe(key), b"%d" % total, found.revision, {SUMS: json.dumps(sums)})
            except Conflict:
                await asyncio.sleep(random.uniform(0, 0.001 * min(attempt + 1, 20)))
                continue
            return total
        raise Conflict(f"{key}: {MAX_ADDS} attempts to add, and others were faster each time")

    async def drop(self, prefix: str) -> None:
        """Forget what was set under `prefix`, and under all keys that begin with it and a "."."""
        await self._bucket.purge(safe(prefix))
        await self._bucket.purge(f"{safe(prefix)}.>")


def safe(key: str) -> str:
    """As it may stand in a key of the store; different keys stay different."""
    parts = (_ODD.sub(lambda found: "".join(f"={byte:02X}" for byte in found[0].encode()), p) for p in key.split("."))
    return ".".join(part or "=" for part in parts)
