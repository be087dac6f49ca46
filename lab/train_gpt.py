"""Train a small byte-level GPT with DistributedDataParallel over Gloo. An ordinary script: it needs PyTorch alone.

    RANK=0 WORLD_SIZE=4 MASTER_ADDR=fd00::1 MASTER_PORT=29500 GLOO_SOCKET_IFNAME=eth0 \
        python train_gpt.py --preset bench --steps 500 --log rank0.jsonl

Every rank writes JSON lines (times are CLOCK_MONOTONIC seconds, so the ranks of one machine share them):

    {"rank": 0, "world": 4, "pid": 71, "parameters": 28384, "preset": "bench", "seed": 0, "at_s": 10.0}
    {"step": 0, "start_s": 10.1, "end_s": 10.2, "loss": 4.85}
    {"step": 50, "hash": "…"}              the weights after 50 steps, each `--hash-every` steps
    {"done": 500, "sha256": "…"}           or {"error": "…", "at_s": 12.3} and a status other than 0

Two runs of the same arguments end with the same weights, bit for bit: data and dropout depend on (seed, step, rank)
only, one thread adds in one order, and the ring's order depends on rank numbers and sizes only.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is loaded: more ranks than cores thrash otherwise

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - what every PyTorch script calls it
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

VOCABULARY = 128
"""The texts are ASCII; the few bytes beyond share the last symbol."""


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of the model and of one rank's batch, in symbols and sequences."""

    width: int
    layers: int
    heads: int
    context: int
    batch: int
    learning_rate: float = 2e-3
    dropout: float = 0.1


PRESETS = {
    "bench": Shape(width=32, layers=1, heads=2, context=32, batch=1),
    "demo": Shape(width=64, layers=3, heads=4, context=64, batch=2, learning_rate=3e-3),
}


class Block(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.norm1 = nn.LayerNorm(shape.width)
        self.qkv = nn.Linear(shape.width, 3 * shape.width)
        self.out = nn.Linear(shape.width, shape.width)
        self.norm2 = nn.LayerNorm(shape.width)
        self.up = nn.Linear(shape.width, 4 * shape.width)
        self.down = nn.Linear(4 * shape.width, shape.width)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.out(seen.transpose(1, 2).reshape(batch, length, width)))
        thought: Tensor = self.down(F.gelu(self.up(self.norm2(x))))
        return x.add(self.dropout(thought))


class GPT(nn.Module):
    """Token ids (batch, length) -> logits (batch, length, VOCABULARY). The head shares the embedding's weights."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, shape.width)
        self.places = nn.Embedding(shape.context, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        nn.init.normal_(self.tokens.weight, std=0.05)

    def forward(self, ids: Tensor) -> Tensor:
        x: Tensor = self.tokens(ids) + self.places.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        normed: Tensor = self.norm(x)
        return normed @ self.tokens.weight.T


def load_text(path: Path) -> Tensor:
    """All regular files below `path` in the order of their names, as one vector of symbols."""
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    raw = b"".join(p.read_bytes() for p in files)
    if not raw:
        raise SystemExit(f"{path}: no text found; give a file or a folder with --data")
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8).clamp(max=VOCABULARY - 1).long()


def batches(text: Tensor, shape: Shape, seed: int, rank: int) -> Iterator[tuple[Tensor, Tensor]]:
    """(inputs, targets) for step 0, 1, …; also seeds torch's generator, so that dropout is a function of the step."""
    if len(text) <= shape.context + 1:
        raise SystemExit(f"the text has {len(text)} symbols, fewer than one context of {shape.context}")
    length, places = shape.context + 1, len(text) - shape.context - 1
    step = 0
    while True:
        torch.default_generator.manual_seed((seed * 1_000_003 + step) * 4099 + rank)
        starts = torch.randint(0, places, (shape.batch,)).tolist()
        window = torch.stack([text[start : start + length] for start in starts])
        yield window[:, :-1], window[:, 1:]
        step += 1


def weights_hash(model: nn.Module) -> str:
    digest = hashlib.sha256()
    for tensor in model.state_dict().values():
        digest.update(tensor.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()


def asked_to_stop(stop_file: Path | None) -> int | None:
    """The step number in the stop file. Ranks run in lock-step, so a number some steps ahead reaches all in time."""
    if stop_file is None:
        return None
    try:
        return int(stop_file.read_text())
    except (FileNotFoundError, ValueError):
        return None


def slowed_by_s(slow_file: Path | None) -> float:
    """What this rank is to lose in each step now, as one with a throttled processor would."""
    if slow_file is None:
        return 0.0
    try:
        return float(slow_file.read_text())
    except (FileNotFoundError, ValueError):
        return 0.0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--preset", choices=sorted(PRESETS), default="bench")
    for field in dataclasses.fields(Shape):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=float if field.type == "float" else int)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", type=Path, default=Path("/usr/share/common-licenses"))
    parser.add_argument("--log", type=Path, required=True, help="JSON lines of this rank")
    parser.add_argument("--hash-every", type=int, default=50, help="steps between hashes of the weights; 0: never")
    parser.add_argument("--stop-file", type=Path, help="holds the number of steps to end at; looked at in each step")
    parser.add_argument("--pause-s", type=float, default=0.0, help="wait so long in each step, as a larger model would")
    parser.add_argument(
        "--slow-file", type=Path, help="holds seconds that this rank loses in each step, looked at in each"
    )
    parser.add_argument("--timeout-s", type=float, default=1800.0, help="of the process group")
    return parser.parse_args()


def train(args: argparse.Namespace, shape: Shape, rank: int, world: int) -> int:
    """Run to the last step; returns the exit status."""
    text = load_text(args.data)
    with open(args.log, "w", buffering=1, encoding="ascii") as log:  # line buffered: readers follow the run

        def say(**fields: object) -> None:
            log.write(json.dumps(fields) + "\n")

        try:
            dist.init_process_group("gloo", rank=rank, world_size=world, timeout=timedelta(seconds=args.timeout_s))
            torch.manual_seed(args.seed)
            model = GPT(shape)
            ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)
            optimizer = torch.optim.AdamW(model.parameters(), lr=shape.learning_rate, fused=True)
            say(rank=rank, world=world, pid=os.getpid(), parameters=sum(p.numel() for p in model.parameters()),
                preset=args.preset, seed=args.seed, at_s=time.monotonic())  # fmt: skip
            end = args.steps
            source = batches(text, shape, args.seed, rank)
            step = 0
            while step < end:
                start_s = time.monotonic()
                ids, targets = next(source)
                loss = F.cross_entropy(ddp(ids).flatten(0, 1), targets.flatten())
                optimizer.zero_grad()
                torch.autograd.backward(loss)
                optimizer.step()
                time.sleep(args.pause_s + slowed_by_s(args.slow_file))
                log.write(
                    f'{{"step": {step}, "start_s": {start_s:.6f}, "end_s": {time.monotonic():.6f}, '
                    f'"loss": {loss.item():.5f}}}\n'
                )
                step += 1
                if args.hash_every and step % args.hash_every == 0:
                    say(step=step, hash=weights_hash(model))
                asked = asked_to_stop(args.stop_file)
                if asked is not None and step <= asked < end:
                    end = asked
            say(done=step, sha256=weights_hash(model))
        except RuntimeError as error:  # what Gloo raises when a peer is gone or the timeout has passed
            say(error=f"{type(error).__name__}: {str(error).splitlines()[0]}", at_s=time.monotonic())
            return 1
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
    return 0


def main() -> int:
    args = arguments()
    given = {f.name: getattr(args, f.name) for f in dataclasses.fields(Shape) if getattr(args, f.name) is not None}
    torch.set_num_threads(1)
    return train(
        args, dataclasses.replace(PRESETS[args.preset], **given), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    )


if __name__ == "__main__":
    sys.exit(main())
