"""pyroute2 in many namespaces: one connection each, all of them in one thread of their own.

A synchronous `IPRoute` belongs to the thread that opened it: called from another it opens a second socket, in whatever
namespace that thread happens to be. Nor can it be called where an event loop runs. A lab is used from threads (flaps)
and from coroutines (tests, the demo), so its connections and the event loop under them live in a thread apart.
"""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import TracebackType
from typing import ParamSpec, TypeVar

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.rtnl import RTM_NEWSTATS
from pyroute2.netlink.rtnl.ifstatsmsg import ifstatsmsg

from lab.netns import namespace
from lab.netns.session import KernelError

P = ParamSpec("P")
T = TypeVar("T")


class LinkStats(ifstatsmsg):  # type: ignore[misc]
    """RTM_NEWSTATS of which only the first four numbers are decoded (struct rtnl_link_stats64): all that the lab reads,
    at half of the time."""

    nla_map = (("IFLA_STATS_UNSPEC", "none"), ("IFLA_STATS_LINK_64", "traffic"))

    class traffic(ifstatsmsg.ifstats64):  # type: ignore[misc]  # noqa: N801 - pyroute2 finds it by the name above
        fields = (("rx_packets", "Q"), ("tx_packets", "Q"), ("rx_bytes", "Q"), ("tx_bytes", "Q"))


class Connections:
    """The connections of one lab. Nothing is open before the first `run`; `close()` may be called at any time."""

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._open: dict[int, IPRoute] = {}
        self._lock = threading.Lock()

    def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call something in the connections' thread, where it may use `to()`; its result, or what it raised."""
        with self._lock:
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, thread_name_prefix="lab-rtnetlink")
            answer = self._thread.submit(work, *args, **kwargs)
        return answer.result()

    def to(self, namespace_fd: int) -> IPRoute:
        """The connection into a namespace, given by an open descriptor. Only inside `run`."""
        if namespace_fd not in self._open:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
            with namespace.inside(namespace_fd):
                opened = IPRoute(groups=0, ext_ack=True, use_event_loop=self._loop)
            opened.register_policy(RTM_NEWSTATS, LinkStats)
            self._open[namespace_fd] = opened
        return self._open[namespace_fd]

    def close(self) -> None:
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.submit(self._close).result()
            thread.shutdown()

    def __enter__(self) -> Connections:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _close(self) -> None:
        while self._open:
            self._open.popitem()[1].close()
        if self._loop is not None:
            self._loop.run_until_complete(asyncio.sleep(0))  # its transports notice that they were closed
            self._loop.close()
            self._loop = None


@contextmanager
def asking(what: str, *allowed: int) -> Iterator[None]:
    """A pyroute2 request: a refusal becomes a KernelError that names `what`; `allowed` errno values are no errors."""
    try:
        yield
    except NetlinkError as error:
        if error.code in allowed:
            return
        name, words = errno.errorcode.get(error.code, str(error.code)), str(error.args[-1] or os.strerror(error.code))
        raise KernelError(error.code, f"{what}: {words.rstrip(chr(0))} ({name})") from None
