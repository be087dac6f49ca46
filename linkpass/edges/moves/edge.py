"""Moves running programs' queue pairs to other addresses, together with the peer's daemon, and puts them back.

The agreement is `rdma.move_desk`, the steps are `rdma.remote_qp`. Steps are taken in one thread, since each holds a
program's file for as long as its queue drains. A queue pair is in the undo journal for as long as it stands.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from linkpass.core.commands import MoveFlows
from linkpass.core.events import Event, FlowMoved, FlowsLeft, FlowsStay
from linkpass.edges.moves.ground import FlowGround, Known, ends_of
from linkpass.edges.moves.talk import Talk
from linkpass.edges.moves.undoing import KIND, Undo, attempt, plain, restore
from linkpass.wire.probe import Signer
from rdma.devices import gid_of
from rdma.move_desk import Desk, Do, Ends, Out, Send, Told
from rdma.moving import Patience
from rdma.remote_qp import RefusedError, RemoteQp, Target
from rdma.sysfs import ROOT
from rdma.words import Word

AT_ONCE: Final = 8
BATCH_S: Final = 4.0
"""What has not begun by then waits for the core's next word (its patience with an answer is a second longer)."""
RESCUE_S: Final = 0.2
RESCUE_MOST_S: Final = 5.0


@dataclass(slots=True)
class _Batch:
    """The flows that one command is about. `waiting`: not begun yet; `open`: numbers of moves."""

    command: MoveFlows
    until_s: float
    waiting: list[tuple[Ends, list[str]]] = field(default_factory=list)
    open: set[int] = field(default_factory=set)
    stay: list[str] = field(default_factory=list)


class MoveEdge:
    """`open` and `listen` inside the namespace. Words go from and to `port`; `device`: a VRF that sockets bind to."""

    def __init__(
        self, known: Known, signer: Signer, undo: Undo, emit: Callable[[Event], None], clock: Callable[[], float], *,
        port: int, device: str = "", patience: Patience | None = None, root: Path = ROOT,
    ) -> None:  # fmt: skip
        self._undo, self._emit, self._clock = undo, emit, clock
        self._patience = patience or Patience()
        self._ground = FlowGround(known, root, clock)
        self._desk = Desk(self._ground, lambda: secrets.randbits(63), self._patience)
        self._talk = Talk(signer, self._heard, port=port, device=device)
        self._worker = ThreadPoolExecutor(1, "queue pairs")
        self._targets: dict[int, tuple[Target, str]] = {}
        """Move -> its queue pair, which is stopped or about to be, and the RDMA device."""
        self._noted: dict[int, list[int]] = {}
        self._batches: dict[str, _Batch] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def open(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._talk.open()

    def close(self) -> None:
        """What is stopped goes on with its old address."""
        if self._timer is not None:
            self._timer.cancel()
        for word in self._desk.give_up(self._clock()):
            self._talk.send(word.own, word.peer, word.word)
        self._worker.shutdown(wait=True, cancel_futures=True)
        restore(self._undo)
        self._talk.close()
        self._loop = None

    def listen(self) -> None:
        """About once a second: to the peers of all flows that can be moved."""
        self._talk.listen(self._ground.listens(), keep=self._desk.busy)

    # what the core asks for
    def leave(self, command: MoveFlows) -> Event | None:
        """Take the flows off an uplink that can only go by another address; the end of it comes as an event."""
        if not command.leave:
            self._ground.leaving.discard(command.uplink)
            self._batches.pop(command.uplink, None)
            return FlowsLeft(cmd_id=command.cmd_id, uplink=command.uplink)
        self._ground.leaving.add(command.uplink)
        batch = self._batches[command.uplink] = _Batch(command, self._clock() + BATCH_S)
        for flow in self._ground.over(command.uplink):
            why = self._ground.movable(flow)
            others = [] if why else self._ground.others(flow)
            if others:
                batch.waiting.append((ends_of(flow), others))
            else:
                self._stays(batch, ends_of(flow), why or "its device has no other address")
        self._advance()
        return None

    def _stays(self, batch: _Batch, ends: Ends, why: str) -> None:
        batch.stay.append(why)
        cause = batch.command.cause
        self._emit(FlowMoved(peer=ends.peer, flow=ends.name, moved=False, why=why, for_cause=cause))

    def _advance(self) -> None:
        """Begin what may begin; answer for batches that are through."""
        now_s = self._clock()
        for uplink, batch in list(self._batches.items()):
            while batch.waiting and len(batch.open) < AT_ONCE and now_s < batch.until_s:
                ends, others = batch.waiting.pop(0)
                number, outs = self._desk.move(ends, others, now_s)
                batch.open.add(number)
                self._carry(outs)
            if batch.waiting and now_s >= batch.until_s:
                batch.stay.append(f"{len(batch.waiting)} have not had their turn yet")
                batch.waiting.clear()
            if not batch.open and not batch.waiting:
                del self._batches[uplink]
                self._answer(batch)
        self._arm()

    def _answer(self, batch: _Batch) -> None:
        command, why = batch.command, "; ".join(sorted(set(batch.stay)))
        if why:
            self._emit(FlowsStay(cmd_id=command.cmd_id, uplink=command.uplink, why=why))
        else:
            self._emit(FlowsLeft(cmd_id=command.cmd_id, uplink=command.uplink))

    # carrying out
    def _heard(self, own: str, peer: str, word: Word) -> None:
        self._carry(self._desk.heard(own, peer, word, self._clock()))
        self._advance()

    def _carry(self, outs: Iterable[Out]) -> None:
        for out in outs:
            if isinstance(out, Send):
                self._talk.send(out.own, out.peer, out.word)
            elif isinstance(out, Do):
                self._do(out)
            else:
                self._ended(out)
        self._arm()

    def _do(self, do: Do) -> None:
        if do.work == "back" and do.move not in self._targets:  # it was never stopped
            self._call_soon(lambda: self._done(do, None))
            return
        try:
            work = self._prepared(do)
        except (RefusedError, OSError) as error:
            why = str(error)
            self._call_soon(lambda: self._done(do, why))
            return
        self._start(work, lambda why: self._done(do, why), last=do.work in ("back", "resume"))

    def _prepared(self, do: Do) -> Callable[[], object]:
        """What the worker is to do. Before the first step the queue pair is written down, and so is the decision."""
        if do.work == "stop":
            found = self._ground.target(do.ends)
            self._noted[do.move] = self._undo.note(KIND, [plain(found[0])], sync=False)
            self._targets[do.move] = found
        if do.move not in self._targets:
            raise RefusedError("it was never stopped")
        if do.work == "resume":
            self._noted[do.move] += self._undo.note(KIND, [plain(self._targets[do.move][0], decided=True)], sync=False)
        remote = RemoteQp(self._targets[do.move][0])
        if do.work == "stop":
            return lambda: remote.stop(self._patience.whole_s)
        if do.work == "address":
            return lambda: remote.address(gid_of(do.to.own), gid_of(do.to.peer))
        return remote.resume if do.work == "resume" else remote.back

    def _start(self, work: Callable[[], object], then: Callable[[str | None], None], *, last: bool) -> None:
        """In the worker; `then` is told in the loop why it failed, None: it did not. `last`: a queue pair that is gone
        needs it no more."""
        if self._loop is not None:
            future = self._loop.run_in_executor(self._worker, lambda: attempt(work, gone_is_fine=last))
            future.add_done_callback(lambda ended: None if ended.cancelled() else then(ended.result()))

    def _done(self, do: Do, why: str | None) -> None:
        if do.work in ("back", "resume"):
            self._settle(do, why, RESCUE_S)
        self._carry(self._desk.done(do.move, do.work, self._clock(), ok=why is None, why=why or ""))
        self._advance()

    def _settle(self, do: Do, why: str | None, pause_s: float) -> None:
        """It runs again, or is gone: struck out. One that could not go on stands: tried again until it does."""
        found = self._targets.get(do.move)
        if found is None or self._loop is None:
            return
        target, device = found
        if why is None:
            del self._targets[do.move]
            self._undo.done(self._noted.pop(do.move, []))
            self._ground.moved(device, target.qpn)
            return
        remote = RemoteQp(target)
        work = remote.resume if do.work == "resume" else remote.back
        longer_s = min(2 * pause_s, RESCUE_MOST_S)
        again = lambda why: self._settle(do, why, longer_s)  # noqa: E731
        self._loop.call_later(pause_s, lambda: self._start(work, again, last=True))

    def _ended(self, told: Told) -> None:
        cause = ""
        for batch in self._batches.values():
            if told.move in batch.open:
                batch.open.remove(told.move)
                cause = batch.command.cause
                if told.outcome != "moved":
                    batch.stay.append(told.why)
        if told.began or not told.asked:
            way = f"from {told.to.own} to {told.to.peer}: " if told.to is not None else ""
            self._emit(
                FlowMoved(
                    peer=told.ends.peer, flow=told.ends.name, moved=told.outcome == "moved", why=way + told.why,
                    took_s=told.took_s, for_cause=cause,
                )
            )  # fmt: skip
        self._call_soon(self._advance)

    # time
    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        times = [batch.until_s for batch in self._batches.values() if batch.waiting]
        if (at_s := self._desk.next_deadline_s()) is not None:
            times.append(at_s)
        if times and self._loop is not None:
            self._timer = self._loop.call_later(max(0.0, min(times) - self._clock()), self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._carry(self._desk.time_is(self._clock()))
        self._advance()

    def _call_soon(self, call: Callable[[], None]) -> None:
        if self._loop is not None:
            self._loop.call_soon(call)
