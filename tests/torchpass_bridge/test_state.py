"""What a job's state is, and that it can be put back to the last bit."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from small_model import Batches, Net

from torchpass_bridge.trainer.chunks import Chunks, Staging, digest
from torchpass_bridge.trainer.own import Own, opened, sealed
from torchpass_bridge.trainer.state import State, layout

CPU = torch.device("cpu")


def made(seed: int = 0, **options: bool) -> tuple[Net, torch.optim.AdamW]:
    torch.manual_seed(seed)
    net = Net(**options)
    return net, torch.optim.AdamW(net.parameters(), lr=1e-3)


def trained(seed: int, steps: int = 2) -> tuple[Net, torch.optim.AdamW]:
    net, optimizer = made(seed)
    for _ in range(steps):
        net(torch.randn(4, 64)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return net, optimizer


def weights(net: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    kept = [v for p in net.parameters() for v in optimizer.state.get(p, {}).values()]
    return [t.detach().clone() for t in [*net.parameters(), *kept]]


def test_pieces_are_the_tensors_themselves() -> None:
    net, optimizer = trained(0)
    other, other_optimizer = trained(1)
    for here, there in zip(State([net], [optimizer]).pieces(), State([other], [other_optimizer]).pieces(), strict=True):
        assert (here.name, here.told) == (there.name, there.told)
        there.tensor.copy_(here.tensor)
    pairs = zip(weights(net, optimizer), weights(other, other_optimizer), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_a_tensor_in_another_order_of_memory_is_laid_out_otherwise() -> None:
    plain, last = torch.nn.Conv2d(4, 4, 3), torch.nn.Conv2d(4, 4, 3).to(memory_format=torch.channels_last)
    pieces, others = State([plain], []).pieces(), State([last], []).pieces()
    assert layout(pieces) != layout(others)
    others[0].tensor.zero_()
    assert not last.weight.any()


def test_a_tensor_with_gaps_cannot_be_moved() -> None:
    net = torch.nn.Module()
    net.hole = torch.nn.Parameter(torch.zeros(4, 4)[:, :2])
    with pytest.raises(ValueError, match=r"model0\.hole has gaps"):
        State([net], []).pieces()


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad])
def test_what_an_optimizer_keeps_can_be_made_before_its_first_step(kind: type[torch.optim.Optimizer]) -> None:
    torch.manual_seed(0)
    net = Net()
    options = {"lr": 0.1, "momentum": 0.9} if kind is torch.optim.SGD else {"lr": 0.1}
    optimizer = kind(net.parameters(), **options)
    state = State([net], [optimizer])
    before = [p.detach().clone() for p in net.parameters()]
    hooks: list[object] = []
    optimizer.register_step_post_hook(lambda *_: hooks.append(1))
    state.materialize()
    assert hooks == [], "the script's hook took it for a step of the job"
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))
    assert all(p.grad is None for p in net.parameters())
    made_early = layout(state.pieces())
    net(torch.randn(4, 64)).sum().backward()
    optimizer.step()
    assert layout(state.pieces()) == made_early != layout(state.pieces(bare=True))


def test_an_optimizer_that_needs_to_be_asked_is_refused_by_name() -> None:
    net = Net()
    with pytest.raises(ValueError, match="LBFGS cannot be prepared"):
        State([net], [torch.optim.LBFGS(net.parameters())]).materialize()


def test_a_fit_tells_models_and_optimizers_apart_and_is_alike_for_alike_ones() -> None:
    def fit(net: torch.nn.Module, optimizer: torch.optim.Optimizer) -> object:
        return State([net], [optimizer]).fit(CPU, "", 4)

    same = [fit(*made(seed)) for seed in (0, 1)]
    assert same[0] == same[1]
    net, optimizer = made(0)
    net.body[2].p = 0.2  # type: ignore[union-attr, assignment]
    assert same[0].misfits(fit(net, optimizer)).startswith("model ")  # type: ignore[attr-defined]
    optimizer = torch.optim.AdamW(made(0)[0].parameters(), betas=(0.8, 0.9))
    assert "optimizer" in same[0].misfits(fit(made(0)[0], optimizer))  # type: ignore[attr-defined]


def test_chunks_cover_all_bytes_once_whatever_their_size() -> None:
    net, optimizer = trained(0)
    pieces = State([net], [optimizer]).pieces()
    whole = b"".join(p.tensor.numpy().tobytes() for p in pieces)
    for size in (1 << 10, 5000, 1 << 20):
        chunks, staging = Chunks(pieces, size), Staging(size)
        parts = [b"".join(chunks.load(number, staging)) for number in range(len(chunks))]
        assert b"".join(parts) == whole
        assert {len(part) for part in parts[:-1]} <= {size}
    assert digest([memoryview(b"ab"), memoryview(b"c")]) == digest([memoryview(b"abc")])


def test_what_is_not_in_the_tensors_comes_back_to_the_bit() -> None:
    net, optimizer = made(norm=True)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    data, mine, numbers = Batches(0), random.Random(5), np.random.default_rng(6)
    own = Own([net], [optimizer], {"scheduler": scheduler}, {"data": data}, [mine, numbers])

    def draw() -> list[object]:
        net.train()
        x, y = next(data)
        out = net(x)
        optimizer.step()
        scheduler.step()
        return [
            x, y, out.detach(), random.random(), float(np.random.rand()), mine.random(), float(numbers.random()),
            optimizer.param_groups[0]["lr"], net.body[3].running_mean.clone(), data.drawn,  # type: ignore[union-attr, operator]
        ]  # fmt: skip

    draw()
    before = own.take()
    first = draw()
    draw()
    own.put(before)
    again = draw()
    for a, b in zip(first, again, strict=True):
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b  # type: ignore[arg-type]


def test_what_is_shared_can_be_taken_without_what_is_not() -> None:
    net, optimizer = made()
    own = Own([net], [optimizer], {}, {"data": Batches(0)}, [])
    optimizer.param_groups[0]["lr"] = 0.5
    said = own.take()
    optimizer.param_groups[0]["lr"] = 0.1
    torch.manual_seed(99)
    expected = torch.rand(1)
    torch.manual_seed(99)
    own.put(said, only_shared=True)
    assert optimizer.param_groups[0]["lr"] == 0.5
    assert torch.equal(torch.rand(1), expected)


def test_what_comes_from_others_is_opened_only_with_the_jobs_mark() -> None:
    said = sealed(b"k" * 16, 1, 7, b"data")
    assert opened(b"k" * 16, 1, 7, said) == b"data"
    for key, rank, step, data in [
        (b"x" * 16, 1, 7, said), (b"k" * 16, 2, 7, said), (b"k" * 16, 1, 8, said), (b"k" * 16, 1, 7, said + b"!"),
        (b"k" * 16, 1, 7, b""),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match="mark"):
            opened(key, rank, step, data)
