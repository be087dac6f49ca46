"""What launchers share that watch the store beside the training script: the script as a child, signals, the store."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from torchpass_bridge.spare import STOP_S
from torchpass_bridge.store.records import Records, StoreAway

AGAIN_S = 0.2
"""After a call that the store did not answer."""


async def run(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Its exit status (negative: by that signal). When this is cancelled the script is asked to end, then killed.

    OSError when it cannot be started."""
    process = await asyncio.create_subprocess_exec(*command, env=dict(environment))
    try:
        return await process.wait()
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                async with asyncio.timeout(STOP_S):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()


async def connected(url: str, name: str, tell: Callable[[str], None]) -> Records:
    """Once the store is there."""
    said = ""
    while True:
        try:
            return await Records.connect(url, name)
        except StoreAway as error:
            if str(error) != said:
                tell(f"{error}; trying again")
                said = str(error)


def until_told(work: Coroutine[Any, Any, int]) -> int:
    """What `work` comes to; 0 when SIGTERM or SIGINT has ended it."""

    async def main() -> int:
        task = asyncio.ensure_future(work)
        # Once: a second signal must not break off what ends the script.
        asked: list[bool] = []

        def end() -> None:
            if not asked:
                asked.append(task.cancel())

        for what in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(what, end)
        try:
            return await task
        except asyncio.CancelledError:
            return 0

    return asyncio.run(main())


class Watched:
    """Something that is looked at anew whenever it may have changed."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()

    def change(self) -> None:
        self._changed.set()

    async def until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            self._changed.clear()
            await self._changed.wait()
