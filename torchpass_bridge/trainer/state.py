"""The tensors of the job's state, as bytes in one fixed order: parameters, then what the optimizers keep.

With DDP they are alike on all ranks to the last bit, so any rank that stands at the same step can give them. Of sharded
ones (DTensor) they are this rank's part, which its replicas have too, if there are any.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import torch
from torch.distributed.tensor import DTensor

from torchpass_bridge.trainer.own import parameters
from torchpass_bridge.wire import Fit

_ADDRESS = re.compile(r"0x[0-9a-f]+")


class Piece(msgspec.Struct, frozen=True):
    name: str
    tensor: torch.Tensor
    """Flat bytes of the tensor itself: what is written to them is in it."""
    told: str
    """Type, shape and order in memory."""


class State:
    def __init__(self, modules: list[torch.nn.Module], optimizers: list[torch.optim.Optimizer]) -> None:
        self.modules, self.optimizers = modules, optimizers
        self._named = [list(module.named_parameters()) for module in modules]
        """From the start: after a forward pass alone FSDP2 shows gathered ones."""

    def pieces(self, *, bare: bool = False) -> list[Piece]:
        """`bare`: as before the first step, without what the optimizers keep."""
        return [_piece(name, tensor) for name, tensor in self._tensors(bare=bare)]

    def tensors(self, *, bare: bool = False) -> dict[str, torch.Tensor]:
        """By name, as they are; of sharded ones this rank's part."""
        return {name: _local(tensor) for name, tensor in self._tensors(bare=bare)}

    def tensors_in(self, data: torch.Tensor, told: str) -> dict[str, torch.Tensor]:
        """By name, copies of those whose bytes are `data`, in the order of `pieces`, laid out as `told`. ValueError: in
        another way than here."""
        for bare in (False, True):
            if layout(self.pieces(bare=bare)) == told:
                at, made = 0, {}
                for name, tensor in self._tensors(bare=bare):
                    made[name] = torch.empty_like(_local(tensor), device="cpu")
                    room = _piece(name, made[name]).tensor
                    room.copy_(data[at : at + room.numel()])
                    at += room.numel()
                return made
        raise ValueError(f"a part that is kept here is laid out as {told}, unlike the state")

    def empty(self) -> bool:
        """Before the first step an optimizer has nothing yet."""
        return not any(optimizer.state for optimizer in self.optimizers)

    def forget(self) -> None:
        for optimizer in self.optimizers:
            optimizer.state.clear()

    def materialize(self) -> None:
        """Let the optimizers make what they keep, by a step whose effect is taken back. Their numbers mean nothing yet.

        ValueError for an optimizer that cannot do a step by itself (LBFGS), or takes sparse gradients only."""
        for optimizer in self.optimizers:
            held = [p for p in parameters(optimizer) if p.requires_grad]
            before = [(p, p.grad, p.detach().clone()) for p in held]
            try:
                for p in held:
                    p.grad = torch.zeros_like(p)
                _bare_step(optimizer)
            except (TypeError, RuntimeError) as error:
                raise ValueError(f"{type(optimizer).__name__} cannot be prepared for a move: {error}") from error
            finally:
                with torch.no_grad():
                    for p, grad, value in before:
                        p.copy_(value)
                        p.grad = grad

    def fit(self, device: torch.device, loop: str, world: int) -> Fit:
        """Called with the optimizers' tensors made."""
        pieces = self.pieces()
        model = hashlib.sha256()
        for module in self.modules:
            model.update(_ADDRESS.sub("", repr(module)).encode())
            for name, buffer in module.named_buffers():
                model.update(f"{name} {_told(buffer)}\n".encode())
        model.update(layout(pieces).encode())
        optimizer = hashlib.sha256()
        for one in self.optimizers:
            optimizer.update(f"{type(one).__qualname__}\n".encode())
            for group in one.param_groups:
                options = {k: v for k, v in group.items() if k not in ("params", "lr", "initial_lr", "param_names")}
                optimizer.update(f"{sorted(options.items(), key=str)} {len(group['params'])}\n".encode())
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
        return Fit(
            torch=str(torch.__version__), device=name, model=model.hexdigest()[:16],
            optimizer=optimizer.hexdigest()[:16], state_bytes=sum(p.tensor.numel() for p in pieces),
            threads=torch.get_num_threads(), loop=loop, world=world,
        )  # fmt: skip

    def _tensors(self, *, bare: bool) -> Iterator[tuple[str, torch.Tensor]]:
        for number, named in enumerate(self._named):
            for name, parameter in named:
                yield f"model{number}.{name}", parameter
        for number, optimizer in enumerate([] if bare else self.optimizers):
            for index, held in enumerate(parameters(optimizer)):
                kept: dict[str, Any] = optimizer.state.get(held) or {}
                for name in sorted(kept):
                    if torch.is_tensor(kept[name]):
                        yield f"optimizer{number}.{index}.{name}", kept[name]


def _bare_step(optimizer: torch.optim.Optimizer) -> None:
    """Without the script's hooks, which must not take it for a step of the job."""
    step: Any = type(optimizer).step
    if getattr(step, "hooked", False):  # what `Optimizer` has put around it
        step = step.__wrapped__
    step(optimizer)


def layout(pieces: list[Piece]) -> str:
    """Alike in two processes exactly when one's bytes can be the other's."""
    told = hashlib.sha256()
    for piece in pieces:
        told.update(f"{piece.name} {piece.told}\n".encode())
    return told.hexdigest()[:16]


def _told(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype} {tuple(tensor.shape)} {tensor.stride()}"


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()


def _piece(name: str, tensor: torch.Tensor) -> Piece:
    """ValueError for one that is not dense in memory (a view with gaps, a sparse one)."""
    held = _local(tensor)
    if held.layout != torch.strided:
        raise ValueError(f"{name} is {held.layout}, not a dense tensor: it cannot be moved")
    order = sorted(range(held.dim()), key=held.stride, reverse=True)
    dense = held.permute(order)
    if not dense.is_contiguous():
        raise ValueError(
            f"{name} has gaps in memory (strides {held.stride()} of {tuple(held.shape)}): it cannot be moved"
        )
    return Piece(name, dense.reshape(-1).view(torch.uint8), _told(held))
