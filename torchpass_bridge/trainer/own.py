"""What is not in the tensors: generators, schedulers, positions in the data, the optimizers' options.

Two parts. `shared` is alike on all ranks (schedulers, options); `own` belongs to one rank (generators, the position in
the data, and buffers, which every rank fills from its own batches). Taken at every boundary between two steps, so it is
small and quick: some 10 kB, 0.1 ms. It is what a step that broke begins with again, and what a buddy keeps.
"""

from __future__ import annotations

import copyreg
import hashlib
import hmac
import io
import pickle
import random
import sys
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch.nn.modules.batchnorm import _NormBase


@runtime_checkable
class Stateful(Protocol):
    """What torch's modules, optimizers, schedulers, scalers and stateful data loaders have."""

    def state_dict(self) -> Any: ...
    def load_state_dict(self, state: Any, /) -> Any: ...


class Own:
    """`shared`, `own`: by name. `generators`: besides the default ones of torch, Python and NumPy."""

    def __init__(
        self,
        modules: list[torch.nn.Module],
        optimizers: list[torch.optim.Optimizer],
        shared: Mapping[str, Stateful],
        own: Mapping[str, Stateful],
        generators: list[Any],
    ) -> None:
        self._optimizers, self._shared, self._own, self._generators = optimizers, shared, own, generators
        self._buffers = {
            f"{number}.{name}": buffer
            for number, module in enumerate(modules)
            for name, buffer in module.named_buffers()
        }
        self._versions = {name: buffer._version for name, buffer in self._buffers.items()}
        self._moving = {
            f"{number}.{prefix}.{name}".replace("..", ".")
            for number, module in enumerate(modules)
            for prefix, part in module.named_modules()
            if isinstance(part, _NormBase)
            for name, _ in part.named_buffers(recurse=False)
        }
        """Buffers that were ever written to: the others are as the script made them, on every rank. Statistics of
        normalisation are so from the start: their kernels write to them without counting it."""

    def take(self) -> bytes:
        told = io.BytesIO()
        pickler = pickle.Pickler(told, protocol=5)
        pickler.dispatch_table = _QUICK
        pickler.dump({"shared": self._take_shared(), "own": self._take_own()})
        return told.getvalue()

    def put(self, data: bytes, *, only_shared: bool = False) -> None:
        """Back to what it was when `data` was taken. `data` comes from this process, or was `opened`."""
        said = pickle.loads(data)
        self._put_shared(said["shared"])
        if not only_shared:
            self._put_own(said["own"])

    def _take_shared(self) -> dict[str, Any]:
        options = [
            [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
            for optimizer in self._optimizers
        ]
        counts = [
            [
                {name: value for name, value in state.items() if not torch.is_tensor(value)}
                for parameter in parameters(optimizer)
                if (state := optimizer.state.get(parameter)) is not None
            ]
            for optimizer in self._optimizers
        ]
        named = {name: stateful.state_dict() for name, stateful in self._shared.items()}
        return {"options": options, "counts": counts, "named": named}

    def _put_shared(self, said: dict[str, Any]) -> None:
        for optimizer, groups, counts in zip(self._optimizers, said["options"], said["counts"], strict=True):
            for group, options in zip(optimizer.param_groups, groups, strict=True):
                for name, value in options.items():
                    if torch.is_tensor(value) and torch.is_tensor(group.get(name)):
                        group[name].copy_(value)
                    else:
                        group[name] = value
            for parameter, values in zip(parameters(optimizer), counts, strict=False):
                if values:
                    optimizer.state[parameter].update(values)
        for name, state in said["named"].items():
            self._shared[name].load_state_dict(state)

    def _take_own(self) -> dict[str, Any]:
        for name, buffer in self._buffers.items():
            if buffer._version != self._versions[name]:
                self._moving.add(name)
        numpy = sys.modules.get("numpy")
        return {
            "torch": torch.get_rng_state().numpy().tobytes(),
            "cuda": [state.cpu().numpy().tobytes() for state in _cuda_states()],
            "python": random.getstate(),
            "numpy": numpy.random.get_state() if numpy else None,
            "generators": [_generator_state(generator) for generator in self._generators],
            "buffers": {name: self._buffers[name].detach() for name in sorted(self._moving)},
            "named": {name: stateful.state_dict() for name, stateful in self._own.items()},
        }

    def _put_own(self, said: dict[str, Any]) -> None:
        torch.set_rng_state(_bytes(said["torch"]))
        for number, state in enumerate(said["cuda"]):
            torch.cuda.set_rng_state(_bytes(state), number)
        random.setstate(said["python"])
        numpy = sys.modules.get("numpy")
        if numpy and said["numpy"] is not None:
            numpy.random.set_state(said["numpy"])
        for generator, state in zip(self._generators, said["generators"], strict=True):
            _put_generator(generator, state)
        with torch.no_grad():
            for name, value in said["buffers"].items():
                self._moving.add(name)
                self._buffers[name].copy_(value)
        for name, state in said["named"].items():
            self._own[name].load_state_dict(state)

    def reseed(self, seed: int) -> None:
        """New generators for a rank whose own ones nobody has any more."""
        torch.manual_seed(seed)
        random.seed(seed)
        numpy = sys.modules.get("numpy")
        if numpy:
            numpy.random.seed(seed % 2**32)
        for number, generator in enumerate(self._generators):
            if isinstance(generator, torch.Generator):
                generator.manual_seed(seed + number + 1)
            elif isinstance(generator, random.Random):
                generator.seed(seed + number + 1)
            else:
                fresh = type(generator.bit_generator)(seed + number + 1)
                generator.bit_generator.state = fresh.state


def parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def sealed(key: bytes, rank: int, step: int, data: bytes) -> bytes:
    """With a mark that only who knows the job's key can make: it is unpickled by who gets it."""
    return _mark(key, rank, step, data) + data


def opened(key: bytes, rank: int, step: int, data: bytes) -> bytes:
    """ValueError when the mark is wrong."""
    if not hmac.compare_digest(data[:32], _mark(key, rank, step, data[32:])):
        raise ValueError(f"rank {rank}'s generators at step {step} do not carry the job's mark")
    return data[32:]


def _mark(key: bytes, rank: int, step: int, data: bytes) -> bytes:
    return hmac.new(key, f"own {rank} {step} ".encode() + data, hashlib.sha256).digest()


def _tensor(data: bytes, kind: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=kind).reshape(shape) if data else torch.empty(shape, dtype=kind)


def _reduce(tensor: torch.Tensor) -> Any:
    """A tenth of the time that torch's own way takes: most of what is noted are small tensors."""
    if tensor.layout != torch.strided or type(tensor) is not torch.Tensor or tensor.requires_grad:
        return tensor.__reduce_ex__(5)  # type: ignore[no-untyped-call]
    flat = tensor.cpu().contiguous().reshape(-1).view(torch.uint8)
    return _tensor, (flat.numpy().tobytes(), tensor.dtype, tuple(tensor.shape))


_QUICK = copyreg.dispatch_table.copy()
_QUICK[torch.Tensor] = _reduce


def _bytes(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _cuda_states() -> list[torch.Tensor]:
    return torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []


def _generator_state(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state().cpu().numpy().tobytes()
    if isinstance(generator, random.Random):
        return generator.getstate()
    return generator.bit_generator.state


def _put_generator(generator: Any, state: Any) -> None:
    if isinstance(generator, torch.Generator):
        generator.set_state(_bytes(state))
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    else:
        generator.bit_generator.state = state
