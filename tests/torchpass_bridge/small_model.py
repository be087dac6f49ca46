"""A small model with all that makes a job's state more than its tensors: dropout by the default generator, batch
normalisation, a scheduler, and data that is drawn by a generator of its own."""

from __future__ import annotations

from typing import Any

import torch


class Net(torch.nn.Module):
    """`norm`: with buffers that every rank fills from its own batches."""

    def __init__(self, width: int = 64, layers: int = 3, *, norm: bool = False) -> None:
        super().__init__()
        made: list[torch.nn.Module] = []
        for _ in range(layers):
            made += [torch.nn.Linear(width, width), torch.nn.GELU(), torch.nn.Dropout(0.1)]
            if norm:
                made.append(torch.nn.BatchNorm1d(width))
        self.body = torch.nn.Sequential(*made)
        self.head = torch.nn.Linear(width, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))  # type: ignore[no-any-return]


class Batches:
    """A position in the data that belongs to one rank: a generator, and how many were drawn."""

    def __init__(self, rank: int, width: int = 64, size: int = 16) -> None:
        self._generator = torch.Generator().manual_seed(1000 + rank)
        self._width, self._size = width, size
        self.drawn = 0

    def __next__(self) -> tuple[torch.Tensor, torch.Tensor]:
        self.drawn += 1
        x = torch.randn(self._size, self._width, generator=self._generator)
        return x, torch.randint(0, 8, (self._size,), generator=self._generator)

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self._generator.get_state(), "drawn": self.drawn}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._generator.set_state(state["generator"])
        self.drawn = state["drawn"]
