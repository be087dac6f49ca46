"""What a training script uses: `join`, and the run that it gives.

run = torchpass.join()
ddp = run.wrap(model)
run.protect(optimizer, scheduler=scheduler, data=data)
for step in run.steps(500):
    with run.step():
        ...
"""

from __future__ import annotations

import atexit
import functools
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

import msgspec
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from torchpass_bridge.memory import keep_freed
from torchpass_bridge.trainer.agent import Agent
from torchpass_bridge.trainer.buddy import Buddy
from torchpass_bridge.trainer.copies import Copies
from torchpass_bridge.trainer.endings import Ending
from torchpass_bridge.trainer.giving import Giver
from torchpass_bridge.trainer.groups import Group, hollow, install, solo
from torchpass_bridge.trainer.keeper import Keeper
from torchpass_bridge.trainer.loop import Loop
from torchpass_bridge.trainer.own import Own, Stateful
from torchpass_bridge.trainer.replica import Replica
from torchpass_bridge.trainer.restoring import Origin, compare, origin, restore
from torchpass_bridge.trainer.settings import Settings, Times, from_environment
from torchpass_bridge.trainer.sharded import Sharded, mesh_of
from torchpass_bridge.trainer.state import State
from torchpass_bridge.wire import Member

_log = logging.getLogger(__name__)

DEFAULT_TIMES = Times()


def join(times: Times = DEFAULT_TIMES) -> Run:
    """In place of `init_process_group`: this process becomes a member of its job, or a spare, by its environment.

    TORCHPASS_STORE, TORCHPASS_JOB, TORCHPASS_KEY (or _KEY_FILE), WORLD_SIZE, and RANK or TORCHPASS_SPARE=1.
    Until the first step `torch.distributed` tells rank and size, and its collectives do nothing: the others may not be
    there yet. ValueError when something is missing; `store.link.StoreAway` when the store does not answer."""
    run = Run(from_environment(os.environ, times))
    why = keep_freed(os.environ)
    if why:
        _log.info("freed memory is kept as glibc sees fit: %s", why)
    run._open()
    return run


class Run:
    """This process's part in the job. A spare has no rank before its first step."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.device = torch.device("cpu")
        self._buddy = Buddy(settings)
        self._agent = Agent(settings, self._buddy)
        self._copies = Copies(self._copied)
        self._giver = Giver(settings.address, settings.key, settings.times.build_s, self._may_keep, self._copies)
        self._mesh: DeviceMesh | None = None
        self._replicas: list[Replica | Sharded] = []
        self._modules: list[torch.nn.Module] = []
        self._solo: Group | None = None
        self._loop: Loop | None = None

    @property
    def rank(self) -> int:
        """RuntimeError for a spare that has none yet. In the step that it does for practice it is 0."""
        if self._loop is not None and self._loop.heir.rank is not None:
            return self._loop.heir.rank
        if self.settings.rank is not None:
            return self.settings.rank
        if self._loop is not None and self._loop.turn is not None:
            return 0
        raise RuntimeError("a spare has no rank yet: read run.rank within a step, where it is needed")

    @property
    def world(self) -> int:
        return self.settings.world

    @property
    def spare(self) -> bool:
        """Whether it was started as one."""
        return self.settings.rank is None

    def _open(self) -> None:
        atexit.register(self.close)
        self._giver.start()
        self._buddy.start()
        self._agent.start()
        install(hollow(self.settings.rank or 0, self.settings.world))

    def close(self) -> None:
        """Ends its threads. Nothing protects the process any more; its groups stay."""
        self._agent.stop()
        self._giver.stop()

    def wrap(self, module: torch.nn.Module, **options: Any) -> DistributedDataParallel:
        """`DistributedDataParallel(module, **options)`, in groups that follow the job. Its state is protected."""
        if self._mesh is not None:
            raise RuntimeError("a job is either under DDP or under FSDP2: run.wrap and run.mesh do not go together")
        self.device = self._agent.device = next((p.device for p in module.parameters()), self.device)
        if self._solo is None:
            self._solo = solo(self.device)
        ddp = DistributedDataParallel(module, process_group=self._solo.pg, **options)
        self._replicas.append(Replica(ddp, self._solo))
        self._modules.append(module)
        return ddp

    def mesh(self, replicate: int = 1, device_type: str = "") -> DeviceMesh:
        """Over all ranks, for `fully_shard(…, mesh=)`: it follows the job. `replicate`: so many copies of each part, in
        a mesh of two dimensions ("replicate", "shard"); 1: one dimension. `device_type`: cuda if there is one, or cpu.

        The model goes to `protect(…, modules=[model])`. ValueError when the ranks cannot be divided so."""
        world, rank = self.settings.world, self.settings.rank or 0
        if self._mesh is not None or self._replicas:
            raise RuntimeError("`mesh` is called once, and not together with `wrap`")
        if replicate < 1 or world % replicate:
            raise ValueError(f"{world} ranks cannot hold {replicate} copies of each part")
        kind = device_type or ("cuda" if torch.cuda.is_available() else "cpu")
        self.device = self._agent.device = torch.device(kind)
        self._agent.shards = world // replicate
        self._agent.grid = (replicate, world // replicate) if replicate > 1 else None
        group = hollow(rank, world, self._agent.grid)
        install(group)
        self._mesh = mesh_of(kind, group, self._agent.grid)
        return self._mesh

    def protect(
        self,
        *optimizers: torch.optim.Optimizer,
        scheduler: Stateful | Sequence[Stateful] = (),
        data: Stateful | Sequence[Stateful] = (),
        shared: Mapping[str, Stateful] | None = None,
        own: Mapping[str, Stateful] | None = None,
        modules: Sequence[torch.nn.Module] = (),
        generators: Sequence[Any] = (),
        own_at: Callable[[int, int], None] | None = None,
    ) -> None:
        """Name what the job's state is, besides the wrapped models and the default generators.

        `scheduler`, `shared`: alike on all ranks (a GradScaler too); `data`, `own`: each rank has its own (the position
        in the data). All have `state_dict` and `load_state_dict`. `modules`: with state, but not wrapped.
        `generators`: of torch, `random.Random`, `numpy.random.Generator`. `own_at(rank, step)`: puts generators and
        data where they are for that rank at that step, if the script can tell: then a dead rank needs no buddy."""
        if self._loop is not None:
            raise RuntimeError("`protect` is called once")
        alike = {f"scheduler{n}": s for n, s in enumerate(_several(scheduler))} | dict(shared or {})
        alone = {f"data{n}": d for n, d in enumerate(_several(data))} | dict(own or {})
        for name, stateful in {**alike, **alone}.items():
            if not isinstance(stateful, Stateful):
                raise TypeError(f"{name} ({type(stateful).__name__}) has no state_dict and load_state_dict")
        held = [*self._modules, *modules]
        keeper = None
        if self._mesh is not None:
            self._replicas.append(Sharded(self._mesh, held))
        if self._agent.shards > 1:
            keeper = Keeper(self.settings, self._copies, self._agent.shards)
            keeper.start()
        state = State(held, list(optimizers))
        loop = Loop(
            self.settings, self._agent, self._giver, self._buddy, state,
            Own(held, list(optimizers), alike, alone, list(generators)), self._replicas, own_at,
            keeper,
        )  # fmt: skip
        for optimizer in optimizers:
            _count_steps(optimizer, loop)
        self._loop = loop

    def steps(self, total: int) -> Iterator[int]:
        """The numbers of the steps to do, up to `total`. One may come again, for it broke; then all is as it was.

        A spare waits in here until it takes a rank's place, after one step that it does alone, for practice."""
        loop = self._protected()
        try:
            begin = origin(self.settings)
            if self.spare or begin is not None:
                yield from loop.rehearse()
            if begin is not None:
                loop.step = restore(self.settings, begin, loop.state, loop.heir, self._agent.shards)
            self._enlist(loop, begin)
            yield from loop.turns(total)
        except Ending as ending:
            _log.warning("%s", ending.why)
            raise

    def step(self) -> Step:
        """Around all that is done in a step: it breaks when somebody is lost, and comes again."""
        return Step(self._protected())

    def end(self) -> None:
        """No further steps after this one; to be called by all ranks in the same step."""
        loop = self._protected()
        loop.total = loop.step + 1

    def _protected(self) -> Loop:
        if self._loop is None:
            raise RuntimeError("call run.protect(optimizer, …) before the first step")
        return self._loop

    def _enlist(self, loop: Loop, begin: Origin | None) -> None:
        fresh = loop.state.empty()
        if fresh:
            loop.state.materialize()
        told = " | ".join(replica.settings() for replica in self._replicas)
        fit = msgspec.structs.replace(
            loop.state.fit(self.device, told, self.world), shards=self._agent.shards, buddies=self.settings.buddies
        )
        if fresh and not self.spare:
            loop.state.forget()  # an optimizer's first step may differ from one with zeros
        if begin is not None:
            compare(begin, fit)
        settings = self.settings
        self._agent.said.step = max(loop.step, 0)
        self._agent.enlist(
            Member(
                id=settings.id, host=settings.host, pid=os.getpid(), address=self._giver.address, fit=fit,
                accelerator=settings.accelerator, domain=settings.domain, snapshots=settings.snapshots,
                begins=begin.name if begin is not None else "", lent_from=settings.lent_from,
            ),
            loop.heir.first() if settings.rank is not None else b"",
        )  # fmt: skip
        if self.spare:
            _log.info("waits as a spare of %s", settings.job)

    def _copied(self) -> None:
        """A copy of a part has come, of this rank's or another's: who decides has to know it once somebody is gone."""
        said = self._agent.said
        said.keeps = self._copies.keeps()
        if said.doing != "training":
            self._agent.tell()

    def _may_keep(self, member: str, rank: int) -> bool:
        job = self._agent.job
        return job is not None and 0 <= rank < job.world and job.members[rank].id == member


class Step:
    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    def __enter__(self) -> None:
        if self._loop.turn is None:
            raise RuntimeError("`with run.step():` belongs into the loop over `run.steps(…)`, once in each turn")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        return self._loop.end(error)


def _several(given: Stateful | Sequence[Stateful]) -> Sequence[Stateful]:
    return given if isinstance(given, (list, tuple)) else (given,)


def _count_steps(optimizer: torch.optim.Optimizer, loop: Loop) -> None:
    """The loop has to know which steps were applied, and leaves those out that are done alone.

    On the instance: that is where schedulers and gradient scalers call it."""
    apply = optimizer.step

    @functools.wraps(apply)
    def step(*args: Any, **options: Any) -> Any:
        if loop.stepping():
            return apply(*args, **options)
        setattr(optimizer, "_opt_called", True)  # noqa: B010 (what schedulers look at; not declared)
        return None

    optimizer.step = step  # type: ignore[method-assign]
