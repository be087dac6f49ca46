"""What a running program has posted and its device has not finished: read from its memory, never written.

Of soft-RoCE only: its send queue lies in memory that program and kernel share, with the two indexes at its beginning
(struct rxe_queue_buf, include/uapi/rdma/rdma_user_rxe.h; drivers/infiniband/sw/rxe/rxe_queue.h). What hardware has yet
to do is known to the hardware alone.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Final

import msgspec

PROC: Final = Path("/proc")
_PRODUCER, _CONSUMER, _DATA = 128, 256, 384
_SIZES: Final = struct.Struct("=II")
_SEND_ELEMENT_LOG2: Final = 8
"""A request in a send queue has 256 bytes at least; one in a receive or completion queue has 64 (more only with more
than a dozen pieces of memory a request)."""


class SendQueue(msgspec.Struct, frozen=True):
    """`outstanding`: requests that are posted and not finished."""

    outstanding: int
    producer: int
    consumer: int


def send_queues(pid: int, device: str, proc: Path = PROC) -> list[SendQueue]:
    """All send queues of a process on a character device (`/dev/infiniband/uverbs0`), in the order of their making.

    OSError: the process is gone, or may not be looked at (CAP_SYS_PTRACE)."""
    found = []
    with open(proc / str(pid) / "mem", "rb", buffering=0) as memory:
        for start, length in _mapped(pid, device, proc):
            head = os.pread(memory.fileno(), _DATA, start)
            queue = _send_queue(head, length)
            if queue is not None:
                found.append(queue)
    return found


def outstanding(pid: int, device: str, queue_pairs: int, proc: Path = PROC) -> int | None:
    """Requests that a process has outstanding, if it has as many send queues as queue pairs and exactly one; None:
    not known. Which of several queues is which queue pair's cannot be told from outside."""
    try:
        queues = send_queues(pid, device, proc)
    except OSError:
        return None
    return queues[0].outstanding if len(queues) == queue_pairs == 1 else None


def _mapped(pid: int, device: str, proc: Path) -> list[tuple[int, int]]:
    """Start and length of a process's mappings of a device (proc(5), maps), by their place in the device."""
    found = []
    for line in (proc / str(pid) / "maps").read_text(errors="replace").splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[5] == device and fields[1].startswith("rw"):
            start, _, end = fields[0].partition("-")
            found.append((int(fields[2], 16), int(start, 16), int(end, 16) - int(start, 16)))
    return [(start, length) for _, start, length in sorted(found)]


def _send_queue(head: bytes, length: int) -> SendQueue | None:
    """None when it is no send queue, or does not look like one."""
    if len(head) < _DATA:
        return None
    log2, mask = _SIZES.unpack_from(head)
    producer, consumer = (struct.unpack_from("=I", head, at)[0] for at in (_PRODUCER, _CONSUMER))
    entries = mask + 1
    if not _SEND_ELEMENT_LOG2 <= log2 <= 16 or entries & mask or max(producer, consumer) > mask:
        return None
    if _DATA + (entries << log2) > length:
        return None
    return SendQueue((producer - consumer) & mask, producer, consumer)
