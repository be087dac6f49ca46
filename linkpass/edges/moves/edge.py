"""Moves running programs' queue pairs to other addresses, together with the peer's daemon, and puts them back.

The agreement is `rdma.move_desk`, the steps are `rdma.remote_qp`. Steps are taken in one thread, since each holds a
program's file for as long as its queue drains. A queue pair is in the undo journal for as long as it stands.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog

from linkpass.core.commands import MoveFlows
from linkpass.core.events import Event, FlowMoved, FlowsLeft, FlowsStay
from linkpass.edges.moves.ground import FlowGround, Known, ends_of
from linkpass.edges.moves.talk import Talk
from linkpass.edges.moves.undoing import KIND, Undo, attempt, plain, restore
from linkpass.wire.probe import Signer
from rdma.devices import gid_of
from rdma.move_desk import REMEMBER_S, Desk, Do, Ends, Out, Pair, Send, Told
from rdma.moving import Patience
from rdma.remote_qp import RefusedError, RemoteQp, Target
from rdma.sysfs import ROOT
from rdma.words import Word

AT_ONCE: Final = 8
BATCH_S: Final = 4.0
"""The core's patience with an answer is a second longer: what is not through by then is told of, and goes on."""
POLL_S: Final = 0.002
"""How often a queue that drains is looked at."""
AGAIN_S: Final = 0.05
"""A queue pair that could not go on is tried again so often: it stands."""
DOUBT_S: Final = 1.0
"""A daemon that ends waits for so long for a peer's decision."""
DECIDED: Final = "queue_pair_move"
"""Of entries in the undo journal: moves that were decided upon, for a peer that still asks after a restart."""

logger = structlog.get_logger()


@dataclass(slots=True)
class _Batch:
    """The flows that one command is about. `waiting`: not begun yet; `open`: numbers of moves."""

    command: MoveFlows
    until_s: float
    waiting: list[tuple[Ends, list[str]]] = field(default_factory=list)
    open: set[int] = field(default_factory=set)
    stay: list[str] = field(default_factory=list)


class _Decided(msgspec.Struct, frozen=True):
    move: int
    nonce: int
    ends: Ends
    to: Pair


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
        """One step after another, each of them short: nobody waits in it."""
        self._steps: dict[int, Do] = {}
        """Move -> the step that it is at."""
        self._targets: dict[int, tuple[Target, str]] = {}
        """Move -> its queue pair, which is stopped or about to be, and the RDMA device."""
        self._noted: dict[int, list[int]] = {}
        self._decided: set[int] = set()
        self._batches: dict[str, _Batch] = {}
        self._ended: Counter[str] = Counter()
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def open(self) -> None:
        """What an earlier run had decided is known again."""
        self._loop = asyncio.get_running_loop()
        self._talk.open()
        for number, change in self._undo.pending(DECIDED).items():
            with contextlib.suppress(msgspec.MsgspecError):
                told = msgspec.json.decode(str(change.get("move")), type=_Decided)
                self._desk.recall(told.move, told.nonce, told.ends, told.to, self._clock())
            self._loop.call_later(REMEMBER_S, self._undo.done, [number])

    def close(self) -> None:
        """What is stopped goes on: with its old address, or with the new one where that is decided."""
        for word in self._desk.give_up(self._clock()):
            self._talk.send(word.own, word.peer, word.word)
        until_s = self._clock() + DOUBT_S
        while self._desk.in_doubt and self._clock() < until_s:
            self._talk.wait(AGAIN_S)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._worker.shutdown(wait=True)
        _, left = restore(self._undo, DOUBT_S)
        for line in left:
            logger.error(line)
        self._talk.close()
        self._loop = None

    def view(self) -> dict[str, Any]:
        """What is under way, for people and metrics. `stopped`: queue pairs that stand because of us."""
        return {
            "open": len(self._steps), "stopped": len(self._targets), "moved": self._ended["moved"],
            "kept": self._ended["kept"], "words_refused": self._talk.refused,
        }  # fmt: skip

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
        before = self._batches.get(command.uplink)
        batch = self._batches[command.uplink] = _Batch(command, self._clock() + BATCH_S)
        batch.open = before.open if before is not None else batch.open
        busy = {(do.ends.device, do.ends.qpn) for do in self._steps.values()}
        for flow in self._ground.over(command.uplink):
            ends = ends_of(flow)
            if (ends.device, ends.qpn) in busy:
                continue
            why = self._ground.movable(flow)
            others = [] if why else self._ground.others(flow)
            if others:
                batch.waiting.append((ends, others))
            else:
                self._stays(batch, ends, why or "its device has no other address")
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
            if now_s >= batch.until_s and (batch.waiting or batch.open):
                batch.stay.append(f"{len(batch.open)} under way and {len(batch.waiting)} waiting still")
                batch.waiting.clear()
                batch.open.clear()
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
                self._over(out)
        self._arm()

    def _do(self, do: Do) -> None:
        self._steps[do.move] = do
        if do.work == "decide":
            self._done(do, self._written(do))
            return
        if do.work == "back" and do.move not in self._targets:  # it was never stopped
            self._call_soon(lambda: self._done(do, None))
            return
        try:
            work = self._prepared(do)
        except (RefusedError, OSError) as error:
            why = str(error)
            self._call_soon(lambda: self._done(do, why))
            return
        then = self._drain if do.work == "stop" else self._done
        self._start(work, lambda why: then(do, why), last=do.work in ("back", "resume"))

    def _prepared(self, do: Do) -> Callable[[], object]:
        """What the worker is to do. Before the first step the queue pair is written down."""
        if do.work == "stop":
            found = self._ground.target(do.ends)
            self._noted[do.move] = self._undo.note(KIND, [plain(found[0])], sync=False)
            self._targets[do.move] = found
        if do.move not in self._targets:
            raise RefusedError("it was never stopped")
        if do.work == "resume" and do.move not in self._decided:  # the asked: it has heard the decision
            self._written(do)
        remote = RemoteQp(self._targets[do.move][0])
        if do.work == "stop":
            return remote.stop
        if do.work == "address":
            return lambda: remote.address(gid_of(do.to.own), gid_of(do.to.peer))
        return remote.resume if do.work == "resume" else remote.back

    def _written(self, do: Do) -> str | None:
        """The decision, before anybody is told of it; why it could not be written down."""
        try:
            self._noted[do.move] += self._undo.note(KIND, [plain(self._targets[do.move][0], decided=True)], sync=False)
            told = msgspec.json.encode(_Decided(do.move, do.nonce, do.ends, do.to)).decode()
            (number,) = self._undo.note(DECIDED, [{"move": told}], sync=False)
        except (OSError, KeyError) as error:
            return f"the decision cannot be written down: {error}"
        self._decided.add(do.move)
        if self._loop is not None:
            self._loop.call_later(REMEMBER_S, self._forget, do.move, number)
        return None

    def _forget(self, move: int, number: int) -> None:
        self._decided.discard(move)
        self._undo.done([number])

    def _start(self, work: Callable[[], object], then: Callable[[str | None], None], *, last: bool) -> None:
        """In the worker; `then` is told in the loop why it failed, None: it did not. `last`: a queue pair that is gone
        needs it no more."""
        if self._loop is not None:
            future = self._loop.run_in_executor(self._worker, lambda: attempt(work, gone_is_fine=last))
            future.add_done_callback(lambda ended: None if ended.cancelled() else then(ended.result()))

    def _drain(self, do: Do, why: str | None) -> None:
        """It is stopped; looked at until nothing is outstanding, or until nobody waits for that any more."""
        if why is not None:
            self._done(do, why)
            return
        if self._steps.get(do.move) is not do or self._loop is None:
            return
        remote = RemoteQp(self._targets[do.move][0])
        drained = False

        def look() -> None:
            nonlocal drained
            drained = remote.is_drained()

        def then(why: str | None) -> None:
            if drained:
                self._done(do, None)
            else:
                self._drain(do, why)

        self._loop.call_later(POLL_S, lambda: self._start(look, then, last=False))

    def _done(self, do: Do, why: str | None) -> None:
        if self._steps.get(do.move) is not do:
            return  # a stop that was given up meanwhile: what came instead tells
        if do.work in ("back", "resume"):
            self._settle(do, why)
        self._carry(self._desk.done(do.move, do.work, self._clock(), ok=why is None, why=why or ""))
        self._advance()

    def _settle(self, do: Do, why: str | None) -> None:
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
        again = partial(self._start, work, lambda why: self._settle(do, why), last=True)
        self._loop.call_later(AGAIN_S, again)

    def _over(self, told: Told) -> None:
        cause = ""
        for batch in self._batches.values():
            if told.move in batch.open:
                batch.open.remove(told.move)
                cause = batch.command.cause
                if told.outcome != "moved":
                    batch.stay.append(told.why)
        self._steps.pop(told.move, None)
        if told.began or not told.asked:
            self._ended[told.outcome] += 1
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
        times = [batch.until_s for batch in self._batches.values()]
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
