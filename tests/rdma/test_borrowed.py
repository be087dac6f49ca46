"""Borrowing an open file of another process: here a terminal's, which is a character device too."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sysfs_tree import Tree

from rdma.borrowed import NotBorrowedError, borrowed, device_number, start_ticks

pytestmark = pytest.mark.netns  # needs root
ZERO = os.makedev(1, 5)


@pytest.fixture
def program() -> Iterator[subprocess.Popen[bytes]]:
    """A process that holds /dev/zero open twice."""
    script = "import sys; a, b = open('/dev/zero'), open('/dev/zero'); print('ready', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process
        process.kill()


def started(pid: int) -> int:
    ticks = start_ticks(pid)
    assert ticks is not None
    return ticks


def test_copies_work_and_are_closed_on_the_way_out(program: subprocess.Popen[bytes]) -> None:
    before = set(os.listdir("/proc/self/fd"))
    with borrowed(program.pid, started(program.pid), ZERO) as copies:
        assert len(copies) == 2
        assert all(os.read(copy, 4) == bytes(4) for copy in copies)
    assert set(os.listdir("/proc/self/fd")) == before


def test_they_are_closed_when_the_block_fails(program: subprocess.Popen[bytes]) -> None:
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(ZeroDivisionError), borrowed(program.pid, started(program.pid), ZERO):
        raise ZeroDivisionError
    assert set(os.listdir("/proc/self/fd")) == before


def test_nothing_is_taken_of_a_device_that_it_does_not_hold(program: subprocess.Popen[bytes]) -> None:
    with borrowed(program.pid, started(program.pid), os.makedev(1, 7)) as copies:
        assert copies == []


def test_another_process_of_the_same_number_is_refused(program: subprocess.Popen[bytes]) -> None:
    with (
        pytest.raises(NotBorrowedError, match="another one"),
        borrowed(program.pid, started(program.pid) - 1, ZERO),
    ):
        pass


def test_a_process_that_is_gone_is_refused(program: subprocess.Popen[bytes]) -> None:
    ticks = started(program.pid)
    program.kill()
    program.wait()
    assert start_ticks(program.pid) is None
    with pytest.raises(NotBorrowedError), borrowed(program.pid, ticks, ZERO):
        pass


def test_the_character_device_of_an_rdma_device(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    assert device_number("rxe0", tmp_path) is None
    tree.write("class/infiniband_verbs/abi_version", 6)
    tree.write("class/infiniband_verbs/uverbs0/ibdev", "mlx5_0")
    tree.write("class/infiniband_verbs/uverbs0/dev", "231:192")
    tree.write("class/infiniband_verbs/uverbs1/ibdev", "rxe0")
    tree.write("class/infiniband_verbs/uverbs1/dev", "231:193")
    assert device_number("rxe0", tmp_path) == os.makedev(231, 193)
    assert device_number("rxe1", tmp_path) is None
