"""A model under FSDP2 (`fully_shard`) that changes its process groups between two steps, and sums as before.

Groups sit in the mesh infos of the parameter groups; a mesh finds its own by name, and says where in it this process
is. What a broken step leaves behind (gathered parameters, results that are waited for, half a backward pass) goes with
torch's own `reset_iter_state`. How gradients are packed and summed follows from the modules and the mesh alone, so
there is nothing else to carry over.
"""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Shard

from torchpass_bridge.trainer.groups import DIMENSIONS, Grid, Group


def mesh_of(device_type: str, group: Group, grid: Grid | None) -> DeviceMesh:
    """Over all ranks: of one dimension, or ("replicate", "shard"). `group` is installed."""
    if grid is None:
        return DeviceMesh.from_group(group.pg, device_type)
    ranks = torch.arange(grid[0] * grid[1]).view(grid)
    return DeviceMesh.from_group([dim.pg for dim in group.dims], device_type, ranks, mesh_dim_names=DIMENSIONS)


class Sharded:
    def __init__(self, mesh: DeviceMesh, modules: list[torch.nn.Module]) -> None:
        """ValueError for what cannot be moved."""
        self._mesh: Any = mesh
        self._states = [
            part._get_fsdp_state() for module in modules for part in module.modules() if isinstance(part, FSDPModule)
        ]
        for number, module in enumerate(modules):
            for name, parameter in module.named_parameters():
                _check(f"model{number}.{name}", parameter, mesh)
        self._groups: list[Any] = [group for state in self._states for group in state._fsdp_param_groups]
        for group in self._groups:
            if group.post_forward_mesh_info not in (None, group.mesh_info):
                raise ValueError("reshard_after_forward as a number needs groups of its own, which are not moved")
            if group.mesh_info.reduce_scatter_process_group is not None:
                raise ValueError("set_separate_reduce_scatter_group makes a group of its own, which is not moved")

    def alone(self, step: int, hollow: Group) -> None:
        """For a step that is done without the others, in a group that asks nobody."""
        self._follow(hollow)

    def begin(self, group: Group, step: int) -> None:
        """In `group`. Unlike DDP, FSDP2 gives nobody rank 0's parameters at the start."""
        self._follow(group)

    def rebuild(self) -> None:
        """FSDP2's first step is like its later ones."""

    def settle(self) -> None:
        """Back to between two steps after one that broke: parameters sharded, no gradients."""
        for group in self._groups:
            group._all_gather_result = None  # what it waits for has failed, and would raise it again
            for held in group.fsdp_params:
                held.unsharded_accumulated_grad = None
                if hasattr(held, "_unsharded_param"):
                    held._unsharded_param.grad = None
        for state in self._states:
            if state._is_root:
                state._reset_iter_state()

    def settings(self) -> str:
        """What the order of its sums depends on."""
        told = hashlib.sha256(f"{tuple(self._mesh.shape)}".encode())
        for group in self._groups:
            held = [(tuple(one._orig_size), str(one.fsdp_placement)) for one in group.fsdp_params]
            options = (
                group.mp_policy, group.offload_policy, group.gradient_divide_factor,
                group.force_sum_reduction_for_comms,
            )  # fmt: skip
            told.update(f"{held} {options}\n".encode())
        return told.hexdigest()[:16]

    def _follow(self, group: Group) -> None:
        dims = group.dims or (group,)
        rank = group.pg.rank()
        meshes = {id(self._mesh): (self._mesh, tuple(dim.pg.rank() for dim in dims))}
        infos = {}
        for one in self._groups:
            for info in (one.mesh_info, one.post_forward_mesh_info, *(held.mesh_info for held in one.fsdp_params)):
                infos[id(info)] = info
            for held in one.fsdp_params:
                meshes.setdefault(id(held.shard_mesh), (held.shard_mesh, (dims[-1].pg.rank(),)))
                at = held.sharded_param.device_mesh  # torch may give out another one that is equal
                meshes.setdefault(id(at), (at, meshes[id(self._mesh)][1]))
        for mesh, coordinate in meshes.values():
            mesh._rank, mesh._coordinate_on_dim = rank, coordinate
        self._mesh._pg_registry.update({str(dim.name): dim.pg for dim in dims})
        for info in infos.values():
            if info is not None:
                info.shard_process_group, info.shard_mesh_rank = dims[-1].pg, dims[-1].pg.rank()
                if len(dims) > 1:
                    info.replicate_process_group, info.replicate_mesh_rank = dims[0].pg, dims[0].pg.rank()


def _check(name: str, parameter: torch.Tensor, mesh: DeviceMesh) -> None:
    if not isinstance(parameter, DTensor):
        if parameter.requires_grad:
            raise ValueError(f"{name} is trained, but in no fully_shard: its gradients would differ from rank to rank")
        return
    if parameter.device_mesh != mesh:
        raise ValueError(f"{name} lies on another mesh than that of run.mesh(): it cannot follow the job")
    parts = mesh.size(mesh.ndim - 1)
    for placement in parameter.placements:
        if isinstance(placement, Shard) and parameter.shape[placement.dim] % parts:
            raise ValueError(
                f"{name} of shape {tuple(parameter.shape)} is not dealt out evenly: dimension {placement.dim} is no "
                f"multiple of {parts} shards, so a spare would not know how much of it is its own"
            )
