"""How a member comes to the state that the others go on with: from them, or from its own copy of an earlier one."""

from __future__ import annotations

import logging
from collections.abc import Callable

from torchpass_bridge.core.duty import Duty
from torchpass_bridge.trainer.agent import Agent
from torchpass_bridge.trainer.chunks import Chunks
from torchpass_bridge.trainer.inherit import Heir
from torchpass_bridge.trainer.keeper import Keeper
from torchpass_bridge.trainer.own import opened
from torchpass_bridge.trainer.settings import Settings
from torchpass_bridge.trainer.state import State
from torchpass_bridge.trainer.taking import NotTaken, Sources

_log = logging.getLogger(__name__)


class Taker:
    def __init__(self, settings: Settings, agent: Agent, state: State, heir: Heir, keeper: Keeper | None) -> None:
        self._settings, self._agent, self._state = settings, agent, state
        self._heir, self._keeper = heir, keeper

    def take(self, todo: Duty, torn: Callable[[], None]) -> str:
        """First what belongs to the rank alone; once that is at the step that the others go on with, the tensors.

        The digest of these; empty: not yet, and why is told if it is not for want of steps to be done alone. `torn`: is
        called before the tensors change, for they are of no step until all is there."""
        agent, build, copy = self._agent, todo.build, todo.take
        assert copy is not None
        if self._keeper is not None and copy.kept and todo.rank in copy.sources and self._back(todo, torn):
            return "kept"

        def wanted() -> bool:
            return agent.duty.build == build and agent.duty.take is not None

        try:
            part = copy.to % agent.shards if copy.kept else -1
            with Sources(self._settings, todo.take_from, build or (0, 0), todo.at_step, wanted, part) as sources:
                self._heir.inherit(todo, sources, agent.job)
                if self._heir.at < todo.at_step:
                    return ""
                chunks = self._room_for(sources, torn)
                digest = sources.take(chunks)
        except NotTaken as error:
            if wanted():
                agent.tell(trouble=f"the state could not be taken over: {error}")
            return ""
        self._heir.finish(todo.at_step)
        agent.leave_first(self._heir.first())
        _log.info(
            "the state after step %d taken over from %s", todo.at_step - 1, ", ".join(m.id for m in todo.take_from)
        )
        return digest

    def _back(self, todo: Duty, torn: Callable[[], None]) -> bool:
        """To its own part as it was a step or two ago; False: it is not kept here any more."""
        rank, step = todo.rank, todo.at_step
        assert self._keeper is not None
        assert rank is not None
        kept = self._keeper.kept(step)
        if kept is None:
            return False
        torn()
        if not self._keeper.restore(kept, self._state):
            return False
        self._heir.restored(rank, step, opened(self._settings.key, rank, step, kept.own))
        _log.info("the state after step %d taken back", step - 1)
        return True

    def _room_for(self, sources: Sources, torn: Callable[[], None]) -> Chunks:
        """This process's tensors, laid out as the sources' are."""
        layouts = sources.layouts()
        if len(layouts) != 1:
            raise NotTaken(f"its sources hold states of different kinds: {sorted(layouts)}")
        if self._keeper is not None:
            self._keeper.settled()
        torn()
        bare = Chunks(self._state.pieces(bare=True))
        if {bare.layout} == layouts:  # before the first step
            self._state.forget()
            return bare
        if self._state.empty():
            self._state.materialize()
        full = Chunks(self._state.pieces())
        if {full.layout} == layouts:
            return full
        raise NotTaken(f"the state here is laid out as {full.layout}, at its sources as {min(layouts)}")
