"""What of FSDP2 follows the job, what is refused, and the copies of parts: real modules, real sockets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from small_model import Net
from torch.distributed.fsdp import fully_shard

from torchpass_bridge.trainer.copies import KEPT, Copies, Copy
from torchpass_bridge.trainer.groups import Grid, Group, hollow, install, lines
from torchpass_bridge.trainer.sharded import Sharded, mesh_of
from torchpass_bridge.trainer.state import State, layout


@pytest.fixture
def one() -> Iterator[None]:
    yield
    dist.destroy_process_group()


def on(rank: int, world: int, grid: Grid | None = None) -> Group:
    group = hollow(rank, world, grid)
    install(group)
    return group


def test_the_lines_of_a_mesh_of_two_dimensions() -> None:
    assert lines(5, (2, 4)) == [("replicate", (1, 5)), ("shard", (4, 5, 6, 7))]
    assert lines(5, None) == []


@pytest.mark.parametrize("grid", [None, (2, 2)])
def test_a_spare_built_as_rank_0_has_the_parts_layout_of_any_rank_and_takes_any_place(
    one: None, grid: Grid | None
) -> None:
    made = []
    for rank in (0, 3):
        group = on(rank, 4, grid)
        net = Net(width=32, layers=2)
        mesh = mesh_of("cpu", group, grid)
        fully_shard(net, mesh=mesh)
        made.append((net, mesh))
    (net, mesh), (other, _) = made
    assert layout(State([net], []).pieces()) == layout(State([other], []).pieces())
    sharded = Sharded(mesh, [net])
    group = on(3, 4, grid)
    sharded.begin(group, 7)
    assert tuple(mesh.get_coordinate() or ()) == ((1, 1) if grid else (3,))
    info = net._get_fsdp_state()._fsdp_param_group.mesh_info  # type: ignore[operator]
    assert info.shard_process_group is (group.dims[1] if grid else group).pg
    assert mesh.get_group(mesh.ndim - 1) is info.shard_process_group


def test_what_is_not_dealt_out_evenly_is_refused_by_its_name(one: None) -> None:
    group = on(0, 3)
    net, mesh = Net(width=32, layers=1), mesh_of("cpu", group, None)
    fully_shard(net, mesh=mesh)
    with pytest.raises(ValueError, match=r"model0\.body\.0\.weight of shape \(32, 32\) is not dealt out evenly"):
        Sharded(mesh, [net])


def test_what_is_trained_outside_of_fully_shard_is_refused(one: None) -> None:
    group = on(0, 2)
    net, mesh = Net(width=32, layers=1), mesh_of("cpu", group, None)
    fully_shard(net.body, mesh=mesh)
    with pytest.raises(ValueError, match=r"model0\.head\.weight is trained, but in no fully_shard"):
        Sharded(mesh, [net])


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_after_a_broken_step_parameters_are_sharded_and_there_are_no_gradients(one: None, where: str) -> None:
    group = on(1, 2)
    net, mesh = Net(width=32, layers=2), mesh_of("cpu", group, None)
    for layer in net.body:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    sharded = Sharded(mesh, [net])
    before = dict(net.named_parameters())

    def broken(*_: object) -> None:
        raise RuntimeError("connection closed")

    def in_backward(module: torch.nn.Module, given: object, out: torch.Tensor) -> None:
        out.register_hook(broken)  # type: ignore[no-untyped-call]

    handle = net.body[3].register_forward_hook(broken if where == "forward" else in_backward)
    with pytest.raises(RuntimeError, match="connection closed"):
        net(torch.randn(4, 32)).sum().backward()
    handle.remove()
    sharded.settle()
    net.zero_grad()
    assert dict(net.named_parameters()) == before
    assert all(group.is_sharded for group in sharded._groups)
    net(torch.randn(4, 32)).sum().backward()
    assert all(parameter.grad is not None for parameter in net.parameters())


def copy(step: int, generation: int = 1, part: int = 0) -> Copy:
    return Copy(part, step, generation, part, "l", b"own", torch.full((8,), step, dtype=torch.uint8))


def test_the_newest_three_are_kept_and_their_buffers_are_used_again() -> None:
    copies = Copies()
    for step in range(5):
        copies.put("", Copy(0, step, 1, 0, "l", b"", copies.room("", 8)))
    assert copies.keeps() == ((0, 2), (0, 3), (0, 4))
    oldest = copies.own(2)
    assert oldest is not None
    assert copies.room("", 8) is oldest.data
    assert not copies.holds(oldest)
    assert len(copies.keeps()) == KEPT - 1


def test_what_is_done_again_makes_the_copies_of_it_useless() -> None:
    copies = Copies()
    for step in (6, 7, 8):
        copies.put("other", copy(step))
    copies.entered(2, 7)
    assert copies.keeps() == ((0, 6), (0, 7))
    assert not copies.put("other", copy(8, generation=1))
    assert copies.put("other", copy(8, generation=2))
    copies.tidy(30)
    assert copies.keeps() == ()
