"""Steering the queue pair of a running program from outside: stop, another address, go on (for `rdma.moving`), or
another UDP source port while it runs.

A queue pair is touched only when its driver's table allows it (`rdma.drivers`), when it is known beyond doubt
(`Flow.place`), and when a look at it, each time anew, still finds what was found before: same program, same peer. The
program's file is borrowed for each step and given back before the step ends.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import msgspec

from rdma import drivers, mlx5, uverbs
from rdma.borrowed import NotBorrowedError, borrowed, start_ticks
from rdma.flows import Flow
from rdma.nldev import QpState
from rdma.uverbs import Address, Queried

Step = Literal["move", "port"]
"""`move`: stop, address, resume; `port`: another UDP source port."""


class RefusedError(Exception):
    """The step was refused, or failed on the way; the text says why."""


class GoneError(RefusedError):
    """There is no such queue pair any more, or it has failed: nothing is left to be done to it."""


class Target(msgspec.Struct, frozen=True):
    """A queue pair, and all that is needed to find it again and to put it back: plain values, for a journal on disk.

    `number`: its uverbs device (`borrowed.device_number`); `file`, `handle`: as in `flows.Place`; `family`: its RDMA
    driver's name; `to`, `port`: the address and the UDP source port that it had when it was found (0: not known);
    `step`: what it was found fit for."""

    pid: int
    started: int
    number: int
    file: int
    handle: int
    family: str
    qpn: int
    dest_qpn: int
    to: Address
    step: Step = "move"
    port: int = 0

    @classmethod
    def of(cls, flow: Flow, family: str, number: int, step: Step = "move", *, unproven: bool = False) -> Target:
        """RefusedError when it must not be steered so. `unproven`: as in `Driver.refuses_port`."""
        driver = drivers.of(family)
        if why := driver.refuses_move() if step == "move" else driver.refuses_port(unproven=unproven):
            raise RefusedError(why)
        if step == "port" and flow.qp.type not in mlx5.TYPES.values():
            raise RefusedError(f"queue pair {flow.qp.lqpn}: {flow.qp.type} does not take another UDP source port")
        if flow.place is None or flow.to is None:
            raise RefusedError(f"queue pair {flow.qp.lqpn} of {flow.program or flow.qp.pid}: {flow.why}")
        return cls(
            flow.qp.pid, flow.started, number, flow.place.file, flow.place.handle, family, flow.qp.lqpn,
            flow.to.dest_qpn, flow.to.to, step,
        )  # fmt: skip


class RemoteQp:
    """One queue pair. Whoever calls has journalled the target before the first step."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._doorbell = drivers.of(target.family).doorbell
        self._driver_id = uverbs.DRIVER_IDS[target.family]

    def stop(self) -> None:
        """Stop the send queue. What is outstanding goes on: `is_drained` tells when nothing is."""
        self._fit_for("move")
        with self._reached("RTS") as (fd, _):
            self._modify(fd, state="SQD")

    def is_drained(self) -> bool:
        """Of one that was stopped: whether nothing is outstanding any more."""
        with self._reached("SQD") as (fd, now):
            if (
                now.sq_draining and self._doorbell
            ):  # rxe sees that nothing is left only when its requester runs once more
                uverbs.ring(fd, self._target.handle, self._driver_id)
            return not now.sq_draining

    def address(self, own: str, peer: str) -> None:
        """Give it other addresses (GIDs); it must be stopped. The own one is looked up anew: after a flap it may have
        another index."""
        self._fit_for("move")
        with self._reached("SQD") as (fd, now):
            rows = [row for row in uverbs.gid_table(fd, self._driver_id) if row.port == now.to.port]
            old = next((row for row in rows if row.index == now.to.sgid_index), None)
            new = next((row for row in rows if row.gid == own and old is not None and row.type == old.type), None)
            if new is None:
                raise RefusedError(f"{own} is no address of this device now")
            self._modify(fd, state="SQD", to=msgspec.structs.replace(now.to, gid=peer, sgid_index=new.index))

    def resume(self) -> None:
        """Go on. Does nothing to one that is running."""
        self._fit_for("move")
        with self._reached("SQD", "RTS") as (fd, now):
            if now.state != "RTS":
                self._go_on(fd)

    def back(self) -> None:
        """The old address again, if it has another one, and go on: does nothing to one that is running. Or the old UDP
        source port."""
        if self._target.step == "port":
            self.udp_port(self._target.port)
            return
        with self._reached("SQD", "RTS") as (fd, now):
            if now.state == "RTS":
                return
            if now.to != self._target.to:
                self._modify(fd, state="SQD", to=self._target.to)
            self._go_on(fd)

    def present_port(self) -> int:
        """Its UDP source port, as the device tells it; for the journal. Changes nothing."""
        with self._port() as (_, now):
            if not now.port:
                raise RefusedError(f"queue pair {self._target.qpn}: its device tells no UDP source port")
            return now.port

    def udp_port(self, port: int) -> int:
        """Give it another UDP source port while it runs, also with work outstanding; what the device tells of it then
        (0: nothing). Only its own packets take another way: those of its peer, answers included, have their own port.
        """
        if not self._target.port:
            raise RefusedError(f"queue pair {self._target.qpn}: the port to go back to was not written down")
        with self._port() as (fd, now):
            if now.port != port:
                mlx5.set_port(fd, self._target.handle, self._target.qpn, port)
            try:
                return mlx5.query(fd, self._target.handle, self._target.qpn).port
            except mlx5.CommandError:
                return 0

    @contextmanager
    def _port(self) -> Iterator[tuple[int, mlx5.Context]]:
        """The program's file, and what the device itself says of the queue pair, which has to agree."""
        target = self._target
        self._fit_for("port")
        with self._reached("RTS") as (fd, now):
            rows = uverbs.gid_table(fd, self._driver_id)
            kind = next((row.type for row in rows if (row.port, row.index) == (now.to.port, now.to.sgid_index)), "")
            if kind != "RoCE v2":
                raise RefusedError(f"queue pair {target.qpn}: {kind or 'an unknown protocol'} has no UDP source port")
            try:
                if not mlx5.can_set_port(fd):
                    raise RefusedError(f"queue pair {target.qpn}: its device cannot do it (rts2rts_qp_udp_sport)")
                told = mlx5.query(fd, target.handle, target.qpn)
                if not told.running or not told.type or told.remote_qpn != target.dest_qpn:
                    raise RefusedError(f"queue pair {target.qpn}: its device knows it as another one: {told}")
                yield fd, told
            except mlx5.CommandError as error:
                raise RefusedError(f"queue pair {target.qpn}: {error}") from None

    def _fit_for(self, step: Step) -> None:
        if self._target.step != step:
            raise RefusedError(f"queue pair {self._target.qpn} was found fit for a {self._target.step}, not a {step}")

    @contextmanager
    def _reached(self, *states: str) -> Iterator[tuple[int, Queried]]:
        """The program's file, and what the queue pair is now. RefusedError when it is not what it was."""
        target = self._target
        try:
            with borrowed(target.pid, target.started, target.number) as files:
                fd, now = self._found(files)
                if now.state not in states:
                    kind = RefusedError if now.state in ("RTS", "SQD") else GoneError
                    raise kind(f"queue pair {target.qpn} is in {now.state}, not in {' or '.join(states)}")
                yield fd, now
        except NotBorrowedError as error:
            kind = RefusedError if start_ticks(target.pid) == target.started else GoneError
            raise kind(str(error)) from None
        except OSError as error:
            kind = GoneError if error.errno in (errno.ENOENT, errno.ENODEV, errno.EIO) else RefusedError
            raise kind(f"queue pair {target.qpn}: {error.strerror}") from error

    def _found(self, files: list[int]) -> tuple[int, Queried]:
        """The file that has it: where it was, or, since others may have been closed before it, wherever it is now."""
        target = self._target
        fits: list[tuple[int, int, Queried]] = []
        for place, fd in enumerate(files):
            try:
                now = uverbs.query(fd, target.handle, self._driver_id)
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.EINVAL):
                    raise
                continue
            if now.dest_qpn == target.dest_qpn:
                fits.append((place, fd, now))
        at_home = [one for one in fits if one[0] == target.file]
        if not fits:
            raise GoneError(f"process {target.pid} has no such queue pair any more")
        if not at_home and len(fits) > 1:
            raise RefusedError(f"process {target.pid} has several queue pairs that look like {target.qpn}")
        _, fd, now = (at_home or fits)[0]
        return fd, now

    def _modify(self, fd: int, *, state: QpState, to: Address | None = None) -> None:
        uverbs.modify(fd, self._target.handle, self._driver_id, state=state, to=to)

    def _go_on(self, fd: int) -> None:
        self._modify(fd, state="RTS")
        if self._doorbell:
            uverbs.ring(fd, self._target.handle, self._driver_id)
