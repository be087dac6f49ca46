"""What the training thread does between two steps: mostly nothing; else what the job's record asks for.

Whoever stands still stands at a boundary between two steps, with everything as it is there: a step that broke is taken
back, which costs little, for until the optimizer's step nothing but generators, positions and buffers has changed.

A member whose generators are behind its tensors does the steps between *alone*: the loop's body runs as ever, in groups
that ask nobody, and the optimizer's steps are left out. Afterwards generators, schedulers and the position in the data
are what they would be, whatever the body does with them, and the tensors come from who has them. So goes on who had not
applied a step that others had applied, and who takes a dead rank's place with what its buddy kept of it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from torchpass_bridge.core.duty import Duty, Save
from torchpass_bridge.trainer.agent import Agent
from torchpass_bridge.trainer.buddy import Buddy
from torchpass_bridge.trainer.chunks import Chunks
from torchpass_bridge.trainer.endings import Fenced, HandedOver, NotNeeded, Refused, Stopped, Torn
from torchpass_bridge.trainer.giving import Giver, Offer
from torchpass_bridge.trainer.groups import Group, hollow, install
from torchpass_bridge.trainer.inherit import Heir
from torchpass_bridge.trainer.keeper import Keeper, Wanted
from torchpass_bridge.trainer.own import Own
from torchpass_bridge.trainer.replica import Replica
from torchpass_bridge.trainer.saving import Holder, Saver, taken
from torchpass_bridge.trainer.settings import Settings
from torchpass_bridge.trainer.sharded import Sharded
from torchpass_bridge.trainer.state import State
from torchpass_bridge.trainer.takeover import Taker
from torchpass_bridge.wire import Doing, Member

CLOSE_S = 1.0
"""After the next group is trained in: the old one goes."""

_log = logging.getLogger(__name__)


BODY = "the loop's body must do its step within `with run.step():`"


class Turn(msgspec.Struct, frozen=True):
    """One run of the loop's body."""

    step: int
    alone: bool = False


class Loop:
    """`step`: applied to the tensors, -1: they are of no step; `heir.at`: where generators and the like are."""

    def __init__(
        self,
        settings: Settings,
        agent: Agent,
        giver: Giver,
        buddy: Buddy,
        state: State,
        own: Own,
        replicas: list[Replica | Sharded],
        hook: Callable[[int, int], None] | None,
        keeper: Keeper | None = None,
    ) -> None:
        self.settings, self.agent = settings, agent
        self.state, self.own, self.replicas = state, own, replicas
        self.heir = Heir(settings, own, hook, agent.first_of)
        self.rank = settings.rank
        self.step = 0 if settings.rank is not None else -1
        self.total = 0
        self.turn: Turn | None = None
        self._giver, self._buddy, self._keeper = giver, buddy, keeper
        self._taker = Taker(settings, agent, state, self.heir, keeper)
        self._saver = Saver(settings, agent.tell)
        self._broken = False
        self._alone = False
        self._hollow: Any = None
        self._optimizers_stepped = 0
        self._ended_s: float | None = None
        self._paused_s: float | None = None
        self._entered = False
        self._gave = False

    # called by the session
    def turns(self, total: int) -> Iterator[int]:
        self.total = total
        while (turn := self._next()) is not None:
            self.turn = turn
            yield turn.step
            if self.turn is not None:
                raise RuntimeError(BODY)

    def rehearse(self) -> Iterator[int]:
        """The first step, alone, so that all that is made in a first step is made. Nothing of it stays."""
        before = self.own.take()
        self._go_alone(Turn(0, alone=True))
        yield 0
        if self.turn is not None:
            raise RuntimeError(BODY)
        for replica in self.replicas:
            replica.rebuild()
        self._clear()
        self.own.put(before)
        self.heir.at = -1

    def stepping(self) -> bool:
        """Whether an optimizer that is asked to do its step is to do it."""
        if self.turn is not None and self.turn.alone:
            return False
        self._optimizers_stepped += 1
        if self._keeper is not None:
            self._keeper.ready(lambda: self.agent.present is None or self.agent.present.released)
        return True

    def end(self, error: BaseException | None) -> bool:
        """The step's end. True: the error is dealt with."""
        turn = self.turn
        if turn is None:
            raise RuntimeError("`with run.step():` belongs into the loop over `run.steps(…)`, once in each turn")
        if error is not None and (turn.alone or not isinstance(error, Exception) or not self._lost_somebody()):
            return False
        self.turn = None
        if turn.alone:
            self._clear()
            self.heir.done_alone(turn.step)
            return False
        if error is None:
            self._applied(turn.step + 1)
            return False
        self._break(turn, error)
        return True

    # the healthy step
    def _next(self) -> Turn | None:
        agent = self.agent
        if not agent.attention and not self._broken and self.step < self.total:
            return self._train()
        while True:
            seen = agent.version()
            todo = agent.duty
            if self._over(todo):
                return None
            turn = self._attend(todo)
            if turn is not None:
                self._giver.gate.close()
                return turn
            agent.wait(seen)

    def _train(self) -> Turn:
        assert self.rank is not None
        self._buddy.leave(self.rank, self.step, self.heir.note(self.rank, self.step))
        self._leave(self.agent.keeper)
        self._optimizers_stepped = 0
        return Turn(self.step)

    def _leave(self, to: Member | None) -> None:
        """This rank's part of a sharded state as it is now, with `to`."""
        if self._keeper is not None and self.agent.present is not None:
            assert self.rank is not None
            wanted = Wanted(self.step, self.agent.present.key[0], self.rank, to)
            self._keeper.begin(wanted, self.state.pieces, self.heir.note(self.rank, self.step))

    def _applied(self, step: int) -> None:
        self.step = self.agent.said.step = self.heir.at = step
        self._ended_s = time.monotonic()
        if self._entered:  # the first one in this group
            self._entered = False
            pause_s = self._ended_s - self._paused_s if self._paused_s is not None else 0.0
            self._paused_s = None
            self.agent.tell(pause_s=pause_s)

    # a broken one
    def _lost_somebody(self) -> bool:
        present = self.agent.present
        return present is not None and present.broken()

    def _break(self, turn: Turn, error: BaseException) -> None:
        self._broken = True
        if 0 < self._optimizers_stepped < len(self.state.optimizers):
            raise Torn(
                f"step {turn.step} broke after {self._optimizers_stepped} of {len(self.state.optimizers)} optimizers "
                "had done theirs: call them after the last collective of a step"
            ) from error
        _log.info("step %d: somebody is gone (%s)", turn.step, str(error).splitlines()[0] if str(error) else error)
        if self._optimizers_stepped:
            self.step = turn.step + 1
        for replica in self.replicas:
            replica.settle()
        self._clear()
        self.heir.back_to(turn.step)
        self.agent.tell(peer_gone=True)

    def _clear(self) -> None:
        for optimizer in self.state.optimizers:
            optimizer.zero_grad(set_to_none=True)

    # what the record asks for
    def _over(self, todo: Duty) -> bool:
        """True: all steps are done, by everybody."""
        if self.agent.failure is not None:
            raise RuntimeError("the thread that watches the job's record has ended") from self.agent.failure
        if todo.fenced:
            if self._gave and self.agent.said.doing == "paused":
                raise HandedOver(f"rank {self.rank} of {self.settings.job} has moved away from here")
            raise Fenced(
                f"{self.settings.id} was taken for dead: rank {self.rank} of {self.settings.job} goes on elsewhere"
            )
        if todo.ended == "finished":
            if self.rank is None:
                raise NotNeeded(f"{self.settings.job} has finished")
            return True
        if todo.ended:
            job = self.agent.job
            saved = job is not None and bool(job.saved) and job.why.endswith(job.saved[-1].path) and job.saved[-1].path
            why = job.why if job is not None else ""
            words = f"{self.settings.job} has ended at step {self.step} of {self.total}: {why or todo.ended}"
            raise Stopped(words, saved=bool(saved))
        if self.agent.refused and self.rank is None:
            raise Refused(f"this spare can never take a rank of {self.settings.job}: {self.agent.refused}")
        return False

    def _attend(self, todo: Duty) -> Turn | None:
        """What can be done now; None: something has to change first."""
        following = self.agent.next
        ready = 0 <= self.step == self.heir.at and todo.at_step in (-1, self.step)
        if following is not None and following.key == todo.group and todo.rank is not None and ready:
            self._enter(following, todo.rank)
        present = self.agent.present
        sound = present is not None and present.key == todo.group and not (self._broken or present.released)
        if todo.save is not None:
            self._save(todo.save, training=sound and not todo.release)
        if sound and not todo.release and self.step < self.total and todo.pause_at != self.step:
            if not self._entered:
                self._paused_s = None  # it stood still for something that was cancelled
            self._say("training")
            return self._train()
        if self.rank is not None:
            self._stand(todo, sound=sound)
        behind = 0 <= self.heir.at < self.step and self.rank is not None
        # After a crash sharded tensors may go back to where generators are: nothing is done again before that is known.
        known = todo.at_step >= self.step or not (self._broken or todo.release)
        if behind and (self._keeper is None or known):
            return self._go_alone(Turn(self.heir.at, alone=True))
        if todo.give >= 0 and todo.give == self.step:
            self._give()
        if todo.leave is not None and 0 <= self.step == self.heir.at:
            self._leave(todo.leave)
        if todo.take is not None and self.agent.said.holds[:2] != todo.build:
            return self._take(todo)
        return None

    def _stand(self, todo: Duty, *, sound: bool) -> None:
        if self._paused_s is None:
            self._paused_s = self._ended_s
        if self.step >= self.total > 0:
            self._say("left")
        elif self._broken or todo.release or (self.agent.present is None and self.agent.said.trouble):
            self._say("stopped")
        elif sound:
            self._say("paused")

    def _say(self, doing: Doing) -> None:
        said = self.agent.said
        generation = self.agent.present.key[0] if self.agent.present else self.agent.duty.group[0]
        if (said.doing, said.generation) != (doing, generation) or self.agent.attention:
            self.agent.tell(doing=doing, step=self.step, generation=generation)

    def _enter(self, group: Group, rank: int) -> None:
        """Go on in `group`, as its rank `rank`."""
        self.rank = rank
        old = self.agent.enter(group)
        self._broken = self._alone = self._gave = False
        self._entered = True
        self._giver.copies.entered(group.key[0], self.step)
        try:
            for replica in self.replicas:
                replica.begin(group, self.step)
        except RuntimeError:
            if not group.broken():
                raise
            self._broken = True
        install(group)
        self.agent.tell(doing="training", step=self.step, generation=group.key[0], peer_gone=self._broken, trouble="")
        if old is not None:
            closing = threading.Timer(CLOSE_S, old.close)  # it takes some ms, and holds everybody up meanwhile
            closing.daemon = True
            closing.start()

    def _go_alone(self, turn: Turn) -> Turn:
        if not self._alone:
            self._alone = True
            self._hollow = hollow(self.heir.rank or 0, self.settings.world, self.agent.grid)
            install(self._hollow)
        for replica in self.replicas:
            replica.alone(turn.step, self._hollow)
        if self.agent.member is not None:
            _log.info("step %d: done alone, for rank %s", turn.step, self.heir.rank)
        self.turn = turn
        return turn

    def _save(self, save: Save, *, training: bool) -> None:
        """This rank's part, when it stands where it is to be taken."""
        key = (save.number, save.attempt)
        if save.publish and self._saver.publishing != key:
            self._saver.publish(save)
        known = 0 <= self.heir.at <= self.step and (self.heir.at == self.step or save.share is None)
        there = self.step == save.at_step or (save.share is None and not training)
        if self._saver.begun != key and known and there:
            rank, member = self.rank, self.agent.member
            assert rank is not None
            assert member is not None
            if self._keeper is not None:
                self._keeper.settled()
            holder = Holder(rank, member.fit, self.settings.key, self.state, self.heir, self._giver)
            self._saver.begin(save, lambda: taken(save, holder))

    def _give(self) -> None:
        job = self.agent.job
        if job is None:
            return
        group = job.next_group()
        if not self._giver.gate.offered(group, self.step):
            assert self.rank is not None
            chunks = Chunks(self.state.pieces())
            self._giver.gate.open(Offer(group, self.step, chunks, self.heir.note(self.rank, self.step)))
            self._gave = True

    def _take(self, todo: Duty) -> Turn | None:
        self._clear()
        digest = self._taker.take(todo, self._torn)
        if digest:
            self.step = todo.at_step
            self.agent.tell(step=self.step, holds=(*(todo.build or (0, 0)), digest), trouble="")
        elif self.heir.rank == todo.rank and 0 <= self.heir.at < todo.at_step:
            return self._go_alone(Turn(self.heir.at, alone=True))
        return None

    def _torn(self) -> None:
        self.step = self.agent.said.step = -1
