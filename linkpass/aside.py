"""A thread beside the event loop for readings that may hang in a driver.

The library's executors are waited for when Python ends (`concurrent.futures.thread`, `_python_exit`): a read that does
not come back would keep a daemon that has handed everything back from ending, and its next start from beginning."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Aside(Executor):
    """Runs one thing after another. Whatever hangs in it is left behind when the process ends: give it only what
    changes nothing."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._waiting: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._ended = False

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Raises RuntimeError after `shutdown`."""
        if self._ended:
            raise RuntimeError(f"{self._name}: nothing more is taken")
        future: Future[_T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001 - it belongs to whoever asks for the result
                future.set_exception(error)

        self._waiting.put(run)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001 - the library's form
        """What was given is done first, unless it hangs."""
        self._ended = True
        self._waiting.put(None)
        if wait and self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        while (run := self._waiting.get()) is not None:
            run()
