"""A training script as a user writes it, with torchpass's five lines and as it was before; run in a forked process.

Dropout by the default generator, data with a position of its own, a scheduler, several buckets: everything of which a
job's last bits can depend.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from small_model import Batches, Net
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from torchpass_bridge import trainer as torchpass


class Plan:
    """What a process is told by the test, as JSON in its environment."""

    def __init__(self, said: dict[str, Any]) -> None:
        self.steps: int = said.get("steps", 60)
        self.width: int = said.get("width", 64)
        self.layers: int = said.get("layers", 3)
        self.bucket_mb: float = said.get("bucket_mb", 0.02)
        self.sleep_s: float = said.get("sleep_s", 0.0)
        self.norm: bool = said.get("norm", False)
        self.late_collective: bool = said.get("late_collective", False)
        """The step ends with a collective, after the optimizer's step."""
        self.early_for: int = said.get("early_for", -1)
        """A rank that takes part in that collective before its optimizer's step."""
        self.dies: list[int] = said.get("dies", [])
        """[rank, step]: killed between the optimizer's step and the collective after it."""
        self.replicate: int = said.get("replicate", 0)
        """FSDP2 with so many copies of each part, in place of DDP."""
        self.dropout: float = said.get("dropout", 0.1)


def made(plan: Plan, rank: int, mesh: DeviceMesh | None) -> tuple[Net, torch.optim.Optimizer, Any, Batches]:
    torch.manual_seed(0)
    net = Net(plan.width, plan.layers, norm=plan.norm)
    for part in net.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = plan.dropout
    if mesh is not None:
        dealt_out(net, mesh)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.9)
    torch.manual_seed(77 + rank)
    return net, optimizer, scheduler, Batches(rank, plan.width)


def dealt_out(net: Net, mesh: DeviceMesh) -> None:
    for layer in net.body:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)


def one_step(
    plan: Plan, ddp: torch.nn.Module, optimizer: Any, scheduler: Any, data: Batches, rank: int, step: int
) -> None:
    x, y = next(data)
    optimizer.zero_grad()
    loss = cross_entropy(ddp(x), y)
    loss.backward()
    early = rank == plan.early_for
    if plan.late_collective and early:
        dist.all_reduce(loss.detach())
    optimizer.step()
    if plan.dies == [rank, step] and "TORCHPASS_SPARE" not in os.environ:
        os.kill(os.getpid(), signal.SIGKILL)
    if plan.late_collective and not early:
        dist.all_reduce(loss.detach())
    scheduler.step()
    if plan.sleep_s:
        time.sleep(plan.sleep_s)


def told(net: torch.nn.Module, optimizer: Any, scheduler: Any, data: Batches, times_s: list[float]) -> dict[str, Any]:
    """All that must be alike on all ranks of all runs (`hash`; of sharded state on those with the same part), and what
    must be of one rank (`own`)."""
    weights = hashlib.sha256()
    for parameter in net.parameters():
        for tensor in (parameter.detach(), *optimizer.state[parameter].values()):
            local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
            weights.update(local.numpy().tobytes())
    weights.update(json.dumps([scheduler.state_dict(), optimizer.param_groups[0]["lr"]], default=str).encode())
    own = hashlib.sha256(torch.get_rng_state().numpy().tobytes() + data.state_dict()["generator"].numpy().tobytes())
    own.update(str(data.drawn).encode())
    step_s = sorted(times_s)[len(times_s) // 2] if times_s else 0.0
    return {"hash": weights.hexdigest()[:16], "own": own.hexdigest()[:16], "step_s": step_s, "times_s": times_s}


def stock(environment: dict[str, str], out: Path) -> None:
    """As it was before: plain DDP or FSDP2, nothing of torchpass."""
    os.environ.update(environment)
    torch.set_num_threads(1)
    plan, rank, world = Plan(json.loads(os.environ["PLAN"])), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.FileStore(str(out.parent / "rendezvous"), world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    mesh = None
    if plan.replicate:
        shape = (world,) if plan.replicate == 1 else (plan.replicate, world // plan.replicate)
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")[-len(shape) :])
    net, optimizer, scheduler, data = made(plan, rank, mesh)
    ddp = net if plan.replicate else DistributedDataParallel(net, bucket_cap_mb=plan.bucket_mb)
    times_s = []
    for step in range(plan.steps):
        began_s = time.perf_counter()
        one_step(plan, ddp, optimizer, scheduler, data, rank, step)
        times_s.append(time.perf_counter() - began_s)
    out.write_text(json.dumps({"rank": rank, **told(net, optimizer, scheduler, data, times_s)}))
    dist.barrier()
    # The group's destructor joins a thread that may just want Python's lock, for the barrier's own end: with the lock
    # held both wait for ever (torch 2.13, once in some thousand ends).
    os._exit(0)


def protected(environment: dict[str, str], out: Path) -> None:
    """The same with torchpass."""
    os.environ.update(environment)
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.INFO, filename=out.with_suffix(".log"), format="%(asctime)s %(message)s")
    plan = Plan(json.loads(os.environ["PLAN"]))
    run = torchpass.join()
    mesh = run.mesh(replicate=plan.replicate) if plan.replicate else None
    net, optimizer, scheduler, data = made(plan, 0 if run.spare else run.rank, mesh)
    ddp = net if plan.replicate else run.wrap(net, bucket_cap_mb=plan.bucket_mb)
    run.protect(optimizer, scheduler=scheduler, data=data, modules=[net] if plan.replicate else [])
    times_s = []
    for step in run.steps(plan.steps):
        began_s = time.perf_counter()
        with run.step():
            one_step(plan, ddp, optimizer, scheduler, data, run.rank, step)
        times_s.append(time.perf_counter() - began_s)
    out.write_text(json.dumps({"rank": run.rank, **told(net, optimizer, scheduler, data, times_s)}))
    run.close()
