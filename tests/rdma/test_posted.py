"""Send queues as a program's memory shows them."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from rdma.posted import SendQueue, outstanding, send_queues

DEVICE = "/dev/infiniband/uverbs0"
PID = 77


def queue(log2: int, entries: int, producer: int, consumer: int) -> bytes:
    head = bytearray(384 + (entries << log2))
    struct.pack_into("=II", head, 0, log2, entries - 1)
    struct.pack_into("=I", head, 128, producer)
    struct.pack_into("=I", head, 256, consumer)
    return bytes(head) + bytes(-len(head) % 4096)


def process(folder: Path, *mapped: bytes, device: str = DEVICE) -> Path:
    """A process whose memory holds these, each mapped from the device."""
    (folder / str(PID)).mkdir()
    lines, memory, at = ["00000000-00001000 r-xp 00000000 08:01 5   /usr/bin/program"], bytearray(4096), 4096
    for number, one in enumerate(mapped):
        end = at + len(one)
        lines.append(f"{at:08x}-{end:08x} rw-s {number << 20:08x} 00:06 9   {device}")
        memory += one
        at = end
    (folder / str(PID) / "maps").write_text("\n".join(lines) + "\n")
    (folder / str(PID) / "mem").write_bytes(memory)
    return folder


def test_what_is_posted_is_what_lies_between_the_two_indexes(tmp_path: Path) -> None:
    proc = process(tmp_path, queue(6, 256, 3, 3), queue(8, 128, 5, 120), queue(6, 1, 0, 0))
    assert send_queues(PID, DEVICE, proc) == [SendQueue(13, 5, 120)]
    assert outstanding(PID, DEVICE, 1, proc) == 13


@pytest.mark.parametrize("count", [0, 2])
def test_which_of_several_is_not_guessed(tmp_path: Path, count: int) -> None:
    proc = process(tmp_path, *[queue(8, 16, 1, 0)] * count)
    assert len(send_queues(PID, DEVICE, proc)) == count
    assert outstanding(PID, DEVICE, count, proc) is None
    assert outstanding(PID, DEVICE, 1, proc) is None


@pytest.mark.parametrize(
    "odd", [bytes(4096), queue(8, 16, 16, 0), queue(8, 16, 0, 99), queue(8, 128, 1, 0)[:4096], b"\xff" * 4096]
)
def test_memory_that_is_no_queue_says_nothing(tmp_path: Path, odd: bytes) -> None:
    assert send_queues(PID, DEVICE, process(tmp_path, odd)) == []


def test_another_devices_queues_do_not_count(tmp_path: Path) -> None:
    assert send_queues(PID, DEVICE, process(tmp_path, queue(8, 16, 1, 0), device="/dev/infiniband/uverbs1")) == []


def test_a_process_that_is_gone_is_not_known(tmp_path: Path) -> None:
    assert outstanding(PID, DEVICE, 1, tmp_path) is None
