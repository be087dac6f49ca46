"""Steering the queue pair of a running program from outside: stop, another address, go on. For `rdma.moving`.

A queue pair is touched only when its driver's table says that this was tried (`rdma.drivers`), when it is known beyond
doubt (`Flow.place`), and when a look at it, each time anew, still finds what was found before: same program, same peer.
The program's file is borrowed for each step and given back before the step ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NoReturn

from rdma import drivers, uverbs
from rdma.borrowed import NotBorrowedError, borrowed
from rdma.flows import Flow
from rdma.uverbs import Address, Queried

DRAIN_POLL_S: Final = 0.0005


class RefusedError(Exception):
    """The step was not taken; the text says why. The queue pair is as it was before it."""


class RemoteQp:
    """One flow's queue pair. `family`: its RDMA driver's name; `number`: its uverbs device (`borrowed.device_number`).

    `journal(what, before)` is called before each change, with the address that the queue pair has then."""

    def __init__(
        self, flow: Flow, family: str, number: int, journal: Callable[[str, Address], None],
        clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        """RefusedError when it must not be steered at all."""
        driver = drivers.of(family)
        if driver.drain_move != "tried":
            raise RefusedError(
                f"{family}: a planned move is {driver.drain_move!r} in the table of drivers: {driver.why}"
            )
        if flow.place is None or flow.to is None:
            raise RefusedError(f"queue pair {flow.qp.lqpn} of {flow.program or flow.qp.pid}: {flow.why}")
        self._flow, self._place, self._to = flow, flow.place, flow.to
        self._doorbell = driver.doorbell
        self._driver_id = uverbs.DRIVER_IDS[family]
        self._number = number
        self._journal, self._clock, self._sleep = journal, clock, sleep
        self._new: Address | None = None

    def stop(self, within_s: float) -> float:
        """Stop the send queue and wait until nothing is outstanding; how long that took.

        RefusedError when it takes longer: the queue pair goes on then."""
        begun_s = self._clock()
        with self._reached("RTS") as (fd, _):
            self._change(fd, "stop", lambda: uverbs.modify(fd, self._place.handle, self._driver_id, state="SQD"))
            while uverbs.query(fd, self._place.handle, self._driver_id).sq_draining:
                if self._clock() - begun_s > within_s:
                    self._give_up(fd, within_s)
                if self._doorbell:  # rxe sees that nothing is left only when its requester runs once more
                    uverbs.ring(fd, self._place.handle, self._driver_id)
                self._sleep(DRAIN_POLL_S)
        return self._clock() - begun_s

    def address(self, to: Address) -> None:
        """Give it another address; it must be stopped."""
        with self._reached("SQD") as (fd, _):
            self._change(
                fd, "address", lambda: uverbs.modify(fd, self._place.handle, self._driver_id, state="SQD", to=to)
            )
            self._new = to

    def resume(self) -> None:
        """Go on."""
        with self._reached("SQD") as (fd, _):
            self._go_on(fd)

    def back(self) -> None:
        """The old address again, if another was given, and go on. Does nothing to one that is running."""
        with self._reached("SQD", "RTS") as (fd, now):
            if now.state == "RTS":
                return
            if self._new is not None:
                old = self._to.to
                self._change(
                    fd, "back", lambda: uverbs.modify(fd, self._place.handle, self._driver_id, state="SQD", to=old)
                )
                self._new = None
            self._go_on(fd)

    @contextmanager
    def _reached(self, *states: str) -> Iterator[tuple[int, Queried]]:
        """The program's file, and what the queue pair is now. RefusedError when it is not what it was."""
        qp = self._flow.qp
        try:
            with borrowed(qp.pid, self._flow.started, self._number) as files:
                if self._place.file >= len(files):
                    raise RefusedError(f"process {qp.pid} has closed its device")
                fd = files[self._place.file]
                now = uverbs.query(fd, self._place.handle, self._driver_id)
                if now.dest_qpn != self._to.dest_qpn:
                    raise RefusedError(f"handle {self._place.handle} of process {qp.pid} is another queue pair now")
                if now.state not in states:
                    raise RefusedError(f"queue pair {qp.lqpn} is in {now.state}, not in {' or '.join(states)}")
                yield fd, now
        except NotBorrowedError as error:
            raise RefusedError(str(error)) from None
        except OSError as error:
            raise RefusedError(f"queue pair {qp.lqpn}: {error.strerror}") from error

    def _give_up(self, fd: int, within_s: float) -> NoReturn:
        why = f"not drained within {within_s:g} s: something is outstanding on a dead path"
        try:
            self._go_on(fd)
        except OSError as error:
            raise RefusedError(f"{why}; and it cannot go on before it is drained: {error.strerror}") from None
        raise RefusedError(why)

    def _change(self, fd: int, what: str, change: Callable[[], None]) -> None:
        self._journal(what, uverbs.query(fd, self._place.handle, self._driver_id).to)
        change()

    def _go_on(self, fd: int) -> None:
        self._change(fd, "resume", lambda: uverbs.modify(fd, self._place.handle, self._driver_id, state="RTS"))
        if self._doorbell:
            uverbs.ring(fd, self._place.handle, self._driver_id)
