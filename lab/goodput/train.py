"""The job, once for each way to keep it alive: `GOODPUT_ARM` says which. All do the same steps with the same model.

Every process appends JSON lines to `GOODPUT_LOG/PID.jsonl`: {"rank", "step", "at_s"} when its optimizer has applied a
step (CLOCK_MONOTONIC), {"saved_s"} for a checkpoint, and {"done", "sha256"} at the end. What is drawn in a step depends
on (seed, step, rank) only, so whoever does every step once, with all ranks, ends with the same weights.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.nn.parallel import DistributedDataParallel

from lab.train_gpt import GPT, Shape, load_text, weights_hash

SHAPE = Shape(width=256, layers=12, heads=4, context=48, batch=1)
"""9.5 million parameters: 114 MB of state with AdamW's."""
BUCKET_MB = 4.0
TEXTS = Path("/usr/share/common-licenses")
SEED = 7


class Job:
    """Model, optimizer, data, and the log. `applied(step)` is noted by the optimizer itself."""

    def __init__(self, rank: int) -> None:
        self.steps = int(os.environ["GOODPUT_STEPS"])
        self.rank, self.step, self._within = rank, 0, False
        torch.set_num_threads(1)
        torch.manual_seed(SEED)
        self.net = GPT(SHAPE)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-3, fused=True)
        self.optimizer.register_step_post_hook(lambda *_: self._applied())
        self._text = load_text(TEXTS)
        self._log = (Path(os.environ["GOODPUT_LOG"]) / f"{os.getpid()}.jsonl").open("a", buffering=1)

    def say(self, **fields: object) -> None:
        self._log.write(json.dumps(fields) + "\n")

    def _applied(self) -> None:
        if self._within:
            self.say(rank=self.rank, step=self.step, at_s=time.monotonic())

    def loss(self, ddp: Callable[[Tensor], Tensor], step: int, rank: int) -> Tensor:
        self.step, self.rank = step, rank
        torch.default_generator.manual_seed((SEED * 1_000_003 + step) * 4099 + rank)
        length = SHAPE.context + 1
        starts = torch.randint(0, len(self._text) - length, (SHAPE.batch,)).tolist()
        window = torch.stack([self._text[start : start + length] for start in starts])
        return F.cross_entropy(ddp(window[:, :-1]).flatten(0, 1), window[:, 1:].flatten())

    def one(self, ddp: Callable[[Tensor], Tensor], step: int, rank: int, optimizer: Any = None) -> None:
        """An ordinary step."""
        optimizer = optimizer or self.optimizer
        optimizer.zero_grad()
        torch.autograd.backward(self.loss(ddp, step, rank))
        self._within = True
        optimizer.step()
        self._within = False

    def done(self) -> None:
        self.say(rank=self.rank, done=self.steps, sha256=weights_hash(self.net))


def joined(prefix: str) -> tuple[int, DistributedDataParallel, Job]:
    """As a member of a group that stands once: (rank, DDP, job)."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = TCPStore(
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), world,
        is_master=rank == 0 and "TORCHELASTIC_RUN_ID" not in os.environ,
    )  # fmt: skip
    dist.init_process_group("gloo", store=PrefixStore(prefix, store), rank=rank, world_size=world)
    job = Job(rank)
    return rank, DistributedDataParallel(job.net, bucket_cap_mb=BUCKET_MB), job


def leave() -> None:
    """Together, and without the group's destructor: it joins a thread that may just want Python's lock, for the
    barrier's own end, and with the lock held both wait for ever (torch 2.13, seen once)."""
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)


def none() -> None:
    """Stock DDP. With GOODPUT_PROBE: one checkpoint at the end, to know what it costs."""
    rank, ddp, job = joined("none")
    for step in range(job.steps):
        job.one(ddp, step, rank)
    job.done()
    if "GOODPUT_PROBE" in os.environ and rank == 0:
        save(job, job.steps)
    leave()


def save(job: Job, step: int) -> None:
    """By rank 0; the others wait for it in the next step's collective."""
    path = Path(os.environ["GOODPUT_LOG"]) / "checkpoint.pt"
    began_s = time.monotonic()
    torch.save({"step": step, "model": job.net.state_dict(), "optimizer": job.optimizer.state_dict()}, f"{path}.new")
    os.replace(f"{path}.new", path)
    job.say(saved_s=time.monotonic() - began_s)


def restart() -> None:
    """Under torchrun: a checkpoint each GOODPUT_EVERY steps; all start again from the latest when one is gone."""
    rank, ddp, job = joined(f"try{os.environ['TORCHELASTIC_RESTART_COUNT']}")
    every, path, first = int(os.environ["GOODPUT_EVERY"]), Path(os.environ["GOODPUT_LOG"]) / "checkpoint.pt", 0
    if path.exists():
        told = torch.load(path)
        job.net.load_state_dict(told["model"])
        job.optimizer.load_state_dict(told["optimizer"])
        first = told["step"]
    for step in range(first, job.steps):
        job.one(ddp, step, rank)
        if rank == 0 and (step + 1) % every == 0:
            save(job, step + 1)
    job.done()
    leave()


def torchft() -> None:
    """As torchft's own documentation says: a replica group a rank, its DDP, its optimizer, a lighthouse."""
    from torchft import DistributedDataParallel as TorchftDDP
    from torchft import Manager, Optimizer, ProcessGroupGloo

    rank = int(os.environ["RANK"])
    job = Job(rank)
    timeout = timedelta(seconds=float(os.environ["GOODPUT_TIMEOUT_S"]))
    store = TCPStore("localhost", 0, 1, is_master=True, wait_for_workers=False)
    manager: Any = None

    def load_state(told: Any) -> None:
        job.net.load_state_dict(told["model"])
        job.optimizer.load_state_dict(told["optimizer"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timeout), load_state_dict=load_state,
        state_dict=lambda: {"model": job.net.state_dict(), "optimizer": job.optimizer.state_dict()},
        min_replica_size=1, timeout=timeout, quorum_timeout=timedelta(seconds=60), replica_id=f"replica{rank}_",
        rank=0, world_size=1, store_addr="localhost", store_port=store.port, hostname="localhost",
        lighthouse_addr=os.environ["TORCHFT_LIGHTHOUSE"], init_sync=False,
    )  # fmt: skip

    class WholeDDP(TorchftDDP):  # type: ignore[misc]
        """Its hook asserts a future that Gloo's work does not have once a peer is gone: the process would die of it."""

        @staticmethod
        def _comm_hook(state, bucket):  # type: ignore[no-untyped-def]  # DDP looks at annotations, as objects
            work = state.allreduce(bucket.buffer())
            work.wait()
            future = work.get_future()
            inner = getattr(future, "_fut", future)
            if inner is None:
                inner = torch.futures.Future()
                inner.set_result(bucket.buffer())
            return inner

    ddp = WholeDDP(manager, job.net, bucket_cap_mb=BUCKET_MB)
    optimizer = Optimizer(manager, job.optimizer)
    while manager.current_step() < job.steps:
        step = manager.current_step()
        job.one(ddp, step, rank, optimizer)
        if manager.num_participants() < int(os.environ["WORLD_SIZE"]) or manager.current_step() == step:
            job.say(rank=rank, short=step, participants=manager.num_participants(), at_s=time.monotonic())
    job.done()
    manager.shutdown(wait=False)
    os._exit(0)


def linkpass() -> None:
    """With torchpass's five lines; as a spare, too."""
    from torchpass_bridge import trainer as torchpass

    run = torchpass.join()
    job = Job(0 if run.spare else run.rank)
    ddp = run.wrap(job.net, bucket_cap_mb=BUCKET_MB)
    run.protect(job.optimizer)
    for step in run.steps(job.steps):
        with run.step():
            job.one(ddp, step, run.rank)
    job.rank = run.rank
    job.done()
    run.close()
    leave()


if __name__ == "__main__":
    import logging

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    {"none": none, "restart": restart, "torchft": torchft, "linkpass": linkpass}[os.environ["GOODPUT_ARM"]]()
