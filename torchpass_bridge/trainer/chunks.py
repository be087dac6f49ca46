"""The state as chunks of equal size: what is sent, checked and asked for again one by one."""

from __future__ import annotations

from typing import Any

import torch
import xxhash

from torchpass_bridge.trainer.state import Piece, layout

CHUNK_BYTES = 2 << 20
"""Small enough to stay in the processor's cache between its checksum and its sending."""


class Chunks:
    """`load`: a chunk's bytes, as parts; `store`: after they were filled. For tensors of a GPU the parts lie in pinned
    memory, one buffer for each user (`Staging`); for others they are the tensors' own memory."""

    def __init__(self, pieces: list[Piece], chunk_bytes: int = CHUNK_BYTES) -> None:
        self.layout = layout(pieces)
        self.total_bytes = sum(piece.tensor.numel() for piece in pieces)
        self._spans = _spans(pieces, chunk_bytes)
        self.chunk_bytes = chunk_bytes

    def __len__(self) -> int:
        return len(self._spans)

    def parts(self, number: int, staging: Staging) -> list[memoryview]:
        """To be filled, or after `load` to be read."""
        return staging.parts(self._spans[number])

    def load(self, number: int, staging: Staging) -> list[memoryview]:
        return staging.load(self._spans[number])

    def store(self, number: int, staging: Staging) -> None:
        staging.store(self._spans[number])


class Staging:
    """Between the tensors and the socket."""

    def __init__(self, chunk_bytes: int) -> None:
        self._chunk_bytes = chunk_bytes
        self._pinned: torch.Tensor | None = None

    def parts(self, spans: list[torch.Tensor]) -> list[memoryview]:
        return [view(host) for host in self._hosts(spans)]

    def load(self, spans: list[torch.Tensor]) -> list[memoryview]:
        hosts = self._hosts(spans)
        for span, host in zip(spans, hosts, strict=True):
            if span.device.type != "cpu":
                host.copy_(span)
        return [view(host) for host in hosts]

    def store(self, spans: list[torch.Tensor]) -> None:
        with torch.no_grad():
            for span, host in zip(spans, self._hosts(spans), strict=True):
                if span.device.type != "cpu":
                    span.copy_(host)

    def _hosts(self, spans: list[torch.Tensor]) -> list[torch.Tensor]:
        hosts, at = [], 0
        for span in spans:
            if span.device.type == "cpu":
                hosts.append(span)
                continue
            if self._pinned is None:
                self._pinned = torch.empty(self._chunk_bytes, dtype=torch.uint8, pin_memory=True)
            hosts.append(self._pinned[at : at + span.numel()])
            at += span.numel()
        return hosts


def digest(parts: list[memoryview]) -> str:
    """Of one chunk. It finds what the network or the memory has changed, not what somebody has changed on purpose."""
    told = xxhash.xxh3_64()
    for part in parts:
        told.update(part)
    return str(told.hexdigest())


def digest_of(digests: list[str]) -> str:
    """Of the whole state, from its chunks'."""
    return str(xxhash.xxh3_64("".join(digests).encode()).hexdigest())


def view(host: torch.Tensor) -> memoryview:
    """Of the bytes of a tensor in this host's memory."""
    array: Any = host.numpy()
    return memoryview(array)


def _spans(pieces: list[Piece], chunk_bytes: int) -> list[list[torch.Tensor]]:
    chunks: list[list[torch.Tensor]] = []
    room = 0
    for piece in pieces:
        at, size = 0, piece.tensor.numel()
        while at < size:
            if room == 0:
                chunks.append([])
                room = chunk_bytes
            take = min(room, size - at)
            chunks[-1].append(piece.tensor[at : at + take])
            at += take
            room -= take
    return chunks
