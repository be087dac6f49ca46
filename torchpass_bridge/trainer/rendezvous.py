"""What a process group's members tell one another while it is built, through the job's store.

A `torch.distributed` store whose calls come from the group's C++ code. Gloo asks for little: one value of each member.
Nothing is asked of it once the group stands. No process has to host it, so no host's death takes it away.
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from typing import Any, Protocol

from torch._C._distributed_c10d import Store


class Scratch(Protocol):
    """Of the store's client: values that need not outlive the store's process."""

    async def scratch_set(self, key: str, value: bytes) -> None: ...
    async def scratch_get(self, key: str) -> bytes | None: ...
    async def scratch_wait(self, key: str, timeout_s: float) -> bytes: ...
    async def scratch_add(self, key: str, amount: int) -> int: ...
    async def scratch_drop(self, prefix: str) -> None: ...


Call = Callable[[Coroutine[Any, Any, Any]], "concurrent.futures.Future[Any]"]
"""Runs it in the loop that the store's client lives in."""


class Aborted(RuntimeError):  # noqa: N818 (what is so, not that it is bad)
    """The group that is being built is not wanted any more."""


class Rendezvous(Store):
    """`prefix`: of this group alone, so that nothing of an earlier attempt is ever taken for its own."""

    def __init__(self, scratch: Scratch, call: Call, prefix: str, timeout_s: float) -> None:
        super().__init__()
        self._scratch, self._call, self._prefix = scratch, call, prefix
        self._timeout_s = timeout_s
        self._values: dict[str, bytes] = {}
        self._open: set[concurrent.futures.Future[Any]] = set()
        self._aborted = False
        self.told: list[bytes] = []
        """What this member has set."""

    def abort(self) -> None:
        """Whoever waits in here gets `Aborted`."""
        self._aborted = True
        for future in tuple(self._open):
            future.cancel()

    def _do(self, asked: Coroutine[Any, Any, Any], timeout_s: float) -> Any:
        future = self._call(asked)
        self._open.add(future)
        try:
            if self._aborted:
                future.cancel()
            return future.result(timeout_s + 1.0)
        except concurrent.futures.CancelledError:
            raise Aborted(f"{self._prefix}: not wanted any more") from None
        finally:
            self._open.discard(future)

    # what the groups ask for, by the names that they use
    def set(self, key: str, value: bytes | str) -> None:
        data = value.encode() if isinstance(value, str) else bytes(value)
        self.told.append(data)
        self._do(self._scratch.scratch_set(self._prefix + key, data), self._timeout_s)

    def get(self, key: str) -> bytes:
        if key not in self._values:
            self.wait([key])
        return self._values[key]

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        timeout_s = timeout.total_seconds() if timeout else self._timeout_s
        for key in keys:
            if key not in self._values:
                self._values[key] = self._do(self._scratch.scratch_wait(self._prefix + key, timeout_s), timeout_s)

    def add(self, key: str, value: int) -> int:
        return int(self._do(self._scratch.scratch_add(self._prefix + key, value), self._timeout_s))

    def check(self, keys: Sequence[str]) -> bool:
        for key in keys:
            value = self._do(self._scratch.scratch_get(self._prefix + key), self._timeout_s)
            if value is None:
                return False
            self._values[key] = value
        return True

    def delete_key(self, key: str) -> bool:
        return False

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout_s = timeout.total_seconds()

    @property
    def timeout(self) -> timedelta:
        return timedelta(seconds=self._timeout_s)
